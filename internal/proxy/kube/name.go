package kube

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// NameOf translates a Service that is resolved but not proxied (see [ServiceOf]). ok
// is false for Services that are proxied, and for those that have no address yet.
func NameOf(s *corev1.Service) (name *records.Name, ok bool) {
	if _, proxied := ServiceOf(s); proxied {
		return nil, false
	}
	out := &records.Name{Name: proxy.ServiceName{Namespace: s.Namespace, Name: s.Name}}
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		out.ExternalName = domain(s.Spec.ExternalName)
		return out, out.ExternalName != ""
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		return out, true
	}
	// A Service of another proxy: its addresses and ports are resolved all the same.
	unlabelled := *s
	unlabelled.Labels = nil
	service, ok := ServiceOf(&unlabelled)
	if !ok {
		return nil, false
	}
	out.ClusterIPs, out.Ports = service.ClusterIPs, service.Ports
	return out, true
}

// NameSliceOf translates an EndpointSlice of a headless Service. Only ready
// endpoints have names. machines may be nil.
func NameSliceOf(s *discoveryv1.EndpointSlice, machines MachineOf) *records.Slice {
	out := &records.Slice{
		Name:    proxy.SliceName{Namespace: s.Namespace, Name: s.Name},
		Service: proxy.ServiceName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]},
		Cluster: strings.ToLower(s.Labels[mcs.LabelSourceCluster]),
	}
	for _, p := range s.Ports {
		if p.Port != nil && validPort(*p.Port) {
			out.Ports = append(out.Ports, slicePortOf(p))
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if !value(e.Conditions.Ready, true) || len(e.Addresses) == 0 {
			continue
		}
		t := records.Target{Hostname: strings.ToLower(value(e.Hostname, ""))}
		if s.AddressType == discoveryv1.AddressTypeFQDN {
			t.Domain = domain(e.Addresses[0])
		} else {
			t.Addr, _ = address(e.Addresses[0])
			t.Machine = machines.of(t.Addr, s.Namespace, e.TargetRef)
		}
		if t.Domain != "" || t.Addr.IsValid() {
			out.Targets = append(out.Targets, t)
		}
	}
	return out
}

// domain is a domain name in canonical form: lower case, without the final dot.
func domain(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
