package drain

import "github.com/prometheus/client_golang/prometheus"

var (
	descNodes = prometheus.NewDesc("proxima_drain_nodes",
		"Nodes whose workloads are taken out: draining, while connections or workloads have time left, and drained.", []string{"state"}, nil)
	descConnections = prometheus.NewDesc("proxima_drain_open_connections",
		"Open TCP connections at the workloads of draining nodes, as their agents count them.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *Controller) Describe(to chan<- *prometheus.Desc) {
	to <- descNodes
	to <- descConnections
}

// Collect implements prometheus.Collector.
func (c *Controller) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	m := c.metrics
	c.mu.Unlock()
	to <- prometheus.MustNewConstMetric(descNodes, prometheus.GaugeValue, float64(m.draining), "draining")
	to <- prometheus.MustNewConstMetric(descNodes, prometheus.GaugeValue, float64(m.drained), "drained")
	to <- prometheus.MustNewConstMetric(descConnections, prometheus.GaugeValue, float64(m.connections))
}
