// Package direct keeps the names that a control plane answers for machines without an
// agent. Virtual IPs mean nothing there, so every Service is resolved as a headless one: to
// the addresses of its ready endpoints, and its ports (SRV) to theirs.
//
// Enter at Follow. Package dns answers from the records.
package direct

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
)

// Follow keeps a zone of records, and what is known of clients, up to date with the tables
// until ctx ends, and returns nil then.
func Follow(ctx context.Context, tables *catalog.Catalog, zone *records.Zone, clients *Clients) error {
	sub := tables.Subscribe(catalog.Services, catalog.Slices, catalog.VirtualIPs, catalog.Dataplanes, catalog.Namespaces, catalog.Meshes)
	defer sub.Close()
	for first := true; ; first = false {
		delta, err := sub.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		clients.apply(&delta)
		zone.Apply(update(&delta, first))
	}
}

func update(d *catalog.Delta, first bool) records.Update {
	u := records.Update{
		Reset: first, Names: map[proxy.ServiceName]*records.Name{}, Slices: map[proxy.SliceName]*records.Slice{},
		VirtualIPs: map[proxy.ServiceName]*proxy.VirtualIP{},
	}
	for _, change := range d.VirtualIPs {
		if change.Old != nil {
			u.VirtualIPs[virtualName(change.Old)] = nil
		}
	}
	for _, change := range d.VirtualIPs {
		if v := change.New; v != nil && v.Spec.UnusedSince == nil {
			u.VirtualIPs[virtualName(v)] = &proxy.VirtualIP{
				Name: virtualName(v), Service: proxy.ServiceName{Namespace: v.Spec.Namespace, Name: v.Spec.Service}, Port: uint16(v.Spec.Port),
			}
		}
	}
	note := func(key catalog.Key, s *corev1.Service) {
		n := nameOf(s)
		if n != nil {
			n.Scope = kube.ScopeOf(s, meshAt(d.After, key.Namespace))
		}
		if n != nil || !first {
			u.Names[proxy.ServiceName{Namespace: key.Namespace, Name: key.Name}] = n
		}
	}
	for _, change := range d.Services {
		note(change.Key, change.New)
	}
	if moved := movedNamespaces(d); len(moved) > 0 && !first {
		for key, s := range d.After.Services.All() {
			if moved[key.Namespace] {
				note(key, s)
			}
		}
	}
	for _, change := range d.Slices {
		name := proxy.SliceName{Namespace: change.Key.Namespace, Name: change.Key.Name}
		if s := sliceOf(change.New); s != nil || !first {
			u.Slices[name] = s
		}
	}
	return u
}

// virtualName is the name of a VirtualIP in the records.
func virtualName(v *meshv1alpha1.VirtualIP) proxy.ServiceName {
	return proxy.ServiceName{Namespace: v.Spec.Mesh, Name: v.Spec.Hostname + "." + meshname.Domain}
}

// nameOf a Service; nil: it has none.
func nameOf(s *corev1.Service) *records.Name {
	switch {
	case s == nil:
		return nil
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		n, _ := kube.NameOf(s)
		return n
	}
	return &records.Name{Name: proxy.ServiceName{Namespace: s.Namespace, Name: s.Name}}
}

// sliceOf leaves out loopback addresses: no other machine reaches them.
func sliceOf(s *discoveryv1.EndpointSlice) *records.Slice {
	if s == nil || s.Labels[discoveryv1.LabelServiceName] == "" {
		return nil
	}
	out := kube.NameSliceOf(s, nil)
	out.Targets = slices.DeleteFunc(out.Targets, func(t records.Target) bool { return t.Addr.IsLoopback() })
	return out
}
