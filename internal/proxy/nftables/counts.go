//go:build linux

package nftables

import (
	"iter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// tally adds up a counter that the kernel may start again at zero.
type tally struct{ base, last uint64 }

func (t *tally) read(now uint64) {
	if now < t.last {
		t.base += t.last
	}
	t.last = now
}

// restart notes that the kernel's counter is gone.
func (t *tally) restart() { t.base, t.last = t.base+t.last, 0 }

func (t *tally) total() uint64 { return t.base + t.last }

// Counts implements proxy.Counter: new connections per service port, those that
// were refused for want of an endpoint included. The kernel's counters are read
// in one go. Bytes are not counted: they would cost every packet. What an
// earlier process counted is in it.
func (m *Mode) Counts() iter.Seq2[proxy.PortName, proxy.Counts] {
	type count struct {
		name   proxy.PortName
		v4, v6 uint64
	}
	m.mu.Lock()
	m.readCounters()
	all := make([]count, 0, len(m.ports))
	for name, p := range m.ports {
		one := count{name: name}
		for i, f := range m.families {
			if f.proto == unix.NFPROTO_IPV6 {
				one.v6 += p.tally[i].total()
			} else {
				one.v4 += p.tally[i].total()
			}
		}
		all = append(all, one)
	}
	m.mu.Unlock()
	return func(yield func(proxy.PortName, proxy.Counts) bool) {
		for _, c := range all {
			if !yield(c.name, proxy.Counts{Connections: c.v4 + c.v6, ByFamily: true, IPv6: proxy.FamilyCounts{Connections: c.v6}}) {
				return
			}
		}
	}
}

// readCounters reads all counters. If some could not be read, those counts stay
// what they were.
func (m *Mode) readCounters() {
	if m.closed || !m.started {
		return
	}
	for i, f := range m.families {
		if !f.hasTable {
			continue
		}
		err := m.k.Counts(f.table, setDemand, func(key []byte, packets uint64) {
			number, _ := unmix(string(key))
			if p := m.byNumber[number]; p != nil {
				p.tally[i].read(packets)
			}
		})
		if err != nil {
			m.log.Debug("reading counters of service ports", "family", f.String(), "error", err)
		}
	}
}

// lostCounters looks, after the tables were read, which counters are gone.
func (m *Mode) lostCounters() {
	for i, f := range m.families {
		demand := f.demand
		for _, p := range m.ports {
			if p.served[i] != nil && !demand.inKernel(mix(p.number, 0)) {
				p.tally[i].restart()
			}
		}
	}
}

// metrics of the mode. The counts per service port are read when they are
// scraped, so that a removed port leaves no series behind.
type metrics struct {
	mode     *Mode
	apply    prometheus.Histogram
	last     prometheus.Gauge
	failures prometheus.Counter
	repairs  prometheus.Counter
	overruns prometheus.Counter
	flows    prometheus.Counter
}

var (
	descConnections = prometheus.NewDesc("proxima_nftables_connections_total",
		"New connections, for UDP new flows, to a service port.", []string{"namespace", "service", "port"}, nil)
	descElements = prometheus.NewDesc("proxima_nftables_elements",
		"Elements of a set or map in the kernel.", []string{"family", "set"}, nil)
	descChains = prometheus.NewDesc("proxima_nftables_chains", "Chains in the kernel.", []string{"family"}, nil)
)

func newMetrics(m *Mode) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "proxima_nftables_" + name, Help: help})
	}
	return &metrics{
		mode: m,
		apply: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "proxima_nftables_apply_duration_seconds", Help: "Time that a change took until it was in the kernel.",
			Buckets: prometheus.ExponentialBuckets(0.00002, 3, 10), // 20 µs to 0.4 s
		}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "proxima_nftables_last_apply_timestamp_seconds", Help: "When a change was last brought into the kernel.",
		}),
		failures: counter("failures_total", "Transactions and readings that the kernel refused; they are tried again."),
		repairs:  counter("repairs_total", "Repairs after another program changed the tables."),
		overruns: counter("notification_overruns_total", "Times that notifications were lost, and everything was read back."),
		flows:    counter("deleted_flows_total", "UDP flows that were ended as their endpoint or service was gone."),
	}
}

func (m *metrics) applied(d time.Duration) {
	m.apply.Observe(d.Seconds())
	m.last.SetToCurrentTime()
}

func (m *metrics) own() []prometheus.Collector {
	return []prometheus.Collector{m.apply, m.last, m.failures, m.repairs, m.overruns, m.flows}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.own() {
		c.Describe(to)
	}
	to <- descConnections
	to <- descElements
	to <- descChains
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.own() {
		c.Collect(to)
	}
	for name, c := range m.mode.Counts() {
		to <- prometheus.MustNewConstMetric(descConnections, prometheus.CounterValue, float64(c.Connections),
			name.Namespace, name.Name, name.Port)
	}
	m.mode.mu.Lock()
	defer m.mode.mu.Unlock()
	for _, f := range m.mode.families {
		if !f.hasTable {
			continue
		}
		for name, s := range f.sets {
			if !s.opaque {
				to <- prometheus.MustNewConstMetric(descElements, prometheus.GaugeValue, float64(s.len()), f.String(), name)
			}
		}
		to <- prometheus.MustNewConstMetric(descChains, prometheus.GaugeValue, float64(len(f.chains)), f.String())
	}
}
