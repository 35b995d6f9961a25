package demand

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/estimate"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

const (
	// grace for which a silent agent counts as it did: some reports may be late. It
	// is when a node is taken for dead (its lease).
	grace = 40 * time.Second
	// fadeHalfLife of an agent that stays silent while others of its zone report:
	// that of the estimate.
	fadeHalfLife = 90 * time.Second
	// forgotten share of an agent whose node is gone.
	forgotten = 1. / 1024
	// proxyGrace for which a silent proxy counts as it did while its workload is there: the
	// workload goes on, whether or not the proxy's stream does. Dataplanes are removed this long
	// after their lease has ended.
	proxyGrace = 10 * time.Minute
	// heldHalfLife smooths what is held for an agent: single reports are noisy.
	heldHalfLife = 30 * time.Second
	// heldLeast connections a second of one agent are not worth holding.
	heldLeast = 1e-4

	// maxStep bounds what a step of the estimate covers: time in which this process
	// did not run is no evidence.
	maxStep = 3 * Interval
	// warmUp after which the aggregator does not wait for further agents to report.
	warmUp = 30 * time.Second

	// idle time after which a port is not kept, if its demand is forgotten, too: less
	// than leastConnections weigh nothing against the prior's 3.
	idle             = 15 * time.Minute
	leastConnections = 0.01
	// leastTold connections, of those that are remembered, say which part of a port's traffic is
	// of which family.
	leastTold = 5

	// noticeable difference of a zone's share, which is published.
	noticeable = 0.005

	// knownRuns of an agent: those before the newest may still be on their way.
	knownRuns = 4
)

// ErrNotReady is returned while the world is not known: the report is to be
// repeated.
var ErrNotReady = errors.New("the control plane is still reading its store")

// ErrUnknownProxy is returned for a report of a workload that is not known, or not yet: the
// report is to be repeated.
var ErrUnknownProxy = errors.New("there is no Dataplane or pod of this name")

// Config of an Aggregator.
type Config struct {
	World  World
	Logger *slog.Logger // nil: silence
	// Registerer of metrics; nil: none. Registering twice panics.
	Registerer prometheus.Registerer
}

// Aggregator keeps the demand per service port and zone. Its methods are safe for
// concurrent use and do not block, but for Run. A service port without traffic costs
// nothing.
type Aggregator struct {
	world World
	log   *slog.Logger

	mu     sync.Mutex
	agents map[reporter]*agent
	ports  map[proxy.PortName]*port
	serial uint64
	// zones are those of all estimators, in order; measured marks the ones where
	// agents were seen.
	zones    []locality.Zone
	measured map[locality.Zone]bool
	crowded  bool // more zones than there may be
	// counting is the time for which bytes were counted, and counters the agents that do.
	counting map[locality.Zone]*counting
	counters map[locality.Zone]int
	// stepped is when the last step was, began the first.
	stepped, began time.Time
	coverage       Coverage
	subs           map[*Subscription]struct{}
	stats          Stats
}

// reporter is a node, of which its agent reports, or a proxy.
type reporter struct{ node, proxy string }

// reporterOf a report. A proxy is the same on whatever node its workload is.
func reporterOf(r *Report) reporter {
	if r.Proxy != "" {
		return reporter{proxy: r.Proxy}
	}
	return reporter{node: r.Node}
}

// agent is one reporter: the agent of a node, or a proxy.
type agent struct {
	reporter
	// zone as reported.
	zone     locality.Zone
	runs     []run // newest last
	reported time.Time
	// window is what was reported since the last step, in order of lanes, and the
	// time that it covers.
	window        []count
	windowElapsed time.Duration
	// held is the smoothed rate per second, in order of lanes; it stands in for reports that
	// are missing. steady: it has seen a report.
	held   []count
	steady bool
	// quiet is how long it said nothing while others of its zone did, kept what is left of
	// its share.
	quiet time.Duration
	kept  float64
	// accounting of its newest report, what it has open, and for how long it has not read that
	// again.
	accounting Accounting
	open       []openRow
	unread     time.Duration
}

type run struct {
	name string
	last uint64
}

// count of new connections, or a rate of them.
type count struct {
	lane  *lane
	value float64
}

