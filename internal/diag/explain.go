// Package diag answers people's questions about decisions, with the code that
// made them.
//
// It owns the explanations, as values that commands and pages print. Enter at
// ExplainService. It is pure: it neither reads nor changes anything.
package diag

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// Service explains where connections to a Service go from one place.
type Service struct {
	Service string `json:"service"`
	// ImportOf is the name below clusterset.local whose virtual IPs the Service has; empty:
	// none.
	ImportOf string `json:"importOf,omitempty"`
	// MeshName that was asked for; nil: none was.
	MeshName *MeshName `json:"meshName,omitempty"`
	// Hosts are names of an ExternalService that agents answer with the virtual IPs, and
	// NotEnforced what of it does not hold, and why.
	Hosts       []string      `json:"hosts,omitempty"`
	NotEnforced []string      `json:"notEnforced,omitempty"`
	Node        string        `json:"node,omitempty"`
	Zone        locality.Zone `json:"zone,omitempty"`
	Address     []string      `json:"addresses"`
	// Mesh whose workloads use the Service, and further ones; empty: those of all meshes, or the
	// site has one. Refused are workloads of the node that are of another mesh.
	Mesh     string   `json:"mesh,omitempty"`
	Exported []string `json:"exported,omitempty"`
	Refused  []string `json:"refused,omitempty"`
	Ports    []Port   `json:"ports"`
	// Guards are the endpoints without a sidecar of which permissions say something.
	Guards []Guard `json:"guards,omitempty"`
	// Limits are what nodes of some mode do not do of the Service.
	Limits []string `json:"limits,omitempty"`
	// Topology says how traffic is divided among zones; nil without an answer of the planner.
	Topology *topology.Report `json:"topology,omitempty"`
	// History is the command that shows where its endpoints went; empty: it has some, or no changes are kept.
	History string `json:"history,omitempty"`
}

// MeshName is a name below "mesh", with its domain.
type MeshName struct {
	Name string `json:"name"`
	// Mesh whose workloads resolve it.
	Mesh string `json:"mesh"`
	// Addresses that it has, which are not those of the Service.
	Addresses []string `json:"addresses"`
	// UnusedSince is when the last endpoint, or the Service, went; nil: it is in use.
	UnusedSince *time.Time `json:"unusedSince,omitempty"`
}

// Plan adds the report on a Service's topology. planned says that the slices that were
// explained carry a plan: then it is the plan that keeps endpoints out, and hints only
// express it.
func (s *Service) Plan(report *topology.Report, planned bool) {
	s.Topology = report
	if !planned {
		return
	}
	for i := range s.Ports {
		for k := range s.Ports[i].Families {
			f := &s.Ports[i].Families[k]
			if f.Rule != proxy.ZoneHints.String() {
				continue
			}
			f.Rule = "the plan for this zone"
			for n := range f.Endpoints {
				if e := &f.Endpoints[n]; e.Reason == ZoneHints {
					e.Reason, e.Why = NotInPlan, "the plan gives it none of this zone's connections"
				}
			}
		}
	}
}

// Drains adds which nodes are drained: by name, since when, by whom and by which taint; empty:
// it is not.
func (s *Service) Drains(of func(node string) string) {
	for i := range s.Ports {
		for k := range s.Ports[i].Families {
			for n := range s.Ports[i].Families[k].Endpoints {
				e := &s.Ports[i].Families[k].Endpoints[n]
				if e.Reason != Terminating || e.Node == "" {
					continue
				}
				if text := of(e.Node); text != "" {
					e.Reason, e.Why = NodeDrained, fmt.Sprintf("its node %s is %s: used only when no endpoint is ready", e.Node, text)
				}
			}
		}
	}
}

// Shifts adds which endpoints a ZoneShift takes out: what it takes out, until when and why, by
// zone and node; empty: none does.
func (s *Service) Shifts(of func(zone, node string) string) {
	for i := range s.Ports {
		for k := range s.Ports[i].Families {
			for n := range s.Ports[i].Families[k].Endpoints {
				e := &s.Ports[i].Families[k].Endpoints[n]
				if e.Reason != Terminating {
					continue
				}
				if text := of(string(e.Zone), e.Node); text != "" {
					e.Reason, e.Why = ShiftedOut, text+": used only when no endpoint is ready"
				}
			}
		}
	}
}

