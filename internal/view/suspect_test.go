package view

import (
	"slices"
	"testing"

	"github.com/proxima-mesh/proxima/internal/view/viewtest"
)

// TestSuspectsAdvanceThePosition: a new set of suspects moves the position of views, the
// same set does not, in whatever order.
func TestSuspectsAdvanceThePosition(t *testing.T) {
	b := NewBuilder(BuilderConfig{Run: "one"})
	replace(t, b, viewtest.Delta(1, viewtest.Service("web", "10.0.0.1")))
	s := session(t, b, "a")
	contents(t, s)
	before := b.position("a")
	for _, nodes := range [][]string{{"n8", "n9"}, {"n9", "n8"}} {
		if err := b.SetSuspects(nodes); err != nil {
			t.Fatal(err)
		}
		if at := b.position("a"); at.Epoch != before.Epoch || at.Sequence != before.Sequence+1 {
			t.Errorf("suspects %v: position %v after %v", nodes, at, before)
		}
	}
	if got := contents(t, s); !slices.Equal(got, nil) {
		t.Errorf("a stream that does not subscribe to suspects got %q", got)
	}
}
