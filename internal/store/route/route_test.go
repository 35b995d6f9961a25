package route_test

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"
	testclock "k8s.io/utils/clock/testing"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/store/route"
	"github.com/proxima-mesh/proxima/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestContract: what a router hands out is a store like any other.
func TestContract(t *testing.T) {
	clock := testclock.NewFakeClock(time.Date(2025, 1, 2, 3, 4, 5, 6, time.UTC))
	storetest.Run(t, func(t *testing.T) store.Store {
		r, err := route.New(memory.New(memory.Options{Clock: clock}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		s, err := r.Store("")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, storetest.Options{Clock: clock})
}

type bed struct {
	*route.Router
	durable, events *memory.Store
}

func newBed(t *testing.T) bed {
	b := bed{durable: memory.New(memory.Options{}), events: memory.New(memory.Options{})}
	var err error
	if b.Router, err = route.New(b.durable, route.Route{Prefix: "/events/", Store: b.events}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func (b bed) store(t *testing.T, prefix string) store.Store {
	t.Helper()
	s, err := b.Store(prefix)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func txn(keys ...string) store.Txn {
	var t store.Txn
	for _, key := range keys {
		t.Ops = append(t.Ops, store.Op{Kind: store.Put, Key: key})
	}
	return t
}

func TestRoutes(t *testing.T) {
	b := newBed(t)
	for key, want := range map[string]store.Store{"/events/a": b.events, "/pods/a": b.durable, "/events": b.durable, "": b.durable} {
		if key == "" {
			continue // no key
		}
		if _, err := b.Commit(t.Context(), txn(key)); err != nil {
			t.Fatal(err)
		}
		if _, ok, _, err := want.Get(t.Context(), key, 0); !ok || err != nil {
			t.Errorf("%q is not where it should be: %v", key, err)
		}
	}
	if _, err := b.Commit(t.Context(), store.Txn{}); err != nil {
		t.Errorf("empty transaction: %v", err)
	}
}

// TestLimits shows what the package's comment says about several stores.
func TestLimits(t *testing.T) {
	b, ctx := newBed(t), t.Context()
	events, pods := b.store(t, "/events/"), b.store(t, "/pods/")

	// Revisions and epochs are each store's own.
	for range 3 {
		if _, err := events.Commit(ctx, txn("/events/a")); err != nil {
			t.Fatal(err)
		}
	}
	if rev, err := pods.Revision(ctx); rev != 0 || err != nil {
		t.Errorf("a write to one store moved the other to %d, %v", rev, err)
	}
	if events.Epoch() == pods.Epoch() {
		t.Error("two histories with one epoch")
	}

	// What spans two stores is refused, and changes nothing.
	var span *route.SpanError
	for name, err := range map[string]error{
		"router commit": second(b.Commit(ctx, txn("/pods/a", "/events/a"))),
		"commit":        second(pods.Commit(ctx, txn("/pods/a", "/events/a"))),
		"foreign only":  second(pods.Commit(ctx, txn("/events/a"))),
		"condition": second(events.Commit(ctx, store.Txn{
			Conditions: []store.Condition{{Key: "/pods/a"}}, Ops: txn("/events/b").Ops,
		})),
		"store":         second(b.Store("/")),
		"list":          second(pods.List(ctx, store.ListOptions{})),
		"list foreign":  second(pods.List(ctx, store.ListOptions{Prefix: "/events/x"})),
		"count":         second(pods.Count(ctx, "/")),
		"watch":         second(pods.Watch(ctx, "/e", 0)),
		"watch foreign": second(events.Watch(ctx, "/pods/", 0)),
		"get": func() error {
			_, _, _, err := pods.Get(ctx, "/events/a", 0)
			return err
		}(),
	} {
		if !errors.As(err, &span) {
			t.Errorf("%s: %v, want a SpanError", name, err)
		}
	}
	if n, err := b.durable.Count(ctx, ""); n != 0 || err != nil {
		t.Errorf("%d keys were written, %v", n, err)
	}
	if rev, err := b.events.Revision(ctx); rev != 3 || err != nil {
		t.Errorf("revision %d, %v", rev, err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestNewRefuses(t *testing.T) {
	s := memory.New(memory.Options{})
	defer s.Close()
	for name, err := range map[string]error{
		"no fallback": second(route.New(nil)),
		"no prefix":   second(route.New(s, route.Route{Store: s})),
		"no store":    second(route.New(s, route.Route{Prefix: "/a/"})),
		"nested":      second(route.New(s, route.Route{Prefix: "/a/", Store: s}, route.Route{Prefix: "/a/b/", Store: s})),
		"twice":       second(route.New(s, route.Route{Prefix: "/a/", Store: s}, route.Route{Prefix: "/a/", Store: s})),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
