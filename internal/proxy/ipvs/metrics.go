package ipvs

import "github.com/prometheus/client_golang/prometheus"

var (
	descServices = prometheus.NewDesc("proxima_ipvs_services",
		"Services that IPVS should have: one for each list of endpoints.", nil, nil)
	descDestinations = prometheus.NewDesc("proxima_ipvs_destinations",
		"Destinations that services of IPVS should have.", nil, nil)
	descDraining = prometheus.NewDesc("proxima_ipvs_draining_services",
		"Services of IPVS with destinations that get no new connections, and go when they have none.", nil, nil)
	descRepairs = prometheus.NewDesc("proxima_ipvs_repairs_total",
		"Services, routes and kernel parameters that another program had changed and that were put back.", nil, nil)
	descFailures = prometheus.NewDesc("proxima_ipvs_comparison_failures_total",
		"Comparisons of IPVS with what it should have that failed; they are tried again.", nil, nil)
	descMissing = prometheus.NewDesc("proxima_ipvs_missing",
		"1 for each module that the kernel lacks, so that another mode carries the traffic in place of ipvs.", []string{"module", "instead"}, nil)
)

// Metrics are those of a status, read when they are scraped.
type Metrics struct{ Status func() Status }

// Describe implements prometheus.Collector.
func (Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descServices, descDestinations, descDraining, descRepairs, descFailures, descMissing} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m Metrics) Collect(to chan<- prometheus.Metric) {
	s := m.Status()
	if s.Instead != "" {
		for _, module := range s.Missing {
			to <- prometheus.MustNewConstMetric(descMissing, prometheus.GaugeValue, 1, module, s.Instead)
		}
		return
	}
	to <- prometheus.MustNewConstMetric(descServices, prometheus.GaugeValue, float64(s.Services))
	to <- prometheus.MustNewConstMetric(descDestinations, prometheus.GaugeValue, float64(s.Destinations))
	to <- prometheus.MustNewConstMetric(descDraining, prometheus.GaugeValue, float64(s.Draining))
	to <- prometheus.MustNewConstMetric(descRepairs, prometheus.CounterValue, float64(s.Repaired))
	to <- prometheus.MustNewConstMetric(descFailures, prometheus.CounterValue, float64(s.Failures))
}
