package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

func checkEmpty(f *fixture) {
	f.equal("revision", f.revision(), store.Revision(0))
	f.equal("compacted", f.s.Compacted(), store.Revision(0))
	f.equal("page", f.list(store.ListOptions{}), store.Page{})
	if len(f.s.Epoch()) < 16 {
		f.Errorf("epoch %q is too short to be random", f.s.Epoch())
	}
	if other := f.open(f.T); other.Epoch() == f.s.Epoch() {
		f.Errorf("two stores have the same epoch %q", other.Epoch())
	}
	if err := f.s.Ready(f.Context()); err != nil {
		f.Errorf("ready: %v", err)
	}
	_, ok, read, err := f.s.Get(f.Context(), "a", 0)
	if ok || read != 0 || err != nil {
		f.Errorf("get of an absent key: %v, %d, %v", ok, read, err)
	}
}

func checkRevisions(f *fixture) {
	steps := []struct {
		name string
		ops  []store.Op
		want store.Revision
	}{
		{"one put", []store.Op{put("a", "1")}, 1},
		{"nothing", nil, 1},
		{"deleting the absent", []store.Op{del("x")}, 1},
		{"each change counts", []store.Op{put("b", "1"), del("x"), put("c", "1")}, 3},
		{"an equal value is a change", []store.Op{put("a", "1")}, 4},
		{"a deletion is a change", []store.Op{del("a")}, 5},
		{"made again", []store.Op{put("a", "2")}, 6},
	}
	for _, s := range steps {
		f.equal(s.name, f.commit(s.ops...), s.want)
		f.equal(s.name+": revision", f.revision(), s.want)
	}
	f.equal("records", f.list(store.ListOptions{}).Records, []store.Record{
		{Key: "a", Value: []byte("2"), Created: 6, Modified: 6},
		{Key: "b", Value: []byte("1"), Created: 2, Modified: 2},
		{Key: "c", Value: []byte("1"), Created: 3, Modified: 3},
	})
	f.commit(put("b", "2"))
	rec, ok, read, err := f.s.Get(f.Context(), "b", 0)
	if !ok || err != nil {
		f.Fatalf("get: %v, %v", ok, err)
	}
	f.equal("record", rec, store.Record{Key: "b", Value: []byte("2"), Created: 2, Modified: 7})
	f.equal("read at", read, store.Revision(7))
}

func checkConditions(f *fixture) {
	a := f.commit(put("a", "1"))
	cases := []struct {
		name  string
		conds []store.Condition
		holds bool
	}{
		{"none", nil, true},
		{"present", []store.Condition{{Key: "a", Modified: a}}, true},
		{"absent", []store.Condition{{Key: "x"}}, true},
		{"both", []store.Condition{{Key: "a", Modified: a}, {Key: "x"}}, true},
		{"absent, but present", []store.Condition{{Key: "a"}}, false},
		{"present, but absent", []store.Condition{{Key: "x", Modified: a}}, false},
		{"other revision", []store.Condition{{Key: "a", Modified: a + 1}}, false},
		{"second fails", []store.Condition{{Key: "a", Modified: a}, {Key: "x", Modified: 1}}, false},
	}
	for _, c := range cases {
		before := f.revision()
		rev, err := f.s.Commit(f.Context(), store.Txn{Conditions: c.conds, Ops: []store.Op{put("w", c.name)}})
		if !c.holds {
			var conflict *store.ConflictError
			if !errors.As(err, &conflict) {
				f.Errorf("%s: want a conflict, got %v", c.name, err)
			}
			f.equal(c.name+": revision", f.revision(), before)
			continue
		}
		if err != nil {
			f.Errorf("%s: %v", c.name, err)
		}
		f.equal(c.name, rev, before+1)
	}
	// A transaction without ops only checks its conditions.
	before := f.revision()
	if rev, err := f.s.Commit(f.Context(), store.Txn{Conditions: []store.Condition{{Key: "a", Modified: a}}}); err != nil || rev != before {
		f.Errorf("a question alone: %d, %v; want %d", rev, err, before)
	}
	// A deleted key is absent, whatever its revision was.
	f.commit(del("a"))
	if _, err := f.s.Commit(f.Context(), store.Txn{Conditions: []store.Condition{{Key: "a", Modified: a}}}); err == nil {
		f.Error("a condition on a deleted key held")
	}
	if _, err := f.s.Commit(f.Context(), store.Txn{Conditions: []store.Condition{{Key: "a"}}, Ops: []store.Op{put("a", "2")}}); err != nil {
		f.Errorf("creating a deleted key: %v", err)
	}
}

