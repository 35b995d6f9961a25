package topology

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/planner"
)

// metrics are those of planned Services: their number bounds that of the series. The
// struct is constant.
type metrics struct {
	inZone, overload, limit, cost, gap, age, replans, demand, services *prometheus.Desc
	utilisation, long                                                  *prometheus.Desc
	hintsInZone, hintsOverload                                         *prometheus.Desc
}

// names of the labels that distinguish planned units.
func unitLabels(more ...string) []string {
	return append([]string{"namespace", "service", "ports", "family"}, more...)
}

func newMetrics() metrics {
	of := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("proxima_topology_"+name, help, labels, nil)
	}
	return metrics{
		inZone: of(
			"in_zone_ratio",
			"Share of connections that stay in their zone, by the published plan under the present demand.",
			unitLabels()...),
		overload: of(
			"overload_ratio",
			"Load of the busiest endpoint as a multiple of the mean, by the published plan under the present demand.",
			unitLabels()...),
		limit: of("overload_limit_ratio", "Load that no endpoint is planned above, as a multiple of the mean.", unitLabels()...),
		cost:  of("cost", "Mean cost of a connection by the published plan under the present demand.", unitLabels()...),
		gap: of(
			"gap_points",
			"How much worse the published plan is than the best one, in points; it is replaced above 3.",
			unitLabels()...),
		age:         of("plan_age_seconds", "Time since the plan was published.", unitLabels()...),
		replans:     of("replans_total", "Plans published, by reason.", unitLabels("reason")...),
		demand:      of("demand_connections_per_second", "Measured demand; 0 where it is guessed.", unitLabels()...),
		hintsInZone: of("hints_in_zone_ratio", "Share of connections that stay in their zone where only hints are read.", unitLabels()...),
		hintsOverload: of(
			"hints_overload_ratio",
			"Load of the busiest endpoint as a multiple of the mean where only hints are read.",
			unitLabels()...),
		utilisation: of(
			"utilisation_ratio",
			"Utilisation of the endpoints of the most loaded zone, by the published plan under the present demand: measured where the Service states "+
				"the capacity of an endpoint, for autoscalers; else what it states of all endpoints, times the load of that zone.",
			unitLabels()...),
		long: of(
			"long_connections",
			"1 where the plan cannot move connections, as they stay open (condition LongConnections); else 0.",
			unitLabels()...),
		services: of("services", "Services with a topology mode, by mode and by the level that chose it: Service, Namespace, Mesh or ControlPlane.", "mode", "level"),
	}
}

func (m metrics) all() []*prometheus.Desc {
	return []*prometheus.Desc{m.inZone, m.overload, m.limit, m.cost, m.gap, m.age, m.replans, m.demand, m.hintsInZone,
		m.hintsOverload, m.services, m.utilisation, m.long}
}

// Describe implements prometheus.Collector.
func (c *Controller) Describe(out chan<- *prometheus.Desc) {
	for _, d := range newMetrics().all() {
		out <- d
	}
}

// Collect implements prometheus.Collector. Custom heuristics count as one mode, as
// their names are anybody's. Series of plans are those of the instance that makes them.
func (c *Controller) Collect(out chan<- prometheus.Metric) {
	m := newMetrics()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if c.config.Catalog != nil {
		for _, n := range c.Modes() {
			if n.Level != LevelNone {
				gauge(m.services, float64(n.Services), n.Mode, string(n.Level))
			}
		}
	}
	now := c.clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.entries {
		for _, u := range e.units {
			if u.in.frame == nil {
				continue
			}
			labels := []string{key.Namespace, key.Name, u.name.Ports, string(u.name.Family)}
			gauge(m.inZone, u.now.InZone, labels...)
			gauge(m.overload, u.now.Worst, labels...)
			gauge(m.limit, u.limit, labels...)
			gauge(m.cost, u.now.Cost, labels...)
			gauge(m.gap, u.gap, labels...)
			gauge(m.age, now.Sub(u.published).Seconds(), labels...)
			gauge(m.demand, u.rate, labels...)
			if u.utilisation > 0 {
				gauge(m.utilisation, u.utilisation, labels...)
			}
			gauge(m.long, map[bool]float64{true: 1}[u.long != ""], labels...)
			for reason := planner.EndpointsChanged; reason <= planner.LastingGap; reason++ {
				out <- prometheus.MustNewConstMetric(m.replans, prometheus.CounterValue, float64(u.replans[reason]), append(labels, reason.String())...)
			}
			if h := c.hints[key]; h != nil && h.groups[u.name] != nil && h.groups[u.name].reason == HintsFound {
				gauge(m.hintsInZone, h.groups[u.name].metrics.InZone, labels...)
				gauge(m.hintsOverload, h.groups[u.name].metrics.Worst, labels...)
			}
		}
	}
}
