//go:build linux

package nftables

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// full is a table with everything in it: affinity, source ranges, weights, every
// policy and protocol.
func full(v6 bool) []proxy.Change {
	vip := func(i int) []netip.Addr { return []netip.Addr{vipAt(v6, i)} }
	lb, ext := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2")
	ranges := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.7/32")}
	if v6 {
		lb, ext = netip.MustParseAddr("2001:db8:3::1"), netip.MustParseAddr("2001:db8:3::2")
		ranges = []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/64"), netip.MustParsePrefix("2001:db8:9::/48")}
	}
	three := targets(v6, 8080, 0, 1, 2)
	local := []proxy.Target{{Addr: three[0].Addr, Weight: 1, Local: true}}
	return []proxy.Change{
		spec("plain", proxy.TCP, 80, vip(0), func(s *proxy.PortState) { s.For(vip(0)[0]).Cluster = three }),
		spec("sticky", proxy.TCP, 80, vip(1), func(s *proxy.PortState) {
			s.For(vip(1)[0]).Cluster = three
			s.Service.AffinityTimeout = 3 * time.Hour
			s.Service.ExternalIPs = []netip.Addr{ext}
		}),
		spec("hashed", proxy.TCP, 80, vip(9), func(s *proxy.PortState) {
			s.SourceHash = true
			s.For(vip(9)[0]).Cluster = three
		}),
		spec("hashed-sticky", proxy.TCP, 81, vip(9), func(s *proxy.PortState) {
			s.SourceHash, s.Service.AffinityTimeout = true, time.Hour
			s.For(vip(9)[0]).Cluster = three
		}),
		spec("weighted", proxy.UDP, 53, vip(2), func(s *proxy.PortState) {
			s.For(vip(2)[0]).Cluster = []proxy.Target{
				{Addr: three[0].Addr, Weight: 1}, {Addr: three[1].Addr, Weight: 3}, {Addr: three[2].Addr, Weight: 6},
			}
		}),
		spec("ranges", proxy.TCP, 443, vip(3), func(s *proxy.PortState) {
			*s.For(vip(3)[0]) = proxy.Choice{Cluster: three, Local: local}
			s.Service.LoadBalancerIPs, s.Service.SourceRanges = []netip.Addr{lb}, ranges
			s.Service.ExternalLocal = true
			s.Port.NodePort = 30443
		}),
		spec("none", proxy.SCTP, 9, vip(4), func(s *proxy.PortState) { s.For(vip(4)[0]).NoCluster = proxy.Reject }),
		spec("silent", proxy.TCP, 80, vip(5), func(s *proxy.PortState) {
			s.Service.InternalLocal = true
			s.For(vip(5)[0]).NoLocal = proxy.Drop
		}),
	}
}

