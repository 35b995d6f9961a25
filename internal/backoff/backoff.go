// Package backoff spaces attempts that fail: delays that double up to a bound, with
// a random part, and sleep that ends with a context.
//
// Enter at Policy for a number of failures that the caller counts, at Backoff for one
// that counts them, and at Retry for attempts that are made until a context ends.
package backoff

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"k8s.io/utils/clock"
)

// Policy says how long to wait after failures in a row. The zero value does not wait.
type Policy struct {
	// First is the delay after the first failure; it doubles up to Last.
	First, Last time.Duration
	// Jitter is the share of each delay, 0 to 1, of which a random part is left out,
	// so that clients of one server do not come back together.
	Jitter float64
}

// After returns the delay after that many failures in a row; none after none.
func (p Policy) After(failures int) time.Duration {
	d := p.bound(failures)
	return d - time.Duration(rand.Float64()*p.Jitter*float64(d))
}

// bound is the delay without its random part.
func (p Policy) bound(failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	d := min(p.First, p.Last)
	for range failures - 1 {
		if d >= p.Last || d <= 0 {
			break
		}
		d = min(2*d, p.Last)
	}
	return d
}

// Backoff counts failures for a Policy. Not safe for concurrent use.
type Backoff struct {
	Policy
	failures int
}

// Next counts a failure and returns the delay after it.
func (b *Backoff) Next() time.Duration {
	b.failures++
	return b.After(b.failures)
}

// Reset forgets the failures, after a success.
func (b *Backoff) Reset() { b.failures = 0 }

// Sleep waits. It returns false, at once, when ctx is done.
func Sleep(ctx context.Context, d time.Duration) bool { return SleepBy(ctx, clock.RealClock{}, d) }

// SleepBy is Sleep by another clock.
func SleepBy(ctx context.Context, clk clock.Clock, d time.Duration) bool {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	timer := clk.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// errEnded stands for an attempt that ended without an error.
var errEnded = errors.New("attempt ended")

// Retry makes attempts until ctx ends, with delays by the policy in between. Delays start
// over after an attempt that lasted longer than p.Last. onError gets the error of each
// attempt that ended before ctx did, never nil, and the delay that follows. Retry blocks.
func Retry(ctx context.Context, p Policy, attempt func(context.Context) error, onError func(err error, delay time.Duration)) {
	retry := Backoff{Policy: p}
	for ctx.Err() == nil {
		began := time.Now()
		err := attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errEnded
		}
		if time.Since(began) > p.Last {
			retry.Reset()
		}
		delay := retry.Next()
		onError(err, delay)
		Sleep(ctx, delay)
	}
}
