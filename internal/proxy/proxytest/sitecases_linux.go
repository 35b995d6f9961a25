package proxytest

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// siteCases: services of other sites, which the node's tunnel leads to.
var siteCases = []kernelCase{
	{name: "the tunnel to other sites learns the address that was asked for", needs: []Feature{OriginalDestination}, run: tunnelLearns},
}

// tunnelLearns: an endpoint of another site is the tunnel at an address of this node, which asks the kernel whom a connection was for.
func tunnelLearns(k *kernel) {
	ln, err := k.net.node.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr(k.family.node), 0).String())
	if err != nil {
		k.Fatal(err)
	}
	k.Cleanup(func() { _ = ln.Close() })
	go answerOriginal(ln)
	at := ln.Addr().(*net.TCPAddr).AddrPort()
	s := k.svc(0)
	state := &proxy.PortState{Name: proxy.PortName{ServiceName: s.Name, Port: "tcp"}, Port: s.Ports[0], Service: &s.Service}
	*state.For(k.vip(0)) = proxy.Choice{Cluster: []proxy.Target{
		{Addr: netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), Weight: 1, Local: true, Zone: proxy.OtherSitesZone},
	}}
	if err := k.mode.Apply(context.Background(), []proxy.Change{{Name: state.Name, State: state}}); err != nil {
		k.Fatal(err)
	}
	k.current[state.Name] = state // so that it is removed
	for _, c := range []client{k.pod(), k.node()} {
		conn, err := c.open(proxy.TCP, k.at(k.vip(0)), prompt)
		if err != nil {
			k.Fatalf("%s: %v", c.name, err)
		}
		var got string
		_, err = fmt.Fscan(conn, &got)
		_ = conn.Close()
		if want := k.at(k.vip(0)).String(); err != nil || got != want {
			k.Errorf("a connection of the %s to %s: the tunnel learns %q, %v", c.name, want, got, err)
		}
	}
}

// answerOriginal tells each client to which address it connected, as the kernel has it.
func answerOriginal(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		at, err := original(c.(*net.TCPConn))
		if err != nil {
			_, _ = fmt.Fprintf(c, "%q\n", err)
		} else {
			_, _ = fmt.Fprintln(c, at)
		}
		_ = c.Close()
	}
}

// original destination of a connection (SO_ORIGINAL_DST of linux/netfilter_ipv4.h, and the same number for IPv6): a socket address,
// read as structures of the same size or larger.
func original(c *net.TCPConn) (at netip.AddrPort, err error) {
	const soOriginalDst = 80
	raw, err := c.SyscallConn()
	if err != nil {
		return at, err
	}
	var failure error
	err = raw.Control(func(fd uintptr) {
		if c.LocalAddr().(*net.TCPAddr).IP.To4() != nil {
			sa, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, soOriginalDst)
			if failure = err; err == nil {
				b := sa.Multiaddr
				at = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4]))
			}
			return
		}
		sa, err := unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, soOriginalDst)
		if failure = err; err == nil {
			port := binary.NativeEndian.AppendUint16(nil, sa.Addr.Port)
			at = netip.AddrPortFrom(netip.AddrFrom16(sa.Addr.Addr), binary.BigEndian.Uint16(port))
		}
	})
	if err == nil {
		err = failure
	}
	return at, err
}
