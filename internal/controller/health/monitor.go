package health

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// stepEvery is how often the detector looks at streams.
const stepEvery = 100 * time.Millisecond

// MonitorConfig configures a Monitor.
type MonitorConfig struct {
	// Send hands a probe to its witness; false: that cannot be reached. It must not block.
	Send func(Probe) bool
	// Publish gets all suspect nodes whenever that set changes, in the goroutine of Run.
	Publish func([]string)
	Logger  *slog.Logger // nil: silence
	// Registerer of metrics; nil: none. Registering twice panics.
	Registerer prometheus.Registerer
}

// Monitor runs a Detector on the clock: it knows which machines are suspect and gathers
// evidence about late ones. Safe for concurrent use; nothing but Run blocks.
type Monitor struct {
	config  MonitorConfig
	changed chan struct{} // holds a token while there is something to publish

	mu       sync.Mutex
	detector Detector
}

// NewMonitor makes a monitor; Run starts it.
func NewMonitor(c MonitorConfig) *Monitor {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Monitor{config: c, changed: make(chan struct{}, 1)}
	if c.Registerer != nil {
		c.Registerer.MustRegister(m)
	}
	return m
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (m *Monitor) Run(ctx context.Context) error {
	ticker := time.NewTicker(stepEvery)
	defer ticker.Stop()
	known := map[string]Suspect{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.changed:
			known = m.publish(known)
		case <-ticker.C:
			var orders []Probe
			m.do(func(d *Detector, now time.Time) { orders = d.Step(now) })
			m.send(orders)
		}
	}
}

// do something with the detector, and see to it that changes are published.
func (m *Monitor) do(f func(*Detector, time.Time)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.detector.Changes()
	f(&m.detector, time.Now())
	if m.detector.Changes() != before {
		select {
		case m.changed <- struct{}{}:
		default:
		}
	}
}

func (m *Monitor) send(orders []Probe) {
	for _, p := range orders {
		if !m.config.Send(p) {
			m.Result(p.Witness, p.ID, Failed)
		}
	}
}

// publish the suspects, and log what changed since they were before.
func (m *Monitor) publish(before map[string]Suspect) map[string]Suspect {
	now := map[string]Suspect{}
	var names []string
	for _, s := range m.Suspects() {
		now[s.Node] = s
		names = append(names, s.Node)
		if _, known := before[s.Node]; !known {
			m.config.Logger.Warn("node is suspect: its stream stalled and it answers no probe; its endpoints are used last",
				"node", s.Node, "zone", s.Zone, "witnesses", strings.Join(s.Witnesses, ","))
		}
	}
	for name, s := range before {
		if _, still := now[name]; !still {
			m.config.Logger.Info("node is trusted again", "node", name, "suspect_for", time.Since(s.Since).Round(time.Millisecond))
		}
	}
	m.config.Publish(names)
	return now
}

// Attend notes a new stream of a node's agent, which answers probes at addr (invalid: it
// does not).
func (m *Monitor) Attend(node string, addr netip.AddrPort) {
	m.do(func(d *Detector, now time.Time) { d.Attend(node, addr, now) })
}

// Heard notes a sign of life on a node's stream.
func (m *Monitor) Heard(node string) {
	m.do(func(d *Detector, now time.Time) { d.Heard(node, now) })
}

// Detach notes the end of a node's stream; goodbye: the agent ended it on purpose.
func (m *Monitor) Detach(node string, goodbye bool) {
	m.do(func(d *Detector, _ time.Time) { d.Detach(node, goodbye) })
}

// Result takes a witness's report on a probe. One that it was not sent is ignored.
func (m *Monitor) Result(witness string, id uint64, o Outcome) {
	m.do(func(d *Detector, now time.Time) { d.Result(witness, id, o, now) })
}

// Suspects by name.
func (m *Monitor) Suspects() []Suspect {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.detector.Suspects()
}

// Unreachable are live agents that do not get the probes of others, by name.
func (m *Monitor) Unreachable() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.detector.Unreachable()
}

func (m *Monitor) setNode(name string, zone locality.Zone) {
	m.do(func(d *Detector, _ time.Time) { d.SetNode(name, zone) })
}

func (m *Monitor) forgetNode(name string) {
	m.do(func(d *Detector, _ time.Time) { d.ForgetNode(name) })
}

func (m *Monitor) renewed(name string) {
	m.do(func(d *Detector, now time.Time) { d.Renewed(name, now) })
}

// confirm asks witnesses about machines whose leases are late.
func (m *Monitor) confirm(names []string) {
	if len(names) == 0 {
		return
	}
	var orders []Probe
	m.do(func(d *Detector, now time.Time) { orders = d.Confirm(names, now) })
	m.send(orders)
}

func (m *Monitor) evidence(name string) (Evidence, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.detector.Evidence(name, time.Now())
}

var (
	descSuspects    = prometheus.NewDesc("proxima_health_suspect_nodes", "Nodes whose endpoints are used last.", nil, nil)
	descUnreachable = prometheus.NewDesc("proxima_health_unreachable_nodes",
		"Nodes with a live agent that the probes of others do not reach.", nil, nil)
	descStalls     = prometheus.NewDesc("proxima_health_stalls_total", "Streams of agents that were silent for 3 s.", nil, nil)
	descSuspicions = prometheus.NewDesc("proxima_health_suspicions_total", "Nodes that became suspect.", nil, nil)
	descProbes     = prometheus.NewDesc("proxima_health_probes_total", "Probes of agents by agents, by outcome.", []string{"outcome"}, nil)
)

// Describe implements prometheus.Collector.
func (m *Monitor) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSuspects, descUnreachable, descStalls, descSuspicions, descProbes} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Monitor) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	suspects, unreachable, s := len(m.detector.Suspects()), len(m.detector.Unreachable()), m.detector.Stats()
	m.mu.Unlock()
	value := func(d *prometheus.Desc, t prometheus.ValueType, v uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, t, float64(v), labels...)
	}
	value(descSuspects, prometheus.GaugeValue, uint64(suspects))
	value(descUnreachable, prometheus.GaugeValue, uint64(unreachable))
	value(descStalls, prometheus.CounterValue, s.Stalls)
	value(descSuspicions, prometheus.CounterValue, s.Suspicions)
	for o, n := range s.Outcomes {
		value(descProbes, prometheus.CounterValue, n, Outcome(o).String())
	}
}
