package isolation

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// recorder is a mode: what it was told, put together.
type recorder struct {
	now   proxy.Isolation
	calls []proxy.Isolation
	err   error
	// cgroups: it tells them apart.
	cgroups bool
}

func (r *recorder) Isolates() proxy.Isolates { return proxy.Isolates{Cgroups: r.cgroups} }

func (r *recorder) Isolate(c proxy.Isolation) error {
	if r.err != nil {
		return r.err
	}
	r.calls = append(r.calls, c)
	if c.Reset {
		r.now = proxy.Isolation{}
	}
	r.now = merge(r.now, proxy.Isolation{Active: c.Active, Node: c.Node, Sources: maps.Clone(c.Sources), Cgroups: maps.Clone(c.Cgroups), Reach: maps.Clone(c.Reach)})
	maps.DeleteFunc(r.now.Cgroups, func(_ proxy.Cgroup, s proxy.Source) bool { return s == proxy.Source{} })
	maps.DeleteFunc(r.now.Sources, func(_ netip.Addr, s proxy.Source) bool { return s == proxy.Source{} })
	maps.DeleteFunc(r.now.Reach, func(_ proxy.Reach, in bool) bool { return !in })
	return nil
}

func named(namespace, name string) proxy.ServiceName {
	return proxy.ServiceName{Namespace: namespace, Name: name}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func update() node.Update {
	return node.Update{
		Update: proxy.Update{
			Services: map[proxy.ServiceName]*proxy.Service{}, Slices: map[proxy.SliceName]*proxy.Slice{},
			Meshes: map[string]*proxy.Mesh{}, Workloads: map[proxy.ServiceName]*proxy.Workload{},
		},
		Names: map[proxy.ServiceName]*records.Name{}, NameSlices: map[proxy.SliceName]*records.Slice{},
	}
}

func meshes(u node.Update, all ...proxy.Mesh) node.Update {
	for _, m := range all {
		u.Meshes[m.Name] = &m
	}
	return u
}

func workload(u node.Update, name, mesh, on string, addrs ...string) node.Update {
	w := &proxy.Workload{Name: named("ns", name), Mesh: mesh, Node: on}
	for _, a := range addrs {
		w.Addrs = append(w.Addrs, addr(a))
	}
	u.Workloads[w.Name] = w
	return u
}

// rig is a keeper with a mode; whole is the state of the feed.
type rig struct {
	*Keeper
	t     *testing.T
	mode  *recorder
	whole node.Update
	own   []string
}

func newRig(t *testing.T, own ...string) *rig {
	r := &rig{t: t, mode: &recorder{}, whole: update(), own: own}
	r.Keeper = New(Config{
		Node: "n1", Mode: r.mode, Replay: func() node.Update { return clone(r.whole) },
		Own: func() (out []netip.Addr) {
			for _, a := range r.own {
				out = append(out, addr(a))
			}
			return out
		},
	})
	return r
}

func clone(u node.Update) node.Update {
	out := update()
	overlayInto(&out, u)
	return out
}

func overlayInto(to *node.Update, u node.Update) {
	put(to.Services, u.Services)
	put(to.Slices, u.Slices)
	put(to.Meshes, u.Meshes)
	put(to.Workloads, u.Workloads)
	put(to.Names, u.Names)
	put(to.NameSlices, u.NameSlices)
}

func put[K comparable, V any](to, from map[K]*V) {
	for key, v := range from {
		set(to, key, v)
	}
}

func (r *rig) apply(u node.Update) {
	r.t.Helper()
	if u.Reset {
		r.whole = update()
	}
	overlayInto(&r.whole, u)
	if !u.Isolated() {
		return // as an agent does
	}
	r.Apply(u)
	if err := r.Flush(); err != nil {
		r.t.Fatal(err)
	}
}

// TestOneMesh: with one mesh nothing is kept, and nothing told but that nothing holds.
func TestOneMesh(t *testing.T) {
	r := newRig(t)
	first := workload(meshes(update(), proxy.Mesh{Name: "default"}), "a", "default", "n1", "10.0.0.1")
	first.Reset = true
	r.apply(first)
	u := update()
	u.Services[named("ns", "web")] = &proxy.Service{Name: named("ns", "web"), Scope: proxy.Scope{Mesh: "default"}}
	r.apply(u)
	if diff := cmp.Diff([]proxy.Isolation{{Reset: true}}, r.mode.calls, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
	if r.Viewer(addr("10.0.0.1")) != "" || r.Status() != nil || len(r.state.scopes)+len(r.state.members) != 0 {
		t.Errorf("%+v", r.state)
	}

	// A second one comes: what is known of the feed by then counts.
	r.apply(meshes(update(), proxy.Mesh{Name: "blue"}))
	if v := r.Viewer(addr("10.0.0.1")); v != "default" || !r.mode.now.Active || r.mode.now.Sources[addr("10.0.0.1")].Mesh != "default" {
		t.Errorf("%q, %+v", v, r.mode.now)
	}
	gone := update()
	gone.Meshes["blue"] = nil
	r.apply(gone)
	if v := r.Viewer(addr("10.0.0.1")); v != "" || r.mode.now.Active || len(r.mode.now.Sources) != 0 {
		t.Errorf("one mesh again: %q, %+v", v, r.mode.now)
	}
}

// TestSources: who is of which mesh, by address.
func TestSources(t *testing.T) {
	for _, tc := range []struct {
		name      string
		workloads func(node.Update)
		node      string
		viewers   map[string]string
	}{
		{
			name: "workloads with addresses of their own",
			workloads: func(u node.Update) {
				workload(workload(u, "a", "default", "n1", "10.0.0.1"), "b", "blue", "n1", "10.0.0.2", "fd00::2")
			},
			viewers: map[string]string{"10.0.0.1": "default", "10.0.0.2": "blue", "fd00::2": "blue", "192.0.2.1": "", "127.0.0.1": "", "10.0.0.3": ""},
		},
		{
			name:      "of another node",
			workloads: func(u node.Update) { workload(u, "a", "blue", "n2", "10.0.0.1") },
			viewers:   map[string]string{"10.0.0.1": ""},
		},
		{
			name: "at a loopback address: the node is of its mesh",
			workloads: func(u node.Update) {
				workload(workload(u, "a", "blue", "n1", "127.0.0.1"), "b", "default", "n1", "10.0.0.2")
			},
			node:    "blue",
			viewers: map[string]string{"127.0.0.1": "blue", "127.0.0.9": "blue", "192.0.2.1": "blue", "10.0.0.2": "default", "10.0.0.9": ""},
		},
		{
			name:      "at the node's address",
			workloads: func(u node.Update) { workload(u, "a", "blue", "n1", "192.0.2.1") },
			node:      "blue",
			viewers:   map[string]string{"192.0.2.1": "blue", "127.0.0.1": "blue", "192.0.2.2": "blue"},
		},
		{
			name: "of two meshes at addresses of the node: nobody can tell",
			workloads: func(u node.Update) {
				workload(workload(u, "a", "blue", "n1", "192.0.2.1"), "b", "default", "n1", "192.0.2.2")
			},
			viewers: map[string]string{"192.0.2.1": "blue", "192.0.2.2": "default", "127.0.0.1": ""},
		},
		{
			name: "of two meshes at one address",
			workloads: func(u node.Update) {
				workload(workload(u, "a", "blue", "n1", "10.0.0.1"), "b", "default", "n1", "10.0.0.1")
			},
			viewers: map[string]string{"10.0.0.1": proxy.SeveralMeshes},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, "192.0.2.1", "192.0.2.2")
			u := meshes(update(), proxy.Mesh{Name: "default"}, proxy.Mesh{Name: "blue"})
			u.Reset = true
			tc.workloads(u)
			r.apply(u)
			for client, want := range tc.viewers {
				if got := r.Viewer(addr(client)); got != want {
					t.Errorf("%s sees mesh %q, want %q", client, got, want)
				}
			}
			if got := r.mode.now.Node.Mesh; got != tc.node {
				t.Errorf("the node is of mesh %q, want %q", got, tc.node)
			}
		})
	}
}

