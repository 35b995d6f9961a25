package diag

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// Elsewhere is the way of a service port's connections out of this site: the node's tunnel,
// and what is behind it.
type Elsewhere struct {
	// Mesh of the service, and the server name of streams to it.
	Mesh       string `json:"mesh"`
	ServerName string `json:"serverName"`
	// Why connections leave the site, or do not.
	Why string `json:"why"`
	// EgressOnly: they pass Egresses, of which there may be none.
	EgressOnly bool      `json:"egressOnly,omitempty"`
	Egresses   []Gateway `json:"egresses,omitempty"`
	// Sites that they go to.
	Sites []Site `json:"sites,omitempty"`
	// External are the places of a service outside every mesh, which this site connects to.
	External []string `json:"external,omitempty"`
	// Failure is the last connection of this machine that failed; nil: none did lately.
	Failure *Failure `json:"failure,omitempty"`
}

// Site is another site that offers a service port.
type Site struct {
	Name string `json:"name"`
	// Instances that are ready there.
	Instances uint32 `json:"instances"`
	// Share of the connections that leave this site, 0 to 1.
	Share     float64   `json:"share"`
	Ingresses []Gateway `json:"ingresses"`
}

// Gateway is an ingress or egress.
type Gateway struct {
	Name string `json:"name"`
	// Address that it is reached at, HOST:PORT.
	Address string `json:"address"`
}

// Failure is the last connection to a service that failed: the client saw a reset.
type Failure struct {
	At     time.Time `json:"at"`
	Count  int       `json:"count"`
	Reason string    `json:"reason"`
	Error  string    `json:"error"`
}

// tunnels stand for the addresses of a node's tunnel, which differ between nodes.
var tunnels = []netip.AddrPort{netip.AddrPortFrom(netip.IPv4Unspecified(), 1), netip.AddrPortFrom(netip.IPv6Unspecified(), 1)}

func isTunnel(t proxy.Target) bool { return slices.Contains(tunnels, t.Addr) }

// elsewhereOf a service port; nil: no other site offers it.
func elsewhereOf(remote *sites.Remote, port proxy.Port, why proxy.Rule) *Elsewhere {
	if remote == nil || port.Protocol != proxy.TCP {
		return nil
	}
	at, ok := remote.Port(port.Name)
	if !ok {
		return nil
	}
	e := &Elsewhere{
		Mesh: remote.Mesh, ServerName: at.SNI, Why: whyElsewhere(remote, why),
		EgressOnly: remote.EgressOnly, Egresses: gatewaysOf(remote.Egresses),
	}
	leaving, total := remote.Leaving(at), uint64(0)
	for _, s := range leaving {
		total += uint64(s.Weight)
	}
	for _, s := range leaving {
		e.Sites = append(e.Sites, Site{
			Name: s.Name, Instances: s.Instances, Share: float64(s.Weight) / float64(total), Ingresses: gatewaysOf(s.Ingresses),
		})
	}
	if remote.External != nil {
		for _, p := range remote.External.Places {
			port := at.Target
			if p.Port != 0 {
				port = p.Port
			}
			e.External = append(e.External, sites.Gateway{Host: p.Host, Port: port}.Address())
		}
	}
	return e
}

func whyElsewhere(remote *sites.Remote, why proxy.Rule) string {
	switch {
	case isExternal(remote):
		return "the service is outside every mesh"
	case why == proxy.OtherSites:
		return "no endpoint of this site is ready"
	case why == proxy.PlannedSites:
		return "the plan sends there what the endpoints of this site cannot take"
	case why == proxy.AllSites:
		return "the mesh has spec.routing.localityAware: false, so all instances share alike"
	}
	return "endpoints of this site are ready, and come first; the userspace mode goes there when none of them answers"
}

// isExternal reports whether a service is outside every mesh: its ports have targets then.
func isExternal(remote *sites.Remote) bool {
	return slices.ContainsFunc(remote.Ports, func(p sites.RemotePort) bool { return p.Target != 0 })
}

func gatewaysOf(all []sites.Gateway) []Gateway {
	var out []Gateway
	for _, g := range all {
		out = append(out, Gateway{Name: g.Name, Address: g.Address()})
	}
	return out
}

// Way is the way of connections that leave the site, for people.
func (e *Elsewhere) Way() string {
	way := "virtual IP > tunnel of the node"
	switch {
	case e.EgressOnly && len(e.Egresses) == 0:
		return way + ", and no further: the mesh asks for an egress of this zone (spec.routing.zoneEgress), and there is none"
	case e.EgressOnly:
		way += " > egress"
		for i, g := range e.Egresses {
			if i > 0 {
				way += " or"
			}
			way += fmt.Sprintf(" %s (%s)", g.Name, g.Address)
		}
	}
	if len(e.External) > 0 {
		for i, at := range e.External {
			way += [...]string{" > ", " or "}[min(i, 1)] + at
		}
		return way
	}
	return way + " > ingress of the other zone > its endpoint"
}
