package storetest

import (
	"errors"
	"fmt"
	"sync"

	"github.com/proxima-mesh/proxima/internal/store"
)

func checkReadAt(f *fixture) {
	f.commit(put("a", "1"))
	f.commit(put("b", "1"))
	f.commit(put("a", "2"))
	f.commit(del("b"))
	f.commit(put("b", "3"))
	want := []map[string]string{
		1: {"a": "1"},
		2: {"a": "1", "b": "1"},
		3: {"a": "2", "b": "1"},
		4: {"a": "2"},
		5: {"a": "2", "b": "3"},
	}
	for at := store.Revision(1); at <= 5; at++ {
		page := f.list(store.ListOptions{At: at})
		f.equal(fmt.Sprintf("list at %d", at), contents(page), want[at])
		f.equal("read at", page.Revision, at)
		for _, key := range []string{"a", "b", "c"} {
			rec, ok, read, err := f.s.Get(f.Context(), key, at)
			if err != nil {
				f.Fatalf("get %q at %d: %v", key, at, err)
			}
			value, exists := want[at][key]
			if ok != exists || string(rec.Value) != value || read != at {
				f.Errorf("get %q at %d: %q, %v, read at %d; want %q, %v", key, at, rec.Value, ok, read, value, exists)
			}
		}
	}
	f.equal("history keeps Created", f.list(store.ListOptions{At: 3}).Records[0],
		store.Record{Key: "a", Value: []byte("2"), Created: 1, Modified: 3})
	f.wantErrors("beyond the newest", store.ErrFuture, 6)
}

// wantErrors checks that reads and watches at a revision fail in one way.
func (f *fixture) wantErrors(what string, want error, at store.Revision) {
	f.Helper()
	if _, _, _, err := f.s.Get(f.Context(), "a", at); !errors.Is(err, want) {
		f.Errorf("%s: get at %d: want %v, got %v", what, at, want, err)
	}
	if _, err := f.s.List(f.Context(), store.ListOptions{At: at}); !errors.Is(err, want) {
		f.Errorf("%s: list at %d: want %v, got %v", what, at, want, err)
	}
	w, err := f.s.Watch(f.Context(), "", at)
	if !errors.Is(err, want) {
		f.Errorf("%s: watch after %d: want %v, got %v", what, at, want, err)
	}
	if err == nil {
		w.Close()
	}
}

// checkReadInsideTxn: for a revision inside a transaction, a store reads at the
// transaction's end, and returns that revision.
func checkReadInsideTxn(f *fixture) {
	f.commit(put("a", "1"))
	f.commit(put("a", "2"), put("b", "2"), put("c", "2"))
	f.commit(put("a", "3"))
	want := map[string]string{"a": "2", "b": "2", "c": "2"}
	for at := store.Revision(2); at <= 4; at++ {
		page := f.list(store.ListOptions{At: at})
		f.equal(fmt.Sprintf("list at %d", at), contents(page), want)
		f.equal("read at", page.Revision, store.Revision(4))
		_, ok, read, err := f.s.Get(f.Context(), "c", at)
		if !ok || read != 4 || err != nil {
			f.Errorf("get at %d: %v, read at %d, %v; want true, 4", at, ok, read, err)
		}
	}
}

