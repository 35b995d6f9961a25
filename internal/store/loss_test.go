package store_test

import (
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// TestAfterLoss: revisions rise over any number of losses.
func TestAfterLoss(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	clock := store.Revision(now.Unix()) * 1_000_000
	for name, tt := range map[string]struct {
		known store.Revision
		now   time.Time
		want  store.Revision
	}{
		"the first":                      {100, now, clock},
		"again, from the same revision":  {100, now.Add(24 * time.Hour), clock + 86_400_000_000},
		"after one that is newer":        {clock + 50, now, clock + 50 + 1_000_000_000},
		"soon after another":             {clock + 70, now.Add(time.Second), clock + 70 + 1_000_000_000},
		"when the clock is at its epoch": {200, time.Unix(0, 0), 200 + 1_000_000_000},
	} {
		if got := store.AfterLoss(tt.known, tt.now); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
	if far := store.AfterLoss(0, time.Date(2255, 1, 1, 0, 0, 0, 0, time.UTC)); far >= 1<<53 {
		t.Errorf("%d is beyond what a double holds", far)
	}
}
