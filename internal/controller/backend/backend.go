// Package backend is what Pods and Dataplanes have in common when they stand
// behind a Service: addresses, ports, readiness. EndpointSlices and Endpoints
// are made of it, so both say the same.
//
// Enter at OfPod and OfDataplane. Everything is pure. The package decides no
// endpoint's fate: who is published, and how, is the business of its callers.
package backend

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// Backend is a workload behind a Service.
type Backend struct {
	Ref corev1.ObjectReference
	// Addresses in canonical form.
	Addresses []string
	// Node that it runs on, and a zone of its own; empty: none is named.
	Node, Zone string
	// Hostname below the name of the Service; empty: none.
	Hostname             string
	Serving, Terminating bool
	// Idle: it gets no new connections by its weight.
	Idle bool
	// Since is when Serving last changed; zero: unknown.
	Since time.Time

	// tolerations of the taints of its node.
	tolerations []corev1.Toleration
	port        func(name string, protocol corev1.Protocol) (int32, bool)
	// inbounds are the ports that are part of the service of a tag.
	inbounds func(host string) []servicetag.Inbound
}

// Name is for people.
func (b *Backend) Name() string { return b.Ref.Kind + " " + b.Ref.Namespace + "/" + b.Ref.Name }

// OfPod describes a pod behind a Service of a name. ok is false for one that
// cannot have an endpoint: it has ended, or has no address.
func OfPod(pod *corev1.Pod, service string) (b Backend, ok bool) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return Backend{}, false
	}
	addresses := podAddresses(pod)
	if len(addresses) == 0 {
		return Backend{}, false
	}
	b = Backend{
		Ref:         corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Addresses:   addresses,
		Node:        pod.Spec.NodeName,
		Terminating: pod.DeletionTimestamp != nil,
		tolerations: pod.Spec.Tolerations,
		port: func(name string, protocol corev1.Protocol) (int32, bool) {
			return containerPort(pod, name, protocol)
		},
		inbounds: func(host string) []servicetag.Inbound { return servicetag.PodInbounds(pod, host) },
	}
	b.Serving, b.Since = podReady(pod)
	if pod.Spec.Hostname != "" && pod.Spec.Subdomain == service {
		b.Hostname = pod.Spec.Hostname
	}
	return b, true
}

// Ready says whether it gets new connections from a Service. One of weight 0 is not ready,
// but serving: no proxy uses such an endpoint, whether it knows weights or not. A Service
// that publishes addresses which are not ready publishes those of weight 0 too.
func (b *Backend) Ready(service *corev1.Service) bool {
	return service.Spec.PublishNotReadyAddresses || b.Serving && !b.Terminating && !b.Idle
}

// Draining says whether a Dataplane is terminating: its deletion was asked for, or it is
// disabled. As long as it is serving it keeps its connections, and gets new ones where no
// endpoint is ready.
func Draining(d *meshv1alpha1.Dataplane) bool {
	return d.DeletionTimestamp != nil || !ptr.Deref(d.Spec.Enabled, true)
}

// WeightOf a Dataplane: its share relative to other endpoints, 0 to MaxWeight.
func WeightOf(d *meshv1alpha1.Dataplane) uint32 {
	return uint32(max(0, ptr.Deref(d.Spec.Weight, meshv1alpha1.DefaultWeight)))
}

// OfDataplane describes a Dataplane behind a Service of a name.
func OfDataplane(d *meshv1alpha1.Dataplane, service string) Backend {
	b := Backend{
		Ref: corev1.ObjectReference{
			APIVersion: meshv1alpha1.SchemeGroupVersion.String(), Kind: "Dataplane",
			Namespace: d.Namespace, Name: d.Name, UID: d.UID,
		},
		Addresses:   canonical(slices.Values(d.Spec.Addresses)),
		Node:        d.Spec.NodeName,
		Zone:        d.Labels[corev1.LabelTopologyZone],
		Terminating: Draining(d),
		Idle:        WeightOf(d) == 0,
		port: func(name string, protocol corev1.Protocol) (int32, bool) {
			for _, p := range d.Spec.Ports {
				if p.Name == name && ProtocolOf(p.Protocol) == protocol {
					return p.Port, true
				}
			}
			return 0, false
		},
		inbounds: func(host string) []servicetag.Inbound { return servicetag.DataplaneInbounds(d, host) },
	}
	b.Serving, b.Since = dataplaneReady(d)
	if d.Spec.Hostname != "" && d.Spec.Subdomain == service {
		b.Hostname = d.Spec.Hostname
	}
	return b
}

func dataplaneReady(d *meshv1alpha1.Dataplane) (bool, time.Time) {
	if ready := meta.FindStatusCondition(d.Status.Conditions, meshv1alpha1.DataplaneReady); ready != nil {
		return ready.Status == metav1.ConditionTrue, ready.LastTransitionTime.Time
	}
	return false, time.Time{}
}

// Address is the first one of a family.
func (b *Backend) Address(family discoveryv1.AddressType) (string, bool) {
	for _, address := range b.Addresses {
		if f, ok := FamilyOf(address); ok && f == family {
			return address, true
		}
	}
	return "", false
}

// Ports finds the Service's target ports at the backend. One that it does not
// have is left out.
func (b *Backend) Ports(service *corev1.Service) []discoveryv1.EndpointPort {
	ports := make([]discoveryv1.EndpointPort, 0, len(service.Spec.Ports))
	var inbounds []servicetag.Inbound
	host, tagged := servicetag.HostOf(service)
	if tagged {
		inbounds = b.inbounds(host)
	}
	for i := range service.Spec.Ports {
		p := &service.Spec.Ports[i]
		protocol := ProtocolOf(string(p.Protocol))
		number := p.TargetPort.IntVal
		switch {
		case tagged:
			target, ok := servicetag.Target(p, inbounds)
			if !ok {
				continue
			}
			number = target
		case p.TargetPort.Type == intstr.String:
			named, ok := b.port(p.TargetPort.StrVal, protocol)
			if !ok {
				continue
			}
			number = named
		case number == 0:
			number = p.Port
		}
		ports = append(ports, discoveryv1.EndpointPort{
			Name: &p.Name, Port: ptr.To(number), Protocol: ptr.To(protocol), AppProtocol: p.AppProtocol,
		})
	}
	return ports
}

// ProtocolOf applies the API's default.
func ProtocolOf(p string) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return corev1.Protocol(p)
}

// FamilyOf is the address type of an IP; ok is false if it is none.
func FamilyOf(ip string) (family discoveryv1.AddressType, ok bool) {
	addr, err := netip.ParseAddr(ip)
	switch {
	case err != nil:
		return "", false
	case addr.Is4() || addr.Is4In6():
		return discoveryv1.AddressTypeIPv4, true
	default:
		return discoveryv1.AddressTypeIPv6, true
	}
}

// canonical writes addresses as everybody else does, as they are compared as
// text. What is no address is left out.
func canonical(in func(func(string) bool)) []string {
	var out []string
	for s := range in {
		// Objects of an older API may hold "010.0.0.1"; it is read as Kubernetes
		// reads it.
		if ip := netutils.ParseIPSloppy(s); ip != nil {
			out = append(out, ip.String())
		}
	}
	return out
}
