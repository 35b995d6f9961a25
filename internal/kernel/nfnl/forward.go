//go:build linux

package nfnl

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// BlockingChain is a base chain of hook forward that drops or rejects what no rule of it accepts.
type BlockingChain struct {
	// Family is "ip", "ip6" or "inet".
	Family, Table, Chain string
	// By policy; else by its last rule.
	Policy bool
}

func (c BlockingChain) String() string {
	by := "last rule"
	if c.Policy {
		by = "policy"
	}
	return fmt.Sprintf("%s %s %s (%s)", c.Family, c.Table, c.Chain, by)
}

// BlockingForward lists the chains through which forwarded packets pass, of any program, that do not let
// through what they have no rule for, and that have no rule which accepts translated
// connections as such ("ct status dnat accept", "-m conntrack --ctstate DNAT -j ACCEPT").
// Such connections may still be accepted by other rules. Chains of iptables-legacy are not
// among them. [ErrInterrupted]: the tables changed meanwhile.
func (c *Conn) BlockingForward() ([]BlockingChain, error) {
	var out []BlockingChain
	for _, f := range []struct {
		family uint8
		name   string
	}{{unix.NFPROTO_IPV4, "ip"}, {unix.NFPROTO_IPV6, "ip6"}, {unix.NFPROTO_INET, "inet"}} {
		var chains []BlockingChain
		err := c.dump(unix.NFT_MSG_GETCHAIN, f.family, nil, func(b []byte) {
			table, ch := decodeChain(b)
			if ch.Type == "filter" && ch.Hook == unix.NF_INET_FORWARD {
				policy := find(b, unix.NFTA_CHAIN_POLICY)
				chains = append(chains, BlockingChain{f.name, table, ch.Name, len(policy) == 4 && u32(policy) == nfDrop})
			}
		})
		if err != nil {
			return nil, err
		}
		for _, ch := range chains {
			blocks, accepts := ch.Policy, false
			err := c.EachRule(Table{Family: f.family, Name: ch.Table}, ch.Chain, func(r RawRule) {
				accepts = accepts || r.acceptsTranslated()
				blocks = ch.Policy || r.refusesAll()
			})
			if err != nil {
				return nil, err
			}
			if blocks && !accepts {
				out = append(out, ch)
			}
		}
	}
	return out, nil
}

// shape is the rule's expressions by name, without counters.
func (r RawRule) shape() string {
	var names []string
	for name := range r.each {
		if string(name) != "counter" {
			names = append(names, string(name))
		}
	}
	return strings.Join(names, " ")
}

// expression is the data of the first expression of a name; nil: there is none.
func (r RawRule) expression(want string) []byte {
	for name, data := range r.each {
		if string(name) == want {
			return data
		}
	}
	return nil
}

// verdict is that of the rule; ok is false if it has none.
func (r RawRule) verdict() (code int32, ok bool) {
	data := r.expression("immediate")
	for _, step := range [...]uint16{unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE} {
		data = find(data, step)
	}
	if len(data) != 4 {
		return 0, false
	}
	return int32(u32(data)), true
}

// refusesAll reports whether the rule drops or rejects every packet.
func (r RawRule) refusesAll() bool {
	switch r.shape() {
	case "reject":
		return true
	case "target":
		return text(find(r.expression("target"), unix.NFTA_TARGET_NAME)) == "REJECT"
	case "immediate":
		code, ok := r.verdict()
		return ok && code == nfDrop
	}
	return false
}

// acceptsTranslated reports whether the rule accepts all packets of connections whose
// destination was translated.
func (r RawRule) acceptsTranslated() bool {
	if code, ok := r.verdict(); !ok || code != nfAccept {
		return false
	}
	switch r.shape() {
	case "immediate":
		return true
	case "ct bitwise cmp immediate":
		key := find(r.expression("ct"), unix.NFTA_CT_KEY)
		bits := find(find(r.expression("bitwise"), unix.NFTA_BITWISE_MASK), unix.NFTA_DATA_VALUE)
		return len(key) == 4 && u32(key) == unix.NFT_CT_STATUS && slices.Equal(bits, binary.NativeEndian.AppendUint32(nil, statusDNAT))
	case "match immediate":
		m := r.expression("match")
		info := find(m, unix.NFTA_MATCH_INFO)
		return text(find(m, unix.NFTA_MATCH_NAME)) == "conntrack" && len(info) >= conntrackState+2 &&
			binary.NativeEndian.Uint16(info[conntrackFlags:]) == conntrackByState &&
			binary.NativeEndian.Uint16(info[conntrackInverted:]) == 0 &&
			binary.NativeEndian.Uint16(info[conntrackState:])&stateDNAT != 0
	}
	return false
}

const (
	// statusDNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
	statusDNAT = 1 << 5
	// Offsets of match_flags, invert_flags and state_mask in struct xt_conntrack_mtinfo2
	// and 3, with XT_CONNTRACK_STATE and XT_CONNTRACK_STATE_DNAT, of linux/netfilter/xt_conntrack.h.
	conntrackFlags, conntrackInverted, conntrackState = 146, 148, 150
	conntrackByState                                  = 1 << 0
	stateDNAT                                         = 1 << 7
)
