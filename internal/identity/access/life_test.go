package access

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/store"
)

// pipes is a network without sockets, so that a server and its clients can live on
// the clock of a synctest bubble.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
	// cut: no connection gets through.
	cut atomic.Bool
	// moved is the server that answers instead, if there is one.
	moved atomic.Pointer[pipes]

	mu   sync.Mutex
	open []net.Conn // the server's ends
}

var errCut = errors.New("no route to host")

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6443} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if p.cut.Load() {
		return nil, errCut
	}
	if to := p.moved.Load(); to != nil {
		p = to
	}
	here, there := net.Pipe()
	select {
	case p.accept <- there:
		p.mu.Lock()
		p.open = append(p.open, there)
		p.mu.Unlock()
		return here, nil
	case <-p.closed:
		return nil, errCut
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

const pipedAddress = "127.0.0.1:6443"

// serve lets a server answer over pipes, until the test ends or they are closed.
func (s *server) serve(t *testing.T) *pipes {
	t.Helper()
	p := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
	s.address = pipedAddress
	srv := &http.Server{Handler: s.handler, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(tls.NewListener(p, s.tls(t, net.IPv4(127, 0, 0, 1)))) // always ErrServerClosed or net.ErrClosed
	}()
	t.Cleanup(func() {
		p.Close()
		// Both ends of a TLS connection write a last record when they close it. If neither
		// reads, the server waits with its mutex locked, and then time stands still in a
		// bubble of synctest: so the pipes are closed first.
		p.mu.Lock()
		for _, conn := range p.open {
			conn.Close()
		}
		p.mu.Unlock()
		srv.Close()
		<-done
		// Closing a TLS connection takes up to 5 s if the peer does not read.
		time.Sleep(10 * time.Second)
	})
	return p
}

// machine is a joined machine, reduced to its credentials.
type machine struct {
	*identity.Renewer
	pipes     *pipes
	dir, file string // of the credentials, and of the token
	// behind is how much its clock is.
	behind time.Duration
}

func newMachine(t *testing.T, p *pipes, dir string) *machine {
	m := &machine{pipes: p, dir: dir, file: filepath.Join(dir, "token")}
	m.open()
	return m
}

// open starts it (again).
func (m *machine) open() {
	m.Renewer = identity.NewRenewer(identity.RenewerConfig{
		Dir: m.dir, Server: pipedAddress, Logger: slog.New(slog.DiscardHandler), Dial: m.pipes.dial,
		Now: func() time.Time { return time.Now().Add(-m.behind) },
		Token: func() (string, error) {
			text, err := os.ReadFile(m.file)
			if errors.Is(err, os.ErrNotExist) {
				return "", nil
			}
			return string(text), err
		},
	})
}

func (m *machine) give(t *testing.T, token string) {
	t.Helper()
	if err := os.WriteFile(m.file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) join(t *testing.T, token string) {
	t.Helper()
	m.give(t, token)
	if _, err := m.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(m.file); err != nil {
		t.Fatal(err)
	}
}

// client sends requests as the machine, each on a connection of its own.
func (m *machine) client() *http.Client {
	return &http.Client{
		Transport: &http.Transport{TLSClientConfig: m.TLSConfig("127.0.0.1"), DialContext: m.pipes.dial, DisableKeepAlives: true},
	}
}

func (m *machine) get(t *testing.T, path string) int {
	t.Helper()
	resp, err := m.client().Get("https://" + pipedAddress + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// watch opens a request that lasts; what it returns is closed when it ends.
func (m *machine) watch(t *testing.T) <-chan struct{} {
	t.Helper()
	resp, err := m.client().Get("https://" + pipedAddress + "/healthz/watch")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("watch: %v %v", resp, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
	}()
	return ended
}

func (s *server) deleteNode(t *testing.T, name string) {
	t.Helper()
	key, value, err := identity.DeletedNodeRecord(name, identity.DeletedNode{Deleted: time.Now().UTC()})
	if err == nil {
		_, err = s.store.Commit(t.Context(), store.Txn{Ops: []store.Op{{Kind: store.Put, Key: key, Value: value}}})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// After a revocation, or the deletion of a node, requests are refused at once, and
// what is open ends within 5 s. A new token lets the machine in again; one that was
// made before the deletion does not.
func TestWithdrawnCredentials(t *testing.T) {
	for name, withdraw := range map[string]func(t *testing.T, s *server, c *identity.Credentials){
		"revoked": func(t *testing.T, s *server, c *identity.Credentials) {
			if _, err := s.tokens.Revoke(t.Context(), c.Subject.TokenID); err != nil {
				t.Fatal(err)
			}
		},
		"node deleted": func(t *testing.T, s *server, _ *identity.Credentials) { s.deleteNode(t, "n1") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, identity.DefaultRenewExpired)
				m := newMachine(t, s.serve(t), t.TempDir())
				old := s.token(t, identity.Node, "n1")
				m.join(t, old)
				time.Sleep(time.Minute)
				open := m.watch(t)
				other := newMachine(t, m.pipes, t.TempDir())
				other.join(t, s.token(t, identity.Node, "n2"))
				others := other.watch(t)

				withdraw(t, s, m.Credentials())
				at := time.Now()
				<-open
				if took := time.Since(at); took > 5*time.Second {
					t.Errorf("an open watch ended after %s", took)
				}
				if code := m.get(t, "/version"); code != http.StatusUnauthorized {
					t.Errorf("a request afterwards: %d", code)
				}
				select {
				case <-others:
					t.Error("the watch of another node ended, too")
				default:
				}
				m.give(t, old)
				if err := runFor(t, m, time.Hour); err != nil {
					t.Error(err)
				}
				if code := m.get(t, "/version"); code != http.StatusUnauthorized {
					t.Errorf("with the old token: %d", code)
				}
				if st := m.Status(); !strings.Contains(st.Problem, strings.TrimPrefix(name, "node ")) ||
					!strings.Contains(st.Fix, "token create --kind node --name n1") {
					t.Errorf("status %+v", st)
				}
				m.give(t, s.token(t, identity.Node, "n1"))
				if err := runFor(t, m, 10*time.Minute); err != nil {
					t.Error(err)
				}
				if code := m.get(t, "/version"); code != http.StatusOK {
					t.Errorf("with a new token: %d; %+v", code, m.Status())
				}
			})
		})
	}
}

// runFor runs the renewals for a time, as if the server had just refused.
func runFor(t *testing.T, m *machine, d time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	m.Suspect()
	return m.Run(ctx)
}

// A watch does not outlive the certificate or token that it was opened with.
func TestWatchEndsAtNotAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, identity.DefaultRenewExpired)
		m := newMachine(t, s.serve(t), t.TempDir())
		m.join(t, s.token(t, identity.Node, "n1"))
		end := m.Credentials().NotAfter
		<-m.watch(t)
		if late := time.Since(end); late < 0 || late > 5*time.Second {
			t.Errorf("the watch ended %s after its certificate", late)
		}
	})
}

