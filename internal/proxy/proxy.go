// Package proxy is the model that a node's agent keeps of Services and their
// endpoints, and the contract between the agent and whatever carries packets.
//
// It owns the types; choosing endpoints is the pure package choose, carrying
// traffic is done by the modes (userspace, later nftables, …). It never does
// I/O and never knows Kubernetes types: both feeds of the agent (Proxima's node
// views and a Kubernetes API) are translated into this model at their edge.
package proxy

import (
	"context"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// Protocol of a service port, in Kubernetes' spelling.
type Protocol string

// The protocols of Kubernetes Services.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP"
)

// ServiceName names a Service.
type ServiceName struct{ Namespace, Name string }

func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// PortName names one port of a Service. Port may be empty (an unnamed port).
type PortName struct {
	ServiceName
	Port string
}

func (n PortName) String() string {
	if n.Port == "" {
		return n.ServiceName.String()
	}
	return n.ServiceName.String() + ":" + n.Port
}

// Service is what a node needs to know of a Service. Immutable once handed over.
type Service struct {
	Name ServiceName
	// Of is the Service whose endpoints it has, for the frontend of a VirtualIP; zero: its
	// own.
	Of ServiceName
	// Scope is which workloads use it by its ClusterIPs. The other addresses are for whoever
	// is outside the mesh, and so for everybody.
	Scope Scope
	// ClusterIPs, at most one per family.
	ClusterIPs []netip.Addr
	// ExternalIPs and LoadBalancerIPs are further virtual addresses. Load
	// balancer addresses with ipMode Proxy are not listed.
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr
	// SourceRanges restrict LoadBalancerIPs (only), each family by itself; empty: all
	// clients are admitted. Canonical, as ParseSourceRanges makes them; see SourcesOf.
	SourceRanges []netip.Prefix
	Ports        []Port
	// InternalLocal and ExternalLocal are the traffic policies "Local".
	InternalLocal, ExternalLocal bool
	// AffinityTimeout keeps a client at its endpoint; 0: no affinity.
	AffinityTimeout time.Duration
	// HealthCheckNodePort, 0: none.
	HealthCheckNodePort uint16
	// PreserveDestination: Windows nodes deliver packets to ingress addresses with their destination
	// as it is, to local endpoints (annotation preserve-destination). Other modes do not read it.
	PreserveDestination bool
	// WarmUp is for how long the weight of an endpoint that became ready rises to the full
	// one; 0: it has that at once. See choose.Warm.
	WarmUp time.Duration
	// Routing of the ports that policies or routes say something of, by name. Modes do not read it.
	Routing map[string]*Routing
}

// Port is one port of a Service.
type Port struct {
	Name        string
	Protocol    Protocol
	Port        uint16
	NodePort    uint16 // 0: none
	AppProtocol string
}

// SliceName names an EndpointSlice.
type SliceName struct{ Namespace, Name string }

// Slice is one EndpointSlice: endpoints of one Service that share their ports.
// Immutable once handed over.
type Slice struct {
	Name      SliceName
	Service   ServiceName
	Ports     []SlicePort
	Endpoints []SliceEndpoint
	// Machines that loopback addresses are on, in the order of Endpoints. Nil: no
	// endpoint has such an address, or none is known.
	Machines []string
	// ReadySince is when endpoints became ready, in seconds since 1970, in the order of
	// Endpoints; 0: not known. Nil: the Service warms no endpoints up.
	ReadySince []int64
	// Starts are the same times by the clock of this machine, as the agent notes them; the
	// zero time: not known. Nil: ReadySince holds.
	Starts []time.Time
	// Trigger is the time of the cause of this version of the slice, such as
	// a workload's becoming ready; zero: not known. It concerns no traffic.
	Trigger time.Time
}

// SlicePort is a port of a Slice; it serves the Service port of the same name.
type SlicePort struct {
	Name     string
	Port     uint16
	Protocol Protocol
}

