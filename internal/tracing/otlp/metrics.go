package otlp

import "github.com/prometheus/client_golang/prometheus"

var (
	sentDesc = prometheus.NewDesc("proxima_trace_spans_sent_total",
		"Spans of changes that the collector of --otlp-endpoint took.", nil, nil)
	droppedDesc = prometheus.NewDesc("proxima_trace_spans_dropped_total",
		"Spans of changes that were lost: reason queue, as the queue was full, or endpoint, as the collector did not take them.", []string{"reason"}, nil)
	queuedDesc = prometheus.NewDesc("proxima_trace_spans_queued", "Spans of changes that wait to be sent.", nil, nil)
)

// collector reads the counts when metrics are collected.
type collector struct{ *Exporter }

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	to <- sentDesc
	to <- droppedDesc
	to <- queuedDesc
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	count := func(desc *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
	}
	count(sentDesc, c.sent.Load())
	count(droppedDesc, c.full.Load(), "queue")
	count(droppedDesc, c.failed.Load(), "endpoint")
	to <- prometheus.MustNewConstMetric(queuedDesc, prometheus.GaugeValue, float64(len(c.queue)))
}
