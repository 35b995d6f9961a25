package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/store"
)

// model is a store in its simplest form: a copy of the whole state for every
// transaction. It has no time, no concurrency and no errors of a medium.
type model struct {
	states    []state // states[0] is the empty beginning
	compacted store.Revision
}

type state struct {
	batch   store.Batch // what led here
	records map[string]store.Record
}

func (m *model) now() state { return m.states[len(m.states)-1] }

// at is the first state at or after a revision.
func (m *model) at(rev store.Revision) (state, error) {
	switch {
	case rev == 0:
		return m.now(), nil
	case rev > m.now().batch.Revision:
		return state{}, store.ErrFuture
	case rev < m.compacted:
		return state{}, store.ErrCompacted
	}
	i := slices.IndexFunc(m.states, func(s state) bool { return s.batch.Revision >= rev })
	return m.states[i], nil
}

func (m *model) commit(txn store.Txn) (store.Revision, error) {
	now := m.now()
	for _, c := range txn.Conditions {
		if r, ok := now.records[c.Key]; r.Modified != c.Modified {
			conflict := &store.ConflictError{Condition: c}
			if ok {
				conflict.Current = &r
			}
			return 0, conflict
		}
	}
	next := state{batch: store.Batch{Revision: now.batch.Revision}, records: map[string]store.Record{}}
	for k, r := range now.records {
		next.records[k] = r
	}
	for _, op := range txn.Ops {
		prev, ok := next.records[op.Key]
		if !ok && op.Kind == store.Delete {
			continue
		}
		next.batch.Revision++
		rev := next.batch.Revision
		e := store.Event{Kind: op.Kind, Record: store.Record{Key: op.Key, Created: rev, Modified: rev}}
		if ok {
			e.Prev, e.Record.Created = &prev, prev.Created
		}
		if op.Kind == store.Put {
			e.Record.Value = op.Value
			next.records[op.Key] = e.Record
		} else {
			delete(next.records, op.Key)
		}
		next.batch.Events = append(next.batch.Events, e)
	}
	if len(next.batch.Events) > 0 {
		m.states = append(m.states, next)
	}
	return next.batch.Revision, nil
}

func (m *model) list(opts store.ListOptions) (store.Page, error) {
	s, err := m.at(opts.At)
	if err != nil {
		return store.Page{}, err
	}
	page := store.Page{Revision: s.batch.Revision}
	for k, r := range s.records {
		if strings.HasPrefix(k, opts.Prefix) && k >= opts.From {
			if opts.KeysOnly {
				r.Value = nil
			}
			page.Records = append(page.Records, r)
		}
	}
	slices.SortFunc(page.Records, func(a, b store.Record) int { return strings.Compare(a.Key, b.Key) })
	if opts.Limit > 0 && len(page.Records) > opts.Limit {
		page.More, page.Remaining = true, int64(len(page.Records)-opts.Limit)
		page.Records = page.Records[:opts.Limit]
	}
	return page, nil
}

func (m *model) watch(prefix string, after store.Revision) []store.Batch {
	var batches []store.Batch
	for _, s := range m.states {
		b := store.Batch{Revision: s.batch.Revision}
		for _, e := range s.batch.Events {
			if e.Record.Modified > after && strings.HasPrefix(e.Record.Key, prefix) {
				b.Events = append(b.Events, e)
			}
		}
		if len(b.Events) > 0 {
			batches = append(batches, b)
		}
	}
	return batches
}

// machine drives a store and the model side by side.
type machine struct {
	f     *fixture
	model model
}

var (
	genKey    = rapid.SampledFrom([]string{"a", "a/b", "a/c", "a/c/d", "b", "\xff"})
	genPrefix = rapid.SampledFrom([]string{"", "a", "a/", "a/c", "b", "c", "\xff"})
)