// TestClosed: which sources are closed, and what they reach.
func TestClosed(t *testing.T) {
	r := newRig(t, "192.0.2.1")
	u := meshes(update(), proxy.Mesh{Name: "default"}, proxy.Mesh{Name: "blue", Closed: true})
	u.Reset = true
	workload(workload(workload(u, "a", "blue", "n1", "10.0.0.1"), "b", "blue", "n2", "10.0.0.2"), "c", "default", "n2", "10.0.0.3")
	workload(u, "host", "blue", "n1", "192.0.2.1")
	part := func(service, a string) *proxy.Slice {
		return &proxy.Slice{Name: proxy.SliceName{Namespace: "ns", Name: service + "-1"}, Service: named("ns", service), Endpoints: []proxy.SliceEndpoint{{Addr: addr(a)}}}
	}
	for service, scope := range map[string]proxy.Scope{"own": {Mesh: "blue"}, "all": {}, "foreign": {Mesh: "default"}, "exported": {Mesh: "default", Exported: []string{"blue"}}} {
		u.Services[named("ns", service)] = &proxy.Service{Name: named("ns", service), Scope: scope}
	}
	for service, a := range map[string]string{"own": "203.0.113.1", "all": "203.0.113.2", "foreign": "203.0.113.3", "exported": "203.0.113.4"} {
		s := part(service, a)
		u.Slices[s.Name] = s
	}
	u.Names[named("ns", "headless")] = &records.Name{Name: named("ns", "headless"), Scope: proxy.Scope{Mesh: "blue"}}
	headless := proxy.SliceName{Namespace: "ns", Name: "headless-1"}
	u.NameSlices[headless] = &records.Slice{Name: headless, Service: named("ns", "headless"), Targets: []records.Target{{Addr: addr("203.0.113.5")}, {Domain: "example.com"}}}
	r.apply(u)
	reaches := func(want ...string) {
		t.Helper()
		var got []string
		for reach := range r.mode.now.Reach {
			if reach.Mesh != "blue" {
				t.Errorf("reach of mesh %s", reach.Mesh)
			}
			got = append(got, reach.Addr.String())
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("reached: %v, want %v", got, want)
		}
	}
	if s := r.mode.now.Sources[addr("10.0.0.1")]; !s.Closed {
		t.Errorf("%+v", s)
	}
	if s := r.mode.now.Sources[addr("192.0.2.1")]; s.Closed {
		t.Error("the agent's own address is closed")
	}
	own := []string{"10.0.0.1", "10.0.0.2", "192.0.2.1"}
	reaches(append(own, "203.0.113.1", "203.0.113.2", "203.0.113.4", "203.0.113.5")...)

	u = update()
	u.Services[named("ns", "foreign")] = &proxy.Service{Name: named("ns", "foreign"), Scope: proxy.Scope{Mesh: "blue"}}
	u.Services[named("ns", "all")] = nil
	u.Slices[proxy.SliceName{Namespace: "ns", Name: "own-1"}] = nil
	u.Workloads[named("ns", "b")] = nil
	r.apply(u)
	reaches("10.0.0.1", "192.0.2.1", "203.0.113.3", "203.0.113.4", "203.0.113.5")
	if last := r.mode.calls[len(r.mode.calls)-1]; last.Reset || len(last.Sources) != 0 || len(last.Reach) != 4 {
		t.Errorf("more was told than what changed: %+v", last)
	}
	u = update()
	u.NameSlices[headless] = &records.Slice{Name: headless, Service: named("ns", "headless"), Targets: []records.Target{{Addr: addr("203.0.113.6")}}}
	r.apply(u)
	reaches("10.0.0.1", "192.0.2.1", "203.0.113.3", "203.0.113.4", "203.0.113.6")

	r.apply(meshes(update(), proxy.Mesh{Name: "blue"}))
	reaches()
	if s := r.mode.now.Sources[addr("10.0.0.1")]; s.Closed {
		t.Error("closed, though the mesh is open")
	}
	r.apply(meshes(update(), proxy.Mesh{Name: "blue", Closed: true}))
	reaches("10.0.0.1", "192.0.2.1", "203.0.113.3", "203.0.113.4", "203.0.113.6")
}

