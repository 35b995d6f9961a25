package kernelspace

import "github.com/prometheus/client_golang/prometheus"

// metrics of the mode, as a Collector.
type metrics struct {
	failures prometheus.Counter
	gauges   []prometheus.Collector
}

func newMetrics(m *Mode) *metrics {
	locked := func(value func() int) func() float64 {
		return func() float64 {
			m.mu.Lock()
			defer m.mu.Unlock()
			return float64(value())
		}
	}
	return &metrics{
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "proxima_kernelspace_failures_total", Help: "Synchronisations and calls of HNS that failed, and were tried again.",
		}),
		gauges: []prometheus.Collector{
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "proxima_kernelspace_load_balancers", Help: "Load balancers of this agent in HNS.",
			}, locked(func() int { return len(m.have) })),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "proxima_kernelspace_leftover_load_balancers", Help: "Load balancers that HNS did not delete yet.",
			}, locked(func() int { return len(m.leftovers) })),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "proxima_kernelspace_network", Help: "Whether the HNS network of --network-name is there (1) or not (0).",
			}, locked(m.networks)),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "proxima_kernelspace_limited_service_ports", Help: "Service ports of which HNS cannot do something; status names them.",
			}, locked(m.limited)),
		},
	}
}

// networks that are there: 1, or 0.
func (m *Mode) networks() int {
	if m.network == nil {
		return 0
	}
	return 1
}

// limited is the number of service ports with limits.
func (m *Mode) limited() (n int) {
	for _, p := range m.ports {
		if len(p.plan.limits) > 0 {
			n++
		}
	}
	return n
}

// Describe implements prometheus.Collector.
func (c *metrics) Describe(out chan<- *prometheus.Desc) {
	c.failures.Describe(out)
	for _, g := range c.gauges {
		g.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (c *metrics) Collect(out chan<- prometheus.Metric) {
	c.failures.Collect(out)
	for _, g := range c.gauges {
		g.Collect(out)
	}
}
