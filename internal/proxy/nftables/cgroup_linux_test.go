//go:build linux

package nftables

import (
	"context"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// cgroupClient is a program in a cgroup of its own, on the node, with the node's addresses.
type cgroupClient struct {
	l     *lab
	group *cgroup.Group // nil: it is in none
	id    proxy.Cgroup
}

func newCgroupClient(l *lab, h *cgroup.Hierarchy, name string) cgroupClient {
	l.Helper()
	g, err := h.Create("test-nftables", name)
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() {
		if err := g.Close(); err != nil {
			l.Error(err)
		}
	})
	id, err := h.Lookup(g.Path())
	if err != nil {
		l.Fatal(err)
	}
	return cgroupClient{l, g, proxy.Cgroup{ID: id.Number, Level: uint8(id.Level)}}
}

// asks over TCP, and reports whether anybody answers; the other outcome is a refusal.
func (c cgroupClient) asks(to netip.AddrPort) bool {
	c.l.Helper()
	cmd := exec.CommandContext(c.l.Context(), "bash", "-c", `exec 3<>"/dev/tcp/$0/$1" && read -r -t 3 -u 3 line && echo "answered $line"`,
		to.Addr().String(), strconv.Itoa(int(to.Port())))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if c.group != nil {
		c.group.Start(cmd)
	}
	if err := c.l.node.Start(cmd); err != nil {
		c.l.Fatal(err)
	}
	err := cmd.Wait()
	answered, refusal := strings.HasPrefix(out.String(), "answered "), strings.Contains(out.String(), "refused")
	if answered == (err != nil) || !answered && !refusal {
		c.l.Fatalf("asking %s: %v, %s", to, err, out.String())
	}
	return answered
}

func (c cgroupClient) want(to netip.AddrPort, answered bool) {
	c.l.Helper()
	if got := c.asks(to); got != answered {
		c.l.Errorf("%s is answered: %v, want %v", to, got, answered)
	}
}

// TestCgroups: programs at one address are told apart by their cgroups, for Services of other
// meshes and for what a closed mesh does not know; those in no cgroup are told by their
// address. A new process finds the rules as they should be.
func TestCgroups(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip(err)
	}
	h, err := cgroup.Find()
	if err != nil {
		t.Skip(err)
	}
	l := newLab(t)
	l.warm(true)
	m := l.mode(Options{})
	if !m.Isolates().Cgroups {
		t.Skip("the kernel does not match sockets by cgroup (CONFIG_NFT_SOCKET, Linux 5.13)")
	}
	a, b, none := newCgroupClient(l, h, "a"), newCgroupClient(l, h, "b"), cgroupClient{l: l}
	var changes []proxy.Change
	for i, mesh := range []string{"ours", "theirs"} {
		var vips []netip.Addr
		for _, v6 := range []bool{false, true} {
			vips = append(vips, vipAt(v6, i))
			l.serve(proxy.TCP, i, netip.AddrPortFrom(podIP(v6, i), 8080))
		}
		changes = append(changes, spec(mesh, proxy.TCP, 80, vips, func(s *proxy.PortState) {
			s.Service.Scope = proxy.Scope{Mesh: mesh}
			s.IPv4.Cluster, s.IPv6.Cluster = targets(false, 8080, i), targets(true, 8080, i)
		}))
	}
	l.apply(m, changes...)
	isolate := func(m *Mode, change proxy.Isolation) {
		t.Helper()
		for range 2 {
			if err := m.Isolate(change); err != nil {
				t.Fatal(err)
			}
		}
	}
	whole := proxy.Isolation{
		Reset: true, Active: true,
		Cgroups: map[proxy.Cgroup]proxy.Source{a.id: {Mesh: "ours"}, b.id: {Mesh: "theirs"}},
	}
	families := func(do func(v6 bool, vip func(i int) netip.AddrPort, pod func(i int) netip.AddrPort)) {
		for _, v6 := range []bool{false, true} {
			do(v6, func(i int) netip.AddrPort { return netip.AddrPortFrom(vipAt(v6, i), 80) },
				func(i int) netip.AddrPort { return netip.AddrPortFrom(podIP(v6, i), 8080) })
		}
	}
	apart := func() {
		t.Helper()
		families(func(_ bool, vip, _ func(int) netip.AddrPort) {
			a.want(vip(0), true)
			a.want(vip(1), false)
			b.want(vip(0), false)
			b.want(vip(1), true)
			none.want(vip(0), true)
			none.want(vip(1), true)
		})
	}
	isolate(m, whole)
	apart()
	if rules := l.node.Run("nft", "list", "ruleset"); !strings.Contains(rules, "type cgroupsv2 : classid") || !strings.Contains(rules, "socket cgroupv2 level") {
		t.Errorf("nft does not print what it should:\n%s", rules)
	}

	// The rest of the node is of a mesh by its address; the cgroup counts before that.
	isolate(m, proxy.Isolation{Active: true, Node: proxy.Source{Mesh: "ours"}})
	families(func(_ bool, vip, _ func(int) netip.AddrPort) {
		none.want(vip(1), false)
		b.want(vip(1), true)
		b.want(vip(0), false)
	})
	isolate(m, proxy.Isolation{Active: true})

	// A mesh without passthrough, of which one of them is.
	closed := proxy.Isolation{
		Active: true, Cgroups: map[proxy.Cgroup]proxy.Source{a.id: {Mesh: "ours", Closed: true}},
		Reach: map[proxy.Reach]bool{{Mesh: "ours", Addr: podIP(false, 0)}: true, {Mesh: "ours", Addr: podIP(true, 0)}: true},
	}
	isolate(m, closed)
	families(func(_ bool, vip, pod func(int) netip.AddrPort) {
		a.want(vip(0), true)
		a.want(pod(0), true)
		a.want(pod(1), false)
		b.want(pod(1), true)
		none.want(pod(1), true)
	})

	// The agent is killed, and another one takes over.
	if err := m.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	families(func(_ bool, _, pod func(int) netip.AddrPort) { a.want(pod(1), false) })
	m = l.mode(Options{})
	whole.Cgroups[a.id] = proxy.Source{Mesh: "ours", Closed: true}
	whole.Reach = closed.Reach
	isolate(m, whole)
	l.apply(m, changes...)
	if d, err := m.Dump(t.Context()); err != nil || len(d.Missing)+len(d.Foreign) > 0 {
		t.Errorf("%v, missing %v, foreign %v", err, d.Missing, d.Foreign)
	}
	apart()
	families(func(_ bool, _, pod func(int) netip.AddrPort) { a.want(pod(1), false) })

	// They are gone: nothing of them is left.
	isolate(m, proxy.Isolation{Active: true, Cgroups: map[proxy.Cgroup]proxy.Source{a.id: {}, b.id: {}}})
	families(func(_ bool, vip, pod func(int) netip.AddrPort) {
		a.want(vip(1), true)
		a.want(pod(1), true)
	})
	if rules := l.node.Run("nft", "list", "ruleset"); strings.Contains(rules, "socket cgroupv2") {
		t.Errorf("rules are left:\n%s", rules)
	}
}
