package zoneshift

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

var descEnd = prometheus.NewDesc("proxima_zone_shift_end_timestamp_seconds",
	"When a zone shift that is in effect ends by itself, in seconds since 1970; kind is zone or node, name that of the zone or node.",
	[]string{"kind", "name"}, nil)

// Describe implements prometheus.Collector.
func (c *Controller) Describe(to chan<- *prometheus.Desc) { to <- descEnd }

// Collect implements prometheus.Collector.
func (c *Controller) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	ends := c.ends // replaced as a whole, never changed
	c.mu.Unlock()
	for target, end := range ends {
		kind, name, _ := strings.Cut(target, " ")
		to <- prometheus.MustNewConstMetric(descEnd, prometheus.GaugeValue, float64(end.Unix()), kind, name)
	}
}
