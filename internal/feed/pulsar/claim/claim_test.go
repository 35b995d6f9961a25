package claim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cuttable is a store that an instance reaches slowly, or not at all.
type cuttable struct {
	store.Store
	mu    sync.Mutex
	fail  error
	stall time.Duration
}

func (c *cuttable) set(fail error, stall time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail, c.stall = fail, stall
}

// Commit implements store.Store. Like a database's, it does not return when ctx ends.
func (c *cuttable) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	c.mu.Lock()
	fail, stall := c.fail, c.stall
	c.mu.Unlock()
	time.Sleep(stall)
	if fail != nil {
		return 0, fail
	}
	return c.Store.Commit(ctx, txn)
}

type instance struct {
	*Claims
	store *cuttable
	stop  func()
}

// start an instance of a name.
func start(s store.Store, name string) *instance {
	i := &instance{store: &cuttable{Store: s}}
	i.Claims = New(Config{Store: i.store, Self: Owner{Name: name, Address: name + ":6650"}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = i.Run(ctx) })
	i.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	return i
}

func bubble(t *testing.T, test func(t *testing.T, s store.Store, a, b *instance)) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		defer s.Close()
		a, b := start(s, "a"), start(s, "b")
		defer a.stop()
		defer b.stop()
		test(t, s, a, b)
	})
}

func take(t *testing.T, i *instance, topic string) *Claim {
	t.Helper()
	c, err := i.Take(t.Context(), topic)
	if err != nil {
		t.Fatalf("instance %s: %v", i.cfg.Self.Name, err)
	}
	return c
}

// refused fails unless another instance has the topic.
func refused(t *testing.T, i *instance, topic, owner string) *ElsewhereError {
	t.Helper()
	_, err := i.Take(t.Context(), topic)
	var elsewhere *ElsewhereError
	if !errors.As(err, &elsewhere) || elsewhere.Name != owner || elsewhere.Address != owner+":6650" {
		t.Fatalf("instance %s takes %s: %v; %s has it", i.cfg.Self.Name, topic, err, owner)
	}
	return elsewhere
}

func found(t *testing.T, i *instance, topic, owner string) {
	t.Helper()
	got, here, err := i.Find(t.Context(), topic)
	if err != nil || got.Name != owner || here != (owner == i.cfg.Self.Name) {
		t.Fatalf("instance %s finds %s at %+v, here %t, %v; want %s", i.cfg.Self.Name, topic, got, here, err, owner)
	}
}

func lost(c *Claim) bool {
	select {
	case <-c.Lost():
		return !c.Valid()
	default:
		return false
	}
}

func rows(t *testing.T, s store.Store) (out []string) {
	t.Helper()
	page, err := s.List(t.Context(), store.ListOptions{Prefix: Prefix})
	if err != nil {
		t.Fatal(err)
	}
	for i := range page.Records {
		out = append(out, page.Records[i].Key)
	}
	return out
}

// guarded writes what a holder of a claim writes.
func guarded(s store.Store, c *Claim) error {
	_, err := s.Commit(context.Background(), store.Txn{Conditions: []store.Condition{c.Fence()}, Ops: []store.Op{{Kind: store.Put, Key: "/cursor", Value: []byte("1")}}})
	return err
}

// TestOneOwner: a topic has one owner, as long as that renews its lease; topics of several are found by all.
func TestOneOwner(t *testing.T) {
	bubble(t, func(t *testing.T, s store.Store, a, b *instance) {
		one := take(t, a, "default/shop/services")
		two := take(t, b, "default/shop/pods")
		for range 100 {
			time.Sleep(3 * time.Second)
			refused(t, b, "default/shop/services", "a")
			refused(t, a, "default/shop/pods", "b")
		}
		found(t, b, "default/shop/services", "a")
		found(t, b, "default/shop/pods", "b")
		if lost(one) || lost(two) || !one.Valid() || !two.Valid() {
			t.Error("a claim is lost")
		}
		if err := errors.Join(guarded(s, one), guarded(s, two)); err != nil {
			t.Error(err)
		}
		again := take(t, a, "default/shop/services")
		if again.Fence() != one.Fence() {
			t.Error("the owner has claimed it again")
		}
	})
}

// TestEnd: the topics of an instance that ends are free at once.
func TestEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s store.Store, a, b *instance) {
		one := take(t, a, "t")
		refused(t, b, "t", "a")
		began := time.Now()
		a.stop()
		two := take(t, b, "t")
		if d := time.Since(began); d > 0 {
			t.Errorf("it was free after %v", d)
		}
		if !lost(one) || guarded(s, one) == nil || guarded(s, two) != nil {
			t.Error("the former owner may write, or the new one may not")
		}
		if _, err := a.Take(t.Context(), "t"); !errors.Is(err, ErrClosed) {
			t.Errorf("an instance that has ended: %v", err)
		}
	})
}

