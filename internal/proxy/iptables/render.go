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
type portRules struct {
	chains    map[string]string
	frontends map[key]claim // of the trie over virtual addresses
	nodePort  map[key]claim // of the trie over node ports
	hairpins  []netip.Addr  // local endpoints
	cluster   []netip.Addr  // cluster addresses, and who may use them
	scope     proxy.Scope
	sets      []string
}

// claim is a wish for a place in a trie. Of several the least rank wins, then the
// first name.
type claim struct {
	rank rank
	rule string
	// picks are for the chain of picks, to which the rule leads.
	picks string
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
	state     *proxy.PortState
	choice    *proxy.Choice
	tag       string
	proto     string // as iptables spells it
	portRules *portRules
	// outside: there is a way in that is not a cluster address.
	outside bool
}

// render makes a service port's part. A family in which the Service has no
// address gets nothing.
func (c *config) render(s *proxy.PortState) *portRules {
	p := &portRules{chains: map[string]string{}, frontends: map[key]claim{}, nodePort: map[key]claim{}}
	r := renderer{config: c, state: s, choice: &s.IPv4, tag: portTag(s.Name), proto: strings.ToLower(string(s.Port.Protocol)), portRules: p}
	if c.family == v6 {
		r.choice = &s.IPv6
	}
	cluster, external, balanced := r.own(s.Service.ClusterIPs), r.own(s.Service.ExternalIPs), r.own(s.Service.LoadBalancerIPs)
	if len(cluster)+len(external)+len(balanced) == 0 {
		return p
	}
	ports := s.Port.NodePort != 0 && c.hasNodePorts()
	r.outside = ports || len(external)+len(balanced) > 0
	p.cluster, p.scope = cluster, s.Service.Scope
	for _, a := range cluster {
		r.clusterFront(a)
	}
	if len(external)+len(balanced) > 0 || ports {
		r.external()
	}
	target := chainExternal + r.tag
	for _, a := range external {
		r.frontend(a, claim{rank: externalIP, rule: r.to(a) + "-g " + target})
	}
	if ranges, all := s.Service.SourcesOf(c.family == v4); !all && len(balanced) > 0 {
		r.firewall(ranges)
		target = chainFirewall + r.tag
	}
	for _, a := range balanced {
		r.frontend(a, claim{rank: loadBalancer, rule: r.to(a) + "-g " + target})
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

// frontend claims a virtual address for the port. One that the Service has in
// several roles is what the least rank says.
func (r *renderer) frontend(a netip.Addr, c claim) {
	at := portKey(addrKey(a), r.state.Port.Protocol, r.state.Port.Port)
	if had, ok := r.portRules.frontends[at]; !ok || c.rank < had.rank {
		r.portRules.frontends[at] = c
	}
}

// clusterFront claims a cluster address, and refuses its other ports.
func (r *renderer) clusterFront(a netip.Addr) {
	c := claim{rank: clusterIP}
	if r.short() {
		c.rule, c.picks = r.to(a)+"-g "+chainPicks, strings.Join(r.shortPicks(a), "\n")
	} else {
		c.rule = r.to(a) + "-g " + r.list(r.state.Service.InternalLocal)
	}
	if r.marksClusterIP() && !r.inServices(a) {
		c.rule = r.to(a) + "-j " + chainMarkMasq + "\n" + c.rule
	}
	r.frontend(a, c)
	r.portRules.frontends[restKey(a)] = claim{rank: clusterIP, rule: "-d " + host(a) + " -g " + chainReject}
}

// shortList is how many endpoints a list may have to be in the chain of a leaf.
const shortList = 4

// short reports whether the port needs no chain of its own: one list is all that it
// has, and that is short.
func (r *renderer) short() bool {
	targets, _ := r.choice.List(r.state.Service.InternalLocal)
	return !r.outside && r.state.Service.AffinityTimeout == 0 && len(targets) <= shortList
}

// shortPicks pick from the list for connections to an address.
func (r *renderer) shortPicks(a netip.Addr) []string {
	targets, verdict := r.choice.List(r.state.Service.InternalLocal)
	if len(targets) == 0 {
		return []string{r.to(a) + "-g " + refusal(verdict)}
	}
	r.noteLocal(targets)
	return r.picks(r.to(a), targets, func(t proxy.Target) string { return r.dnat(t.Addr) })
}

// refusal is the chain for connections that have no endpoint.
func refusal(v proxy.Verdict) string {
	if v == proxy.Drop {
		return chainDrop
	}
	return chainReject
}

// noteLocal notes the endpoints that may reach themselves.
func (r *renderer) noteLocal(targets []proxy.Target) {
	for _, t := range targets {
		if t.Local {
			r.portRules.hairpins = append(r.portRules.hairpins, t.Addr.Addr().Unmap())
		}
	}
}

// external is the way in from outside the cluster.
func (r *renderer) external() {
	var rules []string
	if r.state.Service.ExternalLocal {
		// Workloads of the cluster, and this machine, are not outside.
		cluster := r.list(false)
		for _, p := range r.workloads {
			rules = append(rules, p+"-g "+cluster)
		}
		const here = "-m addrtype --src-type LOCAL "
		rules = append(rules, here+r.setMasquerade(), here+"-g "+cluster, "-g "+r.list(true))
	} else {
		rules = []string{r.setMasquerade(), "-g " + r.list(false)}
	}
	r.chain(chainExternal+r.tag, rules)
}

// firewall admits the ranges only; without any, no client.
func (r *renderer) firewall(ranges []netip.Prefix) {
	var rules []string
	for _, p := range ranges {
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
	if _, done := r.portRules.chains[name]; done {
		return name
	}
	targets, verdict := r.choice.List(local)
	switch {
	case len(targets) == 0:
		r.chain(name, []string{"-g " + refusal(verdict)})
	case r.state.Service.AffinityTimeout > 0:
		r.chain(name, r.sticky(targets))
	default:
		r.chain(name, r.picks("-p "+r.proto+" ", targets, func(t proxy.Target) string { return r.dnat(t.Addr) }))
	}
	r.noteLocal(targets)
	return name
}

// picks chooses by weight for what matches: each rule takes its share of what the
// ones before it left, and the last takes all.
func (r *renderer) picks(match string, targets []proxy.Target, to func(proxy.Target) string) []string {
	rest := 0.0
	for _, t := range targets {
		rest += float64(max(t.Weight, 1))
	}
	rules := make([]string, len(targets))
	for i, t := range targets {
		rules[i] = match + to(t)
		if i < len(targets)-1 {
			w := float64(max(t.Weight, 1))
			rules[i] = match + probability(w/rest) + to(t)
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
	return "-j DNAT --to-destination " + addrPort(e)
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
		if _, done := r.portRules.chains[chain]; !done {
			r.chain(chain, []string{
				fmt.Sprintf("-j SET --add-set %s src --exist --timeout %d", set, seconds),
				"-p " + r.proto + " " + r.dnat(t.Addr),
			})
			r.portRules.sets = append(r.portRules.sets, set)
		}
	}
	return append(rules, r.picks("-p "+r.proto+" ", targets, func(t proxy.Target) string { return "-g " + chains[t.Addr] })...)
}

func (r *renderer) chain(name string, rules []string) { r.portRules.chains[name] = lines(name, rules) }

// lines is a chain's text, as iptables-save prints it and restore reads it.
func lines(chain string, rules []string) string {
	var b strings.Builder
	for _, rule := range rules {
		appendRule(&b, chain, rule)
	}
	return b.String()
}
