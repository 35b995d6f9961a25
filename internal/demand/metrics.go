package demand

import (
	"github.com/prometheus/client_golang/prometheus"
)

var (
	descReports = metric("reports_total", "Reports of agents, by what became of them.", "outcome")
	descMissed  = metric("missed_reports_total",
		"Reports that are missing in the sequence of an agent: another control plane has them, or the agent gave them up.")
	descLost        = metric("lost_connections_total", "Reported connections that were not counted, as their service port is not known.")
	descConnections = metric("connections_total", "New connections in all reports that were taken.")
	descBytes       = metric("bytes_total", "Bytes in all reports that were taken; in is from clients.", "direction")
	descAgents      = metric("agents", "Agents that have reported in the last 40 seconds, and those that are silent for longer.", "state")
	descProxies     = metric("proxies", "Proxies that have reported in the last 40 seconds, and those that are silent for longer.", "state")
	descRequests    = metric("requests_total", "HTTP requests in all reports of proxies that were taken; they are in the connections, too.")
	descOldest      = metric("oldest_report_age_seconds", "Time since the report of the agent that is silent the longest.")
	descAge         = metric("silent_agent_age_seconds",
		"Time since the last report of an agent that is silent; of the 20 that are so the longest.", "node")
	descPorts    = metric("service_ports", "Service ports whose demand is kept.")
	descSteps    = metric("steps_total", "Steps of the estimates.")
	descStepTime = metric("step_seconds_total", "Time spent in them.")
)

func metric(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("proxima_demand_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (a *Aggregator) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descReports, descMissed, descLost, descConnections, descBytes, descAgents, descProxies, descRequests, descOldest, descAge, descPorts, descSteps, descStepTime,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (a *Aggregator) Collect(to chan<- prometheus.Metric) {
	c, s := a.Coverage(), a.Stats()
	value := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	for outcome, n := range map[string]uint64{"accepted": s.Accepted, "duplicate": s.Duplicate, "refused": s.Refused, "early": s.Early} {
		value(descReports, prometheus.CounterValue, float64(n), outcome)
	}
	value(descMissed, prometheus.CounterValue, float64(s.Missed))
	value(descLost, prometheus.CounterValue, float64(s.UnknownPort))
	value(descConnections, prometheus.CounterValue, float64(s.Total.Connections))
	value(descBytes, prometheus.CounterValue, float64(s.Total.BytesIn), "in")
	value(descBytes, prometheus.CounterValue, float64(s.Total.BytesOut), "out")
	value(descAgents, prometheus.GaugeValue, float64(c.Reporting), "reporting")
	value(descAgents, prometheus.GaugeValue, float64(c.Silent), "silent")
	value(descProxies, prometheus.GaugeValue, float64(c.Proxies), "reporting")
	value(descProxies, prometheus.GaugeValue, float64(c.SilentProxies), "silent")
	value(descRequests, prometheus.CounterValue, float64(s.Requests))
	value(descOldest, prometheus.GaugeValue, c.Oldest.Seconds())
	for _, g := range c.SilentNodes {
		value(descAge, prometheus.GaugeValue, g.Age.Seconds(), g.Node)
	}
	value(descPorts, prometheus.GaugeValue, float64(c.Ports))
	value(descSteps, prometheus.CounterValue, float64(s.Steps))
	value(descStepTime, prometheus.CounterValue, s.StepTime.Seconds())
}
