package znode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// instance is a Tree of an instance of a control plane that runs.
type instance struct {
	*Tree
	t    *testing.T
	held atomic.Int64 // the session that it holds
	stop func()
}

const quota = 64 << 10

func newInstance(t *testing.T, s store.Store, owner string, ends ...string) *instance {
	t.Helper()
	i := &instance{t: t}
	i.Tree = New(Config{
		Store: s, Quota: quota, Owner: owner, Grace: time.Minute, Standing: func(path string) bool { return path == "/" }, Logger: slog.New(slog.DiscardHandler),
		Held: func(id int64) bool { return i.held.Load() == id },
		MayEnd: func(o string) bool {
			for _, e := range append(ends, owner) {
				if e == o {
					return true
				}
			}
			return false
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { i.Run(ctx); close(done) }()
	i.stop = func() { cancel(); <-done }
	t.Cleanup(i.stop)
	<-i.Ready()
	return i
}

func newStore(t *testing.T) store.Store {
	s := memory.New(memory.Options{})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (i *instance) do(want error, ops ...Op) []string {
	i.t.Helper()
	paths, _, _, err := i.Apply(i.t.Context(), ops)
	if !errors.Is(err, want) {
		i.t.Fatalf("%+v: %v, want %v", ops, err, want)
	}
	return paths
}

func (i *instance) has(path string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.nodes[path] != nil
}

// Sessions at two instances: who holds one, what happens when its instance is gone, and that it is remembered.
func TestSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		a, b := newInstance(t, s, "a"), newInstance(t, s, "b", "a")
		const id = 7
		ephemeral := func(path string) Op { return Op{Kind: Create, Path: path, Session: id, Proof: "p"} }
		a.held.Store(id)
		for n := range 2 * endAtOnce {
			a.do(nil, ephemeral(fmt.Sprintf("/%d", n)))
		}
		if _, err := b.Adopt(t.Context(), id, "q"); !errors.Is(err, ErrEnded) {
			t.Errorf("another's session: %v", err)
		}
		if known, err := b.Adopt(t.Context(), 8, "p"); known || err != nil {
			t.Errorf("a session without nodes: %t, %v", known, err)
		}
		b.do(ErrMoved, ephemeral("/b"))
		b.held.Store(id)
		if known, err := b.Adopt(t.Context(), id, "p"); !known || err != nil {
			t.Fatal(known, err)
		}
		b.do(nil, ephemeral("/b"))
		a.do(ErrMoved, ephemeral("/a"))
		if err := a.End(t.Context(), id, true); !errors.Is(err, ErrMoved) {
			t.Errorf("the instance that had it ends it: %v", err)
		}

		// Nobody holds it: it stays for the grace.
		a.held.Store(0)
		b.held.Store(0)
		time.Sleep(50 * time.Second)
		synctest.Wait()
		if !a.has("/0") {
			t.Error("the nodes are gone before the grace is")
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if u := a.Usage(); u.Nodes != 0 {
			t.Errorf("after the grace: %+v", u)
		}
		for _, i := range []*instance{a, b} {
			if _, err := i.Adopt(t.Context(), id, "p"); !errors.Is(err, ErrEnded) {
				t.Errorf("a session that has ended: %v", err)
			}
			i.do(ErrEnded, ephemeral("/again"))
		}
		a.do(nil, Op{Kind: Create, Path: "/mine", Session: 9, Proof: "p"})
		if err := a.End(t.Context(), 9, false); err != nil {
			t.Fatal(err)
		}
		if _, ok, _, err := s.Get(t.Context(), sessionKey(9), 0); ok || err != nil {
			t.Errorf("a session that was closed is remembered: %v", err)
		}
	})
}

// Two instances write the same nodes at the same time: no number twice, no update lost; both have the same in the end, and so has one
// that starts.
func TestInstances(t *testing.T) {
	s := newStore(t)
	a, b := newInstance(t, s, "a"), newInstance(t, s, "b")
	a.do(nil, Op{Kind: Create, Path: "/q"})
	const rounds = 50
	made := make(chan string, 2*rounds)
	done := make(chan error, 2)
	for _, i := range []*instance{a, b} {
		go func() {
			for range rounds {
				paths, _, _, err := i.Apply(t.Context(), []Op{{Kind: Create, Path: "/q/n-", Sequential: true}, {Kind: Set, Path: "/q", Version: AnyVersion}})
				if err != nil {
					done <- err
					return
				}
				made <- paths[0]
			}
			done <- nil
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	close(made)
	seen := map[string]bool{}
	for path := range made {
		if seen[path] {
			t.Errorf("%s twice", path)
		}
		seen[path] = true
	}
	c := newInstance(t, s, "c")
	for _, i := range []*instance{a, b} {
		if err := i.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.nodes, i.nodes, cmp.AllowUnexported(Node{})); diff != "" {
			t.Errorf("differs from one that starts: %s", diff)
		}
		if u, want := i.Usage(), c.Usage(); u != want {
			t.Errorf("usage %+v, want %+v", u, want)
		}
	}
	if n := c.nodes["/q"]; n.Version != 2*rounds || n.Creations != 2*rounds || len(c.children["/q"]) != 2*rounds {
		t.Errorf("%+v", n)
	}
}

func TestContainersAndQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newInstance(t, newStore(t), "a")
		a.do(nil, Op{Kind: Create, Path: "/c", Container: true}, Op{Kind: Create, Path: "/empty", Container: true}, Op{Kind: Create, Path: "/c/x"})
		a.do(ErrQuota, Op{Kind: Create, Path: "/big", Data: make([]byte, quota)})
		a.do(ErrQuota, Op{Kind: Set, Path: "/c", Version: AnyVersion, Data: make([]byte, quota)})
		a.do(ErrNoNode, Op{Kind: Create, Path: "/n/x"})
		a.do(nil, Op{Kind: Delete, Path: "/c/x", Version: 0})
		time.Sleep(2 * containersEvery)
		synctest.Wait()
		if a.has("/c") || !a.has("/empty") {
			t.Error("the container that had a child is to go, the other one to stay")
		}
		// It is another node at the same path.
		before := a.nodes["/empty"]
		a.do(nil, Op{Kind: Delete, Path: "/empty", Version: AnyVersion}, Op{Kind: Create, Path: "/empty"})
		if n := a.nodes["/empty"]; n.CreatedAt <= before.CreatedAt || n.Container {
			t.Errorf("%+v after %+v", n, before)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add((&Node{Path: "/a", Data: []byte("x"), Version: 3, Creations: 4, Container: true, Session: 1 << 40, Created: 5, Written: 6, ChildrenAt: 9}).encode(), int64(12))
	f.Add([]byte{format, 0xff, 0}, int64(1))
	f.Fuzz(func(t *testing.T, b []byte, at int64) {
		n, err := decode("/a", b, store.Revision(at))
		if err != nil {
			return
		}
		again, err := decode("/a", n.encode(), store.Revision(at))
		if err != nil || at != 0 && n.CreatedAt != 0 && n.WrittenAt != 0 && n.ChildrenAt != 0 && !reflect.DeepEqual(n, again) {
			t.Errorf("%+v is %+v, %v", n, again, err)
		}
	})
}
