package feed

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

// TestEdit: values are changed in all files, of the roots and of the target; what was interrupted, and what cannot be changed, is told, and done
// by the next turn, which leaves alone what is done.
func TestEdit(t *testing.T) {
	r := stoppedRig(t)
	target := r.offloading(t.TempDir())
	r.start()
	r.fill(200)
	r.offloadNow()
	r.fill(100)
	at, err := r.store.Revision(t.Context())
	r.must(err)
	secret, budget := []byte("33333333"), 1000
	examined := map[string]bool{}
	edited := 0
	e := Editing{
		UpTo:   seglog.Position(at),
		Wanted: func(f seglog.SealedFile) bool { return !slices.Contains(f.Marks, "m") && !examined[f.SHA256] },
		Examined: func(sha string) {
			examined[sha] = true
		},
		Editor: func(seglog.SealedFile) seglog.Editor {
			return seglog.Editor{Marks: []string{"m"}, Edit: func(e *seglog.Entry, _ []string) (*seglog.Entry, error) {
				own := *e
				own.Value, own.PrevValue = bytes.ReplaceAll(e.Value, secret, []byte("gone")), bytes.ReplaceAll(e.PrevValue, secret, []byte("gone"))
				if bytes.Equal(own.Value, e.Value) && bytes.Equal(own.PrevValue, e.PrevValue) {
					return e, nil
				}
				if budget--; budget < 0 {
					return nil, errors.New("it was interrupted")
				}
				edited++
				return &own, nil
			}}
		},
	}
	budget = 3
	left, err := r.feed.Edit(t.Context(), e, true)
	if err != nil || len(left) == 0 {
		t.Fatalf("interrupted: %v, %v", left, err)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.feed.Edit(stopped, e, true); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	budget = 1 << 20
	target.away.Store(true)
	if left, err := r.feed.Edit(t.Context(), e, true); err != nil || len(left) == 0 {
		t.Errorf("the target is away: %v, %v", left, err)
	}
	r.stop()
	target.away.Store(false)
	r.start()
	for range 2 {
		left, err = r.feed.Edit(t.Context(), e, true)
		if err != nil || len(left) > 0 {
			t.Fatalf("%v, %v", left, err)
		}
	}
	was := edited
	if _, err := r.feed.Edit(t.Context(), e, true); err != nil || edited != was || was == 0 {
		t.Errorf("%d values are edited again: %v", edited-was, err)
	}
	n := 0
	r.must(r.feed.History(t.Context(), 0, func(string) bool { return true }, func(e *seglog.Entry) bool {
		if n++; bytes.Contains(e.Value, secret) || bytes.Contains(e.PrevValue, secret) {
			t.Errorf("at %d it is %s, %s", e.Position, e.Value, e.PrevValue)
		}
		return true
	}))
	found, err := r.feed.Verify(t.Context())
	if err != nil || len(found.Problems) > 0 || n != 300 {
		t.Errorf("%d entries; %+v, %v", n, found, err)
	}
}
