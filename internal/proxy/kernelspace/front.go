package kernelspace

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/kernelspace/hns"
)

// key of a front: HNS has one load balancer for it.
type key struct {
	vip      netip.Addr // zero: the machine's addresses (a node port)
	protocol uint32
	port     uint16
	ipv6     bool
}

func (k key) String() string {
	host := "node port"
	if k.vip.IsValid() {
		host = k.vip.String()
	} else if k.ipv6 {
		host = "IPv6 node port"
	}
	return host + " " + strconv.Itoa(int(k.port)) + "/" + strconv.FormatUint(uint64(k.protocol), 10)
}

func keyOf(b hns.LoadBalancer) key {
	k := key{protocol: b.Mapping.Protocol, port: b.Mapping.ExternalPort, ipv6: b.Flags&hns.IPv6 != 0}
	if len(b.VIPs) > 0 {
		k.vip = b.VIPs[0]
	}
	return k
}

// front is a load balancer that a service port asks for, before its endpoints are looked up.
type front struct {
	key
	targets []netip.AddrPort // of one port
	local   map[netip.Addr]bool
	// gateway: the endpoint of the root namespace takes the place of targets.
	gateway      bool
	internalPort uint16
	dsr          bool
	distribution hns.Distribution
	flags        hns.MappingFlags
	// clusterIP: an overlay needs an endpoint at the address.
	clusterIP bool
	// restricted: without its access control lists it must not be there.
	restricted bool
}

// plan is what one service port asks of HNS.
type plan struct {
	fronts []front
	// acls that have to be there before the fronts are.
	acls []hns.ACL
	// limits are what HNS does not do of it, sorted.
	limits []Limit
}

// Limit is something that a Service asks for and HNS cannot do, or does otherwise.
type Limit string

// Limits.
const (
	LimitAffinityTimeout Limit = "the timeout of session affinity: HNS keeps a client at an endpoint by a hash of its address, and never lapses"
	LimitAffinity        Limit = "session affinity: this version of HNS has none, so connections of a client go to any endpoint"
	LimitWeights         Limit = "weights, as of a plan: HNS gives each endpoint the same share"
	LimitTargetPorts     Limit = "several target ports: a load balancer of HNS has one, so only endpoints at the most frequent one are used"
	LimitReject          Limit = "refusing connections while there is no endpoint: nothing answers"
	LimitDrop            Limit = "dropping under a Local policy without a local endpoint: this node has no front, so connections leave it or are refused"
	LimitDropOpen        Limit = "dropping under a Local policy without a local endpoint: --windows-allow-open lets them go to endpoints of other nodes"
	LimitRanges          Limit = "loadBalancerSourceRanges: this version of HNS has no access control lists of networks, so the load balancer's addresses are not served here"
	LimitRangesOpen      Limit = "loadBalancerSourceRanges: --windows-allow-open lets all clients in"
	LimitNoDSR           Limit = "externalTrafficPolicy Local and preserve-destination: this version of HNS has no direct server return, so endpoints of all nodes are used and client addresses are lost"
	LimitFamily          Limit = "addresses of this family: the HNS network does not carry them"
	LimitSourceHash      Limit = "the hash of client addresses of a BackendPolicy"
)

// ability is what fronts depend on besides the service port.
type ability struct {
	features hns.Features
	// dsr of cluster IPs.
	dsr bool
	// ipv4 and ipv6 are the families that the network carries.
	ipv4, ipv6 bool
	allowOpen  bool
	// healthPort of the agent, for ingress addresses without a health check node port; 0: none.
	// forward: health checks at ingress addresses go to the gateway endpoint.
	healthPort uint16
	forward    bool
}

func (a ability) carries(ipv6 bool) bool {
	if ipv6 {
		return a.ipv6
	}
	return a.ipv4
}

