package kube

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// MachineOf returns the ID of the machine that the loopback addresses of a Dataplane
// belong to; empty: unknown. A nil MachineOf returns empty.
type MachineOf func(namespace, name string) string

func (m MachineOf) of(addr netip.Addr, namespace string, target *corev1.ObjectReference) string {
	if m == nil || !addr.IsLoopback() || target == nil || target.Kind != "Dataplane" {
		return ""
	}
	if target.Namespace != "" {
		namespace = target.Namespace
	}
	return m(namespace, target.Name)
}

// SetMachines sets the machines of the loopback addresses in a slice that SliceOf or
// PlannedSliceOf made from object.
func SetMachines(s *proxy.Slice, object *discoveryv1.EndpointSlice, machines MachineOf) {
	if !slices.ContainsFunc(s.Endpoints, func(e proxy.SliceEndpoint) bool { return e.Addr.IsLoopback() }) {
		return
	}
	next := 0
	for i := range object.Endpoints {
		if _, ok := endpointOf(&object.Endpoints[i]); !ok {
			continue
		}
		s.SetMachine(next, machines.of(s.Endpoints[next].Addr, object.Namespace, object.Endpoints[i].TargetRef), len(s.Endpoints))
		next++
	}
}

// HasLoopback reports whether an EndpointSlice has a loopback address.
func HasLoopback(object *discoveryv1.EndpointSlice) bool {
	for i := range object.Endpoints {
		for _, text := range object.Endpoints[i].Addresses {
			if a, ok := address(text); ok && a.IsLoopback() {
				return true
			}
		}
	}
	return false
}
