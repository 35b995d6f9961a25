// Package node is the agent of a node: it keeps the model that a feed delivers,
// chooses endpoints for this node, and brings a mode's data path to that state.
//
// Enter at [New], then run [Agent.Run] and hand updates to [Agent.Apply]. The
// agent owns three states: desired (the model), actual (what the mode has
// confirmed) and pending (the difference that is known: changes not handed over
// yet, and those that failed). It never talks to a control plane and never
// touches the data path but through its proxy.Mode.
package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// Facts are what the agent knows of its node. They may change while it runs.
type Facts struct {
	Name string        `json:"name"`
	Zone locality.Zone `json:"zone,omitempty"`
	// Machine that the node runs on (package machine); empty: not known.
	Machine string `json:"machine,omitempty"`
	// Leaving: the node is being deleted, or tainted by the cluster autoscaler to
	// be. Load balancers are to stay away, traffic is proxied as before.
	Leaving bool `json:"leaving,omitempty"`
	// Tunnel is where this node's way to other sites begins, at most one address per
	// family; nil: it has none.
	Tunnel []netip.AddrPort `json:"tunnel,omitempty"`
}

// Options of an Agent. All but Mode have defaults.
type Options struct {
	// Mode carries the traffic. The agent calls Apply, never Close.
	Mode  proxy.Mode
	Facts Facts
	// Applied is called with the changes that are in place, by the goroutine of Run, which
	// waits for it. May be nil.
	Applied func([]proxy.Change)
	// Left gets endpoints of TCP that a service port has stopped using, after the mode has
	// stopped, as Applied. May be nil.
	Left func([]netip.AddrPort)
	// Tracer records the calls of the mode for changes that are followed; nil: tracing is off.
	Tracer *tracing.Recorder
	// OwnPortsOnly: names below "mesh" answer on the ports of their Services alone, not on 80.
	OwnPortsOnly bool
	// Logger gets failures and recoveries. Default: discard.
	Logger *slog.Logger
	// Registerer gets the agent's metrics. Default: none.
	Registerer prometheus.Registerer

	// MinGap and MaxGap bound the pause after an Apply of the mode. A change that
	// comes after the pause goes out at once. While changes keep coming within it
	// the pause doubles, so a burst costs few calls and the last change of it
	// waits MaxGap at most. Defaults 1 ms and 100 ms; negative: no pause.
	MinGap, MaxGap time.Duration
	// MinRetry and MaxRetry bound the pause before what failed is tried again; it
	// doubles. Defaults 100 ms and 30 s.
	MinRetry, MaxRetry time.Duration
	// SyncPeriod decides about health: it is lost when a change has been pending
	// for twice as long. Default 30 s, as in kube-proxy.
	SyncPeriod time.Duration
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.MinGap, time.Millisecond)
	def(&o.MaxGap, 100*time.Millisecond)
	def(&o.MinRetry, 100*time.Millisecond)
	def(&o.MaxRetry, 30*time.Second)
	def(&o.SyncPeriod, 30*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Agent is a node's agent. All methods are safe for concurrent use.
type Agent struct {
	opts  Options
	log   *slog.Logger
	wake  chan struct{} // holds one element while there is work
	ready chan struct{}

	mu    sync.Mutex
	facts Facts
	model model
	// complete: a feed has delivered a whole state. Nothing is applied before, as
	// a mode takes the first Apply for everything there is.
	complete bool
	dirty    map[proxy.PortName]time.Time // to be looked at; since when
	inFlight map[proxy.PortName]time.Time // being looked at by Run
	failed   map[proxy.PortName]*failure  // handed over in vain
	// triggers are trigger times of slices that are not in place, each under
	// one port of its slice; none is of before the agent was made.
	triggers map[proxy.PortName][]time.Time
	begun    time.Time
	// traced are the spans of this agent of changes that Run has not taken up, by Service.
	traced  map[proxy.ServiceName]tracing.Parents
	retryAt time.Time // no failure is due before; zero: none is at all
	// steps are when endpoints of ports take their next step of warming up; none does before
	// stepAt.
	steps   map[proxy.PortName]time.Time
	stepAt  time.Time
	actual  map[proxy.PortName]*proxy.PortState
	started bool // the mode has the whole state
	stats   stats
}

// failure is a service port whose latest change the mode did not take.
type failure struct {
	since    time.Time // of the oldest change that is not in place
	attempts int
	retryAt  time.Time
	err      error
	// alone: the mode reported this port, and has the others in place.
	alone bool
	// traced as in work.
	traced tracing.Parents
}

// New makes an agent. It does nothing until Run.
func New(opts Options) (*Agent, error) {
	if opts.Mode == nil {
		return nil, errors.New("node agent: no mode given")
	}
	opts = opts.withDefaults()
	a := &Agent{
		opts:   opts,
		log:    opts.Logger.With("mode", opts.Mode.Name()),
		wake:   make(chan struct{}, 1),
		ready:  make(chan struct{}),
		facts:  opts.Facts,
		model:  newModel(!opts.OwnPortsOnly),
		dirty:  map[proxy.PortName]time.Time{},
		failed: map[proxy.PortName]*failure{},
		steps:  map[proxy.PortName]time.Time{},

		triggers: map[proxy.PortName][]time.Time{},
		begun:    time.Now(),

		actual: map[proxy.PortName]*proxy.PortState{},
		stats:  newStats(),
	}
	if opts.Registerer != nil {
		if err := opts.Registerer.Register(&collector{agent: a}); err != nil {
			return nil, errors.Join(errors.New("node agent: registering metrics"), err)
		}
	}
	return a, nil
}

// Apply takes an update into the model. It returns at once; the data path
// follows in Run. The cost is that of what the update names, or with Reset of
// the whole state. The agent keeps the objects, not the maps. Before the first
// update with Reset nothing is carried. Updates that change nothing do nothing.
func (a *Agent) Apply(u proxy.Update) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	mark := func(name proxy.PortName) { a.mark(name, now) }
	if len(a.dirty) == 0 && len(u.Services) > 0 {
		a.dirty = make(map[proxy.PortName]time.Time, len(u.Services))
	}
	a.noteTriggers(u)
	a.noteTraced(u.Traced)
	services, slices := a.model.apply(u, mark)
	a.noteTraced(u.Traced)
	a.stats.serviceChanges += uint64(services)
	a.stats.sliceChanges += uint64(slices)
	a.stats.lastQueued = now
	a.complete = a.complete || u.Reset
	a.signal()
}