// port is a service port with traffic.
type port struct {
	name  proxy.PortName
	total Total
	// lanes of IPv4 and IPv6; nil: there is no traffic.
	lanes [2]*lane
	// told are the connections of either family that were counted by who tells them apart.
	told [2]fading
	// before is the total at the last step; rates of bytes are per second.
	before          Total
	inRate, outRate float64
	stepped         bool
	// agents by which traffic was carried.
	agents portAgents
	units  units
}

// lane is the traffic of one address family of a service port. Families are planned apart, and
// so are estimated apart.
type lane struct {
	port   *port
	family proxy.Family
	serial uint64
	gone   bool
	// counts of this step by zone.
	counts    []float64
	estimator *estimate.Estimator
	// published are the shares that subscribers got last; nil: none.
	published []float64
	used      time.Time
	// carried by way.
	carried map[way]*carried
}

// NewAggregator makes an aggregator that knows of no traffic.
func NewAggregator(c Config) *Aggregator {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	a := &Aggregator{
		world: c.World, log: c.Logger, agents: map[reporter]*agent{}, ports: map[proxy.PortName]*port{},
		measured: map[locality.Zone]bool{}, counting: map[locality.Zone]*counting{}, counters: map[locality.Zone]int{},
		subs: map[*Subscription]struct{}{},
	}
	if c.Registerer != nil {
		c.Registerer.MustRegister(a)
	}
	return a
}

// Run steps the estimate until ctx ends, and returns nil then.
func (a *Aggregator) Run(ctx context.Context) error {
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			a.step(time.Now())
		}
	}
}

// Receive takes a report. fresh is false for one that was taken before, which is
// acknowledged all the same. The report is not kept. Errors: a *FieldError if it
// makes no sense; ErrNotReady if it is to be repeated.
func (a *Aggregator) Receive(r *Report) (fresh bool, err error) { return a.receive(time.Now(), r) }

func (a *Aggregator) receive(now time.Time, r *Report) (fresh bool, err error) {
	err = r.Check()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.stats.Refused++
		return false, err
	}
	if !a.world.Synced() {
		a.stats.Early++
		return false, ErrNotReady
	}
	if r.Proxy != "" {
		// So proxies are no more than there are workloads.
		if _, ok := a.world.Proxy(r.Proxy); !ok {
			a.stats.Early++
			return false, ErrUnknownProxy
		}
	}
	key := reporterOf(r)
	from := a.agents[key]
	if from == nil {
		from = &agent{reporter: key, kept: 1}
		a.agents[key] = from
	}
	gap, duplicate := from.admit(r.Run, r.Sequence)
	from.reported = now
	if duplicate {
		a.stats.Duplicate++
		return false, nil
	}
	from.zone = r.Zone
	a.stats.Accepted++
	a.stats.Missed += gap
	a.note(now, from, r)
	zone, _ := a.place(from)
	a.noteExchanges(now, from, zone, r)
	return true, nil
}

// admit says whether a report was taken before, and how many before it were not:
// those went to another control plane, or were given up.
func (g *agent) admit(name string, sequence uint64) (gap uint64, duplicate bool) {
	for i := range g.runs {
		if k := &g.runs[i]; k.name == name {
			if sequence <= k.last {
				return 0, true
			}
			gap, k.last = sequence-k.last-1, sequence
			return gap, false
		}
	}
	// The first of a run need not be 1: this control plane may be younger.
	if len(g.runs) == knownRuns {
		g.runs = slices.Delete(g.runs, 0, 1)
	}
	g.runs = append(g.runs, run{name, sequence})
	return 0, false
}

// note adds a report to the totals and to the window of its agent.
func (a *Aggregator) note(now time.Time, from *agent, r *Report) {
	again := from.windowElapsed > 0
	from.windowElapsed += r.Elapsed
	from.window = slices.Grow(from.window, len(r.Traffic))
	for i := range r.Traffic {
		t := &r.Traffic[i]
		p := a.ports[t.Port]
		if p == nil {
			if p = a.newPort(t.Port); p == nil {
				a.stats.UnknownPort += t.Connections
				continue
			}
		}
		p.units.note(now, t, r.Proxy != "")
		p.total.add(t.total())
		a.stats.Total.add(t.total())
		a.stats.Requests += t.Requests
		if t.Family != proxy.AnyFamily {
			p.told[t.Family-proxy.IPv4].add(now, float64(t.Connections))
		}
		for l, part := range a.lanesOf(now, p, t.Family, r.Proxy != "") {
			if l.used = now; t.Connections > 0 {
				from.window = append(from.window, count{l, part * float64(t.Connections)})
			}
		}
	}
	if again {
		// Reports in quick succession do not pile up.
		from.window = sorted(from.window)
	}
}

