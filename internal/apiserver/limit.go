package apiserver

import (
	"cmp"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/proxima-mesh/proxima/internal/ratelimit"
)

// Defaults of Limits. The first three are those of kube-apiserver.
const (
	DefaultMaxRequestBytes  = 3 << 20
	DefaultRequestsInFlight = 400
	DefaultMutatingInFlight = 200
	// DefaultWatchesPerClient is far above the two dozen of an agent that watches
	// every kind, and below what would fill the memory of a small machine.
	DefaultWatchesPerClient = 1000
	// DefaultEventsPerSecond is far above what an agent has to tell.
	DefaultEventsPerSecond = 20
	// maxEventBurst: a user may write so many seconds' worth of Events at once, as when many
	// workloads of a node end together.
	maxEventBurst = 30
	// DefaultSlowClient: TCP itself gives up on a peer that takes nothing only
	// after many minutes.
	DefaultSlowClient = 30 * time.Second

	// leasesInFlight are the slots for leases of nodes. A renewal takes milliseconds,
	// and every node renews each 10 s, so this is enough for 10,000 nodes and more.
	leasesInFlight = 100
	// leasesPerNode: an agent does one thing at a time; a second one may be there
	// while it restarts.
	leasesPerNode = 4
	// streamsPerConnection of HTTP/2, as in kube-apiserver.
	streamsPerConnection = 100
	// drainTime is how long what is left of a body that was not read is waited for,
	// after the answer.
	drainTime = time.Second
)

// Limits keep one client from harming the others. What goes beyond is refused
// with 408, 413 or 429, and counted. Zero fields: the defaults.
type Limits struct {
	// MaxRequestBytes of a body.
	MaxRequestBytes int64
	// RequestsInFlight and MutatingInFlight are how many reads and how many writes
	// are worked on at a time; watches do not count. One user has at most a quarter of
	// each. Administrators are always served, so that they can help. A write counts
	// from when its body was read. Nodes' Leases do not count: they have slots of
	// their own.
	RequestsInFlight, MutatingInFlight int
	// WatchesPerClient are how many watches one user has open.
	WatchesPerClient int
	// EventsPerSecond that one user may write, with bursts of maxEventBurst seconds' worth.
	// Administrators have no limit. It is what the admission plugin EventRateLimit is in
	// Kubernetes.
	EventsPerSecond int
	// SlowClient is how long a watcher may take to accept a part of the answer
	// until it is cut off. Until then a bounded buffer is held for it.
	SlowClient time.Duration
	// BodyTime is how long a client may take to send a body.
	BodyTime time.Duration
	// BodyMemory is for bodies and what they are decoded to; one user has a quarter.
	// It is raised to what four bodies of the largest size take.
	BodyMemory int64
}

func (l Limits) orDefaults() Limits {
	l.MaxRequestBytes = cmp.Or(l.MaxRequestBytes, DefaultMaxRequestBytes)
	largest := bytesPerRequest + 2*l.MaxRequestBytes + bytesPerValue*maxValues
	return Limits{
		MaxRequestBytes:  l.MaxRequestBytes,
		RequestsInFlight: cmp.Or(l.RequestsInFlight, DefaultRequestsInFlight),
		MutatingInFlight: cmp.Or(l.MutatingInFlight, DefaultMutatingInFlight),
		WatchesPerClient: cmp.Or(l.WatchesPerClient, DefaultWatchesPerClient),
		EventsPerSecond:  cmp.Or(l.EventsPerSecond, DefaultEventsPerSecond),
		SlowClient:       cmp.Or(l.SlowClient, DefaultSlowClient),
		BodyTime:         cmp.Or(l.BodyTime, DefaultBodyTime),
		BodyMemory:       max(cmp.Or(l.BodyMemory, DefaultBodyMemory), 4*largest),
	}
}

// limiter holds requests to the limits that upstream's server does not know, and
// counts what either refuses.
type limiter struct {
	Limits
	errors  runtime.NegotiatedSerializer
	refused *prometheus.CounterVec
	slow    prometheus.Counter
	open    prometheus.Gauge

	reads, writes, leases *lane

	events *ratelimit.Limiter // by user

	mu      sync.Mutex
	watches map[string]int // by user
}

// Names of the limits, in the metric of refusals.
const (
	limitBody     = "request_bytes"
	limitRead     = "requests_in_flight"
	limitMutating = "mutating_requests_in_flight"
	limitLeases   = "node_leases_in_flight"
	limitWatches  = "watches_per_client"
	limitEvents   = "events_per_second"
	limitTime     = "request_time"
	limitMemory   = "request_memory"
)

func newLimiter(l Limits, errors runtime.NegotiatedSerializer) *limiter {
	out := &limiter{
		Limits: l.orDefaults(), errors: errors, watches: map[string]int{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxima_api_requests_refused_total", Help: "Requests that went beyond a limit.",
		}, []string{"limit"}),
		slow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "proxima_api_slow_clients_total", Help: "Watches that were cut off, as their client did not read.",
		}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "proxima_api_watches", Help: "Watches that are open.",
		}),
	}
	for _, limit := range []string{limitBody, limitRead, limitMutating, limitLeases, limitWatches, limitEvents, limitTime, limitMemory} {
		out.refused.WithLabelValues(limit)
	}
	out.events = ratelimit.New(rate.Limit(out.EventsPerSecond), maxEventBurst*out.EventsPerSecond)
	out.newLanes()
	return out
}

