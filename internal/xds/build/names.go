package build

import (
	"maps"
	"net/netip"
	"slices"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcsv1beta1 "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

const (
	// clusterDomain of the names of Services.
	clusterDomain = "cluster.local"
	// clusterSet is the domain of imported Services (KEP-1645).
	clusterSet = "clusterset.local"
)

// meshNames are the names that workloads of a mesh resolve, one resource for each Service and each name
// below "mesh". They are there while a supervisor follows them.
type meshNames struct {
	layer *layer
	users int
}

// namesIn a mesh.
func (b *Builder) namesIn(meshName string) *meshNames {
	n := b.names[meshName]
	if n == nil {
		n = &meshNames{layer: newLayer(delta.Options{Types: []string{wire.Names}})}
		b.names[meshName] = n
	}
	return n
}

func (b *Builder) useNames(meshName string) {
	n := b.namesIn(meshName)
	if n.users++; n.users > 1 {
		return
	}
	domain := wire.HostName{Names: []string{clusterDomain}}
	n.layer.put(nameChange(wire.NamesDomain, &domain))
	for key := range b.snapshot.Services.All() {
		b.useName(meshName, n, key)
	}
	for _, v := range b.snapshot.VirtualIPs.All() {
		if v.Spec.Mesh == meshName {
			n.layer.put(virtualName(v, false))
		}
	}
}

func (b *Builder) unuseNames(meshName string) {
	n := b.namesIn(meshName)
	if n.users--; n.users > 0 {
		return
	}
	for _, u := range slices.Collect(maps.Values(n.layer.units)) {
		b.unuse(n.layer, u.ref)
	}
	n.layer.clear()
}

// useName of a Service.
func (b *Builder) useName(meshName string, n *meshNames, key catalog.Key) {
	ref := delta.Ref{Type: wire.Names, Name: key.String()}
	if n.layer.units[ref] == nil {
		b.use(n.layer, ref, func() unit { return unit{service: key, make: func() *made { return b.makeName(meshName, key) }} })
	}
}

// storeNames sees to it that new Services have names, and that others' are gone; refresh makes those again that
// have changed.
func (b *Builder) storeNames(d *catalog.Delta) {
	for meshName, n := range b.names {
		if n.users == 0 {
			continue
		}
		for _, c := range d.Services {
			if c.New != nil {
				b.useName(meshName, n, c.Key)
			} else {
				b.unuse(n.layer, delta.Ref{Type: wire.Names, Name: c.Key.String()})
			}
		}
		for _, c := range d.VirtualIPs { // first, as another object may have the name now
			if c.Old != nil && c.Old.Spec.Mesh == meshName {
				n.layer.put(virtualName(c.Old, true))
			}
		}
		for _, c := range d.VirtualIPs {
			if c.New != nil && c.New.Spec.Mesh == meshName {
				n.layer.put(virtualName(c.New, false))
			}
		}
	}
}

func nameChange(name string, h *wire.HostName) delta.Change {
	c := delta.Change{Resource: delta.Resource{Type: wire.Names, Name: name}, Removed: h == nil}
	if h != nil {
		c.Body = h.Append(nil)
	}
	return c
}

// virtualName below "mesh". One that is not in use does not resolve.
func virtualName(v *meshv1alpha1.VirtualIP, gone bool) delta.Change {
	name := v.Spec.Hostname + "." + meshname.Domain
	if gone || v.Spec.UnusedSince != nil {
		return nameChange(name, nil)
	}
	h := &wire.HostName{Names: []string{name + "."}}
	for _, text := range v.Spec.Addresses {
		if a, err := netip.ParseAddr(text); err == nil {
			h.Addresses = append(h.Addresses, a.Unmap())
		}
	}
	return nameChange(name, h)
}

// makeName of a Service, as workloads of a mesh resolve it; nil: they do not.
func (b *Builder) makeName(meshName string, key catalog.Key) *made {
	object, ok := b.snapshot.Services.Get(key)
	if !ok || !kube.ScopeOf(object, b.meshOf(key.Namespace)).Allows(meshName) {
		return nil
	}
	var e *records.Entry
	if s, carried := b.service(key); carried {
		e = records.EntryOf(s)
	} else if n, named := kube.NameOf(object); named {
		e = n.Entry(func(yield func(*records.Slice) bool) {
			for _, s := range b.snapshot.SlicesOf(key) {
				part := kube.NameSliceOf(s, nil)
				// Other machines do not reach loopback addresses.
				part.Targets = slices.DeleteFunc(part.Targets, func(t records.Target) bool { return t.Addr.IsLoopback() })
				if !yield(part) {
					return
				}
			}
		})
	} else {
		return nil
	}
	h := hostName(e)
	h.Names = []string{key.Name + "." + key.Namespace + ".svc"}
	if imported := object.Labels[mcsv1beta1.LabelServiceName]; imported != "" {
		h.Names = append(h.Names, imported+"."+key.Namespace+".svc."+clusterSet+".")
	}
	if to, err := b.sites.Remote(proxy.ServiceName{Namespace: key.Namespace, Name: key.Name}); err == nil && to != nil && to.Mesh == meshName {
		for _, host := range to.Hosts {
			h.Names = append(h.Names, host+".")
		}
	}
	return &made{body: h.Append(nil)}
}

// hostName of what is known of a Service, without names; always the same for the same.
func hostName(e *records.Entry) wire.HostName {
	h := wire.HostName{Addresses: slices.Concat(e.V4, e.V6), Alias: e.Alias, Headless: e.Headless}
	for _, name := range slices.Sorted(maps.Keys(e.Hosts)) {
		host := e.Hosts[name]
		h.Hosts = append(h.Hosts, wire.HostBelow{Name: name, Addresses: slices.Concat(host.V4, host.V6)})
	}
	for _, label := range slices.Sorted(maps.Keys(e.Ports)) {
		for _, p := range e.Ports[label] {
			h.Ports = append(h.Ports, wire.PortBelow{Label: label, Number: p.Number, Host: p.Hostname})
		}
	}
	return h
}
