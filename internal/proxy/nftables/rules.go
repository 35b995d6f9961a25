//go:build linux

package nftables

import (
	"maps"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// The service's number and class travel in meta priority: a looked-up value used
// as a key within one rule makes nft abort when it lists the table, so it is put
// into the packet and loaded again. The rules with dnat clear it.
const carrier = unix.NFT_META_PRIORITY

const (
	serviceMask = 0xffff0000
	classMask   = 0x0000ffff
)

// writer writes the rules of one family.
type writer struct {
	dims
	services  []netip.Prefix // ServiceCIDRs of the family
	workloads []netip.Prefix
	// interfaces by which workloads send.
	interfaces proxy.Interfaces
	// masqueradeAll: what goes to cluster IPs is, from wherever.
	masqueradeAll bool
	mark          uint32
	// balanced: a Balancer chooses endpoints by the packet's mark.
	balanced bool
}

// baseChains are the chains that the kernel calls.
func (w *writer) baseChains() []nfnl.Chain {
	chains := []nfnl.Chain{
		{Name: chainPost, Type: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: prioritySNAT},
		{Name: chainPre, Type: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: priorityDNAT},
		{Name: chainOut, Type: "nat", Hook: unix.NF_INET_LOCAL_OUT, Priority: priorityDNAT},
	}
	if w.balanced {
		chains = append(chains, replyHooks...)
	}
	return chains
}

// fixed are the rules of all chains but those of lists and source ranges.
func (w *writer) fixed() map[string][]*nfnl.Rule {
	rules := map[string][]*nfnl.Rule{
		chainPre:        w.hooks("", ""),
		chainOut:        w.hooks("", ""),
		chainPost:       w.postrouting(),
		chainDispatch:   w.dispatch(),
		chainCIDR:       w.serviceCIDR(),
		chainRefuse:     w.refuse(),
		chainNoEndpoint: {w.count(rule("no endpoint")).Do(nfnl.Goto(chainRefuse))},
		chainExtLocal:   w.externalLocal(),
		chainRangesPass: {w.to(rule(""), setVIPCluster, setLists), drop("")},
	}
	if w.balanced {
		maps.Copy(rules, w.replies())
	}
	return rules
}

func rule(comment string) *nfnl.Rule { return &nfnl.Rule{Comment: comment} }

func drop(comment string) *nfnl.Rule { return rule(comment).Do(nfnl.Drop()) }

// service loads the service's number.
func service(r *nfnl.Rule, to nfnl.Reg) *nfnl.Rule {
	return r.Meta(carrier, to).Mask(to, nfnl.Host(serviceMask), nfnl.Host(0))
}

// count counts the connection for the service.
func (w *writer) count(r *nfnl.Rule) *nfnl.Rule { return service(r, 0).In(setDemand, 0) }

// to goes where a map of virtual addresses says.
func (w *writer) to(r *nfnl.Rule, vips, verdicts string) *nfnl.Rule {
	return r.Network(w.daddr, w.addrLen, 0).
		Meta(unix.NFT_META_L4PROTO, w.words).
		Transport(2, 2, w.words+1).
		Lookup(vips, 0, 8).
		SetMeta(carrier, 8).
		Meta(carrier, 0).Mask(0, nfnl.Host(classMask), nfnl.Host(0)).
		VerdictOf(verdicts, 0)
}

func (w *writer) dispatch() []*nfnl.Rule {
	rules := []*nfnl.Rule{w.to(rule(""), setVIP, setEntry)}
	for _, p := range w.services {
		rules = append(rules, w.within(rule(""), w.daddr, p, true).Do(nfnl.Goto(chainCIDR)))
	}
	return append(rules,
		// Older kernels can miss an element while it is replaced: look again.
		w.to(rule("again, in case it was just replaced"), setVIP, setEntry),
		w.unknownPort())
}

func (w *writer) serviceCIDR() []*nfnl.Rule {
	return []*nfnl.Rule{
		w.to(rule("again, in case it was just replaced"), setVIP, setEntry),
		w.unknownPort(),
		drop("address is not allocated"),
	}
}

func (w *writer) unknownPort() *nfnl.Rule {
	return rule("address is known, port is not").Network(w.daddr, w.addrLen, 0).In(setClusterIPs, 0).Do(nfnl.Goto(chainRefuse))
}

func (w *writer) refuse() []*nfnl.Rule {
	return []*nfnl.Rule{
		rule("").Meta(unix.NFT_META_L4PROTO, 0).Equal(0, string([]byte{unix.IPPROTO_TCP})).ResetTCP(),
		rule("").Unreachable(w.unreachable),
	}
}

// within continues if an address of the header is in a prefix, or is not.
func (w *writer) within(r *nfnl.Rule, offset uint32, p netip.Prefix, in bool) *nfnl.Rule {
	net := addrKey(p.Masked().Addr())
	r.Network(offset, w.addrLen, 0)
	if p.Bits() < p.Addr().BitLen() {
		r.Mask(0, maskOf(p.Bits(), int(w.addrLen)), strings.Repeat("\x00", int(w.addrLen)))
	}
	if in {
		return r.Equal(0, net)
	}
	return r.NotEqual(0, net)
}

// arrivedBy continues if the packet came by an interface, or did not. What this node sends came by
// none.
func arrivedBy(r *nfnl.Rule, name string, by bool) *nfnl.Rule {
	value, open := strings.CutSuffix(name, "*")
	if !open {
		value += strings.Repeat("\x00", unix.IFNAMSIZ-len(value))
	}
	r.Meta(unix.NFT_META_IIFNAME, 0)
	if by {
		return r.Equal(0, value)
	}
	return r.NotEqual(0, value)
}

func maskOf(bits, length int) string {
	mask := make([]byte, length)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return string(mask)
}

func (w *writer) setMark(r *nfnl.Rule) *nfnl.Rule {
	return r.Meta(unix.NFT_META_MARK, 0).Mask(0, nfnl.Host(^w.mark), nfnl.Host(w.mark)).SetMeta(unix.NFT_META_MARK, 0)
}

func (w *writer) externalLocal() []*nfnl.Rule {
	var rules []*nfnl.Rule
	for _, p := range w.workloads {
		rules = append(rules, w.to(w.within(rule("workloads use the cluster's list"), w.saddr, p, true), setVIPCluster, setLists))
	}
	for _, name := range w.interfaces {
		rules = append(rules, w.to(arrivedBy(rule("workloads use the cluster's list"), name, true), setVIPCluster, setLists))
	}
	fromNode := rule("and so does this node").SourceType(0).Equal(0, nfnl.Host(rtnLocal))
	return append(rules,
		w.to(w.setMark(fromNode), setVIPCluster, setLists),
		w.to(rule(""), setVIPLocal, setLists),
		drop("no endpoint here"))
}

// ranges admits clients by the prefix lengths in use.
func (w *writer) ranges(bits []int, next string) []*nfnl.Rule {
	var rules []*nfnl.Rule
	for _, n := range bits {
		r := service(rule(""), 0).Network(w.saddr, w.addrLen, 1)
		if n < int(w.addrLen)*8 {
			r.Mask(1, maskOf(n, int(w.addrLen)), strings.Repeat("\x00", int(w.addrLen)))
		}
		rules = append(rules, r.In(w.source(n).Name, 0).Do(nfnl.Goto(next)))
	}
	return append(rules, drop("source is not admitted"))
}

func (w *writer) postrouting() []*nfnl.Rule {
	marked := rule("").Meta(unix.NFT_META_MARK, 0).Mask(0, nfnl.Host(w.mark), nfnl.Host(0)).Equal(0, nfnl.Host(w.mark)).
		Meta(unix.NFT_META_MARK, 0).Mask(0, nfnl.Host(^w.mark), nfnl.Host(0)).SetMeta(unix.NFT_META_MARK, 0).
		Masquerade()
	hairpin := rule("an endpoint that came to itself").
		Conntrack(unix.NFT_CT_STATUS, 0).Mask(0, nfnl.Host(ipsDstNAT), nfnl.Host(0)).NotEqual(0, nfnl.Host(0)).
		Network(w.saddr, w.addrLen, 0).Network(w.daddr, w.addrLen, w.words).
		In(setHairpin, 0).
		Masquerade()
	if w.balanced {
		return append(w.balancedPost(), marked, hairpin)
	}
	return []*nfnl.Rule{marked, hairpin}
}

// marksClusterIP is how connections to cluster IPs are marked.
func (w *writer) marksClusterIP() marking {
	switch {
	case w.masqueradeAll:
		return markAlways
	case len(w.workloads)+len(w.interfaces) == 0:
		return markNever
	}
	return markOutside
}

// pick are the rules that send a connection to an endpoint of a list. Each ends
// with its own pick, so that whatever one misses, the next still serves.
func (w *writer) pick(k classKey) []*nfnl.Rule {
	var rules []*nfnl.Rule
	switch k.mark {
	case markAlways:
		rules = append(rules, w.setMark(rule("")))
	case markOutside:
		r := rule("")
		for _, p := range w.workloads {
			w.within(r, w.saddr, p, false)
		}
		for _, name := range w.interfaces {
			arrivedBy(r, name, false)
		}
		rules = append(rules, w.setMark(r))
	}
	if k.balanced {
		return append(rules, w.handOver(k)...)
	}
	offset := uint32(0)
	ids := setIDCluster
	if k.local {
		offset, ids = localSlots, setIDLocal
	}
	if k.affinitySeconds != 0 {
		rules = append(rules, w.sticky(k, ids, offset)...)
	}
	return append(rules,
		w.dnat(rule(""), k, offset),
		w.dnat(rule("in case the number of slots just changed"), classKey{slots: 1}, offset),
		drop(""))
}

// dnat sends the connection to the endpoint in one of the slots.
func (w *writer) dnat(r *nfnl.Rule, k classKey, offset uint32) *nfnl.Rule {
	w.slot(service(r, 0).Meta(unix.NFT_META_L4PROTO, 1), k, offset, 2).Lookup(setEP, 0, 4)
	return w.send(r, 4)
}

// hashSeed is the same on all nodes and after each restart, so that clients stay where they are.
const hashSeed = 0x70726f78

// slot loads a slot: a random one, or the one of the client's address.
func (w *writer) slot(r *nfnl.Rule, k classKey, offset uint32, to nfnl.Reg) *nfnl.Rule {
	if !k.hash {
		return r.Random(uint32(k.slots), offset, to)
	}
	const source = 8
	return r.Network(w.saddr, w.addrLen, source).Hash(source, w.addrLen, uint32(k.slots), offset, hashSeed, to)
}

// send counts, clears the carrier and translates to the endpoint at reg. The
// counting must come late: only a connection that has an endpoint is served.
func (w *writer) send(r *nfnl.Rule, reg nfnl.Reg) *nfnl.Rule {
	return w.count(r).
		Load(reg+w.words+1, nfnl.Host(0)).SetMeta(carrier, reg+w.words+1).
		DNAT(w.proto, reg, reg+w.words)
}

func (w *writer) sticky(k classKey, ids string, offset uint32) []*nfnl.Rule {
	timeout := uint64(k.affinitySeconds) * 1000
	client := func(r *nfnl.Rule) *nfnl.Rule { return service(r, 0).Network(w.saddr, w.addrLen, 1) }
	// The carrier's id is the value of the key, as the kernel requires one.
	withID := func(r *nfnl.Rule) *nfnl.Rule { return client(r).Meta(carrier, 1+w.words) }
	recall := func(comment string) *nfnl.Rule {
		return client(rule(comment)).Lookup(setAffinity, 0, 8).SetMeta(carrier, 8)
	}
	byID := func(r *nfnl.Rule) *nfnl.Rule {
		return r.Meta(carrier, 8).Meta(unix.NFT_META_L4PROTO, 9).Lookup(ids, 8, 10)
	}
	return []*nfnl.Rule{
		recall("where was this client sent before?"),
		w.send(withID(byID(rule("its endpoint is there still"))).Update(setAffinity, 0, 1+w.words, timeout), 10),
		withID(rule("or is not")).Delete(setAffinity, 0, 1+w.words),
		w.slot(service(rule(""), 0), k, offset, 1).Lookup(setEPID, 0, 8).SetMeta(carrier, 8),
		withID(rule("")).Update(setAffinity, 0, 1+w.words, timeout),
		recall("two first connections agree on one"),
		w.send(byID(rule("")), 10),
	}
}
