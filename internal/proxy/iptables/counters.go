package iptables

import (
	"context"
	"errors"
	"hash/maphash"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// counters turn the packet counters of rules, which begin at zero whenever their
// chain is written, into counts that only grow. The rules that are counted lead
// from a trie to a service port: a connection meets exactly one, once, and they
// are written again only if another virtual address of their leaf comes or goes.
type counters struct {
	// reading is held from the kernel's answer to its sum, which have to be in one
	// order.
	reading sync.Mutex

	mu    sync.Mutex
	names map[string]proxy.PortName // by tag
	total map[string][2]uint64      // by tag, of families
	last  map[uint64]uint64         // by rule: as it was last read
}

func (c *counters) init() {
	c.names, c.total, c.last = map[string]proxy.PortName{}, map[string][2]uint64{}, map[uint64]uint64{}
}

func (c *counters) know(tag string, name proxy.PortName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names[tag] = name
}

func (c *counters) forget(tag string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.names, tag)
	delete(c.total, tag)
}

// counted is a rule with its packets.
type counted struct {
	tag     string
	family  family
	rule    uint64
	packets uint64
}

// begin at what the rules say now: an earlier process' traffic.
func (c *counters) begin(rules []counted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range rules {
		c.last[r.rule] = r.packets
	}
}

// add what came since the last reading. A counter that is less than it was began
// again.
func (c *counters) add(rules []counted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := make(map[uint64]uint64, len(rules))
	for _, r := range rules {
		since := r.packets
		if before := c.last[r.rule]; since >= before {
			since -= before
		}
		last[r.rule] = r.packets
		if _, known := c.names[r.tag]; known {
			sum := c.total[r.tag]
			sum[r.family] += since
			c.total[r.tag] = sum
		}
	}
	c.last = last
}

func (c *counters) snapshot() map[proxy.PortName][2]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[proxy.PortName][2]uint64, len(c.names))
	for tag, name := range c.names {
		out[name] = c.total[tag]
	}
	return out
}

// Counts implements proxy.Counter. Only connections are known: nat rules meet the
// first packet of each. It runs iptables-save, so it is for scrapes, not for
// loops (DESIGN.md has figures); if that fails the counts are the last known.
func (m *Mode) Counts() iter.Seq2[proxy.PortName, proxy.Counts] {
	m.counters.reading.Lock()
	if rules, err := m.readCounters(m.life); err == nil {
		m.counters.add(rules)
	} else if m.life.Err() == nil {
		m.log.Warn("reading counters of rules", "error", err)
	}
	m.counters.reading.Unlock()
	counts := m.counters.snapshot()
	return func(yield func(proxy.PortName, proxy.Counts) bool) {
		for name, n := range counts {
			if !yield(name, proxy.Counts{Connections: n[v4] + n[v6], ByFamily: true, IPv6: proxy.FamilyCounts{Connections: n[v6]}}) {
				return
			}
		}
	}
}

func (m *Mode) readCounters(ctx context.Context) ([]counted, error) {
	var out []counted
	var errs []error
	for _, r := range m.rulesets {
		saved, err := m.kernel.save(ctx, r.config.family, tableNAT, true)
		errs = append(errs, err)
		out = append(out, r.countedRules(saved)...)
	}
	return out, errors.Join(errs...)
}

// countedRules of a saved table.
func (r *ruleset) countedRules(saved []byte) []counted {
	var out []counted
	for line := range strings.Lines(string(saved)) {
		if rule, ok := r.parseCounted(strings.TrimSuffix(line, "\n")); ok {
			rule.family = r.config.family
			rule.rule = maphash.String(r.seed, r.config.family.digit()+line[strings.IndexByte(line, ']'):])
			out = append(out, rule)
		}
	}
	return out
}

// parseCounted reads "[packets:bytes] -A CHAIN … -g TARGET" if it leads from a
// trie to a service port. The tag is empty if it is unknown which.
func (r *ruleset) parseCounted(line string) (counted, bool) {
	count, rule, ok := strings.Cut(strings.TrimPrefix(line, "["), "] -A ")
	if !ok || !strings.HasPrefix(rule, chainDispatch) && !strings.HasPrefix(rule, chainNodePorts) {
		return counted{}, false
	}
	rule, target, ok := strings.Cut(rule, " -g ")
	if !ok {
		return counted{}, false
	}
	packets, _, _ := strings.Cut(count, ":")
	n, err := strconv.ParseUint(packets, 10, 64)
	if strings.HasPrefix(target, chainPicks) {
		_, match, _ := strings.Cut(rule, " ")
		at, p, ok := r.config.family.parseFront(match)
		return counted{tag: r.shared.tag(portKey(addrKey(at.Addr()), p, at.Port())), packets: n}, ok && err == nil
	}
	for _, kind := range [...]string{chainCluster, chainLocal, chainExternal, chainFirewall} {
		if tag, ok := strings.CutPrefix(target, kind); ok {
			return counted{tag: tag, packets: n}, err == nil
		}
	}
	return counted{}, false
}

// metrics of the mode. A nil one counts nothing.
type metrics struct {
	mode     *Mode
	restores *prometheus.HistogramVec
	failures *prometheus.CounterVec
	repairs  *prometheus.CounterVec
}

var descConnections = prometheus.NewDesc("proxima_iptables_connections_total",
	"New connections, for UDP new flows, to a service port.", []string{"namespace", "service", "port"}, nil)

func newMetrics(m *Mode) *metrics {
	label := []string{"family"}
	return &metrics{
		mode: m,
		restores: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "proxima_iptables_restore_duration_seconds", Help: "Time to program one family's rules.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2, 12),
		}, label),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxima_iptables_restore_failures_total", Help: "Attempts to program rules that failed.",
		}, label),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxima_iptables_repairs_total", Help: "Repairs of rules that another program had changed.",
		}, label),
	}
}

func (x *metrics) restored(f family, took time.Duration, err error) {
	if x == nil {
		return
	}
	x.restores.WithLabelValues(f.String()).Observe(took.Seconds())
	if err != nil {
		x.failures.WithLabelValues(f.String()).Inc()
	}
}

func (x *metrics) repaired(f family) {
	if x != nil {
		x.repairs.WithLabelValues(f.String()).Inc()
	}
}

// Describe implements prometheus.Collector.
func (x *metrics) Describe(to chan<- *prometheus.Desc) {
	to <- descConnections
	x.restores.Describe(to)
	x.failures.Describe(to)
	x.repairs.Describe(to)
}

// Collect implements prometheus.Collector. The counters are read then, so a
// removed port leaves no series behind.
func (x *metrics) Collect(to chan<- prometheus.Metric) {
	for name, c := range x.mode.Counts() {
		to <- prometheus.MustNewConstMetric(descConnections, prometheus.CounterValue, float64(c.Connections),
			name.Namespace, name.Name, name.Port)
	}
	x.restores.Collect(to)
	x.failures.Collect(to)
	x.repairs.Collect(to)
}
