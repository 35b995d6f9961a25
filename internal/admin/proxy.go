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

	// ProxyStatusPath answers for the proxy of a Dataplane: its stream and its supervisor, as a
	// ProxyState.
	ProxyStatusPath = proxyPrefix + string(ProxyStatus)
	// ProxyDiffPath answers what the proxy of a Dataplane was sent, beside what it holds, as a
	// ProxyDifference.
	ProxyDiffPath = proxyPrefix + string(ProxyDiff)
	// ProxyLoggingPath answers the log levels of the proxy of a Dataplane, as Envoy's text. POST
	// changes them first, query: level, LEVEL or LOGGER=LEVEL.
	ProxyLoggingPath = proxyPrefix + string(ProxyLogging)

	// ProxyConnectionsPath answers how many connections are open at the endpoints of a node's
	// workloads, as a NodeConnections. Not at global.
	ProxyConnectionsPath = proxyPrefix + string(ProxyConnections)

	proxyPrefix = "/proxima/v1/proxy/"
)

// ProxyPaths are the paths above.
func ProxyPaths() []string {
	return []string{
		ProxyConfigPath, ProxyClustersPath, ProxyStatsPath, ProxyStatusPath, ProxyDiffPath, ProxyLoggingPath, ProxyConnectionsPath,
	}
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
	ProxyStatus   ProxyQuestion = "status"
	ProxyDiff     ProxyQuestion = "diff"
	ProxyLogging  ProxyQuestion = "logging"

	ProxyConnections ProxyQuestion = "connections"
)

// ProxyCall is a question, and whom it is for.
type ProxyCall struct {
	Question ProxyQuestion
	// Zone; empty: that of the control plane that is asked.
	Zone string
	// Name of a node, ingress or egress or, with a Namespace, of a Dataplane, for which the
	// supervisor of its proxy answers or, where it has none, the agent of its node.
	Namespace, Name string
	// Level of ProxyLogging is what is changed; empty: nothing is.
	Level string
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
	for key, value := range map[string]string{"zone": c.Zone, "namespace": c.Namespace, "level": c.Level} {
		if value != "" {
			q.Set(key, value)
		}
	}
	return proxyPrefix + string(c.Question) + "?" + q.Encode()
}

// method by which another instance is asked: a change is no GET.
func (c ProxyCall) method() string {
	if c.Level != "" {
		return http.MethodPost
	}
	return http.MethodGet
}

func withProxies(c Config, handlers map[string]http.Handler, more ...ProxyQuestion) map[string]http.Handler {
	for _, q := range append([]ProxyQuestion{ProxyConfig, ProxyClusters, ProxyStats, ProxyStatus, ProxyDiff}, more...) {
		handlers[proxyPrefix+string(q)] = get(proxyHandler{c, q})
	}
	handlers[ProxyLoggingPath] = proxyHandler{c, ProxyLogging}
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
	if h.question == ProxyLogging {
		call.Level = q.Get("level")
	}
	if wrong := call.check(r.Method); wrong != nil {
		refuse(w, wrong.http, wrong.reason, wrong.err)
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
		switch h.question {
		case ProxyStats:
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		case ProxyLogging:
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		}
		_, _ = w.Write(body) // the client has gone, if it fails
	}
}

// wrongCall is why a request is not passed on.
type wrongCall struct {
	http   int
	reason metav1.StatusReason
	err    error
}

// check a call that came by a method of HTTP; nil: it is fine.
func (c ProxyCall) check(method string) *wrongCall {
	ofProxy := c.Question == ProxyStatus || c.Question == ProxyDiff || c.Question == ProxyLogging
	switch {
	case c.Name == "":
		return &wrongCall{http.StatusBadRequest, metav1.StatusReasonBadRequest,
			errors.New("name: give that of a node, ingress or egress, or of a Dataplane")}
	case ofProxy && c.Namespace == "":
		return &wrongCall{http.StatusBadRequest, metav1.StatusReasonBadRequest, errors.New("namespace: give that of a Dataplane with a proxy")}
	case c.Question == ProxyLogging && method != c.method():
		return &wrongCall{http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			errors.New("log levels are read by GET without a level, and changed by POST with one")}
	}
	return nil
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
	passed, notHere := others{instances, log}.ask(ctx, call.method(), call.uri(), nil)
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