// planOf a service port. It is a pure function.
func planOf(state *proxy.PortState, can ability) plan {
	p := planner{state: state, can: can, limits: map[Limit]bool{}}
	svc := state.Service
	external := svc.ExternalLocal && can.features.DSR
	preserve := svc.PreserveDestination && can.features.DSR
	reachable := state.Port.NodePort != 0 || len(svc.ExternalIPs)+len(svc.LoadBalancerIPs) > 0
	if reachable && !can.features.DSR && (svc.ExternalLocal || svc.PreserveDestination) {
		p.limits[LimitNoDSR] = true
	}
	for _, vip := range svc.ClusterIPs {
		p.add(front{key: p.key(vip, state.Port.Port), dsr: can.dsr, clusterIP: true}, choice{policy: svc.InternalLocal}, nil)
	}
	if state.Port.NodePort != 0 {
		for _, ipv6 := range familiesOf(svc) {
			k := key{protocol: protocolOf(state.Port.Protocol), port: state.Port.NodePort, ipv6: ipv6}
			p.add(front{key: k, dsr: external, flags: hns.External | hns.LocalRouted}, choice{policy: external, kept: preserve}, nil)
		}
	}
	for _, vip := range svc.ExternalIPs {
		p.add(front{key: p.key(vip, state.Port.Port), dsr: external, flags: hns.External}, choice{policy: external}, nil)
	}
	var preserved hns.MappingFlags
	if preserve {
		preserved = hns.Mux | hns.PreserveDIP
	}
	for _, vip := range svc.LoadBalancerIPs {
		ranges, all := svc.SourcesOf(vip.Is4())
		restricted := !all
		if restricted && !can.features.NetworkACL && !can.allowOpen {
			p.limits[LimitRanges] = true
			continue
		}
		if restricted && !can.features.NetworkACL {
			p.limits[LimitRangesOpen], restricted = true, false
		}
		f := front{key: p.key(vip, state.Port.Port), dsr: external || preserve, flags: hns.External | preserved}
		var admitted *[]netip.Prefix
		if restricted {
			admitted = &ranges
		}
		if p.add(f, choice{policy: external, kept: preserve}, admitted) && can.forward {
			p.health(vip, preserved)
		}
	}
	return p.plan()
}

// planner collects the plan of one service port.
type planner struct {
	state  *proxy.PortState
	can    ability
	fronts []front
	acls   []hns.ACL
	limits map[Limit]bool
}

// choice of the endpoints of a front: policy is a traffic policy Local, kept means local endpoints
// for another reason.
type choice struct{ policy, kept bool }

func (p *planner) key(vip netip.Addr, port uint16) key {
	return key{vip: vip, protocol: protocolOf(p.state.Port.Protocol), port: port, ipv6: !vip.Is4()}
}

// add a front, if it has endpoints. admitted: only these clients.
func (p *planner) add(f front, c choice, admitted *[]netip.Prefix) bool {
	if !p.can.carries(f.ipv6) {
		p.limits[LimitFamily] = true
		return false
	}
	family := &p.state.IPv4
	if f.ipv6 {
		family = &p.state.IPv6
	}
	targets, verdict := family.List(c.policy)
	if c.kept && !c.policy {
		targets = localOf(targets)
		if len(targets) == 0 && verdict == proxy.Accept {
			verdict = proxy.Drop
		}
	}
	if len(targets) == 0 && verdict == proxy.Drop {
		switch {
		case !f.vip.IsValid(): // the machine's own addresses: it refuses
			return false
		case p.can.features.NetworkACL:
			p.acls = append(p.acls, blocked(f.key)...)
			return false
		case p.can.allowOpen && len(family.Cluster) > 0:
			p.limits[LimitDropOpen] = true
			targets = family.Cluster
		default:
			p.limits[LimitDrop] = true
			return false
		}
	}
	if len(targets) == 0 {
		if verdict == proxy.Reject {
			p.limits[LimitReject] = true
		}
		return false
	}
	if admitted != nil {
		p.acls = append(p.acls, admitting(f.key, *admitted)...)
		f.restricted = true
	}
	p.use(&f, targets)
	p.fronts = append(p.fronts, f)
	return true
}

