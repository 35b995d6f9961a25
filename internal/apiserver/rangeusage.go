package apiserver

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/controller/ipam"
)

// RangeUsage is how much of each range of ClusterIPs is taken, and of that of node ports, which
// is the last. Nil: the server has no Services.
func (s *Server) RangeUsage() []ipam.Usage {
	if s.services == nil {
		return nil
	}
	return s.services.usage()
}

func (r *services) usage() []ipam.Usage {
	return append(r.addresses.Usage(), r.ports.Usage())
}

// rangeUsage is RangeUsage as metrics.
type rangeUsage struct{ *services }

var (
	rangeSizeDesc = prometheus.NewDesc("proxima_service_range_size",
		"Addresses of a range of ClusterIPs, or node ports, that Services can have.", []string{"range"}, nil)
	rangeTakenDesc = prometheus.NewDesc("proxima_service_range_taken",
		"Addresses of a range of ClusterIPs, or node ports, that Services have.", []string{"range"}, nil)
	rangeBandDesc = prometheus.NewDesc("proxima_service_range_static_band",
		"Addresses of a range of ClusterIPs, or node ports, that are handed out last, so that who chooses one finds it free.", []string{"range"}, nil)
)

// Describe implements prometheus.Collector.
func (rangeUsage) Describe(to chan<- *prometheus.Desc) {
	to <- rangeSizeDesc
	to <- rangeTakenDesc
	to <- rangeBandDesc
}

// Collect implements prometheus.Collector.
func (r rangeUsage) Collect(to chan<- prometheus.Metric) {
	for _, u := range r.usage() {
		to <- prometheus.MustNewConstMetric(rangeSizeDesc, prometheus.GaugeValue, float64(u.Size), u.Range)
		to <- prometheus.MustNewConstMetric(rangeTakenDesc, prometheus.GaugeValue, float64(u.Taken), u.Range)
		to <- prometheus.MustNewConstMetric(rangeBandDesc, prometheus.GaugeValue, float64(u.StaticBand), u.Range)
	}
}