// A machine that joined by a token of an hour and renewed for more than a month
// can be revoked, and the record goes when nothing descends from it any more.
func TestRecordLivesAsLongAsCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, identity.DefaultRenewExpired)
		m := newMachine(t, s.serve(t), t.TempDir())
		m.join(t, s.token(t, identity.Node, "n1"))
		if err := runFor(t, m, 33*24*time.Hour); err != nil {
			t.Fatal(err)
		}
		if code := m.get(t, "/version"); code != http.StatusOK {
			t.Fatalf("after 33 days: %d", code)
		}
		info, err := s.tokens.Revoke(t.Context(), m.Credentials().Subject.TokenID)
		if err != nil {
			t.Fatal(err)
		}
		if info.CreatedBy != "test" {
			t.Errorf("the record is not the one of the token: %+v", info)
		}
		synctest.Wait()
		if code := m.get(t, "/version"); code != http.StatusUnauthorized {
			t.Errorf("revoked after 33 days: %d", code)
		}
		time.Sleep(identity.DefaultRenewExpired)
		if err := runFor(t, m, time.Hour); err != nil {
			t.Fatal(err)
		}
		if code := m.get(t, "/version"); code != http.StatusUnauthorized {
			t.Errorf("as long as it could have been renewed: %d", code)
		}
		time.Sleep(2 * 30 * 24 * time.Hour)
		synctest.Wait()
		if list, err := s.tokens.List(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("records that nothing needs: %v %v", list, err)
		}
		if err := runFor(t, m, time.Hour); err != nil || !strings.Contains(m.Status().RenewalError, "refused") {
			t.Errorf("renewed without a record: %v %+v", err, m.Status())
		}
	})
}

