package identity

import (
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
)

// accountServer issues certificates for the tokens that it is told are good ones.
type accountServer struct {
	address string
	good    atomic.Pointer[string]
	seen    atomic.Int32 // tokens shown
}

func startAccountServer(t *testing.T, a *Authority) *accountServer {
	t.Helper()
	s := &accountServer{}
	pair, err := a.IssueServer("cp", nil, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	issue := issuer(t, a, ClientLife)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bearer := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if bearer != "" {
			s.seen.Add(1)
		}
		if good := s.good.Load(); good == nil || bearer != *good {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		request, err := io.ReadAll(r.Body)
		var answer CertificateAnswer
		if err == nil {
			answer, err = issue(r.Context(), request)
		}
		if err != nil {
			t.Error(err)
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	s.address = server.Listener.Addr().String()
	return s
}

// TestAccountToken: a ServiceAccount's token is shown to servers of the given authorities
// alone. Another one, as it is renewed every hour, makes no node join again; one that was
// refused is tried again, as the cluster may take it later.
func TestAccountToken(t *testing.T) {
	a, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := startAccountServer(t, a)
	token := "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.c2ln"
	var authorities *x509.CertPool
	r := NewRenewer(RenewerConfig{
		Dir: t.TempDir(), Server: server.address, Logger: slog.New(slog.DiscardHandler),
		Token:       func() (string, error) { return token + "\n", nil },
		Authorities: func() (*x509.CertPool, error) { return authorities, nil },
	})

	authorities = stranger.Pool()
	var unknown *tls.CertificateVerificationError
	if _, err := r.Join(t.Context()); !errors.As(err, &unknown) || server.seen.Load() > 0 {
		t.Fatalf("a server of another authority: %v, saw %d tokens", err, server.seen.Load())
	}
	authorities = a.Pool()
	if _, err := r.Join(t.Context()); !errors.Is(err, ErrRefused) {
		t.Fatalf("a token that the cluster does not know: %v", err)
	}
	good := token
	server.good.Store(&good)
	if err := r.renew(t.Context()); err != nil {
		t.Fatalf("the token that was refused before: %v", err)
	}
	seen := server.seen.Load()

	token = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ5In0.c2ln"
	if _, err := r.Join(t.Context()); err != nil || server.seen.Load() != seen {
		t.Fatalf("a token that was renewed: %v, shown %d times", err, server.seen.Load()-seen)
	}
	// The server does not take the certificate any more: the token is what is left.
	server.good.Store(&token)
	if err := r.renew(t.Context()); err != nil || server.seen.Load() != seen+1 {
		t.Fatalf("after a refusal of the certificate: %v, shown %d times", err, server.seen.Load()-seen)
	}
}

// TestAccountTokenOfNewAuthority: the control plane was installed again, with another
// authority. The certificate is of no use, the token is.
func TestAccountTokenOfNewAuthority(t *testing.T) {
	before, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := startAccountServer(t, a)
	token := "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.c2ln"
	server.good.Store(&token)
	r := NewRenewer(RenewerConfig{
		Dir: joined(t, before), Server: "cp:6443", Logger: slog.New(slog.DiscardHandler),
		Token:       func() (string, error) { return token, nil },
		Authorities: func() (*x509.CertPool, error) { return a.Pool(), nil },
	})
	r.joiner.server = server.address
	if err := r.renew(t.Context()); err != nil || server.seen.Load() != 1 {
		t.Errorf("%v, the token was shown %d times", err, server.seen.Load())
	}
}

// TestAccountTokenAlone: the token does not tell which server may have it.
func TestAccountTokenAlone(t *testing.T) {
	r := NewRenewer(RenewerConfig{
		Dir: t.TempDir(), Server: "127.0.0.1:1", Logger: slog.New(slog.DiscardHandler),
		Token: func() (string, error) { return "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.c2ln", nil },
	})
	if _, err := r.Join(t.Context()); err == nil || !strings.Contains(err.Error(), "--server-ca-file") {
		t.Errorf("%v", err)
	}
}

// TestExchange: certificates come by another way than the server alone, joins and renewals; what it says when it refuses is
// kept for the status.
func TestExchange(t *testing.T) {
	a, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	issue, refused, asked := issuer(t, a, ClientLife), errors.New("bind the role"), 0
	allowed := false
	r := NewRenewer(RenewerConfig{
		Dir: t.TempDir(), Server: "192.0.2.7:6443", Logger: slog.New(slog.DiscardHandler),
		Token: func() (string, error) { t.Error("a token is read"); return "", nil },
		Exchange: func(ctx context.Context, request []byte) (CertificateAnswer, error) {
			asked++
			if !allowed {
				return CertificateAnswer{}, errors.Join(ErrRefused, refused)
			}
			answer, err := issue(ctx, request)
			answer.GRPCAddress = ":6444"
			return answer, err
		},
	})
	if _, err := r.Join(t.Context()); !errors.Is(err, refused) || r.Credentials() != nil {
		t.Errorf("without the role: %v", err)
	}
	allowed = true
	joined, err := r.Join(t.Context())
	if err != nil || !joined.Elsewhere || r.Credentials().GRPCAddress != "192.0.2.7:6444" {
		t.Fatalf("with it: %+v, %v, %+v", joined, err, r.Credentials())
	}
	first := r.Credentials()
	if _, err := r.Join(t.Context()); err != nil || r.Credentials() != first || asked != 2 {
		t.Errorf("stored credentials are not used: %v, asked %d", err, asked)
	}
	if err := r.renew(t.Context()); err != nil || r.Credentials() == first || asked != 3 {
		t.Errorf("renewal: %v, asked %d", err, asked)
	}
	allowed = false
	second := r.Credentials()
	if err := r.renew(t.Context()); !errors.Is(err, ErrRefused) || r.Credentials() != second {
		t.Errorf("refused renewal: %v", err)
	}
}
