package topology

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Volumes is a Demand that also knows bytes and open connections. It must not block. A
// *demand.Aggregator is one.
type Volumes interface {
	Volume(port proxy.PortName, family proxy.Family) demand.Volume
}

// volumeOf ports of a family together; ok is false if Demand knows nothing of the kind.
func (c *Controller) volumeOf(service proxy.ServiceName, family proxy.Family, ports []string) (v demand.Volume, ok bool) {
	from, ok := c.demand.(Volumes)
	if !ok {
		return v, false
	}
	for i, port := range ports {
		one := from.Volume(proxy.PortName{ServiceName: service, Port: port}, family)
		if i == 0 {
			v = one
			continue
		}
		v = joined(v, one)
	}
	return v, len(ports) > 0
}

// joined volumes of two ports. A port without traffic takes nothing from the other.
func joined(a, b demand.Volume) demand.Volume {
	switch {
	case len(b.Ways) == 0:
		return a
	case len(a.Ways) == 0:
		return b
	}
	out := a
	out.Ways = append(slices.Clone(a.Ways), b.Ways...)
	if sum := a.Total() + b.Total(); sum > 0 {
		out.Error = (a.Error*a.Total() + b.Error*b.Total()) / sum
	}
	if b.Bytes != proxy.Measured.String() {
		out.Bytes, out.Reason = b.Bytes, b.Reason
	}
	out.Open = a.Open + b.Open
	if out.Open > 0 {
		out.Turnover = (a.Open*a.Turnover + b.Open*b.Turnover) / out.Open
	}
	return out
}

// flows of bytes and of open connections that a plan could move, by zones in the order of
// a topology. Other sites and unknown zones are the one after the last.
type flows struct {
	ways []flow
	// sources are the sums of bytes by zone of clients.
	sources, sourcesOpen []float64
	// sourcesOpened are connections opened per second by zone of clients.
	sourcesOpened    []float64
	total, totalOpen float64
	// opened connections per second.
	opened float64
}

// flow between two zones. There may be several of the same two.
type flow struct {
	from, to    int
	bytes, open float64
}

func flowsOf(v *demand.Volume, in *input) *flows {
	n := in.topology.Len()
	f := &flows{sources: make([]float64, n), sourcesOpen: make([]float64, n), sourcesOpened: make([]float64, n)}
	for i := range v.Ways {
		w := &v.Ways[i]
		from, ok := in.topology.Index(w.From)
		if !ok || w.Kept {
			continue
		}
		to, ok := in.topology.Index(w.To)
		if !ok {
			to = n
		}
		x := w.BytesIn + w.BytesOut
		f.ways = append(f.ways, flow{from, to, x, w.Open})
		f.sources[from] += x
		f.sourcesOpen[from] += w.Open
		f.total += x
		f.totalOpen += w.Open
		f.opened += w.Opened
		f.sourcesOpened[from] += w.Opened
	}
	return f
}

// Long describes open connections that are elsewhere than a plan has them, and that end too
// seldom for the plan to reach them.
type Long struct {
	// Open connections, and how long one lasts, in seconds, by how seldom they end.
	Open  float64 `json:"openConnections"`
	Lasts float64 `json:"lastsSeconds"`
	// Misplaced part of them, which would move once they are made anew.
	Misplaced float64 `json:"misplaced"`
	// InZone is the part of them that stays in its zone now, and Planned the part that would.
	InZone  float64 `json:"inZone"`
	Planned float64 `json:"plannedInZone"`
}

const (
	// longLasting connections keep a plan from having half its effect within 5 minutes.
	longLasting = 5 * time.Minute
	// misplaced part of the open connections at which they are a condition, and at which it
	// ends.
	misplaced, placed = 0.1, 0.05
)

// lastsLong reports whether the open connections of a volume end too seldom for a plan to reach them.
func lastsLong(v *demand.Volume) bool {
	return v.Turnover > 0 && 1/v.Turnover >= longLasting.Seconds()
}