// Describe and Collect implement prometheus.Collector.
func (l *limiter) Describe(to chan<- *prometheus.Desc) {
	l.refused.Describe(to)
	l.slow.Describe(to)
	l.open.Describe(to)
	to <- inFlightDesc
	to <- memoryDesc
}

// Collect implements prometheus.Collector.
func (l *limiter) Collect(to chan<- prometheus.Metric) {
	l.refused.Collect(to)
	l.slow.Collect(to)
	l.open.Collect(to)
	l.collectLanes(to)
}

// configure puts the limits around upstream's chain and at its end, after
// authorization. Upstream's own slots are off: they are taken before the body is
// read, and by unauthorized requests too.
func (l *limiter) configure(c *genericapiserver.Config) {
	c.MaxRequestBodyBytes = l.MaxRequestBytes
	c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = 0, 0
	c.JSONPatchMaxCopyBytes = maxPatchCopy
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return l.outside(genericapiserver.DefaultBuildHandlerChain(l.inside(handler, c), c), c)
	}
}

// inside runs after authentication and authorization: it counts watches and assigns slots.
func (l *limiter) inside(next http.Handler, c *genericapiserver.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := request.RequestInfoFrom(r.Context())
		who, ok := request.UserFrom(r.Context())
		if info == nil || !ok {
			next.ServeHTTP(w, r)
			return
		}
		q := &arrival{limiter: l, info: info, who: who}
		if c.LongRunningFunc(r, info) {
			q.serveWatch(w, r, next)
			return
		}
		q.serve(w, r, next)
	})
}

// refuse a request with an API error.
func (l *limiter) refuse(w http.ResponseWriter, r *http.Request, info *request.RequestInfo, err error) {
	responsewriters.ErrorNegotiated(err, l.errors, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
}

// Clients that are refused come again after so long. A watch ends seldom.
const (
	retryAfterSeconds      = 1
	watchRetryAfterSeconds = 5
)

func (l *limiter) begin(who string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watches[who] >= l.WatchesPerClient {
		return false
	}
	l.watches[who]++
	l.open.Inc()
	return true
}

func (l *limiter) end(who string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open.Dec()
	if l.watches[who]--; l.watches[who] == 0 {
		delete(l.watches, who)
	}
}

// outside sees the connection: it bounds how long a client may take.
func (l *limiter) outside(next http.Handler, c *genericapiserver.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, err := c.RequestInfoResolver.NewRequestInfo(r)
		if err != nil {
			next.ServeHTTP(w, r) // which reports the error
			return
		}
		t := newTransfer(w, time.Now().Add(c.RequestTimeout+l.SlowClient))
		defer t.over()
		t.unread.Store(r.ContentLength != 0)
		ctx, cancel := t.context(r.Context())
		defer cancel()
		r = r.WithContext(ctx)
		out := &limitedWriter{ResponseWriter: w, limiter: l, transfer: t, http1: r.ProtoMajor == 1}
		if c.LongRunningFunc(r, info) {
			out.timer = time.AfterFunc(time.Hour, func() {
				l.slow.Inc()
				t.writeUntil(time.Now())
			})
			out.timer.Stop()
			defer out.timer.Stop()
		} else {
			// The request is over by then. The deadline is for the connection, whose
			// peer may be gone. The server resets both deadlines afterwards.
			t.readUntil(t.until)
			t.writeUntil(t.until)
		}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(out), r)
		if t.unread.Load() {
			t.readUntil(time.Now().Add(drainTime))
		}
	})
}

func isMutating(verb string) bool {
	switch verb {
	case "get", "list", "watch", "head", "options":
		return false
	}
	return true
}

// limitedWriter counts bodies that were too large, and times each write of a watch.
type limitedWriter struct {
	http.ResponseWriter
	limiter  *limiter
	transfer *transfer
	http1    bool
	begun    bool
	timer    *time.Timer // nil: not timed
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *limitedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *limitedWriter) WriteHeader(code int) {
	if code == http.StatusRequestEntityTooLarge {
		w.limiter.refused.WithLabelValues(limitBody).Inc()
	}
	w.begin()
	w.ResponseWriter.WriteHeader(code)
}

// begin the answer. In HTTP/1 the server reads what is left of a body before it
// answers, unless the connection ends with the answer.
func (w *limitedWriter) begin() {
	if !w.begun && w.http1 && w.transfer.unread.Load() {
		w.Header().Set("Connection", "close")
	}
	w.begun = true
}

// Write implements http.ResponseWriter. It blocks while the client does not read.
func (w *limitedWriter) Write(p []byte) (int, error) {
	w.begin()
	if w.timer != nil {
		w.timer.Reset(w.limiter.SlowClient)
		defer w.timer.Stop()
	}
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher. It blocks as Write does.
func (w *limitedWriter) Flush() {
	if w.timer != nil {
		w.timer.Reset(w.limiter.SlowClient)
		defer w.timer.Stop()
	}
	w.begin()
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}