// TestNftLists: what we write must not crash nft or be lost on people, and can
// be loaded again where nft's print has the whole of it.
func TestNftLists(t *testing.T) {
	l := newLab(t)
	l.warm(true)
	m := l.mode(Options{})
	for i := range 3 {
		l.serve(proxy.TCP, i, netip.AddrPortFrom(podIP(false, i), 8080))
		l.serve(proxy.TCP, i, netip.AddrPortFrom(podIP(true, i), 8080))
	}
	apart := proxy.Isolation{
		Reset: true, Active: true, Node: proxy.Source{Mesh: "blue"},
		Sources: map[netip.Addr]proxy.Source{
			netip.MustParseAddr("10.9.0.1"): {Mesh: "blue", Closed: true}, netip.MustParseAddr("fd09::1"): {Mesh: "green"},
		},
		Reach: map[proxy.Reach]bool{{Mesh: "blue", Addr: netip.MustParseAddr("10.9.0.2")}: true},
	}
	if err := m.Isolate(apart); err != nil {
		t.Fatal(err)
	}
	l.apply(m, append(full(false), rename(full(true), "6")...)...)
	for _, v6 := range []bool{false, true} { // affinity has elements
		if who, _ := l.ask(l.client, proxy.TCP, "", netip.AddrPortFrom(vipAt(v6, 1), 80)); who < 0 {
			t.Fatalf("sticky service (IPv6: %v) answered %d", v6, who)
		}
	}
	text := l.node.Run("nft", "list", "ruleset")
	for _, want := range []string{
		"pick-outside-cluster-3-10800s", "update @aff", "@src24", "@src32", "masquerade fully-random",
		`comment "default/weighted:p"`, "10.96.0.1 . tcp . 80 : ", "table ip6 proxima", "numgen random mod 128",
		"pick-outside-cluster-1021-hash", "pick-outside-cluster-1021-3600s-hash", "jhash ip6 saddr mod 1021 seed 0x70726f78",
		"jump meshes", "ip saddr map @mesh-of", "@mesh-vip", "ip daddr @mesh-shared", "jump meshes-closed", "@mesh-reach", "fib daddr type != unicast",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("nft's list lacks %q:\n%s", want, text)
		}
	}
	var parsed any
	out := l.node.Run("nft", "-j", "list", "ruleset")
	out = out[strings.Index(out, "{"):] // nft 1.0.6 warns first that it has no JSON for map updates
	if err := json.Unmarshal([]byte(out), &parsed); err != nil {
		t.Errorf("nft's JSON: %v", err)
	}
	for _, chain := range []string{"dispatch", "ranges", "pick-outside-cluster-3-10800s"} {
		l.node.Run("nft", "list", "chain", "ip6", "proxima", chain)
	}
	// The print loads, and prints the same again.
	file := filepath.Join(t.TempDir(), "ruleset")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l.stop(m)
	before := withoutAges(l.node.Run("nft", "-s", "list", "ruleset"))
	l.node.Run("nft", "flush", "ruleset")
	l.node.Run("nft", "-f", file)
	if diff := cmp.Diff(lines(before), lines(withoutAges(l.node.Run("nft", "-s", "list", "ruleset")))); diff != "" {
		t.Errorf("reloaded table differs (-ours +reloaded):\n%s", diff)
	}
	// nft writes the clearing of the carrier before its use: the mode must see
	// that a reloaded table is not ours, and mend it.
	m = l.mode(Options{})
	if err := m.Isolate(apart); err != nil {
		t.Fatal(err)
	}
	l.apply(m, append(full(false), rename(full(true), "6")...)...)
	if who, _ := l.ask(l.client, proxy.TCP, "", netip.AddrPortFrom(vipAt(false, 0), 80)); who < 0 {
		t.Errorf("after taking over a reloaded table: %d", who)
	}
	l.whole(m)
}

func rename(changes []proxy.Change, suffix string) []proxy.Change {
	for i := range changes {
		changes[i].Name.Name += suffix
		changes[i].State.Name = changes[i].Name
		changes[i].State.Service.Name.Name += suffix
	}
	return changes
}

func lines(s string) []string {
	out := strings.Split(s, "\n")
	slices.Sort(out) // chains come in any order
	return out
}

// withoutAges takes what moves by itself out of a print.
func withoutAges(s string) string {
	var out []string
	for _, line := range strings.Split(s, "\n") {
		if i := strings.Index(line, " expires "); i >= 0 {
			line = line[:i]
		}
		out = append(out, strings.TrimSpace(line))
	}
	return strings.Join(out, "\n")
}

// whole fails unless the kernel has what is wanted.
func (l *lab) whole(m *Mode) {
	l.Helper()
	d, err := m.Dump(context.Background())
	if err != nil {
		l.Fatal(err)
	}
	if len(d.Missing)+len(d.Foreign) > 0 {
		l.Errorf("missing in the kernel: %v\nforeign: %v", d.Missing, d.Foreign)
	}
}

// stop is the end of an agent.
func (l *lab) stop(m *Mode) {
	l.Helper()
	if err := m.Close(context.Background()); err != nil {
		l.Fatal(err)
	}
}

// counting counts transactions.
type counting struct {
	kernel
	commits int
}

func (c *counting) Commit(b *nfnl.Batch) error {
	c.commits++
	return c.kernel.Commit(b)
}

