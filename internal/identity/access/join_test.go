package access

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// server is a control plane reduced to identity: TLS, authentication,
// authorization and the two handlers.
type server struct {
	authority *identity.Authority
	tokens    *identity.Tokens
	auth      *Authenticator
	address   string
	requests  atomic.Int32

	store    store.Store
	sessions *Sessions
	handler  http.Handler
}

// follow runs a part of the server until the test ends.
func follow(t *testing.T, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func startServer(t *testing.T, ips ...net.IP) *server {
	t.Helper()
	s := newServer(t, identity.DefaultRenewExpired)
	if ips == nil {
		ips = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	ts := httptest.NewUnstartedServer(s.handler)
	ts.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	ts.TLS = s.tls(t, ips...)
	ts.StartTLS()
	t.Cleanup(ts.Close)
	s.address = ts.Listener.Addr().String()
	return s
}

// newServer makes a server that does not listen yet.
func newServer(t *testing.T, renewExpired time.Duration) *server {
	t.Helper()
	authority, err := identity.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	st := memory.New(memory.Options{})
	t.Cleanup(func() { st.Close() })
	log := slog.New(slog.DiscardHandler)
	s := &server{authority: authority, store: st, tokens: identity.NewTokens(st, authority.Pin())}
	revocations, err := identity.NewRevocations(t.Context(), st, renewExpired, log)
	if err != nil {
		t.Fatal(err)
	}
	follow(t, revocations.Run)
	s.sessions = NewSessions(revocations, log)
	follow(t, s.sessions.Run)
	policy := Policy{Revocations: revocations, RenewExpired: renewExpired}
	s.auth = NewAuthenticator(s.tokens, authority.Pool(), policy, log)

	mux := http.NewServeMux()
	mux.Handle(identity.CertificatesPath, NewCertificates(authority, s.tokens, policy, "cp:6444", log))
	tokens := TokenHandler(s.tokens, nil, log)
	mux.Handle(TokensPath, tokens)
	mux.Handle(TokensPath+"/", tokens)
	mux.HandleFunc("GET /healthz/watch", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("GET /version", func(http.ResponseWriter, *http.Request) {})
	s.handler = s.sessions.Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		resp, ok, err := s.auth.AuthenticateRequest(r)
		if err != nil || !ok {
			fail(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
			return
		}
		attrs := authorizer.AttributesRecord{User: resp.User, Verb: strings.ToLower(r.Method), Path: r.URL.Path}
		if d, reason, _ := NewAuthorizer().Authorize(r.Context(), attrs); d != authorizer.DecisionAllow {
			fail(w, http.StatusForbidden, "Forbidden", reason)
			return
		}
		mux.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), resp.User)))
	}))
	return s
}

// tls is the configuration with a certificate that is made now.
func (s *server) tls(t *testing.T, ips ...net.IP) *tls.Config {
	t.Helper()
	pair, err := s.authority.IssueServer("cp", []string{"localhost"}, ips)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
}

// renewer of what Enroll left.
func (s *server) renewer(t *testing.T, dir string) *identity.Renewer {
	t.Helper()
	r := identity.NewRenewer(identity.RenewerConfig{Dir: dir, Server: s.address, Logger: slog.New(slog.DiscardHandler)})
	if err := r.Problem(); err != nil {
		t.Fatal(err)
	}
	return r
}

func (s *server) token(t *testing.T, kind identity.Kind, name string) string {
	t.Helper()
	token, _, err := s.tokens.Create(t.Context(), kind, name, time.Hour, "test")
	if err != nil {
		t.Fatal(err)
	}
	return token.Reveal()
}

