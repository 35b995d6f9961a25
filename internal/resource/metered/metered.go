// Package metered measures what is asked of a resource.Client.
//
// It owns the metrics of controllers' calls. Enter at New. It changes nothing
// about what the client does and answers.
//
//	proxima_resource_call_seconds{verb}         histogram, failed calls too
//	proxima_resource_calls_total{verb,reason}   reason: ok, or that of Kubernetes' Status, or error
package metered

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Meter measures the clients that it wraps, all together. It is a collector, to
// be registered by the caller.
type Meter struct {
	seconds *prometheus.HistogramVec
	calls   *prometheus.CounterVec
}

var _ prometheus.Collector = (*Meter)(nil)

// New makes a meter.
func New() *Meter {
	const namespace, subsystem = "proxima", "resource"
	m := &Meter{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "call_seconds",
			Help: "How long controllers' calls took, failed ones too; of watches the beginning.",
			// From a read in memory to a disk that hangs: 10 µs to 10 s.
			Buckets: prometheus.ExponentialBuckets(10e-6, 4, 11),
		}, []string{"verb"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "calls_total",
			Help: "Controllers' calls by outcome.",
		}, []string{"verb", "reason"}),
	}
	for _, verb := range resource.Verbs() { // so that rates begin at 0
		m.seconds.WithLabelValues(string(verb))
		m.calls.WithLabelValues(string(verb), "ok")
	}
	return m
}

// Wrap is a resource.Wrapper.
func (m *Meter) Wrap(c resource.Client) resource.Client {
	return resource.Intercept(func(ctx context.Context, call resource.Call, next func(context.Context) error) error {
		begin := time.Now()
		err := next(ctx)
		m.seconds.WithLabelValues(string(call.Verb)).Observe(time.Since(begin).Seconds())
		m.calls.WithLabelValues(string(call.Verb), reason(err)).Inc()
		return err
	})(c)
}

func reason(err error) string {
	if err == nil {
		return "ok"
	}
	if r := apierrors.ReasonForError(err); r != metav1.StatusReasonUnknown {
		return string(r)
	}
	return "error"
}

// Describe implements prometheus.Collector.
func (m *Meter) Describe(to chan<- *prometheus.Desc) {
	m.seconds.Describe(to)
	m.calls.Describe(to)
}

// Collect implements prometheus.Collector.
func (m *Meter) Collect(to chan<- prometheus.Metric) {
	m.seconds.Collect(to)
	m.calls.Collect(to)
}
