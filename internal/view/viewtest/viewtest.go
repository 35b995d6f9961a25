// Package viewtest has objects and catalog deltas for tests of views. It is imported by
// tests alone.
package viewtest

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
)

// Service makes a Service in namespace ns with TCP port 80; ip may be None.
func Service(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
}

// Slice makes an EndpointSlice of Service ns/web with TCP port 8080.
func Slice(name string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

// Node makes a Node; an empty zone: without the label.
func Node(name, zone string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if zone != "" {
		n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	return n
}

// Delta makes a catalog's delta of epoch e from Services, EndpointSlices and Nodes. A
// string "service/NAME", "slice/NAME" or "node/NAME" is the removal of an object. Any
// other argument panics.
func Delta(sequence uint64, objects ...any) *catalog.Delta {
	d := &catalog.Delta{After: &catalog.Snapshot{Position: catalog.Position{Epoch: "e", Sequence: sequence}}}
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Service:
			d.Services = append(d.Services, catalog.Change[*corev1.Service]{Key: keyOf(o), New: o})
		case *discoveryv1.EndpointSlice:
			d.Slices = append(d.Slices, catalog.Change[*discoveryv1.EndpointSlice]{Key: keyOf(o), New: o})
		case *corev1.Node:
			d.Nodes = append(d.Nodes, catalog.Change[*corev1.Node]{Key: keyOf(o), New: o})
		case string:
			remove(d, o)
		default:
			panic(fmt.Sprintf("viewtest: delta of a %T", o))
		}
	}
	return d
}

func keyOf(o metav1.Object) catalog.Key {
	return catalog.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func remove(d *catalog.Delta, object string) {
	kind, name, _ := strings.Cut(object, "/")
	switch kind {
	case "service":
		d.Services = append(d.Services, catalog.Change[*corev1.Service]{Key: catalog.Key{Namespace: "ns", Name: name}})
	case "slice":
		d.Slices = append(d.Slices, catalog.Change[*discoveryv1.EndpointSlice]{Key: catalog.Key{Namespace: "ns", Name: name}})
	case "node":
		d.Nodes = append(d.Nodes, catalog.Change[*corev1.Node]{Key: catalog.Key{Name: name}})
	default:
		panic(fmt.Sprintf("viewtest: removal of %q", object))
	}
}