// SliceEndpoint is an endpoint of a Slice, without its ports. An agent keeps as many
// as the cluster has, so it is small.
type SliceEndpoint struct {
	Addr  netip.Addr
	Node  string
	Zone  locality.Zone
	Hints *Hints // nil: none
	// Weight is the endpoint's share relative to the others of the Service: as planned for
	// this node's zone or, without a plan, its own weight. 0 means 1: all are alike.
	Weight uint32
	// Conditions as in discovery.k8s.io/v1, with their defaults applied.
	Ready, Serving, Terminating bool
}

// Machine of the endpoint at an index; empty: not known.
func (s *Slice) Machine(i int) string {
	if i >= len(s.Machines) {
		return ""
	}
	return s.Machines[i]
}

// SetMachine notes the machine of the endpoint at an index, while a slice of n
// endpoints is being made.
func (s *Slice) SetMachine(i int, machine string, n int) {
	if machine == "" {
		return
	}
	if s.Machines == nil {
		s.Machines = make([]string, n)
	}
	s.Machines[i] = machine
}

// SetReadySince notes when the endpoint at an index became ready, in seconds since 1970,
// while a slice of n endpoints is being made.
func (s *Slice) SetReadySince(i int, unix int64, n int) {
	if s.ReadySince == nil {
		s.ReadySince = make([]int64, n)
	}
	s.ReadySince[i] = unix
}

// Hints are which zones and nodes should use an endpoint. Never changed, as
// endpoints share them.
type Hints struct {
	Zones []locality.Zone
	Nodes []string
}

// HintsOf makes hints of lists that are not changed any more; nil: both are empty.
func HintsOf(zones []locality.Zone, nodes []string) *Hints {
	if len(zones)+len(nodes) == 0 {
		return nil
	}
	return &Hints{Zones: zones, Nodes: nodes}
}

// Update is a change of the agent's model by a feed: objects that are new or
// different, and those that are gone (nil). With Reset the update is the whole
// state, and what it does not name is gone.
type Update struct {
	Reset    bool
	Services map[ServiceName]*Service
	Slices   map[SliceName]*Slice
	// Suspects are nodes that probably do not answer any more (true), or are trusted
	// again (false). Their endpoints are used last.
	Suspects map[string]bool
	// Elsewhere are the Services that other sites offer, too.
	Elsewhere map[ServiceName]*Elsewhere
	// VirtualIPs are the names below "mesh", by their Name.
	VirtualIPs map[ServiceName]*VirtualIP
	// Meshes of the site, by name, and its Workloads, as far as they are needed to keep
	// meshes apart.
	Meshes    map[string]*Mesh
	Workloads map[ServiceName]*Workload
	// Traced are changes among these that are followed; nil: none is.
	Traced []Traced
}

// Traced is a change of a Service, or of one of its slices, that is followed.
type Traced struct {
	// Service that changed; the zero value: Slice did.
	Service ServiceName
	Slice   SliceName
	// Agents are the spans of this agent, in all traces that it is of.
	Agents tracing.Parents
}

// Elsewhere is what other sites offer under the name of a Service. The node reaches them
// all by its own tunnel, which counts as one endpoint. Immutable once handed over.
type Elsewhere struct {
	// Instances that are ready in other sites, by the name of the port. A port that is
	// missing is not offered. Only TCP ports can be.
	Instances map[string]uint32
	// Spread: all sites share the traffic by their number of instances. Otherwise other
	// sites are used only where this one has no ready endpoint.
	Spread bool
	// Splits are what plans send to other sites, by the name of the port. A port that is
	// missing has no such plan.
	Splits map[string]Split
}

// Split divides connections between this site and others, in proportion. Away is above 0.
type Split struct{ Here, Away uint32 }

// PortState is the outcome of the choice for one service port on this node: all
// that a mode needs. Immutable once handed over; modes may keep it.
//
// The families are chosen apart, as if each were a Service of its own: hints
// that are complete in one say nothing of the other, and a family without
// endpoints rejects though the other has some. A mode takes the Choice of the
// virtual address's family and never crosses over.
type PortState struct {
	Name    PortName
	Service *Service
	Port    Port
	// IPv4 and IPv6 are the choices for virtual addresses of that family.
	IPv4, IPv6 Choice
	// LocalReady counts local ready endpoints, for healthCheckNodePort. Of two
	// families it is the larger count, as their endpoints are the same workloads.
	LocalReady int
	// SourceHash, ConnectTimeout and TCPAttempts are those of the port's Routing.
	SourceHash     bool
	ConnectTimeout time.Duration
	TCPAttempts    uint32
	// Divided: the weights are of the backends of a route, whose shares count more than those of
	// single endpoints.
	Divided bool
	// Consumers are the states for clients of some namespaces, in a mode that is Namespaced.
	Consumers map[string]*PortState
}

