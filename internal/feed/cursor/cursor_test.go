package cursor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// heldFeed is a feed that notes what it is asked to keep.
type heldFeed struct {
	mu    sync.Mutex
	epoch string
	first seglog.Position
	holds map[string]seglog.Position
}

func (f *heldFeed) Hold(name string, after seglog.Position) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holds[name] = after
}

func (f *heldFeed) Release(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.holds, name)
}

func (f *heldFeed) First() seglog.Position { return f.first }

func (f *heldFeed) Epoch() string { return f.epoch }

func (f *heldFeed) held(name string) (seglog.Position, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.holds["cursor/"+name]
	return at, ok
}

// instance is a control plane on a store.
func instance(t *testing.T, s store.Store) (*Cursors, *heldFeed) {
	t.Helper()
	f := &heldFeed{epoch: s.Epoch(), holds: map[string]seglog.Position{}}
	c, err := New(t.Context(), Config{Store: s, Feed: f})
	if err != nil {
		t.Fatal(err)
	}
	return c, f
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestAcknowledgementsSurvive(t *testing.T) {
	s := memory.New(memory.Options{})
	defer s.Close()
	ctx := t.Context()
	all, f := instance(t, s)
	must(all.Create(ctx, "pulsar/a topic/sub", Shared, 10, map[string]string{"client": "x"}))(t)
	if _, err := all.Create(ctx, "pulsar/a topic/sub", Shared, 10, nil); !errors.Is(err, ErrExists) {
		t.Errorf("a second of that name: %v", err)
	}
	cur := must(all.Open(ctx, "pulsar/a topic/sub"))(t)
	if _, err := all.Open(ctx, "pulsar/a topic/sub"); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice: %v", err)
	}
	for _, r := range []Range{{20, 25}, {15, 16}, {25, 30}, {10, 12}} {
		if err := cur.Ack(r.After, r.To); err != nil {
			t.Fatal(err)
		}
	}
	if err := cur.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := cur.Ack(0, 99); !errors.Is(err, ErrClosed) {
		t.Errorf("acknowledged on a closed cursor: %v", err)
	}
	if at, _ := f.held("pulsar/a topic/sub"); at != 12 {
		t.Errorf("the feed keeps what comes after %d, not 12", at)
	}
	other, f := instance(t, s)
	if at, _ := f.held("pulsar/a topic/sub"); at != 12 {
		t.Errorf("after a restart the feed keeps what comes after %d, not 12", at)
	}
	got := must(other.Get(ctx, "pulsar/a topic/sub"))(t)
	if got.Mark != 12 || !cmp.Equal(got.Acked, []Range{{15, 16}, {20, 30}}) || got.Properties["client"] != "x" {
		t.Errorf("it is %+v", got)
	}
	if list := must(other.List(ctx))(t); len(list) != 1 || list[0].Name != "pulsar/a topic/sub" {
		t.Errorf("the list is %+v", list)
	}
	if err := other.Delete(ctx, got.Name); err != nil {
		t.Fatal(err)
	}
	if _, held := f.held(got.Name); held {
		t.Error("the feed keeps changes for a cursor that is deleted")
	}
	if err := other.Delete(ctx, got.Name); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
}