func checkModel(f *fixture) {
	rapid.Check(f.T, func(t *rapid.T) {
		inner := *f
		inner.s = f.open(f.T)
		m := &machine{f: &inner, model: model{states: []state{{}}}}
		// A watcher from the beginning to the end sees what single ones see.
		prefix := genPrefix.Draw(t, "prefix")
		live, err := inner.s.Watch(f.Context(), prefix, 0)
		if err != nil {
			t.Fatal(err)
		}
		reopened := false
		actions := map[string]func(*rapid.T){
			"commit":  m.commit,
			"get":     m.get,
			"list":    m.list,
			"watch":   m.watch,
			"compact": m.compact,
			"":        m.invariants,
		}
		if f.opts.Reopen != nil {
			actions["reopen"] = func(*rapid.T) {
				reopened = true
				inner.reopen()
			}
		}
		t.Repeat(actions)
		if !reopened {
			got, err := collect(live, m.model.now().batch.Revision)
			if !errors.Is(err, store.ErrCompacted) {
				same(t, "live watcher", got, m.model.watch(prefix, 0), err, nil)
			}
		}
		live.Close()
		if err := inner.s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func (m *machine) revision(t *rapid.T, label string) store.Revision {
	return store.Revision(rapid.Int64Range(0, int64(m.model.now().batch.Revision)+1).Draw(t, label))
}

func (m *machine) commit(t *rapid.T) {
	var txn store.Txn
	for _, key := range rapid.SliceOfNDistinct(genKey, 0, 4, rapid.ID).Draw(t, "keys") {
		op := del(key)
		if rapid.IntRange(0, 2).Draw(t, "kind") > 0 {
			op = put(key, rapid.StringN(0, 3, -1).Draw(t, "value"))
		}
		txn.Ops = append(txn.Ops, op)
	}
	for range rapid.IntRange(0, 2).Draw(t, "conditions") {
		key := genKey.Draw(t, "key")
		c := store.Condition{Key: key, Modified: m.model.now().records[key].Modified}
		if rapid.IntRange(0, 5).Draw(t, "fail") == 0 {
			c.Modified = m.revision(t, "modified")
		}
		txn.Conditions = append(txn.Conditions, c)
	}
	got, err := m.f.s.Commit(m.f.Context(), txn)
	want, wantErr := m.model.commit(txn)
	same(t, "commit", got, want, err, wantErr)
}

func (m *machine) get(t *rapid.T) {
	key, at := genKey.Draw(t, "key"), m.revision(t, "at")
	rec, ok, read, err := m.f.s.Get(m.f.Context(), key, at)
	s, wantErr := m.model.at(at)
	want, wantOK := s.records[key]
	same(t, "get", rec, want, err, wantErr)
	same(t, "get: exists", ok, wantOK, nil, nil)
	same(t, "get: read at", read, s.batch.Revision, nil, nil)
}

func (m *machine) list(t *rapid.T) {
	opts := store.ListOptions{
		Prefix:   genPrefix.Draw(t, "prefix"),
		Limit:    rapid.IntRange(0, 3).Draw(t, "limit"),
		At:       m.revision(t, "at"),
		KeysOnly: rapid.Bool().Draw(t, "keys only"),
	}
	if rapid.Bool().Draw(t, "paged") {
		opts.From = genKey.Draw(t, "from")
	}
	got, err := m.f.s.List(m.f.Context(), opts)
	want, wantErr := m.model.list(opts)
	same(t, fmt.Sprintf("list %+v", opts), got, want, err, wantErr)
}

func (m *machine) watch(t *rapid.T) {
	prefix, after := genPrefix.Draw(t, "prefix"), m.revision(t, "after")
	last := m.model.now().batch.Revision
	w, err := m.f.s.Watch(m.f.Context(), prefix, after)
	switch {
	case after > last:
		same(t, "watch", 0, 0, err, store.ErrFuture)
		return
	case after < m.model.compacted:
		same(t, "watch", 0, 0, err, store.ErrCompacted)
		return
	case err != nil:
		t.Fatalf("watch %q after %d: %v", prefix, after, err)
	}
	defer w.Close()
	got, err := collect(w, last)
	same(t, fmt.Sprintf("watch %q after %d", prefix, after), got, m.model.watch(prefix, after), err, nil)
}

func (m *machine) compact(t *rapid.T) {
	upTo := m.revision(t, "up to")
	err := m.f.s.Compact(m.f.Context(), upTo)
	var wantErr error
	if upTo > m.model.now().batch.Revision {
		wantErr = store.ErrFuture
	} else {
		m.model.compacted = max(m.model.compacted, upTo)
	}
	same(t, "compact", m.f.s.Compacted(), m.model.compacted, err, wantErr)
}

func (m *machine) invariants(t *rapid.T) {
	rev, err := m.f.s.Revision(m.f.Context())
	same(t, "revision", rev, m.model.now().batch.Revision, err, nil)
	n, err := m.f.s.Count(m.f.Context(), "")
	same(t, "count", n, int64(len(m.model.now().records)), err, nil)
	size, err := m.f.s.Size(m.f.Context())
	var want int64
	for _, r := range m.model.now().records {
		want += int64(len(r.Value))
	}
	same(t, "size", size, want, err, nil)
}

// same compares an answer of the store with the model's.
func same(t *rapid.T, what string, got, want any, err, wantErr error) {
	t.Helper()
	var conflict, wantConflict *store.ConflictError
	if errors.As(wantErr, &wantConflict) {
		if !errors.As(err, &conflict) {
			t.Fatalf("%s: got %v, want %v", what, err, wantErr)
		}
		got, want = conflict, wantConflict
	} else if !errors.Is(err, wantErr) {
		t.Fatalf("%s: got error %v, want %v", what, err, wantErr)
	} else if err != nil {
		return
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}