func TestRestartWritesOnlyTheDifference(t *testing.T) {
	l := newLab(t)
	all := append(full(false), rename(full(true), "6")...)
	// A history gives numbers, slots and ids that no fresh start would.
	first := l.mode(Options{})
	for _, c := range slices.Backward(all) {
		old := *c.State
		for _, choice := range []*proxy.Choice{&old.IPv4, &old.IPv6} {
			choice.Cluster = slices.Clone(choice.Cluster)
			for i := range choice.Cluster {
				choice.Cluster[i].Addr = netip.AddrPortFrom(choice.Cluster[(i+1)%len(choice.Cluster)].Addr.Addr(), uint16(9000+i))
			}
			if n := len(choice.Cluster); n > 0 {
				choice.Cluster[n-1].Addr = c.State.For(c.State.Service.ClusterIPs[0]).Cluster[0].Addr
			}
		}
		l.apply(first, proxy.Change{Name: c.Name, State: &old})
		l.apply(first, c)
	}
	l.stop(first)
	k := &counting{}
	opts := Options{wrap: func(real kernel) kernel { k.kernel = real; return k }}

	m := l.mode(opts)
	l.apply(m, all...)
	if k.commits != 0 {
		t.Errorf("%d transactions though nothing changed", k.commits)
	}
	l.whole(m)
	l.stop(m)
	// Another process, another time: things have changed.
	m = l.mode(opts)
	l.apply(m, all[1:]...)
	if k.commits != 1 {
		t.Errorf("%d transactions for a difference, want 1", k.commits)
	}
	l.whole(m)
	if out := l.node.Run("nft", "list", "table", "ip", "proxima"); strings.Contains(out, "default/plain:p") {
		t.Errorf("the service that was removed while no mode ran is still there:\n%s", out)
	}
	l.stop(m)
	// Other definitions than ours, as of another version: the table is made again.
	l.node.Run("nft", "delete", "table", "ip", "proxima")
	l.node.Run("nft", "add table ip proxima; add set ip proxima vip { type ipv4_addr; }; add chain ip proxima old; add rule ip proxima old drop")
	m = l.mode(opts)
	l.apply(m, all...)
	l.whole(m)
}

func TestCleanup(t *testing.T) {
	l := newLab(t)
	l.node.Run("nft", "add table ip other")
	m := l.mode(Options{})
	l.apply(m, full(false)...)
	l.stop(m)
	for range 2 {
		if err := Cleanup(t.Context(), Options{Namespace: l.node.Fd()}); err != nil {
			t.Fatal(err)
		}
	}
	if got := l.node.Run("nft", "list", "tables"); strings.TrimSpace(got) != "table ip other" {
		t.Errorf("left after Cleanup: %s", got)
	}
}

// timeout bounds hangs; nothing is measured by it.
const timeout = 30 * time.Second

func TestDriftIsRepaired(t *testing.T) {
	l := newLab(t)
	m := l.mode(Options{})
	l.apply(m, append(full(false), rename(full(true), "6")...)...)
	for _, tamper := range []string{
		"flush ruleset",
		"delete table ip6 proxima",
		"flush chain ip proxima dispatch",
		"flush map ip proxima vip",
		"delete element ip proxima vip { 10.96.0.1 . tcp . 80 }",
		"delete element ip proxima demand { 1:0 }",
		"insert rule ip proxima nat-prerouting return",
		"add element ip6 proxima clusterips { 2001:db8::1 }",
		"add chain ip proxima foreign; add rule ip proxima foreign drop; add rule ip proxima dispatch jump foreign",
		"add set ip proxima foreign { type ipv4_addr; elements = { 192.0.2.77 } }",
		"add table ip proxima { flags dormant; }",
		"delete table ip proxima; add table ip proxima; add chain ip proxima nat-prerouting { type nat hook prerouting priority 50; }",
	} {
		l.node.Run("nft", tamper)
		start := time.Now()
		for !l.isWhole(m) {
			if time.Since(start) > timeout { // the promise is 1 s, which is for a quiet machine to keep
				t.Errorf("not repaired within %s: %s", timeout, tamper)
				l.whole(m)
				break
			}
			time.Sleep(time.Millisecond)
		}
		t.Logf("repaired after %s: %s", time.Since(start).Round(time.Millisecond), tamper)
	}
	if got := l.node.Run("nft", "list", "table", "ip", "proxima"); strings.Contains(got, "priority 50") || !strings.Contains(got, "hook prerouting priority dstnat") {
		t.Errorf("a hook at another place is not ours:\n%s", got)
	}
}