// TestHistoryLeavesNoTrace: whatever the history, the mode knows what a fresh agent's would.
func TestHistoryLeavesNoTrace(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	names := []string{"default", "blue", "green"}
	for run := range 30 {
		a := newRig(t, "192.0.2.1")
		first := meshes(update(), proxy.Mesh{Name: "default"})
		first.Reset = true
		a.apply(first)
		for range 60 {
			u := update()
			name := []string{"a", "b", "c"}[r.IntN(3)]
			address := []string{"10.0.0.1", "10.0.0.2", "192.0.2.1", "203.0.113.1"}[r.IntN(4)]
			gone := r.IntN(4) == 0
			switch r.IntN(5) {
			case 0:
				m := names[1+r.IntN(2)]
				if u.Meshes[m] = nil; !gone {
					meshes(u, proxy.Mesh{Name: m, Closed: r.IntN(2) == 0})
				}
			case 1:
				if u.Workloads[named("ns", name)] = nil; !gone {
					workload(u, name, names[r.IntN(3)], []string{"n1", "n2"}[r.IntN(2)], address)
				}
			case 2:
				if u.Services[named("ns", name)] = nil; !gone {
					u.Services[named("ns", name)] = &proxy.Service{Name: named("ns", name), Scope: proxy.Scope{Mesh: names[r.IntN(3)]}}
				}
			case 3:
				slice := proxy.SliceName{Namespace: "ns", Name: name}
				if u.Slices[slice] = nil; !gone {
					u.Slices[slice] = &proxy.Slice{Name: slice, Service: named("ns", []string{"a", "b", "c"}[r.IntN(3)]), Endpoints: []proxy.SliceEndpoint{{Addr: addr(address)}}}
				}
			case 4: // as a Service turns from one sort into another, both may be there
				if u.Names[named("ns", name)] = nil; !gone {
					u.Names[named("ns", name)] = &records.Name{Name: named("ns", name), Scope: proxy.Scope{Mesh: names[r.IntN(3)]}}
				}
			}
			if r.IntN(10) == 0 { // the mode fails once
				a.mode.err = errors.New("no")
				overlayInto(&a.whole, u)
				a.Apply(u)
				_ = a.Flush()
				a.mode.err = nil
				continue
			}
			a.apply(u)
		}
		if err := a.Flush(); err != nil {
			t.Fatal(err)
		}
		b := newRig(t, "192.0.2.1")
		whole := clone(a.whole)
		whole.Reset = true
		b.apply(whole)
		opts := []cmp.Option{cmpopts.EquateComparable(netip.Addr{}, proxy.Reach{}), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(proxy.Isolation{}, "Reset")}
		if diff := cmp.Diff(b.mode.now, a.mode.now, opts...); diff != "" {
			t.Fatalf("run %d: fresh (-) and history (+):\n%s", run, diff)
		}
	}
}

