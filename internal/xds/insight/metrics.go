package insight

import "github.com/prometheus/client_golang/prometheus"

var (
	descConnected = prometheus.NewDesc("proxima_xds_insight_connected_proxies", "Proxies that are connected to this instance.", nil, nil)
	descRejecting = prometheus.NewDesc("proxima_xds_insight_rejecting_proxies", "Those of them that reject a resource.", nil, nil)
	descWrites    = prometheus.NewDesc("proxima_xds_insight_writes_total", "Insights that were written, by outcome.", []string{"outcome"}, nil)
)

// Describe implements prometheus.Collector.
func (r *Recorder) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descConnected, descRejecting, descWrites} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (r *Recorder) Collect(to chan<- prometheus.Metric) {
	connected, rejecting := 0, 0
	r.mu.Lock()
	for _, p := range r.proxies {
		if p.connection == nil || !p.connection.ended.IsZero() {
			continue
		}
		connected++
		if len(p.connection.rejected) > 0 {
			rejecting++
		}
	}
	r.mu.Unlock()
	to <- prometheus.MustNewConstMetric(descConnected, prometheus.GaugeValue, float64(connected))
	to <- prometheus.MustNewConstMetric(descRejecting, prometheus.GaugeValue, float64(rejecting))
	to <- prometheus.MustNewConstMetric(descWrites, prometheus.CounterValue, float64(r.writes.Load()), "written")
	to <- prometheus.MustNewConstMetric(descWrites, prometheus.CounterValue, float64(r.failures.Load()), "failed")
}
