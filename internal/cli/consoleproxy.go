package cli

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/console"
	"github.com/proxima-mesh/proxima/internal/kubernetes/extension"
)

const (
	// consoleCodeFor is how long a one-time code is taken.
	consoleCodeFor = time.Minute
	// maxConsoleGuesses: so many wrong codes and secrets end the listener.
	maxConsoleGuesses = 20
	// maxConsoleSessions that codes were exchanged for: tabs of a browser.
	maxConsoleSessions = 100
	// maxConsoleBody of a request, in bytes: the API takes no more by default.
	maxConsoleBody = 3 << 20

	// consoleSessionPath exchanges a code for a secret (POST), and says what a secret is for (GET).
	consoleSessionPath = console.Path + "session"
	// consoleCodePath gives a code for another tab (POST).
	consoleCodePath = console.Path + "code"
)

// consoleProxy serves the console on loopback, and forwards its requests to the API. A browser proves with a secret that it is the
// user's; the credentials of the API never leave this process. Other users of the machine reach the listener too, and so do pages of
// other origins in the user's browser: both are refused.
type consoleProxy struct {
	pages   http.Handler
	forward http.Handler
	// hosts by which a browser may name the listener.
	hosts []string
	write bool
	// server is the address of the API, for people; until is when the listener ends.
	server string
	until  time.Time
	clock  clock.PassiveClock
	log    *slog.Logger
	// end the listener, with the reason.
	end func(error)

	mu       sync.Mutex
	codes    map[[sha256.Size]byte]time.Time // until when
	sessions map[[sha256.Size]byte]struct{}
	guesses  int
}

// consoleSession is what a browser gets for a code, and what it may ask about a secret.
type consoleSession struct {
	// Secret to send as a bearer token; only in answer to a code.
	Secret string    `json:"secret,omitempty"`
	Server string    `json:"server"`
	Write  bool      `json:"write"`
	Until  time.Time `json:"until"`
}

// newForwarder sends requests to an API with the credentials of a transport. aggregated: our paths are those of an aggregated API of a
// cluster.
func newForwarder(api *url.URL, transport http.RoundTripper, aggregated bool, log *slog.Logger) http.Handler {
	return &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // streams
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		Rewrite: func(r *httputil.ProxyRequest) {
			at := r.In.URL.Path
			if group := extension.GroupPath(at); aggregated && group != "" {
				at = group
			}
			to := *api
			to.Path, to.RawQuery = strings.TrimSuffix(api.Path, "/")+at, r.In.URL.RawQuery
			r.Out.URL, r.Out.Host = &to, ""
			kept := http.Header{}
			for _, name := range []string{"Accept", "Content-Type", "Content-Length", "If-None-Match"} {
				if values := r.In.Header.Values(name); values != nil {
					kept[name] = values
				}
			}
			r.Out.Header = kept // no credentials of the browser, no impersonation
		},
		ModifyResponse: func(resp *http.Response) error {
			for name := range resp.Header {
				if name == "Set-Cookie" || name == "Www-Authenticate" || name == "Location" || strings.HasPrefix(name, "Access-Control-") {
					resp.Header.Del(name)
				}
			}
			console.SetHeaders(resp.Header)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				answerConsole(w, http.StatusBadGateway, metav1.StatusReasonServiceUnavailable, "the control plane did not answer: "+err.Error())
			}
		},
	}
}

// ServeHTTP implements http.Handler.
func (p *consoleProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	console.SetHeaders(w.Header())
	if why := p.foreign(r); why != "" {
		p.refuse(w, r, http.StatusForbidden, why)
		return
	}
	switch at := r.URL.Path; {
	case at == consoleSessionPath && r.Method == http.MethodPost:
		p.exchange(w, r)
	case at == consoleSessionPath || at == consoleCodePath:
		if !p.known(r) {
			p.refuse(w, r, http.StatusUnauthorized, "no valid secret")
			return
		}
		p.ownAnswer(w, r)
	case at+"/" == console.Path || strings.HasPrefix(at, console.Path):
		p.pages.ServeHTTP(w, r)
	default:
		p.pass(w, r)
	}
}

