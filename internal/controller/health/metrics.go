package health

import "github.com/prometheus/client_golang/prometheus"

var (
	descLeases = prometheus.NewDesc("proxima_health_leases",
		"Leases of nodes and workloads that are kept up, or were until just now.", nil, nil)
	descLate = prometheus.NewDesc("proxima_health_late_leases", "Leases that have missed their renewals.", nil, nil)
	descHeld = prometheus.NewDesc("proxima_health_held_expiries", "Leases that ran out together with others and are not marked yet.",
		nil, nil)
	descMarked = prometheus.NewDesc("proxima_health_marked_total",
		"Nodes and workloads marked not ready because their lease ran out.", nil, nil)
)

// Describe implements prometheus.Collector.
func (h *Controller) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descLeases, descLate, descHeld, descMarked} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (h *Controller) Collect(to chan<- prometheus.Metric) {
	s := h.State()
	to <- prometheus.MustNewConstMetric(descLeases, prometheus.GaugeValue, float64(s.Leases))
	to <- prometheus.MustNewConstMetric(descLate, prometheus.GaugeValue, float64(s.Late))
	to <- prometheus.MustNewConstMetric(descHeld, prometheus.GaugeValue, float64(len(s.Held)))
	to <- prometheus.MustNewConstMetric(descMarked, prometheus.CounterValue, float64(h.marked.Load()))
}
