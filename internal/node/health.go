package node

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
)

// HealthHandler answers /healthz and /livez (port 10256), 200 or 503, with
// kube-proxy's body. Alive means that no change has been waiting for the mode
// for two sync periods; healthy, that moreover the first state is in place and
// the node stays. Service ports that failed alone do not count: the others are
// served, and a node full of working ones must not lose its traffic for them.
func (a *Agent) HealthHandler() http.Handler { return healthHandler(a.health) }

// StartingHandler answers as HealthHandler of an agent that is alive and has no state yet.
func StartingHandler() http.Handler {
	return healthHandler(func(now time.Time) health { return health{CurrentTime: now, alive: true, stays: true} })
}

func healthHandler(of func(now time.Time) health) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		h := of(time.Now())
		h.write(w, h.alive, true)
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		h := of(time.Now())
		h.Eligible = &h.stays
		h.write(w, h.alive && h.started, h.stays)
	})
	return mux
}

// Healthy reports what /healthz would answer now.
func (a *Agent) Healthy() bool {
	h := a.health(time.Now())
	return h.alive && h.started && h.stays
}

// MetricsHandler answers /metrics and /proxyMode (port 10249).
func (a *Agent) MetricsHandler(from prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(from, promhttp.HandlerOpts{}))
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(a.opts.Mode.Name()))
	})
	return mux
}

// health is the body of kube-proxy 1.37 (ProxyHealth).
type health struct {
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	// Eligible is shown by /healthz alone.
	Eligible *bool `json:"nodeEligible,omitempty"`
	Healthy  bool  `json:"healthy"`
	// Status of both families, which are programmed together; none before the first time.
	Status map[corev1.IPFamily]familyHealth `json:"status,omitempty"`

	alive, started, stays bool
}

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

func (a *Agent) health(now time.Time) health {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := health{LastUpdated: a.stats.lastSync, CurrentTime: now, stays: !a.facts.Leaving, alive: true, started: a.started}
	if !a.complete {
		return h // nothing to do yet
	}
	late := func(since time.Time) bool { return now.Sub(since) >= 2*a.opts.SyncPeriod }
	for _, since := range a.untried() {
		h.alive = h.alive && !late(since)
	}
	for _, f := range a.failed {
		h.alive = h.alive && (f.alone || !late(f.since))
	}
	return h
}

// write the answer: healthy is of the mode, and with eligible false the node is on its way out.
func (h health) write(w http.ResponseWriter, healthy, eligible bool) {
	h.Healthy = healthy
	if h.started {
		of := familyHealth{LastUpdated: h.LastUpdated, Healthy: healthy}
		h.Status = map[corev1.IPFamily]familyHealth{corev1.IPv4Protocol: of, corev1.IPv6Protocol: of}
	}
	ok := healthy && eligible
	if ok {
		h.LastUpdated = h.CurrentTime // so does kube-proxy: before, it was the time of its last loop
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(h) // the client went away
}
