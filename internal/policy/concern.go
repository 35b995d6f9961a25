package policy

import (
	"slices"
	"strings"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// OfWorkload are the policies that the proxy of a workload applies to its own ports and to the
// whole of its configuration: WorkloadPolicies, TrafficPermissions and ProxyPatches, each once, in order.
func (x *Index) OfWorkload(ref Ref) []Source {
	w, ok := x.workload(ref)
	if !ok {
		return nil
	}
	var out []Source
	for _, kind := range []string{"WorkloadPolicy", "TrafficPermission", "ProxyPatch"} {
		if !x.HasPolicies(kind) {
			continue
		}
		add := func(port *mesh.DataplanePort) {
			for _, f := range x.forWorkload(kind, w, port) {
				out = append(out, f.entry.source)
			}
		}
		add(nil)
		for i := range w.object.Spec.Ports {
			add(&w.object.Spec.Ports[i])
		}
	}
	return uniqueSources(out)
}

// OfBackend are the routes and BackendPolicies that clients of a namespace apply to what they send
// to a backend, to any port of it: each once, in order.
func (x *Index) OfBackend(client string, ref Ref) []Source {
	var out []Source
	for _, route := range x.attached(client, ref, anyPort, "HTTPRoute", "GRPCRoute", "TCPRoute") {
		out = append(out, Source(route))
		for _, e := range x.policies["BackendPolicy"].byTarget[route] {
			if e.source.Key.Namespace == route.Key.Namespace {
				out = append(out, e.source)
			}
		}
	}
	if !x.HasPolicies("BackendPolicy") {
		return uniqueSources(out)
	}
	ports := []Port{{}}
	if b := x.backends[ref]; b != nil {
		ports = append(ports, b.ports...)
	}
	for _, p := range ports {
		for _, l := range x.backendLayers(client, ref, p) {
			out = append(out, l.source)
		}
	}
	return uniqueSources(out)
}

func uniqueSources(in []Source) []Source {
	slices.SortFunc(in, compareSources)
	return slices.Compact(in)
}

func compareSources(a, b Source) int {
	if c := strings.Compare(a.Kind, b.Kind); c != 0 {
		return c
	}
	return strings.Compare(a.Key.String(), b.Key.String())
}
