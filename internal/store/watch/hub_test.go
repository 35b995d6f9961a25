package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// history is a source that counts its calls.
type history struct {
	mu      sync.Mutex
	batches []store.Batch
	reads   int
	err     error
}

func (h *history) History(_ context.Context, _ string, after, until store.Revision) ([]store.Batch, store.Revision, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads++
	if h.err != nil {
		return nil, 0, h.err
	}
	for _, b := range h.batches {
		if b.Revision > after && b.Revision <= until {
			return []store.Batch{b}, b.Revision, nil // one batch per call
		}
	}
	return nil, until, nil
}

func (h *history) add(b store.Batch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.batches = append(h.batches, b)
}

// batch has events first … last on the keys given, in turn.
func batch(first, last store.Revision, keys ...string) store.Batch {
	b := store.Batch{Revision: last}
	for rev := first; rev <= last; rev++ {
		key := keys[int(rev-first)%len(keys)]
		b.Events = append(b.Events, store.Event{Kind: store.Put, Record: store.Record{Key: key, Modified: rev}})
	}
	return b
}

// drain reads what is there without waiting.
func drain(w store.Watcher) (got []string) {
	synctest.Wait()
	for {
		select {
		case b, ok := <-w.Batches():
			if !ok {
				return append(got, fmt.Sprint("end: ", w.Err()))
			}
			text := fmt.Sprint(b.Revision, ":")
			for _, e := range b.Events {
				text += fmt.Sprintf(" %s@%d", e.Record.Key, e.Record.Modified)
			}
			got = append(got, text)
		default:
			return got
		}
		synctest.Wait()
	}
}

func want(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &history{}
		h := NewHub(source, 0, Limits{Events: 4, Bytes: 1 << 20})
		defer h.Close()
		watch := func(prefix string, after store.Revision) store.Watcher {
			w, err := h.Watch(t.Context(), prefix, after)
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
		all, a, none := watch("", 0), watch("a", 0), watch("z", 0)
		for _, b := range []store.Batch{batch(1, 2, "a", "b"), batch(3, 3, "b"), batch(4, 6, "a/1", "b", "a/2")} {
			source.add(b)
			h.Publish(b)
			synctest.Wait()
		}
		want(t, "all", drain(all), "2: a@1 b@2", "3: b@3", "6: a/1@4 b@5 a/2@6")
		want(t, "a", drain(a), "2: a@1", "6: a/1@4 a/2@6")
		want(t, "none", drain(none))
		none.Progress()
		want(t, "none, progress requested", drain(none), "6:")
		if source.reads != 0 {
			t.Errorf("watchers that kept up read history %d times", source.reads)
		}

		want(t, "inside a kept batch", drain(watch("", 4)), "6: b@5 a/2@6")
		want(t, "after the floor", drain(watch("", 2)), "3: b@3", "6: a/1@4 b@5 a/2@6")
		if source.reads != 0 {
			t.Errorf("what is kept was read from history %d times", source.reads)
		}
		want(t, "below the floor", drain(watch("", 1)), "2: b@2", "3: b@3", "6: a/1@4 b@5 a/2@6")
		if source.reads != 1 {
			t.Errorf("history was read %d times, want 1: the rest is kept", source.reads)
		}

		source.err = store.ErrCompacted
		want(t, "compacted", drain(watch("", 0)), "end: "+store.ErrCompacted.Error())
	})
}

// TestSlowReader publishes far more than anything keeps; Publish never waits.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &history{}
		h := NewHub(source, 0, Limits{Events: 10, Bytes: 1 << 20})
		defer h.Close()
		w, err := h.Watch(t.Context(), "", 0)
		if err != nil {
			t.Fatal(err)
		}
		const last = 1000
		for rev := store.Revision(1); rev <= last; rev++ {
			b := batch(rev, rev, "k")
			source.add(b)
			h.Publish(b)
		}
		if len(h.recent) > 10 {
			t.Errorf("%d batches kept", len(h.recent))
		}
		got := drain(w)
		if len(got) != last || got[last-1] != "1000: k@1000" {
			t.Errorf("%d batches, the last is %s", len(got), got[len(got)-1])
		}
	})
}

func TestBytesAreBounded(t *testing.T) {
	h := NewHub(&history{}, 0, Limits{Events: 1000, Bytes: 100})
	defer h.Close()
	for rev := store.Revision(1); rev <= 10; rev++ {
		h.Publish(store.Batch{Revision: rev, Events: []store.Event{{
			Kind: store.Delete, Record: store.Record{Key: "k", Modified: rev}, Prev: &store.Record{Value: make([]byte, 30)},
		}}})
	}
	if len(h.recent) != 3 || h.floor != 7 {
		t.Errorf("%d batches are kept after %d, want 3 after 7", len(h.recent), h.floor)
	}
}

// TestSkip: what was skipped comes from the source, and ends watchers where the
// source does not have it; who waits for a revision gets on.
func TestSkip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &history{}
		h := NewHub(source, 0, Limits{Events: 100, Bytes: 1 << 20})
		defer h.Close()
		idle, err := h.Watch(t.Context(), "", 0)
		if err != nil {
			t.Fatal(err)
		}
		first := batch(1, 1, "k")
		h.Publish(first)
		want(t, "before", drain(idle), "1: k@1")
		awaited := make(chan error)
		go func() { awaited <- h.Await(t.Context(), 3) }()
		source.add(batch(2, 3, "k"))
		synctest.Wait()
		h.Skip(3)
		if err := <-awaited; err != nil {
			t.Error(err)
		}
		h.Publish(batch(4, 4, "k"))
		want(t, "skipped, and published after", drain(idle), "3: k@2 k@3", "4: k@4")
		source.err = store.ErrCompacted
		h.Skip(6)
		want(t, "skipped and compacted", drain(idle), "end: "+store.ErrCompacted.Error())
		if late, err := h.Watch(t.Context(), "", 6); err != nil {
			t.Error(err)
		} else {
			h.Publish(batch(7, 7, "k"))
			want(t, "from the end", drain(late), "7: k@7")
		}
	})
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(&history{}, 3, Limits{})
		if err := h.Await(t.Context(), 3); err != nil {
			t.Error(err)
		}
		done := make(chan error)
		go func() { done <- h.Await(t.Context(), 5) }()
		for rev := store.Revision(4); rev <= 5; rev++ {
			synctest.Wait()
			select {
			case <-done:
				t.Errorf("returned before revision %d", rev)
			default:
			}
			h.Publish(batch(rev, rev, "k"))
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := h.Await(ctx, 6); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		go func() { done <- h.Await(t.Context(), 6) }()
		synctest.Wait()
		h.Close()
		if err := <-done; !errors.Is(err, store.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}
