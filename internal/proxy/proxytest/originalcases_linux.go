package proxytest

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	core "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// originalCases: programs that connections are led to have to know the address that was asked for.
var originalCases = []kernelCase{
	{name: "the tunnel to other sites learns the address that was asked for", needs: []Feature{OriginalDestination}, run: tunnelLearns},
	{name: "a sidecar learns the address that was asked for", run: sidecarLearns},
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
	k.learns(k.pod())
	k.learns(k.node())
}

// learns the address of the case's first service, and tells its client: who gets the client's connection to it.
func (k *kernel) learns(c client) {
	k.Helper()
	conn, err := c.open(proxy.TCP, k.at(k.vip(0)), prompt)
	if err != nil {
		k.Fatalf("%s: %v", c.name, err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(prompt))
	var got string
	_, err = fmt.Fscan(conn, &got)
	if want := k.at(k.vip(0)).String(); err != nil || got != want {
		k.Errorf("a connection of the %s to %s: who gets it learns %q, %v", c.name, want, got, err)
	}
}

// exempting is a mode that translates at sockets, unless those of a network namespace are exempt.
type exempting interface {
	ExemptNetworks(cookies map[uint64]struct{})
}

// sidecarLearns: the connections of a pod are redirected to a program in its network namespace.
func sidecarLearns(k *kernel) {
	network := "tcp4"
	if k.family == ipv6 {
		network = "tcp6"
	}
	ln, err := k.net.pod.Listen(network, ":0")
	if err != nil {
		k.Fatal(err)
	}
	k.Cleanup(func() { _ = ln.Close() })
	go answerOriginal(ln)
	k.net.pod.Run("nft", "add table inet sidecar; add chain inet sidecar output { type nat hook output priority -100; };"+
		fmt.Sprintf("add rule inet sidecar output ip daddr %s tcp dport 80 redirect to :%d;", ipv4.service, ln.Addr().(*net.TCPAddr).Port)+
		fmt.Sprintf("add rule inet sidecar output ip6 daddr %s tcp dport 80 redirect to :%d", ipv6.service, ln.Addr().(*net.TCPAddr).Port))
	k.Cleanup(func() { k.net.pod.Run("nft", "delete table inet sidecar") })
	if mode, ok := k.mode.(exempting); ok {
		var cookie uint64
		if err := k.net.pod.Do(func() (err error) { cookie, err = core.Cookie(); return err }); err != nil {
			k.Skip(err)
		}
		mode.ExemptNetworks(map[uint64]struct{}{cookie: {}})
		k.Cleanup(func() { mode.ExemptNetworks(nil) })
	}
	k.apply(k.svc(0, k.all(local1, remote1)...))
	k.learns(k.pod())
	k.reaches(k.node(), proxy.TCP, k.at(k.vip(0)), local1, remote1) // others are served as ever
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
