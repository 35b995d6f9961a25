package scavenge

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// TestPace: the percentage is low from the first collection after which more lives, until some found
// no growth, and while collections are rare. It is higher where collections take too much of the time.
func TestPace(t *testing.T) {
	p := pace{live: 100, percent: steadyPercent, growing: growingPercent, idle: steady}
	const middling = (cheap + costly) / 2
	check := func(when string, live uint64, since time.Duration, share float64, want int) {
		t.Helper()
		if got := p.collected(live, since, share); got != want {
			t.Errorf("%s: %d %%, want %d", when, got, want)
		}
	}
	settle := func() {
		t.Helper()
		for range steady - 1 {
			check("still", p.live, 0, middling, p.growing)
		}
		check("steady", p.live, 0, middling, steadyPercent)
	}
	check("a little more", 102, 0, middling, steadyPercent)
	check("more", 110, 0, middling, growingPercent)
	check("a little more", 111, 0, middling, growingPercent)
	check("more", 120, 0, middling, growingPercent)
	settle()
	check("less", 90, rare-1, middling, steadyPercent)
	check("a rare one", 90, rare, middling, growingPercent)
	settle()
	check("more", 99, 0, middling, growingPercent)
	check("more, at a high cost", 110, 0, costly+0.01, 2*growingPercent)
	check("more, at a middling cost", 120, 0, middling, 2*growingPercent)
	for range 5 {
		p.collected(p.live, 0, 1)
	}
	check("more, at the highest cost", 130, 0, 1, mostGrowing)
	check("more, at a low cost", 140, 0, cheap-0.01, mostGrowing/2)
	for live := uint64(140); live < 200; live++ {
		check("slowly more", live, 0, middling, p.growing)
	}
	check("more", 220, 0, middling, p.growing)
	settle()
	check("a rare one, at a high cost", p.live, rare, 1, growingPercent)
}

// TestPaceWithRoom: a heap that may have room has it where collections take much of the time, less as it grows, until they
// take next to nothing.
func TestPaceWithRoom(t *testing.T) {
	const mb = 1 << 20
	p := pace{live: 50 * mb, percent: growingPercent, growing: growingPercent, room: 128 * mb}
	for _, c := range []struct {
		live  uint64
		share float64
		want  int
	}{
		{60, dear, growingPercent}, {70, dear + 0.01, steadyPercent}, {80, modest, steadyPercent}, {160, modest, 80}, {320, 1, mostGrowing}, {3200, 1, mostGrowing},
		{50, 1, steadyPercent}, {60, modest - 0.01, steadyPercent / 2},
	} {
		if got := p.collected(c.live*mb, 0, c.share); got != c.want {
			t.Errorf("%d MB, %.2f: %d %%, want %d", c.live, c.share, got, c.want)
		}
	}
}

// TestShare: of the time between two readings, and nothing of none.
func TestShare(t *testing.T) {
	before := cpu{collecting: 1, user: 3}
	for want, now := range map[float64]cpu{0: before, 0.5: {collecting: 2, user: 4}, 1: {collecting: 2, user: 3}} {
		if got := now.share(before); got != want {
			t.Errorf("%+v: %v, want %v", now, got, want)
		}
	}
	runtime.GC()
	if c := readCPU(); c.collecting == 0 || c.user == 0 {
		t.Errorf("the runtime reports %+v", c)
	}
}

// TestKeepPace: the percentage is low at the start, a heap that does not grow sets GOGC to its default, one
// that does makes it low again, and the end of the context sets it back.
func TestKeepPace(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		keepPace(ctx, 0)
	}()
	percent := func() int { // reading it is setting it
		now := debug.SetGCPercent(steadyPercent)
		debug.SetGCPercent(now)
		return now
	}
	var kept [][]byte
	await := func(want, grow int) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); percent() != want; {
			if time.Now().After(end) {
				t.Fatalf("GOGC is %d, want %d, with %d MB", percent(), want, len(kept))
			}
			for range grow {
				kept = append(kept, make([]byte, 1<<20))
			}
			runtime.GC()
		}
	}
	await(growingPercent, 0)
	await(steadyPercent, 0)
	await(growingPercent, 1)
	runtime.KeepAlive(kept)
	cancel()
	<-ended
	if got := percent(); got != steadyPercent {
		t.Errorf("GOGC is %d at the end, want %d", got, steadyPercent)
	}
}