func checkConflict(f *fixture) {
	f.commit(put("a", "1"), put("b", "1"))
	first := store.Condition{Key: "b", Modified: 9}
	_, err := f.s.Commit(f.Context(), store.Txn{
		Conditions: []store.Condition{{Key: "a", Modified: 1}, first, {Key: "c", Modified: 3}},
		Ops:        []store.Op{put("a", "2"), del("b")},
	})
	var conflict *store.ConflictError
	if !errors.As(err, &conflict) {
		f.Fatalf("want a conflict, got %v", err)
	}
	f.equal("conflict", conflict, &store.ConflictError{
		Condition: first,
		Current:   &store.Record{Key: "b", Value: []byte("1"), Created: 2, Modified: 2},
	})
	_, err = f.s.Commit(f.Context(), store.Txn{Conditions: []store.Condition{{Key: "c", Modified: 3}}})
	if !errors.As(err, &conflict) || conflict.Current != nil {
		f.Errorf("conflict on an absent key: %v", err)
	}
	f.equal("contents", contents(f.list(store.ListOptions{})), map[string]string{"a": "1", "b": "1"})
}

func checkInvalid(f *fixture) {
	cases := []struct {
		name string
		txn  store.Txn
	}{
		{"empty key", store.Txn{Ops: []store.Op{put("", "1")}}},
		{"key twice", store.Txn{Ops: []store.Op{put("a", "1"), del("a")}}},
		{"no kind", store.Txn{Ops: []store.Op{{Key: "a"}}}},
		{"negative TTL", store.Txn{Ops: []store.Op{{Kind: store.Put, Key: "a", TTL: -time.Second}}}},
		{"condition without key", store.Txn{Conditions: []store.Condition{{}}}},
	}
	for _, c := range cases {
		_, err := f.s.Commit(f.Context(), c.txn)
		var invalid *store.InvalidError
		if !errors.As(err, &invalid) {
			f.Errorf("%s: want *InvalidError, got %v", c.name, err)
		}
	}
	f.equal("revision", f.revision(), store.Revision(0))
}

func checkCancelled(f *fixture) {
	f.commit(put("a", "1"))
	ctx, cancel := context.WithCancel(f.Context())
	cancel()
	calls := map[string]func() error{
		"commit": func() error { _, err := f.s.Commit(ctx, store.Txn{Ops: []store.Op{put("a", "2")}}); return err },
		"get":    func() error { _, _, _, err := f.s.Get(ctx, "a", 0); return err },
		"list":   func() error { _, err := f.s.List(ctx, store.ListOptions{}); return err },
		"count":  func() error { _, err := f.s.Count(ctx, ""); return err },
		"watch":  func() error { _, err := f.s.Watch(ctx, "", 0); return err },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, context.Canceled) {
			f.Errorf("%s: want context.Canceled, got %v", name, err)
		}
	}
	f.equal("revision", f.revision(), store.Revision(1))
}

func checkOwnership(f *fixture) {
	w := f.watch("", 0)
	value := []byte("before")
	rev := f.commit(store.Op{Kind: store.Put, Key: "a", Value: value})
	copy(value, "change")
	f.equal("contents", contents(f.list(store.ListOptions{})), map[string]string{"a": "before"})
	batches, err := collect(w, rev)
	if err != nil {
		f.Fatal(err)
	}
	f.equal("event", string(batches[0].Events[0].Record.Value), "before")
}

func checkSize(f *fixture) {
	size := func() int64 {
		n, err := f.s.Size(f.Context())
		if err != nil {
			f.Fatalf("size: %v", err)
		}
		return n
	}
	empty := size()
	f.commit(store.Op{Kind: store.Put, Key: "a", Value: make([]byte, 1<<20)})
	full := size()
	if grown := full - empty; grown < 1<<20 || grown > 2<<20 {
		f.Errorf("a value of 1 MiB grew the size by %d", grown)
	}
	f.commit(put("a", "small"))
	if size() >= full {
		f.Errorf("size is %d after the value became small, was %d", size(), full)
	}
	f.commit(del("a"))
	f.equal("size after deletion", size(), empty)
}
