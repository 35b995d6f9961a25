package conntrack_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a namespace with two addresses, in which a packet filter that only
// watches makes the kernel track flows, and rules that translate some.
func world(t *testing.T, rules ...string) (*netns.NS, *conntrack.Table) {
	t.Helper()
	ns := netns.New(t, "pipt-ct")
	for _, a := range []string{"10.7.0.1/32", "10.7.0.2/32", "fd07::1/128", "fd07::2/128"} {
		ns.Addr("lo", a)
	}
	for _, r := range append([]string{
		"iptables-legacy -t filter -A OUTPUT -m conntrack --ctstate NEW",
		"ip6tables-legacy -t filter -A OUTPUT -m conntrack --ctstate NEW",
	}, rules...) {
		f := strings.Fields(r)
		ns.Run(f[0], append([]string{"-w"}, f[1:]...)...)
	}
	var table *conntrack.Table
	if err := ns.Do(func() (err error) { table, err = conntrack.Open(0); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Close() })
	return ns, table
}

// say sends one datagram.
func say(t *testing.T, ns *netns.NS, to string) {
	t.Helper()
	if _, err := ns.Dial("udp", to).Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
}

func listen(t *testing.T, ns *netns.NS, at string) net.PacketConn {
	t.Helper()
	c, err := ns.ListenPacket("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func prune(t *testing.T, table *conntrack.Table, keep conntrack.Keep) int {
	t.Helper()
	n, err := table.Prune(keep)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func frontend(addr string) conntrack.Frontend {
	return conntrack.Frontend{Protocol: proxy.UDP, Addr: netip.MustParseAddrPort(addr)}
}

func TestPrune(t *testing.T) {
	for _, family := range []struct{ ipt, vip, a, b, any string }{
		{"iptables-legacy", "10.96.0.1", "10.7.0.1", "10.7.0.2", "0.0.0.0"},
		{"ip6tables-legacy", "[fd96::1]", "[fd07::1]", "[fd07::2]", "[::]"},
	} {
		t.Run(family.any, func(t *testing.T) {
			rule := family.ipt + " -t nat -A OUTPUT -p udp -d %s --dport %d -j DNAT --to-destination " + family.a + ":53"
			bare := strings.Trim(family.vip, "[]")
			ns, table := world(t, fmt.Sprintf(rule, bare, 53), fmt.Sprintf(rule, strings.Trim(family.b, "[]"), 30053))
			ns.Addr("lo", bare+map[bool]string{true: "/32", false: "/128"}[family.any == "0.0.0.0"])
			listen(t, ns, family.a+":53")
			good, gone := netip.MustParseAddrPort(family.a+":53"), netip.MustParseAddrPort(family.b+":53")
			for range 3 {
				say(t, ns, family.vip+":53")
			}
			say(t, ns, family.b+":30053") // a node port
			say(t, ns, family.b+":5353")  // of no frontend

			if n := prune(t, table, conntrack.Keep{frontend(family.vip + ":53"): {good}, frontend(family.any + ":30053"): {good, gone}}); n != 0 {
				t.Errorf("%d flows at their right endpoint were ended", n)
			}
			if n := prune(t, table, conntrack.Keep{frontend(family.vip + ":54"): nil, frontend(family.any + ":54"): nil}); n != 0 {
				t.Errorf("%d flows of other fronts were ended", n)
			}
			if n := prune(t, table, conntrack.Keep{{Protocol: proxy.TCP, Addr: netip.MustParseAddrPort(family.vip + ":53")}: nil}); n != 0 {
				t.Errorf("%d flows of another protocol were ended", n)
			}
			if n := prune(t, table, conntrack.Keep{frontend(family.vip + ":53"): {gone}}); n != 3 {
				t.Errorf("%d flows to a gone endpoint were ended, want 3", n)
			}
			if n := prune(t, table, conntrack.Keep{frontend(family.any + ":30053"): nil}); n != 1 {
				t.Errorf("%d flows to a node port were ended, want 1", n)
			}
			if n := prune(t, table, conntrack.Keep{frontend(family.b + ":5353"): nil}); n != 1 {
				t.Errorf("%d flows that were never translated were ended, want 1", n)
			}
		})
	}
}

// A node port is one of this machine's addresses, not the same number elsewhere.
func TestForeignPortOfTheSameNumber(t *testing.T) {
	ns, table := world(t)
	ns.Run("ip", "route", "add", "local", "10.8.0.0/16", "dev", "lo")
	say(t, ns, "10.8.0.1:30053")
	if n := prune(t, table, conntrack.Keep{frontend("0.0.0.0:30053"): nil}); n != 0 {
		t.Errorf("%d flows of another machine's port were ended", n)
	}
}

func TestManyFlowsInOnePass(t *testing.T) {
	ns, table := world(t)
	listen(t, ns, "10.7.0.1:53")
	keep := conntrack.Keep{}
	c := listen(t, ns, "10.7.0.2:0")
	for i := range 2000 {
		to := netip.AddrPortFrom(netip.MustParseAddr("10.7.0.1"), uint16(1000+i))
		_, _ = c.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(to)) // may return an earlier datagram's refusal
		keep.Add(conntrack.Frontend{Protocol: proxy.UDP, Addr: to})
	}
	if n := prune(t, table, keep); n < 1990 {
		t.Errorf("%d flows were ended, want about 2000", n)
	}
	if n := prune(t, table, keep); n != 0 {
		t.Errorf("%d flows were left", n)
	}
}