// Reason why an endpoint is used, or is not.
type Reason string

const (
	Used        Reason = "Used"
	Terminating Reason = "Terminating"
	NodeDrained Reason = "NodeDrained"
	// ShiftedOut: its zone or node is taken out by a ZoneShift.
	ShiftedOut  Reason = "ShiftedOut"
	NotServing  Reason = "NotServing"
	NotReady    Reason = "NotReady"
	PolicyLocal Reason = "PolicyLocal"
	Suspect     Reason = "Suspect"
	NodeHints   Reason = "NodeHints"
	ZoneHints   Reason = "ZoneHints"
	NotInPlan   Reason = "NotInPlan"
	NotChosen   Reason = "NotChosen"
	// NotRouted: no backend of the route has it. NotPreferred: a policy's locality keeps it out.
	NotRouted    Reason = "NotRouted"
	NotPreferred Reason = "NotPreferred"
	// Unusable: a connection to it would not reach it from this node.
	Unusable Reason = "Unusable"
)

// Port of a Service.
type Port struct {
	Name     string `json:"name,omitempty"`
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
	// Families, one for each that the Service has addresses of.
	Families []Family `json:"families"`
	// Elsewhere is the way out of this site; nil: no other site offers the port.
	Elsewhere *Elsewhere `json:"elsewhere,omitempty"`
	// Route is the TCPRoute that divides connections of clients without a sidecar among Backends; empty:
	// none does.
	Route    string         `json:"route,omitempty"`
	Backends []RouteBackend `json:"backends,omitempty"`
	// Policy is a BackendPolicy that counts for clients without a sidecar; empty: none does.
	Policy string `json:"policy,omitempty"`
	// SourceHash: a client's address decides about its endpoint, where the node's mode can do that.
	SourceHash bool `json:"sourceHash,omitempty"`
}

// RouteBackend is where a route leads.
type RouteBackend struct {
	// Service and port; empty: a backend that cannot be used.
	Service string `json:"service,omitempty"`
	Weight  uint32 `json:"weight"`
	// Endpoints that can serve from here.
	Endpoints int `json:"endpoints"`
}

// Family is the choice for the addresses of one IP family.
type Family struct {
	Family string `json:"family"`
	// Rule decided; Outcome is what happens to a connection.
	Rule    string `json:"rule"`
	Outcome string `json:"outcome"`
	// Elsewhere is the share of new connections that leave this site, 0 to 1.
	Elsewhere float64    `json:"elsewhere,omitempty"`
	Endpoints []Endpoint `json:"endpoints"`
}

// Endpoint of a Service port, used or not.
type Endpoint struct {
	Address string        `json:"address"`
	Node    string        `json:"node,omitempty"`
	Zone    locality.Zone `json:"zone,omitempty"`
	// Share of new connections, 0 to 1.
	Share float64 `json:"share"`
	// Weight of its own, where endpoints of the Service differ by that; 0: they do not.
	Weight uint32 `json:"weight,omitempty"`
	// WarmUp is the part of its weight that an endpoint has while it is warming up, 0 to 1;
	// 0: it is not.
	WarmUp float64 `json:"warmUp,omitempty"`
	// Reason why it is used, or is not; Why says it in words.
	Reason Reason `json:"reason"`
	Why    string `json:"why"`
	// Registered is how it came, if a client of a registry registered it; nil: otherwise.
	Registered *Registration `json:"registered,omitempty"`
}

// Registration is how an endpoint came by a registry protocol.
type Registration struct {
	// Dataplane that it is, NAMESPACE/NAME.
	Dataplane string `json:"dataplane"`
	// Protocol: nacos, eureka or zookeeper.
	Protocol string `json:"protocol"`
	// Owner is the instance of the control plane that has the session which keeps it alive; empty:
	// it stays until it is deregistered.
	Owner string `json:"owner,omitempty"`
	// By is the user; empty: a client without credentials.
	By    string    `json:"by,omitempty"`
	Since time.Time `json:"since"`
	// CopiedFrom is the registry that it is registered in, of which it is a copy (proxima registry import); empty: this one.
	CopiedFrom string `json:"copiedFrom,omitempty"`
}

