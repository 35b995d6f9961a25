// Package otlp sends spans to a collector by the OpenTelemetry protocol (OTLP 1.x, protobuf over HTTP or gRPC).
//
// It owns the queue between those who record spans and the collector, which is bounded: what does not fit is dropped
// and counted, so that nobody waits for a collector. Enter at New, then Run; Sink goes into tracing.Config. It decides
// nothing about traces.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/proxima-mesh/proxima/internal/tracing"
)

const (
	// queueLength is of spans, maxBatch of a request, as in OpenTelemetry's batch processor (OTEL_BSP_MAX_QUEUE_SIZE,
	// OTEL_BSP_MAX_EXPORT_BATCH_SIZE).
	queueLength = 2048
	maxBatch    = 512
	// linger is how long a span waits for others.
	linger = time.Second
	// farewell bounds the last request when the process ends.
	farewell = 2 * time.Second
	// logEvery is how often a collector that cannot be reached is logged.
	logEvery = time.Minute
	// tracesPath is below the address of a collector (OTLP specification, "OTLP/HTTP Request").
	tracesPath = "/v1/traces"
)

// Config of an Exporter.
type Config struct {
	// Endpoint of the collector: http(s)://HOST[:PORT][/PATH] for OTLP/HTTP, below which is v1/traces; grpc(s)://HOST:PORT
	// for OTLP/gRPC. It must pass Check.
	Endpoint string
	// Ratio as in tracing.Config, for Status.
	Ratio float64
	// Service and Instance name this process (service.name, service.instance.id), Version is its version.
	Service, Instance, Version string
	Logger                     *slog.Logger          // nil: discard
	Registerer                 prometheus.Registerer // nil: no metrics
}

// Exporter is the queue and its sender. Make it with New.
type Exporter struct {
	config Config
	log    *slog.Logger
	client otlptrace.Client
	queue  chan *tracing.Span
	source *resource.Resource

	sent, full, failed atomic.Uint64

	mu     sync.Mutex
	err    error
	since  time.Time
	logged time.Time
}

// Check returns why an endpoint is none; nil: it is one.
func Check(endpoint string) error {
	_, err := parse(endpoint)
	return err
}

func parse(endpoint string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return nil, errors.New("it is no URL: use http://HOST:4318, https://HOST:4318, grpc://HOST:4317 or grpcs://HOST:4317")
	case u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "grpc" && u.Scheme != "grpcs":
		return nil, fmt.Errorf("scheme %q: use http, https, grpc or grpcs", u.Scheme)
	case u.Hostname() == "":
		return nil, errors.New("there is no host: use http://HOST:4318")
	case u.User != nil:
		return nil, errors.New("credentials do not go into the URL: use the environment variable OTEL_EXPORTER_OTLP_HEADERS")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("a query or fragment has no meaning here: remove it")
	case strings.HasPrefix(u.Scheme, "grpc") && strings.Trim(u.Path, "/") != "":
		return nil, errors.New("gRPC has no path: remove it, or use http")
	}
	return u, nil
}

// New makes an exporter. It sends nothing before Run.
func New(c Config) (*Exporter, error) {
	u, err := parse(c.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("trace endpoint %q: %w", c.Endpoint, err)
	}
	e := &Exporter{config: c, log: c.Logger, client: clientOf(*u), queue: make(chan *tracing.Span, queueLength)}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.source = &resource.Resource{Attributes: []*common.KeyValue{
		text("service.namespace", "proxima"), text("service.name", c.Service), text("service.instance.id", c.Instance), text("service.version", c.Version),
	}}
	if c.Registerer != nil {
		c.Registerer.MustRegister(collector{e})
	}
	return e, nil
}

// clientOf an endpoint. The library reads OTEL_EXPORTER_OTLP_HEADERS, …_CERTIFICATE, …_TIMEOUT and …_COMPRESSION.
func clientOf(u url.URL) otlptrace.Client {
	const first, last, elapsed = time.Second, 5 * time.Second, 15 * time.Second
	if scheme, ok := strings.CutPrefix(u.Scheme, "grpc"); ok {
		u.Scheme, u.Path = "http"+scheme, ""
		return otlptracegrpc.NewClient(otlptracegrpc.WithEndpointURL(u.String()), otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{
			Enabled: true, InitialInterval: first, MaxInterval: last, MaxElapsedTime: elapsed,
		}))
	}
	if !strings.HasSuffix(u.Path, tracesPath) {
		u.Path = strings.TrimSuffix(u.Path, "/") + tracesPath
	}
	return otlptracehttp.NewClient(otlptracehttp.WithEndpointURL(u.String()), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
		Enabled: true, InitialInterval: first, MaxInterval: last, MaxElapsedTime: elapsed,
	}))
}

