package proxytest

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// whoLeaked answers what leaves the node for a virtual address.
const whoLeaked = "(leaked)"

// catchLeaks makes the other node answer for the ranges of virtual addresses:
// the node's default route leads there, so a packet to one that the mode neither
// translates, refuses nor drops gets an answer that no case wants, and neither
// silence nor a refusal is by chance.
func (n *network) catchLeaks(t *testing.T) {
	t.Helper()
	lo, err := n.remote.Handle().LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []family{ipv4, ipv6} {
		p := netip.MustParsePrefix(f.service)
		route := &netlink.Route{
			LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL,
			Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		}
		if f == ipv4 {
			route.Scope = netlink.SCOPE_HOST
		}
		if err := n.remote.Handle().RouteAdd(route); err != nil {
			t.Fatalf("route to catch leaks to %s: %v", p, err)
		}
		for _, port := range []string{"80", "81"} {
			n.leaksAt(t, f, port)
		}
	}
}

func (n *network) leaksAt(t *testing.T, f family, port string) {
	t.Helper()
	digit := map[family]string{ipv4: "4", ipv6: "6"}[f]
	ln, err := n.remote.Listen("tcp"+digit, ":"+port)
	if err != nil {
		t.Fatal(err)
	}
	pc, err := n.remote.ListenPacket("udp"+digit, ":"+port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = ln.Close(), pc.Close() })
	if err := tellDestination(pc.(*net.UDPConn), f); err != nil {
		t.Fatal(err)
	}
	leak := &backendPod{name: whoLeaked}
	go leak.serveStreams(ln, 0)
	go leak.serveAnywhere(pc.(*net.UDPConn))
}

// tellDestination makes the kernel say to which address a datagram was sent, and
// lets answers leave from addresses that are only routed here.
func tellDestination(c *net.UDPConn, f family) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		if f == ipv4 {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
			return
		}
		set = errors.Join(
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1),
			os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)))
	})
	return errors.Join(err, set)
}

// serveAnywhere answers from the address that was asked: the kernel's message
// about it, sent back, says so (ip(7), ipv6(7)).
func (b *backendPod) serveAnywhere(c *net.UDPConn) {
	buf, about := make([]byte, 2048), make([]byte, 256)
	for {
		_, size, _, from, err := c.ReadMsgUDP(buf, about)
		if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EBADF) {
			return
		}
		if err == nil {
			_, _, _ = c.WriteMsgUDP(b.hello(0, from), about[:size], from)
		}
	}
}
