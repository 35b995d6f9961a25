package build

import (
	"net/netip"
	"strings"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
)

// What resources take from the specs of objects, with defaults.

// targetPort is the application's own port where its proxy listens on the port; 0: the
// application listens on it.
func targetPort(p *meshv1alpha1.DataplanePort) int32 {
	if p.TargetPort == nil {
		return 0
	}
	return *p.TargetPort
}

// outbound is a port of a proxy that leads to a service port.
type outbound struct {
	at netip.AddrPort
	to ServicePort
}

func outboundsOf(key catalog.Key, d *meshv1alpha1.Dataplane) []outbound {
	if d.Spec.Proxy == nil {
		return nil
	}
	var out []outbound
	for _, o := range d.Spec.Proxy.Outbound {
		namespace, address := o.Namespace, o.Address
		if namespace == "" {
			namespace = key.Namespace
		}
		if address == "" {
			address = "127.0.0.1"
		}
		if a, err := netip.ParseAddr(address); err == nil {
			out = append(out, outbound{
				at: netip.AddrPortFrom(a.Unmap(), uint16(o.Port)),
				to: ServicePort{catalog.Key{Namespace: namespace, Name: o.Service}, uint16(o.ServicePort)},
			})
		}
	}
	return out
}

// redirected reports whether connections of a workload are redirected to its proxy: not, if
// the workload names ports of the proxy that it uses in place of that.
func (b *Builder) redirected(p *Proxy) bool {
	d, ok := b.snapshot.Dataplanes.Get(p.Key)
	if !ok {
		return false
	}
	for i := range d.Spec.Ports {
		if targetPort(&d.Spec.Ports[i]) != 0 {
			return false
		}
	}
	return d.Spec.Proxy == nil || len(d.Spec.Proxy.Outbound) == 0
}

// scope is which Services a proxy knows.
type scope uint8

const (
	scopeOnDemand scope = iota
	scopeAll
	scopeDeclared
)

func (b *Builder) scopeOf(meshName string) scope {
	m, ok := b.snapshot.Meshes.Get(catalog.Key{Name: meshName})
	if !ok || m.Spec.Networking == nil || m.Spec.Networking.Outbound == nil {
		return scopeOnDemand
	}
	switch m.Spec.Networking.Outbound.Scope {
	case meshv1alpha1.ScopeAll:
		return scopeAll
	case meshv1alpha1.ScopeDeclared:
		return scopeDeclared
	}
	return scopeOnDemand
}

// outboundAlways reports whether proxies begin TLS to every endpoint of a mesh.
func outboundAlways(m *meshv1alpha1.Mesh) bool {
	return m.Spec.MTLS != nil && m.Spec.MTLS.Outbound == meshv1alpha1.OutboundAlways
}

// modeOf the enabled backend of a mesh.
func modeOf(m *meshv1alpha1.Mesh) Mode {
	for i := range m.Spec.MTLS.Backends {
		b := &m.Spec.MTLS.Backends[i]
		if b.Name == m.Spec.MTLS.EnabledBackend {
			return modeNamed(b.Mode)
		}
	}
	return Strict
}

func modeNamed(name string) Mode {
	if strings.EqualFold(name, meshv1alpha1.MTLSPermissive) {
		return Permissive
	}
	return Strict
}
