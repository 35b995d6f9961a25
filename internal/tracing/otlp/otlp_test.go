package otlp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/tracing"
	"github.com/proxima-mesh/proxima/internal/tracing/otlp"
)

func TestEndpoints(t *testing.T) {
	for _, good := range []string{"http://a:4318", "https://a", "http://[::1]:4318/tenant", "grpc://a:4317", "grpcs://a:4317/"} {
		if err := otlp.Check(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"a:4318", "http://", "ftp://a", "http://u:p@a", "http://a?x=y", "grpc://a:4317/x", "\x7f"} {
		if err := otlp.Check(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func sample(name string) *tracing.Span {
	r := tracing.New(tracing.Config{Ratio: 1})
	root, _ := r.Root(7)
	return &tracing.Span{
		Name: name, ID: root.Child(), Of: root.Span, Begin: time.Unix(1, 0), End: time.Unix(2, 0), Err: errors.New("no"),
		Attributes: []tracing.Attribute{tracing.Text(tracing.KeyKind, "Service"), tracing.Number(tracing.KeyRevision, 7)},
	}
}

func TestSpansArrive(t *testing.T) {
	got := make(chan *collector.ExportTraceServiceRequest, 4)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var message collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &message); err != nil || r.URL.Path != "/tenant/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		got <- &message
	}))
	defer server.Close()
	e, err := otlp.New(otlp.Config{Endpoint: server.URL + "/tenant", Service: "s", Instance: "i", Version: "v"})
	if err != nil {
		t.Fatal(err)
	}
	span := sample("write")
	e.Sink(span)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // what is in the queue is sent all the same
	if err := e.Run(ctx); err != nil {
		t.Fatal(err)
	}
	of := (<-got).GetResourceSpans()[0]
	s := of.GetScopeSpans()[0].GetSpans()[0]
	switch {
	case !bytes.Equal(s.GetTraceId(), span.ID.Trace[:]), !bytes.Equal(s.GetSpanId(), span.ID.Span[:]), !bytes.Equal(s.GetParentSpanId(), span.Of[:]):
		t.Errorf("IDs: %v", s)
	case s.GetName() != "write", s.GetStartTimeUnixNano() != 1e9, s.GetEndTimeUnixNano() != 2e9, s.GetStatus().GetMessage() != "no":
		t.Errorf("span: %v", s)
	case s.GetAttributes()[0].GetValue().GetStringValue() != "Service", s.GetAttributes()[1].GetValue().GetIntValue() != 7:
		t.Errorf("attributes: %v", s.GetAttributes())
	}
	if status := e.Status(); status.Sent != 1 || status.Dropped != 0 || status.Error != "" {
		t.Errorf("status %+v", status)
	}
}

// TestNobodyWaits: while the collector refuses, spans are dropped and counted, and the log has one line.
func TestNobodyWaits(t *testing.T) {
	refused := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusBadRequest) // which is final
		refused <- struct{}{}
	}))
	defer server.Close()
	var log bytes.Buffer
	registry := prometheus.NewRegistry()
	e, err := otlp.New(otlp.Config{Endpoint: server.URL, Logger: slog.New(slog.NewTextHandler(&log, nil)), Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	const spans = 5000 // more than the queue takes
	for range spans {
		e.Sink(sample("x"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Run(ctx); err != nil {
		t.Fatal(err)
	}
	<-refused
	status := e.Status()
	if status.Dropped != spans || status.Sent != 0 || status.Error == "" || status.Since.IsZero() {
		t.Errorf("status %+v, want %d dropped", status, spans)
	}
	if n := strings.Count(log.String(), "traces cannot be sent"); n != 1 || !strings.Contains(log.String(), "hint") {
		t.Errorf("%d lines in the log, want one with a hint:\n%s", n, log.String())
	}
	const want = `
# HELP proxima_trace_spans_dropped_total Spans of changes that were lost: reason queue, as the queue was full, or endpoint, as the collector did not take them.
# TYPE proxima_trace_spans_dropped_total counter
proxima_trace_spans_dropped_total{reason="endpoint"} 2048
proxima_trace_spans_dropped_total{reason="queue"} 2952
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "proxima_trace_spans_dropped_total"); err != nil {
		t.Error(err)
	}
}
