// Package netns gives tests network namespaces that go with them. It is
// internal/kernel/netns, where everything else of a namespace is found, with tests'
// manners: it skips, fails and cleans up.
//
// Enter at [New]. Nothing outlives the test's process, even if that is killed:
// the namespaces have no name, so the kernel removes them, and the links in
// them, with the last descriptor.
package netns

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
)

// NS is a namespace of a test. Do, DialContext, Listen, SetSysctl and the rest
// come from internal/kernel/netns; they return errors, and may be used in goroutines.
type NS struct {
	*netns.NS
	t testing.TB
}

// Available returns the reason why a test can't create namespaces here; empty: it can.
func Available() string {
	if err := netns.Available(); err != nil {
		return err.Error()
	}
	return ""
}

// New makes a namespace with its loopback up and no way out. The test is skipped
// where there can be none. It is gone with the test, with the processes in it.
func New(t testing.TB, name string) *NS {
	t.Helper()
	if why := Available(); why != "" {
		t.Skip(why)
	}
	n, err := netns.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The test's context is over at this point.
		if err := n.Kill(context.Background()); err != nil {
			t.Error(err)
		}
		if err := n.Close(); err != nil {
			t.Errorf("close network namespace %s: %v", name, err)
		}
	})
	return &NS{NS: n, t: t}
}

// Connect two namespaces by a pair of links named like the peer. Addresses come in
// pairs: a's and b's of one network, as in "192.0.2.1/24".
func Connect(a, b *NS, addrs ...[2]string) {
	a.t.Helper()
	ends := [2]netns.End{{NS: a.NS, Link: linkName(b)}, {NS: b.NS, Link: linkName(a)}}
	for _, pair := range addrs {
		for i := range ends {
			p, err := netip.ParsePrefix(pair[i])
			if err != nil {
				a.t.Fatal(err)
			}
			ends[i].Addrs = append(ends[i].Addrs, p)
		}
	}
	if err := netns.Connect(ends[0], ends[1]); err != nil {
		a.t.Fatal(err)
	}
}

// linkName fits into IFNAMSIZ.
func linkName(peer *NS) string { return "to-" + peer.Name()[:min(len(peer.Name()), 12)] }

// Route sends a range to a neighbour, as in Route("10.0.0.0/8", "192.0.2.2").
func (n *NS) Route(to, via string) {
	n.t.Helper()
	p, err := netip.ParsePrefix(to)
	if err != nil {
		n.t.Fatal(err)
	}
	gw, err := netip.ParseAddr(via)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.AddRoute(p, gw); err != nil {
		n.t.Fatal(err)
	}
}

// Addr gives a link an address, as in Addr("lo", "192.0.2.1/32").
func (n *NS) Addr(link, prefix string) {
	n.t.Helper()
	p, err := netip.ParsePrefix(prefix)
	if err == nil {
		err = n.AddAddr(link, p)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// Set a kernel parameter, as in Set("net.ipv4.ip_forward", "1").
func (n *NS) Set(name, value string) {
	n.t.Helper()
	if err := n.SetSysctl(name, value); err != nil {
		n.t.Fatal(err)
	}
}

// Forward makes the namespace a router for both families.
func (n *NS) Forward() {
	n.t.Helper()
	n.Set("net.ipv4.ip_forward", "1")
	n.Set("net.ipv6.conf.all.forwarding", "1")
}

// Run a command to its end and return what it printed. A failure fails the test.
func (n *NS) Run(name string, args ...string) string {
	n.t.Helper()
	cmd := exec.CommandContext(n.t.Context(), name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := n.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		n.t.Fatalf("%v in %s: %v\n%s", cmd.Args, n.Name(), err, out.Bytes())
	}
	return out.String()
}

// Dial within the test's time; the connection is closed with the test.
func (n *NS) Dial(network, address string) net.Conn {
	n.t.Helper()
	c, err := n.DialContext(n.t.Context(), network, address)
	if err != nil {
		n.t.Fatalf("in %s: %v", n.Name(), err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	return c
}

// String is the name and how a person gets in while the test runs.
func (n *NS) String() string {
	return fmt.Sprintf("%s (nsenter --net=/proc/PID/fd/%d)", n.Name(), n.Fd())
}
