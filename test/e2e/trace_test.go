package e2e

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlptrace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/traced"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// receiver takes traces as a collector does.
type receiver struct {
	t      testing.TB
	server *httptest.Server

	mu    sync.Mutex
	spans []*span
	came  chan struct{} // closed, and another one, when spans come
}

// span as it was received.
type span struct {
	*otlptrace.Span
	service    string
	attributes map[string]string
}

func (s *span) id() string     { return hex.EncodeToString(s.GetSpanId()) }
func (s *span) parent() string { return hex.EncodeToString(s.GetParentSpanId()) }
func (s *span) trace() string  { return hex.EncodeToString(s.GetTraceId()) }
func (s *span) kind() string   { return s.attributes[tracing.KeyKind] }
func (s *span) object() string {
	return s.attributes[tracing.KeyNamespace] + "/" + s.attributes[tracing.KeyName]
}

func newReceiver(t testing.TB) *receiver {
	r := &receiver{t: t, came: make(chan struct{})}
	r.server = httptest.NewServer(r)
	t.Cleanup(r.server.Close)
	return r
}

// ServeHTTP implements http.Handler: OTLP/HTTP with protobuf.
func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	var message collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &message)
	}
	if err != nil || request.URL.Path != "/v1/traces" || request.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, fmt.Sprint(err, request.URL.Path, request.Header), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range message.GetResourceSpans() {
		service := ""
		for _, a := range of.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				received := &span{Span: s, service: service, attributes: map[string]string{}}
				for _, a := range s.GetAttributes() {
					received.attributes[a.GetKey()] = a.GetValue().GetStringValue()
					if a.GetValue().GetStringValue() == "" {
						received.attributes[a.GetKey()] = strconv.FormatInt(a.GetValue().GetIntValue(), 10)
					}
				}
				r.spans = append(r.spans, received)
			}
		}
	}
	close(r.came)
	r.came = make(chan struct{})
}

// find blocks until a span is there that is as described, and returns it.
func (r *receiver) find(what string, is func(*span) bool) *span {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), testkit.Timeout)
	defer cancel()
	for {
		r.mu.Lock()
		i, came := slices.IndexFunc(r.spans, is), r.came
		if i >= 0 {
			defer r.mu.Unlock()
			return r.spans[i]
		}
		r.mu.Unlock()
		select {
		case <-came:
		case <-ctx.Done():
			r.t.Fatalf("no span %s; received:\n%s", what, r)
		}
	}
}

// whole blocks until all parents of a trace's spans are there: spans are sent when they end, parents after children.
func (r *receiver) whole(trace string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), testkit.Timeout)
	defer cancel()
	for {
		r.mu.Lock()
		came, missing := r.came, ""
		for _, s := range r.spans {
			is := func(p *span) bool { return p.trace() == trace && p.id() == s.parent() }
			if s.trace() == trace && s.parent() != "" && !slices.ContainsFunc(r.spans, is) {
				missing = s.GetName() + " " + s.parent()
			}
		}
		r.mu.Unlock()
		if missing == "" {
			return
		}
		select {
		case <-came:
		case <-ctx.Done():
			r.t.Fatalf("trace %s lacks the parent of %s; received:\n%s", trace, missing, r)
		}
	}
}

// of returns the spans of a trace that are there.
func (r *receiver) of(trace string) (out []*span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if s.trace() == trace {
			out = append(out, s)
		}
	}
	return out
}

// String implements fmt.Stringer.
func (r *receiver) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, s := range r.spans {
		fmt.Fprintf(&b, "%s %s < %s %s %s %v\n", s.trace(), s.id(), s.parent(), s.service, s.GetName(), s.attributes)
	}
	return b.String()
}

// check that a trace is whole: one root, and each other span below one of the trace that began before.
func check(t testing.TB, spans []*span) {
	t.Helper()
	byID := map[string]*span{}
	for _, s := range spans {
		if byID[s.id()] != nil {
			t.Errorf("span %s came twice", s.id())
		}
		byID[s.id()] = s
	}
	roots := 0
	for _, s := range spans {
		parent := byID[s.parent()]
		switch {
		case s.parent() == "":
			roots++
		case parent == nil:
			t.Errorf("%s %v: its parent %s is not in the trace", s.GetName(), s.attributes, s.parent())
		case parent.GetStartTimeUnixNano() > s.GetStartTimeUnixNano():
			t.Errorf("%s began before its parent %s", s.GetName(), parent.GetName())
		}
		if s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() {
			t.Errorf("%s ended before it began", s.GetName())
		}
	}
	if roots != 1 {
		t.Errorf("%d spans without a parent, want one", roots)
	}
}

