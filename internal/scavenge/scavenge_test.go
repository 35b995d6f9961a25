package scavenge

import "testing"

func TestReclaimable(t *testing.T) {
	const mib = 1 << 20
	const large, small = 40 * mib, 12 * mib
	before := state{allocated: 1000 * mib, live: 100 * mib, objects: 110 * mib, free: 10 * mib}
	for name, c := range map[string]struct {
		change     func(*state)
		minReclaim uint64
		want       bool
	}{
		"nothing to gain":            {func(*state) {}, large, false},
		"free pages":                 {func(s *state) { s.free = 60 * mib }, large, true},
		"dead objects":               {func(s *state) { s.objects = 160 * mib }, large, true},
		"the burst goes on":          {func(s *state) { s.free = 500 * mib; s.allocated += 200 * mib }, large, false},
		"live is older than objects": {func(s *state) { s.objects = 90 * mib }, large, false},
		"little for a large process": {func(s *state) { s.free = 20 * mib }, large, false},
		"enough for a small process": {func(s *state) { s.free = 20 * mib }, small, true},
	} {
		t.Run(name, func(t *testing.T) {
			now := before
			c.change(&now)
			if got := now.reclaimable(before, c.minReclaim); got != c.want {
				t.Errorf("%v", got)
			}
		})
	}
	if s := read(); s.allocated == 0 || s.objects == 0 {
		t.Errorf("the runtime reports %+v", s)
	}
}
