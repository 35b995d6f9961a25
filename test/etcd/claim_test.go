package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/etcd"
)

// TestExclusive: a second instance is refused, the way is free at once after a
// close, and an instance whose claim is gone writes nothing.
func TestExclusive(t *testing.T) {
	m := shareMember(t)
	url := stateURL(m)
	a := open(t, url, etcd.Options{Exclusive: true})
	commit(t, a, put("a", "1"))
	begin := time.Now()
	_, err := etcd.Open(context.Background(), url, etcd.Options{Exclusive: true})
	var used *etcd.InUseError
	if !errors.As(err, &used) || !strings.Contains(err.Error(), "process") {
		t.Fatalf("a second instance: %v", err)
	}
	if waited := time.Since(begin); waited < 10*time.Second {
		t.Errorf("it was refused after %s, before the lease of one that died would have run out", waited)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	b := open(t, url, etcd.Options{Exclusive: true})
	commit(t, b, put("a", "2"))
	raw := connect(t, m)
	// The lease runs out while the instance is cut off: it takes the state again.
	if _, err := raw.Delete(background(t), prefixOf(t, url)+"meta/owner"); err != nil {
		t.Fatal(err)
	}
	commit(t, b, put("a", "3"))
	// Another one has taken it: nothing is written.
	if _, err := raw.Put(background(t), prefixOf(t, url)+"meta/owner", `{"id":7,"host":"other","pid":1}`); err != nil {
		t.Fatal(err)
	}
	_, err = b.Commit(background(t), store.Txn{Ops: []store.Op{put("a", "4")}})
	if !errors.As(err, &used) || !strings.Contains(err.Error(), "other") {
		t.Errorf("a commit without the claim: %v", err)
	}
	if err := b.Ready(background(t)); !errors.As(err, &used) {
		t.Errorf("ready without the claim: %v", err)
	}
	look := open(t, url, etcd.Options{})
	if rec, _, _, err := look.Get(background(t), "a", 0); err != nil || string(rec.Value) != "3" {
		t.Errorf("the state has %q, %v", rec.Value, err)
	}
}

func sequence(records ...store.Record) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// TestRestore: records of another store keep their revisions, the store goes on
// above them, instances that are open follow, and a restore that is cut off
// leaves nothing.
func TestRestore(t *testing.T) {
	clock := newClock()
	url := stateURL(shareMember(t))
	s, other := open(t, url, etcd.Options{Clock: clock}), open(t, url, etcd.Options{Clock: clock})
	want := []store.Record{
		{Key: "a", Value: []byte("1"), Created: 5, Modified: 7},
		{Key: "b", Value: []byte("2"), Created: 8, Modified: 8, Expires: clock.Now().Add(time.Minute)},
		{Key: "c", Value: make([]byte, 700<<10), Created: 1, Modified: 1 << 50},
		{Key: "d", Value: make([]byte, 700<<10), Created: 9, Modified: 9},
	}
	for i := range 300 {
		want = append(want, store.Record{Key: fmt.Sprintf("e%03d", i), Value: []byte("v"), Created: 10, Modified: 11})
	}
	const at = store.Revision(1<<50 + 12345)
	broken := errors.New("the file ends")
	err := s.Restore(background(t), at, func(yield func(store.Record, error) bool) {
		_ = yield(want[0], nil) && yield(want[2], nil) && yield(store.Record{}, broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("records that fail: %v", err)
	}
	if got := records(t, s, store.ListOptions{}); len(got) != 0 {
		t.Errorf("a restore that failed left %d records", len(got))
	}
	old := newest(t, s)
	ctx := background(t)
	w, err := other.Watch(ctx, "", old)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := s.Restore(background(t), at, sequence(want...)); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*etcd.Store{"here": s, "other instance": other, "opened later": open(t, url, etcd.Options{Clock: clock})} {
		if now := newest(t, s); now < at {
			t.Errorf("%s: the revision is %d, below %d", name, now, at)
		}
		for deadline := time.Now().Add(timeout); s.Compacted() < at && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond) // the other instance hears of it by its watch
		}
		got := records(t, s, store.ListOptions{})
		if diff := cmp.Diff(want, got, cmp.Comparer(bytes.Equal)); diff != "" {
			t.Errorf("%s: records (-want +got):\n%.2000s", name, diff)
		}
		if _, err := s.Watch(background(t), "", at); !errors.Is(err, store.ErrCompacted) {
			t.Errorf("%s: a watch from the old history: %v", name, err)
		}
	}
	if _, err := drain(ctx, w, at+1<<40); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a watcher of the empty state: %v", err)
	}
	revision, err := s.Commit(background(t), store.Txn{
		Conditions: []store.Condition{{Key: "c", Modified: 1 << 50}}, Ops: []store.Op{put("c", "new")},
	})
	if err != nil || revision <= at {
		t.Errorf("a commit on a restored record: %d, %v", revision, err)
	}
	if rec, _, _, err := other.Get(background(t), "c", 0); err != nil || rec.Created != 1 || rec.Modified != revision {
		t.Errorf("after it: %+v, %v", rec, err)
	}
	clock.Step(2 * time.Minute)
	for len(records(t, s, store.ListOptions{Prefix: "b"})) > 0 {
		if ctx.Err() != nil {
			t.Fatal("a restored deadline has no effect")
		}
	}
	if err := s.Restore(background(t), at, sequence(want...)); !errors.Is(err, store.ErrNotEmpty) {
		t.Errorf("a second restore: %v", err)
	}
	used := open(t, stateURL(shareMember(t)), etcd.Options{})
	commit(t, used, put("a", "1"))
	commit(t, used, del("a"))
	if err := used.Restore(background(t), at, sequence(want...)); !errors.Is(err, store.ErrNotEmpty) {
		t.Errorf("a restore into a state that was written and emptied: %v", err)
	}
}
