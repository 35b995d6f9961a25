//go:build linux

package nftables

import (
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// What the carrier says of a connection that was handed over, until nat-postrouting clears it. What the
// table serves by itself has none there.
const (
	carryMasquerade uint32 = 0xffff0001
	carryKeep       uint32 = 0xffff0002
)

// handOver are the rules that mark a connection for the balancer. What it is told to be masqueraded has the mode's bit of the mark,
// which the list's mark replaces.
func (w *writer) handOver(k classKey) []*nfnl.Rule {
	mark := markCluster
	if k.local {
		mark = markLocal
	}
	give := func(r *nfnl.Rule, carry uint32) *nfnl.Rule {
		return w.count(r).
			Meta(carrier, 0).ShiftRight(0, 16).Mask(0, nfnl.Host(^uint32(0)), nfnl.Host(mark)).SetMeta(unix.NFT_META_MARK, 0).
			Load(0, nfnl.Host(carry)).SetMeta(carrier, 0).
			Do(nfnl.Verdict{Code: acceptVerdict})
	}
	masqueraded := rule("to be masqueraded").
		Meta(unix.NFT_META_MARK, 0).Mask(0, nfnl.Host(w.mark), nfnl.Host(0)).Equal(0, nfnl.Host(w.mark))
	return []*nfnl.Rule{give(masqueraded, carryMasquerade), give(rule(""), carryKeep), drop("")}
}

// acceptVerdict is NF_ACCEPT of linux/netfilter.h.
const acceptVerdict = 1

// balancedPost finishes connections that were handed over: it clears what they carry, and masquerades those that have to be.
func (w *writer) balancedPost() []*nfnl.Rule {
	carries := func(r *nfnl.Rule, carry uint32) *nfnl.Rule {
		return r.Meta(carrier, 0).Equal(0, nfnl.Host(carry))
	}
	clear := func(r *nfnl.Rule) *nfnl.Rule {
		return r.Load(0, nfnl.Host(0)).SetMeta(unix.NFT_META_MARK, 0).SetMeta(carrier, 0)
	}
	itself := carries(rule("a balanced endpoint that came to itself"), carryKeep).
		Network(w.saddr, w.addrLen, 0).Network(w.daddr, w.addrLen, w.words).
		In(setHairpin, 0)
	return []*nfnl.Rule{
		clear(carries(rule(""), carryMasquerade)).Masquerade(),
		clear(itself).Masquerade(),
		clear(carries(rule(""), carryKeep)),
	}
}

// balances reports whether the balancer chooses for a service port.
func (f *family) balances(state *proxy.PortState) bool {
	return f.balancer != nil && state != nil && state.Service.AffinityTimeout <= 0 && (!f.hashes || !state.SourceHash)
}

// balance tells the balancer of the lists of a service port: those that one of its addresses uses.
func (f *family) balance(p *port, s *served, state *proxy.PortState) {
	if f.balancer == nil {
		return
	}
	for _, local := range []bool{false, true} {
		l := List{Family: f.family(), Mark: ListMark(p.number, local), Protocol: s.proto, Name: p.name}
		for _, v := range s.vips {
			for _, c := range v.uses {
				if c.key.balanced && c.key.local == local {
					choice := f.choice(state)
					l.Targets, _ = choice.List(local)
					l.Held = choice.Held
				}
			}
		}
		f.balancer.Want(l)
	}
}

func (d dims) family() proxy.Family {
	if d.words > 1 {
		return proxy.IPv6
	}
	return proxy.IPv4
}

// Chains behind the hooks at which IPVS translates replies (ip_vs_ops4 and ip_vs_ops6 of net/netfilter/ipvs/ip_vs_core.c).
const (
	chainRepliesIn      = "replies-input"
	chainRepliesForward = "replies-forward"
	chainRepliesOut     = "replies-output"
	chainReplies        = "reply-source"
)

var replyHooks = []nfnl.Chain{
	{Name: chainRepliesIn, Type: "filter", Hook: unix.NF_INET_LOCAL_IN, Priority: prioritySNAT - 1},
	{Name: chainRepliesForward, Type: "filter", Hook: unix.NF_INET_FORWARD, Priority: prioritySNAT + 1},
	{Name: chainRepliesOut, Type: "filter", Hook: unix.NF_INET_LOCAL_OUT, Priority: priorityDNAT + 3},
}

// replies give each reply the source that conntrack has for it. IPVS finds a connection by endpoint and client alone, and
// remembers it for up to two minutes after its end. When the client's port is used again, towards the endpoint's own address or
// a service that the table serves, IPVS translates those replies, and resets by which the table refuses, as well: the client
// gets them from a virtual address and waits.
// In conntrack the source of what was handed over is the address that was asked for. Of what the table translates it is the
// endpoint's, until postrouting. SCTP is left out: nf_tables cannot write its checksum.
func (w *writer) replies() map[string][]*nfnl.Rule {
	reply := func() *nfnl.Rule {
		return rule("").Conntrack(unix.NFT_CT_DIRECTION, 0).Equal(0, string([]byte{nfnl.Reply}))
	}
	// What IPVS has translated has an address of this machine; most replies have not.
	ours := func() *nfnl.Rule { return reply().SourceType(0).Equal(0, nfnl.Host(rtnLocal)) }
	address := struct{ src, dst uint32 }{unix.NFT_CT_SRC_IP, unix.NFT_CT_DST_IP}
	header := uint32(headerSum)
	if w.words > 1 {
		address.src, address.dst, header = unix.NFT_CT_SRC_IP6, unix.NFT_CT_DST_IP6, nfnl.None
	}
	translated := func(r *nfnl.Rule) *nfnl.Rule {
		return r.Conntrack(unix.NFT_CT_STATUS, 0).Mask(0, nfnl.Host(ipsDstNAT), nfnl.Host(0)).NotEqual(0, nfnl.Host(0)).
			ConntrackOf(nfnl.Reply, address.src, 0).SetNetwork(w.saddr, w.addrLen, header, 0).
			ConntrackOf(nfnl.Reply, unix.NFT_CT_PROTO_SRC, 0)
	}
	other := func(r *nfnl.Rule) *nfnl.Rule {
		return r.Conntrack(unix.NFT_CT_STATUS, 0).Mask(0, nfnl.Host(ipsDstNAT), nfnl.Host(0)).Equal(0, nfnl.Host(0)).
			ConntrackOf(nfnl.Original, address.dst, 0).SetNetwork(w.saddr, w.addrLen, header, 0).
			ConntrackOf(nfnl.Original, unix.NFT_CT_PROTO_DST, 0)
	}
	of := func(protocol byte) *nfnl.Rule {
		return rule("").Meta(unix.NFT_META_L4PROTO, 0).Equal(0, string([]byte{protocol}))
	}
	sum := func() *nfnl.Rule { return of(unix.IPPROTO_UDP).Transport(udpSum, 2, 0) }
	var rules []*nfnl.Rule
	for _, source := range []func(*nfnl.Rule) *nfnl.Rule{other, translated} {
		rules = append(rules,
			source(of(unix.IPPROTO_TCP)).SetTransport(0, 2, tcpSum, 0),
			source(sum().NotEqual(0, "\x00\x00")).SetTransport(0, 2, udpSum, 0),
			source(sum().Equal(0, "\x00\x00")).SetTransport(0, 2, nfnl.None, 0)) // sent without a checksum
	}
	return map[string][]*nfnl.Rule{
		chainRepliesIn:      {ours().Do(nfnl.Jump(chainReplies))},
		chainRepliesForward: {ours().Do(nfnl.Jump(chainReplies))},
		chainRepliesOut:     {reply().Do(nfnl.Jump(chainReplies))},
		chainReplies:        rules,
	}
}

// Offsets of checksums in headers of IPv4 (RFC 791), TCP (RFC 9293) and UDP (RFC 768).
const (
	headerSum = 10
	tcpSum    = 16
	udpSum    = 6
)
