package diag

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

// Trace is the way of a new connection on one node: which service port has the
// address, which list of endpoints it gets, and what of the kernel decides.
type Trace struct {
	To       string `json:"to"`
	Protocol string `json:"protocol"`
	// From is the client's address: given, or this machine's own towards To. Source is
	// where that is.
	From   string        `json:"from"`
	Source Source        `json:"source"`
	Node   string        `json:"node"`
	Zone   locality.Zone `json:"zone,omitempty"`
	Mode   string        `json:"mode"`
	// Service port that has the address; empty: none has.
	Service string `json:"service,omitempty"`
	// Role of the address: cluster IP, external IP, load balancer or node port.
	Role string `json:"role,omitempty"`
	// Outcome is "endpoint", "reject", "drop", or "pass" for an address that is not
	// ours.
	Outcome string `json:"outcome"`
	// Reason why the client in particular is not served; empty: the outcome does not
	// depend on the client's address.
	Reason string `json:"reason,omitempty"`
	// List is "cluster" or "local", and Rule what made it (the cluster's) what it is.
	List string `json:"list,omitempty"`
	Rule string `json:"rule,omitempty"`
	// Masquerade: the endpoint sees an address of this node. Always so in the
	// userspace mode, which connects by itself.
	Masquerade bool `json:"masquerade"`
	// AffinitySeconds that a client stays with its endpoint; 0: no affinity.
	AffinitySeconds int             `json:"affinitySeconds,omitempty"`
	Endpoints       []TraceEndpoint `json:"endpoints"`
	// Spare endpoints are tried when none of the others answers; the userspace mode
	// alone can.
	Spare []TraceEndpoint `json:"spare,omitempty"`
	// Unused are endpoints of the Service that this node never uses, and why.
	Unused []TraceUnused `json:"unused,omitempty"`
	// Steps of the first packet, in order, if the mode reports them.
	Steps []TraceStep `json:"steps,omitempty"`
	// Kernel is the desired state in the kernel for the service port.
	Kernel []string `json:"kernel,omitempty"`
	// Blocking are chains of other programs that drop the connection on its way through this
	// machine unless a rule of theirs accepts it. None for connections that it does not forward.
	Blocking []string `json:"blocking,omitempty"`
	// Pending: the newest state of the service port is not in place, and why.
	Pending string `json:"pending,omitempty"`
}

// TraceEndpoint can get the connection.
type TraceEndpoint struct {
	Address string `json:"address"`
	// Weight as planned, relative to the others; Share of new connections, 0 to 1,
	// as the mode divides them.
	Weight uint32  `json:"weight"`
	Share  float64 `json:"share"`
	Local  bool    `json:"local,omitempty"`
	// Node and Zone that it is on and in; empty: not known.
	Node string        `json:"node,omitempty"`
	Zone locality.Zone `json:"zone,omitempty"`
}

// TraceUnused is an endpoint that never gets a connection from the node.
type TraceUnused struct {
	Address string `json:"address"`
	Why     string `json:"why"`
}

// FindUnused adds to Unused for a service port, in the family of an address, by
// the slices of the node.
func (t *Trace) FindUnused(s *proxy.PortState, to netip.Addr, known []*proxy.Slice, node choose.Node) {
	if s == nil {
		return
	}
	of := slices.DeleteFunc(slices.Clone(known), func(k *proxy.Slice) bool { return k.Service != s.Service.Name })
	for _, e := range choose.Flatten(s.Port, of) {
		if e.Addr.Addr().Is4() != to.Unmap().Is4() {
			continue
		}
		unused := TraceUnused{Address: e.Addr.String(), Why: choose.Unusable(e, s.Port.Protocol, node)}
		if unused.Why != "" && !slices.Contains(t.Unused, unused) {
			t.Unused = append(t.Unused, unused)
		}
	}
}

// Source is where a client is, by its address.
type Source struct {
	// Here: the address is one of this node's own. Node and Zone are then this
	// node's, else those of the workload that has the address; empty: not known.
	Here bool          `json:"here,omitempty"`
	Node string        `json:"node,omitempty"`
	Zone locality.Zone `json:"zone,omitempty"`
}

// TraceStep is one thing that happens to a packet: what decides, and how.
type TraceStep struct {
	Object string `json:"object"`
	Does   string `json:"does"`
}

