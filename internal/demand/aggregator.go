package demand

import (
	"cmp"
	"context"
	"errors"
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
	// window is what was reported since the last step, in order of ports, and the
	// time that it covers.
	window        []count
	windowElapsed time.Duration
	// held is the smoothed rate per second, in order of ports; it stands in for reports that
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
	port  *port
	value float64
}

// port is a service port with traffic.
type port struct {
	name   proxy.PortName
	serial uint64
	gone   bool
	total  Total
	// counts of this step by zone.
	counts    []float64
	estimator *estimate.Estimator
	// published are the shares that subscribers got last; nil: none.
	published []float64
	used      time.Time
	// before is the total at the last step; rates of bytes are per second.
	before          Total
	inRate, outRate float64
	stepped         bool
	// carried by way, and by which agents.
	carried map[way]*carried
	agents  portAgents
	units   units
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
			if p = a.newPort(now, t.Port); p == nil {
				a.stats.UnknownPort += t.Connections
				continue
			}
		}
		p.used = now
		p.units.note(now, t, r.Proxy != "")
		p.total.add(t.total())
		a.stats.Total.add(t.total())
		a.stats.Requests += t.Requests
		if t.Connections > 0 {
			from.window = append(from.window, count{p, float64(t.Connections)})
		}
	}
	if again {
		// Reports in quick succession do not pile up.
		from.window = sorted(from.window)
	}
}

// newPort begins to measure a service port; nil if there is none of that name.
func (a *Aggregator) newPort(now time.Time, name proxy.PortName) *port {
	if !a.world.Has(name) {
		return nil
	}
	a.serial++
	p := &port{name: name, serial: a.serial, counts: make([]float64, len(a.zones)), estimator: estimate.New(a.zones), used: now}
	a.ports[name] = p
	return p
}

// sorted orders counts by port, adds up those of the same, and leaves out ports that
// are gone. It uses the memory of its argument.
func sorted(counts []count) []count {
	slices.SortFunc(counts, func(x, y count) int { return cmp.Compare(x.port.serial, y.port.serial) })
	out := counts[:0]
	for _, c := range counts {
		switch n := len(out); {
		case c.port.gone:
		case n > 0 && out[n-1].port == c.port:
			out[n-1].value += c.value
		default:
			out = append(out, c)
		}
	}
	clear(counts[len(out):])
	return out
}

// Estimate is the demand of one service port.
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
}

// Shares returns the estimate for a service port, for zones in ascending order. prior
// is what to believe as long as nothing is measured, noNodes marks zones without live
// nodes; both are as in planner/estimate and may be nil. Demand of other zones does
// not count.
func (a *Aggregator) Shares(name proxy.PortName, zones []locality.Zone, prior []float64, noNodes []bool) Estimate {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.ports[name]
	if p == nil {
		return Estimate{Shares: estimate.New(zones).Shares(prior, noNodes)}
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
	load := p.estimator.Load(a.heldBy(time.Now(), p).estimate(inPrior, absent))
	e := Estimate{Shares: make([]float64, len(zones)), Rate: load.Rate, Measured: true}
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

// Rate of load of a service port, per second, as in Estimate; 0: there was no traffic lately.
func (a *Aggregator) Rate(name proxy.PortName) float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.ports[name]; p != nil {
		return p.estimator.Load(a.heldBy(time.Now(), p).estimate(nil, nil)).Rate
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
		p.estimator.Rezone(zones)
		p.counts = make([]float64, len(zones))
		p.published = nil
	}
}
