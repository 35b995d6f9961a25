package sqlite

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/sqlite/faultdisk"
)

// These tests run the store on a disk that forgets: what was not synced may be
// lost in any part, at any moment, and syncs may fail. See faultdisk for what a
// cut may leave.

// cut is a state that was left, and how many acknowledgements came before it.
type cut struct {
	acked int
	image faultdisk.Image
}

// outage is one life of a state, with the cuts that were made of it.
type outage struct {
	disk *faultdisk.Disk
	path string

	mu   sync.Mutex
	acks []ack
	cuts []cut
}

// share of the operations of the disk after which a cut is made.
const cutShare = 0.02

func newOutage(t *testing.T, from faultdisk.Image, seed uint64) *outage {
	t.Helper()
	folder, err := filepath.EvalSymlinks(t.TempDir()) // as SQLite names its files
	if err != nil {
		t.Fatal(err)
	}
	if err := from.WriteTo(folder); err != nil {
		t.Fatal(err)
	}
	o := &outage{path: filepath.Join(folder, "state.db")}
	if o.disk, err = faultdisk.Watch(folder, seed); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	o.disk.Each(func(now func() faultdisk.Image) {
		if rng.Float64() >= cutShare {
			return
		}
		o.mu.Lock() // first what is promised, then what is left
		acked := len(o.acks)
		o.mu.Unlock()
		image := now()
		o.mu.Lock()
		o.cuts = append(o.cuts, cut{acked, image})
		o.mu.Unlock()
	})
	return o
}

// live opens the state, lets writers work until there are enough acknowledgements,
// and closes it. A commit that failed may have happened; it is tried again.
func (o *outage) live(t *testing.T, faults faultdisk.Faults, enough int) {
	t.Helper()
	defer o.disk.Stop()
	s, err := Open(t.Context(), o.path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// Often restarted, so that cuts meet all that a log goes through.
	small := func() {
		if _, err := s.writer.conn.ExecContext(t.Context(), `PRAGMA wal_autocheckpoint = 25`); err != nil {
			t.Error(err)
		}
	}
	if err := s.task(t.Context(), small); err != nil {
		t.Fatal(err)
	}
	begun := make([]int, childWriters)
	for writer := range begun {
		begun[writer] = childCount(t, s, writer)
	}
	o.disk.Set(faults)
	var writing sync.WaitGroup
	for writer := range childWriters {
		writing.Go(func() { o.write(t, s, writer, begun[writer], enough) })
	}
	writing.Wait()
	o.disk.Set(faultdisk.Faults{})
}

func (o *outage) write(t *testing.T, s *Store, writer, begun, enough int) {
	rng := rand.New(rand.NewPCG(uint64(writer), uint64(begun)))
	for count := begun + 1; ; {
		text := []byte(strconv.Itoa(count))
		rev, err := s.Commit(t.Context(), store.Txn{Ops: []store.Op{
			{Kind: store.Put, Key: fmt.Sprintf("first/%d", writer), Value: text},
			{Kind: store.Put, Key: fmt.Sprintf("filler/%d", writer), Value: make([]byte, rng.IntN(9000))},
			{Kind: store.Put, Key: fmt.Sprintf("last/%d", writer), Value: text},
		}})
		if err != nil {
			if o.disk.Seen().FailedSyncs == 0 {
				t.Errorf("commit on a disk that is well: %v", err)
				return
			}
			continue
		}
		o.mu.Lock()
		o.acks = append(o.acks, ack{revision: rev, writer: writer, count: count})
		done := len(o.acks) >= enough
		o.mu.Unlock()
		if done {
			return
		}
		if writer == 0 && count%15 == 0 {
			if err := s.Compact(t.Context(), rev*9/10); err != nil && o.disk.Seen().FailedSyncs == 0 {
				t.Errorf("compaction on a disk that is well: %v", err)
			}
		}
		count++
	}
}

// left opens what each cut left, checks it against all acknowledgements before
// it, and returns the last one.
func (o *outage) left(t *testing.T, issued map[store.Revision]ack) faultdisk.Image {
	t.Helper()
	known := 0
	for i, c := range o.cuts {
		for ; known < c.acked; known++ {
			a := o.acks[known]
			if twice, ok := issued[a.revision]; ok {
				t.Fatalf("revision %d was issued for %+v and for %+v", a.revision, twice, a)
			}
			issued[a.revision] = a
		}
		folder := t.TempDir()
		if err := c.image.WriteTo(folder); err != nil {
			t.Fatal(err)
		}
		verify(t, filepath.Join(folder, "state.db"), issued)
		if t.Failed() {
			t.Fatalf("cut %d of %d, after %d acknowledgements", i, len(o.cuts), c.acked)
		}
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
	}
	return o.cuts[len(o.cuts)-1].image
}

// TestPowerCut cuts the power of a state that is made, written, compacted,
// checkpointed and closed, at any of its writes and syncs, over and over: what was
// acknowledged is there, whole, at its revision, and no revision was issued twice.
func TestPowerCut(t *testing.T) {
	lives, enough := 4, 120
	if os.Getenv("PROXIMA_SOAK") == "1" {
		lives, enough = 30, 400
	}
	for name, faults := range map[string]faultdisk.Faults{"a disk that is well": {}, "syncs that fail": {FailedSyncs: 0.15}} {
		t.Run(name, func(t *testing.T) {
			issued := map[store.Revision]ack{}
			var image faultdisk.Image
			cuts := 0
			var seen faultdisk.Seen
			for life := range lives {
				o := newOutage(t, image, uint64(life))
				o.live(t, faults, enough)
				image = o.left(t, issued)
				cuts += len(o.cuts)
				seen = o.disk.Seen()
				if t.Failed() {
					t.Fatalf("life %d", life)
				}
			}
			t.Logf("%d cuts, %d acknowledged transactions; in the last life %+v", cuts, len(issued), seen)
			if cuts < 10*lives || (seen.FailedSyncs > 0) != (faults.FailedSyncs > 0) {
				t.Error("the disk was not what it should be")
			}
		})
	}
}

// TestPowerCutIsAlive: a disk that reports a sync without doing it is detected.
func TestPowerCutIsAlive(t *testing.T) {
	o := newOutage(t, nil, 1)
	o.live(t, faultdisk.Faults{LostSyncs: 0.5}, 60)
	for _, c := range o.cuts {
		folder := t.TempDir()
		if err := c.image.WriteTo(folder); err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), filepath.Join(folder, "state.db"), Options{})
		var broken *DamagedError
		if errors.As(err, &broken) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		last := s.hub.Revision()
		s.Close()
		for _, a := range o.acks[:c.acked] {
			if a.revision > last {
				return
			}
		}
	}
	t.Error("nothing that was acknowledged is missing")
}
