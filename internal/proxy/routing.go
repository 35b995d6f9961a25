package proxy

import (
	"net/netip"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// Routing is what policies and routes say of connections to a port of a Service, as far as the
// nodes of clients without a sidecar do it. Immutable once handed over.
type Routing struct {
	// Route is the TCPRoute (NAMESPACE/NAME) that Backends are of; empty: none.
	Route string
	// Backends share the connections of a TCP port, in proportion to their weights. Nil: the
	// Service's own endpoints serve.
	Backends []RouteBackend
	// Policy is one of the BackendPolicies (NAMESPACE/NAME) that the rest is of; empty: there is none.
	Policy string
	// Locality says which zones are preferred; nil: as plans and hints say.
	Locality *Locality
	// SourceHash: a client's address decides about its endpoint.
	SourceHash bool
	// ConnectTimeout bounds an attempt to connect to an endpoint; 0: the mode's own.
	ConnectTimeout time.Duration
	// TCPAttempts to connect, on different endpoints; 0: the mode's own.
	TCPAttempts uint32
	// Consumers are what holds for clients of other namespaces than the Service's, where those have routes
	// or policies of their own, by namespace. They have no Consumers.
	Consumers map[string]*Routing
}

// Namespaced is a Mode that knows which namespaces clients are of, and follows PortState.Consumers.
type Namespaced interface {
	// SetNamespaces takes over the namespaces of clients by their addresses; they are all that are known.
	// The map is the mode's from then on. It may be called at any time.
	SetNamespaces(map[netip.Addr]string)
}

// RouteBackend is a port of a Service to which a route leads.
type RouteBackend struct {
	// Service; zero: a backend that cannot be used.
	Service ServiceName
	// Port is its number.
	Port uint16
	// Weight is above 0.
	Weight uint32
}

// LocalityMode is how zones count.
type LocalityMode uint8

// The modes of a BackendPolicy's locality: as plans and hints say, the client's zone alone, or all
// zones alike.
const (
	LocalityPlan LocalityMode = iota
	LocalityStrict
	LocalityOff
)

// Locality says which endpoints clients prefer.
type Locality struct {
	Mode LocalityMode
	// Failover says where connections go that the client's own zone cannot take; the first one
	// that is for the zone counts. Without any they go anywhere.
	Failover []Failover
	// Site of the node, which rules may name; empty: none does.
	Site locality.Site
}

// FailoverTo is which zones take over.
type FailoverTo uint8

// Zones that take over: any, none, those that are named, all but those.
const (
	FailoverAny FailoverTo = iota
	FailoverNone
	FailoverOnly
	FailoverAnyExcept
)

// Failover is a rule of a Locality.
type Failover struct {
	// From are the zones of clients that it is for; nil: all.
	From []locality.Zone
	To   FailoverTo
	// Zones of FailoverOnly and FailoverAnyExcept. Sites may be among them.
	Zones []locality.Zone
}

// For is the rule for clients of a zone of a site; nil: there is none.
func (l *Locality) For(zone locality.Zone, site locality.Site) *Failover {
	for i := range l.Failover {
		f := &l.Failover[i]
		if len(f.From) == 0 || slices.Contains(f.From, zone) || site != "" && slices.Contains(f.From, locality.Zone(site)) {
			return f
		}
	}
	return nil
}