// call makes a request with a token, a TLS configuration, or neither.
func (s *server) call(t *testing.T, method, path, token string, config *tls.Config, body string) (int, string) {
	t.Helper()
	if config == nil {
		config = &tls.Config{RootCAs: s.authority.Pool()}
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "https://"+s.address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out bytes.Buffer
	if _, err := out.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, out.String()
}

func TestJoinAndRestart(t *testing.T) {
	s := startServer(t)
	dir := t.TempDir()
	c, err := identity.Enroll(t.Context(), "https://"+s.address+"/", s.token(t, identity.Node, "n1")+"\n", dir)
	if err != nil {
		t.Fatal(err)
	}
	if c.Subject.User != "system:node:n1" || len(c.Subject.Groups) != 1 || c.Subject.Groups[0] != identity.GroupNodes ||
		c.GRPCAddress != "cp:6444" || time.Until(c.NotAfter) > identity.ClientLife {
		t.Errorf("credentials %+v", c)
	}
	// After a restart there is no token any more.
	r := s.renewer(t, dir)
	code, body := s.call(t, "POST", identity.CertificatesPath, "", r.TLSConfig("127.0.0.1"), "not a request")
	if code != http.StatusBadRequest {
		t.Errorf("with the certificate: %d %s", code, body)
	}
	code, body = s.call(t, "GET", TokensPath, "", r.TLSConfig("127.0.0.1"), "")
	if code != http.StatusForbidden || !strings.Contains(body, "token of an admin") {
		t.Errorf("a node lists tokens: %d %s", code, body)
	}
}

// TestWorkloadCertificate: the token of a workload buys a certificate of its service account,
// for its proxy, and of nobody else.
func TestWorkloadCertificate(t *testing.T) {
	s := startServer(t)
	c, err := identity.Enroll(t.Context(), "https://"+s.address+"/", s.token(t, identity.Workload, "shop/web"), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if namespace, account, ok := identity.WorkloadName(c.Subject.User, c.Subject.Groups); !ok || namespace != "shop" || account != "web" ||
		len(c.Subject.Groups) != 1 || c.Subject.TokenID == "" || time.Until(c.NotAfter) > identity.ClientLife {
		t.Errorf("credentials %+v", c)
	}
}

func TestJoinRefusals(t *testing.T) {
	s, other := startServer(t), startServer(t)
	elsewhere := startServer(t, net.IPv4(192, 0, 2, 1))
	revoked := s.token(t, identity.Node, "n1")
	parsed, err := identity.ParseToken(revoked)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.tokens.Revoke(t.Context(), parsed.ID); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		address, token string
		want           error
		text           string
	}{
		"another authority":         {other.address, s.token(t, identity.Node, "n1"), identity.ErrPin, "check the address"},
		"right pin, other name":     {elsewhere.address, elsewhere.token(t, identity.Node, "n1"), nil, "192.0.2.1"},
		"revoked":                   {s.address, revoked, identity.ErrRefused, "401"},
		"an admin's token":          {s.address, s.token(t, identity.Admin, "ada"), identity.ErrRefused, "neither a node nor a zone nor a workload"},
		"no token":                  {s.address, "hello", nil, "not a Proxima token"},
		"no port":                   {"localhost", s.token(t, identity.Node, "n1"), nil, "HOST:PORT"},
		"not https":                 {"http://" + s.address, s.token(t, identity.Node, "n1"), nil, "HOST:PORT"},
		"no listener":               {"127.0.0.1:1", s.token(t, identity.Node, "n1"), nil, "127.0.0.1:1"},
		"unknown to the real place": {other.address, forged(t, s, other), identity.ErrRefused, "401"},
	} {
		t.Run(name, func(t *testing.T) {
			before := other.requests.Load() + elsewhere.requests.Load()
			dir := t.TempDir()
			_, err := identity.Enroll(t.Context(), tc.address, tc.token, dir)
			if err == nil || tc.want != nil && !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("error %v, want %v with %q", err, tc.want, tc.text)
			}
			if strings.Contains(err.Error(), tc.token) && len(tc.token) > 20 {
				t.Error("the error shows the token")
			}
			if after := other.requests.Load() + elsewhere.requests.Load(); errors.Is(tc.want, identity.ErrPin) && after != before {
				t.Error("a server with another authority saw the token")
			}
			if _, err := identity.LoadCredentials(dir); !errors.Is(err, identity.ErrNotJoined) {
				t.Errorf("after a refusal: %v", err)
			}
		})
	}
}

// forged is a token of s with the pin of other.
func forged(t *testing.T, s, other *server) string {
	a, b := strings.Split(s.token(t, identity.Node, "n1"), "_"), strings.Split(other.token(t, identity.Node, "n1"), "_")
	return strings.Join(append(a[:4], b[4]), "_")
}

