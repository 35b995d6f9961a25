package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity"
)

// bearer sends requests with a token, each on a connection of its own.
type bearer struct {
	client *http.Client
	token  string
}

func (s *server) bearer(p *pipes, token string) *bearer {
	config := &tls.Config{RootCAs: s.authority.Pool()}
	return &bearer{token: token, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, DialContext: p.dial, DisableKeepAlives: true,
	}}}
}

func (b *bearer) do(t *testing.T, method, path string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, "https://"+pipedAddress+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+b.token)
	resp, err := b.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func (b *bearer) call(t *testing.T, method, path string) (int, string) {
	t.Helper()
	resp := b.do(t, method, path)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// watch opens a request that lasts; what it returns is closed when it ends.
func (b *bearer) watch(t *testing.T) <-chan struct{} {
	t.Helper()
	resp := b.do(t, http.MethodGet, "/healthz/watch")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("watch: %s", resp.Status)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
	}()
	return ended
}

// A revoked token of a workload ends its requests at once and its watches within
// 5 s, and those of no other workload. It buys no certificate any more.
func TestWithdrawnWorkloadToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, identity.DefaultRenewExpired)
		p := s.serve(t)
		text := s.token(t, identity.Workload, "shop/web")
		web, pay := s.bearer(p, text), s.bearer(p, s.token(t, identity.Workload, "shop/pay"))
		webs, pays := web.watch(t), pay.watch(t)
		code, body := web.call(t, http.MethodPost, identity.CertificatesPath)
		if code != http.StatusBadRequest || !strings.Contains(body, "CERTIFICATE REQUEST") {
			t.Errorf("a certificate, without a request for one: %d %s", code, body)
		}
		parsed, err := identity.ParseToken(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.tokens.Revoke(t.Context(), parsed.ID); err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		<-webs
		if took := time.Since(at); took > 5*time.Second {
			t.Errorf("an open watch ended after %s", took)
		}
		for _, r := range [][2]string{{http.MethodGet, "/version"}, {http.MethodPost, identity.CertificatesPath}} {
			if code, _ := web.call(t, r[0], r[1]); code != http.StatusUnauthorized {
				t.Errorf("%s %s afterwards: %d", r[0], r[1], code)
			}
		}
		select {
		case <-pays:
			t.Error("the watch of another workload ended, too")
		default:
		}
		if code, _ := pay.call(t, http.MethodGet, "/version"); code != http.StatusOK {
			t.Errorf("another workload: %d", code)
		}
		start := at
		<-pays // its token has an hour
		if life := time.Since(start); life < 59*time.Minute || life > time.Hour+5*time.Second {
			t.Errorf("a watch with a token of an hour ended after %s", life)
		}
	})
}

// certificateOf is a request for a certificate, made with the certificate of a subject.
func certificateOf(t *testing.T, s *server, subject identity.Subject, life time.Duration) *http.Request {
	t.Helper()
	pair, err := s.authority.IssueClient(subject, life)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(pair.Cert)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, identity.CertificatesPath, nil)
	req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	return req
}

// At the path for certificates the handler checks the credentials of nodes and zones
// itself; a workload's are refused by the authenticator, as everywhere.
func TestWorkloadAsksForCertificate(t *testing.T) {
	s := startServer(t, net.IPv4(127, 0, 0, 1))
	for kind, name := range map[identity.Kind]string{identity.Node: "n1", identity.Zone: "east", identity.Workload: "shop/web"} {
		t.Run(string(kind), func(t *testing.T) {
			token, info, err := s.tokens.Create(t.Context(), kind, name, time.Hour, "test")
			if err != nil {
				t.Fatal(err)
			}
			subject, err := info.Subject()
			if err != nil {
				t.Fatal(err)
			}
			taken := kind != identity.Workload
			if _, ok, err := s.auth.AuthenticateRequest(certificateOf(t, s, subject, -time.Minute)); ok != taken {
				t.Errorf("one that ran out: %t %v", ok, err)
			}
			changed := s.sessions.revocations.Changed()
			if _, err := s.tokens.Revoke(t.Context(), token.ID); err != nil {
				t.Fatal(err)
			}
			<-changed
			if _, ok, err := s.auth.AuthenticateRequest(certificateOf(t, s, subject, time.Hour)); ok != taken {
				t.Errorf("a revoked one: %t %v", ok, err)
			}
		})
	}
}

// A lost record is made again as that of the kind, and with the bounds, that the
// certificate has.
func TestLostRecordKeepsKindAndBounds(t *testing.T) {
	s := startServer(t)
	bounds := identity.Bounds{Labels: map[string][]string{"app": {"web"}}}
	for kind, name := range map[identity.Kind]string{identity.Node: "n1", identity.Workload: "shop/web"} {
		subject, err := identity.SubjectFor(kind, name)
		if err != nil {
			t.Fatal(err)
		}
		subject.TokenID, subject.Bounds = "lost-"+string(kind), bounds
		end := time.Now().Add(time.Hour)
		if err := s.tokens.RecordIssue(t.Context(), subject, identity.Issue{NotAfter: end, RenewableUntil: end, Recover: true}); err != nil {
			t.Fatal(err)
		}
		info, err := s.tokens.Revoke(t.Context(), subject.TokenID)
		if err != nil || info.Kind != kind || info.Name != name || !slices.Equal(info.LabelTexts(), bounds.LabelTexts()) {
			t.Errorf("%s: %+v %v", kind, info, err)
		}
	}
}
