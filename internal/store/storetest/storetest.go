// Package storetest is the contract of store.Store as tests. Every store runs
// it; a store that passes can stand in for any other.
//
// It owns the checks and a model of a store that is simple enough to be read as
// the specification. Enter at Run. It uses the interface only.
package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	testclock "k8s.io/utils/clock/testing"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Options of Run.
type Options struct {
	// Clock that every store made by open uses for expiry. Required: a suite
	// that waits for real time would be slow or flaky.
	Clock *testclock.FakeClock
	// Reopen closes a store and opens its data again; nil if the store does not
	// keep anything.
	Reopen func(t *testing.T, s store.Store) store.Store
}

// Run checks a store against the contract. open makes an empty store and closes it
// with t.Cleanup (Close is idempotent).
func Run(t *testing.T, open func(t *testing.T) store.Store, opts Options) {
	t.Helper()
	if opts.Clock == nil {
		t.Fatal("storetest: Options.Clock is required")
	}
	checks := []struct {
		name  string
		check func(*fixture)
	}{
		{"starts empty", checkEmpty},
		{"revisions have no gaps", checkRevisions},
		{"conditions", checkConditions},
		{"conflict details", checkConflict},
		{"invalid transactions", checkInvalid},
		{"a cancelled context changes nothing", checkCancelled},
		{"values are copied", checkOwnership},
		{"reads at a revision", checkReadAt},
		{"reads inside a transaction", checkReadInsideTxn},
		{"list options", checkList},
		{"odd keys", checkOddKeys},
		{"paging under writes", checkPaging},
		{"compaction", checkCompaction},
		{"compaction inside a transaction", checkCompactionInsideTxn},
		{"size", checkSize},
		{"watch events", checkWatchEvents},
		{"watch resumes anywhere", checkWatchResume},
		{"watch progress", checkWatchProgress},
		{"watch ends", checkWatchEnds},
		{"slow watcher", checkSlowWatcher},
		{"slow watcher is compacted away", checkSlowWatcherCompacted},
		{"expiry", checkExpiry},
		{"close", checkClose},
		{"reopen", checkReopen},
		{"reopen after expiry", checkReopenExpiry},
		{"model", checkModel},
		{"concurrent writers", checkHammer},
		{"concurrent transactions are whole", checkAtomicity},
	}
	open, opts = densely(open, opts)
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			c.check(&fixture{T: t, s: open(t), open: open, opts: opts})
		})
	}
}

// densely makes Sparse stores look like others, see dense.
func densely(open func(*testing.T) store.Store, opts Options) (func(*testing.T) store.Store, Options) {
	wrap := func(t *testing.T, s store.Store, n *numbers) store.Store {
		t.Helper()
		if !s.Properties().Sparse {
			return s
		}
		d, err := newDense(t.Context(), s, n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.close)
		return d
	}
	reopen := opts.Reopen
	if reopen != nil {
		opts.Reopen = func(t *testing.T, s store.Store) store.Store {
			t.Helper()
			if d, ok := s.(*dense); ok {
				d.close()
				return wrap(t, reopen(t, d.Store), d.numbers)
			}
			return reopen(t, s)
		}
	}
	return func(t *testing.T) store.Store { t.Helper(); return wrap(t, open(t), nil) }, opts
}

// fixture is one store under test with the calls that must not fail.
type fixture struct {
	*testing.T
	s    store.Store
	open func(*testing.T) store.Store
	opts Options
}

// waitTimeout bounds waits that should be instant; it only matters to a failing
// test.
const waitTimeout = 2 * time.Minute

func put(key, value string) store.Op {
	return store.Op{Kind: store.Put, Key: key, Value: []byte(value)}
}

func del(key string) store.Op { return store.Op{Kind: store.Delete, Key: key} }

// atMost is n, or as many keys as the store takes in one transaction.
func (f *fixture) atMost(n int) int {
	if most := f.s.Properties().MaxKeys; most > 0 {
		return min(n, most)
	}
	return n
}

func (f *fixture) commit(ops ...store.Op) store.Revision {
	f.Helper()
	rev, err := f.s.Commit(f.Context(), store.Txn{Ops: ops})
	if err != nil {
		f.Fatalf("commit: %v", err)
	}
	return rev
}

func (f *fixture) list(opts store.ListOptions) store.Page {
	f.Helper()
	page, err := f.s.List(f.Context(), opts)
	if err != nil {
		f.Fatalf("list %+v: %v", opts, err)
	}
	return page
}

func (f *fixture) compact(upTo store.Revision) {
	f.Helper()
	if err := f.s.Compact(f.Context(), upTo); err != nil {
		f.Fatalf("compact up to %d: %v", upTo, err)
	}
}

func (f *fixture) watch(prefix string, after store.Revision) store.Watcher {
	f.Helper()
	w, err := f.s.Watch(f.Context(), prefix, after)
	if err != nil {
		f.Fatalf("watch %q after %d: %v", prefix, after, err)
	}
	f.Cleanup(w.Close)
	return w
}

func (f *fixture) revision() store.Revision {
	f.Helper()
	rev, err := f.s.Revision(f.Context())
	if err != nil {
		f.Fatalf("revision: %v", err)
	}
	return rev
}

// equal fails if got differs from want.
func (f *fixture) equal(what string, got, want any) {
	f.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		f.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// contents is the live state as key → value.
func contents(p store.Page) map[string]string {
	m := make(map[string]string, len(p.Records))
	for _, r := range p.Records {
		m[r.Key] = string(r.Value)
	}
	return m
}

// next is one batch, or an error if the watcher ended or nothing came.
func next(w store.Watcher) (store.Batch, error) {
	timeout := time.NewTimer(waitTimeout)
	defer timeout.Stop()
	select {
	case b, ok := <-w.Batches():
		if !ok {
			return store.Batch{}, fmt.Errorf("watcher ended: %w", w.Err())
		}
		return b, nil
	case <-timeout.C:
		return store.Batch{}, fmt.Errorf("no batch within %s", waitTimeout)
	}
}

// collect reads batches with events until a revision is promised.
func collect(w store.Watcher, upTo store.Revision) ([]store.Batch, error) {
	w.Progress()
	var batches []store.Batch
	for {
		b, err := next(w)
		if err != nil {
			return batches, err
		}
		if len(b.Events) > 0 {
			batches = append(batches, b)
		}
		if b.Revision >= upTo {
			return batches, nil
		}
	}
}

// end waits until a watcher has ended and returns why.
func end(f *fixture, w store.Watcher) error {
	f.Helper()
	timeout := time.NewTimer(waitTimeout)
	defer timeout.Stop()
	for {
		select {
		case _, ok := <-w.Batches():
			if !ok {
				return w.Err()
			}
		case <-timeout.C:
			f.Fatalf("the watcher did not end within %s", waitTimeout)
		}
	}
}

// eventually waits for a condition that background work brings about.
func (f *fixture) eventually(what string, holds func() bool) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), waitTimeout)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.Fatalf("%s: not within %s", what, waitTimeout)
		}
	}
}
