package audit

import (
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Names of the logs of a control plane, without what follows in the names of their files.
const (
	// WritesLog has writes that were admitted, and how they ended.
	WritesLog = "audit"
	// RefusedLog has requests that were refused. Anyone can make those, so they have a
	// log of their own, and a bounded rate.
	RefusedLog = "refused"
)

// summaryInterval is how often it is recorded how many refusals were left out.
const summaryInterval = time.Minute

// Logs are the two logs of a control plane, and a prometheus.Collector. Make them with
// OpenLogs. Safe for concurrent use.
type Logs struct {
	writes, refused *Log
	limiter         Limiter
	stop            chan struct{}
	done            sync.WaitGroup
}

// States of logs, by name.
type States map[string]Status

// OpenLogs in a directory, and register their metrics (registerer nil: none). A log that
// cannot be written is no error: its Status and the metrics show it. Close them when done.
func OpenLogs(dir string, log *slog.Logger, registerer prometheus.Registerer) *Logs {
	l := &Logs{
		writes:  Open(Config{Dir: dir, Name: WritesLog, Logger: log}),
		refused: Open(Config{Dir: dir, Name: RefusedLog, Logger: log}),
		stop:    make(chan struct{}),
	}
	if registerer != nil {
		registerer.MustRegister(l)
	}
	l.done.Go(l.summarize)
	return l
}

// Write records a write that was admitted.
func (l *Logs) Write(r Record) { l.writes.Write(r) }

// Refuse records a request that was refused, unless too many came, in total or from the
// same source (a user or an address).
func (l *Logs) Refuse(r Record, source string) {
	if l.limiter.Allow(source, time.Now()) {
		l.refused.Write(r)
	}
}

// summarize what the limiter leaves out.
func (l *Logs) summarize() {
	tick := time.NewTicker(summaryInterval)
	defer tick.Stop()
	for more := true; more; {
		select {
		case <-tick.C:
		case <-l.stop:
			more = false
		}
		if n := l.limiter.Suppressed(); n > 0 {
			l.refused.Write(Record{Event: EventSuppressed, Details: map[string]string{"records": strconv.FormatUint(n, 10)}})
		}
	}
}

// States of both logs.
func (l *Logs) States() States {
	return States{WritesLog: l.writes.Status(), RefusedLog: l.refused.Status()}
}

// Close ends the logs. Every record was written when it came.
func (l *Logs) Close() {
	close(l.stop)
	l.done.Wait()
	l.writes.Close()
	l.refused.Close()
}

var (
	descRecords = prometheus.NewDesc("proxima_audit_records_total", "Records that were written to an audit log.", []string{"log"}, nil)
	descLost    = prometheus.NewDesc("proxima_audit_records_lost_total",
		"Records that could not be written to an audit log.", []string{"log"}, nil)
	descFailing = prometheus.NewDesc("proxima_audit_failing", "1 while an audit log cannot be written.", []string{"log"}, nil)
)

// Describe implements prometheus.Collector.
func (l *Logs) Describe(to chan<- *prometheus.Desc) {
	to <- descRecords
	to <- descLost
	to <- descFailing
}

// Collect implements prometheus.Collector.
func (l *Logs) Collect(to chan<- prometheus.Metric) {
	for name, s := range l.States() {
		failing := 0.0
		if s.Problem != "" {
			failing = 1
		}
		to <- prometheus.MustNewConstMetric(descRecords, prometheus.CounterValue, float64(s.Records), name)
		to <- prometheus.MustNewConstMetric(descLost, prometheus.CounterValue, float64(s.Lost), name)
		to <- prometheus.MustNewConstMetric(descFailing, prometheus.GaugeValue, failing, name)
	}
}
