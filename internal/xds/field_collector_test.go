package xds_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	logsv1 "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// collector takes logs and spans: by OTLP, and as a server of Zipkin and of Datadog.
type collector struct {
	logsv1.UnimplementedLogsServiceServer

	mu sync.Mutex
	// got is what came, as text: a line for each message.
	got strings.Builder
	// otlp and http are the addresses.
	otlp, http string
}

func newCollector(t testing.TB) *collector {
	t.Helper()
	c := &collector{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.otlp = l.Addr().String()
	s := grpc.NewServer()
	logsv1.RegisterLogsServiceServer(s, c)
	tracev1.RegisterTraceServiceServer(s, traces{c: c})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	web := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		c.note(fmt.Sprintf("%s %s", r.URL.Path, body))
	}))
	t.Cleanup(web.Close)
	c.http = web.Listener.Addr().String()
	return c
}

func (c *collector) note(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintln(&c.got, text)
}

// has reports whether a message had this in it.
func (c *collector) has(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Contains(c.got.String(), text)
}

func (c *collector) count(text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Count(c.got.String(), text)
}

func (c *collector) Export(_ context.Context, r *logsv1.ExportLogsServiceRequest) (*logsv1.ExportLogsServiceResponse, error) {
	c.note("log " + r.String())
	return &logsv1.ExportLogsServiceResponse{}, nil
}

// traces is the collector's other service; both have a method of one name.
type traces struct {
	tracev1.UnimplementedTraceServiceServer
	c *collector
}

func (s traces) Export(_ context.Context, r *tracev1.ExportTraceServiceRequest) (*tracev1.ExportTraceServiceResponse, error) {
	s.c.note("span " + r.String())
	return &tracev1.ExportTraceServiceResponse{}, nil
}
