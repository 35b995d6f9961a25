// Package kube translates Kubernetes objects to the model of services that agents
// proxy (package proxy) and to the records that their DNS serves (package dns/records).
//
// Enter at [ServiceOf] and [SliceOf], or at [NameOf] and [NameSliceOf] for Services that
// are resolved but not proxied. [PlannedSliceOf] adds the weights of a plan. All are pure
// functions: they read no API, keep no state and never change their arguments.
package kube

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// labelProxyName assigns a Service to another proxy
// (KEP-2447; k8s.io/kubernetes/pkg/proxy/apis).
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// annotationPreserveDestination is of Windows nodes (k8s.io/kubernetes/pkg/proxy/winkernel).
const annotationPreserveDestination = "preserve-destination"

// ServiceOf translates a Service. ok is false for those that are not proxied:
// headless Services, external names, and Services of another proxy.
// Invalid addresses and ports are left out: the API has validated
// them, and one invalid entry must not affect the others.
func ServiceOf(s *corev1.Service) (service *proxy.Service, ok bool) {
	if _, other := s.Labels[labelProxyName]; other ||
		s.Spec.Type == corev1.ServiceTypeExternalName || s.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil, false
	}
	ips := s.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{s.Spec.ClusterIP}
	}
	out := &proxy.Service{
		Name:          proxy.ServiceName{Namespace: s.Namespace, Name: s.Name},
		ClusterIPs:    addresses(ips),
		ExternalIPs:   addresses(s.Spec.ExternalIPs),
		InternalLocal: value(s.Spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster) == corev1.ServiceInternalTrafficPolicyLocal,
		ExternalLocal: s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
	}
	if len(out.ClusterIPs) == 0 {
		return nil, false // no address yet
	}
	out.WarmUp = kind.WarmUpOf(s)
	out.PreserveDestination = s.Annotations[annotationPreserveDestination] == "true"
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		out.LoadBalancerIPs = loadBalancerIPs(s.Status.LoadBalancer.Ingress)
		out.SourceRanges = proxy.ParseSourceRanges(s.Spec.LoadBalancerSourceRanges)
		if out.ExternalLocal {
			out.HealthCheckNodePort = uint16(s.Spec.HealthCheckNodePort)
		}
	}
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		out.AffinityTimeout = affinity(s.Spec.SessionAffinityConfig)
	}
	for _, p := range s.Spec.Ports {
		if !validPort(p.Port) {
			continue
		}
		port := proxy.Port{Name: p.Name, Protocol: protocolOf(p.Protocol), Port: uint16(p.Port)}
		if validPort(p.NodePort) {
			port.NodePort = uint16(p.NodePort)
		}
		if p.AppProtocol != nil {
			port.AppProtocol = *p.AppProtocol
		}
		out.Ports = append(out.Ports, port)
	}
	return out, true
}

// SliceOf translates an EndpointSlice. ok is false for those that are not proxied:
// slices of headless Services, of another proxy, with domain names as addresses, or
// without a Service. Of several addresses of an endpoint the first is used
// (discovery.k8s.io/v1 defines no meaning for the others).
func SliceOf(s *discoveryv1.EndpointSlice) (slice *proxy.Slice, ok bool) {
	service := s.Labels[discoveryv1.LabelServiceName]
	_, headless := s.Labels[corev1.IsHeadlessService]
	_, other := s.Labels[labelProxyName]
	if service == "" || headless || other || s.AddressType == discoveryv1.AddressTypeFQDN {
		return nil, false
	}
	out := &proxy.Slice{
		Name:    proxy.SliceName{Namespace: s.Namespace, Name: s.Name},
		Service: proxy.ServiceName{Namespace: s.Namespace, Name: service},
		Trigger: triggerOf(s),
	}
	for _, p := range s.Ports {
		if p.Port == nil || !validPort(*p.Port) {
			continue
		}
		out.Ports = append(out.Ports, slicePortOf(p))
	}
	out.Endpoints = slices.Grow(out.Endpoints, len(s.Endpoints)) // the exact capacity, as slices are long-lived
	for i := range s.Endpoints {
		if e, ok := endpointOf(&s.Endpoints[i]); ok {
			out.Endpoints = append(out.Endpoints, e)
		}
	}
	return out, true
}

func slicePortOf(p discoveryv1.EndpointPort) proxy.SlicePort {
	return proxy.SlicePort{
		Name:     value(p.Name, ""),
		Port:     uint16(*p.Port),
		Protocol: protocolOf(value(p.Protocol, corev1.ProtocolTCP)),
	}
}

// triggerOf is the trigger time in the endpoint slice controller's annotation; zero
// if it is missing or invalid.
func triggerOf(s *discoveryv1.EndpointSlice) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil || t.Year() <= 1970 || t.Year() > 2200 { // out of range in nanoseconds
		return time.Time{}
	}
	return t.UTC()
}

func endpointOf(e *discoveryv1.Endpoint) (proxy.SliceEndpoint, bool) {
	if len(e.Addresses) == 0 {
		return proxy.SliceEndpoint{}, false
	}
	addr, ok := address(e.Addresses[0])
	if !ok {
		return proxy.SliceEndpoint{}, false
	}
	out := proxy.SliceEndpoint{
		Addr:        addr,
		Node:        value(e.NodeName, ""),
		Zone:        locality.Zone(value(e.Zone, "")),
		Ready:       value(e.Conditions.Ready, true),
		Serving:     value(e.Conditions.Serving, true),
		Terminating: value(e.Conditions.Terminating, false),
	}
	if e.Hints != nil {
		var zones []locality.Zone
		var nodes []string
		for _, z := range e.Hints.ForZones {
			zones = append(zones, locality.Zone(z.Name))
		}
		for _, n := range e.Hints.ForNodes {
			nodes = append(nodes, n.Name)
		}
		out.Hints = proxy.HintsOf(zones, nodes)
	}
	return out, true
}

func value[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

func validPort(p int32) bool { return p > 0 && p <= 65535 }

// protocolOf applies the API's default, which old objects may lack.
func protocolOf(p corev1.Protocol) proxy.Protocol {
	if p == "" {
		return proxy.TCP
	}
	return proxy.Protocol(p)
}

func address(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	return a.Unmap(), err == nil && a.Zone() == ""
}

func addresses(in []string) []netip.Addr {
	var out []netip.Addr
	for _, s := range in {
		if a, ok := address(s); ok {
			out = append(out, a)
		}
	}
	return out
}

// loadBalancerIPs leaves out those that the load balancer handles itself (ipMode Proxy).
func loadBalancerIPs(in []corev1.LoadBalancerIngress) []netip.Addr {
	var out []netip.Addr
	for _, i := range in {
		if value(i.IPMode, corev1.LoadBalancerIPModeVIP) == corev1.LoadBalancerIPModeProxy {
			continue
		}
		if a, ok := address(i.IP); ok {
			out = append(out, a)
		}
	}
	return out
}

// affinity is the timeout of session affinity; the API's default is three hours.
func affinity(c *corev1.SessionAffinityConfig) time.Duration {
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	return time.Duration(seconds) * time.Second
}
