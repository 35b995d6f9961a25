//go:build linux

package nftables

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// flows is conntrack as the mode uses it.
type flows interface {
	Flows(family, protocol uint8, each func(nfnl.Flow)) error
	DeleteFlows(family uint8, flows []nfnl.Flow) (int, error)
}

// noteStale remembers the UDP addresses whose flows have to be looked at: those
// that lost an endpoint, went, or are reachable without us and so may have flows
// that began before the service did.
func (m *Mode) noteStale(i int, old, next *served) {
	if old.proto == proxy.UDP && old.present {
		lost := !next.present || next.proto != proxy.UDP
		for _, list := range old.listed {
			for _, a := range list {
				lost = lost || !slices.Contains(next.listed[0], a) && !slices.Contains(next.listed[1], a)
			}
		}
		for _, v := range old.vips {
			gone := !slices.ContainsFunc(next.vips, func(n vip) bool { return n.addr == v.addr && n.port == v.port })
			if lost || gone {
				m.stale[i][netip.AddrPortFrom(v.addr, v.port)] = struct{}{}
			}
		}
	}
	if next.proto != proxy.UDP || !next.present {
		return
	}
	for _, v := range next.vips {
		fresh := !slices.ContainsFunc(old.vips, func(o vip) bool { return o.addr == v.addr && o.port == v.port })
		if fresh && v.role != clusterIP {
			m.stale[i][netip.AddrPortFrom(v.addr, v.port)] = struct{}{}
		}
	}
}

// staleKey remembers the address of an element of map vip.
func (m *Mode) staleKey(i int, key string) {
	n := len(key) - 8
	if n < 0 || key[n] != unix.IPPROTO_UDP {
		return
	}
	addr, _ := netip.AddrFromSlice([]byte(key[:n]))
	m.stale[i][netip.AddrPortFrom(addr, uint16(key[n+4])<<8|uint16(key[n+5]))] = struct{}{}
}

// endFlows deletes the flows of stale addresses that go where no endpoint is any
// more: one walk through conntrack for all. It must come after the tables, else
// a packet in between would make the flow anew. A failure is logged and tried
// again with the next change: the tables are right, and a flow that is left ends
// by itself when its client pauses.
func (m *Mode) endFlows() {
	for i, f := range m.families {
		if len(m.stale[i]) == 0 {
			continue
		}
		var doomed []nfnl.Flow
		allowed := map[netip.AddrPort]map[netip.AddrPort]bool{}
		err := m.ct.Flows(f.proto, unix.IPPROTO_UDP, func(flow nfnl.Flow) {
			if _, ok := m.stale[i][flow.To]; !ok {
				return
			}
			if allowed[flow.To] == nil {
				allowed[flow.To] = f.endpointsOf(i, flow.To)
			}
			if !allowed[flow.To][flow.From] {
				doomed = append(doomed, flow)
			}
		})
		if err == nil && len(doomed) > 0 {
			var n int
			n, err = m.ct.DeleteFlows(f.proto, doomed)
			m.metrics.flows.Add(float64(n))
		}
		if err != nil {
			m.log.Warn("UDP flows to endpoints that are gone may live on", "family", f.String(), "err", err)
			continue
		}
		clear(m.stale[i])
	}
}

// endpointsOf lists where flows to a UDP address may go. One that no service has
// is reached as it is.
func (f *family) endpointsOf(i int, vip netip.AddrPort) map[netip.AddrPort]bool {
	claims := f.claims[vipKey(vip.Addr(), proxy.UDP, vip.Port())]
	if len(claims) == 0 {
		return map[netip.AddrPort]bool{vip: true}
	}
	out := map[netip.AddrPort]bool{}
	for _, list := range slices.MinFunc(claims, compareClaims).port.of(i).listed {
		for _, a := range list {
			out[a] = true
		}
	}
	return out
}