// Sink takes a span. It never blocks: while the queue is full, spans are dropped and counted.
func (e *Exporter) Sink(s *tracing.Span) {
	select {
	case e.queue <- s:
	default:
		e.full.Add(1)
	}
}

// Status at any time.
func (e *Exporter) Status() tracing.Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := tracing.Status{Endpoint: e.config.Endpoint, Ratio: e.config.Ratio, Sent: e.sent.Load(), Dropped: e.full.Load() + e.failed.Load(), Since: e.since}
	if e.err != nil {
		s.Error = e.err.Error()
	}
	return s
}

// Run sends spans until ctx ends, and then what is in the queue, for 2 s at most. It returns nil, and must be called once.
func (e *Exporter) Run(ctx context.Context) error {
	if err := e.client.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("send traces to %s: %w", e.config.Endpoint, err)
	}
	// What is being sent when ctx ends has as long as what is left.
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(farewell, cancel) })()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case first := <-e.queue:
			e.send(last, e.batch(ctx, first))
		}
	}
	for last.Err() == nil {
		select {
		case first := <-e.queue:
			e.send(last, e.fill([]*tracing.Span{first}))
			continue
		default:
		}
		break
	}
	_ = e.client.Stop(last) // what it could tell, sends have told
	return nil
}

// batch begins with a span, and waits for others for a while.
func (e *Exporter) batch(ctx context.Context, first *tracing.Span) []*tracing.Span {
	out := []*tracing.Span{first}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for len(out) < maxBatch {
		select {
		case s := <-e.queue:
			out = append(out, s)
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		break
	}
	return out
}

// fill a batch with what is there.
func (e *Exporter) fill(out []*tracing.Span) []*tracing.Span {
	for len(out) < maxBatch {
		select {
		case s := <-e.queue:
			out = append(out, s)
			continue
		default:
		}
		break
	}
	return out
}

func (e *Exporter) send(ctx context.Context, batch []*tracing.Span) {
	spans := make([]*trace.Span, 0, len(batch))
	for _, s := range batch {
		spans = append(spans, message(s))
	}
	err := e.client.UploadTraces(ctx, []*trace.ResourceSpans{{
		Resource: e.source, ScopeSpans: []*trace.ScopeSpans{{Scope: &common.InstrumentationScope{Name: scope, Version: e.config.Version}, Spans: spans}},
	}})
	e.note(len(batch), err, time.Now())
}

// scope of the spans.
const scope = "github.com/proxima-mesh/proxima/internal/tracing"

// note the outcome of a request.
func (e *Exporter) note(spans int, err error, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.err
	e.err = err
	if err == nil {
		e.sent.Add(uint64(spans)) //nolint:gosec // a length
		if was != nil {
			e.log.Info("traces are sent again", "endpoint", e.config.Endpoint, "lost_spans", e.full.Load()+e.failed.Load())
		}
		e.since, e.logged = time.Time{}, time.Time{}
		return
	}
	e.failed.Add(uint64(spans)) //nolint:gosec // a length
	if was == nil {
		e.since = now
	}
	if e.logged.IsZero() || now.Sub(e.logged) >= logEvery {
		e.logged = now
		e.log.Warn("traces cannot be sent", "endpoint", e.config.Endpoint, "since", e.since, "lost_spans", e.full.Load()+e.failed.Load(),
			"error", err, "hint", tracing.Hint)
	}
}

// message of a span.
func message(s *tracing.Span) *trace.Span {
	out := &trace.Span{
		TraceId: s.ID.Trace[:], SpanId: s.ID.Span[:], Name: s.Name, Kind: trace.Span_SPAN_KIND_INTERNAL, Flags: sampledFlag,
		StartTimeUnixNano: nanos(s.Begin), EndTimeUnixNano: nanos(s.End),
	}
	if s.Of != [8]byte{} {
		out.ParentSpanId = s.Of[:]
	}
	for _, a := range s.Attributes {
		if a.Text == "" {
			out.Attributes = append(out.Attributes, number(a.Key, a.Number))
			continue
		}
		out.Attributes = append(out.Attributes, text(a.Key, a.Text))
	}
	if s.Err != nil {
		out.Status = &trace.Status{Code: trace.Status_STATUS_CODE_ERROR, Message: s.Err.Error()}
	}
	return out
}

// sampledFlag of W3C Trace Context.
const sampledFlag = 1

func nanos(t time.Time) uint64 { return uint64(t.UnixNano()) } //nolint:gosec // after 1970

func text(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: strings.ToValidUTF8(value, "\ufffd")}}}
}

func number(key string, value int64) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: value}}}
}
