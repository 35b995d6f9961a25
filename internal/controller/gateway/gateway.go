// Package gateway keeps the ZoneIngresses and ZoneEgresses of a zone whose gateways are Pods of
// a Kubernetes cluster: a gateway there needs no permission in the cluster, and a Pod that is
// gone leaves no object.
//
// It owns how such a gateway is reached from elsewhere: by what the Service of the gateways says
// (Reconcile, pure). Enter at New. It knows no traffic, and touches no gateway that registers
// itself.
package gateway

import (
	"cmp"
	"net"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// Labels of the Pods and the Service of gateways, by which they are known (recommended labels of
// Kubernetes; the chart sets them).
const (
	LabelName      = "app.kubernetes.io/name"
	Name           = "proxima"
	LabelComponent = "app.kubernetes.io/component"
	Ingress        = "ingress"
	Egress         = "egress"
)

// AnnotationAdvertised on the Service of ingresses is HOST or HOST:PORT by which other zones
// reach them, in the place of what the Service says.
const AnnotationAdvertised = meshv1alpha1.GroupName + "/advertised-address"

// LabelManagedBy marks the objects that this package creates.
const (
	LabelManagedBy = meshv1alpha1.GroupName + "/managed-by"
	managedBy      = "gateway"
)

// Input is what the object of one gateway follows from. Reconcile changes none of it.
type Input struct {
	Site string
	// Pod of the gateway, and the Node that it is on; nil: there is none.
	Pod  *corev1.Pod
	Node *corev1.Node
	// Service of the gateways of its kind; nil: there is none.
	Service *corev1.Service
	// Port that the gateway listens on.
	Port int32
}

// IsGateway reports whether a Pod is a gateway of a component, Ingress or Egress.
func IsGateway(o metav1.Object, component string) bool {
	l := o.GetLabels()
	return l[LabelName] == Name && l[LabelComponent] == component
}

// Reconcile returns what others learn of a gateway; nil: there is none. One that is not ready
// stays: others try their next one meanwhile. One that is to go is taken away at once.
func Reconcile(in Input) *meshv1alpha1.ZoneGatewaySpec {
	if in.Pod == nil || in.Pod.DeletionTimestamp != nil {
		return nil
	}
	if phase := in.Pod.Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
		return nil
	}
	own, err := netip.ParseAddr(in.Pod.Status.PodIP)
	if err != nil {
		return nil
	}
	out := &meshv1alpha1.ZoneGatewaySpec{Zone: in.Site, Address: own.Unmap().String(), Port: in.Port}
	if in.Service != nil {
		host, port := advertised(in)
		if host != out.Address {
			out.AdvertisedAddress = host
		}
		if port != out.Port && host != "" {
			out.AdvertisedPort = port
		}
	}
	return out
}

// advertised is how a Service leads to the gateway from elsewhere; empty: by the Pod's address.
func advertised(in Input) (host string, port int32) {
	s := in.Service
	var service, node int32
	for _, p := range s.Spec.Ports {
		if p.TargetPort.IntVal == in.Port || p.TargetPort.StrVal != "" || len(s.Spec.Ports) == 1 {
			service, node = p.Port, p.NodePort
			break
		}
	}
	if text := s.Annotations[AnnotationAdvertised]; text != "" {
		return split(text, service)
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		for _, at := range s.Status.LoadBalancer.Ingress {
			if host := cmp.Or(at.IP, at.Hostname); host != "" {
				return host, service
			}
		}
	}
	if s.Spec.Type != corev1.ServiceTypeClusterIP && node != 0 && in.Node != nil {
		if host := nodeAddress(in.Node); host != "" {
			return host, node
		}
	}
	return "", 0
}

// split HOST or HOST:PORT.
func split(text string, port int32) (string, int32) {
	host, p, err := net.SplitHostPort(text)
	if err != nil {
		return text, port
	}
	if n, err := strconv.ParseUint(p, 10, 16); err == nil && n > 0 {
		return host, int32(n)
	}
	return host, port
}

// nodeAddress by which others reach a node: an external one before an internal one.
func nodeAddress(n *corev1.Node) string {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		for _, a := range n.Status.Addresses {
			if a.Type == kind {
				return a.Address
			}
		}
	}
	return ""
}