// String is PROTOCOL and who keeps it alive.
func (r *Registration) String() string {
	text := r.Protocol
	if r.By != "" {
		text += " by " + r.By
	}
	if r.CopiedFrom != "" {
		text += ", copied from " + r.CopiedFrom
	}
	if r.Owner != "" {
		return text + ", session at " + r.Owner
	}
	return text + ", until it is deregistered"
}

// Registrations adds how endpoints came that clients of registries registered: of returns nil for others.
func (s *Service) Registrations(of func(address string) *Registration) {
	for i := range s.Ports {
		for k := range s.Ports[i].Families {
			for n := range s.Ports[i].Families[k].Endpoints {
				e := &s.Ports[i].Families[k].Endpoints[n]
				e.Registered = of(e.Address)
			}
		}
	}
}

// ExplainService reports which endpoints a node would use for connections to the
// cluster addresses of a Service, and why not the others. remote is what other sites offer
// under its name; nil: nothing, or it is not known. backends has those of the route of a port, in its
// order; nil: routes are not known.
func ExplainService(svc *proxy.Service, from []*proxy.Slice, node choose.Node, remote *sites.Remote, backends func(choose.Origin) []choose.Backend) Service {
	var elsewhere *proxy.Elsewhere
	if remote != nil {
		elsewhere = remote.Elsewhere()
	}
	out := Service{Service: svc.Name.String(), Node: node.Name, Zone: node.Zone}
	for _, ip := range svc.ClusterIPs {
		out.Address = append(out.Address, ip.String())
	}
	for _, port := range svc.Ports {
		all := choose.Flatten(port, from)
		p := Port{Name: port.Name, Port: port.Port, Protocol: string(port.Protocol)}
		origin := choose.Origin{Service: svc, Port: port, Slices: from, Elsewhere: elsewhere}
		var routed []choose.Backend
		if r := svc.Routing[port.Name]; r != nil && backends != nil {
			origin.Routing, p.Policy, p.SourceHash = r, r.Policy, r.SourceHash
			if r.Route != "" {
				routed = backends(origin)
			}
		}
		p.route(origin.Routing, routed, node)
		for _, b := range routed {
			all = append(all, choose.Flatten(b.Port, b.Slices)...)
		}
		state, _ := choose.Port(origin, routed, tunnels, node, time.Time{})
		for _, is4 := range []bool{true, false} {
			if !slices.ContainsFunc(svc.ClusterIPs, func(a netip.Addr) bool { return a.Unmap().Is4() == is4 }) {
				continue
			}
			choice := &state.IPv6
			if is4 {
				choice = &state.IPv4
			}
			f := explain(svc, port.Protocol, choice, all, is4, node)
			if remote != nil && isExternal(remote) && f.Elsewhere > 0 {
				f.Rule = "an ExternalService, which has no endpoints of its own"
			}
			p.Families = append(p.Families, f)
			if p.Elsewhere == nil {
				p.Elsewhere = elsewhereOf(remote, port, choice.Why)
			}
		}
		out.Ports = append(out.Ports, p)
	}
	return out
}

// route adds the backends of a port's route.
func (p *Port) route(r *proxy.Routing, backends []choose.Backend, node choose.Node) {
	if r == nil || r.Route == "" {
		return
	}
	p.Route = r.Route
	for i, b := range r.Backends {
		line := RouteBackend{Weight: b.Weight}
		if b.Service != (proxy.ServiceName{}) {
			line.Service = fmt.Sprintf("%s:%d", b.Service, b.Port)
		}
		if i < len(backends) && backends[i].Service != nil {
			own := backends[i].Origin
			state, _ := choose.Port(own, nil, nil, node, time.Time{})
			line.Endpoints = max(len(state.IPv4.Cluster)+len(state.IPv4.Local), len(state.IPv6.Cluster)+len(state.IPv6.Local))
		}
		p.Backends = append(p.Backends, line)
	}
}

