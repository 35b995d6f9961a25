package view

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// MachineOf is the machine that the loopback address of a Dataplane is on; empty:
// not known. A nil MachineOf knows none.
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

// SetMachines notes in a slice that was made of an object which machines its
// loopback addresses are on.
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

// MachinesOf a snapshot's Dataplanes.
func MachinesOf(s *catalog.Snapshot) MachineOf {
	return func(namespace, name string) string {
		d, _ := s.Dataplanes.Get(catalog.Key{Namespace: namespace, Name: name})
		return machineOf(d)
	}
}

func machineOf(d *meshv1alpha1.Dataplane) string {
	if d == nil {
		return ""
	}
	return d.Annotations[meshv1alpha1.AnnotationMachineID]
}

// holdMachines takes over which machines Dataplanes are on, and returns the slices
// that it concerns beside those of the delta. There are few with loopback
// addresses, so all of them are looked at.
func (b *Builder) holdMachines(d Delta) []string {
	different := false
	for key, machine := range d.Machines {
		different = different || b.machines[key] != machine
		if machine == "" {
			delete(b.machines, key)
		} else {
			b.machines[key] = machine
		}
	}
	if !different {
		return nil
	}
	var out []string
	for key := range b.loopback {
		b.encodeHeld(key, b.slices[key])
		out = append(out, key)
	}
	return out
}

// noteLoopback keeps track of the slices that have loopback addresses.
func (b *Builder) noteLoopback(key string, object *discoveryv1.EndpointSlice) {
	delete(b.loopback, key)
	if object == nil {
		return
	}
	for i := range object.Endpoints {
		for _, text := range object.Endpoints[i].Addresses {
			if a, ok := address(text); ok && a.IsLoopback() {
				b.loopback[key] = struct{}{}
				return
			}
		}
	}
}

func (b *Builder) machineOf(namespace, name string) string {
	return b.machines[catalog.Key{Namespace: namespace, Name: name}]
}

// KeepLoopback leaves out names for loopback addresses of other machines.
// Endpoints of the proxy are left to the choice, which can say why.
func (u Update) KeepLoopback(machine string) {
	for name, s := range u.NameSlices {
		if s == nil {
			continue
		}
		other := func(t records.Target) bool { return t.Addr.IsLoopback() && t.Machine != machine }
		if slices.ContainsFunc(s.Targets, other) {
			kept := *s
			kept.Targets = slices.DeleteFunc(slices.Clone(s.Targets), other)
			u.NameSlices[name] = &kept
		}
	}
}