// A machine whose token record was lost, as older versions did after a month, is
// taken, and can be revoked from its next renewal on.
func TestLostRecordIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, identity.DefaultRenewExpired)
		m := newMachine(t, s.serve(t), t.TempDir())
		token := s.token(t, identity.Node, "n1")
		m.join(t, token)
		id := m.Credentials().Subject.TokenID
		if _, err := s.store.Commit(t.Context(), store.Txn{Ops: []store.Op{{Kind: store.Delete, Key: identity.TokenPrefix + id}}}); err != nil {
			t.Fatal(err)
		}
		if err := runFor(t, m, 20*time.Hour); err != nil {
			t.Fatal(err)
		}
		if _, err := s.tokens.Check(t.Context(), token); !errors.Is(err, identity.ErrToken) {
			t.Errorf("the token is good again: %v", err)
		}
		info, err := s.tokens.Revoke(t.Context(), id)
		if err != nil || info.Name != "n1" || info.Kind != identity.Node {
			t.Fatalf("%+v %v", info, err)
		}
		synctest.Wait()
		if code := m.get(t, "/version"); code != http.StatusUnauthorized {
			t.Errorf("revoked: %d", code)
		}
	})
}

// An expired certificate can be renewed by proof of its key, for as long as the control
// plane allows, and is good for nothing else.
func TestRenewExpired(t *testing.T) {
	const day = 24 * time.Hour
	for name, tc := range map[string]struct {
		window, away time.Duration
		withdraw     func(t *testing.T, s *server, m *machine)
		renewed      bool
	}{
		"an hour late":   {window: 30 * day, away: 25 * time.Hour, renewed: true},
		"29 days late":   {window: 30 * day, away: 30 * day, renewed: true},
		"31 days late":   {window: 30 * day, away: 32*day + time.Hour},
		"off":            {window: 0, away: 25 * time.Hour},
		"revoked before": {window: 30 * day, away: 25 * time.Hour, withdraw: revoke},
		"node is deleted": {window: 30 * day, away: 25 * time.Hour,
			withdraw: func(t *testing.T, s *server, _ *machine) { s.deleteNode(t, "n1") }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, tc.window)
				m := newMachine(t, s.serve(t), t.TempDir())
				m.join(t, s.token(t, identity.Node, "n1"))
				if tc.withdraw != nil {
					tc.withdraw(t, s, m)
				}
				time.Sleep(tc.away)
				m.open() // a reboot: what counts is on disk
				if _, err := m.Join(t.Context()); err != nil {
					t.Fatalf("it does not start: %v", err)
				}
				if st := m.Status(); st.State != identity.CertificateExpired || !strings.Contains(st.Problem, "system:node:n1 ran out on") ||
					st.Fix == "" {
					t.Errorf("status %+v", st)
				}
				for _, path := range []string{"/version", "/healthz/watch", identity.CertificatesPath, TokensPath} {
					if code := m.get(t, path); code != http.StatusUnauthorized {
						t.Errorf("GET %s with a certificate that ran out: %d", path, code)
					}
				}
				if err := runFor(t, m, time.Minute); err != nil {
					t.Fatal(err)
				}
				want := http.StatusUnauthorized
				if tc.renewed {
					want = http.StatusOK
				}
				if code := m.get(t, "/version"); code != want {
					t.Errorf("after the renewal: %d, want %d; %+v", code, want, m.Status())
				}
			})
		})
	}
}

func revoke(t *testing.T, s *server, m *machine) {
	if _, err := s.tokens.Revoke(t.Context(), m.Credentials().Subject.TokenID); err != nil {
		t.Fatal(err)
	}
}

// Only nodes and zones renew what ran out: the certificate of a person does not get
// in by the way of certificates.
func TestExpiredCertificateOfAnAdmin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, identity.DefaultRenewExpired)
		p := s.serve(t)
		subject, err := identity.SubjectFor(identity.Admin, "ada")
		if err != nil {
			t.Fatal(err)
		}
		pair, err := s.authority.IssueClient(subject, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		client := &http.Client{Transport: &http.Transport{DialContext: p.dial, DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{
				RootCAs:              s.authority.Pool(),
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil },
			}}}
		resp, err := client.Post("https://"+pipedAddress+identity.CertificatesPath, "", strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%d", resp.StatusCode)
		}
	})
}