// newPort begins to measure a service port; nil if there is none of that name.
func (a *Aggregator) newPort(name proxy.PortName) *port {
	if !a.world.Has(name) {
		return nil
	}
	p := &port{name: name}
	a.ports[name] = p
	return p
}

// lanesOf traffic of a family, and the part of it that each gets. Who counted may not tell
// families apart. Then all is of the Service's only family. If it has two, traffic that proxies
// report is of the first one, as they connect to the endpoints of that; what agents report is
// divided as others count it, and in halves as long as nobody does.
func (a *Aggregator) lanesOf(now time.Time, p *port, family proxy.Family, byProxy bool) iter.Seq2[*lane, float64] {
	if family == proxy.AnyFamily {
		if first, both := a.world.Family(p.name); byProxy || !both {
			family = first
		}
	}
	return func(yield func(*lane, float64) bool) {
		if family != proxy.AnyFamily {
			yield(a.laneOf(p, family), 1)
			return
		}
		v4, v6 := p.told[0].now(now), p.told[1].now(now)
		part := 0.5
		if v4+v6 >= leastTold {
			part = v4 / (v4 + v6)
		}
		if part > 0 && !yield(a.laneOf(p, proxy.IPv4), part) {
			return
		}
		if part < 1 {
			yield(a.laneOf(p, proxy.IPv6), 1-part)
		}
	}
}

// laneOf a family, which begins with its first traffic.
func (a *Aggregator) laneOf(p *port, family proxy.Family) *lane {
	at := &p.lanes[family-proxy.IPv4]
	if *at == nil {
		a.serial++
		*at = &lane{port: p, family: family, serial: a.serial, counts: make([]float64, len(a.zones)), estimator: estimate.New(a.zones)}
	}
	return *at
}

// lane of a family; nil: it has no traffic, or p is nil.
func (p *port) lane(family proxy.Family) *lane {
	if p == nil || family == proxy.AnyFamily {
		return nil
	}
	return p.lanes[family-proxy.IPv4]
}

// all lanes that have traffic.
func (p *port) all() iter.Seq[*lane] {
	return func(yield func(*lane) bool) {
		for _, l := range p.lanes {
			if l != nil && !yield(l) {
				return
			}
		}
	}
}

// sorted orders counts by lane, adds up those of the same, and leaves out lanes that
// are gone. It uses the memory of its argument.
func sorted(counts []count) []count {
	slices.SortFunc(counts, func(x, y count) int { return cmp.Compare(x.lane.serial, y.lane.serial) })
	out := counts[:0]
	for _, c := range counts {
		switch n := len(out); {
		case c.lane.gone:
		case n > 0 && out[n-1].lane == c.lane:
			out[n-1].value += c.value
		default:
			out = append(out, c)
		}
	}
	clear(counts[len(out):])
	return out
}

// Estimate is the demand of one service port and address family.
type Estimate struct {
	// Shares by zone, in the order asked for; they sum to 1, or are all 0 if no zone has
	// nodes. Nothing measured: the prior.
	Shares []float64
	// Rate of load per second, all zones together: new connections or, where they are more,
	// open ones that turn over. What policies Local keep on nodes is not in it.
	Rate float64
	// Fixed load by zone, which policies Local keep there, as a multiple of Rate; nil: none.
	Fixed []float64
	// Measured: there was traffic not long ago.
	Measured bool
	// Other is the load per second of the other family, what is fixed included; 0: it has none.
	// Its Shares are the prior of this one, as the clients of a Service are more likely where its
	// other clients are than where CPUs are. Where this family has no load, they are its Shares.
	Other float64
}

// Reported: agents or proxies have told of a port lately.
func (a *Aggregator) Reported(name proxy.PortName) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ports[name] != nil
}

