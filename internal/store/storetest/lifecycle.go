package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

func ttl(key string, d time.Duration) store.Op {
	return store.Op{Kind: store.Put, Key: key, Value: []byte("v"), TTL: d}
}

// margin before a deadline at which a key must still be there: more than a store
// may take a clock to move by itself.
const margin = 10 * time.Millisecond

func checkExpiry(f *fixture) {
	start := f.opts.Clock.Now()
	f.commit(ttl("a", time.Second))
	f.commit(ttl("b", 2500*time.Millisecond)) // rounded up to 3 s
	f.commit(ttl("kept", time.Second), ttl("longer", time.Second), ttl("shorter", time.Hour))
	f.commit(put("kept", "v"))
	f.commit(ttl("longer", 4*time.Second))
	f.commit(ttl("shorter", 2*time.Second))
	last := f.commit(put("plain", "v"))
	var expires []time.Duration
	for _, r := range f.list(store.ListOptions{}).Records {
		if r.Expires.IsZero() {
			expires = append(expires, 0)
			continue
		}
		expires = append(expires, r.Expires.Sub(start))
	}
	f.equal("expires of a, b, kept, longer, plain, shorter", expires, []time.Duration{
		time.Second, 3 * time.Second, 0, 4 * time.Second, 0, 2 * time.Second,
	})
	w := f.watch("", last)
	for i, key := range []string{"a", "shorter", "b", "longer"} {
		f.opts.Clock.Step(time.Second - margin)
		if _, ok, _, err := f.s.Get(f.Context(), key, 0); !ok || err != nil {
			f.Errorf("%q is gone before its time: %v", key, err)
		}
		f.opts.Clock.Step(margin)
		b, err := next(w)
		if err != nil {
			f.Fatal(err)
		}
		e := b.Events[0]
		if len(b.Events) != 1 || e.Kind != store.Delete || e.Record.Key != key || e.Record.Modified != last+store.Revision(i)+1 {
			f.Errorf("expiry of %q: %+v", key, b)
		}
		if e.Prev == nil || e.Prev.Expires.IsZero() || !e.Record.Expires.IsZero() {
			f.Errorf("expiry of %q: %+v, before %+v", key, e.Record, e.Prev)
		}
	}
	f.equal("left", contents(f.list(store.ListOptions{})), map[string]string{"kept": "v", "plain": "v"})
	// Many at once, one of them written again just before.
	const many = 600
	var ops []store.Op
	for i := range many {
		ops = append(ops, ttl(fmt.Sprintf("many/%d", i), time.Minute))
	}
	for part := range slices.Chunk(ops, f.atMost(many)) {
		f.commit(part...)
	}
	f.commit(put("many/7", "stays"))
	f.opts.Clock.Step(time.Minute)
	f.eventually("expiry of many", func() bool {
		return len(f.list(store.ListOptions{KeysOnly: true}).Records) == 3
	})
}

func checkClose(f *fixture) {
	f.commit(put("a", "1"))
	epoch := f.s.Epoch()
	for range 2 {
		if err := f.s.Close(); err != nil {
			f.Errorf("close: %v", err)
		}
	}
	calls := map[string]func() error{
		"get":      func() error { _, _, _, err := f.s.Get(f.Context(), "a", 0); return err },
		"list":     func() error { _, err := f.s.List(f.Context(), store.ListOptions{}); return err },
		"count":    func() error { _, err := f.s.Count(f.Context(), ""); return err },
		"commit":   func() error { _, err := f.s.Commit(f.Context(), store.Txn{Ops: []store.Op{put("a", "2")}}); return err },
		"watch":    func() error { _, err := f.s.Watch(f.Context(), "", 0); return err },
		"revision": func() error { _, err := f.s.Revision(f.Context()); return err },
		"compact":  func() error { return f.s.Compact(f.Context(), 1) },
		"size":     func() error { _, err := f.s.Size(f.Context()); return err },
		"ready":    func() error { return f.s.Ready(f.Context()) },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, store.ErrClosed) {
			f.Errorf("%s on a closed store: want ErrClosed, got %v", name, err)
		}
	}
	f.equal("epoch", f.s.Epoch(), epoch)
}

func (f *fixture) reopen() {
	f.Helper()
	if f.opts.Reopen == nil {
		f.Skip("this store keeps nothing over a restart")
	}
	f.s = f.opts.Reopen(f.T, f.s)
}

func checkReopen(f *fixture) {
	f.commit(put("a", "1"), put("b", "1"))
	f.commit(put("a", "2"))
	f.commit(del("b"))
	last := f.commit(ttl("c", time.Hour), put("d", ""))
	f.compact(3)
	before, past, epoch := f.list(store.ListOptions{}), f.list(store.ListOptions{At: 3}), f.s.Epoch()
	size, _ := f.s.Size(f.Context())
	events, err := collect(f.watch("", 3), last)
	if err != nil {
		f.Fatal(err)
	}
	for range 2 {
		f.reopen()
		f.equal("epoch", f.s.Epoch(), epoch)
		f.equal("revision", f.revision(), last)
		f.equal("compacted", f.s.Compacted(), store.Revision(3))
		f.equal("list", f.list(store.ListOptions{}), before)
		f.equal("list at 3", f.list(store.ListOptions{At: 3}), past)
		f.wantErrors("compacted before", store.ErrCompacted, 2)
		f.wantErrors("future", store.ErrFuture, last+1)
		again, err := collect(f.watch("", 3), last)
		if err != nil {
			f.Fatal(err)
		}
		f.equal("history", again, events)
		n, err := f.s.Size(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		f.equal("size", n, size)
	}
	f.equal("revisions go on", f.commit(put("a", "3")), last+1)
}

// checkReopenExpiry: a deadline that passes while the store is closed is kept
// as soon as it is open, and later ones stay in force.
func checkReopenExpiry(f *fixture) {
	last := f.commit(ttl("while-closed", time.Second), ttl("later", time.Hour), put("never", "v"))
	if f.opts.Reopen == nil {
		f.Skip("this store keeps nothing over a restart")
	}
	if err := f.s.Close(); err != nil {
		f.Fatal(err)
	}
	f.opts.Clock.Step(time.Minute)
	f.reopen()
	w := f.watch("", last)
	for _, key := range []string{"while-closed", "later"} {
		b, err := next(w)
		if err != nil {
			f.Fatal(err)
		}
		f.equal("expired", b.Events[0].Record.Key, key)
		f.opts.Clock.Step(time.Hour)
	}
	f.equal("left", contents(f.list(store.ListOptions{})), map[string]string{"never": "v"})
}
