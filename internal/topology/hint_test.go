package topology

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/planner"
)

// TestRestartKeepsHintsThatAreNearlyAsGood: only a process that has just begun does.
func TestRestartKeepsHintsThatAreNearlyAsGood(t *testing.T) {
	top, err := planner.NewTopology([]planner.Zone{{Name: "a"}, {Name: "b"}}, planner.Costs{})
	if err != nil {
		t.Fatal(err)
	}
	plan := func(fresh bool, odd []string) []string {
		p := &hintPlan{topology: top, mode: HintsSoft, reason: HintsFound, zones: map[string]string{}, demand: []float64{0.5, 0.5}}
		now := map[string][]string{}
		for i := range 20 {
			for _, zone := range []string{"a", "b"} {
				address := fmt.Sprintf("%s%02d", zone, i)
				p.zones[address], now[address] = zone, []string{zone}
			}
		}
		now["a00"] = odd
		p.find(now, fresh)
		return p.hints["a00"]
	}
	for _, c := range []struct {
		fresh     bool
		odd, want []string
	}{
		{true, []string{"b"}, []string{"b"}},
		{false, []string{"b"}, []string{"a"}},
		{true, nil, []string{"a"}},           // incomplete hints are none
		{true, []string{"x"}, []string{"a"}}, // of a zone that is gone
	} {
		if diff := cmp.Diff(c.want, plan(c.fresh, c.odd)); diff != "" {
			t.Errorf("fresh %v, %v: %s", c.fresh, c.odd, diff)
		}
	}
}
