package summary

import (
	"maps"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
)

const (
	// Kept is how far back a series goes.
	Kept = 6 * time.Hour
	// Step of the series of zones; serviceStep of those of Services.
	Step        = demand.Interval
	serviceStep = 5 * time.Minute

	points        = int(Kept / Step)
	servicePoints = int(Kept / serviceStep)
)

// ring of the newest values. The zero value is empty.
type ring struct {
	values []float32
	next   int
	full   bool
}

func (r *ring) push(x float64, most int) {
	if !r.full && len(r.values) < most {
		r.values = append(r.values, float32(x))
		r.full, r.next = len(r.values) == most, 0
		return
	}
	r.values[r.next] = float32(x)
	r.next = (r.next + 1) % most
}

// newest values, the oldest of them first.
func (r *ring) newest(n int) []float32 {
	all := append(slices.Clone(r.values[r.next:]), r.values[:r.next]...)
	return all[max(0, len(all)-n):]
}

// series of zones.
type series struct {
	steps int // so many were taken
	last  time.Time
	zones map[locality.Zone]*zoneSeries
}

type zoneSeries struct {
	began                int // the step of the first value
	inZone, demand, cost ring
}

// past of a Service.
type past struct {
	began          time.Time
	demand, inZone ring
}

// remember the sums as they are now. The lock is held.
func (t *Table) remember() {
	s := &t.series
	if s.zones == nil {
		s.zones = map[locality.Zone]*zoneSeries{}
	}
	s.last = t.clock.Now()
	for zone, z := range t.zoneSums(t.total) {
		of := s.zones[zone]
		if of == nil {
			of = &zoneSeries{began: s.steps}
			s.zones[zone] = of
		}
		of.inZone.push(z.inZone(), points)
		of.demand.push(part(z.demand), points)
		of.cost.push(part(z.cost), points)
	}
	s.steps++
	for zone, of := range s.zones { // zones that are gone
		if seen := s.steps - of.began; len(of.inZone.values) < min(seen, points) {
			delete(s.zones, zone)
		}
	}
	if s.steps%int(serviceStep/Step) != 0 {
		return
	}
	for _, r := range t.rows {
		if r.past == nil {
			if r.line.Demand == 0 {
				continue
			}
			r.past = &past{began: s.last}
		}
		r.past.demand.push(r.line.Demand, servicePoints)
		r.past.inZone.push(r.line.InZone, servicePoints)
	}
}

// zoneSum of the clients of a zone.
type zoneSum struct {
	demand, home, cost int64
	guess, guessHome   int64
}

// inZone share of the demand; 1 if there is none.
func (z *zoneSum) inZone() float64 {
	switch {
	case z.demand > 0:
		return float64(z.home) / float64(z.demand)
	case z.guess > 0:
		return float64(z.guessHome) / float64(z.guess)
	}
	return 1
}

// zoneSums of all zones with nodes, endpoints or flows. The lock is held.
func (t *Table) zoneSums(s *sums) map[locality.Zone]*zoneSum {
	out := map[locality.Zone]*zoneSum{}
	of := func(zone locality.Zone) *zoneSum {
		if out[zone] == nil {
			out[zone] = &zoneSum{}
		}
		return out[zone]
	}
	for zone := range t.nodes {
		of(zone)
	}
	for zone := range s.endpoints {
		of(zone)
	}
	for w, f := range s.flows {
		z := of(t.zones.names[w.from])
		z.demand, z.guess, z.cost = z.demand+f.planned, z.guess+f.guess, z.cost+f.cost
		if w.from == w.to {
			z.home, z.guessHome = z.home+f.planned, z.guessHome+f.guess
		}
	}
	return out
}

// Series of zones, or of a Service: the last value is of the time Last, each one before it Step seconds earlier.
type Series struct {
	// Since is when this control plane began to measure: it keeps no series over a restart, or a change of the leader.
	Since time.Time `json:"since"`
	Last  time.Time `json:"last,omitzero"`
	Step  float64   `json:"stepSeconds"`
	// Zones by name; of a Service there is one without a name.
	Zones []ZoneSeries `json:"zones"`
}

// ZoneSeries is how a zone was.
type ZoneSeries struct {
	Zone locality.Zone `json:"zone,omitempty"`
	// InZone is the share of the demand of its clients that stays in it, Demand connections per second, Cost in a month.
	InZone []float32 `json:"inZone"`
	Demand []float32 `json:"demand"`
	Cost   []float32 `json:"cost,omitempty"`
}

// Series of all zones in the last time.
func (t *Table) Series(last time.Duration) Series {
	t.mu.RLock()
	defer t.mu.RUnlock()
	n := min(points, max(1, int(last/Step)))
	out := Series{Since: t.began, Last: t.series.last, Step: Step.Seconds(), Zones: []ZoneSeries{}}
	for _, zone := range slices.Sorted(maps.Keys(t.series.zones)) {
		of := t.series.zones[zone]
		out.Zones = append(out.Zones, ZoneSeries{zone, of.inZone.newest(n), of.demand.newest(n), of.cost.newest(n)})
	}
	return out
}

// ServiceSeries of one Service; empty if it had no demand.
func (t *Table) ServiceSeries(key resource.Key) Series {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := Series{Since: t.began, Step: serviceStep.Seconds(), Zones: []ZoneSeries{}}
	if r := t.rows[key]; r != nil && r.past != nil {
		out.Since, out.Last = r.past.began, t.series.last
		out.Zones = append(out.Zones, ZoneSeries{InZone: r.past.inZone.newest(servicePoints), Demand: r.past.demand.newest(servicePoints)})
	}
	return out
}