// An agent that runs through an outage of the control plane comes back by itself:
// by its certificate that ran out, or by the token on disk where that is not taken.
func TestOutageLongerThanTheCertificate(t *testing.T) {
	for name, tc := range map[string]struct {
		window time.Duration
		token  bool
	}{"by the certificate": {identity.DefaultRenewExpired, false}, "by the token": {0, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, tc.window)
				m := newMachine(t, s.serve(t), t.TempDir())
				token, _, err := s.tokens.Create(t.Context(), identity.Node, "n1", 0, "test")
				if err != nil {
					t.Fatal(err)
				}
				m.join(t, token.Reveal())
				follow(t, m.Run)
				m.pipes.cut.Store(true)
				time.Sleep(25*time.Hour + rand.N(10*time.Minute)) // any moment between two attempts
				if tc.token {
					m.give(t, token.Reveal())
				}
				m.pipes.cut.Store(false)
				time.Sleep(30 * time.Second)
				if code := m.get(t, "/version"); code != http.StatusOK {
					t.Errorf("half a minute after the outage: %d; %+v", code, m.Status())
				}
				if st := m.Status(); st.Problem != "" || st.RenewalError != "" {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}

// A machine without a clock of its own boots 25 h in the past, before NTP: it starts,
// reports the clock, is authenticated all the same, and still verifies the server's
// certificate.
func TestClockBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, identity.DefaultRenewExpired)
		m := newMachine(t, s.serve(t), t.TempDir())
		time.Sleep(72 * time.Hour)
		m.join(t, s.token(t, identity.Node, "n1"))
		m.pipes = s.serve(t) // the control plane was started again: its certificate is new
		m.behind = 25 * time.Hour
		m.open()
		if _, err := m.Join(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st := m.Status(); st.State != identity.CertificateNotYetValid || !strings.Contains(st.Problem, "clock") ||
			!strings.Contains(st.Fix, "NTP") {
			t.Errorf("status %+v", st)
		}
		if code := m.get(t, "/version"); code != http.StatusOK {
			t.Errorf("with a clock that is behind: %d", code)
		}
		follow(t, m.Run)
		time.Sleep(26 * time.Hour) // the certificate expires long before that on the local clock
		if code := m.get(t, "/version"); code != http.StatusUnauthorized && code != http.StatusOK {
			t.Errorf("%d", code)
		}
		m.Suspect() // as a refused request does
		time.Sleep(time.Minute)
		if code := m.get(t, "/version"); code != http.StatusOK {
			t.Errorf("after its certificate ran out: %d; %+v", code, m.Status())
		}
		foreign := newServer(t, 0)
		m.pipes = foreign.serve(t)
		if _, err := m.client().Get("https://" + pipedAddress + "/version"); err == nil {
			t.Error("a server of another authority was trusted")
		}
	})
}

// A new token counts: one of another authority leads there and makes what was kept
// out of date; one of the same control plane is used; the same one changes nothing.
func TestNewTokenBesideCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, again := newServer(t, 0), newServer(t, 0)
		m := newMachine(t, s.serve(t), t.TempDir())
		first := s.token(t, identity.Node, "n1")
		m.join(t, first)
		restart := func(token string) identity.Joined {
			t.Helper()
			m.open()
			m.give(t, token)
			joined, err := m.Join(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return joined
		}
		if got := restart(first); got.ByToken {
			t.Errorf("the same token: %+v", got)
		}
		if got := restart(s.token(t, identity.Node, "n1")); !got.ByToken || got.Elsewhere {
			t.Errorf("another token of the same authority: %+v", got)
		}
		if got := restart("gibberish"); got.ByToken {
			t.Errorf("no token at all: %+v", got)
		}
		reinstalled := again.token(t, identity.Node, "n1")
		if got := restart(reinstalled); got.ByToken {
			t.Errorf("of another authority, while the old one answers: %+v", got)
		}
		m.pipes = again.serve(t)
		if got := restart(reinstalled); !got.ByToken || !got.Elsewhere {
			t.Errorf("of another authority: %+v", got)
		}
		if code := m.get(t, "/version"); code != http.StatusOK {
			t.Errorf("at the new control plane: %d", code)
		}
	})
}

// A running agent whose control plane was reinstalled switches to the new one when it
// gets a token of it.
func TestReinstalledWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, again := newServer(t, 0), newServer(t, 0)
		m := newMachine(t, s.serve(t), t.TempDir())
		m.join(t, s.token(t, identity.Node, "n1"))
		follow(t, func(ctx context.Context) error { return m.Run(ctx) })
		m.pipes.moved.Store(again.serve(t))
		time.Sleep(20 * time.Hour)
		m.give(t, again.token(t, identity.Node, "n1"))
		time.Sleep(10 * time.Minute)
		if code := m.get(t, "/version"); code != http.StatusOK {
			t.Errorf("%d; %+v", code, m.Status())
		}
	})
}
