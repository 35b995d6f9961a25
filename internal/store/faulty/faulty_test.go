package faulty_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	testclock "k8s.io/utils/clock/testing"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/faulty"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestContract: without faults the wrapper is a store like any other.
func TestContract(t *testing.T) {
	clock := testclock.NewFakeClock(time.Date(2025, 1, 2, 3, 4, 5, 6, time.UTC))
	storetest.Run(t, func(t *testing.T) store.Store {
		s := faulty.New(memory.New(memory.Options{Clock: clock}), 1, faulty.Probabilities{})
		t.Cleanup(func() { _ = s.Close() })
		return s
	}, storetest.Options{Clock: clock})
}

// TestContractUnderFaults: a caller that tries again loses nothing by faults.
func TestContractUnderFaults(t *testing.T) {
	clock := testclock.NewFakeClock(time.Date(2025, 1, 2, 3, 4, 5, 6, time.UTC))
	faults := 0
	storetest.Run(t, func(t *testing.T) store.Store {
		s := faulty.New(memory.New(memory.Options{Clock: clock}), 1, faulty.Probabilities{Calls: 0.1, Batches: 0.1})
		t.Cleanup(func() { _ = s.Close(); faults += s.Injected() })
		return faulty.Retrying{Store: s}
	}, storetest.Options{Clock: clock})
	if faults == 0 {
		t.Error("there were no faults")
	}
}

func wrap(t *testing.T, seed uint64, probabilities faulty.Probabilities) *faulty.Store {
	s := faulty.New(memory.New(memory.Options{}), seed, probabilities)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func put(key string) store.Txn {
	return store.Txn{Ops: []store.Op{{Kind: store.Put, Key: key}}}
}

func TestEveryCallFails(t *testing.T) {
	s := wrap(t, 1, faulty.Probabilities{Calls: 1})
	ctx := t.Context()
	calls := map[string]func() error{
		"get":      func() error { _, _, _, err := s.Get(ctx, "a", 0); return err },
		"list":     func() error { _, err := s.List(ctx, store.ListOptions{}); return err },
		"count":    func() error { _, err := s.Count(ctx, ""); return err },
		"commit":   func() error { _, err := s.Commit(ctx, put("a")); return err },
		"watch":    func() error { _, err := s.Watch(ctx, "", 0); return err },
		"revision": func() error { _, err := s.Revision(ctx); return err },
		"compact":  func() error { return s.Compact(ctx, 0) },
		"size":     func() error { _, err := s.Size(ctx); return err },
		"ready":    func() error { return s.Ready(ctx) },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, faulty.ErrInjected) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s.Injected() != len(calls) {
		t.Errorf("%d faults counted, want %d", s.Injected(), len(calls))
	}
	s.Set(faulty.Probabilities{})
	for name, call := range calls {
		if name == "watch" {
			continue // it would need closing; the contract covers it
		}
		if err := call(); err != nil {
			t.Errorf("%s after healing: %v", name, err)
		}
	}
	if rev, _ := s.Revision(ctx); rev != 1 {
		t.Errorf("revision %d: a failed commit was applied", rev)
	}
}

func TestSeed(t *testing.T) {
	outcomes := func(seed uint64) (failed []bool) {
		s := wrap(t, seed, faulty.Probabilities{Calls: 0.3})
		for range 1000 {
			failed = append(failed, s.Ready(t.Context()) != nil)
		}
		return failed
	}
	one, again, other := outcomes(1), outcomes(1), outcomes(2)
	if !slices.Equal(one, again) || slices.Equal(one, other) {
		t.Error("outcomes do not depend on the seed alone")
	}
	n := 0
	for _, failed := range one {
		if failed {
			n++
		}
	}
	if n < 200 || n > 400 {
		t.Errorf("%d of 1000 calls failed, want about 300", n)
	}
}

// TestWatchersResume follows a store whose watchers keep ending.
func TestWatchersResume(t *testing.T) {
	s := wrap(t, 1, faulty.Probabilities{Batches: 0.3})
	for i := range 100 {
		if _, err := s.Commit(t.Context(), put(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	var seen store.Revision
	ends := 0
	for seen < 100 {
		w, err := s.Watch(t.Context(), "", seen)
		if err != nil {
			t.Fatal(err)
		}
		for b := range w.Batches() {
			if seen++; b.Revision != seen {
				t.Fatalf("revision %d, want %d", b.Revision, seen)
			}
			if seen == 100 {
				break
			}
		}
		if err := w.Err(); err != nil {
			if ends++; !errors.Is(err, faulty.ErrInjected) {
				t.Fatal(err)
			}
		}
		w.Close()
	}
	if ends == 0 {
		t.Error("no watcher ended")
	}
}
