package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

const (
	// measureFor so long, at least leastRounds of roundOf connections in either way. A round is short, so that
	// what else the machine does meets both ways alike.
	measureFor  = 30 * time.Millisecond
	leastRounds = 3
	roundOf     = 50
)

// Addresses of the self-test, of TEST-NET-1 (RFC 5737). On a loopback interface all addresses of a prefix are local.
var (
	testRange    = netip.MustParsePrefix("192.0.2.1/24")
	testEndpoint = testRange.Addr()
	testVIP      = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), 80)
)

// Measure compares short connections to a virtual address through a mode and through the layer above it, for about 0.1 s. The
// process has to be in a network namespace of its own, without anything in it, and in the cgroup dir: addresses and rules stay there.
// The mode is closed.
func Measure(ctx context.Context, dir string, below proxy.Mode) (e Estimate, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m, err := New(Options{Cgroup: dir, noPins: true}, below)
	if err != nil {
		return e, errors.Join(err, below.Close(ctx))
	}
	defer func() { err = errors.Join(err, m.Close(ctx)) }()
	server, at, err := measured()
	if err != nil {
		return e, err
	}
	defer func() { _ = unix.Close(server) }()
	name := proxy.ServiceName{Namespace: "proxima", Name: "self-test"}
	port := proxy.Port{Name: "p", Protocol: proxy.TCP, Port: testVIP.Port()}
	s := &proxy.PortState{
		Name: proxy.PortName{ServiceName: name, Port: port.Name}, Port: port,
		Service: &proxy.Service{Name: name, ClusterIPs: []netip.Addr{testVIP.Addr()}, Ports: []proxy.Port{port}},
		IPv4:    proxy.Choice{Cluster: []proxy.Target{{Addr: at, Weight: 1}}},
	}
	if err := m.Apply(ctx, []proxy.Change{{Name: s.Name, State: s}}); err != nil {
		return e, fmt.Errorf("mode %s: %w", below.Name(), err)
	}
	m.mu.Lock() // nobody repairs meanwhile
	defer m.mu.Unlock()
	if m.passing != nil {
		return e, m.passing
	}
	e.Below = below.Name()
	var with, without []time.Duration
	for end := time.Now().Add(measureFor); len(with) < leastRounds*roundOf || time.Now().Before(end); {
		if err := m.links.set(m.gen.programs()); err != nil {
			return e, err
		}
		if err := shortConnections(server, at, &with); err != nil {
			return e, err
		}
		m.links.detach()
		if err := shortConnections(server, testVIP, &without); err != nil {
			return e, err
		}
		if ctx.Err() != nil {
			return e, ctx.Err()
		}
	}
	e.With, e.Without, e.Connections = median(with), median(without), len(with)
	return e, nil
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// measured is a socket that listens on the endpoint's address.
func measured() (server int, at netip.AddrPort, err error) {
	here, err := netns.Current()
	if err != nil {
		return 0, at, err
	}
	defer func() { _ = here.Close() }()
	if err := here.SetLinkUp("lo", true); err != nil {
		return 0, at, err
	}
	if err := here.AddAddr("lo", testRange); err != nil {
		return 0, at, err
	}
	server, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, at, err
	}
	if err := errors.Join(unix.Bind(server, &unix.SockaddrInet4{Addr: testEndpoint.As4()}), unix.Listen(server, 8)); err != nil {
		return 0, at, errors.Join(err, unix.Close(server))
	}
	own, err := unix.Getsockname(server)
	if err != nil {
		return 0, at, errors.Join(err, unix.Close(server))
	}
	return server, netip.AddrPortFrom(testEndpoint, uint16(own.(*unix.SockaddrInet4).Port)), nil
}

// shortConnections makes a round of them to the virtual address, and notes how long each took. peer is the address that they
// are to have at their other end: the virtual one, unless the layer translates.
func shortConnections(server int, peer netip.AddrPort, took *[]time.Duration) error {
	for i := range roundOf {
		begin := time.Now()
		at, err := shortConnection(server, i == 0)
		if err != nil {
			return fmt.Errorf("a connection to %s: %w", testVIP, err)
		}
		if i > 0 {
			*took = append(*took, time.Since(begin))
		} else if at != peer { // the first one also warms up
			return fmt.Errorf("a connection to %s is with %s, want %s", testVIP, at, peer)
		}
	}
	return nil
}

// patience of a connection within this machine, which takes microseconds.
const patience = 1 // s

// shortConnection asks and answers with both ends in this thread: the kernel delivers to its own machine at once, so that no
// other thread has to be woken, which takes longer than what is compared.
func shortConnection(server int, ask bool) (peer netip.AddrPort, err error) {
	client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return peer, err
	}
	defer func() { _ = unix.Close(client) }()
	if ask {
		if err := unix.SetsockoptTimeval(client, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: patience}); err != nil {
			return peer, err
		}
	}
	if err := unix.Connect(client, &unix.SockaddrInet4{Addr: testVIP.Addr().As4(), Port: int(testVIP.Port())}); err != nil {
		return peer, err
	}
	accepted, _, err := unix.Accept4(server, unix.SOCK_CLOEXEC)
	if err != nil {
		return peer, err
	}
	defer func() { _ = unix.Close(accepted) }()
	var b [1]byte
	for _, way := range [][2]int{{client, accepted}, {accepted, client}} {
		if _, err := unix.Write(way[0], b[:]); err != nil {
			return peer, err
		}
		if _, err := unix.Read(way[1], b[:]); err != nil {
			return peer, err
		}
	}
	if !ask {
		return peer, nil
	}
	at, err := unix.Getpeername(client)
	if err != nil {
		return peer, err
	}
	of := at.(*unix.SockaddrInet4)
	return netip.AddrPortFrom(netip.AddrFrom4(of.Addr), uint16(of.Port)), nil
}
