package endpointslice

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/proxima-mesh/proxima/internal/controller/backend"
)

// backends are all of them, and those that get no endpoint for want of their
// Node; these are among the former without an address.
func (in *Input) backends() (out []backend.Backend, skipped []SkippedWorkload) {
	out = make([]backend.Backend, 0, len(in.Pods)+len(in.Dataplanes)+len(in.Backends))
	add := func(b backend.Backend, nodeRequired bool) {
		var node *corev1.Node
		if b.Node != "" || nodeRequired {
			node = in.Node(b.Node)
			if node == nil && !in.Service.Spec.PublishNotReadyAddresses {
				skipped = append(skipped, SkippedWorkload{Workload: b.Name(), Node: b.Node})
				b.Addresses = nil
			}
		}
		b.Place(node, in.Shifts)
		out = append(out, b)
	}
	for _, pod := range in.Pods {
		if b, ok := backend.OfPod(pod, in.Service.Name); ok {
			add(b, true)
		}
	}
	for _, dataplane := range in.Dataplanes {
		add(backend.OfDataplane(dataplane, in.Service.Name), false)
	}
	for _, b := range in.Backends {
		add(b, false)
	}
	return out, skipped
}

// group is the endpoints that share their resolved ports.
type group struct {
	ports []discoveryv1.EndpointPort
	want  []discoveryv1.Endpoint // in order of backends
	index map[endpointID]int     // into want
}

// groups sorts the backends by their ports. Those without an address of the
// family count too: a group that is wanted, though it has no endpoint now, is no
// reason to delete an empty slice.
func (f *familyReconciler) groups(backends []backend.Backend) map[string]*group {
	groups := make(map[string]*group)
	for i := range backends {
		b := &backends[i]
		ports := b.Ports(f.Service)
		key := portsKey(ports)
		g := groups[key]
		if g == nil {
			g = &group{ports: ports, index: make(map[endpointID]int)}
			groups[key] = g
		}
		address, ok := b.Address(f.family)
		if !ok {
			continue
		}
		e := endpointOf(b, f.Service, address)
		id := idOf(&e)
		if _, twice := g.index[id]; twice {
			continue
		}
		g.index[id] = len(g.want)
		g.want = append(g.want, e)
	}
	return groups
}

func endpointOf(b *backend.Backend, service *corev1.Service, address string) discoveryv1.Endpoint {
	ready := b.Ready(service)
	e := discoveryv1.Endpoint{
		Addresses: []string{address},
		Conditions: discoveryv1.EndpointConditions{
			Ready: ptr.To(ready), Serving: ptr.To(b.Serving), Terminating: ptr.To(b.Terminating),
		},
		TargetRef: &b.Ref,
	}
	if b.Node != "" {
		e.NodeName = &b.Node
	}
	if b.Zone != "" {
		e.Zone = &b.Zone
	}
	if b.Hostname != "" {
		e.Hostname = &b.Hostname
	}
	return e
}

// portsKey is equal for the same set of ports in any order.
func portsKey(ports []discoveryv1.EndpointPort) string {
	keys := make([]string, len(ports))
	for i, p := range ports {
		number := "any"
		if p.Port != nil {
			number = fmt.Sprint(*p.Port)
		}
		keys[i] = strings.Join([]string{
			ptr.Deref(p.Name, ""), number, string(ptr.Deref(p.Protocol, corev1.ProtocolTCP)), ptr.Deref(p.AppProtocol, ""),
		}, "\x00")
	}
	slices.Sort(keys)
	return strings.Join(keys, "\x01")
}

// endpointID is what makes an endpoint the same one in two slices.
type endpointID struct{ addresses, hostname, namespace, name string }

func idOf(e *discoveryv1.Endpoint) endpointID {
	id := endpointID{addresses: strings.Join(e.Addresses, ","), hostname: ptr.Deref(e.Hostname, "")}
	if e.TargetRef != nil {
		id.namespace, id.name = e.TargetRef.Namespace, e.TargetRef.Name
	}
	return id
}

// sameEndpoint compares what is not part of the identity. Hints are the
// business of the hints step.
func sameEndpoint(a, b *discoveryv1.Endpoint) bool {
	return ptr.Equal(a.NodeName, b.NodeName) &&
		ptr.Equal(a.Zone, b.Zone) &&
		ptr.Equal(a.Conditions.Ready, b.Conditions.Ready) &&
		ptr.Equal(a.Conditions.Serving, b.Conditions.Serving) &&
		ptr.Equal(a.Conditions.Terminating, b.Conditions.Terminating) &&
		ptr.Equal(a.TargetRef, b.TargetRef)
}
