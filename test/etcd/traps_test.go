package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/etcd"
	"github.com/proxima-mesh/proxima/internal/store/watch"
)

// Each of these is a trap of numbering changes by etcd's revision and a position.

func put(key, value string) store.Op {
	return store.Op{Kind: store.Put, Key: key, Value: []byte(value)}
}
func del(key string) store.Op { return store.Op{Kind: store.Delete, Key: key} }

func commit(t testing.TB, s store.Store, ops ...store.Op) store.Revision {
	t.Helper()
	revision, err := s.Commit(background(t), store.Txn{Ops: ops})
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	return revision
}

// events reads a watch up to a revision.
func events(t testing.TB, s store.Store, prefix string, after, upTo store.Revision) []store.Event {
	t.Helper()
	ctx := background(t)
	w, err := s.Watch(ctx, prefix, after)
	if err != nil {
		t.Fatalf("watch %q after %d: %v", prefix, after, err)
	}
	defer w.Close()
	all, err := drain(ctx, w, upTo)
	if err != nil {
		t.Fatalf("watch %q after %d: %v", prefix, after, err)
	}
	return all
}

func drain(ctx context.Context, w store.Watcher, upTo store.Revision) (all []store.Event, err error) {
	w.Progress()
	for {
		select {
		case b, ok := <-w.Batches():
			if !ok {
				return all, w.Err()
			}
			all = append(all, b.Events...)
			if b.Revision >= upTo {
				return all, nil
			}
		case <-ctx.Done():
			return all, ctx.Err()
		}
	}
}