// isWhole looks with nft's eyes, not through the mode, which would repair.
func (l *lab) isWhole(*Mode) bool {
	k := &refusing{}
	other, err := New(Options{
		Namespace: l.node.Fd(), ServiceCIDRs: serviceCIDRs, WorkloadCIDRs: []netip.Prefix{netip.MustParsePrefix(podNet), netip.MustParsePrefix(podNet6)},
		wrap: func(real kernel) kernel { k.kernel = real; return k },
	})
	if err != nil {
		l.Fatal(err)
	}
	defer func() { _ = other.Close(context.Background()) }()
	err = other.Apply(context.Background(), append(full(false), rename(full(true), "6")...))
	return err == nil && !k.asked
}

// refusing takes no transaction.
type refusing struct {
	kernel
	asked bool
}

func (r *refusing) Commit(*nfnl.Batch) error {
	r.asked = true
	return errors.New("refused")
}

func TestNodePortsFollowAddresses(t *testing.T) {
	l := newLab(t)
	l.serve(proxy.TCP, 0, netip.AddrPortFrom(podIP(false, 0), 8080))
	m := l.mode(Options{})
	l.apply(m, spec("a", proxy.TCP, 80, []netip.Addr{vipAt(false, 0)}, func(s *proxy.PortState) {
		s.IPv4.Cluster = targets(false, 8080, 0)
		s.Port.NodePort = 30080
	}))
	added := netip.MustParseAddrPort("192.0.2.99:30080")
	l.node.Addr("to-pnft-client", "192.0.2.99/24")
	l.eventually("node port on a new address", func() bool {
		who, _ := l.ask(l.client, proxy.TCP, "", added)
		return who == 0
	})
	if err := l.node.DeleteAddr("to-pnft-client", netip.MustParsePrefix("192.0.2.99/24")); err != nil {
		t.Fatal(err)
	}
	l.eventually("node port gone with its address", func() bool {
		return !strings.Contains(l.node.Run("nft", "list", "map", "ip", "proxima", "vip"), "192.0.2.99")
	})
	l.whole(m)
}

// TestNodePortsOnPrimaryAddresses: on these alone, also after they changed; while none is known,
// on all.
func TestNodePortsOnPrimaryAddresses(t *testing.T) {
	l := newLab(t)
	var primary atomic.Pointer[[]netip.Addr]
	primary.Store(&[]netip.Addr{})
	m := l.mode(Options{PrimaryAddresses: func() []netip.Addr { return *primary.Load() }})
	l.apply(m, spec("a", proxy.TCP, 80, []netip.Addr{vipAt(false, 0)}, func(s *proxy.PortState) {
		s.IPv4.Cluster = targets(false, 8080, 0)
		s.Port.NodePort = 30080
	}))
	served := func(want ...string) {
		t.Helper()
		l.eventually("node ports on "+strings.Join(want, ", "), func() bool {
			vips := l.node.Run("nft", "list", "map", "ip", "proxima", "vip")
			for _, a := range []string{"192.0.2.98", "192.0.2.99"} {
				if strings.Contains(vips, a) != slices.Contains(want, a) {
					return false
				}
			}
			return true
		})
	}
	l.node.Addr("to-pnft-client", "192.0.2.98/24")
	l.node.Addr("to-pnft-client", "192.0.2.99/24")
	served("192.0.2.98", "192.0.2.99")
	primary.Store(&[]netip.Addr{netip.MustParseAddr("192.0.2.99")})
	l.node.Addr("to-pnft-client", "192.0.2.97/24") // a notification
	served("192.0.2.99")
	primary.Store(&[]netip.Addr{netip.MustParseAddr("192.0.2.98")})
	if err := l.node.DeleteAddr("to-pnft-client", netip.MustParsePrefix("192.0.2.99/24")); err != nil {
		t.Fatal(err)
	}
	served("192.0.2.98")
	primary.Store(&[]netip.Addr{netip.MustParseAddr("192.0.2.97")})
	m.AddressesChanged() // those of the machine did not
	l.eventually("node ports on 192.0.2.97", func() bool {
		vips := l.node.Run("nft", "list", "map", "ip", "proxima", "vip")
		return strings.Contains(vips, "192.0.2.97") && !strings.Contains(vips, "192.0.2.98")
	})
}

