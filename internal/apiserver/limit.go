package apiserver

import (
	"cmp"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Defaults of Limits. The first three are those of kube-apiserver.
const (
	DefaultMaxRequestBytes  = 3 << 20
	DefaultRequestsInFlight = 400
	DefaultMutatingInFlight = 200
	// DefaultWatchesPerClient is far above the two dozen of an agent that watches
	// every kind, and below what would fill the memory of a small machine.
	DefaultWatchesPerClient = 1000
	// DefaultSlowClient: TCP itself gives up on a peer that takes nothing only
	// after many minutes.
	DefaultSlowClient = 30 * time.Second
)

// Limits keep one client from harming the others. What goes beyond is refused
// with 413 or 429, and counted. Zero fields: the defaults.
type Limits struct {
	// MaxRequestBytes of a body.
	MaxRequestBytes int64
	// RequestsInFlight and MutatingInFlight are how many reads and how many writes
	// are worked on at a time; watches do not count. Administrators are always
	// served, so that they can help.
	RequestsInFlight, MutatingInFlight int
	// WatchesPerClient are how many watches one user has open.
	WatchesPerClient int
	// SlowClient is how long a watcher may take to accept a part of the answer
	// until it is cut off. Until then a bounded buffer is held for it.
	SlowClient time.Duration
}

func (l Limits) orDefaults() Limits {
	return Limits{
		MaxRequestBytes:  cmp.Or(l.MaxRequestBytes, DefaultMaxRequestBytes),
		RequestsInFlight: cmp.Or(l.RequestsInFlight, DefaultRequestsInFlight),
		MutatingInFlight: cmp.Or(l.MutatingInFlight, DefaultMutatingInFlight),
		WatchesPerClient: cmp.Or(l.WatchesPerClient, DefaultWatchesPerClient),
		SlowClient:       cmp.Or(l.SlowClient, DefaultSlowClient),
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

	mu      sync.Mutex
	watches map[string]int // by user
}

// Names of the limits, in the metric of refusals.
const (
	limitBody     = "request_bytes"
	limitRead     = "requests_in_flight"
	limitMutating = "mutating_requests_in_flight"
	limitWatches  = "watches_per_client"
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
	for _, limit := range []string{limitBody, limitRead, limitMutating, limitWatches} {
		out.refused.WithLabelValues(limit)
	}
	return out
}

// Describe and Collect implement prometheus.Collector.
func (l *limiter) Describe(to chan<- *prometheus.Desc) {
	l.refused.Describe(to)
	l.slow.Describe(to)
	l.open.Describe(to)
}

// Collect implements prometheus.Collector.
func (l *limiter) Collect(to chan<- prometheus.Metric) {
	l.refused.Collect(to)
	l.slow.Collect(to)
	l.open.Collect(to)
}

// configure sets upstream's own limits and puts this one's around its chain.
func (l *limiter) configure(c *genericapiserver.Config) {
	c.MaxRequestBodyBytes = l.MaxRequestBytes
	c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = l.RequestsInFlight, l.MutatingInFlight
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return l.outside(genericapiserver.DefaultBuildHandlerChain(l.inside(handler), c), c)
	}
}

// inside knows who asks: it counts watches.
func (l *limiter) inside(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := request.RequestInfoFrom(r.Context())
		who, ok := request.UserFrom(r.Context())
		if info == nil || info.Verb != "watch" || !ok {
			next.ServeHTTP(w, r)
			return
		}
		if !l.begin(who.GetName()) {
			l.refused.WithLabelValues(limitWatches).Inc()
			err := apierrors.NewTooManyRequests(fmt.Sprintf("%s has %d watches open already: end some, or raise --max-watches-per-client of the control plane",
				who.GetName(), l.WatchesPerClient), retryAfterSeconds)
			responsewriters.ErrorNegotiated(err, l.errors, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
			return
		}
		defer l.end(who.GetName())
		next.ServeHTTP(w, r)
	})
}

// retryAfterSeconds is what a refused watcher is told; a watch ends seldom.
const retryAfterSeconds = 5

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
			next.ServeHTTP(w, r) // which says what is wrong
			return
		}
		control := http.NewResponseController(w)
		out := &limitedWriter{ResponseWriter: w, limiter: l, mutating: isMutating(info.Verb)}
		if c.LongRunningFunc(r, info) {
			out.watch = true
			out.timer = time.AfterFunc(time.Hour, func() {
				l.slow.Inc()
				_ = control.SetWriteDeadline(time.Now()) // fails where the connection is gone, which is as good
			})
			out.timer.Stop()
			defer out.timer.Stop()
		} else {
			// The request is over by then; this is for the connection, where nobody
			// may be left on the other side. The server takes them back after it.
			by := time.Now().Add(c.RequestTimeout + l.SlowClient)
			_ = control.SetReadDeadline(by) // not supported by recorders in tests
			_ = control.SetWriteDeadline(by)
		}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(out), r)
	})
}

func isMutating(verb string) bool {
	switch verb {
	case "get", "list", "watch", "head", "options":
		return false
	}
	return true
}

// limitedWriter counts refusals, and times each write of a watch.
type limitedWriter struct {
	http.ResponseWriter
	limiter         *limiter
	mutating, watch bool
	timer           *time.Timer // nil: not timed
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *limitedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *limitedWriter) WriteHeader(code int) {
	switch {
	case code == http.StatusRequestEntityTooLarge:
		w.limiter.refused.WithLabelValues(limitBody).Inc()
	case code != http.StatusTooManyRequests || w.watch: // refused watches are counted where they are refused
	case w.mutating:
		w.limiter.refused.WithLabelValues(limitMutating).Inc()
	default:
		w.limiter.refused.WithLabelValues(limitRead).Inc()
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter. It blocks while the client does not read.
func (w *limitedWriter) Write(p []byte) (int, error) {
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
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}