func checkList(f *fixture) {
	f.commit(put("/a/1", "x"), put("/a/2", "xx"), put("/a/3", "xxx"), put("/b/1", "y"), put("/a", "z"), put("/b", "z"))
	f.commit(put("/a/2", "new"))
	cases := []struct {
		name      string
		opts      store.ListOptions
		keys      []string
		remaining int64
	}{
		{"all, in order", store.ListOptions{}, []string{"/a", "/a/1", "/a/2", "/a/3", "/b", "/b/1"}, 0},
		{"prefix", store.ListOptions{Prefix: "/a/"}, []string{"/a/1", "/a/2", "/a/3"}, 0},
		{"prefix is a key", store.ListOptions{Prefix: "/b"}, []string{"/b", "/b/1"}, 0},
		{"no such prefix", store.ListOptions{Prefix: "/c"}, nil, 0},
		{"from is inclusive", store.ListOptions{From: "/a/2"}, []string{"/a/2", "/a/3", "/b", "/b/1"}, 0},
		{"from between keys", store.ListOptions{Prefix: "/a/", From: "/a/2\x00"}, []string{"/a/3"}, 0},
		{"from before prefix", store.ListOptions{Prefix: "/b", From: "/a/2"}, []string{"/b", "/b/1"}, 0},
		{"from after prefix", store.ListOptions{Prefix: "/a/", From: "/b"}, nil, 0},
		{"limit", store.ListOptions{Limit: 2}, []string{"/a", "/a/1"}, 4},
		{"limit, prefix and from", store.ListOptions{Prefix: "/a/", From: "/a/2", Limit: 1}, []string{"/a/2"}, 1},
		{"limit is exact", store.ListOptions{Prefix: "/a/", Limit: 3}, []string{"/a/1", "/a/2", "/a/3"}, 0},
		{"at a revision", store.ListOptions{Prefix: "/a/", Limit: 2, At: 6}, []string{"/a/1", "/a/2"}, 1},
	}
	for _, c := range cases {
		for _, keysOnly := range []bool{false, true} {
			c.opts.KeysOnly = keysOnly
			page := f.list(c.opts)
			var keys []string
			for _, r := range page.Records {
				keys = append(keys, r.Key)
				if keysOnly && r.Value != nil {
					f.Errorf("%s: keys only, but %q has a value", c.name, r.Key)
				}
				if !keysOnly && len(r.Value) == 0 {
					f.Errorf("%s: %q has no value", c.name, r.Key)
				}
			}
			f.equal(c.name, keys, c.keys)
			f.equal(c.name+": remaining", page.Remaining, c.remaining)
			f.equal(c.name+": more", page.More, c.remaining > 0)
		}
	}
	for prefix, want := range map[string]int64{"": 6, "/a": 4, "/a/": 3, "/c": 0} {
		n, err := f.s.Count(f.Context(), prefix)
		if err != nil || n != want {
			f.Errorf("count %q: %d, %v; want %d", prefix, n, err, want)
		}
	}
}

// checkOddKeys: keys are bytes, ordered as bytes.
func checkOddKeys(f *fixture) {
	keys := []string{"\x00", "\x00\x00", "a", "a\x00b", "a\xff", "a\xff\xff", "ä", "\xff", "\xff\xff"}
	for i, key := range keys {
		f.equal("commit", f.commit(store.Op{Kind: store.Put, Key: key}), store.Revision(i+1))
	}
	var got []string
	for _, r := range f.list(store.ListOptions{}).Records {
		got = append(got, r.Key)
	}
	f.equal("order", got, keys)
	for prefix, want := range map[string]int{"\x00": 2, "a": 4, "a\xff": 2, "\xff": 2, "\xff\xff": 1, "A": 0} {
		f.equal(fmt.Sprintf("prefix %q", prefix), len(f.list(store.ListOptions{Prefix: prefix}).Records), want)
		batches, err := collect(f.watch(prefix, 0), store.Revision(len(keys)))
		if err != nil {
			f.Fatal(err)
		}
		f.equal(fmt.Sprintf("watch %q", prefix), len(batches), want)
	}
}

// checkPaging reads pages at one revision while writers go on.
func checkPaging(f *fixture) {
	const keys = 60
	var ops []store.Op
	want := map[string]string{}
	for i := range keys {
		key := fmt.Sprintf("p/%03d", i)
		ops = append(ops, put(key, "before"))
		want[key] = "before"
	}
	f.commit(ops...)
	stop, done := make(chan struct{}), sync.WaitGroup{}
	done.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			txn := store.Txn{Ops: []store.Op{put(fmt.Sprintf("p/%03d", i%keys), "after"), put(fmt.Sprintf("p/%03d-new", i%keys), "after"),
				del(fmt.Sprintf("p/%03d", (i+7)%keys))}}
			if _, err := f.s.Commit(f.Context(), txn); err != nil {
				f.Errorf("commit: %v", err)
				return
			}
		}
	})
	got := map[string]string{}
	opts := store.ListOptions{Prefix: "p/", Limit: 7, At: keys}
	for {
		page := f.list(opts)
		f.equal("page's revision", page.Revision, store.Revision(keys))
		for key, value := range contents(page) {
			got[key] = value
		}
		f.equal("remaining", page.Remaining, int64(keys-len(got)))
		if !page.More {
			break
		}
		opts.From = page.Records[len(page.Records)-1].Key + "\x00"
	}
	close(stop)
	done.Wait()
	f.equal("all pages", got, want)
}