// foreign says why a request is not one of our pages in a browser of this machine; empty: it is, as far as a request shows.
func (p *consoleProxy) foreign(r *http.Request) string {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Values("Origin")
	switch {
	case !slices.Contains(p.hosts, r.Host):
		return "the name of another host"
	case len(origin) > 1 || len(origin) == 1 && origin[0] != "http://"+r.Host:
		return "a page of another origin"
	case site != "" && site != "same-origin" && site != "none":
		return "a page of another site"
	case r.URL.Host != "" || r.Method == http.MethodConnect:
		return "a request to a proxy"
	case r.Header.Get("Upgrade") != "":
		return "a change of the protocol"
	case r.URL.RawPath != "" || strings.ContainsAny(r.URL.Path, "\\\x00%;") || !straight(r.URL.Path):
		return "a path that is not in its plain form"
	}
	return ""
}

// straight: nothing on the way reads the path in another way than we do.
func straight(p string) bool {
	return strings.HasPrefix(p, "/") && (path.Clean(p) == p || path.Clean(p)+"/" == p && p != "//")
}

func (p *consoleProxy) ownAnswer(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == consoleSessionPath && r.Method == http.MethodGet:
		writeConsole(w, consoleSession{Server: p.server, Write: p.write, Until: p.until})
	case r.URL.Path == consoleCodePath && r.Method == http.MethodPost:
		writeConsole(w, map[string]string{"code": p.code()})
	default:
		answerConsole(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "method "+r.Method+" is not for "+r.URL.Path)
	}
}

