package records

import (
	"cmp"
	"net/netip"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// setVirtualIPs takes over the names below "mesh".
func (z *Zone) setVirtualIPs(u Update) {
	if u.Reset {
		clear(z.virtual)
		clear(z.virtualAt)
	}
	for name := range u.VirtualIPs { // first, as another name may have the address now
		if old := z.virtual[name]; old != nil {
			for _, a := range old.Addresses {
				if z.virtualAt[a] == name {
					delete(z.virtualAt, a)
				}
			}
			delete(z.virtual, name)
		}
	}
	for name, v := range u.VirtualIPs {
		if v == nil {
			continue
		}
		z.virtual[name] = v
		for _, a := range v.Addresses {
			z.virtualAt[a] = name
		}
	}
}

// Virtual finds a name below "mesh", in the form of its VirtualIP: the mesh of the caller,
// and the name with ".mesh". Nil: there is none in this mesh. The Host may be empty.
func (z *Zone) Virtual(name proxy.ServiceName) *Host {
	z.mu.RLock()
	v := z.virtual[name]
	z.mu.RUnlock()
	if v == nil {
		return nil
	}
	h := &Host{}
	if len(v.Addresses) == 0 {
		if e := z.Service(v.Service); e != nil {
			*h = e.Host
		}
		return h
	}
	for _, a := range v.Addresses {
		h.add(a)
	}
	return h
}

// OnlyMesh is the mesh of all names below "mesh", or the default one if they are of several.
func (z *Zone) OnlyMesh() string {
	z.mu.RLock()
	defer z.mu.RUnlock()
	only := ""
	for name := range z.virtual {
		if only != "" && only != name.Namespace {
			return meshv1alpha1.DefaultMesh
		}
		only = name.Namespace
	}
	return cmp.Or(only, meshv1alpha1.DefaultMesh)
}

// VirtualAt is the name below "mesh" that has an address; ok is false if none has.
func (z *Zone) VirtualAt(a netip.Addr) (name proxy.ServiceName, ok bool) {
	z.mu.RLock()
	defer z.mu.RUnlock()
	name, ok = z.virtualAt[a]
	return name, ok
}