// noteTriggers records the trigger times of slices that are new or different. What was
// before the agent, it can't have been late for; when a slice goes, nobody says
// why (kube-proxy counts neither).
func (a *Agent) noteTriggers(u proxy.Update) {
	for name, s := range u.Slices {
		if s == nil || len(s.Ports) == 0 || !s.Trigger.After(a.begun) {
			continue
		}
		if old := a.model.slices[name]; old != nil && old.Trigger.Equal(s.Trigger) {
			continue
		}
		port := proxy.PortName{ServiceName: s.Service, Port: s.Ports[0].Name}
		if len(a.triggers[port]) < maxTriggers {
			a.triggers[port] = append(a.triggers[port], s.Trigger)
		}
	}
}

// maxTriggers of one port bound what a mode that fails for long can pile up.
const maxTriggers = 100

// SetFacts changes what is known of the node. A new name, zone or tunnel changes which
// endpoints are chosen, so all service ports are looked at again.
func (a *Agent) SetFacts(f Facts) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.facts
	a.facts = f
	if old.Name == f.Name && old.Zone == f.Zone && old.Machine == f.Machine && slices.Equal(old.Tunnel, f.Tunnel) {
		return
	}
	a.model.eachPort(func(name proxy.PortName) { a.mark(name, now) })
	a.stats.lastQueued = now
	a.signal()
}

// Ready is closed when the first whole state is in place, except for service
// ports that the mode reported as failed alone.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

func (a *Agent) mark(name proxy.PortName, now time.Time) {
	if _, ok := a.dirty[name]; !ok {
		a.dirty[name] = now
	}
}

func (a *Agent) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run brings the mode to the model's state, and keeps it there, until ctx ends;
// it returns nil then. It is to be called once, and is the only one to call the
// mode's Apply. The mode is left as it is: closing it is the caller's.
func (a *Agent) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	pace := pace{min: a.opts.MinGap, max: a.opts.MaxGap}
	for {
		timer.Reset(a.untilRetry(time.Now()))
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-timer.C:
		}
		if wait := pace.before(time.Now()); wait > 0 {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return nil
			case <-timer.C:
			}
		}
		begin := time.Now()
		if a.sync(ctx, begin) {
			end := time.Now()
			pace.after(end, end.Sub(begin))
		}
	}
}