// A machine in the middle presents the true authority's certificate, which is
// public, but can only sign with its own.
func TestJoinForgedChain(t *testing.T) {
	s := startServer(t)
	mallory, err := identity.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := mallory.IssueServer("cp", []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(append(bytes.Clone(pair.Cert), s.authority.PEM()...), pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	var seen atomic.Bool
	ts := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen.Store(true) }))
	ts.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	ts.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	ts.StartTLS()
	defer ts.Close()
	var unknown x509.UnknownAuthorityError
	_, err = identity.Enroll(t.Context(), ts.Listener.Addr().String(), s.token(t, identity.Node, "n1"), t.TempDir())
	if !errors.As(err, &unknown) || seen.Load() {
		t.Errorf("error %v, token seen %v", err, seen.Load())
	}
}

func TestRevocationEndsRenewal(t *testing.T) {
	s := startServer(t)
	dir := t.TempDir()
	token := s.token(t, identity.Zone, "east")
	c, err := identity.Enroll(t.Context(), s.address, token, dir)
	if err != nil {
		t.Fatal(err)
	}
	r := s.renewer(t, dir)
	if _, err := s.tokens.Revoke(t.Context(), c.Subject.TokenID); err != nil {
		t.Fatal(err)
	}
	code, body := s.call(t, "POST", identity.CertificatesPath, "", r.TLSConfig("127.0.0.1"), "")
	if code != http.StatusForbidden || !strings.Contains(body, "revoked") {
		t.Errorf("%d %s", code, body)
	}
}

func TestCertificatesLimits(t *testing.T) {
	s := startServer(t)
	node := s.token(t, identity.Node, "n1")
	for name, tc := range map[string]struct {
		method, token, body string
		code                int
	}{
		"GET":       {"GET", node, "", http.StatusForbidden}, // the rule table allows POST only
		"empty":     {"POST", node, "", http.StatusBadRequest},
		"too large": {"POST", node, strings.Repeat("x", identity.MaxRequest+1), http.StatusRequestEntityTooLarge},
		"anonymous": {"POST", "", "", http.StatusForbidden},
		"wrong":     {"POST", "wrong", "", http.StatusUnauthorized},
	} {
		if code, body := s.call(t, tc.method, identity.CertificatesPath, tc.token, nil, tc.body); code != tc.code {
			t.Errorf("%s: %d %s, want %d", name, code, body, tc.code)
		}
	}
}

func TestTokenHandler(t *testing.T) {
	s := startServer(t)
	admin := s.token(t, identity.Admin, "ada")
	code, body := s.call(t, "POST", TokensPath, admin, nil, `{"kind":"node","name":"n1","ttlSeconds":60}`)
	var made TokenAnswer
	if err := json.Unmarshal([]byte(body), &made); err != nil || code != http.StatusCreated || made.CreatedBy != "proxima:admin:ada" {
		t.Fatalf("%d %s %v", code, body, err)
	}
	if subject, err := s.tokens.Check(t.Context(), made.Token); err != nil || subject.User != "system:node:n1" {
		t.Errorf("%v %v", subject, err)
	}
	code, body = s.call(t, "GET", TokensPath, admin, nil, "")
	var list TokenList
	if err := json.Unmarshal([]byte(body), &list); err != nil || code != http.StatusOK || len(list.Items) != 2 {
		t.Errorf("%d %s %v", code, body, err)
	}
	if strings.Contains(body, "secretSHA256") || strings.Contains(body, made.Token) {
		t.Errorf("the list shows secrets: %s", body)
	}
	if code, body = s.call(t, "DELETE", TokensPath+"/"+made.ID, admin, nil, ""); code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
	if _, err := s.tokens.Check(t.Context(), made.Token); !errors.Is(err, identity.ErrToken) {
		t.Errorf("after its revocation: %v", err)
	}
	for name, tc := range map[string]struct {
		method, path, token, body string
		code                      int
	}{
		"unknown id":    {"DELETE", TokensPath + "/nope", admin, "", http.StatusNotFound},
		"unknown kind":  {"POST", TokensPath, admin, `{"kind":"root","name":"x"}`, http.StatusBadRequest},
		"bad name":      {"POST", TokensPath, admin, `{"kind":"node","name":"A b"}`, http.StatusBadRequest},
		"bad life":      {"POST", TokensPath, admin, `{"kind":"node","name":"a","ttlSeconds":-1}`, http.StatusBadRequest},
		"endless life":  {"POST", TokensPath, admin, `{"kind":"node","name":"a","ttlSeconds":9223372036854775807}`, http.StatusBadRequest},
		"unknown field": {"POST", TokensPath, admin, `{"kind":"node","name":"a","admin":true}`, http.StatusBadRequest},
		"reader":        {"GET", TokensPath, s.token(t, identity.ReadOnly, "rob"), "", http.StatusForbidden},
	} {
		if code, body := s.call(t, tc.method, tc.path, tc.token, nil, tc.body); code != tc.code {
			t.Errorf("%s: %d %s, want %d", name, code, body, tc.code)
		}
	}
}

