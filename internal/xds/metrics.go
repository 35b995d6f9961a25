package xds

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/delta"
)

type metrics struct {
	responses, bytes, refusals *prometheus.CounterVec
	// byLabel are responses and bytes by the value of their label: each response counts in both.
	byLabel map[string]counters
}

type counters struct{ responses, bytes prometheus.Counter }

func newMetrics(r prometheus.Registerer, s *Server) *metrics {
	m := &metrics{
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxima_xds_responses_total", Help: "Responses that proxies were sent, by type of resource.",
		}, []string{"type"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxima_xds_sent_bytes_total", Help: "Payload of responses that proxies were sent, by type of resource.",
		}, []string{"type"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxima_xds_refusals_total", Help: "Responses that proxies refused, by type of resource.",
		}, []string{"type"}),
	}
	m.byLabel = map[string]counters{}
	for _, t := range append(types[:], otherType) {
		m.byLabel[t] = counters{m.responses.WithLabelValues(t), m.bytes.WithLabelValues(t)}
	}
	if r == nil {
		return m
	}
	r.MustRegister(m.responses, m.bytes, m.refusals, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "proxima_xds_streams", Help: "Proxies and gRPC programs that are connected.",
	}, func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(len(s.streams))
	}))
	return m
}

// types that have a label of their own; clients may ask for any others.
var types = [...]string{"Cluster", "ClusterLoadAssignment", "Listener", "RouteConfiguration", "Secret"}

// otherType is the label of those.
const otherType = "other"

func label(typ string) string {
	short := typ[strings.LastIndexByte(typ, '.')+1:]
	for _, t := range types {
		if t == short {
			return t
		}
	}
	return otherType
}

func (m *metrics) sent(f *delta.Frame) {
	of := m.byLabel[label(f.Type)]
	of.responses.Inc()
	of.bytes.Add(float64(len(f.Data)))
}

func (m *metrics) rejected(typ string) { m.refusals.WithLabelValues(label(typ)).Inc() }
