package choose

import (
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// WarmSteps is in how many steps the weight of an endpoint that is warming up rises, from one
// part in so many: kernels are programmed once for each, not all the time.
const WarmSteps = 10

// Warm returns slices in which the endpoints that are warming up have less weight: after they
// became ready it rises for svc.WarmUp, in WarmSteps. next is when a weight changes by time
// alone; zero: it does not. Without an endpoint that is warming up the result is from itself.
//
// What counts is how much younger an endpoint is than the oldest one: while none is as old as
// svc.WarmUp, the oldest has its full weight. So endpoints that became ready together, as
// after a restart of all, have equal shares from the beginning, and the Service is always
// served. Endpoints whose age is not known are old.
func Warm(svc *proxy.Service, from []*proxy.Slice, now time.Time) (warmed []*proxy.Slice, next time.Time) {
	period := svc.WarmUp
	if period <= 0 || now.IsZero() {
		return from, time.Time{}
	}
	w := warmUp{period: period, now: now}
	w.oldest, w.youngest = w.ages(from)
	if w.step(w.youngest) == WarmSteps {
		return from, time.Time{}
	}
	out := slices.Clone(from)
	for i, s := range from {
		copied := *s
		copied.Endpoints = slices.Clone(s.Endpoints)
		for k := range copied.Endpoints {
			e := &copied.Endpoints[k]
			e.Weight = max(e.Weight, 1)
			if age := w.age(s, k); e.Ready && w.step(age) < WarmSteps {
				e.Weight *= uint32(w.step(age))
				if at := w.change(age); next.IsZero() || at.Before(next) {
					next = at
				}
			} else {
				e.Weight *= WarmSteps
			}
		}
		out[i] = &copied
	}
	return out, next
}

// WarmStep is the step of the endpoint at an index of one of the slices, from 1 to
// WarmSteps: its weight is so many parts of the full one.
func WarmStep(svc *proxy.Service, from []*proxy.Slice, s *proxy.Slice, i int, now time.Time) int {
	if svc.WarmUp <= 0 || now.IsZero() || !s.Endpoints[i].Ready {
		return WarmSteps
	}
	w := warmUp{period: svc.WarmUp, now: now}
	w.oldest, w.youngest = w.ages(from)
	return w.step(w.age(s, i))
}

type warmUp struct {
	period           time.Duration
	now              time.Time
	oldest, youngest time.Duration // ages, at most period
}

// ages of the oldest and the youngest endpoint that is ready.
func (w *warmUp) ages(from []*proxy.Slice) (oldest, youngest time.Duration) {
	youngest = w.period
	for _, s := range from {
		for i := range s.Endpoints {
			if s.Endpoints[i].Ready {
				age := w.age(s, i)
				oldest, youngest = max(oldest, age), min(youngest, age)
			}
		}
	}
	return oldest, youngest
}

// age of an endpoint, at most period.
func (w *warmUp) age(s *proxy.Slice, i int) time.Duration {
	var start time.Time
	switch {
	case i < len(s.Starts):
		start = s.Starts[i]
	case s.Starts == nil && i < len(s.ReadySince) && s.ReadySince[i] > 0:
		start = time.Unix(s.ReadySince[i], 0)
	}
	if start.IsZero() {
		return w.period
	}
	return min(max(0, w.now.Sub(start)), w.period)
}

// step of an endpoint of an age, from 1 to WarmSteps.
func (w *warmUp) step(age time.Duration) int {
	return min(1+int((age+w.period-w.oldest)*WarmSteps/w.period), WarmSteps)
}

// change is when an endpoint of an age comes to its next step. None does before the oldest
// endpoint is warm.
func (w *warmUp) change(age time.Duration) time.Time {
	boundary := (w.period*time.Duration(w.step(age)) + WarmSteps - 1) / WarmSteps
	return w.now.Add(boundary - age)
}
