package userspace_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/userspace"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// An endpoint at an address where the mode listens itself leads every connection
// back, each of which makes the next, until no descriptor is left.
func TestOwnSocketsAreNotDialed(t *testing.T) {
	a, b := netip.MustParseAddrPort("127.96.251.1:8080"), netip.MustParseAddrPort("127.96.251.2:8080")
	external := change("external", netip.MustParseAddrPort("127.96.251.4:8080"), a)
	external.State.Service.ExternalIPs = []netip.Addr{netip.MustParseAddr("127.96.251.3")}
	port := uint16(testkit.FreePort(t))
	nodePort := change("node-port", a, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port))
	nodePort.State.Port.NodePort = port
	for name, tc := range map[string]struct {
		changes []proxy.Change
	}{
		"itself":      {[]proxy.Change{change("a", a, a)}},
		"each other":  {[]proxy.Change{change("a", a, b), change("b", b, a)}},
		"an external": {[]proxy.Change{change("a", a, netip.MustParseAddrPort("127.96.251.3:8080")), external}},
		"a node port": {[]proxy.Change{nodePort}},
	} {
		for _, protocol := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
			for mode, with := range map[string]func(userspace.Options) userspace.Options{
				"": func(o userspace.Options) userspace.Options { return o }, " portable": userspace.Portable,
			} {
				t.Run(name+" "+string(protocol)+mode, func(t *testing.T) {
					m := newMode(t, with(userspace.Options{MaxConnections: 64}))
					defer closeNow(t, m)
					for i := range tc.changes {
						state := *tc.changes[i].State
						state.Port.Protocol = protocol
						tc.changes[i].State = &state
					}
					if err := m.Apply(t.Context(), tc.changes); err != nil {
						t.Fatal(err)
					}
					ask(t, protocol, a)
					var connections, failures uint64
					for _, c := range m.Counts() {
						connections += c.Connections
						failures += c.Failures
					}
					if connections > 1 || failures == 0 {
						t.Errorf("one client became %d connections, %d of which failed", connections, failures)
					}
				})
			}
		}
	}
}

// ask sends something, and waits until a connection has ended. Nothing answers a
// datagram, so what happens after it is waited for.
func ask(t *testing.T, protocol proxy.Protocol, to netip.AddrPort) {
	t.Helper()
	network := "tcp"
	if protocol == proxy.UDP {
		network = "udp"
	}
	c, err := net.Dial(network, to.String())
	if errors.Is(err, syscall.ECONNRESET) {
		return // turned away at once
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = c.Write([]byte("hello"))
	wait := 10 * time.Second
	if protocol == proxy.UDP {
		wait = 200 * time.Millisecond
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	n, err := io.Copy(io.Discard, c)
	if n > 0 || protocol == proxy.TCP && errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes came back, and the client was not turned away: %v", n, err)
	}
}