func newest(t testing.TB, s store.Store) store.Revision {
	t.Helper()
	revision, err := s.Revision(background(t))
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func records(t testing.TB, s store.Store, opts store.ListOptions) []store.Record {
	t.Helper()
	page, err := s.List(background(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	return page.Records
}

// TestOneNumberEverywhere is trap 1 and 2: a watch on a part of the keys, live or
// from history, on another instance, lists with keys only, and reads of one key
// have the same revisions.
func TestOneNumberEverywhere(t *testing.T) {
	url := stateURL(shareMember(t))
	a := open(t, url, etcd.Options{})
	b := open(t, url, etcd.Options{})
	old := open(t, url, etcd.Options{Recent: watch.Limits{Events: 1, Bytes: 1}})
	start := newest(t, a)
	commit(t, a, put("y/1", "v"), put("x/1", "v"), put("y/2", "v"), put("x/2", "v"))
	end := commit(t, b, put("y/1", "w"), put("x/2", "w"), del("x/1"), put("x/3", "w"))
	commit(t, b, put("y/9", "w"))
	last := newest(t, a)
	first := end>>10<<10 - 1024
	second := end >> 10 << 10
	want := []store.Revision{first + 1, first + 3, second + 1, second + 2, second + 3}
	for name, s := range map[string]store.Store{"committed": a, "other": b, "from history": old} {
		var got []store.Revision
		for _, e := range events(t, s, "x/", start, last) {
			got = append(got, e.Record.Modified)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: revisions of a watch (-want +got):\n%s", name, diff)
		}
	}
	full, keys := records(t, a, store.ListOptions{Prefix: "x/"}), records(t, b, store.ListOptions{Prefix: "x/", KeysOnly: true})
	for i, r := range full {
		one, ok, _, err := old.Get(background(t), r.Key, 0)
		if err != nil || !ok || one.Modified != r.Modified || one.Created != r.Created {
			t.Errorf("get %q: %+v, %v; the list has %+v", r.Key, one, err, r)
		}
		if keys[i].Modified != r.Modified || keys[i].Created != r.Created || keys[i].Value != nil {
			t.Errorf("keys only: %+v; the list has %+v", keys[i], r)
		}
	}
	if got := []store.Revision{full[0].Modified, full[0].Created, full[1].Modified}; !slices.Equal(got, []store.Revision{second + 1, first + 3, second + 3}) {
		t.Errorf("x/2 and x/3 are at %d", got)
	}
}

// TestOutdatedIndex is trap 3: what an instance assumes of a key is compared, so
// a deletion of a key that is just gone shifts no position, and only a condition
// of the caller is a conflict.
func TestOutdatedIndex(t *testing.T) {
	m := shareMember(t)
	url := stateURL(m)
	a, raw := open(t, url, etcd.Options{}), connect(t, m)
	for i := range 50 {
		commit(t, a, put("gone", "v"))
		// The instance does not hear of this before it commits.
		if _, err := raw.Delete(background(t), prefixOf(t, url)+"data/0/gone"); err != nil {
			t.Fatal(err)
		}
		revision := commit(t, a, del("gone"), put("stays", fmt.Sprint(i)), del("never"))
		if revision&1023 != 0 {
			t.Fatalf("the only change is at position %d", revision&1023)
		}
		rec, ok, _, err := a.Get(background(t), "stays", 0)
		if err != nil || !ok || rec.Modified != revision {
			t.Fatalf("it is at %d, %v; the commit said %d", rec.Modified, err, revision)
		}
	}
	_, err := a.Commit(background(t), store.Txn{Conditions: []store.Condition{{Key: "gone", Modified: 5}}})
	var conflict *store.ConflictError
	if !errors.As(err, &conflict) || conflict.Current != nil {
		t.Errorf("a condition on a deleted key: %v", err)
	}
}

// TestHotKey is trap 3 with several instances: increments without a condition are
// never refused, those with one are counted once.
func TestHotKey(t *testing.T) {
	url := stateURL(shareMember(t))
	var done sync.WaitGroup
	var mu sync.Mutex
	wins := 0
	base := open(t, url, etcd.Options{})
	first := commit(t, base, put("hot", "0"))
	for range 3 {
		s := open(t, url, etcd.Options{})
		for range 4 {
			done.Go(func() {
				for i := range 10 {
					if _, err := s.Commit(context.Background(), store.Txn{Ops: []store.Op{put("hot", "x"), put("other", fmt.Sprint(i))}}); err != nil {
						t.Errorf("without a condition: %v", err)
					}
				}
				_, err := s.Commit(context.Background(), store.Txn{
					Conditions: []store.Condition{{Key: "once"}}, Ops: []store.Op{put("once", "mine")},
				})
				var conflict *store.ConflictError
				switch {
				case err == nil:
					mu.Lock()
					wins++
					mu.Unlock()
				case !errors.As(err, &conflict) || conflict.Current == nil:
					t.Errorf("the loser: %v", err)
				}
			})
		}
	}
	done.Wait()
	if wins != 1 {
		t.Errorf("%d commits made the key that was absent", wins)
	}
	seen := map[store.Revision]bool{}
	puts := 0
	for _, e := range events(t, base, "hot", first, newest(t, base)) {
		if seen[e.Record.Modified] {
			t.Errorf("revision %d comes twice", e.Record.Modified)
		}
		seen[e.Record.Modified] = true
		puts++
	}
	if puts != 120 {
		t.Errorf("%d changes, want 120", puts)
	}
}

// TestLimits is trap 4: each limit that is passed is one error that names it, and
// does no harm to others in the same group.
func TestLimits(t *testing.T) {
	s := open(t, stateURL(shareMember(t)), etcd.Options{})
	many := func(n int) (txn store.Txn) {
		for i := range n {
			txn.Ops = append(txn.Ops, put(fmt.Sprintf("k%d", i), "v"))
			txn.Conditions = append(txn.Conditions, store.Condition{Key: fmt.Sprintf("k%d", i)})
		}
		return txn
	}
	most := s.Properties().MaxKeys
	if _, err := s.Commit(background(t), many(most)); err != nil {
		t.Errorf("%d keys: %v", most, err)
	}
	before := newest(t, s)
	large := func(size int) store.Txn {
		return store.Txn{Ops: []store.Op{{Kind: store.Put, Key: "large", Value: make([]byte, size)}}}
	}
	for name, c := range map[string]struct {
		txn   store.Txn
		limit string
	}{
		"keys":                {many(most + 1), "126 are possible"},
		"server's bound":      {large(1600 << 10), "1.5 MiB"},
		"client's bound":      {large(3 << 20), "1.5 MiB"},
		"far beyond a bounds": {large(20 << 20), "1.5 MiB"},
	} {
		_, err := s.Commit(background(t), c.txn)
		var limit *etcd.LimitError
		if !errors.As(err, &limit) || !strings.Contains(err.Error(), c.limit) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now := newest(t, s); now != before {
		t.Errorf("refused transactions moved the revision from %d to %d", before, now)
	}
	if err := s.Ready(background(t)); err != nil {
		t.Errorf("ready after that: %v", err)
	}
	if _, err := s.Commit(background(t), large(1500<<10)); err != nil {
		t.Errorf("1500 KiB: %v", err)
	}
	// Together with others.
	var done sync.WaitGroup
	for i := range 40 {
		done.Go(func() {
			if i%8 == 0 {
				_, err := s.Commit(context.Background(), large(1600<<10))
				var limit *etcd.LimitError
				if !errors.As(err, &limit) {
					t.Errorf("too large: %v", err)
				}
			} else if _, err := s.Commit(context.Background(), store.Txn{Ops: []store.Op{put(fmt.Sprintf("small%d", i), "v")}}); err != nil {
				t.Errorf("small: %v", err)
			}
		})
	}
	done.Wait()
}

// TestSmallerServerLimit is trap 4 where the server allows less than its default.
func TestSmallerServerLimit(t *testing.T) {
	s := open(t, stateURL(startMember(t, func(c *embed.Config) { c.MaxTxnOps = 16 })), etcd.Options{})
	var done sync.WaitGroup
	for i := range 60 {
		done.Go(func() {
			if _, err := s.Commit(context.Background(), store.Txn{Ops: []store.Op{put(fmt.Sprintf("k%d", i), "v")}}); err != nil {
				t.Errorf("one key: %v", err)
			}
		})
	}
	done.Wait()
	var ops []store.Op
	for i := range 20 {
		ops = append(ops, put(fmt.Sprintf("k%d", i), "w"))
	}
	_, err := s.Commit(background(t), store.Txn{Ops: ops})
	var limit *etcd.LimitError
	if !errors.As(err, &limit) || !errors.Is(err, rpctypes.ErrTooManyOps) || !strings.Contains(err.Error(), "--max-txn-ops") {
		t.Errorf("20 keys on a server that allows 16: %v", err)
	}
}

// TestTransactionEnds is trap 5: what is said of a moment is the end of a
// transaction, and a compaction keeps what a watch after it needs.
func TestTransactionEnds(t *testing.T) {
	m := startMember(t)
	s, raw := open(t, stateURL(m), etcd.Options{}), connect(t, m)
	commit(t, s, put("a", "1"), put("b", "1"))
	last := commit(t, s, put("a", "2"), put("b", "2"), put("c", "2"))
	txn := last >> 10
	end := last | 1023
	if got := newest(t, s); got != end {
		t.Errorf("the revision is %d.%d, want %d.1023", got>>10, got&1023, txn)
	}
	page, err := s.List(background(t), store.ListOptions{At: last - 1})
	if err != nil || page.Revision != end || len(page.Records) != 3 {
		t.Errorf("a list inside of a transaction: %d records at %d, %v", len(page.Records), page.Revision, err)
	}
	for after, want := range map[store.Revision]int{last - 3: 3, last - 2: 2, last - 1: 1, last: 0, end: 0} {
		if got := len(events(t, s, "", after, end)); got != want {
			t.Errorf("a watch after %d.%d has %d events, want %d", after>>10, after&1023, got, want)
		}
	}
	if _, err := s.Watch(background(t), "", end+1); !errors.Is(err, store.ErrFuture) {
		t.Errorf("a watch from the future: %v", err)
	}

	compacted := func(revision store.Revision) bool {
		_, err := raw.Get(background(t), "x", clientv3.WithRev(int64(revision)))
		return errors.Is(err, rpctypes.ErrCompacted)
	}
	if err := s.Compact(background(t), last-1); err != nil {
		t.Fatal(err)
	}
	if compacted(txn-1) || !compacted(txn-2) {
		t.Error("a compaction inside of a transaction must leave etcd the one before")
	}
	if got := s.Compacted(); got != last-1 {
		t.Errorf("compacted is %d, want %d", got, last-1)
	}
	if got := len(events(t, s, "", last-1, end)); got != 1 {
		t.Errorf("after it there are %d events, want 1", got)
	}
	if err := s.Compact(background(t), end); err != nil {
		t.Fatal(err)
	}
	if compacted(txn) || !compacted(txn-1) {
		t.Error("a compaction to the end of a transaction must compact etcd to it")
	}
	if _, err := s.Watch(background(t), "", last-1); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a watch inside of the compacted transaction: %v", err)
	}
	if err := s.Compact(background(t), end); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestForeignCompaction is trap 5 and 9: other programs compact, and this
// instance finds out by an error, without losing an event silently.
func TestForeignCompaction(t *testing.T) {
	m := startMember(t)
	url := stateURL(m)
	s, raw := open(t, url, etcd.Options{Recent: watch.Limits{Events: 1, Bytes: 1}}), connect(t, m)
	commit(t, s, put("a", "1"), put("b", "1"))
	last := commit(t, s, del("a"), put("b", "2"), del("b0"))
	later := commit(t, s, put("c", "1"))
	commit(t, s, put("c", "2"))
	if _, err := raw.Compact(background(t), int64(last>>10)); err != nil {
		t.Fatal(err)
	}
	if before := s.Compacted(); before != 0 {
		t.Fatalf("compacted is %d before anything met it", before)
	}
	// etcd itself would send what survived of the transaction, the put alone.
	w, err := s.Watch(background(t), "", last-1)
	if err == nil {
		got, ended := drain(background(t), w, later)
		if !errors.Is(ended, store.ErrCompacted) {
			t.Errorf("a watch inside of the compacted transaction: %+v, %v", got, ended)
		}
		w.Close()
	} else if !errors.Is(err, store.ErrCompacted) {
		t.Error(err)
	}
	if want := last | 1023; s.Compacted() != want {
		t.Errorf("compacted is %d after that, want %d", s.Compacted(), want)
	}
	if got := len(events(t, s, "", last|1023, newest(t, s))); got != 2 {
		t.Errorf("after it there are %d events, want 2", got)
	}
	if other := open(t, url, etcd.Options{}); other.Compacted() != last|1023 {
		t.Errorf("an instance that starts has compacted %d, want %d", other.Compacted(), last|1023)
	}
	if _, _, _, err := s.Get(background(t), "b", last-1024); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a read before it: %v", err)
	}
}

// TestForeignWrites: keys of other programs take revisions, and what is read is
// followed without an event of ours.
func TestForeignWrites(t *testing.T) {
	m := startMember(t)
	url := stateURL(m)
	a, b, raw := open(t, url, etcd.Options{}), open(t, url, etcd.Options{}), connect(t, m)
	commit(t, a, put("a", "1"))
	for i := range 20 {
		if _, err := raw.Put(background(t), "/elsewhere", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		page, err := b.List(background(t), store.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := b.Watch(background(t), "", page.Revision)
		if err != nil {
			t.Fatalf("watch after a list at %d: %v", page.Revision, err)
		}
		revision := commit(t, a, put("a", fmt.Sprint(i)))
		if got, err := drain(background(t), w, revision); err != nil || len(got) != 1 || got[0].Record.Modified != revision {
			t.Errorf("after a write of another program: %+v, %v", got, err)
		}
		w.Close()
	}
	// A key that was written by hand below our prefix fails reads of it, and nothing else.
	if _, err := raw.Put(background(t), prefixOf(t, url)+"data/0/hand", "x"); err != nil {
		t.Fatal(err)
	}
	var damaged *etcd.DamagedError
	if _, _, _, err := a.Get(background(t), "hand", 0); !errors.As(err, &damaged) {
		t.Errorf("a key that was written by hand: %v", err)
	}
	commit(t, a, put("a", "after"))
	commit(t, a, del("hand"))
	if got := len(records(t, a, store.ListOptions{})); got != 1 {
		t.Errorf("%d records after it is deleted", got)
	}
}

// TestExpiryOrder is trap 7: a second is a second, deadlines are in order of time
// and not of keys, and several instances delete each key once.
func TestExpiryOrder(t *testing.T) {
	clock := newClock()
	url := stateURL(shareMember(t))
	a, b := open(t, url, etcd.Options{Clock: clock}), open(t, url, etcd.Options{Clock: clock})
	begin := clock.Now()
	for i, key := range []string{"c", "a", "b"} {
		commit(t, a, store.Op{Kind: store.Put, Key: key, Value: []byte("v"), TTL: time.Duration(i+1) * time.Second})
	}
	last := newest(t, b)
	if r := records(t, b, store.ListOptions{Prefix: "c"})[0]; !r.Expires.Equal(begin.Add(time.Second)) {
		t.Errorf("a second became %s", r.Expires.Sub(begin))
	}
	ctx := background(t)
	w, err := b.Watch(ctx, "", last)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, want := range []string{"c", "a", "b"} {
		clock.Step(time.Second)
		select {
		case batch := <-w.Batches():
			if len(batch.Events) != 1 || batch.Events[0].Kind != store.Delete || batch.Events[0].Record.Key != want {
				t.Errorf("%+v, want the deletion of %q", batch, want)
			}
		case <-ctx.Done():
			t.Fatalf("%q did not expire", want)
		}
	}
	if got := len(events(t, b, "", last, newest(t, a))); got != 3 {
		t.Errorf("%d deletions, want 3", got)
	}
	// The other one goes on when the one with the lease is closed.
	commit(t, b, store.Op{Kind: store.Put, Key: "d", Value: []byte("v"), TTL: time.Second})
	_ = a.Close()
	clock.Step(time.Second)
	select {
	case <-w.Batches(): // the put
	case <-ctx.Done():
		t.Fatal("no event")
	}
	select {
	case batch := <-w.Batches():
		if batch.Events[0].Kind != store.Delete {
			t.Errorf("%+v", batch)
		}
	case <-ctx.Done():
		t.Fatal("the key did not expire after the instance that deletes was closed")
	}
}

// TestNoSpace is trap 10: a full database is read and deleted from, is not ready,
// and recovers.
func TestNoSpace(t *testing.T) {
	m := startMember(t, func(c *embed.Config) { c.QuotaBackendBytes = 8 << 20 })
	s, raw := open(t, stateURL(m), etcd.Options{}), connect(t, m)
	commit(t, s, put("kept", "v"), put("gone", "v"))
	var err error
	for i := 0; err == nil; i++ {
		if i > 100 {
			t.Fatal("100 MiB went into 8")
		}
		_, err = s.Commit(background(t), store.Txn{Ops: []store.Op{{Kind: store.Put, Key: fmt.Sprintf("fill%d", i), Value: make([]byte, 1<<20)}}})
	}
	if !errors.Is(err, rpctypes.ErrNoSpace) || !strings.Contains(err.Error(), "etcdctl alarm disarm") {
		t.Errorf("a put: %v", err)
	}
	ready := s.Ready(background(t))
	if ready == nil || !strings.Contains(ready.Error(), "NOSPACE") {
		t.Errorf("ready: %v", ready)
	}
	if _, ok, _, err := s.Get(background(t), "kept", 0); !ok || err != nil {
		t.Errorf("a read: %v", err)
	}
	revision := commit(t, s, del("gone"))
	if got := events(t, s, "gone", revision-1, revision); len(got) != 1 {
		t.Errorf("the deletion has %d events", len(got))
	}
	// Deletions that share a group with puts are made, too.
	var done sync.WaitGroup
	for i := range 6 {
		done.Go(func() {
			op := put("more", "v")
			if i > 0 {
				op = del(fmt.Sprintf("fill%d", i))
			}
			if _, err := s.Commit(context.Background(), store.Txn{Ops: []store.Op{op}}); (err == nil) != (i > 0) {
				t.Errorf("%+v: %v", op, err)
			}
		})
	}
	done.Wait()
	if err := s.Compact(background(t), newest(t, s)); err != nil {
		t.Errorf("compaction is the way out of a full database: %v", err)
	}
	if _, err := raw.Defragment(background(t), m.endpoint()); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.AlarmDisarm(background(t), &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(background(t)); err != nil {
		t.Errorf("ready after the alarm is disarmed: %v", err)
	}
	commit(t, s, put("more", "v"))
}
