package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// collector reads the agent's figures when it is scraped. Where kube-proxy has
// a metric of the same meaning, its name is used.
type collector struct{ agent *Agent }

var (
	descDuration        = desc("kubeproxy_sync_proxy_rules_duration_seconds", "Duration of one call of the mode.")
	descLastSync        = desc("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "When changes were last in place.")
	descLastQueued      = desc("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "When a change last arrived.")
	descServiceChanges  = desc("kubeproxy_sync_proxy_rules_service_changes_total", "Services received as new, different or gone.")
	descEndpointChanges = desc("kubeproxy_sync_proxy_rules_endpoint_changes_total", "Endpoint slices received as new, different or gone.")
	descLatency         = desc("proxima_node_change_applied_seconds", "Time from the arrival of a change to its being in place.")
	descProgramming     = desc("kubeproxy_network_programming_duration_seconds", "Time from the trigger time of an endpoint slice until its change is in place.")
	descPending         = desc("proxima_node_pending_service_ports", "Service ports whose latest change is not in place.")
	descFailures        = desc("proxima_node_apply_failures_total", "Calls of the mode that failed, wholly or for some service ports.")
	descPorts           = desc("proxima_node_service_ports", "Service ports in place.")
)

func desc(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descDuration, descLastSync, descLastQueued, descServiceChanges, descEndpointChanges,
		descLatency, descProgramming, descPending, descFailures, descPorts,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	a := c.agent
	a.mu.Lock()
	s := a.stats
	s.latency, s.duration, s.programming = s.latency.clone(), s.duration.clone(), s.programming.clone()
	pending, ports := len(a.failed)+len(a.untried()), len(a.actual)
	a.mu.Unlock()

	value := func(d *prometheus.Desc, t prometheus.ValueType, v float64) {
		to <- prometheus.MustNewConstMetric(d, t, v)
	}
	to <- s.duration.metric(descDuration)
	to <- s.latency.metric(descLatency)
	to <- s.programming.metric(descProgramming)
	value(descLastSync, prometheus.GaugeValue, seconds(s.lastSync))
	value(descLastQueued, prometheus.GaugeValue, seconds(s.lastQueued))
	value(descServiceChanges, prometheus.CounterValue, float64(s.serviceChanges))
	value(descEndpointChanges, prometheus.CounterValue, float64(s.sliceChanges))
	value(descPending, prometheus.GaugeValue, float64(pending))
	value(descFailures, prometheus.CounterValue, float64(s.failures))
	value(descPorts, prometheus.GaugeValue, float64(ports))
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

func (h *Histogram) metric(d *prometheus.Desc) prometheus.Metric {
	buckets := map[float64]uint64{}
	var n uint64
	for i, b := range h.Bounds {
		n += h.Counts[i]
		buckets[b.Seconds()] = n
	}
	return prometheus.MustNewConstHistogram(d, h.Count(), h.Sum.Seconds(), buckets)
}