func TestBounds(t *testing.T) {
	s := memory.New(memory.Options{})
	defer s.Close()
	ctx := t.Context()
	all, err := New(ctx, Config{Store: s, Feed: &heldFeed{epoch: s.Epoch(), holds: map[string]seglog.Position{}}, Max: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct {
		name  string
		t     Type
		at    seglog.Position
		props map[string]string
		want  string
	}{
		{"", Shared, 0, nil, "0 bytes"},
		{strings.Repeat("x", MaxName+1), Shared, 0, nil, "513 bytes"},
		{"a\x00", Shared, 0, nil, "control characters"},
		{"a", "both", 0, nil, "key_shared"},
		{"a", Shared, -1, nil, "negative"},
		{"a", Shared, 0, map[string]string{"k": strings.Repeat("x", MaxProperties)}, "properties"},
	} {
		if _, err := all.Create(ctx, bad.name, bad.t, bad.at, bad.props); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%.20q %s %d: %v, want %q", bad.name, bad.t, bad.at, err, bad.want)
		}
	}
	must(all.Create(ctx, "a", Shared, 0, nil))(t)
	must(all.Create(ctx, "b", Shared, 0, nil))(t)
	if _, err := all.Create(ctx, "c", Shared, 0, nil); err == nil || !strings.Contains(err.Error(), "2 cursors") {
		t.Errorf("a third of two: %v", err)
	}

	cur := must(all.Open(ctx, "a"))(t)
	var full error
	for i := range MaxRanges + 1 {
		full = cur.Ack(seglog.Position(2*i+1), seglog.Position(2*i+2))
	}
	if !errors.Is(full, ErrFull) {
		t.Errorf("%d ranges: %v", MaxRanges+1, full)
	}
	if err := cur.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if got := must(all.Get(ctx, "a"))(t); len(got.Acked) != maxStored || got.Acked[0] != (Range{1, 2}) {
		t.Errorf("%d ranges are stored, want the first %d", len(got.Acked), maxStored)
	}
}

func TestExpired(t *testing.T) {
	s := memory.New(memory.Options{})
	defer s.Close()
	ctx := t.Context()
	all, f := instance(t, s)
	must(all.Create(ctx, "late", Exclusive, 5, nil))(t)
	f.first = 9
	var expired *seglog.ExpiredError
	if _, err := all.Open(ctx, "late"); !errors.As(err, &expired) || expired.First != 9 {
		t.Fatalf("opened: %v", err)
	}
	must(all.Seek(ctx, "late", 9))(t)
	must(all.Open(ctx, "late"))(t)

	// A store that was restored from a backup has another history.
	row := must(all.Get(ctx, "late"))(t)
	row.Epoch = "another"
	if err := all.Expired(&row); !errors.As(err, &expired) {
		t.Errorf("a cursor of another history: %v", err)
	}
}

// Two instances acknowledge with the same cursor: nothing is lost, and a seek ends what the other does.
func TestTwoInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		a, _ := instance(t, s)
		b, fb := instance(t, s)
		var wg sync.WaitGroup
		for _, c := range []*Cursors{a, b} {
			wg.Go(func() { _ = c.Run(ctx) })
		}
		defer wg.Wait()
		defer cancel()
		must(a.Create(ctx, "c", Shared, 0, nil))(t)
		ca, cb := must(a.Open(ctx, "c"))(t), must(b.Open(ctx, "c"))(t)
		if err := errors.Join(ca.Ack(0, 3), cb.Ack(5, 6), ca.Ack(7, 8), cb.Ack(3, 4)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * writeEvery)
		synctest.Wait()
		want := []Range{{5, 6}, {7, 8}}
		for _, got := range []State{ca.State(), cb.State(), must(a.Get(ctx, "c"))(t)} {
			if got.Mark != 4 || !cmp.Equal(got.Acked, want) {
				t.Errorf("mark %d, acknowledged %v; want 4, %v", got.Mark, got.Acked, want)
			}
		}
		if at, _ := fb.held("c"); at != 4 {
			t.Errorf("the other instance keeps what comes after %d, not 4", at)
		}

		// Idle cursors are not written.
		before, _ := s.Revision(ctx)
		time.Sleep(time.Minute)
		if after, _ := s.Revision(ctx); after != before {
			t.Errorf("%d writes of idle cursors", after-before)
		}

		if err := ca.Seek(ctx, 1); err != nil {
			t.Fatal(err)
		}
		<-cb.Lost()
		if err := cb.Ack(0, 9); !errors.Is(err, ErrMoved) {
			t.Errorf("acknowledged after the other's seek: %v", err)
		}
		if got := must(a.Get(ctx, "c"))(t); got.Mark != 1 || got.Acked != nil {
			t.Errorf("after the seek: %+v", got)
		}
		_ = cb.Close(ctx)
		cb = must(b.Open(ctx, "c"))(t)
		if err := a.Delete(ctx, "c"); err != nil {
			t.Fatal(err)
		}
		<-ca.Lost()
		<-cb.Lost()
		if !errors.Is(ca.Err(), ErrDeleted) || !errors.Is(cb.Err(), ErrDeleted) {
			t.Errorf("after the deletion: %v, %v", ca.Err(), cb.Err())
		}
	})
}