// Choice is the outcome for one address family.
type Choice struct {
	// Cluster is the list for cluster-wide traffic, Local the one for traffic
	// under a Local policy. Sorted by address; no duplicates; weights ≥ 1. A list
	// that none of the Service's policies asks for is empty.
	Cluster, Local []Target
	// Fallback lists ready endpoints that hints keep out of Cluster, and then those of
	// suspect nodes. A mode that can try again uses them when no endpoint in Cluster
	// answers; the others ignore them.
	Fallback []Target
	// Held are the endpoints of a UDP port that are in neither list and still serve: they
	// terminate, or hints, a plan or a policy keep new flows from them. Flows that are there
	// stay, as a client could not notice. Sorted; nil for other protocols. A mode never begins
	// a flow to them.
	Held []netip.AddrPort
	// NoCluster and NoLocal say what to do where the list is empty. Accept: it is
	// not empty, or no policy asks for it.
	NoCluster, NoLocal Verdict
	// Why reports which rule made Cluster what it is. For people: two choices that
	// differ in it alone are equal.
	Why Rule
}

// Rule is what decided about a cluster list.
type Rule uint8

// The rules, in the order in which they are tried.
const (
	// Unused: no policy of the Service uses the list.
	Unused Rule = iota
	// NodeHints and ZoneHints: every ready endpoint has hints, and one names this
	// node or zone.
	NodeHints
	ZoneHints
	// AllReady: hints do not count here, every ready endpoint is used.
	AllReady
	// TerminatingFallback: no endpoint is ready; those that are terminating still serve.
	TerminatingFallback
	// Suspected: only nodes that are suspect have endpoints that can serve.
	Suspected
	// OtherSites: no endpoint of this site is ready, and other sites have some.
	OtherSites
	// AllSites: the endpoints of all sites share the traffic.
	AllSites
	// PlannedSites: a plan sends a part of the traffic to other sites.
	PlannedSites
	// NoEndpoint: there is none.
	NoEndpoint
	// Preferred: a policy says which zones count.
	Preferred
	// Divided: the backends of a route share the traffic.
	Divided
)

func (r Rule) String() string {
	return [...]string{
		"not asked for", "node hints", "zone hints", "all ready endpoints", "terminating endpoints, as none is ready",
		"endpoints of suspect nodes, as there are no others", "other sites, as no endpoint of this one is ready",
		"all ready endpoints of all sites", "a plan, part of which leaves the site", "no endpoint",
		"the locality of a BackendPolicy", "the backends of a TCPRoute",
	}[r]
}

// For returns the choice for a virtual address, by its family.
func (s *PortState) For(vip netip.Addr) *Choice {
	if vip.Unmap().Is4() {
		return &s.IPv4
	}
	return &s.IPv6
}

// Endpoints are those that connections of either policy are sent to, of both families. One
// may come twice. Fallback is not among them.
func (s *PortState) Endpoints() iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		for _, list := range [][]Target{s.IPv4.Cluster, s.IPv4.Local, s.IPv6.Cluster, s.IPv6.Local} {
			for _, t := range list {
				if !yield(netip.AddrPortFrom(t.Addr.Addr().Unmap(), t.Addr.Port())) {
					return
				}
			}
		}
		for _, c := range s.Consumers {
			for addr := range c.Endpoints() {
				if !yield(addr) {
					return
				}
			}
		}
	}
}

// List returns the list for traffic under a Local policy or not, and the
// verdict if it is empty.
func (c *Choice) List(local bool) ([]Target, Verdict) {
	if local {
		return c.Local, c.NoLocal
	}
	return c.Cluster, c.NoCluster
}

