package dns

import (
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// transport that a question came by.
type transport uint8

const (
	overUDP transport = iota
	overTCP
	transports
)

// source of an answer.
type source uint8

const (
	sourceCluster source = iota
	sourceForward
	sourceNone
	sources
)

// rcodes with a label of their own; RFC 1035 and its successors use the first dozen.
const rcodes = 24

// metrics are resolved once: a look-up by labels costs as much as an answer.
type metrics struct {
	requests       [transports][sources][rcodes]prometheus.Counter
	dropped        prometheus.Counter
	overload       prometheus.Counter
	cacheHits      prometheus.Counter
	failures       prometheus.Counter
	loops          prometheus.Gauge
	forwardSeconds prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, captured func() float64) *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "proxima", Subsystem: "dns", Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts(opts(name, help)))
	}
	m := &metrics{
		dropped:   counter("dropped_total", "Packets that are no questions."),
		overload:  counter("overload_total", "Questions that failed because too many were under way."),
		cacheHits: counter("forward_cache_hits_total", "Questions for others' names answered from the cache."),
		failures:  counter("upstream_failures_total", "Exchanges with an upstream resolver that failed."),
		loops:     prometheus.NewGauge(prometheus.GaugeOpts(opts("loops", "Upstream resolvers that ask this server in turn."))),
		forwardSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "proxima", Subsystem: "dns", Name: "forward_seconds", Help: "Time to answer names of others.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8),
		}),
	}
	requests := prometheus.NewCounterVec(prometheus.CounterOpts(opts("requests_total", "Questions answered.")), []string{"transport", "source", "rcode"})
	for t, transport := range []string{"udp", "tcp"} {
		for s, source := range []string{"cluster", "forward", "none"} {
			for rcode := range rcodes {
				name, ok := dns.RcodeToString[rcode]
				if !ok {
					name = "other"
				}
				m.requests[t][s][rcode] = requests.WithLabelValues(transport, source, name)
			}
		}
	}
	if reg != nil {
		reg.MustRegister(requests, prometheus.NewCounterFunc(prometheus.CounterOpts(
			opts("captured_total", "Questions by UDP, and connections, that came by capture of port 53.")), captured), m.dropped, m.overload, m.cacheHits, m.failures, m.loops, m.forwardSeconds)
	}
	return m
}

func (m *metrics) count(over transport, from source, rcode int) {
	if rcode < 0 || rcode >= rcodes {
		rcode = rcodes - 1
	}
	m.requests[over][from][rcode].Inc()
}
