package view

import (
	"testing"

	"github.com/proxima-mesh/proxima/internal/catalog"
)

// TestSince: the sequence from which views have a revision is that of the first delta that came to it, and one that changes no view
// counts, too.
func TestSince(t *testing.T) {
	b := &Builder{}
	if _, ok := b.Since(1); ok {
		t.Error("views that were never filled have a revision")
	}
	b.steps = []step{{10, 10}, {12, 14}, {20, 14}, {21, 21}}
	for _, c := range []struct {
		revision, sequence uint64
		ok                 bool
	}{{1, 10, true}, {10, 10, true}, {11, 14, true}, {12, 14, true}, {13, 14, true}, {21, 21, true}, {22, 0, false}} {
		if got, ok := b.Since(c.revision); got != c.sequence || ok != c.ok {
			t.Errorf("revision %d: %d, %v, want %d, %v", c.revision, got, ok, c.sequence, c.ok)
		}
	}
	// An older delta adds nothing, and no more is kept than is needed.
	b.sequence = 30
	b.came(&catalog.Delta{After: &catalog.Snapshot{}})
	if len(b.steps) != 4 {
		t.Errorf("%+v", b.steps)
	}
}
