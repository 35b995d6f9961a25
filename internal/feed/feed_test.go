package feed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

type userKey struct{}

func as(ctx context.Context, user string) context.Context {
	return context.WithValue(ctx, userKey{}, user)
}

// rig is a store with a feed.
type rig struct {
	t     *testing.T
	store store.Store // with actors
	dir   string
	feed  *Feed
	stop  func()
	// with changes the configuration of the next start; nil: it does not.
	with func(*Config)
	live map[string]string // what fill has written
}

func newRig(t *testing.T) *rig {
	r := stoppedRig(t)
	r.start()
	return r
}

func stoppedRig(t *testing.T) *rig {
	actors := &Actors{Of: func(ctx context.Context) string { user, _ := ctx.Value(userKey{}).(string); return user }}
	inner := memory.New(memory.Options{})
	t.Cleanup(func() { inner.Close() })
	r := &rig{t: t, store: actors.Store(inner), dir: t.TempDir(), live: map[string]string{}}
	return r
}

func (r *rig) start() {
	r.t.Helper()
	cfg := Config{
		Store: r.store, Prefix: "/registry/", Roots: []string{r.dir}, Actors: r.store.(*attributed).actors, segmentBytes: 8 << 10, reserve: 1,
		Skip: func(key string) bool { return strings.HasPrefix(key, "/registry/leases/") },
	}
	if r.with != nil {
		r.with(&cfg)
	}
	f, err := Open(r.t.Context(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	r.feed, r.stop = f, func() { cancel(); <-done }
	r.t.Cleanup(r.stop)
}

func (r *rig) put(ctx context.Context, key, value string) store.Revision {
	r.t.Helper()
	op := store.Op{Kind: store.Put, Key: key, Value: []byte(value)}
	if value == "" {
		op = store.Op{Kind: store.Delete, Key: key}
	}
	at, err := r.store.Commit(ctx, store.Txn{Ops: []store.Op{op}})
	if err != nil {
		r.t.Fatal(err)
	}
	return at
}

func (r *rig) reached(at store.Revision) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	if err := r.feed.Reach(ctx, seglog.Position(at)); err != nil {
		r.t.Fatal(err)
	}
}

func TestFeedAgreesWithTheStore(t *testing.T) {
	r := newRig(t)
	random := rand.New(rand.NewPCG(1, 1))
	var at store.Revision
	type state struct {
		at   store.Revision
		keys map[string]string
	}
	var states []state
	now := map[string]string{}
	for i := range 600 {
		key := "/registry/services/shop/s" + strconv.Itoa(random.IntN(15))
		switch value := fmt.Sprintf("%d: %x", i, random.Uint64()); {
		case random.IntN(5) == 0:
			at = r.put(t.Context(), "/registry/leases/x", value)
		case random.IntN(5) == 0:
			at = r.put(t.Context(), key, "")
			delete(now, key)
		default:
			at = r.put(t.Context(), key, value)
			now[key] = value
		}
		kept := map[string]string{}
		for k, v := range now {
			kept[k] = v
		}
		states = append(states, state{at, kept})
		if i%150 == 149 { // a restart, with changes while it is away
			r.reached(at)
			r.stop()
			at = r.put(t.Context(), "/registry/services/shop/away", strconv.Itoa(i))
			now["/registry/services/shop/away"] = strconv.Itoa(i)
			r.start()
		}
	}
	r.reached(at)
	for _, want := range states {
		items, err := r.feed.State(t.Context(), "/registry/services/", seglog.Position(want.at))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, item := range items {
			got[item.Key] = string(item.Value)
			rec, ok, _, err := r.store.Get(t.Context(), item.Key, want.at)
			if err != nil || !ok || string(rec.Value) != string(item.Value) || rec.Modified != store.Revision(item.Modified) || rec.Created != store.Revision(item.Created) {
				t.Fatalf("at %d the feed has %+v, the store %+v (%v)", want.at, item, rec, err)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want.keys) {
			t.Fatalf("at %d: %v, want %v", want.at, got, want.keys)
		}
	}
	leases := 0
	err := r.feed.History(t.Context(), 0, func(key string) bool { return strings.HasPrefix(key, "/registry/leases/") }, func(*seglog.Entry) bool { leases++; return true })
	if err != nil || leases != 0 {
		t.Errorf("%d changes of what is left out, %v", leases, err)
	}
	if s := r.feed.Status(t.Context()); s.Complete != seglog.Position(at) || s.Problem != "" || s.Oldest == nil || s.Entries == 0 {
		t.Errorf("status %+v", s)
	}
}

func TestActors(t *testing.T) {
	r := newRig(t)
	const key = "/registry/services/shop/orders"
	r.put(as(t.Context(), "alice"), key, "1")
	r.put(t.Context(), key, "2")
	r.put(as(t.Context(), "bob"), key, "")
	if _, err := r.store.Commit(as(t.Context(), "carol"), store.Txn{
		Conditions: []store.Condition{{Key: key, Modified: 1}}, Ops: []store.Op{{Kind: store.Put, Key: key, Value: []byte("4")}},
	}); err == nil {
		t.Fatal("a conflict is expected")
	}
	r.reached(r.put(t.Context(), key, "4"))
	var got []string
	err := r.feed.History(t.Context(), 0, func(k string) bool { return k == key }, func(e *seglog.Entry) bool {
		got = append(got, e.Actor)
		return true
	})
	if want := "[alice  bob ]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if a := r.store.(*attributed).actors; len(a.pending) != 0 {
		t.Errorf("pending: %v", a.pending)
	}
	a := &Actors{Of: func(context.Context) string { return "dave" }}
	for range 3 {
		a.note("dave", make([]store.Op, maxActors))
	}
	if len(a.order) > maxActors || len(a.pending[""]) > maxActors {
		t.Errorf("%d changes are remembered", len(a.order))
	}
}

func TestGapIsTold(t *testing.T) {
	r := newRig(t)
	const key = "/registry/services/shop/orders"
	at := r.put(t.Context(), key, "1")
	r.reached(at)
	r.stop()
	for i := range 5 {
		at = r.put(t.Context(), key, strconv.Itoa(i+2))
	}
	if err := r.store.Compact(t.Context(), at-1); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.reached(r.put(t.Context(), key, "9"))
	var expired *seglog.ExpiredError
	if _, err := r.feed.State(t.Context(), "/registry/", 1); !errors.As(err, &expired) || expired.First != seglog.Position(at-1) {
		t.Errorf("the state before the gap: %v", err)
	}
	items, err := r.feed.State(t.Context(), "/registry/", seglog.Position(at))
	if err != nil || len(items) != 1 || string(items[0].Value) != "6" {
		t.Errorf("the state behind the gap: %v, %v", items, err)
	}
}

func TestCompactable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		at := r.put(t.Context(), "/registry/services/shop/orders", "1")
		synctest.Wait()
		if got := r.feed.Compactable(); got >= at {
			t.Errorf("the store may forget up to %d, which is not on the disk", got)
		}
		time.Sleep(syncEvery)
		synctest.Wait()
		if got := r.feed.Compactable(); got != at {
			t.Errorf("the store may forget up to %d, want %d", got, at)
		}
		r.stop()
		r.feed.report(errors.New("disk full"))
		time.Sleep(holdAtMost + 1)
		if got := r.feed.Compactable(); got <= at {
			t.Error("the store's history grows without bound")
		}
	})
}

func TestAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		const key = "/registry/services/shop/orders"
		time.Sleep(time.Minute)
		first := r.put(t.Context(), key, "1")
		synctest.Wait()
		time.Sleep(time.Minute)
		between := time.Now()
		time.Sleep(time.Minute)
		second := r.put(t.Context(), key, "2")
		synctest.Wait()
		for when, want := range map[time.Time]store.Revision{between: first, time.Now(): second} {
			if at, err := r.feed.At(when); err != nil || at != seglog.Position(want) {
				t.Errorf("at %v: %d, %v; want %d", when, at, err, want)
			}
		}
		var expired *seglog.ExpiredError
		if _, err := r.feed.At(between.Add(-time.Hour)); !errors.As(err, &expired) {
			t.Errorf("before the first: %v", err)
		}
		r.stop()
	})
}
