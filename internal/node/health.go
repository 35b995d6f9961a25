package node

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// HealthHandler answers /healthz and /livez (port 10256), 200 or 503, with
// kube-proxy's body. Alive means that no change has been waiting for the mode
// for two sync periods; healthy, that moreover the first state is in place and
// the node stays. Service ports that failed alone do not count: the others are
// served, and a node full of working ones must not lose its traffic for them.
func (a *Agent) HealthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		h := a.health(time.Now())
		h.write(w, h.alive)
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		h := a.health(time.Now())
		h.write(w, h.alive && h.started && h.Eligible)
	})
	return mux
}

// Healthy reports what /healthz would answer now.
func (a *Agent) Healthy() bool {
	h := a.health(time.Now())
	return h.alive && h.started && h.Eligible
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

type health struct {
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	Eligible    bool      `json:"nodeEligible"`

	alive, started bool
}

func (a *Agent) health(now time.Time) health {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := health{LastUpdated: a.stats.lastSync, CurrentTime: now, Eligible: !a.facts.Leaving, alive: true, started: a.started}
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

func (h health) write(w http.ResponseWriter, ok bool) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(h) // the client went away
}