func (l *lab) eventually(what string, ok func() bool) {
	l.Helper()
	for start := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(start) > timeout {
			l.Fatalf("not within %s: %s", timeout, what)
		}
	}
}

func TestCountsOnlyGrow(t *testing.T) {
	l := newLab(t)
	l.serve(proxy.TCP, 0, netip.AddrPortFrom(podIP(false, 0), 8080))
	m := l.mode(Options{})
	at := netip.AddrPortFrom(vipAt(false, 0), 80)
	state := spec("a", proxy.TCP, 80, []netip.Addr{vipAt(false, 0)}, func(s *proxy.PortState) { s.IPv4.Cluster = targets(false, 8080, 0) })
	count := func(m *Mode) uint64 {
		for name, c := range m.Counts() {
			if name == state.Name {
				if !c.ByFamily || c.IPv6.Connections != 0 {
					t.Errorf("counts %+v of IPv4 alone", c)
				}
				return c.Connections
			}
		}
		return 0
	}
	check := func(m *Mode, want uint64) {
		t.Helper()
		if got := count(m); got != want {
			t.Errorf("%d connections counted, want %d", got, want)
		}
	}
	l.apply(m, state)
	for range 5 {
		l.ask(l.client, proxy.TCP, "", at)
	}
	check(m, 5)
	l.node.Run("nft", "delete", "table", "ip", "proxima")
	l.eventually("table repaired", func() bool { return l.listed() })
	for range 6 { // more than before, so that the counter never decreases
		l.ask(l.client, proxy.TCP, "", at)
	}
	check(m, 11)
	l.stop(m)
	m = l.mode(Options{})
	l.apply(m, state)
	check(m, 6) // what the kernel has counted
	l.apply(m, gone("a"))
	l.apply(m, state)
	check(m, 0)
}

func (l *lab) listed() bool {
	out, err := l.node.Output(l.Context(), "nft", "list", "map", "ip", "proxima", "vip")
	return err == nil && strings.Contains(string(out), "10.96.0.1 . tcp . 80")
}

func TestConflictIsToldAndSettled(t *testing.T) {
	l := newLab(t)
	m := l.mode(Options{})
	for i := range 2 {
		l.serve(proxy.TCP, i, netip.AddrPortFrom(podIP(false, i), 8080))
	}
	at := netip.AddrPortFrom(vipAt(false, 0), 80)
	a := spec("a", proxy.TCP, 80, []netip.Addr{vipAt(false, 0)}, func(s *proxy.PortState) { s.IPv4.Cluster = targets(false, 8080, 0) })
	b := spec("b", proxy.TCP, 80, []netip.Addr{vipAt(false, 1)}, func(s *proxy.PortState) {
		s.IPv4.Cluster = targets(false, 8080, 1)
		s.Service.ExternalIPs = []netip.Addr{vipAt(false, 0)} // not theirs
	})
	l.apply(m, a)
	var failed *proxy.PortError
	if err := m.Apply(t.Context(), []proxy.Change{b}); !errors.As(err, &failed) || failed.Failed[b.Name] == nil || len(failed.Failed) != 1 {
		t.Fatalf("taking another service's address: %v", err)
	}
	if who, _ := l.ask(l.client, proxy.TCP, "", at); who != 0 {
		t.Errorf("a's address is answered by %d", who)
	}
	if who, _ := l.ask(l.client, proxy.TCP, "", netip.AddrPortFrom(vipAt(false, 1), 80)); who != 1 {
		t.Errorf("b's own address is answered by %d", who)
	}
	l.apply(m, gone("a"), b)
	if who, _ := l.ask(l.client, proxy.TCP, "", at); who != 1 {
		t.Errorf("the address that a gave up is answered by %d", who)
	}
}