// Connection to be traced.
type Connection struct {
	To       netip.AddrPort
	Protocol proxy.Protocol
	From     netip.Addr
	// By is the interface of the node by which it arrives; empty: none, or unknown.
	By string
}

// Vantage is what matters of the node that a connection is made on.
type Vantage struct {
	// Addresses of the node, and those of them that node ports answer on.
	Addresses, NodePorts []netip.Addr
	// Workloads are the ranges that count as inside of the cluster.
	Workloads []netip.Prefix
	// Interfaces by which workloads of the node send, which count as well.
	Interfaces proxy.Interfaces
	// MasqueradeAll, as the flag says.
	MasqueradeAll bool
}

func (v *Vantage) isWorkload(c Connection) bool {
	return v.Interfaces.Contain(c.By) || slices.ContainsFunc(v.Workloads, func(p netip.Prefix) bool { return p.Contains(c.From) })
}

// The roles of an address, by precedence: the same address in several roles is
// what the first says.
const (
	roleCluster  = "cluster IP"
	roleBalancer = "load balancer"
	roleExternal = "external IP"
	roleNodePort = "node port"
)

var precedence = []string{roleCluster, roleBalancer, roleExternal, roleNodePort}

// Trace fills in service, role, outcome, list, endpoints and masquerading of a
// connection as kernel modes do it, from what is in place on the node. It returns the state that decides; nil: none.
func (t *Trace) Trace(c Connection, states []*proxy.PortState, v Vantage) *proxy.PortState {
	t.Outcome, t.Endpoints = "pass", []TraceEndpoint{}
	var found *proxy.PortState
	best := len(precedence)
	for _, s := range states {
		if s.Port.Protocol != c.Protocol {
			continue
		}
		if rank := slices.Index(precedence, roleOf(s, c.To, v)); rank >= 0 && rank < best {
			found, best = s, rank
		}
	}
	if found == nil {
		return nil
	}
	role := precedence[best]
	t.Claim(found, role)
	if role == roleBalancer && !found.Service.Admits(c.From) {
		t.Outcome, t.Reason = "drop", notAdmitted(found.Service, c.From)
		return found
	}
	choice := found.For(c.To.Addr())
	local := found.Service.InternalLocal
	if role != roleCluster {
		inside := slices.Contains(v.Addresses, c.From) || c.From.IsLoopback() || v.isWorkload(c)
		local = found.Service.ExternalLocal && !inside
	}
	t.choose(choice, local)
	t.Masquerade = t.Outcome == "endpoint" && masquerades(found.Service, role, local, c, &v)
	return found
}

// masquerades is the rule of kernel modes: clients from elsewhere are masqueraded
// where it is configured, and at external addresses always, unless the
// endpoint is on this node by policy.
func masquerades(s *proxy.Service, role string, local bool, c Connection, v *Vantage) bool {
	switch {
	case role == roleCluster:
		return v.MasqueradeAll || (len(v.Workloads)+len(v.Interfaces) > 0 && !v.isWorkload(c))
	case s.ExternalLocal:
		return !local && !v.isWorkload(c)
	}
	return true
}

// Claim notes which service port has the address, and in which role.
func (t *Trace) Claim(s *proxy.PortState, role string) {
	t.Service, t.Role = s.Name.String(), role
	t.AffinitySeconds = int(s.Service.AffinityTimeout.Seconds())
}

func (t *Trace) choose(choice *proxy.Choice, local bool) {
	list, verdict := choice.List(local)
	if len(list) == 0 {
		t.Outcome = verdict.String()
		if verdict == proxy.Accept { // no policy requires the list
			t.Outcome = "drop"
		}
		return
	}
	t.Outcome, t.List, t.Rule = "endpoint", "cluster", choice.Why.String()
	if local {
		t.List, t.Rule = "local", "endpoints on this node, as the traffic policy is Local"
	}
	total := uint64(0)
	for _, e := range list {
		total += uint64(e.Weight)
	}
	for _, e := range list {
		t.Endpoints = append(t.Endpoints, TraceEndpoint{
			Address: e.Addr.String(), Weight: e.Weight, Share: float64(e.Weight) / float64(total), Local: e.Local,
		})
	}
	if !local {
		for _, e := range choice.Fallback {
			t.Spare = append(t.Spare, TraceEndpoint{Address: e.Addr.String(), Weight: e.Weight, Local: e.Local})
		}
	}
}

