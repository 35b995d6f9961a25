package app

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/audit"
)

// TestAnonymousCannotRotateTheAuditLog: a flood of refused requests with long paths
// leaves the log of writes alone, and is bounded in its own.
func TestAnonymousCannotRotateTheAuditLog(t *testing.T) {
	synctest.Test(t, anonymousCannotRotateTheAuditLog) // the rate is by the clock
}

func anonymousCannotRotateTheAuditLog(t *testing.T) {
	dir := t.TempDir()
	logs := audit.OpenLogs(dir, slog.New(slog.DiscardHandler), nil)
	write := auditTo(logs)
	long := "/" + strings.Repeat("x", 1<<20)
	write(apiserver.AuditEvent{
		User: "ann", Verb: "create", Resource: "configmaps", Namespace: "default", Name: "a", Code: 201, Source: []string{"192.0.2.1"},
	})
	for i := range 2000 {
		from := fmt.Sprintf("203.0.113.%d", i%50)
		write(apiserver.AuditEvent{Verb: "post", Path: long, Code: 401, Refused: true, Source: []string{from}})
	}
	write(apiserver.AuditEvent{
		User: "rob", Actor: "ann", Verb: "post", Path: long, Code: 201, Details: map[string]string{"token-kind": "admin"},
	})
	logs.Close()
	for name, want := range map[string]struct {
		size int64
		has  []string
	}{
		audit.WritesLog:  {4000, []string{"configmaps/default/a", `"actor":"ann"`, `"token-kind":"admin"`, "(1048577 bytes)"}},
		audit.RefusedLog: {1 << 20, []string{`"code":401`, `"event":"suppressed"`, `"records":"1400"`}},
	} {
		data, err := os.ReadFile(filepath.Join(dir, name+".log"))
		if err != nil || int64(len(data)) > want.size {
			t.Errorf("%s: %d bytes: %v", name, len(data), err)
		}
		for _, text := range want.has {
			if !strings.Contains(string(data), text) {
				t.Errorf("%s: no %s in it", name, text)
			}
		}
		if _, err := audit.Verify(dir, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAuditFailureIsVisible in the status and the metrics, and stops nothing.
func TestAuditFailureIsVisible(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "audit.log"), 0o700); err != nil { // cannot be written
		t.Fatal(err)
	}
	logs := audit.OpenLogs(dir, slog.New(slog.DiscardHandler), nil)
	defer logs.Close()
	write := auditTo(logs)
	write(apiserver.AuditEvent{Time: time.Now(), User: "ann", Verb: "create", Code: 201})
	if s := logs.States()[audit.WritesLog]; s.Problem == "" || s.Lost != 1 {
		t.Errorf("status %+v", s)
	}
	if s := logs.States()[audit.RefusedLog]; s.Problem != "" {
		t.Errorf("the other log: %+v", s)
	}
	values := metricsOf(t, logs)
	for name, want := range map[string]float64{
		"proxima_audit_failing/audit": 1, "proxima_audit_failing/refused": 0, "proxima_audit_records_lost_total/audit": 1,
	} {
		if values[name] != want {
			t.Errorf("%s is %g, want %g", name, values[name], want)
		}
	}
}

// metricsOf a collector, by name and log.
func metricsOf(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			out[f.GetName()+"/"+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}
