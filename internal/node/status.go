package node

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Status is a snapshot of the agent for people and diagnosis.
type Status struct {
	Mode  string `json:"mode"`
	Node  Facts  `json:"node"`
	Ready bool   `json:"ready"`
	// Services, Slices and Endpoints are of the model; an endpoint of two slices
	// counts twice. Ports counts service ports that are in place.
	Services  int `json:"services"`
	Slices    int `json:"slices"`
	Endpoints int `json:"endpoints"`
	Ports     int `json:"ports"`
	// Suspects are nodes whose endpoints this node uses last.
	Suspects []string `json:"suspects,omitempty"`
	// Pending lists service ports whose latest change is not in place, by name.
	Pending []Pending `json:"pending,omitempty"`
	// LastSync is when the mode last confirmed changes; zero: never.
	LastSync time.Time `json:"lastSync,omitzero"`
	// LastError is the latest error of the mode, with a remedy if one is known.
	// It stays after a recovery, as a trace of what happened.
	LastError     string    `json:"lastError,omitempty"`
	LastErrorHint string    `json:"lastErrorHint,omitempty"`
	LastErrorTime time.Time `json:"lastErrorTime,omitzero"`
	// Latency is the time from the arrival of a change to its being in place.
	Latency Histogram `json:"latency"`
}

// Pending is a service port that is not as desired.
type Pending struct {
	Port  string    `json:"port"`
	Since time.Time `json:"since"`
	// Attempts in vain, the latest error, a remedy if one is known, and when the
	// next attempt is due. Zero values: not tried yet.
	Attempts int       `json:"attempts,omitempty"`
	Error    string    `json:"error,omitempty"`
	Hint     string    `json:"hint,omitempty"`
	RetryAt  time.Time `json:"retryAt,omitzero"`
}

// Status takes a snapshot. Its cost grows with the number of slices.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Status{
		Mode:      a.opts.Mode.Name(),
		Node:      a.facts,
		Ready:     a.started,
		Services:  len(a.model.services),
		Slices:    len(a.model.slices),
		Ports:     len(a.actual),
		LastSync:  a.stats.lastSync,
		Latency:   a.stats.latency.clone(),
		LastError: a.stats.lastError, LastErrorHint: a.stats.lastErrorHint, LastErrorTime: a.stats.lastErrorTime,
	}
	if len(a.model.suspects) > 0 {
		s.Suspects = slices.Sorted(maps.Keys(a.model.suspects))
	}
	for _, slice := range a.model.slices {
		s.Endpoints += len(slice.Endpoints)
	}
	for name, since := range a.untried() {
		s.Pending = append(s.Pending, Pending{Port: name.String(), Since: since})
	}
	for name, f := range a.failed {
		s.Pending = append(s.Pending, Pending{
			Port: name.String(), Since: f.since, Attempts: f.attempts,
			Error: f.err.Error(), Hint: hintOf(f.err), RetryAt: f.retryAt,
		})
	}
	slices.SortFunc(s.Pending, func(a, b Pending) int { return strings.Compare(a.Port, b.Port) })
	return s
}

// untried lists what is pending but has not failed, with the oldest change.
func (a *Agent) untried() map[proxy.PortName]time.Time {
	out := make(map[proxy.PortName]time.Time, len(a.dirty)+len(a.inFlight))
	for _, m := range []map[proxy.PortName]time.Time{a.dirty, a.inFlight} { // in hand is older
		for name, since := range m {
			if a.failed[name] == nil {
				out[name] = since
			}
		}
	}
	return out
}

// States returns what is in place for the ports of a Service, by port name. The
// states are shared and not to be changed.
func (a *Agent) States(svc proxy.ServiceName) []*proxy.PortState {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*proxy.PortState
	s := a.model.services[svc]
	if s == nil {
		s = a.model.fronts[svc]
	}
	if s != nil {
		for _, p := range s.Ports {
			if state := a.actual[proxy.PortName{ServiceName: svc, Port: p.Name}]; state != nil {
				out = append(out, state)
			}
		}
	}
	slices.SortFunc(out, func(a, b *proxy.PortState) int { return strings.Compare(a.Name.Port, b.Name.Port) })
	return out
}

// AllStates returns what is in place for all service ports, by name. The states
// are shared and not to be changed.
func (a *Agent) AllStates() []*proxy.PortState {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*proxy.PortState, 0, len(a.actual))
	for _, state := range a.actual {
		out = append(out, state)
	}
	slices.SortFunc(out, func(a, b *proxy.PortState) int { return strings.Compare(a.Name.String(), b.Name.String()) })
	return out
}