// Shares returns the estimate for an address family of a service port, for zones in ascending
// order; for AnyFamily it is that of both together. prior
// is what to believe as long as nothing is measured, noNodes marks zones without live
// nodes; both are as in planner/estimate and may be nil. Demand of other zones does
// not count.
func (a *Aggregator) Shares(name proxy.PortName, family proxy.Family, zones []locality.Zone, prior []float64, noNodes []bool) Estimate {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.ports[name]
	if p == nil {
		return Estimate{Shares: estimate.Unreported(len(zones), prior, noNodes)}
	}
	a.rezone(a.unite(zones))
	// The estimator's zones are more than those asked for; the others have no nodes.
	at := make([]int, len(zones))
	inPrior, absent := make([]float64, len(a.zones)), make([]bool, len(a.zones))
	for i := range absent {
		absent[i] = true
	}
	for i, zone := range zones {
		k, ok := slices.BinarySearch(a.zones, zone)
		if !ok {
			at[i] = -1 // more zones than anybody plans for
			continue
		}
		at[i] = k
		absent[at[i]] = noNodes != nil && noNodes[i]
		inPrior[at[i]] = 1
		if prior != nil {
			inPrior[at[i]] = prior[i]
		}
	}
	load, other, measured := a.load(time.Now(), p, family, inPrior, absent)
	e := Estimate{Shares: make([]float64, len(zones)), Rate: load.Rate, Measured: measured, Other: other}
	for i, k := range at {
		if k < 0 {
			continue
		}
		e.Shares[i] = load.Shares[k]
		if load.Fixed[k] > 0 && load.Rate > 0 {
			if e.Fixed == nil {
				e.Fixed = make([]float64, len(zones))
			}
			e.Fixed[i] = load.Fixed[k] / load.Rate
		}
	}
	return e
}

// load of a family of a port, and that of the other one. measured: the family had traffic.
func (a *Aggregator) load(now time.Time, p *port, family proxy.Family, prior []float64, noNodes []bool) (load estimate.Load, other float64, measured bool) {
	if family == proxy.AnyFamily {
		return a.loadOfBoth(now, p, prior, noNodes), 0, true
	}
	own, beside := p.lane(family), p.lane(family.Other())
	if beside != nil {
		if l := a.loadOf(now, beside, prior, noNodes); l.Rate > 0 {
			prior, other = l.Shares, l.Rate
			for _, fixed := range l.Fixed {
				other += fixed
			}
		}
	}
	if own == nil {
		return estimate.Load{Shares: estimate.Unreported(len(a.zones), prior, noNodes), Fixed: make([]float64, len(a.zones))}, other, false
	}
	return a.loadOf(now, own, prior, noNodes), other, true
}

func (a *Aggregator) loadOf(now time.Time, l *lane, prior []float64, noNodes []bool) estimate.Load {
	return l.estimator.Load(a.heldBy(now, l).estimate(prior, noNodes))
}

// loadOfBoth families of a port.
func (a *Aggregator) loadOfBoth(now time.Time, p *port, prior []float64, noNodes []bool) (sum estimate.Load) {
	for l := range p.all() {
		one := a.loadOf(now, l, prior, noNodes)
		if sum.Shares == nil {
			sum = one
			continue
		}
		for i := range one.Shares {
			if rate := sum.Rate + one.Rate; rate > 0 {
				sum.Shares[i] = (sum.Shares[i]*sum.Rate + one.Shares[i]*one.Rate) / rate
			}
			sum.Fixed[i] += one.Fixed[i]
		}
		sum.Rate += one.Rate
	}
	if sum.Shares == nil {
		sum = estimate.Load{Shares: estimate.Unreported(len(a.zones), prior, noNodes), Fixed: make([]float64, len(a.zones))}
	}
	return sum
}

// Rate of load of a service port, per second, as in Estimate, both families together; 0: there
// was no traffic lately.
func (a *Aggregator) Rate(name proxy.PortName) float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.ports[name]; p != nil {
		return a.loadOfBoth(time.Now(), p, nil, nil).Rate
	}
	return 0
}

// unite returns the zones that there are, and these.
func (a *Aggregator) unite(zones []locality.Zone) []locality.Zone {
	united := a.zones
	for _, zone := range zones {
		if i, ok := slices.BinarySearch(united, zone); !ok && len(united) < planner.MaxZones {
			united = slices.Insert(slices.Clip(united), i, zone)
		}
	}
	return united
}

// rezone changes the zones of all estimators, if they are others than before.
func (a *Aggregator) rezone(zones []locality.Zone) {
	if slices.Equal(zones, a.zones) {
		return
	}
	a.zones = zones
	for _, p := range a.ports {
		for l := range p.all() {
			l.estimator.Rezone(zones)
			l.counts = make([]float64, len(zones))
			l.published = nil
		}
	}
}
