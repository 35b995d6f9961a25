package iptables

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

func isolate(t *testing.T, m *Mode, change proxy.Isolation) {
	t.Helper()
	if err := m.Isolate(change); err != nil {
		t.Fatal(err)
	}
}

// TestKernelHoldsMeshes: the chains that keep meshes apart are in the kernel's words, whatever
// the history; none is left when there is one mesh.
func TestKernelHoldsMeshes(t *testing.T) {
	forBoth(t, func(t *testing.T, v Variant) {
		m := realMode(t, v, netns.New(t, "pipt-mesh"), nil)
		scoped := func(i int, mesh string) proxy.Change {
			s := state(i, "10.7.0.1:80", "[fd07::1]:80")
			s.Service.Scope = proxy.Scope{Mesh: mesh}
			return change(s)
		}
		var all []proxy.Change
		for i := range 90 {
			all = append(all, scoped(i, []string{"a", "b", ""}[i%3]))
		}
		apply(t, m, all...)
		before := readBack(t, m.kernel)
		whole := proxy.Isolation{
			Reset: true, Active: true, Node: proxy.Source{Mesh: "a"},
			Sources: map[netip.Addr]proxy.Source{}, Reach: map[proxy.Reach]bool{},
		}
		for i := range 70 {
			for _, base := range []string{"10.8.0.0", "fd08::"} {
				whole.Sources[nthAddr(base, i)] = proxy.Source{Mesh: []string{"a", "b"}[i%2], Closed: i%2 == 1}
				whole.Reach[proxy.Reach{Mesh: "b", Addr: nthAddr(base, i)}] = true
			}
		}
		isolate(t, m, whole)
		want := readBack(t, m.kernel)
		printsDesired(t, m, want)

		isolate(t, m, proxy.Isolation{Active: true, Sources: map[netip.Addr]proxy.Source{
			nthAddr("10.8.0.0", 3): {}, nthAddr("fd08::", 4): {Mesh: "c"}, nthAddr("10.8.0.0", 90): {Mesh: "b", Closed: true},
		}, Reach: map[proxy.Reach]bool{{Mesh: "b", Addr: nthAddr("10.8.0.0", 5)}: false, {Mesh: "c", Addr: nthAddr("10.8.0.0", 5)}: true}})
		apply(t, m, scoped(0, "b"), scoped(1, ""), proxy.Change{Name: name("s3", "p")})
		printsDesired(t, m, readBack(t, m.kernel))
		isolate(t, m, proxy.Isolation{
			Active: true, Node: whole.Node,
			Sources: map[netip.Addr]proxy.Source{
				nthAddr("10.8.0.0", 3): whole.Sources[nthAddr("10.8.0.0", 3)], nthAddr("fd08::", 4): whole.Sources[nthAddr("fd08::", 4)], nthAddr("10.8.0.0", 90): {},
			},
			Reach: map[proxy.Reach]bool{{Mesh: "b", Addr: nthAddr("10.8.0.0", 5)}: true, {Mesh: "c", Addr: nthAddr("10.8.0.0", 5)}: false},
		})
		apply(t, m, scoped(0, "a"), scoped(1, "b"), scoped(3, "a"))
		if diff := cmp.Diff(want, readBack(t, m.kernel)); diff != "" {
			t.Errorf("history leaves a trace (-before +after):\n%s", diff)
		}
		// Another agent takes over.
		_ = m.Close(t.Context())
		m = realMode(t, v, netns.New(t, "pipt-mesh2"), nil)
		isolate(t, m, whole)
		apply(t, m, all...)
		if diff := cmp.Diff(want, readBack(t, m.kernel)); diff != "" {
			t.Errorf("a fresh install differs (-history +fresh):\n%s", diff)
		}
		isolate(t, m, proxy.Isolation{Reset: true})
		if diff := cmp.Diff(before, readBack(t, m.kernel)); diff != "" {
			t.Errorf("something is left of meshes (-before +after):\n%s", diff)
		}
	})
}
