package wallclock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/wallclock"
)

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if r := wallclock.Wait(t.Context(), begin.Add(90*time.Second), time.Minute, nil, nil); r != wallclock.Reached {
			t.Errorf("reason %v", r)
		}
		if took := time.Since(begin); took != 90*time.Second {
			t.Errorf("it took %s", took)
		}
		if r := wallclock.Wait(t.Context(), begin, time.Minute, nil, nil); r != wallclock.Reached {
			t.Errorf("a time that has passed: %v", r)
		}
	})
}

// The machine slept: the clock is hours ahead of the timers.
func TestWaitNoticesAClockThatJumped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var slept atomic.Int64 // ns
		now := func() time.Time { return time.Now().Add(time.Duration(slept.Load())) }
		time.AfterFunc(30*time.Second, func() { slept.Store(int64(5 * time.Hour)) })
		if r := wallclock.Wait(t.Context(), begin.Add(4*time.Hour), time.Minute, now, nil); r != wallclock.Reached {
			t.Errorf("reason %v", r)
		}
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("it noticed after %s", took)
		}
	})
}

func TestWaitIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wake := make(chan struct{}, 1)
		wake <- struct{}{}
		if r := wallclock.Wait(t.Context(), time.Now().Add(time.Hour), time.Minute, nil, wake); r != wallclock.Woken {
			t.Errorf("reason %v", r)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if r := wallclock.Wait(ctx, time.Now().Add(time.Hour), time.Minute, nil, wake); r != wallclock.Ended {
			t.Errorf("reason %v", r)
		}
		if r := wallclock.Wait(ctx, time.Now(), time.Minute, nil, nil); r != wallclock.Ended {
			t.Errorf("the context counts first: %v", r)
		}
	})
}
