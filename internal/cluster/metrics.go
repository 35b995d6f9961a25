package cluster

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of an election.
type metrics struct {
	terms    prometheus.Counter
	refusals atomic.Uint64
}

func newMetrics(r prometheus.Registerer, e *Election) *metrics {
	const namespace, subsystem = "proxima", "cluster"
	m := &metrics{terms: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "terms_total",
		Help: "Terms in which this instance has led.",
	})}
	if r == nil {
		return m
	}
	MeasureLeadership(r, func() bool { return e.Status().Leads }, func() bool { return e.Status().Vacant })
	r.MustRegister(m.terms,
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "fenced_writes_total",
			Help: "Writes of this instance as a leader that the store refused, because its term had ended.",
		}, func() float64 { return float64(m.refusals.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "term", Help: "Number of the newest term that this instance knows of.",
		}, func() float64 { return float64(e.Status().Term.Number) }),
	)
	return m
}

// MeasureLeadership registers the metrics that every election has, also one by other means than
// this package's. The functions must not block.
func MeasureLeadership(r prometheus.Registerer, leads, vacant func() bool) {
	const namespace, subsystem = "proxima", "cluster"
	r.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "leads", Help: "1 if this instance leads.",
		}, func() float64 { return number(leads()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "vacant", Help: "1 if no instance leads.",
		}, func() float64 { return number(vacant()) }),
	)
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
