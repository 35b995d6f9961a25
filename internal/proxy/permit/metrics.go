package permit

import "github.com/prometheus/client_golang/prometheus"

var (
	connectionsDesc = prometheus.NewDesc("proxima_permission_connections_total",
		"Packets that begin connections to guarded ports of workloads of this node without a sidecar, also those that are sent again. Those of the node itself do not count.",
		[]string{"verdict"}, nil)
	portsDesc = prometheus.NewDesc("proxima_permission_ports",
		"Ports of workloads of this node without a sidecar to which only some clients may connect. Failed: the kernel did not take the newest rules; unable: the node cannot enforce them.",
		[]string{"state"}, nil)
)

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(to chan<- *prometheus.Desc) { to <- connectionsDesc; to <- portsDesc }

// Collect implements prometheus.Collector.
func (k *Keeper) Collect(to chan<- prometheus.Metric) {
	s := k.Status()
	to <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.CounterValue, float64(s.Admitted), "admitted")
	to <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.CounterValue, float64(s.Refused), "refused")
	is := "enforced"
	switch {
	case s.Unable != "":
		is = "unable"
	case s.Problem != "":
		is = "failed"
	}
	for _, state := range []string{"enforced", "failed", "unable"} {
		n := 0
		if state == is {
			n = s.Ports
		}
		to <- prometheus.MustNewConstMetric(portsDesc, prometheus.GaugeValue, float64(n), state)
	}
}