// use endpoints, as far as a load balancer can.
func (p *planner) use(f *front, targets []proxy.Target) {
	f.internalPort = commonPort(targets)
	f.local = map[netip.Addr]bool{}
	for _, t := range targets {
		if t.Weight != targets[0].Weight {
			p.limits[LimitWeights] = true
		}
		if t.Addr.Port() != f.internalPort {
			p.limits[LimitTargetPorts] = true
			continue
		}
		f.targets = append(f.targets, t.Addr)
		f.local[t.Addr.Addr()] = t.Local
	}
	if p.state.SourceHash {
		p.limits[LimitSourceHash] = true
	}
	if p.state.Service.AffinityTimeout == 0 {
		return
	}
	if !p.can.features.SessionAffinity {
		p.limits[LimitAffinity] = true
		return
	}
	p.limits[LimitAffinityTimeout] = true
	f.distribution = hns.ClientIP
}

// health check port of an ingress address: it leads to the machine.
func (p *planner) health(vip netip.Addr, flags hns.MappingFlags) {
	port := cmp.Or(p.state.Service.HealthCheckNodePort, p.can.healthPort)
	if port == 0 {
		return
	}
	p.fronts = append(p.fronts, front{
		key: key{vip: vip, protocol: hns.TCP, port: port, ipv6: !vip.Is4()}, gateway: true, internalPort: port, flags: flags,
	})
}

func (p *planner) plan() plan {
	out := plan{fronts: p.fronts, acls: p.acls}
	for l := range p.limits {
		out.limits = append(out.limits, l)
	}
	slices.Sort(out.limits)
	return out
}

// familiesOf a Service, IPv4 first: node ports answer on those of its cluster addresses.
func familiesOf(svc *proxy.Service) (ipv6 []bool) {
	for _, six := range []bool{false, true} {
		if slices.ContainsFunc(svc.ClusterIPs, func(a netip.Addr) bool { return a.Is4() != six }) {
			ipv6 = append(ipv6, six)
		}
	}
	return ipv6
}

func localOf(targets []proxy.Target) []proxy.Target {
	var out []proxy.Target
	for _, t := range targets {
		if t.Local {
			out = append(out, t)
		}
	}
	return out
}

// commonPort is the port that most targets have, of several the lowest.
func commonPort(targets []proxy.Target) uint16 {
	count := map[uint16]int{}
	var best uint16
	for _, t := range targets {
		port := t.Addr.Port()
		count[port]++
		if n := count[port] - count[best]; best == 0 || n > 0 || n == 0 && port < best {
			best = port
		}
	}
	return best
}

func protocolOf(p proxy.Protocol) uint32 {
	switch p {
	case proxy.UDP:
		return hns.UDP
	case proxy.SCTP:
		return hns.SCTP
	}
	return hns.TCP
}

// Priorities of rules: those that admit go before those that block.
const (
	priorityAllow = 100
	priorityBlock = 200
)

// blocked are the rules by which nothing reaches a front, from outside or from this machine's Pods.
func blocked(k key) []hns.ACL {
	vip := []netip.Prefix{netip.PrefixFrom(k.vip, k.vip.BitLen())}
	return []hns.ACL{
		{Protocol: k.protocol, Local: vip, LocalPort: k.port, Priority: priorityBlock},
		{Out: true, Protocol: k.protocol, Remote: vip, RemotePort: k.port, Priority: priorityBlock},
	}
}

// admitting are the rules by which only some clients reach a front. No range: none does.
func admitting(k key, ranges []netip.Prefix) []hns.ACL {
	rules := blocked(k)
	if len(ranges) == 0 {
		return rules
	}
	in, out := rules[0], rules[1]
	in.Allow, in.Remote, in.Priority = true, ranges, priorityAllow
	out.Allow, out.Local, out.Priority = true, ranges, priorityAllow
	return append(rules, in, out)
}
