package app

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/audit"
	"github.com/proxima-mesh/proxima/internal/controller/health"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/kubernetes/extension"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/version"
)

// ownPaths is an API that has our own paths alone, health and metrics, over TLS: none of
// Kubernetes' kinds. Who may ask is decided as in the API of other roles.
type ownPaths struct {
	dataDir       string
	log           *slog.Logger
	listener      net.Listener
	ca            *identity.Authority
	tls           *tls.Config
	mux           *http.ServeMux
	authenticator authenticator.Request
	authorizer    authorization
	metrics       prometheus.Gatherer
	ready         func() bool
	// extension answers the API server of the cluster, which asks for its name; nil: it does not.
	extension *clusterExtension
}

// maxOwnPathConnections are for the commands of some people, probes and scrapes.
const maxOwnPathConnections = 256

// newOwnPaths opens the listener.
func newOwnPaths(cfg ControlPlaneConfig, s *storage, ready func() bool, log *slog.Logger) (*ownPaths, error) {
	q := &ownPaths{
		dataDir: cfg.DataDir, log: log.With("component", "api"), ca: s.ca, mux: http.NewServeMux(), authorizer: newByCredential(),
		authenticator: access.NewAuthenticator(s.tokens, s.ca.Pool(), s.policy(), log.With("component", "authentication")),
		metrics:       s.metrics, ready: ready,
	}
	var err error
	if q.listener, err = listen("API", "--api-address", cfg.APIAddress, maxOwnPathConnections, log); err != nil {
		return nil, err
	}
	pair, err := serverCertificate(cfg, q.ca, q.listener.Addr(), nil)
	if err != nil {
		q.listener.Close()
		return nil, err
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		q.listener.Close()
		return nil, err
	}
	q.tls = &tls.Config{
		MinVersion: tls.VersionTLS12, CipherSuites: listener.CipherSuites(), Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert,
		NextProtos: []string{"h2", "http/1.1"},
	}
	q.handle()
	return q, nil
}

// handle health, the version and metrics.
func (q *ownPaths) handle() {
	alive := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") } // the client may be gone
	q.mux.HandleFunc("GET /healthz", alive)
	q.mux.HandleFunc("GET /livez", alive)
	q.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if !q.ready() {
			http.Error(w, "the cluster is still being read", http.StatusServiceUnavailable)
			return
		}
		alive(w, r)
	})
	q.mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		own := version.Get()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(apiversion.Info{GitVersion: own.Version, GitCommit: own.Commit, GoVersion: own.Go, Platform: own.Platform})
	})
	q.mux.Handle("GET /metrics", promhttp.HandlerFor(q.metrics, promhttp.HandlerOpts{}))
}

// run serves until ctx ends.
func (q *ownPaths) run(ctx context.Context) error {
	srv := listener.HTTPServer(q)
	srv.ErrorLog = slog.NewLogLogger(q.log.Handler(), slog.LevelDebug) // scans, and clients that trust another authority
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(tls.NewListener(q.listener, q.tls)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// address by which other instances reach it.
func (q *ownPaths) address(cfg ControlPlaneConfig) string {
	return net.JoinHostPort(advertisedHost(cfg.AdvertiseAddress, q.listener.Addr()), portOf(q.listener.Addr()))
}

func (q *ownPaths) close() { q.listener.Close() }

func (q *ownPaths) writeKubeconfig() error {
	return writeKubeconfig(filepath.Join(q.dataDir, "kubeconfig"), "https://"+reachable(q.listener.Addr()), q.ca)
}

// ServeHTTP implements http.Handler: it admits a request, or refuses it with the reason.
func (q *ownPaths) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if x := q.extension; x != nil && r.TLS != nil && r.TLS.ServerName == x.name {
		x.mux.ServeHTTP(w, r)
		return
	}
	who, ok, err := q.authenticator.AuthenticateRequest(r)
	switch {
	case errors.Is(err, access.ErrServiceAccount):
		refuseRequest(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, err.Error())
		return
	case errors.Is(err, access.ErrNotReviewed):
		refuseRequest(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, access.ErrNotReviewed.Error()+"; try again")
		return
	case err != nil || !ok:
		q.log.Info("credentials refused", "from", r.RemoteAddr, "error", err)
		refuseRequest(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized,
			"the credentials are not valid here: use the kubeconfig of the data directory")
		return
	}
	decision, reason, err := q.authorizer.Authorize(r.Context(), authorizer.AttributesRecord{
		User: who.User, Verb: strings.ToLower(r.Method), Path: r.URL.Path,
	})
	if err != nil || decision != authorizer.DecisionAllow {
		refuseRequest(w, http.StatusForbidden, metav1.StatusReasonForbidden, reason)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/api/") || strings.HasPrefix(r.URL.Path, "/apis/") {
		refuseRequest(w, http.StatusNotFound, metav1.StatusReasonNotFound,
			"this control plane serves no objects: they are in the API of the cluster; here are status, explain and simulate")
		return
	}
	q.mux.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), who.User)))
}

// refuseRequest as the Kubernetes API does.
func refuseRequest(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	extension.Refuse(w, code, reason, message)
}

// clusterStore is the state of a cluster as a store, for status: its epoch, and whether it can
// be read.
type clusterStore struct {
	store.Store
	epoch string
	reads *clusterReads
}

// Epoch implements store.Store.
func (s clusterStore) Epoch() string { return s.epoch }

// Ready implements store.Store.
func (s clusterStore) Ready(context.Context) error { return s.reads.problem() }

// nobody are the agents, leases and tokens of a control plane that has none.
type nobody struct{}

// Status implements admin.Streams.
func (nobody) Status() []stream.StreamStatus { return nil }

// Suspects implements admin.Suspicion.
func (nobody) Suspects() []health.Suspect { return nil }

// Unreachable implements admin.Suspicion.
func (nobody) Unreachable() []string { return nil }

// State implements admin.Leases.
func (nobody) State() health.State { return health.State{} }

// List implements admin.Tokens.
func (nobody) List(context.Context) ([]identity.TokenInfo, error) { return nil, nil }

// noAudit: nothing is written, so nothing is recorded.
func noAudit() audit.States { return nil }

// nowhere: the cluster's own controllers give Services their addresses.
func nowhere(netip.Addr) bool { return false }
