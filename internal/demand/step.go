package demand

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/estimate"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// present is who is there in one step.
type present struct {
	elapsed time.Duration
	// zone of each agent, by index; gone: its node is no more.
	agents []placed
	// reported zones have an agent or a proxy that did, byAgents an agent; inhabited ones have
	// any of either.
	reported, byAgents, inhabited []bool
}

type placed struct {
	*agent
	zone int
	gone bool
}

// step brings the estimates to now: what agents reported since the last step counts as
// a rate, what they did not report is held.
func (a *Aggregator) step(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.world.Synced() {
		return
	}
	if a.began.IsZero() {
		a.began, a.stepped = now, now
		a.look()
		return
	}
	elapsed := min(now.Sub(a.stepped), maxStep)
	if elapsed <= 0 {
		return
	}
	a.stepped = now
	here := a.look()
	here.elapsed = elapsed
	a.cover(now)
	a.countCounters()
	for _, g := range here.agents {
		a.contribute(g, here)
	}
	a.observe(now, here)
	a.forget(now)
	a.stats.Steps++
	a.stats.StepTime += time.Since(now)
}

// look finds out which zones there are and who is in them, and counts in those.
func (a *Aggregator) look() *present {
	zoneOf := make(map[*agent]locality.Zone, len(a.agents))
	gone := map[*agent]bool{}
	names := map[locality.Zone]bool{}
	for _, zone := range a.world.Nodes() {
		names[zone] = true
	}
	for _, g := range a.agents {
		zone, ok := a.place(g)
		zoneOf[g], gone[g], names[zone] = zone, !ok, true
	}
	zones := slices.Sorted(maps.Keys(names))
	crowded := len(zones) > planner.MaxZones
	if crowded && !a.crowded {
		a.log.Error("more topology zones than can be planned for, demand of the last ones is not measured", "zones", len(zones),
			"limit", planner.MaxZones)
	}
	a.crowded = crowded
	zones = zones[:min(len(zones), planner.MaxZones)]
	maps.DeleteFunc(a.measured, func(zone locality.Zone, _ bool) bool { return !names[zone] })
	maps.DeleteFunc(a.counting, func(zone locality.Zone, _ *counting) bool { return !names[zone] && a.counters[zone] == 0 })
	a.rezone(zones)

	here := &present{reported: make([]bool, len(zones)), byAgents: make([]bool, len(zones)), inhabited: make([]bool, len(zones))}
	for g, zone := range zoneOf {
		i, ok := slices.BinarySearch(zones, zone)
		if !ok {
			continue
		}
		here.agents = append(here.agents, placed{g, i, gone[g]})
		here.inhabited[i], a.measured[zone] = true, true
		here.reported[i] = here.reported[i] || g.windowElapsed > 0
		here.byAgents[i] = here.byAgents[i] || g.windowElapsed > 0 && g.proxy == ""
	}
	return here
}

// contribute adds what an agent counted to its zone, scaled to the time of the step,
// so that a report that comes early, late, or after an outage weighs as any other.
func (a *Aggregator) contribute(g placed, here *present) {
	seconds := here.elapsed.Seconds()
	if g.windowElapsed > 0 {
		g.quiet, g.kept = 0, 1
		g.window = sorted(g.window)
		covered := g.windowElapsed.Seconds()
		for _, c := range g.window {
			c.lane.counts[g.zone] += c.value * seconds / covered
		}
		g.hold()
		return
	}
	// A zone that is silent as a whole is held by the estimators, and no agent fades. The work
	// of an agent goes to others when its node dies, which those report; of proxies one does not
	// take the work of another.
	others, patience := here.byAgents[g.zone], grace
	if g.proxy != "" {
		others, patience = here.reported[g.zone], proxyGrace
	}
	if others {
		g.quiet += here.elapsed
	}
	if g.gone || others && g.quiet > patience {
		g.kept *= math.Exp2(-seconds / fadeHalfLife.Seconds())
		if g.kept < openFaded {
			g.dropOpen()
		}
	}
	if !here.reported[g.zone] {
		return
	}
	for _, c := range g.held {
		if !c.lane.gone {
			c.lane.counts[g.zone] += c.value * seconds * g.kept
		}
	}
}

