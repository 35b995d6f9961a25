package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/proxima-mesh/proxima/internal/store"
)

func checkWatchEvents(f *fixture) {
	all, some := f.watch("", 0), f.watch("/x/", 0)
	f.commit(put("/x/a", "1"))
	f.commit(put("/y/a", "1"), put("/x/a", "2"), put("/x/b", "2"))
	f.commit(del("/x/a"), del("/absent"))
	f.commit(put("/y/b", "1"))
	a1 := store.Record{Key: "/x/a", Value: []byte("1"), Created: 1, Modified: 1}
	a3 := store.Record{Key: "/x/a", Value: []byte("2"), Created: 1, Modified: 3}
	putA1 := store.Event{Kind: store.Put, Record: a1}
	putA3 := store.Event{Kind: store.Put, Record: a3, Prev: &a1}
	putB4 := store.Event{Kind: store.Put, Record: store.Record{Key: "/x/b", Value: []byte("2"), Created: 4, Modified: 4}}
	delA5 := store.Event{Kind: store.Delete, Record: store.Record{Key: "/x/a", Created: 1, Modified: 5}, Prev: &a3}
	wantSome := []store.Batch{
		{Revision: 1, Events: []store.Event{putA1}},
		{Revision: 4, Events: []store.Event{putA3, putB4}},
		{Revision: 5, Events: []store.Event{delA5}},
	}
	wantAll := []store.Batch{
		{Revision: 1, Events: []store.Event{putA1}},
		{Revision: 4, Events: []store.Event{
			{Kind: store.Put, Record: store.Record{Key: "/y/a", Value: []byte("1"), Created: 2, Modified: 2}}, putA3, putB4,
		}},
		{Revision: 5, Events: []store.Event{delA5}},
		{Revision: 6, Events: []store.Event{{Kind: store.Put, Record: store.Record{Key: "/y/b", Value: []byte("1"), Created: 6, Modified: 6}}}},
	}
	// Live and from history, a watcher sees the same.
	for name, c := range map[string]struct {
		w    store.Watcher
		want []store.Batch
	}{
		"live":                     {all, wantAll},
		"live, prefix":             {some, wantSome},
		"from the start":           {f.watch("", 0), wantAll},
		"from the start, prefix":   {f.watch("/x/", 0), wantSome},
		"from the middle":          {f.watch("", 4), wantAll[2:]},
		"from the middle, prefix":  {f.watch("/x/", 4), wantSome[2:]},
		"from now":                 {f.watch("", 6), nil},
		"from the start, no match": {f.watch("/z/", 0), nil},
	} {
		batches, err := collect(c.w, 6)
		if err != nil {
			f.Fatalf("%s: %v", name, err)
		}
		f.equal(name, batches, c.want)
	}
}

// checkWatchResume resumes at every revision, also inside transactions: the
// events after it follow, once each.
func checkWatchResume(f *fixture) {
	var last store.Revision
	for i := range 5 {
		var ops []store.Op
		for j := range i + 1 {
			ops = append(ops, put(fmt.Sprintf("k%d", j), fmt.Sprint(i)))
		}
		last = f.commit(ops...)
	}
	for after := store.Revision(0); after <= last; after++ {
		batches, err := collect(f.watch("", after), last)
		if err != nil {
			f.Fatal(err)
		}
		want := after
		for _, b := range batches {
			for _, e := range b.Events {
				if want++; e.Record.Modified != want {
					f.Errorf("after %d: got revision %d, want %d", after, e.Record.Modified, want)
				}
			}
			f.equal("a batch promises its last event", b.Revision, b.Events[len(b.Events)-1].Record.Modified)
		}
		f.equal(fmt.Sprintf("after %d: last", after), want, last)
	}
}

