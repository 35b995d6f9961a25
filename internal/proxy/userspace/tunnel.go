package userspace

import (
	"net"
	"net/netip"
	"slices"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// tunnel is the node's way to other sites. Immutable.
type tunnel struct {
	at       []netip.AddrPort
	announce func(proxy.Redirected)
}

// AnnounceTo implements proxy.Announcer.
func (m *Mode) AnnounceTo(at []netip.AddrPort, announce func(proxy.Redirected)) {
	m.tunnel.Store(&tunnel{at: slices.Clone(at), announce: announce})
}

// dialed announces a connection to an endpoint, if that is the tunnel.
func (t *tunnel) dialed(to, from netip.AddrPort, ends func() (client, destination netip.AddrPort)) {
	if !slices.Contains(t.at, to) {
		return
	}
	client, destination := ends()
	t.announce(proxy.Redirected{From: from, Client: client, Destination: destination})
}

func addrPortOf(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
