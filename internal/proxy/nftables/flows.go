//go:build linux

package nftables

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// flowTable is a *conntrack.Table, or a test's.
type flowTable interface {
	Prune(conntrack.Keep) (int, error)
}

// noteStale records the UDP addresses whose flows have to be checked: those that lost an
// endpoint that served, were removed, or are reachable without the mode and so may have flows that
// began before the service.
func (m *Mode) noteStale(i int, old, next *served) {
	if old.proto == proxy.UDP && old.present {
		lost := !next.present || next.proto != proxy.UDP
		for _, a := range old.mayHaveFlows() {
			lost = lost || !slices.Contains(next.listed[0], a) && !slices.Contains(next.listed[1], a) && !slices.Contains(next.held, a)
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

// staleKey records the address of an element of map vip.
func (m *Mode) staleKey(i int, key string) {
	n := len(key) - 8
	if n < 0 || key[n] != unix.IPPROTO_UDP {
		return
	}
	addr, _ := netip.AddrFromSlice([]byte(key[:n]))
	m.stale[i][netip.AddrPortFrom(addr, uint16(key[n+4])<<8|uint16(key[n+5]))] = struct{}{}
}

// endFlows deletes the flows of stale addresses that do not go to an endpoint that serves,
// with one dump per family. It must come after the tables, else a packet in between would
// create the flow again. A failure is logged and retried
// with the next change: the tables are right, and a flow that is left ends
// by itself when its client pauses.
func (m *Mode) endFlows() {
	keep := conntrack.Keep{}
	for i, f := range m.families {
		for vip := range m.stale[i] {
			keep[conntrack.Frontend{Protocol: proxy.UDP, Addr: vip}] = f.endpointsOf(i, vip)
		}
	}
	if len(keep) == 0 {
		return
	}
	n, err := m.flows.Prune(keep)
	m.metrics.flows.Add(float64(n))
	if err != nil {
		m.log.Warn("UDP flows to removed endpoints may continue", "error", err)
		return
	}
	for i := range m.stale {
		clear(m.stale[i])
	}
}

// endpointsOf lists the endpoints to which flows to a UDP address may go. An address
// without a service is its own endpoint: its flows are not translated.
func (f *family) endpointsOf(i int, vip netip.AddrPort) []netip.AddrPort {
	claims := f.claims[vipKey(vip.Addr(), proxy.UDP, vip.Port())]
	if len(claims) == 0 {
		return []netip.AddrPort{vip}
	}
	return slices.MinFunc(claims, compareClaims).port.of(i).mayHaveFlows()
}

// mayHaveFlows are the endpoints to which flows of a UDP port may go.
func (s *served) mayHaveFlows() []netip.AddrPort {
	return slices.Concat(s.listed[0], s.listed[1], s.held)
}
