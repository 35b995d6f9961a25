package topology

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
)

// TestRestartKeepsHintsThatAreNearlyAsGood: only a process that has just begun does.
func TestRestartKeepsHintsThatAreNearlyAsGood(t *testing.T) {
	top, err := planner.NewTopology([]planner.Zone{{Name: "a"}, {Name: "b"}}, planner.Costs{})
	if err != nil {
		t.Fatal(err)
	}
	plan := func(fresh bool, odd []locality.Zone) []locality.Zone {
		p := &hintPlan{topology: top, mode: HintsSoft, reason: HintsFound, zones: map[string]locality.Zone{}, demand: []float64{0.5, 0.5}}
		now := map[string][]locality.Zone{}
		for i := range 20 {
			for _, zone := range locality.Zones("a", "b") {
				address := fmt.Sprintf("%s%02d", zone, i)
				p.zones[address], now[address] = zone, []locality.Zone{zone}
			}
		}
		now["a00"] = odd
		p.find(now, fresh)
		return p.hints["a00"]
	}
	for _, c := range []struct {
		fresh     bool
		odd, want []locality.Zone
	}{
		{true, locality.Zones("b"), locality.Zones("b")},
		{false, locality.Zones("b"), locality.Zones("a")},
		{true, nil, locality.Zones("a")},                 // incomplete hints are none
		{true, locality.Zones("x"), locality.Zones("a")}, // of a zone that is gone
	} {
		if diff := cmp.Diff(c.want, plan(c.fresh, c.odd)); diff != "" {
			t.Errorf("fresh %v, %v: %s", c.fresh, c.odd, diff)
		}
	}
}
