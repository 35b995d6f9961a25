// Package sites derives what sites offer each other under the names of Services: for a
// Service that is imported, where other sites can be entered to reach it (Remote); for
// one that is exported, by which server names it is asked for (Offer). Services outside
// every mesh (ExternalService) are reached in the same two ways.
//
// Enter at [NewTable] and [Table.Apply]. The package decides from objects alone: it does
// no I/O, chooses no site for a connection, and knows no endpoints.
package sites

import (
	"net"
	"slices"
	"strconv"

	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Remote is what other sites offer under the name of a Service of this one. Immutable.
type Remote struct {
	// Service that has the virtual address here.
	Service proxy.ServiceName
	// Mesh of the service.
	Mesh string
	// Ports of the Service that can be reached in other sites, by number.
	Ports []RemotePort
	// Sites by name. Each has ready instances and an ingress.
	Sites []Site
	// Spread: all sites share the traffic by their number of instances. Otherwise other
	// sites are used only where this one has no ready endpoint.
	Spread bool
	// EgressOnly: the Egresses of this site are the only way out. They may be none.
	EgressOnly bool
	Egresses   []Gateway
	// External: the service is outside every mesh, and this site connects to it by itself
	// (by its egresses, if EgressOnly). Nil: it is in Sites.
	External *External
	// Hosts are DNS names that workloads of the mesh resolve to the virtual address, in lower
	// case; none: it is no external service, or another one has its names.
	Hosts []string
}

// RemotePort is a TCP port of a Service.
type RemotePort struct {
	Name   string
	Number uint16
	// SNI is the server name of connections to it.
	SNI string
	// Target is the port of an external service that connections go to; 0: it is none.
	Target uint16
	// Split is what the plan of the view's zone says; nil: there is no plan.
	Split *Split
}

// Split divides the connections of a zone between its own site and others. The parts are
// relative to their sum, which is above 0. Immutable.
type Split struct {
	// Here is the part of this site.
	Here uint32
	// Sites have parts above 0, by name.
	Sites map[string]uint32
}

// Site is another site.
type Site struct {
	Name string
	// Instances that are ready there.
	Instances uint32
	// Ports that it offers, by number.
	Ports     []uint16
	Ingresses []Gateway
	// Demand that starts there, in connections per second, by the number of the port; nil: it
	// is not known. It is for plans, and not in views.
	Demand map[uint16]float64
	// Proxied: each instance there has a proxy, of one of these ServiceAccounts, so that the
	// site's ingresses let mutual TLS pass. It is for proxies, and not in views.
	Proxied         bool
	ServiceAccounts []string
}

// Offers reports whether a site offers all of some ports.
func (s *Site) Offers(ports []uint16) bool {
	for _, p := range ports {
		if !slices.Contains(s.Ports, p) {
			return false
		}
	}
	return true
}

// Gateway is where an ingress or egress is reached.
type Gateway struct {
	// Name of its object.
	Name string
	// Host is an IP address or a DNS name.
	Host string
	Port uint16
}

// Address is HOST:PORT.
func (g Gateway) Address() string { return net.JoinHostPort(g.Host, strconv.Itoa(int(g.Port))) }

// Offer is a Service that this site offers to others. Immutable.
type Offer struct {
	Service proxy.ServiceName
	Mesh    string
	Ports   []OfferedPort
	// ToSites may use it; empty: all may.
	ToSites []string
	// External: the service is outside every mesh, and this site's ingresses connect to it.
	External *External
	// Proxied: each endpoint has a proxy, of one of these ServiceAccounts of the Service's
	// namespace, so that TLS of proxies passes, and TLS is begun for others.
	Proxied         bool
	ServiceAccounts []string
}

// OfferedPort is a TCP port of an offered Service.
type OfferedPort struct {
	Name string
	// SNI is the server name of connections to it.
	SNI string
	// ProxyProtocol: endpoints get a header of the PROXY protocol, version 2.
	ProxyProtocol bool
	// Target is the port of an external service that connections go to; 0: it is none.
	Target uint16
}

// Allows reports whether a site may use the offer.
func (o *Offer) Allows(site string) bool {
	return len(o.ToSites) == 0 || slices.Contains(o.ToSites, site)
}

// Port by the name that the Service has for it.
func (r *Remote) Port(name string) (RemotePort, bool) {
	i := slices.IndexFunc(r.Ports, func(p RemotePort) bool { return p.Name == name })
	if i < 0 {
		return RemotePort{}, false
	}
	return r.Ports[i], true
}

// Offering are the sites that offer a port.
func (r *Remote) Offering(port uint16) []Site {
	var out []Site
	for _, s := range r.Sites {
		if slices.Contains(s.Ports, port) {
			out = append(out, s)
		}
	}
	return out
}

// Weighted is a site, and its part of the connections that leave this one.
type Weighted struct {
	Site
	Weight uint32
}

// Leaving are the sites that offer a port, with what each gets of the connections that leave
// this site: what the plan says, or else by its instances. A weight of 0 is for sites that
// are used only where no other answers.
func (r *Remote) Leaving(p RemotePort) []Weighted {
	offering := r.Offering(p.Number)
	out := make([]Weighted, len(offering))
	planned := false
	for i, s := range offering {
		out[i] = Weighted{Site: s}
		if p.Split != nil {
			out[i].Weight = p.Split.Sites[s.Name]
			planned = planned || out[i].Weight > 0
		}
	}
	for i := range out {
		if !planned {
			out[i].Weight = out[i].Instances
		}
	}
	return out
}

// WithSplits returns a Remote with the plan of a zone, of which split has the part of a port
// by its name; nil: none. It returns r itself where there is none for any port.
func (r *Remote) WithSplits(split func(port string) *Split) *Remote {
	planned := r
	for i, p := range r.Ports {
		s := split(p.Name)
		if s == nil {
			continue
		}
		if planned == r {
			planned = new(*r)
			planned.Ports = slices.Clone(r.Ports)
		}
		planned.Ports[i].Split = s
	}
	return planned
}

// Elsewhere is what the choice of endpoints needs to know: the instances in other sites,
// and what a plan sends there, by the name of the port.
func (r *Remote) Elsewhere() *proxy.Elsewhere {
	e := &proxy.Elsewhere{Spread: r.Spread, Instances: make(map[string]uint32, len(r.Ports))}
	for _, p := range r.Ports {
		away := uint32(0)
		for _, s := range r.Offering(p.Number) {
			e.Instances[p.Name] += s.Instances
			if p.Split != nil {
				away += p.Split.Sites[s.Name]
			}
		}
		if away > 0 {
			if e.Splits == nil {
				e.Splits = map[string]proxy.Split{}
			}
			e.Splits[p.Name] = proxy.Split{Here: p.Split.Here, Away: away}
		}
		if r.External != nil {
			e.Instances[p.Name] = 1
		}
	}
	return e
}

// sniOf a port of a service. Both sites make it of what the export says, so it has the
// port's number: sites may differ in its name.
func sniOf(meshName, namespace, name string, port uint16) (string, error) {
	return mesh.SNI(mesh.Service{Mesh: meshName, Namespace: namespace, Name: name, Port: strconv.Itoa(int(port))})
}
