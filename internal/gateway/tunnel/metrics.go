package tunnel

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
)

type metrics struct {
	connects    *prometheus.CounterVec
	reused      prometheus.Counter
	dropped     *prometheus.CounterVec
	idle        prometheus.Gauge
	retries     prometheus.Counter
	openSeconds prometheus.Histogram
	failures    *prometheus.CounterVec
	resets      *prometheus.CounterVec
	streams     prometheus.Gauge
	sent        prometheus.Counter
	received    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "proxima", Subsystem: "tunnel", Name: name, Help: help}
	}
	m := &metrics{
		connects: prometheus.NewCounterVec(prometheus.CounterOpts(
			opts("connections_total", "Connections to peers, by how the handshake went: full, resumed, failed.")), []string{"handshake"}),
		reused: prometheus.NewCounter(prometheus.CounterOpts(opts("pool_reused_total", "Streams that used a pooled connection."))),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts(
			opts("pool_dropped_total", "Pooled connections that were closed: stale, idle, retired, closed.")), []string{"reason"}),
		idle: prometheus.NewGauge(prometheus.GaugeOpts(opts("pool_idle_connections", "Pooled connections without a stream."))),
		retries: prometheus.NewCounter(prometheus.CounterOpts(
			opts("retries_total", "Attempts with another peer, after one failed before it accepted the stream."))),
		openSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "proxima", Subsystem: "tunnel", Name: "open_seconds", Help: "Time until a peer accepted a stream, over all attempts.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8),
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts(
			opts("open_failures_total", "Streams that no peer accepted, by the reason of the last attempt.")), []string{"reason"}),
		resets: prometheus.NewCounterVec(prometheus.CounterOpts(
			opts("resets_total", "Redirected connections that were reset, by reason.")), []string{"reason"}),
		streams:  prometheus.NewGauge(prometheus.GaugeOpts(opts("streams", "Redirected connections that are open."))),
		sent:     prometheus.NewCounter(prometheus.CounterOpts(opts("sent_bytes_total", "Bytes of clients that were sent to peers."))),
		received: prometheus.NewCounter(prometheus.CounterOpts(opts("received_bytes_total", "Bytes of peers that were passed to clients."))),
	}
	for _, r := range frame.Reasons() {
		m.failures.WithLabelValues(r.String())
		m.resets.WithLabelValues(r.String())
	}
	if reg != nil {
		reg.MustRegister(m.connects, m.reused, m.dropped, m.idle, m.retries, m.openSeconds, m.failures, m.resets, m.streams, m.sent, m.received)
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

func (m *metrics) failed(r frame.Reason) { m.failures.WithLabelValues(label(r)).Inc() }
func (m *metrics) reset(r frame.Reason)  { m.resets.WithLabelValues(label(r)).Inc() }

func (m *metrics) connected(resumed bool) {
	if resumed {
		m.connects.WithLabelValues("resumed").Inc()
		return
	}
	m.connects.WithLabelValues("full").Inc()
}
