package registry

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

var positionsLease = resource.Key{Namespace: "proxima-system", Name: "registry-positions"}

func taken(t *testing.T, p *Positions) Position {
	t.Helper()
	at, err := p.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// No position is used twice: not by instances at the same time, and not after a restart.
func TestPositionsAreUnique(t *testing.T) {
	client := resourcetest.New(kind.All()...)
	var mu sync.Mutex
	seen := map[Position]bool{}
	var running sync.WaitGroup
	for range 4 { // instances; each is restarted in the middle of a block
		running.Go(func() {
			for range 3 {
				p := NewPositions(client, positionsLease, "cp")
				last := Position(0)
				for range PositionBlock + PositionBlock/2 {
					got := taken(t, p)
					mu.Lock()
					if seen[got] || got <= last {
						t.Errorf("position %d after %d", got, last)
					}
					seen[got], last = true, got
					mu.Unlock()
				}
			}
		})
	}
	running.Wait()
}

// A client that moves between instances sees no position that is not above what it has seen, in whatever order
// they have reserved their blocks; an instance that nobody has overtaken keeps its block, and writes nothing.
func TestPositionsCatchUp(t *testing.T) {
	client := resourcetest.New(kind.All()...)
	writes := 0
	client.Intercept(func(c resourcetest.Call) error {
		if c.Verb == resourcetest.Create || c.Verb == resourcetest.Update {
			writes++
		}
		return nil
	})
	a, b := NewPositions(client, positionsLease, "a"), NewPositions(client, positionsLease, "b")
	seen := taken(t, a)
	for i, p := range []*Positions{b, a, b, b, a, a} {
		before := writes
		moved, err := p.CatchUp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if overtaken := i != 3 && i != 5; moved != overtaken || (writes != before) != overtaken {
			t.Errorf("step %d: reserved another block: %t, with %d writes", i, moved, writes-before)
		}
		if got := taken(t, p); got <= seen {
			t.Errorf("step %d: position %d after %d", i, got, seen)
		} else {
			seen = got
		}
	}
	// A counter that was deleted by hand from its Lease is not begun again.
	obj, err := client.Get(t.Context(), kind.Lease, positionsLease)
	if err != nil {
		t.Fatal(err)
	}
	lease := obj.(*coordinationv1.Lease).DeepCopy()
	lease.Annotations = nil
	if _, err := client.Update(t.Context(), kind.Lease, lease); err != nil {
		t.Fatal(err)
	}
	if _, err := a.CatchUp(t.Context()); err == nil {
		t.Error("a counter that is lost is begun again")
	}
}

// A write that another instance is faster with is tried again; an API that refuses is asked again until it does not.
func TestPositionsRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.All()...)
		refused := 0
		client.Intercept(func(c resourcetest.Call) error {
			if c.Verb != resourcetest.Create && c.Verb != resourcetest.Update {
				return nil
			}
			switch refused++; refused {
			case 1:
				return apierrors.NewConflict(kind.Lease.GroupResource(), positionsLease.Name, errors.New("changed"))
			case 2:
				return apierrors.NewServiceUnavailable("no leader")
			}
			return nil
		})
		if got := taken(t, NewPositions(client, positionsLease, "a")); got != 1 || refused != 3 {
			t.Errorf("position %d after %d writes", got, refused)
		}
	})
}

// What clients are told does not go back when they move to an instance that began, or changed, earlier.
func TestIndexCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		start := func(name string) *Index {
			tables := catalog.New(catalog.Config{Client: r.client, Descriptors: kind.All()})
			x := NewIndex(IndexConfig{Catalog: tables, Positions: NewPositions(r.client, positionsLease, name)})
			go func() { _ = tables.Run(t.Context()) }()
			go func() { _ = x.Run(t.Context()) }()
			synctest.Wait()
			return x
		}
		name := Service{Namespace: "shop", Name: "orders"}
		a := start("a")
		s := r.open(Nacos, User{}, 0)
		r.register(s, orders(8080))
		b := start("b")
		synctest.Wait()
		seen := b.Listing(name, "").Position
		if old := a.Listing(name, "").Position; old >= seen {
			t.Fatalf("position %d at a, %d at b: the test shows nothing", old, seen)
		}
		if err := a.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := a.Listing(name, "").Position; got <= seen {
			t.Errorf("position %d after %d", got, seen)
		}
		seen = a.Listing(name, "").Position
		r.register(s, orders(8081))
		synctest.Wait()
		if l := a.Listing(name, ""); l.Position <= seen || len(l.Instances) != 2 {
			t.Errorf("position %d after %d, with %d instances", l.Position, seen, len(l.Instances))
		}
	})
}

// The tables of two instances that share a store come to a revision in a different order, so the one that knows more
// may tell of it at a lower position. A client that comes to it is told at a higher one.
func TestIndexRaisesToMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		name := Service{Namespace: "shop", Name: "orders"}
		s := r.open(Nacos, User{}, 0)
		r.register(s, orders(8080))
		synctest.Wait()
		r.index.config.Mark = func(context.Context) (uint64, error) { return 0, errors.New("no connection") }
		if err := r.index.CatchUp(t.Context()); err == nil {
			t.Error("no error while the store cannot be written")
		}
		// Another instance has told of the same list when a table of it was further.
		newest := r.index.Snapshot().Revision() + 5
		seen := Position(0).after(newest)
		r.index.config.Mark = func(context.Context) (uint64, error) { newest++; return newest, nil }
		if err := r.index.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := r.index.Listing(name, "").Position; got <= seen {
			t.Errorf("position %d after %d", got, seen)
		}
		seen = r.index.Listing(name, "").Position
		r.register(s, orders(8081)) // at a revision below the mark
		synctest.Wait()
		if l := r.index.Listing(name, ""); l.Position <= seen || len(l.Instances) != 2 {
			t.Errorf("position %d after %d, with %d instances", l.Position, seen, len(l.Instances))
		}
	})
}

// Clients that come while others are answered share the requests of one call.
func TestIndexCatchesUpForAll(t *testing.T) {
	const clients = 100
	client := resourcetest.New(kind.All()...)
	x := NewIndex(IndexConfig{Positions: NewPositions(client, positionsLease, "a")})
	asked := 0 // under the lock of Positions
	client.Intercept(func(c resourcetest.Call) error {
		if c.Verb == resourcetest.Get {
			for asked++; asked == 1 && x.arrived.Load() < clients; {
				runtime.Gosched()
			}
		}
		return nil
	})
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			if err := x.CatchUp(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	shared := asked
	if shared > 3 { // that of the first, which reserves a block, and one for all others
		t.Errorf("the Lease was read %d times for %d clients", shared, clients)
	}
	if err := x.CatchUp(t.Context()); err != nil || asked != shared+1 {
		t.Errorf("a client that comes later: %d reads, %v", asked-shared, err)
	}
}
