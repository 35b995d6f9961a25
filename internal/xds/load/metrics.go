package load

import "github.com/prometheus/client_golang/prometheus"

var (
	descStreams = metric("streams", "Streams of proxies that report their load.")
	descReports = metric("reports_total",
		"Load reports of proxies, by what became of them: accepted, refused for good, excessive (more than one a second), and attempts "+
			"that are repeated with the next report.", "outcome")
	descClusters = metric("clusters_total",
		"Clusters in them, by kind: of a service port, of something else (a proxy's own ports, the outside), and with counts that cannot be.", "kind")
	descCounted = metric("issued_total", "What proxies issued to service ports, by unit: connections (TCP) or requests (HTTP).", "unit")
)

func metric(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("proxima_xds_load_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descStreams, descReports, descClusters, descCounted} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.MustNewConstMetric(descStreams, prometheus.GaugeValue, float64(s.stats.streams.Load()))
	counter := func(d *prometheus.Desc, n uint64, label string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), label)
	}
	counter(descReports, s.stats.accepted.Load(), "accepted")
	counter(descReports, s.stats.refused.Load(), "refused")
	counter(descReports, s.stats.excessive.Load(), "excessive")
	counter(descReports, s.stats.delayed.Load(), "repeated")
	counter(descClusters, s.stats.services.Load(), "service")
	counter(descClusters, s.stats.others.Load(), "other")
	counter(descClusters, s.stats.implausible.Load(), "implausible")
	counter(descCounted, s.stats.connections.Load(), "connections")
	counter(descCounted, s.stats.requests.Load(), "requests")
}