func TestServiceCIDRsCanChange(t *testing.T) {
	l := newLab(t)
	m := l.mode(Options{ServiceCIDRs: []netip.Prefix{}})
	l.apply(m)
	if err := m.SetRanges(serviceCIDRs); err != nil {
		t.Fatal(err)
	}
	l.whole(m)
	if who, _ := l.ask(l.client, proxy.TCP, "", netip.AddrPortFrom(vipAt(false, 9), 80)); who != silent {
		t.Errorf("unallocated address: %d", who)
	}
}

// TestIPv4Alone: a kernel without IPv6 serves IPv4.
func TestIPv4Alone(t *testing.T) {
	l := newLab(t)
	m := l.mode(Options{wrap: func(k kernel) kernel { return noIPv6{k} }})
	l.apply(m, append(full(false), rename(full(true), "6")...)...)
	if got := l.node.Run("nft", "list", "tables"); strings.TrimSpace(got) != "table ip proxima" {
		t.Errorf("tables: %s", got)
	}
}

type noIPv6 struct{ kernel }

func (k noIPv6) Check(b *nfnl.Batch) error {
	if b.Family() == ipv6.proto {
		return unix.EAFNOSUPPORT
	}
	return k.kernel.Check(b)
}

// TestAffinityMapGrowsInPlace: what is remembered stays.
func TestAffinityMapGrowsInPlace(t *testing.T) {
	l := newLab(t)
	for i := range 3 {
		l.serve(proxy.TCP, i, netip.AddrPortFrom(podIP(false, i), 8080))
	}
	at := netip.AddrPortFrom(vipAt(false, 1), 80)
	m := l.mode(Options{AffinityClients: 1000})
	l.apply(m, full(false)...)
	first, _ := l.ask(l.client, proxy.TCP, "", at)
	l.stop(m)
	m = l.mode(Options{AffinityClients: 5000})
	l.apply(m, full(false)...)
	if got := l.node.Run("nft", "list", "map", "ip", "proxima", "aff"); !strings.Contains(got, "size 5000") || !strings.Contains(got, clientIP) {
		t.Errorf("after growing: %s", got)
	}
	for range 10 {
		if who, _ := l.ask(l.client, proxy.TCP, "", at); who != first {
			t.Errorf("client moved from %d to %d", first, who)
		}
	}
	l.whole(m)
}

// TestAffinityBeyondItsMap: clients beyond its size are served without it.
func TestAffinityBeyondItsMap(t *testing.T) {
	l := newLab(t)
	for i := range 3 {
		l.serve(proxy.TCP, i, netip.AddrPortFrom(podIP(false, i), 8080))
	}
	m := l.mode(Options{AffinityClients: 1})
	l.apply(m, full(false)...)
	l.client.Addr("to-pnft-node", "192.0.2.50/24")
	for _, client := range []string{clientIP, "192.0.2.50"} {
		for range 5 {
			if who, _ := l.ask(l.client, proxy.TCP, client, netip.AddrPortFrom(vipAt(false, 1), 80)); who < 0 {
				t.Errorf("%s: %d", client, who)
			}
		}
	}
}

func TestCheck(t *testing.T) {
	l := newLab(t)
	if err := Check(Options{Namespace: l.node.Fd()}); err != nil {
		t.Fatal(err)
	}
	if got := l.node.Run("nft", "list", "ruleset"); strings.TrimSpace(got) != "" {
		t.Errorf("Check left %s", got)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Table: "a b"}, {Table: "1x"}, {MasqueradeMark: 3}} {
		if m, err := New(o); err == nil {
			_ = m.Close(t.Context())
			t.Errorf("%+v is accepted", o)
		}
	}
}

