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
	for i, step := range []struct {
		live  uint64
		since time.Duration
		want  int
	}{
		{102, 0, steadyPercent}, {110, 0, growingPercent}, {120, 0, growingPercent}, {121, 0, growingPercent}, {121, 0, growingPercent},
		{140, 0, growingPercent}, {140, 0, growingPercent}, {139, 0, growingPercent}, {90, 0, steadyPercent}, {91, rare - 1, steadyPercent},
		{91, rare, growingPercent}, {91, 0, growingPercent}, {91, 0, growingPercent}, {91, 0, steadyPercent}, {99, 0, growingPercent},
	} {
		if got := p.collected(step.live, step.since); got != step.want {
			t.Errorf("collection %d, %d live: %d %%, want %d", i, step.live, got, step.want)
		}
	}
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