// TestCut: an owner that does not reach the store has stopped before another one takes its topics, and gets none of them back.
func TestCut(t *testing.T) {
	for _, how := range []string{"refused", "stalled"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, s store.Store, a, b *instance) {
				one := take(t, a, "t")
				other := take(t, a, "u")
				time.Sleep(time.Minute)
				refused(t, b, "t", "a")
				if how == "refused" {
					a.store.set(errors.New("cut"), 0)
				} else {
					a.store.set(nil, time.Hour)
				}
				began := time.Now()
				var stopped, taken time.Duration
				var two *Claim
				for taken == 0 {
					time.Sleep(100 * time.Millisecond)
					if stopped == 0 && lost(one) {
						stopped = time.Since(began)
						if !lost(other) {
							t.Error("the owner goes on with another topic")
						}
					}
					if c, err := b.Take(t.Context(), "t"); err == nil {
						two, taken = c, time.Since(began)
					}
				}
				if stopped == 0 || stopped > DefaultDuration || taken-stopped < DefaultDuration/10 || taken > 2*DefaultDuration {
					t.Errorf("the owner has stopped after %v, and was succeeded after %v", stopped, taken)
				}
				if guarded(s, one) == nil || guarded(s, two) != nil {
					t.Error("the former owner may write, or the new one may not")
				}
				if guarded(s, other) != nil {
					t.Error("what nobody has taken is refused")
				}
				take(t, b, "u") // at once
				a.store.set(nil, 0)
				if how == "stalled" {
					time.Sleep(time.Hour) // until its commit has ended, which must be refused
				}
				refused(t, a, "t", "b")
				refused(t, a, "u", "b")
				take(t, a, "v")
			})
		})
	}
}

// TestPaused: a process that was stopped serves nothing when it goes on, though its timers are late.
func TestPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		defer s.Close()
		a, b := New(Config{Store: s, Self: Owner{Name: "a", Address: "a:6650"}}), start(s, "b") // a does not run: it is stopped
		defer b.stop()
		one, err := a.Take(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		a.mu.Lock()
		a.timer.Stop()
		a.mu.Unlock()
		time.Sleep(refused(t, b, "t", "a").Wait)
		two := take(t, b, "t")
		if one.Valid() || guarded(s, one) == nil || !two.Valid() {
			t.Error("two instances have a topic")
		}
	})
}

// TestIdle: claims that nobody uses are given up, and an instance without any writes nothing.
func TestIdle(t *testing.T) {
	bubble(t, func(t *testing.T, s store.Store, a, b *instance) {
		found(t, a, "t", "a")
		used := take(t, a, "u")
		found(t, b, "t", "a")
		time.Sleep(idleFor + DefaultDuration)
		found(t, b, "t", "b")
		refused(t, b, "u", "a")
		used.Release()
		used.Release()
		time.Sleep(idleFor + DefaultDuration)
		if n := a.Count() + b.Count(); n != 0 {
			t.Errorf("%d claims of nobody", n)
		}
		if left := rows(t, s); len(left) > 0 {
			t.Errorf("rows are left: %v", left)
		}
		before, _ := s.Revision(t.Context())
		time.Sleep(time.Hour)
		if after, _ := s.Revision(t.Context()); after != before {
			t.Errorf("%d writes of idle instances", after-before)
		}
		take(t, b, "u")
		refused(t, a, "u", "b")
	})
}

// TestSweep: rows of an instance that is gone do not stay.
func TestSweep(t *testing.T) {
	bubble(t, func(t *testing.T, s store.Store, a, b *instance) {
		for n := range 5 {
			take(t, a, fmt.Sprint("gone ", n))
		}
		kept := take(t, b, "kept")
		a.store.set(errors.New("cut"), 0)
		time.Sleep(3 * sweepEvery)
		if left := rows(t, s); len(left) != 2 { // its lease, its claim
			t.Errorf("rows are left: %v", left)
		}
		if !kept.Valid() || guarded(s, kept) != nil {
			t.Error("the claim of an instance that lives is gone")
		}
	})
}

// TestRace: of many who take a topic at the same time, in turns with ends and cuts of instances, never two have it.
func TestRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		defer s.Close()
		var mu sync.Mutex
		owner, terms := "", 0
		var running sync.WaitGroup
		ctx, cancel := context.WithCancel(context.Background())
		for n := range 4 {
			i := start(s, fmt.Sprint(n))
			running.Go(func() {
				defer i.stop()
				for round := 0; ctx.Err() == nil; round++ {
					c, err := i.Take(ctx, "t")
					if err != nil {
						time.Sleep(time.Duration(500+n) * time.Millisecond)
						continue
					}
					mu.Lock()
					if owner != "" {
						t.Errorf("%d and %s have the topic", n, owner)
					}
					owner, terms = i.cfg.Self.Name, terms+1
					mu.Unlock()
					if round%2 == 0 {
						i.store.set(errors.New("cut"), 0)
					}
					select {
					case <-c.Lost():
					case <-time.After(30 * time.Second):
					}
					mu.Lock()
					owner = ""
					mu.Unlock()
					c.Release()
					time.Sleep(3 * idleFor) // others have their turn
					i.store.set(nil, 0)
				}
			})
		}
		time.Sleep(time.Hour)
		cancel()
		running.Wait()
		if terms < 10 {
			t.Errorf("the topic had %d owners", terms)
		}
	})
}
