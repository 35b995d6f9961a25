package scavenge

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// TestPace: the percentage is low from the first collection after which more lives, until some found
// no growth.
func TestPace(t *testing.T) {
	p := pace{live: 100, percent: steadyPercent, idle: steady}
	for i, step := range []struct {
		live uint64
		want int
	}{
		{102, steadyPercent}, {110, growingPercent}, {120, growingPercent}, {121, growingPercent}, {121, growingPercent},
		{140, growingPercent}, {140, growingPercent}, {139, growingPercent}, {90, steadyPercent}, {91, steadyPercent}, {99, growingPercent},
	} {
		if got := p.collected(step.live); got != step.want {
			t.Errorf("collection %d, %d live: %d %%, want %d", i, step.live, got, step.want)
		}
	}
}

// TestKeepPace: growth of a real heap sets GOGC, and the end of the context sets it back.
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
	for end := time.Now().Add(20 * time.Second); percent() != growingPercent; {
		if time.Now().After(end) {
			t.Fatalf("GOGC is %d after %d MB came to live", percent(), len(kept))
		}
		kept = append(kept, make([]byte, 1<<20))
		runtime.GC()
	}
	runtime.KeepAlive(kept)
	cancel()
	<-ended
	if got := percent(); got != steadyPercent {
		t.Errorf("GOGC is %d at the end, want %d", got, steadyPercent)
	}
}