// long connections of a volume under shares of a plan; nil: there are none, or they are where
// the plan has them. was says that there were.
func (f *flows) long(v *demand.Volume, share func(from, to int) float64, was bool) *Long {
	if f.totalOpen < 1 || !lastsLong(v) {
		return nil
	}
	l := &Long{Open: f.totalOpen, Lasts: 1 / v.Turnover}
	zones := len(f.sources)
	open := make([]float64, zones*(zones+1))
	for _, w := range f.ways {
		open[w.from*(zones+1)+w.to] += w.open
	}
	for i := range zones {
		for j, n := range open[i*(zones+1) : (i+1)*(zones+1)] {
			wanted := 0.0
			if j < zones {
				wanted = share(i, j) * f.sourcesOpen[i]
			}
			l.Misplaced += math.Abs(n-wanted) / 2 / f.totalOpen
			if i == j {
				l.InZone += n / f.totalOpen
				l.Planned += wanted / f.totalOpen
			}
		}
	}
	// Connections are whole: each zone's may be off by half of one for each zone that it uses.
	least := misplaced
	if was {
		least = placed
	}
	if l.Misplaced < least || l.Misplaced*f.totalOpen < 1 {
		return nil
	}
	return l
}

// text says what they are, and what would move them.
func (l *Long) text() string {
	return fmt.Sprintf("%.0f connections are open and last about %s each or longer: a plan cannot move them. %.0f %% of them stay in their zone, "+
		"%.0f %% would once they are made anew. They would be with a maximum connection age of the server (gRPC: MAX_CONNECTION_AGE), "+
		"or if requests are balanced instead of connections: by a sidecar, or by gRPC itself through xDS",
		l.Open, roughly(l.Lasts), 100*l.InZone, 100*l.Planned)
}

// roughly a time, which changes seldom.
func roughly(seconds float64) string {
	for _, step := range []struct {
		below, unit float64
		name        string
	}{{7200, 60, "min"}, {172800, 3600, "h"}, {math.Inf(1), 86400, "days"}} {
		if seconds < step.below {
			return fmt.Sprintf("%.0f %s", math.Max(1, math.Round(seconds/step.unit)), step.name)
		}
	}
	return ""
}

// policyLocal reports whether all traffic of a Service stays on its node, so that there is
// nothing to plan.
func policyLocal(service *corev1.Service) bool {
	spec := &service.Spec
	outside := len(spec.ExternalIPs) > 0 || spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer
	return spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal && !outside
}

// policyLocalText is the message of the condition.
const policyLocalText = "no plan: internalTrafficPolicy is Local and there is no address from outside, so all traffic stays on its node"

// zoneOrSite that a pair of costs names.
func (in *input) zoneOrSite(name string) (at int, ok bool) {
	if at, ok = in.topology.Index(locality.Zone(name)); ok {
		return at, true
	}
	return in.topology.Index(locality.Zone(plannerv1alpha1.SiteZone(name)))
}

// shareOf a published plan, by index.
func shareOf(g *plannerv1alpha1.PortGroup, in *input) func(from, to int) float64 {
	n := in.topology.Len()
	shares := make([]float64, n*n)
	for from, to := range sharesIn(g, in) {
		shares[from*n+to.zone] = to.share
	}
	return func(from, to int) float64 { return shares[from*n+to] }
}

// target of connections, by index.
type target struct {
	zone  int
	share float64
}

// sharesIn a published plan that are not 0, by the index of the zone of clients.
func sharesIn(g *plannerv1alpha1.PortGroup, in *input) iter.Seq2[int, target] {
	return func(yield func(int, target) bool) {
		for _, z := range g.Zones {
			from, ok := in.topology.Index(locality.Zone(z.Name))
			if !ok {
				continue
			}
			for _, share := range z.To {
				if to, ok := in.topology.Index(locality.Zone(share.Zone)); ok && !yield(from, target{to, share.Share}) {
					return
				}
			}
		}
	}
}