func explain(svc *proxy.Service, protocol proxy.Protocol, choice *proxy.Choice, all []choose.Endpoint, is4 bool, node choose.Node) Family {
	f := Family{Family: "IPv6", Rule: choice.Why.String(), Endpoints: []Endpoint{}}
	if is4 {
		f.Family = "IPv4"
	}
	targets, verdict := choice.List(svc.InternalLocal)
	if svc.InternalLocal {
		f.Rule = "internalTrafficPolicy Local: endpoints on this node alone"
	}
	f.Outcome = outcome(targets, choice.Fallback, verdict)
	var total, beyond uint64
	for _, t := range targets {
		total += uint64(t.Weight)
		if isTunnel(t) {
			beyond += uint64(t.Weight)
		}
	}
	if total > 0 {
		f.Elsewhere = float64(beyond) / float64(total)
	}
	seen := map[netip.AddrPort]bool{}
	for _, e := range all {
		if e.Addr.Addr().Is4() != is4 || seen[e.Addr] {
			continue
		}
		seen[e.Addr] = true
		line := Endpoint{Address: e.Addr.String(), Node: e.Node, Zone: e.Zone}
		if i := slices.IndexFunc(targets, func(t proxy.Target) bool { return t.Addr == e.Addr }); i >= 0 {
			line.Share = float64(targets[i].Weight) / float64(total)
			line.Reason, line.Why = Used, "used"
		} else if why := choose.Unusable(e, protocol, node); why != "" {
			line.Reason, line.Why = Unusable, why
		} else {
			line.Reason, line.Why = unused(svc, choice, e, node)
		}
		f.Endpoints = append(f.Endpoints, line)
	}
	slices.SortFunc(f.Endpoints, func(a, b Endpoint) int {
		return netip.MustParseAddrPort(a.Address).Compare(netip.MustParseAddrPort(b.Address))
	})
	return f
}

func outcome(targets, spare []proxy.Target, verdict proxy.Verdict) string {
	switch {
	case len(targets) == 0 && verdict == proxy.Drop:
		return "dropped: there are endpoints, but none on this node, and the policy is Local"
	case len(targets) == 0:
		return "refused: no endpoint can serve"
	}
	own := slices.DeleteFunc(slices.Clone(targets), isTunnel)
	text := fmt.Sprintf("shared by %d", len(own))
	switch {
	case len(own) == 0:
		text = "through the tunnel"
	case len(own) < len(targets):
		text += " and the tunnel"
	}
	further := slices.DeleteFunc(slices.Clone(spare), isTunnel)
	switch {
	case len(further) > 0 && len(further) < len(spare):
		text += fmt.Sprintf("; if none of them answers, the userspace mode tries %d more, and the tunnel", len(further))
	case len(further) > 0:
		text += fmt.Sprintf("; if none of them answers, the userspace mode tries %d more", len(further))
	case len(spare) > 0:
		text += "; if none of them answers, the userspace mode tries the tunnel"
	}
	return text
}

// unused names the reason that keeps an endpoint out.
func unused(svc *proxy.Service, choice *proxy.Choice, e choose.Endpoint, node choose.Node) (Reason, string) {
	switch {
	case !e.Ready && e.Terminating && e.Serving:
		return Terminating, "terminating, or disabled: used only when no endpoint is ready"
	case !e.Ready && e.Terminating:
		return NotServing, "terminating, and no longer serving"
	case !e.Ready && e.Serving:
		return NotReady, "serving, but not ready, as a workload whose weight is 0"
	case !e.Ready:
		return NotReady, "not ready"
	case svc.InternalLocal && e.Node != node.Name:
		return PolicyLocal, "on another node"
	case node.Suspects[e.Node] && e.Node != node.Name:
		return Suspect, "its node is suspect: used last"
	case choice.Why == proxy.Divided:
		return NotRouted, "no backend of the route has it, or it is not needed for the backend's share"
	case choice.Why == proxy.Preferred, choice.Why == proxy.NoEndpoint:
		return NotPreferred, "the locality of the policy keeps it out"
	case choice.Why == proxy.NodeHints:
		return NodeHints, fmt.Sprintf("hinted to nodes %v", e.HintNodes)
	case choice.Why == proxy.ZoneHints:
		return ZoneHints, fmt.Sprintf("hinted to zones %v", e.HintZones)
	}
	return NotChosen, "not chosen"
}
