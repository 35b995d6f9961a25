// Package wallclock waits until times of the calendar, as the ends of certificates are.
//
// Timers of Go stand still while a machine sleeps, and know nothing of a clock that is
// set. Enter at Wait.
package wallclock

import (
	"context"
	"time"
)

// Reason why Wait returned.
type Reason int

// The reasons.
const (
	// Reached: it is the time, or later.
	Reached Reason = iota
	// Woken: there was a value in the channel, or it was closed, before the time.
	Woken
	// Ended: the context has ended.
	Ended
)

// Wait blocks until now is at or later, wake has something, or ctx ends, which counts
// before everything else. It compares by the wall clock at least once in check, so that it
// is late by check at most where the machine slept. now nil is time.Now; a nil wake never
// wakes.
func Wait(ctx context.Context, at time.Time, check time.Duration, now func() time.Time, wake <-chan struct{}) Reason {
	if now == nil {
		now = time.Now
	}
	for {
		if ctx.Err() != nil {
			return Ended
		}
		left := at.Round(0).Sub(now().Round(0)) // without the monotonic reading
		if left <= 0 {
			return Reached
		}
		timer := time.NewTimer(min(left, check))
		select {
		case <-ctx.Done():
		case <-wake:
			timer.Stop()
			return Woken
		case <-timer.C:
		}
		timer.Stop()
	}
}