// newSecret has as many random bits as a SHA-256 hash has.
func newSecret(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // it never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// code that is exchanged for a secret, once.
func (p *consoleProxy) code() string {
	code := newSecret(16)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.codes == nil {
		p.codes = map[[sha256.Size]byte]time.Time{}
	}
	for hash, until := range p.codes {
		if !p.clock.Now().Before(until) {
			delete(p.codes, hash)
		}
	}
	p.codes[sha256.Sum256([]byte(code))] = p.clock.Now().Add(consoleCodeFor)
	return code
}

// exchange a code for a secret.
func (p *consoleProxy) exchange(w http.ResponseWriter, r *http.Request) {
	var in struct{ Code string }
	if err := json.NewDecoder(io.LimitReader(r.Body, 1024)).Decode(&in); err != nil {
		answerConsole(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "want {\"code\": …}")
		return
	}
	p.mu.Lock()
	hash := sha256.Sum256([]byte(in.Code))
	until, ok := p.codes[hash]
	delete(p.codes, hash)
	ok = ok && p.clock.Now().Before(until) && len(p.sessions) < maxConsoleSessions
	secret := ""
	if ok {
		if p.sessions == nil {
			p.sessions = map[[sha256.Size]byte]struct{}{}
		}
		secret = newSecret(32)
		p.sessions[sha256.Sum256([]byte(secret))] = struct{}{}
	}
	p.mu.Unlock()
	if !ok {
		p.guessed()
		p.refuse(w, r, http.StatusUnauthorized, "a code that is wrong, used or older than a minute")
		return
	}
	writeConsole(w, consoleSession{Secret: secret, Server: p.server, Write: p.write, Until: p.until})
}

// known: the request has a secret. A wrong one is a guess; none is not.
func (p *consoleProxy) known(r *http.Request) bool {
	secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || !p.clock.Now().Before(p.until) {
		return false
	}
	hash := sha256.Sum256([]byte(secret))
	p.mu.Lock()
	found := 0
	for have := range p.sessions {
		found |= subtle.ConstantTimeCompare(have[:], hash[:])
	}
	p.mu.Unlock()
	if found == 0 {
		p.guessed()
	}
	return found == 1
}

var errGuessed = errors.New("too many wrong codes and secrets: another user of this machine, or a page in the browser, tries to get in")

func (p *consoleProxy) guessed() {
	p.mu.Lock()
	p.guesses++
	end := p.guesses >= maxConsoleGuesses
	if end {
		clear(p.sessions)
		clear(p.codes)
	}
	p.mu.Unlock()
	if end {
		p.end(errGuessed)
	}
}

// refuse a request, and log what it was without what may be a secret.
func (p *consoleProxy) refuse(w http.ResponseWriter, r *http.Request, code int, why string) {
	p.log.Warn("a request to the console was refused", "why", why, "method", r.Method, "path", r.URL.Path, "host", r.Host, "peer", r.RemoteAddr)
	reason := metav1.StatusReasonForbidden
	if code == http.StatusUnauthorized {
		reason = metav1.StatusReasonUnauthorized
	}
	answerConsole(w, code, reason, "refused: "+why)
}

// pass a request on to the API.
func (p *consoleProxy) pass(w http.ResponseWriter, r *http.Request) {
	if !p.known(r) {
		p.refuse(w, r, http.StatusUnauthorized, "no valid secret")
		return
	}
	if why := consoleAllows(r.Method, r.URL.Path, p.write); why != "" {
		p.refuse(w, r, http.StatusForbidden, why)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxConsoleBody)
	p.forward.ServeHTTP(w, r)
}

// consoleWrites are what --write lets through: a Service's mode, a shift of a zone, and the release of a held deletion.
var consoleWrites = []struct{ method, group, resource string }{
	{http.MethodPatch, "", "services"},
	{http.MethodPost, "mesh.proxima.dev", "zoneshifts"},
}

const consoleReadOnly = "a write: start the console with --write"

// consoleAllows says why a request is not one that the console makes; empty: it is.
func consoleAllows(method, at string, write bool) string {
	read := method == http.MethodGet || method == http.MethodHead
	if strings.HasPrefix(at, "/proxima/v1/") {
		switch {
		case read, write && method == http.MethodPost && at == admin.ConfirmPath:
			return ""
		case method == http.MethodPost && at == admin.ConfirmPath:
			return consoleReadOnly
		}
		return "method " + method + " is not for this path"
	}
	q, ok := apiPathOf(at)
	switch {
	case at == "/version" && read, ok && q.resource == "" && read:
		return ""
	case !ok:
		return "a path that the console does not use"
	case slices.Contains([]string{"secrets", "globalsecrets", "proxy", "watch"}, q.resource):
		return "the console reads no " + q.resource
	case slices.Contains([]string{"proxy", "exec", "attach", "portforward", "log", "token"}, q.sub):
		return "the console does not use " + q.sub
	case read:
		return ""
	case method == http.MethodPost && (q.group == "authorization.k8s.io" || q.group == "authentication.k8s.io") &&
		slices.Contains([]string{"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}, q.resource):
		return ""
	case !write:
		return consoleReadOnly
	case q.sub != "":
		return "a write that the console does not make"
	}
	for _, w := range consoleWrites {
		if w.method == method && w.group == q.group && w.resource == q.resource {
			return ""
		}
	}
	return "a write that the console does not make"
}

// apiPath is a path of the Kubernetes API.
type apiPath struct{ group, resource, sub string }

// apiPathOf reads a path of the Kubernetes API; without a resource it is discovery.
func apiPathOf(at string) (q apiPath, ok bool) {
	parts := strings.Split(strings.Trim(at, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) <= 2, parts[0] == "apis" && len(parts) <= 3:
		return q, true
	case parts[0] == "api":
		parts = parts[2:]
	case parts[0] == "apis":
		q.group, parts = parts[1], parts[3:]
	default:
		return q, false
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	q.resource = parts[0]
	if len(parts) > 2 {
		q.sub = parts[2]
	}
	return q, len(parts) <= 3 || q.sub != ""
}

func writeConsole(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(value) // the browser may be gone
}

// answerConsole refuses as an API server does, so that pages read one kind of error.
func answerConsole(w http.ResponseWriter, code int, reason metav1.StatusReason, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{ // the browser may be gone
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: text,
	})
}
