package main

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// The objects of all parts: Services of one TCP or HTTP port, each with one slice, and workloads
// that use some of them.

const (
	namespace   = metav1.NamespaceDefault
	account     = "default"
	servicePort = 80
	nodeName    = "bench"
	// endpointsEach Service, as in bench/fanout.
	endpointsEach = 10
)

func serviceName(i int) string { return fmt.Sprintf("service-%05d", i) }

// isHTTP: every second Service is.
func isHTTP(i int) bool { return i%2 == 1 }

// clusterOf a Service is the name of its cluster and of its endpoints.
func clusterOf(i int) string { return fmt.Sprintf("%s/%s:%d", namespace, serviceName(i), servicePort) }

// vip of a Service, in the range of the control plane; those that users choose are at its lower end.
func vip(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 96, byte(8 + i/250), byte(1 + i%250)})
}

func newService(i int) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceName(i)},
		Spec: corev1.ServiceSpec{
			ClusterIP: vip(i).String(), Ports: []corev1.ServicePort{{Name: "main", Port: servicePort, Protocol: corev1.ProtocolTCP}},
		},
	}
	if isHTTP(i) {
		s.Spec.Ports[0].AppProtocol = new("http")
	}
	return s
}

// newSlice of a Service whose endpoints are ports of addresses that nobody has, but for the first.
func newSlice(i int, first netip.AddrPort) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: serviceName(i),
			Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(i), discoveryv1.LabelManagedBy: "bench"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("main"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	addresses := []string{}
	if first.IsValid() { // it alone, as the port is that of all
		s.Ports[0].Port = new(int32(first.Port()))
		addresses = append(addresses, first.Addr().String())
	} else {
		for e := range endpointsEach {
			addresses = append(addresses, fmt.Sprintf("10.%d.%d.%d", 1+i/250, i%250, e+1))
		}
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		})
	}
	return s
}

// turned is the slice of a Service with another first endpoint in each round.
func turned(i, round int) *discoveryv1.EndpointSlice {
	s := newSlice(i, netip.AddrPort{})
	s.Endpoints[0].Addresses = []string{fmt.Sprintf("10.200.%d.%d", round>>8&255, round&255)}
	return s
}

func proxyName(i int) string { return fmt.Sprintf("proxy-%05d", i) }

func nodeID(name string) string { return meshv1alpha1.DefaultMesh + "/" + namespace + "/" + name }

// newDataplane of a workload that uses Services.
func newDataplane(name, address string, services []int) *meshv1alpha1.Dataplane {
	backends := make([]string, 0, len(services))
	for _, i := range services {
		backends = append(backends, serviceName(i))
	}
	return &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Annotations: map[string]string{"mesh.proxima.dev/backends": strings.Join(backends, ",")},
		},
		Spec: meshv1alpha1.DataplaneSpec{
			NodeName: nodeName, Addresses: []string{address}, Ports: []meshv1alpha1.DataplanePort{{Name: "http", Port: 8080}},
			Proxy: &meshv1alpha1.DataplaneProxy{},
		},
	}
}

// usedBy is what the proxy of a number uses: the first Service, as all of them do, and some others.
func usedBy(proxy int, p plan) []int {
	out := []int{0}
	for k := 1; k < p.used; k++ {
		out = append(out, 1+(proxy*(p.used-1)+k-1)%(p.services-1))
	}
	return out
}

func proxyAddress(i int) string { return fmt.Sprintf("10.%d.%d.%d", 100+i/62500, i/250%250, 1+i%250) }
