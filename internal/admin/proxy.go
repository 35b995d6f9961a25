package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Paths of what a control plane asks agents and gateways for, wherever they are. Query:
// name, and for a Dataplane its namespace; zone, at global.
const (
	// ProxyConfigPath answers all that one carries, as a NodeDump.
	ProxyConfigPath = proxyPrefix + string(ProxyConfig)
	// ProxyClustersPath answers its service ports and their endpoints, as a NodeClusters.
	ProxyClustersPath = proxyPrefix + string(ProxyClusters)
	// ProxyStatsPath answers its metrics, in the text format of Prometheus.
	ProxyStatsPath = proxyPrefix + string(ProxyStats)

	// ProxyConnectionsPath answers how many connections are open at the endpoints of a node's
	// workloads, as a NodeConnections. Not at global.
	ProxyConnectionsPath = proxyPrefix + string(ProxyConnections)

	proxyPrefix = "/proxima/v1/proxy/"
)

// ProxyPaths are the paths above.
func ProxyPaths() []string {
	return []string{ProxyConfigPath, ProxyClustersPath, ProxyStatsPath, ProxyConnectionsPath}
}

// proxyTimeout bounds a call with all its hops.
const proxyTimeout = 5 * time.Second

// ProxyQuestion is what an agent or a gateway is asked for.
type ProxyQuestion string

// The questions.
const (
	ProxyConfig   ProxyQuestion = "config"
	ProxyClusters ProxyQuestion = "clusters"
	ProxyStats    ProxyQuestion = "stats"

	ProxyConnections ProxyQuestion = "connections"
)

// ProxyCall is a question, and whom it is for.
type ProxyCall struct {
	Question ProxyQuestion
	// Zone; empty: that of the control plane that is asked.
	Zone string
	// Name of a node, ingress or egress or, with a Namespace, of a Dataplane, for which the
	// agent of its node answers.
	Namespace, Name string
}

// Proxies asks agents and gateways.
type Proxies interface {
	// Call returns the answer. Its errors are gRPC statuses, of which Unavailable names the
	// hop that is missing. ErrElsewhere: another instance may have the stream.
	Call(ctx context.Context, call ProxyCall) ([]byte, error)
}

// path and query by which another instance is asked.
func (c ProxyCall) uri() string {
	q := url.Values{"name": {c.Name}}
	for key, value := range map[string]string{"zone": c.Zone, "namespace": c.Namespace} {
		if value != "" {
			q.Set(key, value)
		}
	}
	return proxyPrefix + string(c.Question) + "?" + q.Encode()
}

func withProxies(c Config, handlers map[string]http.Handler, more ...ProxyQuestion) map[string]http.Handler {
	for _, q := range append([]ProxyQuestion{ProxyConfig, ProxyClusters, ProxyStats}, more...) {
		handlers[proxyPrefix+string(q)] = get(proxyHandler{c, q})
	}
	return handlers
}

type proxyHandler struct {
	Config
	question ProxyQuestion
}

// ServeHTTP implements http.Handler.
func (h proxyHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	call := ProxyCall{Question: h.question, Zone: q.Get("zone"), Namespace: q.Get("namespace"), Name: q.Get("name")}
	if call.Name == "" {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest,
			errors.New("name: give that of a node, ingress or egress, or of a Dataplane"))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), proxyTimeout)
	defer cancel()
	body, err := h.Proxies.Call(ctx, call)
	switch {
	case errors.Is(err, ErrElsewhere):
		h.elsewhere(w, r.WithContext(ctx), nil, err)
	case err != nil:
		refuseStatus(w, err)
	default:
		w.Header().Set("Content-Type", "application/json")
		if h.question == ProxyStats {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		}
		_, _ = w.Write(body) // the client has gone, if it fails
	}
}

// ofCode are the answers for codes of gRPC; others are internal errors.
var ofCode = map[codes.Code]struct {
	http   int
	reason metav1.StatusReason
}{
	codes.InvalidArgument:    {http.StatusBadRequest, metav1.StatusReasonBadRequest},
	codes.NotFound:           {http.StatusNotFound, metav1.StatusReasonNotFound},
	codes.FailedPrecondition: {http.StatusConflict, metav1.StatusReasonConflict},
	codes.ResourceExhausted:  {http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests},
	codes.Unavailable:        {http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable},
	codes.Canceled:           {http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable},
	codes.DeadlineExceeded:   {http.StatusGatewayTimeout, metav1.StatusReasonTimeout},
	codes.Unimplemented:      {http.StatusNotImplemented, metav1.StatusReasonUnknown},
}

// refuseStatus answers with a gRPC status.
func refuseStatus(w http.ResponseWriter, err error) {
	s := status.Convert(err)
	as, ok := ofCode[s.Code()]
	if !ok {
		as.http, as.reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
	}
	refuse(w, as.http, as.reason, errors.New(s.Message()))
}

// CallElsewhere has the other instances of a control plane answer a call that this one
// cannot, with err, as it does not have the stream. instances may be nil. Its errors are gRPC
// statuses.
func CallElsewhere(ctx context.Context, instances Instances, log *slog.Logger, call ProxyCall, err error) ([]byte, error) {
	passed, notHere := others{instances, log}.ask(ctx, http.MethodGet, call.uri(), nil)
	if passed == nil {
		return nil, status.Error(codes.Unavailable, notHere.explain(err).Error())
	}
	if passed.code == http.StatusOK {
		return passed.body, nil
	}
	return nil, passed.failure()
}

// failure is the gRPC status of an answer that is no success.
func (p *passedAnswer) failure() error {
	var refused metav1.Status
	if json.Unmarshal(p.body, &refused) != nil || refused.Message == "" {
		refused.Message = fmt.Sprintf("another instance answered %d: %.200s", p.code, strings.TrimSpace(string(p.body)))
	}
	for code, as := range ofCode {
		if as.http == p.code && code != codes.Canceled {
			return status.Error(code, refused.Message)
		}
	}
	return status.Error(codes.Internal, refused.Message)
}
