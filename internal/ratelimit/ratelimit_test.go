package ratelimit

import (
	"fmt"
	"testing"
	"time"
)

// TestLimiter: a burst, then the rate, for each name alone.
func TestLimiter(t *testing.T) {
	l, now := New(2, 3), time.Unix(1000, 0)
	allowed := func(name string) (n int) {
		for range 10 {
			if l.Allow(name, now) {
				n++
			}
		}
		return n
	}
	if a, b := allowed("a"), allowed("b"); a != 3 || b != 3 {
		t.Errorf("bursts of %d and %d, want 3", a, b)
	}
	now = now.Add(time.Second)
	if n := allowed("a"); n != 2 {
		t.Errorf("%d after a second, want 2", n)
	}
}

// TestForgets: names are bounded by those that have used their burst lately, which are not forgotten.
func TestForgets(t *testing.T) {
	l, now := New(1, 2), time.Unix(1000, 0)
	for n := range 10 * keep {
		now = now.Add(time.Millisecond)
		l.Allow(fmt.Sprint(n), now)
	}
	if n := len(l.buckets); n > 3*keep {
		t.Errorf("%d names are kept", n)
	}
	now = now.Add(time.Hour)
	for l.Allow("busy", now) {
	}
	for n := range keep {
		l.Allow(fmt.Sprint("more", n), now)
	}
	if l.Allow("busy", now) {
		t.Error("a name that has used its burst was forgotten")
	}
}