// TestAddressThatComesLater: an address that the machine gets is found out, also where
// updates come meanwhile that concern nothing of this node.
func TestAddressThatComesLater(t *testing.T) {
	r := newRig(t, "192.0.2.1")
	u := meshes(update(), proxy.Mesh{Name: "default"}, proxy.Mesh{Name: "blue", Closed: true})
	u.Reset = true
	r.apply(workload(u, "a", "blue", "n1", "192.0.2.2"))
	if s := r.mode.now.Sources[addr("192.0.2.2")]; !s.Closed {
		t.Fatalf("before: %+v", s)
	}
	r.own = append(r.own, "192.0.2.2")
	u = update()
	u.Services[named("ns", "web")] = &proxy.Service{Name: named("ns", "web")}
	r.apply(u)
	r.refresh()
	if err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	if s := r.mode.now.Sources[addr("192.0.2.2")]; s.Closed || r.mode.now.Node.Mesh != "blue" {
		t.Errorf("the agent's own address: %+v, the node is of mesh %q", s, r.mode.now.Node.Mesh)
	}
}

// slowMode takes its time for the first change.
type slowMode struct {
	begin chan struct{}
	calls atomic.Int32

	mu   sync.Mutex
	told []bool // whether each was a reset
}

func (*slowMode) Isolates() proxy.Isolates { return proxy.Isolates{} }

func (m *slowMode) Isolate(c proxy.Isolation) error {
	if m.calls.Add(1) == 1 {
		<-m.begin
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = append(m.told, c.Reset)
	return nil
}

// TestToldInOrder: a change is not overtaken by a later one.
func TestToldInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mode := &slowMode{begin: make(chan struct{})}
		k := New(Config{Node: "n1", Mode: mode})
		u := meshes(update(), proxy.Mesh{Name: "default"}, proxy.Mesh{Name: "blue"})
		u.Reset = true
		k.Apply(u)
		var flushing sync.WaitGroup
		flushing.Go(func() { _ = k.Flush() })
		synctest.Wait()
		k.Apply(workload(update(), "a", "blue", "n1", "10.0.0.1"))
		flushing.Go(func() { _ = k.Flush() })
		synctest.Wait()
		close(mode.begin)
		flushing.Wait()
		if want := []bool{true, false}; !slices.Equal(mode.told, want) {
			t.Errorf("told resets %v, want %v", mode.told, want)
		}
	})
}