// Equal reports whether two states ask the same of a mode. Other ports of the
// Service do not count, so that a change of one leaves its siblings alone.
func (s *PortState) Equal(t *PortState) bool {
	if s == nil || t == nil {
		return s == t
	}
	return s.Name == t.Name && s.Port == t.Port && s.LocalReady == t.LocalReady &&
		s.SourceHash == t.SourceHash && s.ConnectTimeout == t.ConnectTimeout && s.TCPAttempts == t.TCPAttempts && s.Divided == t.Divided &&
		s.IPv4.equal(&t.IPv4) && s.IPv6.equal(&t.IPv6) && s.Service.equalButPorts(t.Service) &&
		maps.EqualFunc(s.Consumers, t.Consumers, (*PortState).Equal)
}

func (c *Choice) equal(d *Choice) bool {
	return c.NoCluster == d.NoCluster && c.NoLocal == d.NoLocal &&
		slices.Equal(c.Cluster, d.Cluster) && slices.Equal(c.Local, d.Local) && slices.Equal(c.Fallback, d.Fallback) &&
		slices.Equal(c.Held, d.Held)
}

func (s *Service) equalButPorts(t *Service) bool {
	if s == t {
		return true
	}
	return s != nil && t != nil && s.Name == t.Name && s.Of == t.Of && s.Scope.Equal(t.Scope) &&
		s.InternalLocal == t.InternalLocal && s.ExternalLocal == t.ExternalLocal &&
		s.AffinityTimeout == t.AffinityTimeout && s.HealthCheckNodePort == t.HealthCheckNodePort &&
		s.PreserveDestination == t.PreserveDestination &&
		slices.Equal(s.ClusterIPs, t.ClusterIPs) && slices.Equal(s.ExternalIPs, t.ExternalIPs) &&
		slices.Equal(s.LoadBalancerIPs, t.LoadBalancerIPs) && slices.Equal(s.SourceRanges, t.SourceRanges)
}

// Target is a chosen endpoint.
type Target struct {
	Addr   netip.AddrPort
	Weight uint32
	// Local: the endpoint is on this node.
	Local bool
	// Zone of the endpoint; empty: not known. OtherSitesZone for the node's tunnel.
	Zone locality.Zone
}

// OtherSitesZone stands for the zones of all other sites.
const OtherSitesZone locality.Zone = "site:*"

// Verdict is what happens to a connection that finds no target.
type Verdict uint8

// Verdicts. Reject answers (TCP reset, ICMP port unreachable) as no endpoint
// exists anywhere; Drop is silent, as endpoints exist, but none for this policy.
const (
	Accept Verdict = iota
	Reject
	Drop
)

func (v Verdict) String() string {
	return [...]string{"accept", "reject", "drop"}[v]
}

// Change is one service port that is new or different (State set) or gone
// (State nil).
type Change struct {
	Name  PortName
	State *PortState
}

// Mode carries traffic of virtual addresses to targets.
type Mode interface {
	// Name as in --mode.
	Name() string
	// Apply brings the data path from the state before to the one after the
	// changes. It is called by one goroutine at a time. It is idempotent: a
	// change to the same state, or the removal of an unknown port, is no error.
	// After an error the data path still serves the rest, and the caller passes
	// the same changes again later; a *PortError names ports that failed alone.
	// The first call is the whole state: what an earlier process left behind and
	// is not in it goes away.
	Apply(ctx context.Context, changes []Change) error
	// Close stops carrying traffic. Kernel modes leave the kernel's state, so
	// that traffic flows while the agent restarts; userspace ends connections
	// after they had time to finish (ctx bounds it).
	Close(ctx context.Context) error
}

// Family of addresses.
type Family uint8

// Families. AnyFamily is not known, or both.
const (
	AnyFamily Family = iota
	IPv4
	IPv6
)

// FamilyOf an address.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

func (f Family) String() string { return [...]string{"any", "IPv4", "IPv6"}[f] }

// Other is IPv6 for IPv4, and the other way round.
func (f Family) Other() Family {
	switch f {
	case IPv4:
		return IPv6
	case IPv6:
		return IPv4
	}
	return AnyFamily
}

