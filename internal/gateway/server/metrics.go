package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
)

type metrics struct {
	connections    prometheus.Gauge
	handshakes     *prometheus.CounterVec
	streams        prometheus.Gauge
	refused        *prometheus.CounterVec
	resets         *prometheus.CounterVec
	received       prometheus.Counter
	sent           prometheus.Counter
	connectSeconds prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, role string) *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{
			Namespace: "proxima", Subsystem: "gateway", Name: name, Help: help, ConstLabels: prometheus.Labels{"role": role},
		}
	}
	m := &metrics{
		connections: prometheus.NewGauge(prometheus.GaugeOpts(opts("connections", "Connections that are open."))),
		handshakes: prometheus.NewCounterVec(prometheus.CounterOpts(opts("handshakes_total",
			"Handshakes by result: full, resumed, passthrough, passthrough-refused, failed, overloaded.")), []string{"result"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts(opts("streams", "Streams that are open."))),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts(
			opts("refused_total", "Streams that were refused, by reason.")), []string{"reason"}),
		resets: prometheus.NewCounterVec(prometheus.CounterOpts(
			opts("resets_total", "Streams that were reset, by reason.")), []string{"reason"}),
		received: prometheus.NewCounter(prometheus.CounterOpts(
			opts("received_bytes_total", "Bytes of streams that came from peers."))),
		sent: prometheus.NewCounter(prometheus.CounterOpts(opts("sent_bytes_total", "Bytes of streams that were sent to peers."))),
		connectSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "proxima", Subsystem: "gateway", Name: "connect_seconds", Help: "Time to connect the other side of a stream.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8), ConstLabels: prometheus.Labels{"role": role},
		}),
	}
	for _, r := range frame.Reasons() {
		m.refused.WithLabelValues(r.String())
		m.resets.WithLabelValues(r.String())
	}
	if reg != nil {
		reg.MustRegister(m.connections, m.handshakes, m.streams, m.refused, m.resets, m.received, m.sent, m.connectSeconds)
	}
	return m
}

// label of a reason: a peer's unknown ones are one.
func label(r frame.Reason) string {
	if int(r) >= len(frame.Reasons()) {
		r = frame.Unspecified
	}
	return r.String()
}

func (m *metrics) handshake(resumed bool) {
	if resumed {
		m.handshakes.WithLabelValues("resumed").Inc()
		return
	}
	m.handshakes.WithLabelValues("full").Inc()
}
