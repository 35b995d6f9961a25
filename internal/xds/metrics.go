package xds

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/delta"
)

type metrics struct {
	responses, bytes, refusals *prometheus.CounterVec
}

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

func label(typ string) string {
	short := typ[strings.LastIndexByte(typ, '.')+1:]
	for _, t := range types {
		if t == short {
			return t
		}
	}
	return "other"
}

func (m *metrics) sent(f *delta.Frame) {
	m.responses.WithLabelValues(label(f.Type)).Inc()
	m.bytes.WithLabelValues(label(f.Type)).Add(float64(len(f.Data)))
}

func (m *metrics) rejected(typ string) { m.refusals.WithLabelValues(label(typ)).Inc() }
