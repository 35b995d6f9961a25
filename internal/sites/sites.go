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
}

// RemotePort is a TCP port of a Service.
type RemotePort struct {
	Name   string
	Number uint16
	// SNI is the server name of connections to it.
	SNI string
	// Target is the port of an external service that connections go to; 0: it is none.
	Target uint16
}

// Site is another site.
type Site struct {
	Name string
	// Instances that are ready there.
	Instances uint32
	// Ports that it offers, by number.
	Ports     []uint16
	Ingresses []Gateway
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

// Elsewhere is what the choice of endpoints needs to know: the instances in other sites,
// by the name of the port.
func (r *Remote) Elsewhere() *proxy.Elsewhere {
	e := &proxy.Elsewhere{Spread: r.Spread, Instances: make(map[string]uint32, len(r.Ports))}
	for _, p := range r.Ports {
		for _, s := range r.Offering(p.Number) {
			e.Instances[p.Name] += s.Instances
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
