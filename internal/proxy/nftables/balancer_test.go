//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// noted is a Balancer that notes what it is told.
type noted struct {
	calls     []string
	lists     map[uint32]List
	addresses map[netip.Addr]int
	fail      error
}

func (*noted) Name() string { return "noted" }

func (n *noted) Adopt() error { n.calls = append(n.calls, "adopt"); return nil }

func (n *noted) Want(l List) {
	if l.Family == proxy.IPv6 {
		return
	}
	if delete(n.lists, l.Mark); len(l.Targets) > 0 {
		n.lists[l.Mark] = l
	}
}

func (n *noted) Address(a netip.Addr, there bool) {
	if n.addresses[a]++; !there {
		n.addresses[a] -= 2
	}
}

func (n *noted) Before() error { n.calls = append(n.calls, "before"); return n.fail }
func (n *noted) After() error  { n.calls = append(n.calls, "after"); return nil }

func (n *noted) Explain(_ proxy.Family, mark uint32) (string, []Share) {
	return fmt.Sprintf("chooses for %#x", mark), []Share{{Slots: 1, Of: 1}}
}

// TestBalancerGetsLists: lists are handed over by their mark, but for those of services with affinity or a source hash; the
// balancer is ready before the table leads to it.
func TestBalancerGetsLists(t *testing.T) {
	l := newSim(t)
	b := &noted{lists: map[uint32]List{}, addresses: map[netip.Addr]int{}}
	m := l.mode(Options{Balancer: b})
	vip := vipAt(false, 0)
	three := targets(false, 8080, 0, 1, 2)
	plain := spec("plain", proxy.TCP, 80, []netip.Addr{vip}, func(s *proxy.PortState) { s.For(vip).Cluster = three })
	sticky := spec("sticky", proxy.TCP, 80, []netip.Addr{vipAt(false, 1)}, func(s *proxy.PortState) {
		s.For(vip).Cluster, s.Service.AffinityTimeout = three, time.Hour
	})
	l.apply(m, plain, sticky)
	if got := strings.Join(b.calls, " "); got != "adopt before after" {
		t.Errorf("called: %s", got)
	}
	if len(b.lists) != 1 {
		t.Fatalf("lists: %v", b.lists)
	}
	for mark, list := range b.lists {
		if !IsListMark(mark) || mark&DefaultMasqueradeMark != 0 || list.Name != plain.Name || len(list.Targets) != 3 {
			t.Errorf("mark %#x: %+v", mark, list)
		}
		p := m.Path(vip, proxy.TCP, 80, netip.MustParseAddr("192.0.2.9"), "")
		want := fmt.Sprintf("chooses for %#x", mark)
		if p.Outcome != "endpoint" || len(p.Shares) != 1 || !slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Object == "noted" && s.Does == want }) {
			t.Errorf("path: %+v", p)
		}
	}
	if b.addresses[vip] != 1 || b.addresses[vipAt(false, 1)] != 1 {
		t.Errorf("addresses: %v", b.addresses)
	}
	text := l.tables()["2"]
	if !strings.Contains(text, "pick-outside-cluster-marked") || !strings.Contains(text, "pick-outside-cluster-3-3600s") {
		t.Errorf("the table has no chain that marks, or none for affinity:\n%s", text)
	}
	l.apply(m, proxy.Change{Name: plain.Name})
	if len(b.lists) != 0 || b.addresses[vip] != 0 {
		t.Errorf("after the removal: %v, %v", b.lists, b.addresses)
	}
}

// TestBalancerFirst: while the balancer is not ready, the table does not change.
func TestBalancerFirst(t *testing.T) {
	l := newSim(t)
	b := &noted{lists: map[uint32]List{}, addresses: map[netip.Addr]int{}, fail: errors.New("not ready")}
	m := l.mode(Options{Balancer: b})
	vip := vipAt(false, 0)
	plain := spec("plain", proxy.TCP, 80, []netip.Addr{vip}, func(s *proxy.PortState) { s.For(vip).Cluster = targets(false, 8080, 0) })
	if err := m.Apply(t.Context(), []proxy.Change{plain}); !errors.Is(err, b.fail) {
		t.Fatalf("%v", err)
	}
	if text := l.tables()["2"]; strings.Contains(text, "pick-") {
		t.Errorf("the table leads to a balancer that is not ready:\n%s", text)
	}
	b.fail = nil
	l.apply(m, plain)
	if text := l.tables()["2"]; !strings.Contains(text, "pick-outside-cluster-marked") {
		t.Errorf("the table:\n%s", text)
	}
}

// TestBalancedTableInTheKernel: the kernel has the rules of the balancer as the mode knows them, nft prints them, and services
// differ in the lowest bits of their marks.
func TestBalancedTableInTheKernel(t *testing.T) {
	l := newLab(t)
	b := &noted{lists: map[uint32]List{}, addresses: map[netip.Addr]int{}}
	m := l.mode(Options{Balancer: b})
	var services []proxy.Change
	for i := range 20 {
		vip := vipAt(false, i)
		services = append(services, spec(fmt.Sprint("s", i), proxy.TCP, 80, []netip.Addr{vip}, func(s *proxy.PortState) {
			s.For(vip).Cluster = targets(false, 8080, 0, 1)
		}))
	}
	l.apply(m, services...)
	l.whole(m)
	text := l.node.Run("nft", "list", "table", "ip", "proxima")
	for _, want := range []string{
		"type filter hook forward priority 101", "type filter hook input priority 99", "type filter hook output priority -97",
		"ct direction reply", "fib saddr type local jump reply-source", "ip saddr set ct original ip daddr", "tcp sport set ct original proto-dst",
		"ip saddr set ct reply ip saddr", "udp checksum 0 ct status ! dnat", "goto pick-outside-cluster-marked",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("nft's list lacks %q:\n%s", want, text)
		}
	}
	l.node.Run("nft", "list", "table", "ip6", "proxima")
	low := map[byte]bool{}
	for mark := range b.lists {
		low[byte(mark)] = true
	}
	if len(low) != len(services) {
		t.Errorf("%d services have %d different lowest bytes of marks", len(services), len(low))
	}
}

// TestBalancedNumbers: no service of the balancer has a number with the bit for masquerading.
func TestBalancedNumbers(t *testing.T) {
	m := &Mode{opts: Options{Balancer: &noted{}, MasqueradeMark: DefaultMasqueradeMark}, next: DefaultMasqueradeMark - 1, byNumber: map[uint16]*port{}}
	for _, want := range []uint16{DefaultMasqueradeMark - 1, 2 * DefaultMasqueradeMark} {
		if n, err := m.number("new"); err != nil || n != want {
			t.Errorf("%#x, %v, want %#x", n, err, want)
		}
	}
}