func TestAuthenticate(t *testing.T) {
	s := startServer(t)
	other, err := identity.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	leaf := func(a *identity.Authority, server bool) *tls.ConnectionState {
		subject, _ := identity.SubjectFor(identity.Node, "n1")
		pair, err := a.IssueClient(subject, time.Hour)
		if server {
			pair, err = a.IssueServer("system:node:n1", nil, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := x509.ParseCertificate(cert.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{parsed}}
	}
	good := "Bearer " + s.token(t, identity.Admin, "ada")
	for name, tc := range map[string]struct {
		headers []string
		tls     *tls.ConnectionState
		want    string // empty: refused
	}{
		"nothing":                       {nil, nil, user.Anonymous},
		"TLS without a certificate":     {nil, &tls.ConnectionState{}, user.Anonymous},
		"token":                         {[]string{good}, nil, "proxima:admin:ada"},
		"token, other case and spaces":  {[]string{"  bearer  " + good[7:] + " "}, nil, "proxima:admin:ada"},
		"token before certificate":      {[]string{good}, leaf(s.authority, false), "proxima:admin:ada"},
		"certificate":                   {nil, leaf(s.authority, false), "system:node:n1"},
		"wrong token":                   {[]string{good[:len(good)-1] + "!"}, nil, ""},
		"wrong token, good certificate": {[]string{"Bearer x"}, leaf(s.authority, false), ""},
		"empty token":                   {[]string{"Bearer "}, nil, ""},
		"empty header":                  {[]string{""}, nil, ""},
		"two tokens":                    {[]string{good, good}, nil, ""},
		"basic":                         {[]string{"Basic YTpi"}, nil, ""},
		"certificate of another":        {nil, leaf(other, false), ""},
		"certificate of a server":       {nil, leaf(s.authority, true), ""},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequestWithContext(context.Background(), "GET", "/", nil)
			req.TLS = tc.tls
			if tc.headers != nil {
				req.Header["Authorization"] = tc.headers
			}
			resp, ok, err := s.auth.AuthenticateRequest(req)
			if tc.want == "" {
				if err == nil || ok {
					t.Errorf("accepted as %v", resp)
				}
				return
			}
			if err != nil || !ok || resp.User.GetName() != tc.want {
				t.Errorf("%v %v %v", resp, ok, err)
			}
			if req.Header.Get("Authorization") != "" {
				t.Error("the token is left in the request")
			}
		})
	}
}

// The whole way of a request for a certificate, with any body.
func FuzzCertificates(f *testing.F) {
	authority, err := identity.Open(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	st := memory.New(memory.Options{})
	f.Cleanup(func() { st.Close() })
	log := slog.New(slog.DiscardHandler)
	revocations, err := identity.NewRevocations(f.Context(), st, 0, log)
	if err != nil {
		f.Fatal(err)
	}
	h := NewCertificates(authority, identity.NewTokens(st, authority.Pin()), Policy{Revocations: revocations}, "", log)
	node := userOf(f, identity.Node, "n1")
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		req := httptest.NewRequestWithContext(request.WithUser(context.Background(), node), "POST", identity.CertificatesPath,
			bytes.NewReader(body))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if w.Code == http.StatusOK {
			if _, err := identity.ParseRequest(body); err != nil {
				t.Errorf("a certificate for a request that is none: %v", err)
			}
		} else if w.Code >= 500 {
			out, _ := io.ReadAll(w.Body)
			t.Errorf("%d %s", w.Code, out)
		}
	})
}