func checkWatchProgress(f *fixture) {
	marker := func(w store.Watcher, want store.Revision) {
		f.Helper()
		w.Progress()
		b, err := next(w)
		if err != nil {
			f.Fatal(err)
		}
		f.equal("marker", b, store.Batch{Revision: want})
	}
	idle := f.watch("/none/", 0)
	marker(idle, 0)
	rev := f.commit(put("a", "1"), put("b", "1"))
	marker(idle, rev)
	marker(idle, rev)
	for range 100 {
		rev = f.commit(put("a", "2"))
		marker(idle, rev)
	}
	// The marker comes after what was committed before the call.
	busy := f.watch("", 0)
	busy.Progress()
	var seen store.Revision
	for {
		b, err := next(busy)
		if err != nil {
			f.Fatal(err)
		}
		if len(b.Events) == 0 {
			f.equal("marker", b.Revision, rev)
			f.equal("seen before the marker", seen, rev)
			return
		}
		seen = b.Revision
	}
}

func checkWatchEnds(f *fixture) {
	f.commit(put("a", "1"))

	closed := f.watch("", 0)
	if err := closed.Err(); err != nil {
		f.Errorf("a running watcher has an error: %v", err)
	}
	closed.Close()
	closed.Close()
	if err := end(f, closed); err != nil {
		f.Errorf("after Close: %v", err)
	}
	closed.Progress() // of no use, but harmless

	ctx, cancel := context.WithCancel(f.Context())
	cancelled, err := f.s.Watch(ctx, "", 0)
	if err != nil {
		f.Fatal(err)
	}
	cancel()
	if err := end(f, cancelled); !errors.Is(err, context.Canceled) {
		f.Errorf("after its context: %v", err)
	}

	waiting, behind := f.watch("", 1), f.watch("", 0)
	if err := f.s.Close(); err != nil {
		f.Fatal(err)
	}
	for name, w := range map[string]store.Watcher{"waiting": waiting, "behind": behind} {
		if err := end(f, w); !errors.Is(err, store.ErrClosed) {
			f.Errorf("%s watcher after the store's Close: %v", name, err)
		}
		w.Close()
	}
}

// checkSlowWatcher commits far more than a store may keep at hand for a watcher
// that does not read, and then reads all of it.
func checkSlowWatcher(f *fixture) {
	slow := f.watch("", 0)
	var last store.Revision
	size := f.atMost(400)
	txns := 24000 / size
	for i := range txns {
		ops := make([]store.Op, 0, size)
		for j := range size {
			ops = append(ops, put(fmt.Sprintf("k/%d", j), fmt.Sprint(i)))
		}
		last = f.commit(ops...)
	}
	batches, err := collect(slow, last)
	if err != nil {
		f.Fatal(err)
	}
	f.equal("batches", len(batches), txns)
	var want store.Revision
	for i, b := range batches {
		f.equal("events", len(b.Events), size)
		for _, e := range b.Events {
			want++
			if e.Record.Modified != want || string(e.Record.Value) != fmt.Sprint(i) || (e.Prev == nil) != (i == 0) {
				f.Fatalf("event %+v, want revision %d and value %d", e, want, i)
			}
		}
	}
}

func checkSlowWatcherCompacted(f *fixture) {
	slow := f.watch("", 0)
	var last store.Revision
	size := f.atMost(400)
	for i := range 16000 / size {
		ops := make([]store.Op, 0, size)
		for j := range size {
			ops = append(ops, put(fmt.Sprintf("k/%d", j), fmt.Sprint(i)))
		}
		last = f.commit(ops...)
	}
	f.compact(last)
	f.commit(put("k/0", "last"))
	// What was on its way is still delivered, without a gap; a watcher that
	// needs more than that ends.
	var want store.Revision
	for b := range slow.Batches() {
		for _, e := range b.Events {
			if want++; e.Record.Modified != want {
				f.Fatalf("got revision %d, want %d", e.Record.Modified, want)
			}
		}
		if b.Revision == last+1 {
			return // the store still had it all
		}
	}
	if err := slow.Err(); !errors.Is(err, store.ErrCompacted) {
		f.Errorf("after %d: want ErrCompacted, got %v", want, err)
	}
}
