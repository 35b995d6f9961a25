package view

import (
	"net/netip"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// storeVirtualIPs stores the names below "mesh", and returns the resources that may have
// changed. A name that is not in use does not resolve: its addresses are only kept.
func (b *Builder) storeVirtualIPs(changes []catalog.Change[*meshv1alpha1.VirtualIP]) []change {
	var out []change
	// Removals first: an object of another name may have the same host.
	for _, c := range changes {
		if c.Old != nil {
			key := virtualIPKey(c.Old)
			delete(b.virtual, key)
			out = append(out, change{wire.VirtualIPType, key})
		}
	}
	for _, c := range changes {
		if c.New == nil || c.New.Spec.UnusedSince != nil {
			continue
		}
		key := virtualIPKey(c.New)
		body, err := wire.EncodeVirtualIP(virtualIPOf(c.New))
		if err != nil {
			b.config.Logger.Error("name is not in the views", "virtualip", c.Key.Name, "error", err)
			continue
		}
		b.virtual[key] = body
		out = append(out, change{wire.VirtualIPType, key})
	}
	return out
}

func virtualIPKey(v *meshv1alpha1.VirtualIP) string {
	name := wire.VirtualIPName(v.Spec.Mesh, v.Spec.Hostname)
	return wire.ResourceName(name.Namespace, name.Name)
}

func virtualIPOf(o *meshv1alpha1.VirtualIP) *proxy.VirtualIP {
	v := &proxy.VirtualIP{
		Name:    wire.VirtualIPName(o.Spec.Mesh, o.Spec.Hostname),
		Service: proxy.ServiceName{Namespace: o.Spec.Namespace, Name: o.Spec.Service}, Port: uint16(o.Spec.Port),
	}
	for _, text := range o.Spec.Addresses {
		if a, err := netip.ParseAddr(text); err == nil {
			v.Addresses = append(v.Addresses, a.Unmap())
		}
	}
	return v
}
