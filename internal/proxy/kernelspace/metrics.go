package kernelspace

import "github.com/prometheus/client_golang/prometheus"

// metrics of the mode, as a Collector.
type metrics struct {
	mode                                  *Mode
	failures                              prometheus.Counter
	balancers, leftovers, network, limits *prometheus.Desc
}

func newMetrics(m *Mode) *metrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("proxima_kernelspace_"+name, help, nil, nil)
	}
	return &metrics{
		mode: m,
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "proxima_kernelspace_failures_total", Help: "Calls of HNS that failed, and were tried again.",
		}),
		balancers: desc("load_balancers", "Load balancers of this agent in HNS."),
		leftovers: desc("leftover_load_balancers", "Load balancers that HNS did not delete yet."),
		network:   desc("network", "Whether the HNS network of --network-name is there (1) or not (0)."),
		limits:    desc("limited_service_ports", "Service ports of which HNS cannot do something; status names them."),
	}
}

// Describe implements prometheus.Collector.
func (c *metrics) Describe(out chan<- *prometheus.Desc) {
	c.failures.Describe(out)
	for _, d := range []*prometheus.Desc{c.balancers, c.leftovers, c.network, c.limits} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *metrics) Collect(out chan<- prometheus.Metric) {
	c.failures.Collect(out)
	m := c.mode
	m.mu.Lock()
	defer m.mu.Unlock()
	network, limited := 0, 0
	if m.network != nil {
		network = 1
	}
	for _, p := range m.ports {
		if len(p.plan.limits) > 0 {
			limited++
		}
	}
	for d, v := range map[*prometheus.Desc]int{c.balancers: len(m.have), c.leftovers: len(m.leftovers), c.network: network, c.limits: limited} {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v))
	}
}
