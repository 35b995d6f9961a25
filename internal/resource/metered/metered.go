// Package metered measures the calls of a resource.Client.
//
// It owns the metrics of controllers' calls. Enter at New. It changes nothing
// about the calls and their results.
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

// Config of a Meter.
type Config struct {
	// Registerer of the metrics; nil: they are not registered.
	Registerer prometheus.Registerer
}

// Meter measures the clients that it wraps, all together.
type Meter struct {
	seconds *prometheus.HistogramVec
	calls   *prometheus.CounterVec
}

// New makes a meter. It panics if another one has the Registerer.
func New(cfg Config) *Meter {
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
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(m.seconds, m.calls)
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
