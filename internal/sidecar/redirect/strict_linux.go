package redirect

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
)

// Refuse has connections to ports of a workload refused (TCP reset) that come to its application past
// the proxy, as another program of the network namespace has translated their address: an agent in a
// kernel mode, for a virtual IP or a node port. NAT happens once per connection, so they cannot be
// led to the proxy. Ports of an earlier call that are not among them are open to such connections
// again. Without rules of this workload it does nothing. Connections that exist stay.
func Refuse(owner string, ports []uint16) error {
	conn, err := nfnl.Open(0)
	if err != nil {
		return err
	}
	defer conn.Close()
	have, there, err := ownerOf(conn)
	if err != nil || !there || have != ownerName(owner) {
		return explain(err)
	}
	was, err := strictOf(conn)
	if err != nil {
		return explain(err)
	}
	var b nfnl.Batch
	for _, port := range ports {
		if key := nfnl.Port(port); !slices.Contains(was, key) {
			b.AddElem(table(), &strictPorts, nfnl.Elem{Key: key})
		}
	}
	for _, key := range was {
		if !slices.Contains(ports, binary.BigEndian.Uint16([]byte(key))) {
			b.DeleteElem(table(), &strictPorts, key)
		}
	}
	if b.Empty() {
		return nil
	}
	return explain(conn.Commit(&b))
}

// Refused counts the connections that were refused, by port, since a port was given to Refuse or the
// rules were put in place. Without rules of this workload it is empty.
func Refused(owner string) (map[uint16]uint64, error) {
	conn, err := nfnl.Open(0)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	have, there, err := ownerOf(conn)
	if err != nil || !there || have != ownerName(owner) {
		return nil, explain(err)
	}
	out := map[uint16]uint64{}
	err = conn.Counts(table(), strictPorts.Name, func(key []byte, packets uint64) {
		if len(key) >= 2 {
			out[binary.BigEndian.Uint16(key)] = packets
		}
	})
	return out, explain(err)
}

// strictOf the table that is there: keys of the set. A table of an earlier version has none.
func strictOf(conn *nfnl.Conn) ([]string, error) {
	sets, err := conn.Sets(table())
	if err != nil || !slices.ContainsFunc(sets, func(s nfnl.Set) bool { return s.Name == strictPorts.Name }) {
		return nil, err
	}
	var out []string
	err = conn.Elems(table(), strictPorts.Name, func(e nfnl.Elem) { out = append(out, e.Key[:2]) })
	return out, err
}

// refused are the rules of new connections whose destination was translated and that have come to
// the application. Those that were led to the proxy have its port by now.
func (r Rules) refused() []*nfnl.Rule {
	var rules []*nfnl.Rule
	for _, p := range r.ExcludeInbound.Prefixes {
		rules = append(rules, leave((&nfnl.Rule{}).SourceIn(p)))
	}
	match := func() *nfnl.Rule {
		return tcp().Conntrack(unix.NFT_CT_STATE, 0).Mask(0, nfnl.Host(stateNew), nfnl.Host(0)).NotEqual(0, nfnl.Host(0)).
			Conntrack(unix.NFT_CT_STATUS, 0).Mask(0, nfnl.Host(ipsDstNAT), nfnl.Host(0)).NotEqual(0, nfnl.Host(0))
	}
	to := func(m *nfnl.Rule) { rules = append(rules, m.Transport(2, 2, 0).In(strictPorts.Name, 0).ResetTCP()) }
	if len(r.Addresses) == 0 {
		to(match())
	}
	for _, a := range r.Addresses {
		to(match().DestinationIn(netip.PrefixFrom(a, a.BitLen())))
	}
	return rules
}

// Of the kernel: NF_CT_STATE_BIT(IP_CT_NEW) and IPS_DST_NAT (linux/netfilter/nf_conntrack_common.h).
const (
	stateNew  = 1 << (2 + 1)
	ipsDstNAT = 1 << 5
)
