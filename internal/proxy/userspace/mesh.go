package userspace

import (
	"maps"
	"net/netip"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// isolation is which mesh clients are of. Immutable.
type isolation struct {
	sources map[netip.Addr]proxy.Source
	node    string
}

// Isolate implements proxy.Isolator. It takes effect at once: clients are looked at when they
// are accepted.
func (m *Mode) Isolate(change proxy.Isolation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	if !change.Active {
		m.isolation.Store(nil)
		return nil
	}
	next := &isolation{node: change.Node.Mesh, sources: map[netip.Addr]proxy.Source{}}
	if was := m.isolation.Load(); was != nil && !change.Reset {
		maps.Copy(next.sources, was.sources)
	}
	for a, s := range change.Sources {
		if next.sources[a] = s; s.Mesh == "" {
			delete(next.sources, a)
		}
	}
	m.isolation.Store(next)
	return nil
}

// Isolates implements proxy.Isolator: what workloads send elsewhere does not come here.
func (m *Mode) Isolates() proxy.Isolates { return proxy.Isolates{} }

// MeshOf is the mesh of a client that asks for a cluster address; empty: none. Processes of
// this host may have that very address as their own.
func (m *Mode) MeshOf(client, asked netip.Addr) string {
	i := m.isolation.Load()
	if i == nil {
		return ""
	}
	client = client.Unmap()
	if s, known := i.sources[client]; known {
		return s.Mesh
	}
	if i.node != "" && (client.IsLoopback() || client == asked || m.host.has(client, time.Now())) {
		return i.node
	}
	return ""
}

// foreign reports whether a frontend is not for a client, because of its mesh.
func (p *servicePort) foreign(scope proxy.Scope, key frontendKey, client netip.Addr) bool {
	return key.role == clusterIP && p.mode.isolation.Load() != nil && !scope.Allows(p.mode.MeshOf(client, key.addr.Addr()))
}