// TestTrace: a workload that becomes ready is one trace, from the request to the data path of each node.
func TestTrace(t *testing.T) {
	r := newReceiver(t)
	p := &plane{
		t: t, dir: t.TempDir(), api: testkit.FreePort(t), grpc: testkit.FreePort(t), cidr: "127.96.0.0/16",
		flags: []string{"--otlp-endpoint", r.server.URL, "--trace-sample", "1"},
	}
	p.kubeconfig = p.dir + "/kubeconfig"
	p.start()
	nodes := map[string]string{"n1": "zone-a", "n2": "zone-b"}
	for name, zone := range nodes {
		n := &node{plane: p, name: name, zone: zone, dir: t.TempDir(), health: testkit.FreePort(t), metrics: testkit.FreePort(t), dns: testkit.FreePort(t)}
		n.flags = []string{"--otlp-endpoint", r.server.URL}
		n.join()
	}
	p.apply(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}
`)
	// Both nodes have the Service, so that what follows is of the workload alone.
	for name := range nodes {
		r.find("of the Service at "+name, func(s *span) bool {
			return s.GetName() == tracing.Kernel && s.attributes[tracing.KeyNode] == name && r.rootOf(s, "Service")
		})
	}
	p.apply(`apiVersion: mesh.proxima.dev/v1alpha1
kind: Dataplane
metadata: {name: web-1, namespace: default, labels: {app: web}}
spec: {addresses: [10.1.0.1], ports: [{name: http, port: 8080}]}
`)
	p.kubectl("patch", "dataplane", "web-1", "--subresource=status", "--type=merge", "-p",
		`{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}`)
	write := r.find("of the write", func(s *span) bool {
		return s.GetName() == tracing.Write && s.kind() == "Dataplane" && s.object() == "default/web-1" && s.attributes[tracing.KeyVerb] == "update"
	})
	for name := range nodes {
		r.find("of the data path at "+name, func(s *span) bool {
			return s.trace() == write.trace() && s.GetName() == tracing.Kernel && s.attributes[tracing.KeyNode] == name
		})
	}
	path := func(s *span) (names []string) {
		all := r.of(write.trace())
		for s != nil {
			names = append([]string{s.GetName()}, names...)
			i := slices.IndexFunc(all, func(p *span) bool { return p.id() == s.parent() })
			if i < 0 {
				break
			}
			s = all[i]
		}
		return names
	}
	// The control plane sends its spans by itself, perhaps later than the agents.
	slice := r.find("of the slice", func(s *span) bool {
		return s.trace() == write.trace() && s.GetName() == tracing.Write && s.kind() == "EndpointSlice"
	})
	r.find("of the controller", func(s *span) bool { return s.id() == slice.parent() })
	for _, zone := range nodes {
		r.find("of the view of "+zone, func(s *span) bool {
			return s.trace() == write.trace() && s.GetName() == tracing.View && s.attributes[tracing.KeyZone] == zone && s.kind() == "EndpointSlice"
		})
	}
	for name := range nodes {
		r.find("of agent "+name, func(s *span) bool {
			return s.trace() == write.trace() && s.GetName() == tracing.Agent && s.attributes[tracing.KeyNode] == name
		})
	}
	r.whole(write.trace())
	const want = "write controller write view agent kernel"
	reached := map[string]bool{}
	for _, s := range r.of(write.trace()) {
		if s.GetName() != tracing.Kernel {
			continue
		}
		// What is planned for the new endpoint may follow, by a controller more.
		got := strings.Join(path(s), " ")
		if !strings.HasPrefix(got, "write controller write") || !strings.HasSuffix(got, "write view agent kernel") {
			t.Errorf("the kernel of %s is reached by %q, want %q", s.attributes[tracing.KeyNode], got, want)
		}
		if got == want {
			reached[s.attributes[tracing.KeyNode]] = true
		}
		if s.attributes[tracing.KeyMode] != "userspace" || s.service != "proxima-node" {
			t.Errorf("kernel span: %s, %v", s.service, s.attributes)
		}
	}
	if len(reached) != len(nodes) {
		t.Errorf("%v are reached by %q, want all of %v; received:\n%s", reached, want, nodes, r)
	}
	check(t, r.of(write.trace()))
	if revision := slice.attributes[tracing.KeyRevision]; revision == "" || revision == write.attributes[tracing.KeyRevision] {
		t.Errorf("the slice is of revision %q, the workload of %q", revision, write.attributes[tracing.KeyRevision])
	}
	if slice.GetStatus().GetCode() == otlptrace.Status_STATUS_CODE_ERROR {
		t.Errorf("the slice: %s", slice.GetStatus().GetMessage())
	}
	// What the controller wrote in reaction begins no trace, but may be in those of several changes.
	r.mu.Lock()
	for _, s := range r.spans {
		if s.parent() == "" && s.attributes[tracing.KeyRevision] == slice.attributes[tracing.KeyRevision] {
			t.Errorf("revision %s of slice %s begins trace %s", s.attributes[tracing.KeyRevision], s.object(), s.trace())
		}
	}
	r.mu.Unlock()
	if out := p.proxima("status"); !strings.Contains(out, r.server.URL) {
		t.Errorf("status does not tell where traces go:\n%s", out)
	}
}

// rootOf reports whether the trace of a span began with a write of a kind. r.mu is held.
func (r *receiver) rootOf(s *span, kind string) bool {
	return slices.ContainsFunc(r.spans, func(o *span) bool { return o.trace() == s.trace() && o.parent() == "" && o.kind() == kind })
}

// TestTraceOff: while tracing is off, what it adds to the path of a write allocates nothing.
func TestTraceOff(t *testing.T) {
	var r *tracing.Recorder
	var client resource.Client
	if traced.Wrapper(traced.Config{Recorder: r})(client) != client {
		t.Error("the client of controllers is wrapped")
	}
	var delta catalog.Delta
	ctx := t.Context()
	commit := tracing.Commit{Object: tracing.Object{Kind: "Service", Namespace: "default", Name: "web"}, Verb: "update", Revision: 7}
	if n := testing.AllocsPerRun(1000, func() {
		if r.On() { // before and after the commit
			t.Fatal("on")
		}
		r.Committed(tracing.WithCause(ctx, nil), commit)
		if changes, rest := delta.Traced(r); changes != nil || rest != &delta {
			t.Fatal("followed")
		}
	}); n != 0 {
		t.Errorf("%v allocations a write, want none", n)
	}
}
