package isolation

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

func placedAt(name string, id uint64) Placed {
	return Placed{Cgroup: proxy.Cgroup{ID: id, Level: 1}, Path: "/proxima-ns." + name + "-1", Workload: named("ns", name)}
}

// shared is a node with two workloads at its own address, of two meshes, of which blue is
// closed.
func shared(t *testing.T) *rig {
	r := newRig(t, "192.0.2.1")
	r.mode.cgroups = true
	u := meshes(update(), proxy.Mesh{Name: "default"}, proxy.Mesh{Name: "blue", Closed: true})
	u.Reset = true
	workload(workload(u, "a", "default", "n1", "192.0.2.1"), "b", "blue", "n1", "192.0.2.1")
	workload(u, "far", "blue", "n2", "10.0.0.9")
	r.apply(u)
	return r
}

func (r *rig) place(all ...Placed) {
	r.t.Helper()
	r.Place(all)
	if err := r.Flush(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) wantCgroups(want map[uint64]proxy.Source) {
	r.t.Helper()
	got := map[uint64]proxy.Source{}
	for g, s := range r.mode.now.Cgroups {
		got[g.ID] = s
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		r.t.Error(diff)
	}
}

// TestCgroups: workloads at one address are of their meshes by their cgroups; those that have
// none, and other programs, by the address.
func TestCgroups(t *testing.T) {
	r := shared(t)
	if s := r.mode.now.Sources[addr("192.0.2.1")]; s.Mesh != proxy.SeveralMeshes || r.mode.now.Node.Mesh != "" {
		t.Errorf("without cgroups: %+v, node %+v", s, r.mode.now.Node)
	}
	r.place(placedAt("b", 2))
	r.wantCgroups(map[uint64]proxy.Source{2: {Mesh: "blue", Closed: true}})
	if s := r.mode.now.Sources[addr("192.0.2.1")]; s.Mesh != "default" || r.mode.now.Node.Mesh != "default" {
		t.Errorf("the other one, by its address: %+v, node %+v", s, r.mode.now.Node)
	}
	if !r.mode.now.Reach[proxy.Reach{Mesh: "blue", Addr: addr("10.0.0.9")}] {
		t.Error("what the closed mesh reaches is not told")
	}
	r.place(placedAt("a", 1), placedAt("b", 2))
	r.wantCgroups(map[uint64]proxy.Source{1: {Mesh: "default"}, 2: {Mesh: "blue", Closed: true}})
	if len(r.mode.now.Sources) != 0 || r.mode.now.Node.Mesh != "" {
		t.Errorf("other programs of the machine are of a mesh: %+v, %+v", r.mode.now.Sources, r.mode.now.Node)
	}
	// Names are answered by address, which says nothing here.
	if v := r.Viewer(addr("192.0.2.1")); v != proxy.SeveralMeshes {
		t.Errorf("viewer %q", v)
	}
	if s := r.Status(); len(s.Cgroups) != 2 || s.Cgroups[1].Workload != "ns/b" || !s.Cgroups[1].Closed {
		t.Errorf("%+v", s)
	}

	// Its Dataplane goes before its processes do.
	u := update()
	u.Workloads[named("ns", "b")] = nil
	r.apply(u)
	r.wantCgroups(map[uint64]proxy.Source{1: {Mesh: "default"}, 2: {Mesh: "blue", Closed: true}})
	r.place(placedAt("a", 1))
	r.wantCgroups(map[uint64]proxy.Source{1: {Mesh: "default"}})
	r.place(placedAt("a", 1), placedAt("b", 2)) // of a workload that nobody knows
	r.wantCgroups(map[uint64]proxy.Source{1: {Mesh: "default"}})

	// One mesh, and several again: the cgroups are those that there were.
	u = update()
	u.Meshes["blue"] = nil
	r.apply(u)
	if r.mode.now.Active || len(r.mode.now.Cgroups) != 0 {
		t.Errorf("%+v", r.mode.now)
	}
	r.apply(meshes(update(), proxy.Mesh{Name: "green"}))
	r.wantCgroups(map[uint64]proxy.Source{1: {Mesh: "default"}})
}

// TestCgroupsOfOtherModes: a mode that cannot tell them apart is told none.
func TestCgroupsOfOtherModes(t *testing.T) {
	r := shared(t)
	r.mode.cgroups = false
	r.place(placedAt("a", 1), placedAt("b", 2))
	r.wantCgroups(nil)
	if s := r.mode.now.Sources[addr("192.0.2.1")]; s.Mesh != proxy.SeveralMeshes {
		t.Errorf("%+v", s)
	}
	if err := r.AwaitPlaced(t.Context(), placedAt("a", 1).Path); err != nil {
		t.Error(err)
	}
}

// TestAwaitPlaced: a command is started when its rules are there, and not when the mode could
// not write them.
func TestAwaitPlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "192.0.2.1")
		r.mode.cgroups = true
		late := placedAt("late", 3)
		if err := r.AwaitPlaced(t.Context(), late.Path); err != nil {
			t.Errorf("with one mesh: %v", err)
		}
		first := meshes(update(), proxy.Mesh{Name: "default"}, proxy.Mesh{Name: "blue"})
		first.Reset = true
		r.apply(first)
		r.place(late)
		done := make(chan error, 1)
		go func() { done <- r.AwaitPlaced(t.Context(), late.Path) }()
		r.mode.err = errors.New("no")
		u := workload(update(), "late", "blue", "n1", "192.0.2.1")
		overlayInto(&r.whole, u)
		r.Apply(u)
		_ = r.Flush()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("it does not wait for the mode: %v", err)
		default:
		}
		r.mode.err = nil
		if err := r.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		r.wantCgroups(map[uint64]proxy.Source{3: {Mesh: "blue"}})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.AwaitPlaced(ctx, "/proxima-ns.unknown-1"); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}
