package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// part is what one service port contributes to one family's tables. It depends
// on the state and the configuration alone.
type part struct {
	chains   map[string]string
	fronts   map[key]claim // of the trie over virtual addresses
	nodePort map[key]claim // of the trie over node ports
	hairpins []netip.Addr  // local endpoints
	sets     []string
}

// claim is a wish for a place in a trie. Of several the least rank wins, then the
// first name.
type claim struct {
	rank rank
	rule string
}

type rank int

const (
	clusterIP rank = iota
	loadBalancer
	externalIP
)

// renderer makes the part of one service port.
type renderer struct {
	*config
	state  *proxy.PortState
	choice *proxy.Choice
	tag    string
	proto  string // as iptables spells it
	part   *part
}

// render makes a service port's part. A family in which the Service has no
// address gets nothing.
func (c *config) render(s *proxy.PortState) *part {
	p := &part{chains: map[string]string{}, fronts: map[key]claim{}, nodePort: map[key]claim{}}
	r := renderer{config: c, state: s, choice: &s.IPv4, tag: portTag(s.Name), proto: strings.ToLower(string(s.Port.Protocol)), part: p}
	if c.family == v6 {
		r.choice = &s.IPv6
	}
	cluster, external, balanced := r.own(s.Service.ClusterIPs), r.own(s.Service.ExternalIPs), r.own(s.Service.LoadBalancerIPs)
	if len(cluster)+len(external)+len(balanced) == 0 {
		return p
	}
	for _, a := range cluster {
		r.clusterFront(a)
	}
	ports := s.Port.NodePort != 0 && c.hasNodePorts()
	if len(external)+len(balanced) > 0 || ports {
		r.external()
	}
	target := chainExternal + r.tag
	for _, a := range external {
		r.front(a, externalIP, r.to(a)+"-g "+target)
	}
	if ranges := r.ranges(); len(ranges) > 0 && len(balanced) > 0 {
		r.firewall(ranges)
		target = chainFirewall + r.tag
	}
	for _, a := range balanced {
		r.front(a, loadBalancer, r.to(a)+"-g "+target)
	}
	if ports {
		p.nodePort[portKey(nil, s.Port.Protocol, s.Port.NodePort)] = claim{
			rule: fmt.Sprintf("-p %s -m %[1]s --dport %d -g %s", r.proto, s.Port.NodePort, chainExternal+r.tag),
		}
	}
	return p
}

// own lists the addresses of this family.
func (r *renderer) own(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		if a = a.Unmap().WithZone(""); familyOf(a) == r.family {
			out = append(out, a)
		}
	}
	return out
}

// to matches the service port at an address.
func (r *renderer) to(a netip.Addr) string {
	return fmt.Sprintf("-d %s -p %s -m %[2]s --dport %d ", host(a), r.proto, r.state.Port.Port)
}

// front claims a virtual address for the port. One that the Service has in
// several roles is what the least rank says.
func (r *renderer) front(a netip.Addr, k rank, rule string) {
	at := portKey(addrKey(a), r.state.Port.Protocol, r.state.Port.Port)
	if had, ok := r.part.fronts[at]; !ok || k < had.rank {
		r.part.fronts[at] = claim{k, rule}
	}
}

// clusterFront claims a cluster address, and refuses its other ports.
func (r *renderer) clusterFront(a netip.Addr) {
	rule := r.to(a) + "-g " + r.list(r.state.Service.InternalLocal)
	if r.marksClusterIP() && !r.inServices(a) {
		rule = r.to(a) + "-j " + chainMarkMasq + "\n" + rule
	}
	r.front(a, clusterIP, rule)
	r.part.fronts[restKey(a)] = claim{clusterIP, "-d " + host(a) + " -g " + chainReject}
}

// external is the way in from outside the cluster.
func (r *renderer) external() {
	var rules []string
	if r.state.Service.ExternalLocal {
		// Workloads of the cluster, and this machine, are not outside.
		cluster := r.list(false)
		for _, p := range r.workloads {
			rules = append(rules, from(p)+"-g "+cluster)
		}
		const here = "-m addrtype --src-type LOCAL "
		rules = append(rules, here+r.setMasquerade(), here+"-g "+cluster, "-g "+r.list(true))
	} else {
		rules = []string{r.setMasquerade(), "-g " + r.list(false)}
	}
	r.chain(chainExternal+r.tag, rules)
}

