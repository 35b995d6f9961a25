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
	gauge := func(name, help string, read func(Status) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help},
			func() float64 { return read(e.Status()) })
	}
	r.MustRegister(m.terms,
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "fenced_writes_total",
			Help: "Writes of this instance as a leader that the store refused, because its term had ended.",
		}, func() float64 { return float64(m.refusals.Load()) }),
		gauge("leads", "1 if this instance leads.", func(s Status) float64 { return number(s.Leads) }),
		gauge("vacant", "1 if no instance leads.", func(s Status) float64 { return number(s.Vacant) }),
		gauge("term", "Number of the newest term that this instance knows of.", func(s Status) float64 { return float64(s.Term.Number) }),
	)
	return m
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