// TestFence: what an instance acknowledges that may not write any more changes nothing, and its cursor is lost.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		defer s.Close()
		ctx := t.Context()
		a, _ := instance(t, s)
		b, _ := instance(t, s)
		must(a.Create(ctx, "c", Exclusive, 0, nil))(t)
		claim := func() store.Condition {
			at := must(s.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Put, Key: "/claim"}}}))(t)
			return store.Condition{Key: "/claim", Modified: at}
		}
		ca := must(a.OpenExpired(ctx, "c", claim()))(t)
		if err := errors.Join(ca.Ack(0, 3), ca.Flush(ctx), ca.Ack(3, 9)); err != nil {
			t.Fatal(err)
		}
		cb := must(b.OpenExpired(ctx, "c", claim()))(t)
		if err := ca.Flush(ctx); !errors.Is(err, ErrFenced) {
			t.Errorf("written by the former owner: %v", err)
		}
		if err := ca.Seek(ctx, 1); !errors.Is(err, ErrFenced) {
			t.Errorf("sought by the former owner: %v", err)
		}
		<-ca.Lost()
		if err := errors.Join(ca.Close(ctx), cb.Ack(3, 4), cb.Close(ctx)); err != nil {
			t.Error(err)
		}
		if got := must(a.Get(ctx, "c"))(t); got.Mark != 4 || len(got.Acked) > 0 {
			t.Errorf("it is %+v", got)
		}
	})
}

// TestModel compares random acknowledgements, seeks, writes and restarts of two instances with sets of positions.
func TestModel(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { model(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

const positions = 40

func model(t *testing.T, random *rand.Rand) {
	s := memory.New(memory.Options{})
	defer s.Close()
	ctx := t.Context()
	var all [2]*Cursors
	var cur [2]*Cursor
	for i := range all {
		all[i], _ = instance(t, s)
	}
	must(all[0].Create(ctx, "c", Shared, 0, nil))(t)
	reopen := func(i int) {
		if cur[i] != nil {
			if err := cur[i].Close(ctx); err != nil {
				t.Fatal(err)
			}
		}
		cur[i] = must(all[i].Open(ctx, "c"))(t)
	}
	reopen(0)
	reopen(1)
	// acked is what an instance has, written what the row has.
	var acked [2][positions + 1]bool
	var written [positions + 1]bool
	merge := func(i int) {
		for at := range written {
			written[at] = written[at] || acked[i][at]
		}
	}
	for range 100 {
		i := random.IntN(2)
		lost := cur[i].Err() != nil
		switch random.IntN(8) {
		case 0, 1, 2, 3:
			after := random.IntN(positions)
			to := after + 1 + random.IntN(min(4, positions-after))
			if random.IntN(8) == 0 {
				after = 0
			}
			err := cur[i].Ack(seglog.Position(after), seglog.Position(to))
			if lost != (err != nil) {
				t.Fatal(err)
			}
			for at := after + 1; at <= to && !lost; at++ {
				acked[i][at] = true
			}
		case 4, 5:
			err := cur[i].Flush(ctx)
			if err == nil {
				merge(i)
			} else if !errors.Is(err, ErrMoved) {
				t.Fatal(err)
			}
		case 6:
			reopen(i)
			if !lost {
				merge(i)
			}
			acked[i] = written
		case 7:
			if random.IntN(4) > 0 {
				continue
			}
			to := random.IntN(positions)
			must(all[i].Seek(ctx, "c", seglog.Position(to)))(t)
			written = [positions + 1]bool{}
			for at := range to + 1 {
				written[at] = true
			}
			// The other instance learns of it by its watch, or its next write.
			if other := cur[1-i].State(); cur[1-i].Err() == nil && other.Mark < positions {
				_ = cur[1-i].AckThrough(positions)
				if err := cur[1-i].Flush(ctx); !errors.Is(err, ErrMoved) {
					t.Fatalf("written over a seek: %v", err)
				}
			}
			reopen(0)
			reopen(1)
			acked[0], acked[1] = written, written
		}
		state := cur[i].State()
		for at := 1; at <= positions && cur[i].Err() == nil; at++ {
			is := cur[i].Acked(seglog.Position(at))
			if acked[i][at] && !is || is && !acked[i][at] && !written[at] {
				t.Fatalf("position %d: acknowledged is %t; the instance was told %t, the row has %t; %+v", at, is, acked[i][at], written[at], state)
			}
			acked[i][at] = is // it learns of the row with a conflict
		}
		last := state.Mark
		for _, r := range state.Acked {
			if r.After <= last || r.To <= r.After {
				t.Fatalf("ranges are not apart: %+v", state)
			}
			last = r.To
		}
	}
}
