package app

import "testing"

func TestWorthFreeing(t *testing.T) {
	const mib = 1 << 20
	quiet := memoryState{allocated: 1000 * mib, live: 100 * mib, objects: 110 * mib, free: 10 * mib}
	for name, c := range map[string]struct {
		change func(*memoryState)
		worth  uint64
		want   bool
	}{
		"nothing to gain":        {func(*memoryState) {}, planeWorth, false},
		"free pages":             {func(m *memoryState) { m.free = 60 * mib }, planeWorth, true},
		"dead objects":           {func(m *memoryState) { m.objects = 160 * mib }, planeWorth, true},
		"the burst still goes":   {func(m *memoryState) { m.free = 500 * mib; m.allocated += 200 * mib }, planeWorth, false},
		"live is yet to be told": {func(m *memoryState) { m.objects = 90 * mib }, planeWorth, false},
		"little of a plane":      {func(m *memoryState) { m.free = 20 * mib }, planeWorth, false},
		"much of an agent":       {func(m *memoryState) { m.free = 20 * mib }, agentWorth, true},
	} {
		t.Run(name, func(t *testing.T) {
			now := quiet
			c.change(&now)
			if got := now.worthFreeing(quiet, c.worth); got != c.want {
				t.Errorf("%v", got)
			}
		})
	}
	if m := readMemory(); m.allocated == 0 || m.objects == 0 {
		t.Errorf("the runtime says %+v", m)
	}
}