// ranges that may use the load balancer's addresses; none: everybody. A range
// that covers everything cancels the others, whatever its family.
func (r *renderer) ranges() []netip.Prefix {
	for _, p := range r.state.Service.SourceRanges {
		if p.Bits() == 0 {
			return nil
		}
	}
	return r.state.Service.SourceRanges
}

// firewall admits the ranges only. If all are of the other family it admits
// nobody, as somebody wanted few and not all.
func (r *renderer) firewall(ranges []netip.Prefix) {
	var rules []string
	for _, p := range ofFamily(ranges, r.family) {
		rules = append(rules, from(p)+"-g "+chainExternal+r.tag)
	}
	r.chain(chainFirewall+r.tag, append(rules, "-g "+chainDrop))
}

// list makes the chain that picks from a list, once, and returns its name.
func (r *renderer) list(local bool) string {
	name := chainCluster + r.tag
	if local {
		name = chainLocal + r.tag
	}
	if _, done := r.part.chains[name]; done {
		return name
	}
	targets, verdict := r.choice.List(local)
	switch {
	case len(targets) == 0 && verdict == proxy.Drop:
		r.chain(name, []string{"-g " + chainDrop})
	case len(targets) == 0:
		r.chain(name, []string{"-g " + chainReject})
	case r.state.Service.AffinityTimeout > 0:
		r.chain(name, r.sticky(targets))
	default:
		r.chain(name, r.picks(targets, func(t proxy.Target) string { return r.dnat(t.Addr) }))
	}
	for _, t := range targets {
		if t.Local {
			r.part.hairpins = append(r.part.hairpins, t.Addr.Addr().Unmap())
		}
	}
	return name
}

// picks chooses by weight: each rule takes its share of what the ones before it
// left, and the last takes all.
func (r *renderer) picks(targets []proxy.Target, to func(proxy.Target) string) []string {
	rest := 0.0
	for _, t := range targets {
		rest += float64(max(t.Weight, 1))
	}
	rules := make([]string, len(targets))
	for i, t := range targets {
		rules[i] = "-p " + r.proto + " " + to(t)
		if i < len(targets)-1 {
			w := float64(max(t.Weight, 1))
			rules[i] = "-p " + r.proto + " " + probability(w/rest) + to(t)
			rest -= w
		}
	}
	return rules
}

// probability in the steps that the kernel knows (31 bits, xt_statistic.h) and in
// the digits in which iptables-save prints it.
func probability(p float64) string {
	const one = 1 << 31
	return fmt.Sprintf("-m statistic --mode random --probability %.11f ", math.Round(p*one)/one)
}

func (r *renderer) dnat(e netip.AddrPort) string {
	return "-j DNAT --to-destination " + netip.AddrPortFrom(e.Addr().Unmap(), e.Port()).String()
}

// sticky sends a client to the endpoint whose set it is in, else picks; each
// endpoint's own chain remembers the client, and so prolongs its stay.
func (r *renderer) sticky(targets []proxy.Target) []string {
	seconds := uint32(min(max(math.Ceil(r.state.Service.AffinityTimeout.Seconds()), 1), maxSetTimeoutSeconds))
	rules := make([]string, 0, 2*len(targets))
	chains := make(map[netip.AddrPort]string, len(targets))
	for _, t := range targets {
		id := endpointTag(r.state.Name, t.Addr)
		set, chain := setName(r.family, id), chainEndpoint+id
		chains[t.Addr] = chain
		rules = append(rules, fmt.Sprintf("-p %s -m set --match-set %s src -g %s", r.proto, set, chain))
		if _, done := r.part.chains[chain]; !done {
			r.chain(chain, []string{
				fmt.Sprintf("-j SET --add-set %s src --exist --timeout %d", set, seconds),
				"-p " + r.proto + " " + r.dnat(t.Addr),
			})
			r.part.sets = append(r.part.sets, set)
		}
	}
	return append(rules, r.picks(targets, func(t proxy.Target) string { return "-g " + chains[t.Addr] })...)
}

func (r *renderer) chain(name string, rules []string) { r.part.chains[name] = lines(name, rules) }

// lines is a chain's text, as iptables-save prints it and restore reads it.
func lines(chain string, rules []string) string {
	var b strings.Builder
	for _, rule := range rules {
		appendRule(&b, chain, rule)
	}
	return b.String()
}