// sync hands over what is due. It reports whether the mode was called.
func (a *Agent) sync(ctx context.Context, now time.Time) bool {
	work, node, first := a.drain(now)
	if len(work) == 0 && !first {
		return false
	}
	changes := make([]proxy.Change, 0, len(work))
	kept := work[:0]
	var idle []time.Time // triggers that change nothing here
	for _, w := range work {
		state, step := w.choose(node, now)
		if !step.IsZero() {
			a.noteStep(w.name, step)
		}
		if state.Equal(w.actual) && !w.failed {
			idle = append(idle, w.triggers...)
			continue
		}
		changes = append(changes, proxy.Change{Name: w.name, State: state})
		kept = append(kept, w)
	}
	if len(changes) == 0 && !first {
		a.finishUnchanged(now, idle)
		return false
	}
	begin := time.Now()
	err := a.opts.Mode.Apply(ctx, changes)
	if ctx.Err() == nil {
		a.recordKernel(kept, begin, err)
		left := a.finish(kept, changes, idle, err, now, time.Now())
		a.notifyApplied(changes, err)
		if len(left) > 0 {
			a.opts.Left(left)
		}
	}
	return true
}

// notifyApplied passes on the changes that are in place after a call of the mode.
func (a *Agent) notifyApplied(changes []proxy.Change, err error) {
	if a.opts.Applied == nil {
		return
	}
	var perPort *proxy.PortError
	if errors.As(err, &perPort) {
		changes = slices.DeleteFunc(changes, func(c proxy.Change) bool { return perPort.Failed[c.Name] != nil })
	} else if err != nil {
		return
	}
	a.opts.Applied(changes)
}

// finishUnchanged records updates that change nothing for the mode.
func (a *Agent) finishUnchanged(now time.Time, triggers []time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inFlight = nil
	a.stats.programmed(triggers, time.Now())
	a.stats.lastSync = now
}

// work is one service port to look at, with all that the choice needs but the node.
type work struct {
	name   proxy.PortName
	since  time.Time
	port   proxy.Port
	actual *proxy.PortState
	failed bool
	// origin of the endpoints; without a Service: the port is gone. backends are those of its route.
	origin   choose.Origin
	backends []choose.Backend
	// consumers, by their namespaces, if the mode is proxy.Namespaced.
	consumers map[string]consumer
	tunnel    []netip.AddrPort
	// triggers that are in place with it.
	triggers []time.Time
	// traced are the spans of this agent that the port was changed by.
	traced tracing.Parents
}

// drain collects what is due, and for which node. first: the mode needs the whole state, of
// which nothing counts as in place, however often it was tried.
func (a *Agent) drain(now time.Time) (due []work, node choose.Node, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.complete {
		return nil, node, false
	}
	first = !a.started
	if first || (!a.retryAt.IsZero() && !now.Before(a.retryAt)) {
		a.dueFailures(now, first)
	}
	if first {
		a.model.touched = nil // all ports are looked at
	}
	a.model.markTouched(func(name proxy.PortName) { a.mark(name, now) })
	a.dueSteps(now)
	due = make([]work, 0, len(a.dirty))
	for name, since := range a.dirty {
		w := work{name: name, since: since, actual: a.actual[name]}
		if f := a.failed[name]; f != nil {
			w.failed, w.since, w.traced = true, f.since, f.traced
		}
		w.traced = w.traced.Add(a.traced[name.ServiceName])
		var svc *proxy.Service
		if svc, w.port = a.model.port(name); svc != nil {
			w.origin, w.tunnel = a.model.origin(svc, w.port), a.facts.Tunnel
			w.backends = a.model.backends(&w.origin)
			if _, ok := a.opts.Mode.(proxy.Namespaced); ok {
				w.consumers = a.model.consumers(&w.origin)
			}
		}
		w.triggers = a.triggers[name]
		delete(a.triggers, name)
		due = append(due, w)
	}
	a.traced = nil // all that is dirty has been taken up
	// A new map, as the time to walk or clear one grows with the most it ever held.
	a.inFlight, a.dirty = a.dirty, map[proxy.PortName]time.Time{}
	return due, a.node(), first
}

// Node is this node as the choice of endpoints knows it.
func (a *Agent) Node() choose.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node()
}

// node is this node as the choice knows it.
func (a *Agent) node() choose.Node {
	return choose.Node{
		Name: a.facts.Name, Zone: a.facts.Zone, Machine: a.facts.Machine, Frontends: a.model.frontends, Suspects: a.model.suspects,
	}
}

// dueFailures puts failures that are due among the dirty, and finds out when
// the next one will be.
func (a *Agent) dueFailures(now time.Time, all bool) {
	a.retryAt = time.Time{}
	for name, f := range a.failed {
		if all || !now.Before(f.retryAt) {
			a.dirty[name] = f.since
		} else {
			a.retryBy(f.retryAt)
		}
	}
}

