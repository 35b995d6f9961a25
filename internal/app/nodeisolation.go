package app

import (
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/isolation"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

// openIsolation makes what keeps meshes apart. An agent without identities knows of none.
func (a *agent) openIsolation() {
	if !a.cfg.meshed() || a.gateway != nil {
		return
	}
	mode, _ := a.mode.(proxy.Isolator)
	a.isolation = isolation.New(isolation.Config{
		Node: a.cfg.Name, Mode: mode, Replay: func() node.Update { return a.feed.State() },
		Own:    func() []netip.Addr { return modes.LocalAddresses(everywhere()) },
		Logger: a.log.With("component", "isolation"), Registerer: a.registry,
	})
}

func everywhere() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
}

// isolate takes an update over. Until the mode has a first state, it is told before it gets
// that: no connection is made while meshes are not kept apart.
func (a *agent) isolate(u node.Update) {
	if a.isolation == nil || !u.Isolated() {
		return
	}
	a.isolation.Apply(u)
	select {
	case <-a.agent.Ready():
	default:
		if err := a.isolation.Flush(); err != nil {
			a.log.Error("meshes are not kept apart yet", "error", err)
		}
	}
}

func (a *agent) isolationComponents() []component {
	if a.isolation == nil {
		return nil
	}
	return []component{{Name: "isolation of meshes", Run: a.isolation.Run}}
}

// meshAt is the mesh whose names below "mesh" a client resolves.
func (a *agent) meshAt(client netip.Addr) string {
	if mesh := a.isolation.Viewer(client); mesh != "" {
		return mesh
	}
	return a.identity.MeshAt(client, a.names.OnlyMesh())
}
