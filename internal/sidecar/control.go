package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/sidecar/redirect"
	"github.com/proxima-mesh/proxima/internal/sidecar/relay"
	"github.com/proxima-mesh/proxima/internal/sidecar/supervise"
	"github.com/proxima-mesh/proxima/internal/version"
)

// Status is what the control socket answers at /status.
type Status struct {
	Node string `json:"node"`
	// Version of the supervisor.
	Version  string           `json:"version"`
	Ready    string           `json:"ready"` // "true", or why not
	Draining bool             `json:"draining"`
	Envoy    supervise.Status `json:"envoy"`
	Relay    relay.Status     `json:"relay"`
	Identity *IdentityStatus  `json:"identity,omitempty"`
	// Refused connections past the proxy, by port in mode Strict.
	Refused map[uint16]uint64 `json:"refused,omitempty"`
	// Metrics is where they are served; "": nowhere. MetricsProblem is what keeps them from where the
	// settings of the control plane have them.
	Metrics        string `json:"metrics,omitempty"`
	MetricsProblem string `json:"metricsProblem,omitempty"`
	// Problem that keeps the certificate from being renewed.
	Problem string `json:"problem,omitempty"`
}

// IdentityStatus is a certificate without its key.
type IdentityStatus struct {
	ID       string    `json:"id"`
	Serial   string    `json:"serial"`
	Issuer   string    `json:"issuer"`
	NotAfter time.Time `json:"notAfter"`
}

// control is the API of the control socket, for the owner of the workload: GET /status and
// /ready, and POST /drain, which returns when inbound listeners drain.
func (s *Supervisor) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.status(r.Context())) // a client that has gone does not matter
	})
	mux.Handle("GET /ready", &supervise.Health{Ready: s.ready})
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, r *http.Request) {
		s.drain(r.Context())
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

func (s *Supervisor) status(ctx context.Context) Status {
	out := Status{Node: s.options.Node.ID, Version: version.Get().Version, Ready: "true", Draining: s.draining.Load(), Relay: s.relay.Status()}
	if s.envoy != nil {
		out.Envoy = s.envoy.Status()
	}
	if err := s.ready(ctx); err != nil {
		out.Ready = err.Error()
	}
	if i := s.keeper.Current(); i != nil {
		out.Identity = &IdentityStatus{ID: i.ID(), Serial: i.Serial(), Issuer: i.Issuer(), NotAfter: i.NotAfter()}
	}
	out.Refused = s.refused()
	out.Metrics, out.MetricsProblem = s.settings.metricsAt()
	if err := s.keeper.Problem(); err != nil {
		out.Problem = err.Error()
	}
	return out
}

// refused connections past the proxy, by strict port.
func (s *Supervisor) refused() map[uint16]uint64 {
	if !s.options.Redirect {
		return nil
	}
	out, err := redirect.Refused(s.options.Node.ID)
	if err != nil {
		s.logger.Warn("refused connections are not counted", "table", redirect.TableName, "error", err)
	}
	return out
}

// own metrics in the text format of Prometheus.
func (s *Supervisor) own() string {
	var out strings.Builder
	metric := func(name, kind, help string) {
		fmt.Fprintf(&out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	relayed := s.relay.Status()
	connected := 0
	if relayed.Upstream.Connected {
		connected = 1
	}
	metric("proxima_sidecar_upstream_connected", "gauge", "Whether there is a stream of the control plane.")
	fmt.Fprintf(&out, "proxima_sidecar_upstream_connected %d\n", connected)
	metric("proxima_sidecar_responses_total", "counter", "Responses of the control plane, by what Envoy said of them.")
	fmt.Fprintf(&out, "proxima_sidecar_responses_total{result=\"accepted\"} %d\n", relayed.Acknowledged)
	fmt.Fprintf(&out, "proxima_sidecar_responses_total{result=\"refused\"} %d\n", relayed.Rejected)
	metric("proxima_sidecar_forgotten_resources_total", "counter", "Resources of the disk that Envoy refused.")
	fmt.Fprintf(&out, "proxima_sidecar_forgotten_resources_total %d\n", relayed.Forgotten)
	metric("proxima_sidecar_resources", "gauge", "Resources that Envoy has accepted, by type.")
	for _, url := range slices.Sorted(maps.Keys(relayed.Resources)) {
		kind := path.Ext(path.Base(url))
		fmt.Fprintf(&out, "proxima_sidecar_resources{type=%q} %d\n", strings.TrimPrefix(kind, "."), relayed.Resources[url])
	}
	if s.envoy != nil {
		metric("proxima_sidecar_envoy_restarts_total", "counter", "Starts of Envoy after it had ended by itself.")
		fmt.Fprintf(&out, "proxima_sidecar_envoy_restarts_total %d\n", s.envoy.Status().Restarts)
	}
	if refused := s.refused(); len(refused) > 0 {
		metric("proxima_sidecar_refused_connections_total", "counter", "Connections that came past the proxy to a port in mode Strict, by port.")
		for _, port := range slices.Sorted(maps.Keys(refused)) {
			fmt.Fprintf(&out, "proxima_sidecar_refused_connections_total{port=\"%d\"} %d\n", port, refused[port])
		}
	}
	sent, dropped := s.sinks.Counters()
	metric("proxima_sidecar_access_log_lines_total", "counter", "Lines of access logs for servers by TCP, by what became of them.")
	fmt.Fprintf(&out, "proxima_sidecar_access_log_lines_total{result=\"sent\"} %d\nproxima_sidecar_access_log_lines_total{result=\"dropped\"} %d\n", sent, dropped)
	if s.nameserver != nil {
		local, forwarded, failed := s.nameserver.Counters()
		metric("proxima_sidecar_dns_questions_total", "counter", "Questions of DNS, by who answered: the supervisor itself, a resolver of the machine, or nobody.")
		fmt.Fprintf(&out, "proxima_sidecar_dns_questions_total{by=\"self\"} %d\nproxima_sidecar_dns_questions_total{by=\"resolver\"} %d\n", local, forwarded)
		fmt.Fprintf(&out, "proxima_sidecar_dns_questions_total{by=\"nobody\"} %d\n", failed)
		metric("proxima_sidecar_dns_names", "gauge", "Services and names of the mesh that questions of DNS are answered for.")
		fmt.Fprintf(&out, "proxima_sidecar_dns_names %d\n", s.names.Len())
	}
	if i := s.keeper.Current(); i != nil {
		metric("proxima_sidecar_certificate_expiry_timestamp_seconds", "gauge", "When the workload's certificate runs out, in Unix time.")
		fmt.Fprintf(&out, "proxima_sidecar_certificate_expiry_timestamp_seconds %d\n", i.NotAfter().Unix())
	}
	return out.String()
}
