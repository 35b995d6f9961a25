package apiserver_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// shared is one server for all tests that leave each other alone.
var shared *server

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // upstream's chatter
	s := memory.New(memory.Options{})
	defer s.Close()
	var err error
	if shared, err = start(s); err != nil {
		return 1, err
	}
	code := m.Run()
	if err := shared.stop(); err != nil {
		return 1, err
	}
	s.Close()
	// Nothing of a server outlives Run, but a clock of upstream's by 3 s.
	return code, goleak.Find(goleak.IgnoreTopFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2"))
}

// server is a running API server and what is needed to reach it.
type server struct {
	*apiserver.Server
	url    string
	ca     []byte
	audits *auditLog
	cancel context.CancelFunc
	done   chan error
}

// start runs a server on a loopback port.
func start(s store.Store, change ...func(*apiserver.Config)) (*server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	cert, key, err := selfSigned()
	if err != nil {
		return nil, err
	}
	out := &server{url: "https://" + listener.Addr().String(), ca: cert, audits: &auditLog{}, done: make(chan error, 1)}
	cfg := apiserver.Config{
		Store:         s,
		Kinds:         kind.All(),
		Listener:      listener,
		CertPEM:       cert,
		KeyPEM:        key,
		ClientCAPEM:   cert,
		Authenticator: authenticator.RequestFunc(authenticate),
		Authorizer:    authorizer.AuthorizerFunc(authorize),
		Logger:        slog.New(slog.DiscardHandler),
		Version:       "0.1.0",
		ServiceCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")},
		ExtraHandlers: map[string]http.Handler{"/extra": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "extra")
		})},
		Writes: byName{},
		Audit:  out.audits.add,
	}
	for _, f := range change {
		f(&cfg)
	}
	if out.Server, err = apiserver.New(cfg); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	out.cancel = cancel
	go func() { out.done <- out.Run(ctx) }()
	select {
	case <-out.Ready():
		return out, nil
	case err := <-out.done:
		return nil, fmt.Errorf("server did not start: %w", err)
	case <-time.After(2 * time.Minute):
		return nil, errors.New("server did not start in 2 min")
	}
}

func (s *server) stop() error {
	s.cancel()
	return <-s.done
}

func (s *server) config(token string) *rest.Config {
	return &rest.Config{
		Host:            s.url,
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.ca},
		QPS:             -1,
		WarningHandler:  rest.NoWarnings{},
	}
}

func (s *server) clientset(t *testing.T, contentType string) *kubernetes.Clientset {
	t.Helper()
	cfg := s.config("admin")
	cfg.ContentType = contentType
	if contentType == "application/vnd.kubernetes.protobuf" {
		cfg.AcceptContentTypes = contentType
	}
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// do sends a request and returns the status and the body.
func (s *server) do(t *testing.T, method, path, token string, header http.Header, body string) (int, string) {
	t.Helper()
	cfg := s.config(token)
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// authenticate accepts a few tokens and refuses all others.
func authenticate(req *http.Request) (*authenticator.Response, bool, error) {
	token, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	switch {
	case !ok:
		return nil, false, nil
	case token == "admin":
		return &authenticator.Response{User: &user.DefaultInfo{Name: "ann", Groups: []string{user.SystemPrivilegedGroup}}}, true, nil
	case token == "writer":
		return &authenticator.Response{User: &user.DefaultInfo{Name: "wes", Groups: []string{"writers"}}}, true, nil
	case strings.HasPrefix(token, "writer"): // one of several
		return &authenticator.Response{User: &user.DefaultInfo{Name: "wes" + token, Groups: []string{"writers"}}}, true, nil
	case token == "slow":
		return &authenticator.Response{User: &user.DefaultInfo{Name: "sam", Groups: []string{"readers"}}}, true, nil
	case token == "node":
		return &authenticator.Response{User: &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}}, true, nil
	case token == "reader":
		return &authenticator.Response{User: &user.DefaultInfo{Name: "rob", Groups: []string{"readers"}}}, true, nil
	}
	return nil, false, errors.New("unknown token")
}

func authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if name := a.GetUser().GetName(); name == "ann" || strings.HasPrefix(name, "wes") || name == "system:node:n1" || a.IsReadOnly() ||
		a.GetResource() == "selfsubjectaccessreviews" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "readers may not write", nil
}

// byName refuses by the names of objects.
type byName struct{}

func (byName) Prepare(access.Write) {}

func (byName) Allow(_ context.Context, w access.Write) error {
	obj, old := w.Object, w.Old
	switch {
	case obj != nil && obj.GetName() == "forbidden":
		return errors.New("this may not be written")
	case obj == nil && old.GetName() == "keep":
		return errors.New("this may not be deleted")
	}
	return nil
}

type auditLog struct {
	mu     sync.Mutex
	events []apiserver.AuditEvent
}

func (l *auditLog) add(e apiserver.AuditEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

func (l *auditLog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = nil
}

func (l *auditLog) find(match func(apiserver.AuditEvent) bool) (apiserver.AuditEvent, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if match(e) {
			return e, true
		}
	}
	return apiserver.AuditEvent{}, false
}

// selfSigned makes a certificate that is its own authority.
func selfSigned() (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	var certPEM, keyPEM bytes.Buffer
	if err := errors.Join(pem.Encode(&certPEM, &pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.Encode(&keyPEM, &pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})); err != nil {
		return nil, nil, err
	}
	return certPEM.Bytes(), keyPEM.Bytes(), nil
}
