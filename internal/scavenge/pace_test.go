package scavenge

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// TestPace: the percentage is low from the first collection after which more lives, until some found
// no growth, and while collections are rare.
func TestPace(t *testing.T) {
	p := pace{live: 100, percent: steadyPercent, idle: steady}
	check := func(when string, live uint64, since time.Duration, want int) {
		t.Helper()
		if got := p.collected(live, since); got != want {
			t.Errorf("%s: %d %%, want %d", when, got, want)
		}
	}
	settle := func() {
		t.Helper()
		for range steady - 1 {
			check("still", p.live, 0, growingPercent)
		}
		check("steady", p.live, 0, steadyPercent)
	}
	check("a little more", 102, 0, steadyPercent)
	check("more", 110, 0, growingPercent)
	check("a little more", 111, 0, growingPercent)
	check("more", 120, 0, growingPercent)
	settle()
	check("less", 90, rare-1, steadyPercent)
	check("a rare one", 90, rare, growingPercent)
	settle()
	check("more", 99, 0, growingPercent)
}

// TestKeepPace: the percentage is low at the start, a heap that does not grow sets GOGC to its default, one
// that does makes it low again, and the end of the context sets it back.
func TestKeepPace(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		keepPace(ctx)
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
