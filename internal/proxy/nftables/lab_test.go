//go:build linux

package nftables

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// lab is a node between a network with clients and one with workloads. The
// node routes; the virtual addresses are behind it as clients see it.
type lab struct {
	*testing.T
	client, node, pods *netns.NS
	sim                *sim // in place of the namespaces, where there is no traffic
}

const (
	clientIP, clientIP6 = "192.0.2.2", "2001:db8:1::2"
	nodeIP, nodeIP6     = "192.0.2.1", "2001:db8:1::1"
	podNet, podNet6     = "10.244.0.0/16", "2001:db8:2::/64"
)

func podIP(v6 bool, i int) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:2::%d", 10+i))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.244.0.%d", 10+i))
}

func vipAt(v6 bool, i int) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:96::%x", i+1))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.96.%d.%d", i/250, i%250+1))
}

var serviceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/108")}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{T: t, client: netns.New(t, "pnft-client"), node: netns.New(t, "pnft-node"), pods: netns.New(t, "pnft-pods")}
	for _, ns := range []*netns.NS{l.client, l.node, l.pods} {
		ns.Set("net.ipv6.conf.default.accept_dad", "0") // addresses work at once
	}
	netns.Connect(l.client, l.node, [2]string{clientIP + "/24", nodeIP + "/24"}, [2]string{clientIP6 + "/64", nodeIP6 + "/64"})
	netns.Connect(l.pods, l.node, [2]string{"10.244.0.2/24", "10.244.0.1/24"}, [2]string{"2001:db8:2::2/64", "2001:db8:2::1/64"})
	for i := range 4 {
		l.pods.Addr("to-pnft-node", podIP(false, i).String()+"/24")
		l.pods.Addr("to-pnft-node", podIP(true, i).String()+"/64")
	}
	l.node.Forward()
	for _, ns := range []*netns.NS{l.client, l.pods} {
		via, via6 := nodeIP, nodeIP6
		if ns == l.pods {
			via, via6 = "10.244.0.1", "2001:db8:2::1"
		}
		ns.Route("0.0.0.0/0", via)
		ns.Route("::/0", via6)
	}
	// The node needs a route for unassigned addresses, else its own
	// processes fail before the output hook.
	l.node.Route("0.0.0.0/0", clientIP)
	l.node.Route("::/0", clientIP6)
	l.warm(false)
	return l
}

// warm waits until neighbours know each other. For IPv6 that is a second: the
// kernel reports late that a new link is up.
func (l *lab) warm(v6 bool) {
	l.Helper()
	at := netip.AddrPortFrom(podIP(v6, 0), 1)
	l.serve(proxy.TCP, 0, at)
	for _, from := range []*netns.NS{l.client, l.node} {
		l.eventually("the way to "+at.String(), func() bool {
			who, _, err := ask(l.Context(), from, proxy.TCP, "", at, 100*time.Millisecond)
			return err == nil && who == 0
		})
	}
}

func (l *lab) mode(opts Options) *Mode {
	l.Helper()
	if l.sim != nil {
		opts.open = l.sim.open
	} else {
		opts.Namespace = l.node.Fd()
	}
	if opts.ServiceCIDRs == nil {
		opts.ServiceCIDRs = serviceCIDRs
	}
	if opts.WorkloadCIDRs == nil {
		opts.WorkloadCIDRs = []netip.Prefix{netip.MustParsePrefix(podNet), netip.MustParsePrefix(podNet6)}
	}
	m, err := New(opts)
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = m.Close(context.Background()) })
	return m
}

func (l *lab) apply(m *Mode, changes ...proxy.Change) {
	l.Helper()
	if err := m.Apply(l.Context(), changes); err != nil {
		l.Fatal(err)
	}
}

// serve starts a backend that answers every connection or datagram with its
// number and the address it saw.
func (l *lab) serve(proto proxy.Protocol, i int, at netip.AddrPort) {
	l.Helper()
	if proto == proxy.UDP {
		c, err := l.pods.ListenPacket("udp", at.String())
		if err != nil {
			l.Fatal(err)
		}
		var wg sync.WaitGroup
		l.Cleanup(func() { _ = c.Close(); wg.Wait() })
		wg.Go(func() {
			buf := make([]byte, 1500)
			for {
				_, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(fmt.Appendf(nil, "%d %s\n", i, from), from)
			}
		})
		return
	}
	ln, err := l.pods.Listen("tcp", at.String())
	if err != nil {
		l.Fatal(err)
	}
	var wg sync.WaitGroup
	l.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(c, "%d %s\n", i, c.RemoteAddr())
			_ = c.Close()
		}
	})
}

const (
	refused = -1
	silent  = -2
)

// ask says who answered, and what source it saw.
func (l *lab) ask(from *netns.NS, proto proxy.Protocol, local string, to netip.AddrPort) (who int, saw netip.Addr) {
	l.Helper()
	who, saw, err := ask(l.Context(), from, proto, local, to, time.Second)
	if err != nil {
		l.Errorf("asking %s: %v", to, err)
	}
	return who, saw
}

func ask(ctx context.Context, from *netns.NS, proto proxy.Protocol, local string, to netip.AddrPort, wait time.Duration) (int, netip.Addr, error) {
	var c net.Conn
	network := strings.ToLower(string(proto))
	err := from.Do(func() (err error) {
		d := net.Dialer{Timeout: wait}
		if local != "" {
			if proto == proxy.UDP {
				d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(local)}
			} else {
				d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(local)}
			}
		}
		c, err = d.DialContext(ctx, network, to.String())
		return err
	})
	if err != nil {
		return outcome(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(wait))
	if proto == proxy.UDP {
		if _, err := c.Write([]byte("x")); err != nil {
			return outcome(err)
		}
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return outcome(err)
	}
	var who int
	var saw string
	if _, err := fmt.Sscan(line, &who, &saw); err != nil {
		return 0, netip.Addr{}, err
	}
	return who, netip.MustParseAddrPort(saw).Addr().Unmap(), nil
}

func outcome(err error) (int, netip.Addr, error) {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return refused, netip.Addr{}, nil
	case errors.As(err, &timeout) && timeout.Timeout():
		return silent, netip.Addr{}, nil
	}
	return 0, netip.Addr{}, err
}

func svcName(name string) proxy.PortName {
	return proxy.PortName{ServiceName: proxy.ServiceName{Namespace: "default", Name: name}, Port: "p"}
}

// spec makes a service port's state; edit changes it.
func spec(name string, proto proxy.Protocol, port uint16, vips []netip.Addr, edit func(*proxy.PortState)) proxy.Change {
	n := svcName(name)
	s := &proxy.PortState{
		Name: n, Port: proxy.Port{Name: "p", Protocol: proto, Port: port},
		Service: &proxy.Service{Name: n.ServiceName, ClusterIPs: vips},
	}
	if edit != nil {
		edit(s)
	}
	s.Service.Ports = []proxy.Port{s.Port}
	return proxy.Change{Name: n, State: s}
}

// targets are endpoints on pods, at a port.
func targets(v6 bool, port uint16, pods ...int) []proxy.Target {
	var out []proxy.Target
	for _, i := range pods {
		out = append(out, proxy.Target{Addr: netip.AddrPortFrom(podIP(v6, i), port), Weight: 1})
	}
	return out
}

func gone(name string) proxy.Change { return proxy.Change{Name: svcName(name)} }
