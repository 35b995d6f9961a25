package backoff_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
)

func TestPolicy(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name        string
		first, last time.Duration
		want        []time.Duration // after 0, 1, 2, … failures
	}{
		{"doubles up to the last", s, 5 * s, []time.Duration{0, s, 2 * s, 4 * s, 5 * s, 5 * s}},
		{"constant", s, s, []time.Duration{0, s, s}},
		{"the last is a bound of the first", 3 * s, s, []time.Duration{0, s, s}},
		{"zero value", 0, 0, []time.Duration{0, 0, 0}},
		{"no overflow", math.MaxInt64/2 + 1, math.MaxInt64 / 2, []time.Duration{0, math.MaxInt64 / 2, math.MaxInt64 / 2}},
	} {
		p := backoff.Policy{First: c.first, Last: c.last}
		var got []time.Duration
		for failures := range c.want {
			got = append(got, p.After(failures))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if d := p.After(math.MaxInt); d != min(c.last, max(c.first, c.last)) {
			t.Errorf("%s: %v after very many failures", c.name, d)
		}
	}
}

func TestJitterIsTakenAway(t *testing.T) {
	p := backoff.Policy{First: 100, Last: 800, Jitter: 0.5}
	seen := map[time.Duration]bool{}
	for range 200 {
		d := p.After(4)
		if d < 400 || d > 800 {
			t.Fatalf("%v, want 400 to 800", d)
		}
		seen[d] = true
	}
	if len(seen) < 10 {
		t.Errorf("%d different delays of 200", len(seen))
	}
}

func TestBackoffCounts(t *testing.T) {
	b := backoff.Backoff{Policy: backoff.Policy{First: 1, Last: 4}}
	var got []time.Duration
	for i := range 6 {
		if i == 4 {
			b.Reset()
		}
		got = append(got, b.Next())
	}
	if want := []time.Duration{1, 2, 4, 4, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if !backoff.Sleep(t.Context(), time.Minute) || time.Since(begin) != time.Minute {
			t.Errorf("slept %v", time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin = time.Now()
		if backoff.Sleep(ctx, time.Minute) || time.Since(begin) != time.Second {
			t.Errorf("slept %v though the context ended after 1 s", time.Since(begin))
		}
		if backoff.Sleep(ctx, 0) || !backoff.Sleep(t.Context(), -1) {
			t.Error("no time to sleep: it must tell whether the context is done")
		}
	})
}

// After an attempt that lasted longer than the last delay, delays start over.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		durations := []time.Duration{0, 0, 0, 0, 5 * time.Second, 0, 0}
		var delays []time.Duration
		attempts := 0
		backoff.Retry(ctx, backoff.Policy{First: time.Second, Last: 4 * time.Second}, func(context.Context) error {
			if attempts == len(durations) {
				cancel()
				return errors.New("not reported: the context has ended")
			}
			time.Sleep(durations[attempts])
			attempts++
			return nil
		}, func(err error, delay time.Duration) {
			if err == nil {
				t.Error("an attempt that ended without an error is reported without one")
			}
			delays = append(delays, delay/time.Second)
		})
		if want := []time.Duration{1, 2, 4, 4, 1, 2, 4}; !slices.Equal(delays, want) {
			t.Errorf("delays %v, want %v", delays, want)
		}
	})
}

// A context that ends during a delay ends Retry at once.
func TestRetryEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		backoff.Retry(ctx, backoff.Policy{First: time.Hour, Last: time.Hour}, func(context.Context) error {
			return errors.New("no")
		}, func(error, time.Duration) { time.AfterFunc(time.Second, cancel) })
		if took := time.Since(began); took != time.Second {
			t.Errorf("it ended after %s, want 1s", took)
		}
	})
}