// Slices returns all slices of the model, in no order. They are shared and not to
// be changed.
func (a *Agent) Slices() []*proxy.Slice {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.model.slices))
}

// hintOf finds the remedies that an error carries, also in joined errors.
func hintOf(err error) string {
	var hints []string
	var walk func(error)
	walk = func(err error) {
		if h, ok := err.(interface{ Hint() string }); ok && h.Hint() != "" && !slices.Contains(hints, h.Hint()) {
			hints = append(hints, h.Hint())
		}
		switch e := err.(type) { //nolint:errorlint // this walks the tree itself
		case *proxy.PortError:
			for _, err := range e.Failed {
				walk(err)
			}
		case interface{ Unwrap() []error }:
			for _, err := range e.Unwrap() {
				walk(err)
			}
		default:
			if inner := errors.Unwrap(err); inner != nil {
				walk(inner)
			}
		}
	}
	walk(err)
	slices.Sort(hints)
	return strings.Join(hints, "; ")
}

// stats are the agent's figures, guarded by Agent.mu.
type stats struct {
	lastQueued, lastSync         time.Time
	serviceChanges, sliceChanges uint64
	failures                     uint64
	lastError, lastErrorHint     string
	lastErrorTime                time.Time
	// latency is from the arrival of a change to its being in place, duration
	// that of the mode's Apply alone.
	latency, duration Histogram
	// programming is from the trigger time of slices until the change is in place.
	programming Histogram
}

func newStats() stats {
	return stats{
		latency:  newHistogram(50*time.Microsecond, 20), // to 26 s
		duration: newHistogram(time.Millisecond, 15),    // kube-proxy's buckets

		programming: newProgrammingHistogram(),
	}
}

func (s *stats) applied(took time.Duration, err error) {
	s.duration.Observe(took)
	if err != nil {
		s.failures++
		s.lastError, s.lastErrorHint, s.lastErrorTime = err.Error(), hintOf(err), time.Now()
	}
}

// programmed takes note of what is in place now. Clocks of machines differ: what
// is of the future took no time.
func (s *stats) programmed(triggers []time.Time, now time.Time) {
	for _, t := range triggers {
		s.programming.Observe(max(now.Sub(t), 0))
	}
}

// Histogram counts durations by upper bounds; the last count is of those above
// all bounds.
type Histogram struct {
	Bounds []time.Duration `json:"boundsNanoseconds"`
	Counts []uint64        `json:"counts"`
	Sum    time.Duration   `json:"sumNanoseconds"`
	Last   time.Duration   `json:"lastNanoseconds"`
}

// newHistogram makes n bounds, each twice the one before.
func newHistogram(first time.Duration, n int) Histogram {
	h := Histogram{Bounds: make([]time.Duration, n), Counts: make([]uint64, n+1)}
	for i := range h.Bounds {
		h.Bounds[i] = first << i
	}
	return h
}

// newProgrammingHistogram has kube-proxy's bounds for this metric
// (k8s.io/kubernetes/pkg/proxy/metrics), so that objectives written for it hold.
func newProgrammingHistogram() Histogram {
	h := Histogram{}
	add := func(first, step time.Duration, n int) {
		for i := range n {
			h.Bounds = append(h.Bounds, first+time.Duration(i)*step)
		}
	}
	add(250*time.Millisecond, 250*time.Millisecond, 2)
	add(time.Second, time.Second, 59)
	add(time.Minute, 5*time.Second, 12)
	add(2*time.Minute, 30*time.Second, 7)
	h.Counts = make([]uint64, len(h.Bounds)+1)
	return h
}

// Observe counts a duration.
func (h *Histogram) Observe(d time.Duration) {
	i, _ := slices.BinarySearch(h.Bounds, d)
	h.Counts[i]++
	h.Sum += d
	h.Last = d
}

// Count is the number of durations observed.
func (h *Histogram) Count() uint64 {
	var n uint64
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// Quantile returns the bound below which a share q of the durations lie; the
// largest bound if they lie above all; 0 if there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	want := q * float64(h.Count())
	if want == 0 {
		return 0
	}
	var n uint64
	for i, bound := range h.Bounds {
		if n += h.Counts[i]; float64(n) >= want {
			return bound
		}
	}
	return h.Bounds[len(h.Bounds)-1]
}

func (h *Histogram) clone() Histogram {
	return Histogram{Bounds: h.Bounds, Counts: slices.Clone(h.Counts), Sum: h.Sum, Last: h.Last}
}