// Locate fills in where the endpoints and the client are, by the slices that the
// node has: those of the service port's Service first, as the same address may
// be in several. The addresses of the node itself are in v.
func (t *Trace) Locate(known []*proxy.Slice, v Vantage) {
	known = slices.Clone(known)
	service, _, _ := strings.Cut(t.Service, ":")
	slices.SortStableFunc(known, func(a, b *proxy.Slice) int {
		return cmp.Or(rank(a, service)-rank(b, service), strings.Compare(a.Name.Name, b.Name.Name))
	})
	wanted := map[netip.Addr][]place{}
	for _, list := range [][]TraceEndpoint{t.Endpoints, t.Spare} {
		for i := range list {
			if at, err := netip.ParseAddrPort(list[i].Address); err == nil {
				wanted[at.Addr().Unmap()] = append(wanted[at.Addr().Unmap()], place{&list[i].Node, &list[i].Zone})
			}
		}
	}
	from, err := netip.ParseAddr(t.From)
	if err == nil && (from.IsLoopback() || slices.Contains(v.Addresses, from)) {
		t.Source = Source{Here: true, Node: t.Node, Zone: t.Zone}
	} else if err == nil {
		wanted[from] = append(wanted[from], place{&t.Source.Node, &t.Source.Zone})
	}
	for _, s := range known {
		for _, e := range s.Endpoints {
			for _, p := range wanted[e.Addr.Unmap()] {
				*p.node, *p.zone = cmp.Or(*p.node, e.Node), cmp.Or(*p.zone, e.Zone)
			}
		}
	}
}

// Forwards reports whether the connection may pass through the machine: it is neither made
// here nor, at all endpoints, served at an address of the machine itself.
func (t *Trace) Forwards(v Vantage) bool {
	from, err := netip.ParseAddr(t.From)
	if err != nil || t.Outcome != "endpoint" || from.IsLoopback() || slices.Contains(v.Addresses, from) {
		return false
	}
	return slices.ContainsFunc(t.Endpoints, func(e TraceEndpoint) bool {
		to, err := netip.ParseAddrPort(e.Address)
		return err == nil && !slices.Contains(v.Addresses, to.Addr().Unmap())
	})
}

// rank of a slice: those of the Service come first.
func rank(s *proxy.Slice, service string) int {
	if s.Service.String() == service {
		return 0
	}
	return 1
}

// place is where to write what is found.
type place struct {
	node *string
	zone *locality.Zone
}

// roleOf an address and port for a service port; empty: none.
func roleOf(s *proxy.PortState, to netip.AddrPort, v Vantage) string {
	addr := to.Addr().Unmap()
	has := func(list []netip.Addr) bool {
		return slices.ContainsFunc(list, func(a netip.Addr) bool { return a.Unmap() == addr })
	}
	switch {
	case to.Port() == s.Port.Port && has(s.Service.ClusterIPs):
		return roleCluster
	case to.Port() == s.Port.Port && has(s.Service.LoadBalancerIPs):
		return roleBalancer
	case to.Port() == s.Port.Port && has(s.Service.ExternalIPs):
		return roleExternal
	case s.Port.NodePort != 0 && to.Port() == s.Port.NodePort && has(v.NodePorts) && hasFamily(s.Service, addr.Is4()):
		return roleNodePort
	}
	return ""
}

// hasFamily: node ports answer in the families that the Service has addresses of.
func hasFamily(s *proxy.Service, is4 bool) bool {
	return slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return a.Unmap().Is4() == is4 })
}

// notAdmitted says why a client may not use the Service's load balancer addresses.
func notAdmitted(s *proxy.Service, from netip.Addr) string {
	ranges, _ := s.SourcesOf(from.Is4())
	if len(ranges) == 0 {
		family := "IPv6"
		if from.Is4() {
			family = "IPv4"
		}
		return "no range of loadBalancerSourceRanges is " + family
	}
	names := make([]string, len(ranges))
	for i, p := range ranges {
		names[i] = p.String()
	}
	return from.String() + " is in no range of loadBalancerSourceRanges (" + strings.Join(names, ", ") + ")"
}