func checkCompaction(f *fixture) {
	f.commit(put("a", "1"))
	f.commit(put("a", "2"))
	f.commit(put("b", "1"))
	f.commit(del("b"))
	f.commit(put("a", "3"))
	if err := f.s.Compact(f.Context(), 6); !errors.Is(err, store.ErrFuture) {
		f.Errorf("compacting the future: %v", err)
	}
	f.equal("compacted", f.s.Compacted(), store.Revision(0))
	f.compact(3)
	f.compact(3)
	f.compact(1) // never goes back
	f.equal("compacted", f.s.Compacted(), store.Revision(3))
	f.wantErrors("compacted", store.ErrCompacted, 2)
	f.equal("list at the compacted revision", contents(f.list(store.ListOptions{At: 3})), map[string]string{"a": "2", "b": "1"})
	f.equal("list at 4", contents(f.list(store.ListOptions{At: 4})), map[string]string{"a": "2"})
	batches, err := collect(f.watch("", 3), 5)
	if err != nil {
		f.Fatal(err)
	}
	f.equal("watch after the compacted revision", batches, []store.Batch{
		{Revision: 4, Events: []store.Event{{
			Kind: store.Delete, Record: store.Record{Key: "b", Created: 3, Modified: 4},
			Prev: &store.Record{Key: "b", Value: []byte("1"), Created: 3, Modified: 3},
		}}},
		{Revision: 5, Events: []store.Event{{
			Kind: store.Put, Record: store.Record{Key: "a", Value: []byte("3"), Created: 1, Modified: 5},
			Prev: &store.Record{Key: "a", Value: []byte("2"), Created: 1, Modified: 2},
		}}},
	})
	f.compact(5)
	f.wantErrors("compacted", store.ErrCompacted, 4)
	f.equal("the newest state stays", contents(f.list(store.ListOptions{At: 5})), map[string]string{"a": "3"})
	f.equal("revision stays", f.revision(), store.Revision(5))
	f.equal("revisions go on", f.commit(put("b", "2")), store.Revision(6))
	f.equal("made again", f.list(store.ListOptions{Prefix: "b"}).Records,
		[]store.Record{{Key: "b", Value: []byte("2"), Created: 6, Modified: 6}})
}

func checkCompactionInsideTxn(f *fixture) {
	f.commit(put("a", "1"), put("b", "1"), put("c", "1"))
	f.commit(put("a", "2"), del("b"), put("c", "2"), put("d", "2"))
	f.compact(5)
	f.wantErrors("compacted", store.ErrCompacted, 4)
	want := map[string]string{"a": "2", "c": "2", "d": "2"}
	page := f.list(store.ListOptions{At: 5})
	f.equal("list", contents(page), want)
	f.equal("read at", page.Revision, store.Revision(7))
	batches, err := collect(f.watch("", 5), 7)
	if err != nil {
		f.Fatal(err)
	}
	f.equal("the rest of the transaction", batches, []store.Batch{{Revision: 7, Events: []store.Event{
		{
			Kind: store.Put, Record: store.Record{Key: "c", Value: []byte("2"), Created: 3, Modified: 6},
			Prev: &store.Record{Key: "c", Value: []byte("1"), Created: 3, Modified: 3},
		},
		{Kind: store.Put, Record: store.Record{Key: "d", Value: []byte("2"), Created: 7, Modified: 7}},
	}}})
	f.compact(7)
	f.equal("list", contents(f.list(store.ListOptions{At: 7})), want)
}