// hold takes the window into the rates that stand in for missing reports.
func (g *agent) hold() {
	old := 0.0 // what the former rates weigh
	if g.steady {
		old = math.Exp2(-g.windowElapsed.Seconds() / heldHalfLife.Seconds())
	}
	covered := g.windowElapsed.Seconds()
	merged := make([]count, 0, max(len(g.held), len(g.window)))
	keep := func(l *lane, rate float64) {
		if rate >= heldLeast && !l.gone {
			merged = append(merged, count{l, rate})
		}
	}
	held, window := g.held, g.window
	for len(held) > 0 || len(window) > 0 {
		switch {
		case len(window) == 0 || len(held) > 0 && held[0].lane.serial < window[0].lane.serial:
			keep(held[0].lane, held[0].value*old)
			held = held[1:]
		case len(held) == 0 || window[0].lane.serial < held[0].lane.serial:
			keep(window[0].lane, window[0].value/covered*(1-old))
			window = window[1:]
		default:
			keep(held[0].lane, held[0].value*old+window[0].value/covered*(1-old))
			held, window = held[1:], window[1:]
		}
	}
	g.held, g.steady = merged, true
	clear(g.window)
	g.window, g.windowElapsed = g.window[:0], 0
	if cap(g.window) > 2*len(g.held)+64 {
		g.window = nil
	}
}

// observe hands the counts of this step to the estimators.
func (a *Aggregator) observe(now time.Time, here *present) {
	missing, all := make([]bool, len(a.zones)), true
	for i, zone := range a.zones {
		// No agent ever reported, or none reports now. A zone that all agents have left has no
		// demand.
		missing[i] = !here.reported[i] && (here.inhabited[i] || !a.measured[zone])
		all = all && missing[i]
	}
	for _, p := range a.ports {
		p.measureBytes(here.elapsed)
		has, lanes := a.world.Has(p.name), 0
		for l := range p.all() {
			if !all {
				a.observeLane(now, l, estimate.Report{Elapsed: here.elapsed, Counts: l.counts, Missing: missing})
			}
			clear(l.counts)
			l.forgetCarried(now)
			if now.Sub(l.used) > idle && l.connections() < leastConnections || !has {
				l.gone, p.lanes[l.family-proxy.IPv4] = true, nil
				a.notify(p.name)
				continue
			}
			lanes++
		}
		if lanes == 0 {
			delete(a.ports, p.name)
		}
	}
}

func (a *Aggregator) observeLane(now time.Time, l *lane, r estimate.Report) {
	changed, err := l.estimator.Observe(r)
	if err != nil {
		// Only a sum of absurd reports gets here; the estimate stays as it was.
		a.stats.Unusable++
		return
	}
	shares := a.loadOf(now, l, nil, nil).Shares
	if !changed && l.published != nil && !differ(shares, l.published) {
		return
	}
	l.published = shares
	a.notify(l.port.name)
}

func differ(a, b []float64) bool {
	for i := range a {
		if math.Abs(a[i]-b[i]) >= noticeable {
			return true
		}
	}
	return false
}

// connections are what the estimate remembers, as if they all came in one half-life.
func (l *lane) connections() float64 { return l.estimator.Rate() * fadeHalfLife.Seconds() }

// measureBytes follows the rates of bytes, which no plan depends on: people want to
// see them.
func (p *port) measureBytes(elapsed time.Duration) {
	d := p.total.since(p.before)
	old := 0.0
	if p.stepped {
		old = math.Exp2(-elapsed.Seconds() / heldHalfLife.Seconds())
	}
	p.inRate = p.inRate*old + float64(d.BytesIn)/elapsed.Seconds()*(1-old)
	p.outRate = p.outRate*old + float64(d.BytesOut)/elapsed.Seconds()*(1-old)
	p.before, p.stepped = p.total, true
}

// forget agents whose nodes are gone, and proxies whose workloads are, and whose share has faded.
func (a *Aggregator) forget(now time.Time) {
	for name, g := range a.agents {
		if _, ok := a.place(g); ok || g.kept > forgotten || now.Sub(g.reported) < grace {
			continue
		}
		g.dropOpen()
		delete(a.agents, name)
	}
}