func TestPath(t *testing.T) {
	l := newSim(t)
	m := l.mode(Options{})
	changes := full(false)
	lb, idle := netip.MustParseAddr("203.0.113.1"), []netip.Addr{netip.MustParseAddr("203.0.113.8"), netip.MustParseAddr("203.0.113.9")}
	for i, a := range idle { // ranges, and no endpoint
		changes = append(changes, spec(fmt.Sprint("idle-", i), proxy.TCP, 80, []netip.Addr{vipAt(false, 50+i)}, func(s *proxy.PortState) {
			s.Service.LoadBalancerIPs, s.Service.ExternalLocal = []netip.Addr{a}, i == 1
			s.Service.SourceRanges = proxy.ParseSourceRanges([]string{clientIP + "/32", "::/0"})
			s.IPv4 = proxy.Choice{NoCluster: proxy.Reject, NoLocal: proxy.Reject}
		}))
	}
	l.apply(m, changes...)
	for _, c := range []struct {
		name     string
		to       netip.Addr
		port     uint16
		from     string
		outcome  string
		list     string
		masq     bool
		shares   int
		affinity bool
	}{
		{"cluster IP from outside", vipAt(false, 0), 80, clientIP, "endpoint", "cluster", true, 3, false},
		{"cluster IP from a pod", vipAt(false, 0), 80, "10.244.0.5", "endpoint", "cluster", false, 3, false},
		{"affinity", vipAt(false, 1), 80, clientIP, "endpoint", "cluster", true, 3, true},
		{"ranges, admitted", lb, 443, clientIP, "endpoint", "local", false, 1, false},
		{"ranges, not admitted", lb, 443, "198.51.100.1", "drop", "", false, 0, false},
		{"ranges without an endpoint, admitted", idle[0], 80, clientIP, "reject", "", false, 0, false},
		{"ranges without an endpoint, not admitted", idle[0], 80, "198.51.100.1", "drop", "", false, 0, false},
		{"Local without an endpoint, admitted", idle[1], 80, clientIP, "reject", "", false, 0, false},
		{"Local without an endpoint, not admitted", idle[1], 80, "198.51.100.1", "drop", "", false, 0, false},
		{"node port from outside", netip.MustParseAddr(nodeIP), 30443, "198.51.100.1", "endpoint", "local", false, 1, false},
		{"node port from the node", netip.MustParseAddr(nodeIP), 30443, nodeIP, "endpoint", "cluster", true, 3, false},
		{"unknown port", vipAt(false, 0), 81, clientIP, "reject", "", false, 0, false},
		{"unallocated", vipAt(false, 99), 80, clientIP, "drop", "", false, 0, false},
		{"drop", vipAt(false, 5), 80, clientIP, "drop", "", false, 0, false},
		{"not ours", netip.MustParseAddr("198.51.100.200"), 80, clientIP, "pass", "", false, 0, false},
	} {
		p := m.Path(c.to, proxy.TCP, c.port, netip.MustParseAddr(c.from), "")
		got := fmt.Sprint(p.Outcome, " ", p.List, " ", p.Masquerade, " ", len(p.Shares), " ", p.Affinity > 0)
		if want := fmt.Sprint(c.outcome, " ", c.list, " ", c.masq, " ", c.shares, " ", c.affinity); got != want {
			t.Errorf("%s: %s, want %s\n%+v", c.name, got, want, p.Steps)
		}
	}
	p := m.Path(vipAt(false, 4), proxy.SCTP, 9, netip.MustParseAddr(clientIP), "")
	if p.Outcome != "reject" || p.Service == nil {
		t.Errorf("no endpoint: %+v", p)
	}
}

// TestWorkloadsByInterface: what arrives by the interfaces of workloads is from workloads, and what
// this node sends is not.
func TestWorkloadsByInterface(t *testing.T) {
	l := newSim(t)
	m := l.mode(Options{WorkloadCIDRs: []netip.Prefix{}, WorkloadInterfaces: proxy.Interfaces{"cni0", "cali*"}})
	l.apply(m, full(false)...)
	for by, masqueraded := range map[string]bool{"cni0": false, "cali12": false, "cni01": true, "eth0": true, "": true} {
		if p := m.Path(vipAt(false, 0), proxy.TCP, 80, netip.MustParseAddr("10.244.0.5"), by); p.Masquerade != masqueraded {
			t.Errorf("by %q: masquerade %v\n%+v", by, p.Masquerade, p.Steps)
		}
	}
	if _, err := New(Options{WorkloadInterfaces: proxy.Interfaces{"a/b"}}); err == nil {
		t.Error("an interface that there cannot be is accepted")
	}
}
