package ebpf

import "github.com/prometheus/client_golang/prometheus"

// metrics of the layer. Gauges are read when they are scraped.
type metrics struct {
	mode                           *Mode
	apply                          prometheus.Histogram
	failures, repairs, generations prometheus.Counter
}

var (
	descConnections = prometheus.NewDesc("proxima_ebpf_connections_total",
		"New connections to a service port that got an endpoint at connect.", []string{"namespace", "service", "port"}, nil)
	descAddresses = prometheus.NewDesc("proxima_ebpf_addresses",
		"Virtual addresses of TCP service ports, by whether the layer translates them or they pass.", []string{"way"}, nil)
	descTranslating = prometheus.NewDesc("proxima_ebpf_translating",
		"1 while the layer translates; 0: all connections pass, and the mode below serves them.", nil, nil)
)

func newMetrics(m *Mode) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "proxima_ebpf_" + name, Help: help})
	}
	return &metrics{
		mode: m,
		apply: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "proxima_ebpf_apply_duration_seconds", Help: "Time that a change took in the layer, after the mode below had it.",
			Buckets: prometheus.ExponentialBuckets(0.000001, 4, 10), // 1 µs to 0.26 s
		}),
		failures:    counter("failures_total", "Times that the layer could not be loaded or attached; connections pass, and it is tried again."),
		repairs:     counter("repairs_total", "Links, pins and addresses that another program removed and that were put back."),
		generations: counter("generations_total", "Sets of maps that were made."),
	}
}

func (m *metrics) own() []prometheus.Collector {
	return []prometheus.Collector{m.apply, m.failures, m.repairs, m.generations}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.own() {
		c.Describe(to)
	}
	to <- descConnections
	to <- descAddresses
	to <- descTranslating
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.own() {
		c.Collect(to)
	}
	for name, n := range m.mode.counts() {
		to <- prometheus.MustNewConstMetric(descConnections, prometheus.CounterValue, float64(n[0]+n[1]), name.Namespace, name.Name, name.Port)
	}
	s := m.mode.Status()
	translating := 0.0
	if s.Passing == "" {
		translating = 1
	}
	to <- prometheus.MustNewConstMetric(descTranslating, prometheus.GaugeValue, translating)
	to <- prometheus.MustNewConstMetric(descAddresses, prometheus.GaugeValue, float64(s.Translated), "translated")
	to <- prometheus.MustNewConstMetric(descAddresses, prometheus.GaugeValue, float64(s.Passes), "passes")
}
