package app

import (
	"cmp"
	"log/slog"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/audit"
)

// Names of the audit logs, without what follows in the names of their files.
const (
	// AuditLog has writes that were let through, and how they ended.
	AuditLog = "audit"
	// RefusedLog has requests that were refused. Anybody can make those, so they have a
	// log of their own, and a bounded rate.
	RefusedLog = "refused"
)

// summaryEvery is how often it is recorded how many refusals were left out.
const summaryEvery = time.Minute

// auditLogs are those of a control plane. A log that cannot be written stops nothing:
// requests go on, and status, metrics and doctor say that they have no record.
type auditLogs struct {
	writes, refused *audit.Log
	limiter         audit.Limiter
	stop            chan struct{}
	done            sync.WaitGroup
}

func newAuditLogs(dir string, log *slog.Logger) *auditLogs {
	a := &auditLogs{
		writes:  audit.Open(audit.Config{Dir: dir, Name: AuditLog, Logger: log}),
		refused: audit.Open(audit.Config{Dir: dir, Name: RefusedLog, Logger: log}),
		stop:    make(chan struct{}),
	}
	a.done.Go(a.summarize)
	return a
}

// summarize what the limiter leaves out.
func (a *auditLogs) summarize() {
	tick := time.NewTicker(summaryEvery)
	defer tick.Stop()
	for more := true; more; {
		select {
		case <-tick.C:
		case <-a.stop:
			more = false
		}
		if n := a.limiter.Suppressed(); n > 0 {
			a.refused.Write(audit.Record{Event: audit.EventSuppressed, Details: map[string]string{"records": strconv.FormatUint(n, 10)}})
		}
	}
}

func (a *auditLogs) close() {
	close(a.stop)
	a.done.Wait()
	a.writes.Close()
	a.refused.Close()
}

func (a *auditLogs) write(e apiserver.AuditEvent) {
	to := a.writes
	if e.Refused {
		if to = a.refused; !a.limiter.Allow(auditSource(e), time.Now()) {
			return
		}
	}
	to.Write(audit.Record{
		Time: e.Time, User: e.User, Actor: e.Actor, Verb: e.Verb, Object: auditedObject(e), From: e.Source,
		Code: e.Code, Reason: e.Reason, Details: e.Details,
	})
}

// auditSource is who shares a rate: a user, or an address of those who are none.
func auditSource(e apiserver.AuditEvent) string {
	if who := cmp.Or(e.Actor, e.User); who != "" && who != user.Anonymous {
		return "user " + who
	}
	if len(e.Source) == 0 {
		return ""
	}
	return audit.SourceOf(e.Source[len(e.Source)-1])
}

func auditedObject(e apiserver.AuditEvent) string {
	if e.Resource == "" {
		return e.Path
	}
	return strings.Trim(path.Join(e.Group, e.Resource, e.Namespace, e.Name, e.Subresource), "/")
}

// AuditStatus tells how the audit logs are, by name.
type AuditStatus map[string]audit.Status

func (a *auditLogs) status() AuditStatus {
	return AuditStatus{AuditLog: a.writes.Status(), RefusedLog: a.refused.Status()}
}

var (
	auditRecords = prometheus.NewDesc("proxima_audit_records_total", "Records that were written to an audit log.", []string{"log"}, nil)
	auditLost    = prometheus.NewDesc("proxima_audit_records_lost_total",
		"Records that could not be written to an audit log.", []string{"log"}, nil)
	auditFailing = prometheus.NewDesc("proxima_audit_failing", "1 while an audit log cannot be written.", []string{"log"}, nil)
)

// Describe implements prometheus.Collector.
func (a *auditLogs) Describe(to chan<- *prometheus.Desc) {
	to <- auditRecords
	to <- auditLost
	to <- auditFailing
}

// Collect implements prometheus.Collector.
func (a *auditLogs) Collect(to chan<- prometheus.Metric) {
	for name, s := range a.status() {
		failing := 0.0
		if s.Problem != "" {
			failing = 1
		}
		to <- prometheus.MustNewConstMetric(auditRecords, prometheus.CounterValue, float64(s.Records), name)
		to <- prometheus.MustNewConstMetric(auditLost, prometheus.CounterValue, float64(s.Lost), name)
		to <- prometheus.MustNewConstMetric(auditFailing, prometheus.GaugeValue, failing, name)
	}
}
