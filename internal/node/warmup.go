package node

import (
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// started returns a slice with the times at which its endpoints became ready by the clock of
// this machine: those that it had in the version before for endpoints that were there, else
// those of the control plane's clock. A clock that is behind that one must not keep endpoints
// from warming up, so none starts later than now; and as times are kept, and go by the
// monotonic clock from there on, each is warm in time, whatever happens to clocks and
// control planes. s itself is not changed.
func started(s, before *proxy.Slice, now time.Time) *proxy.Slice {
	if s == nil || s.ReadySince == nil {
		return s
	}
	type endpoint struct {
		addr  string
		since int64
	}
	known := map[endpoint]time.Time{}
	if before != nil && before.Starts != nil {
		for i, since := range before.ReadySince {
			known[endpoint{before.Endpoints[i].Addr.String(), since}] = before.Starts[i]
		}
	}
	copied := *s
	copied.Starts = make([]time.Time, len(s.Endpoints))
	for i, since := range s.ReadySince {
		if since == 0 {
			continue
		}
		start, ok := known[endpoint{s.Endpoints[i].Addr.String(), since}]
		if !ok {
			start = now.Add(-max(0, now.Sub(time.Unix(since, 0)))) // with the monotonic clock
		}
		copied.Starts[i] = start
	}
	return &copied
}

// noteStep records when an endpoint of a port takes its next step of warming up. A port that
// takes none any more is looked at once in vain.
func (a *Agent) noteStep(name proxy.PortName, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.steps[name] = at
	if a.stepAt.IsZero() || at.Before(a.stepAt) {
		a.stepAt = at
	}
}

// dueSteps marks the ports of which an endpoint takes a step, and finds out when the next
// one does.
func (a *Agent) dueSteps(now time.Time) {
	if a.stepAt.IsZero() || now.Before(a.stepAt) {
		return
	}
	a.stepAt = time.Time{}
	for name, at := range a.steps {
		if !now.Before(at) {
			a.mark(name, now)
			delete(a.steps, name)
		} else if a.stepAt.IsZero() || at.Before(a.stepAt) {
			a.stepAt = at
		}
	}
}
