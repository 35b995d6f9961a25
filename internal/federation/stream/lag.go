package stream

import (
	"math"
	"time"
)

const (
	// lagWindow is how long a generation of Lag counts: quantiles are of the last one to two of them.
	lagWindow = 10 * time.Minute
	// lagFirst is the bound of the first bucket, lagOctave how many buckets double it, lagBuckets how many there are: up to
	// 7 minutes, by steps of 9 %.
	lagFirst   = 100 * time.Microsecond
	lagOctave  = 8
	lagBuckets = 22*lagOctave + 1
)

// Lag sums up how long changes took from when this end had them for its peer until the peer has confirmed that its store has
// them. It has the changes of the last 10 to 20 minutes; what a stream begins with does not count.
type Lag struct {
	// Samples that the quantiles are of; 0: there are none.
	Samples uint64
	// P50 and P99 are at most 9 % too large.
	P50, P99 time.Duration
	// Waiting is how long the oldest change waits that is not confirmed; 0: none does.
	Waiting time.Duration
}

// histogram of durations, in two generations. The zero value is empty. Adding is O(1), and its size is constant.
type histogram struct {
	now, before [lagBuckets]uint32
	since       time.Time // when now began
	// sum and count of all durations ever, and those up to each of lagBounds, for metrics.
	sum   float64
	count uint64
	upTo  [len(lagBounds)]uint64
}

// lagBounds of the metric, in seconds.
var lagBounds = [...]float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

// bucketOf a duration.
func bucketOf(d time.Duration) int {
	if d <= lagFirst {
		return 0
	}
	i := math.Ceil(lagOctave * math.Log2(float64(d)/float64(lagFirst)))
	return int(min(i, lagBuckets-1))
}

// boundOf a bucket.
func boundOf(i int) time.Duration {
	return time.Duration(float64(lagFirst) * math.Exp2(float64(i)/lagOctave))
}

// turn to the generation of a time.
func (h *histogram) turn(at time.Time) {
	switch passed := at.Sub(h.since); {
	case passed < lagWindow:
		return
	case passed < 2*lagWindow:
		h.before, h.since = h.now, h.since.Add(lagWindow)
	default:
		h.before, h.since = [lagBuckets]uint32{}, at
	}
	h.now = [lagBuckets]uint32{}
}

// add a duration that ended at a time.
func (h *histogram) add(d time.Duration, at time.Time) {
	h.turn(at)
	h.now[bucketOf(d)]++
	h.sum, h.count = h.sum+d.Seconds(), h.count+1
	for i, bound := range lagBounds {
		if d.Seconds() <= bound {
			h.upTo[i]++
		}
	}
}

// lag at a time.
func (h *histogram) lag(at time.Time) Lag {
	h.turn(at)
	var out Lag
	for i := range lagBuckets {
		out.Samples += uint64(h.now[i]) + uint64(h.before[i])
	}
	quantile := func(q float64) time.Duration {
		want, n := uint64(math.Ceil(q*float64(out.Samples))), uint64(0)
		for i := range lagBuckets {
			if n += uint64(h.now[i]) + uint64(h.before[i]); n >= want {
				return boundOf(i)
			}
		}
		return 0
	}
	if out.Samples > 0 {
		out.P50, out.P99 = quantile(0.5), quantile(0.99)
	}
	return out
}
