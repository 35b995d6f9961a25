package pulsar

import "github.com/prometheus/client_golang/prometheus"

type meters struct {
	delivered, acknowledged, refused prometheus.Counter
	now                              prometheus.Collector
}

func newMeters(s *Server) *meters {
	return &meters{
		delivered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "proxima_pulsar_messages_total", Help: "Messages that consumers of Pulsar were sent.",
		}),
		acknowledged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "proxima_pulsar_acknowledged_total", Help: "Messages that consumers of Pulsar acknowledged.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "proxima_pulsar_refused_total", Help: "Requests of clients of Pulsar that were refused.",
		}),
		now: &gauges{
			s:             s,
			connections:   prometheus.NewDesc("proxima_pulsar_connections", "Clients of Pulsar that are connected.", nil, nil),
			consumers:     prometheus.NewDesc("proxima_pulsar_consumers", "Consumers of Pulsar that are connected.", nil, nil),
			subscriptions: prometheus.NewDesc("proxima_pulsar_subscriptions", "Subscriptions of Pulsar that have consumers.", nil, nil),
			topics:        prometheus.NewDesc("proxima_pulsar_topics", "Topics of Pulsar that this instance of several has claimed, and serves alone.", nil, nil),
		},
	}
}

type gauges struct {
	s                                             *Server
	connections, consumers, subscriptions, topics *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.connections
	ch <- g.consumers
	ch <- g.subscriptions
	ch <- g.topics
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	now := g.s.Status()
	ch <- prometheus.MustNewConstMetric(g.connections, prometheus.GaugeValue, float64(now.Connections))
	ch <- prometheus.MustNewConstMetric(g.consumers, prometheus.GaugeValue, float64(now.Consumers))
	ch <- prometheus.MustNewConstMetric(g.subscriptions, prometheus.GaugeValue, float64(now.Subscriptions))
	ch <- prometheus.MustNewConstMetric(g.topics, prometheus.GaugeValue, float64(now.Topics))
}