func (a *Agent) retryBy(t time.Time) {
	if a.retryAt.IsZero() || t.Before(a.retryAt) {
		a.retryAt = t
	}
}

// finish records the outcome of a call of the mode, and returns the endpoints for Options.Left.
func (a *Agent) finish(done []work, changes []proxy.Change, idle []time.Time, err error, begin, end time.Time) (left []netip.AddrPort) {
	var perPort *proxy.PortError
	if err != nil && !errors.As(err, &perPort) {
		a.log.Warn("applying changes failed, trying again", "changes", len(changes), "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inFlight = nil
	a.stats.applied(end.Sub(begin), err)
	a.stats.programmed(idle, end)
	if len(a.actual) == 0 {
		a.actual = make(map[proxy.PortName]*proxy.PortState, len(done))
	}
	for i, w := range done {
		failure, alone := err, false
		if perPort != nil {
			failure, alone = perPort.Failed[w.name], true
		}
		if failure != nil {
			a.fail(w, failure, alone, end)
			continue
		}
		if a.failed[w.name] != nil {
			a.log.Info("service port recovered", "port", w.name.String())
			delete(a.failed, w.name)
		}
		a.stats.latency.Observe(end.Sub(w.since))
		a.stats.programmed(w.triggers, end)
		if a.opts.Left != nil {
			left = appendLeft(left, w.actual, changes[i].State)
		}
		if changes[i].State == nil {
			delete(a.actual, w.name)
		} else {
			a.actual[w.name] = changes[i].State
		}
	}
	if len(a.failed) == 0 && !a.retryAt.IsZero() {
		a.failed, a.retryAt = map[proxy.PortName]*failure{}, time.Time{}
	}
	if err == nil || perPort != nil {
		a.stats.lastSync = end
		if !a.started {
			a.started = true
			close(a.ready)
		}
	}
	return left
}

// appendLeft adds the endpoints of TCP that a service port does not use any more; next is nil
// if it is gone.
func appendLeft(left []netip.AddrPort, before, next *proxy.PortState) []netip.AddrPort {
	if before == nil || before.Port.Protocol != proxy.TCP {
		return left
	}
	used := map[netip.AddrPort]bool{}
	if next != nil {
		for e := range next.Endpoints() {
			used[e] = true
		}
	}
	for e := range before.Endpoints() {
		if !used[e] {
			left = append(left, e)
		}
	}
	return left
}

func (a *Agent) fail(w work, err error, alone bool, now time.Time) {
	if len(w.triggers) > 0 {
		a.triggers[w.name] = append(w.triggers, a.triggers[w.name]...)
	}
	f := a.failed[w.name]
	if f == nil {
		f = &failure{since: w.since}
		a.failed[w.name] = f
		if alone {
			a.log.Warn("service port failed, trying again", "port", w.name.String(), "error", err, "hint", hintOf(err))
		}
	}
	f.err, f.alone, f.traced = err, alone, w.traced
	f.retryAt = now.Add(min(a.opts.MinRetry<<min(f.attempts, 16), a.opts.MaxRetry))
	f.attempts++
	a.retryBy(f.retryAt)
}

// untilRetry is how long nothing is due by itself.
func (a *Agent) untilRetry(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait := time.Hour
	for _, at := range []time.Time{a.retryAt, a.stepAt} {
		if !at.IsZero() {
			wait = min(wait, max(at.Sub(now), 0))
		}
	}
	return wait
}

// pace spaces calls of the mode: none waits after a quiet time, and the longer
// a burst lasts, the fewer there are.
type pace struct {
	min, max time.Duration
	gap      time.Duration // after the latest call
	last     time.Time     // end of the latest call
	burst    bool
}

// before returns how long the next call has to wait. It is part of a burst if it
// follows the latest within two pauses or ten of the shortest, even if it need
// not wait: a steady stream would slip through the shortest pause otherwise.
func (p *pace) before(now time.Time) time.Duration {
	since := now.Sub(p.last)
	p.burst = since < max(2*p.gap, 10*p.min)
	return p.gap - since
}

// after plans the pause that follows a call. It is at least as long as the call
// took, up to the longest pause, so that a slow mode leaves time to others.
func (p *pace) after(now time.Time, took time.Duration) {
	if p.burst {
		p.gap *= 2
	} else {
		p.gap = p.min
	}
	p.gap = min(max(p.gap, p.min, took), p.max)
	p.last = now
}
