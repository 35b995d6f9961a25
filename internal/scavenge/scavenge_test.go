package scavenge

import (
	"runtime"
	"testing"
	"time"
)

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
		"little for a large process": {func(s *state) { s.free, s.allocated = 20*mib, s.allocated+8*mib }, large, false},
		"enough for a small process": {func(s *state) { s.free, s.allocated = 20*mib, s.allocated+8*mib }, small, true},
		"a share of what lives":      {func(s *state) { s.live, s.objects = 20*mib, 28*mib }, large, true},
		"that share, not idle":       {func(s *state) { s.live, s.objects, s.allocated = 20*mib, 28*mib, s.allocated+2*mib }, large, false},
		"less than that share":       {func(s *state) { s.live, s.objects, s.free = 20*mib, 24*mib, 0 }, large, false},
		"hardly anything lives":      {func(s *state) { s.live, s.objects, s.free = mib, 4*mib, 0 }, large, false},
		"much lives":                 {func(s *state) { s.live, s.objects, s.free = 1000*mib, 1000*mib, 50*mib }, large, true},
	} {
		t.Run(name, func(t *testing.T) {
			now := before
			c.change(&now)
			if got := now.reclaimable(before, c.minReclaim); got != c.want {
				t.Errorf("%v", got)
			}
		})
	}
	runtime.GC()
	if s := read(); s.allocated == 0 || s.objects == 0 || s.cycles == 0 {
		t.Errorf("the runtime reports %+v", s)
	}
}

// TestSettles: after a burst memory is returned once, however much of it the runtime has collected.
func TestSettles(t *testing.T) {
	const mib = 1 << 20
	before := state{allocated: 1000 * mib, live: 100 * mib}
	for name, c := range map[string]struct {
		now      state
		returned uint64
		want     bool
	}{
		"a burst is over":        {state{allocated: 1001 * mib, live: 100 * mib}, 900 * mib, true},
		"it goes on":             {state{allocated: 1000*mib + quiet, live: 100 * mib}, 900 * mib, false},
		"memory was returned":    {state{allocated: 1001 * mib, live: 100 * mib}, 1000 * mib, false},
		"little for what lives":  {state{allocated: 1001 * mib, live: 100 * mib}, 960 * mib, false},
		"little for the process": {state{allocated: 1001 * mib, live: 10 * mib}, 970 * mib, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.now.settles(before, c.returned, 40*mib); got != c.want {
				t.Errorf("%v", got)
			}
		})
	}
}

// TestDropper: file pages are given back at first, after bursts, after collections and now and then,
// and not while much happens.
func TestDropper(t *testing.T) {
	began := time.Now()
	idle := state{allocated: 1 << 30, cycles: 7}
	collected, busy := idle, idle
	collected.cycles++
	busy.allocated += quiet
	for name, c := range map[string]struct {
		after time.Duration
		now   state
		burst bool
		grown uint64
		want  bool
	}{
		"nothing happened":              {dropEvery - time.Second, idle, false, 0, false},
		"now and then":                  {dropEvery, idle, false, 0, true},
		"a collection":                  {dropCollected, collected, false, 0, true},
		"a collection, and another one": {dropCollected - time.Second, collected, false, 0, false},
		"a burst":                       {dropAgain, collected, true, 0, true},
		"bursts one after the other":    {dropAgain - time.Second, collected, true, 0, false},
		"pages have come back":          {dropAgain, idle, false, dropGrown + 1, true},
		"some have":                     {dropAgain, idle, false, dropGrown, false},
		"they come back at once":        {dropAgain - time.Second, idle, false, dropGrown + 1, false},
		"they do while much happens":    {dropEvery, busy, false, dropGrown + 1, false},
		"much happens":                  {dropEvery, busy, false, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			var d dropper
			d.left = 1 << 20
			if !d.due(began, idle, idle, false, 0) {
				t.Fatal("not at first")
			}
			if got := d.due(began.Add(c.after), c.now, idle, c.burst, d.left+c.grown); got != c.want {
				t.Errorf("%v", got)
			}
			if c.want && d.due(began.Add(c.after+time.Second), c.now, c.now, false, 0) {
				t.Error("twice for one collection")
			}
		})
	}
}