// Counts is the traffic of one service port since the mode started. It only
// grows, except that a port that was removed and added again starts at zero.
type Counts struct {
	// Connections counts new connections, for UDP new flows.
	Connections uint64
	// BytesIn came from clients, BytesOut went to them.
	BytesIn, BytesOut uint64
	// ByFamily: the mode tells the families of virtual addresses apart, and IPv6 is the part
	// of the three counts above that came to those of IPv6.
	ByFamily bool
	IPv6     FamilyCounts
	// Retries counts attempts at a further endpoint after one did not answer,
	// Failures the connections for which none did.
	Retries, Failures uint64
}

// FamilyCounts are the part of Counts that is of one address family.
type FamilyCounts struct{ Connections, BytesIn, BytesOut uint64 }

// Counter is what a Mode implements in addition if it can measure demand per
// service port. Counts may be called at any time and returns a snapshot port by
// port, not one moment for all.
type Counter interface {
	Counts() iter.Seq2[PortName, Counts]
}

// Exchange is what a service port exchanged with the endpoints of one zone since counting
// began. It only grows, but for Open.
type Exchange struct {
	// Family of the virtual address, which is counted apart; AnyFamily: not known.
	Family Family
	// Zone of the endpoints, as in Target.
	Zone locality.Zone
	// Kept: a traffic policy Local kept the traffic on this node. It is counted apart.
	Kept bool
	// BytesIn came from clients, BytesOut went to them; Estimated of both together were not
	// measured. Kernel modes count the headers of packets, too.
	BytesIn, BytesOut, Estimated uint64
	// Opened and Closed connections, for UDP flows.
	Opened, Closed uint64
	// Open connections; for UDP flows that carried something in the last interval.
	Open uint64
}

// Quality of what is known of bytes and open connections.
type Quality uint8

// Qualities. Unavailable: nothing is counted.
const (
	Unavailable Quality = iota
	Estimated
	Measured
)

func (q Quality) String() string { return [...]string{"Unavailable", "Estimated", "Measured"}[q] }

// Accounting describes a reading of exchanges.
type Accounting struct {
	Quality Quality
	// Reason why they are not measured; empty: they are.
	Reason string
	// Covered is for how long exchanges were counted. Zero: not at all yet.
	Covered time.Duration
}

// Accountant counts bytes and open connections per service port and zone of endpoints.
// Exchanges may be called at any time, and returns the newest reading: the kernel is read
// every minute or so. What one call returns is of one moment.
type Accountant interface {
	Exchanges() (Accounting, iter.Seq2[PortName, Exchange])
}

// Ranged is a Mode that has to know in which ranges the virtual addresses lie.
type Ranged interface {
	// SetRanges replaces the ranges while the mode runs. It may be called at any
	// time, also while Apply runs, and is idempotent. After an error the caller
	// passes the same ranges again later.
	SetRanges(ranges []netip.Prefix) error
}

// Addressed is a Mode that serves node ports on the primary addresses of the machine's Node.
type Addressed interface {
	// AddressesChanged says that these may have changed. The mode reads them again soon; it may be called at any time, does not
	// block, and is idempotent.
	AddressesChanged()
}

// Announcer is a Mode that makes connections to targets by itself, so that the target
// does not see who the client is and where it connected to. It announces that for
// connections to the node's tunnel. In other modes the kernel knows.
type Announcer interface {
	// AnnounceTo calls announce for every TCP connection that is made to one of tunnel
	// from then on, once it is made. announce must not block.
	AnnounceTo(tunnel []netip.AddrPort, announce func(Redirected))
}

// Redirected is a connection of a Mode to the node's tunnel.
type Redirected struct {
	// From is the address of the mode's end.
	From netip.AddrPort
	// Client is who connected, and Destination the virtual address and port.
	Client, Destination netip.AddrPort
}

// PortError reports which service ports could not be carried, and why. The others
// of the same Apply are in place.
type PortError struct {
	Failed map[PortName]error
}

func (e *PortError) Error() string {
	for name, err := range e.Failed {
		if len(e.Failed) == 1 {
			return "service port " + name.String() + ": " + err.Error()
		}
		return "several service ports failed, one of them " + name.String() + ": " + err.Error()
	}
	return "no service port failed"
}
