package app

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/node/ranges"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// issuing is the part of a control plane that issues certificates.
type issuing struct {
	address string
	tokens  *identity.Tokens
}

func startIssuing(t *testing.T) *issuing {
	t.Helper()
	authority, err := identity.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	st := memory.New(memory.Options{})
	t.Cleanup(func() { st.Close() })
	log := slog.New(slog.DiscardHandler)
	revocations, err := identity.NewRevocations(t.Context(), st, 0, log)
	if err != nil {
		t.Fatal(err)
	}
	tokens := identity.NewTokens(st, authority.Pin())
	policy := access.Policy{Revocations: revocations}
	auth := access.NewAuthenticator(tokens, authority.Pool(), policy, log)
	certificates := access.NewCertificates(authority, tokens, policy, ":6444", log)
	pair, err := authority.IssueServer("cp", nil, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp, _, err := auth.AuthenticateRequest(r)
		if err != nil {
			http.Error(w, "", http.StatusUnauthorized)
			return
		}
		certificates.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), resp.User)))
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	return &issuing{address: server.Listener.Addr().String(), tokens: tokens}
}

func (i *issuing) token(t *testing.T, node string) string {
	t.Helper()
	token, _, err := i.tokens.Create(t.Context(), identity.Node, node, time.Hour, "test")
	if err != nil {
		t.Fatal(err)
	}
	return token.Reveal()
}

// agentOf a node, with a file for its token.
func agentOf(t *testing.T, name, server, dataDir string) *agent {
	t.Helper()
	a := &agent{cfg: NodeConfig{
		Name: name, Server: server, DataDir: dataDir, TokenFile: filepath.Join(dataDir, "token"),
	}, log: slog.New(slog.DiscardHandler)}
	a.ranges = ranges.New(ranges.Config{Dir: a.dir(), Saved: a.unsaved.note, Logger: a.log})
	if err := os.MkdirAll(a.dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	return a
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// The command with which a node joined starts it again when the token file is gone.
func TestTokenFileIsGone(t *testing.T) {
	cp, dir := startIssuing(t), t.TempDir()
	a := agentOf(t, "n1", cp.address, dir)
	if err := a.join(t.Context()); err == nil {
		t.Fatal("joined without a token")
	} else if hint := problem.HintOf(err, ""); !strings.Contains(hint, "token create --kind node --name n1") {
		t.Errorf("error %v", err)
	}
	put(t, a.cfg.TokenFile, cp.token(t, "n1"))
	if err := a.join(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(a.cfg.TokenFile); err != nil {
		t.Fatal(err)
	}
	again := agentOf(t, "n1", cp.address, dir)
	var log strings.Builder
	again.log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := again.join(t.Context()); err != nil {
		t.Fatal(err)
	}
	if log.Len() > 0 {
		t.Errorf("a token file that is gone is nothing to warn of: %s", &log)
	}
	if address, err := again.viewAddress(); err != nil || address != "127.0.0.1:6444" {
		t.Errorf("views at %s, %v", address, err)
	}
}

// A token of another node ends the agent with the reason, and leaves nothing
// behind; also where the right credentials are stored.
func TestTokenOfAnotherNode(t *testing.T) {
	cp, dir := startIssuing(t), t.TempDir()
	a := agentOf(t, "n1", cp.address, dir)
	file := filepath.Join(a.dir(), "credentials.json")
	check := func() {
		t.Helper()
		put(t, a.cfg.TokenFile, cp.token(t, "n2"))
		err := agentOf(t, "n1", cp.address, dir).join(t.Context())
		if err == nil || !strings.Contains(err.Error(), "node n2") || !strings.Contains(err.Error(), "node n1") {
			t.Errorf("error %v", err)
		}
		if hint := problem.HintOf(err, ""); !strings.Contains(hint, "--node-name") {
			t.Errorf("error %#v has no hint", err)
		}
	}
	check()
	put(t, a.viewFile(), "state") // which it must not serve by
	check()
	if exists(file) {
		t.Error("the credentials of another node were kept")
	}
	put(t, a.cfg.TokenFile, cp.token(t, "n1"))
	if err := a.join(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	check()
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("the node's own credentials were replaced: %v", err)
	}
	if err := agentOf(t, "n3", cp.address, dir).join(t.Context()); err == nil || !strings.Contains(err.Error(), "n3") {
		t.Errorf("credentials of another node: %v", err)
	}
}

// With a state on disk the agent serves, whatever became of its credentials, and
// says what is wrong; without one it cannot, and ends.
func TestServesWithoutCredentials(t *testing.T) {
	for name, corrupt := range map[string]func(t *testing.T, file string){
		"cut off":            func(t *testing.T, file string) { put(t, file, `{"server": "`) },
		"gone":               func(t *testing.T, file string) { _ = os.Remove(file) },
		"readable by others": func(t *testing.T, file string) { _ = os.Chmod(file, 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			cp, dir := startIssuing(t), t.TempDir()
			a := agentOf(t, "n1", cp.address, dir)
			put(t, a.cfg.TokenFile, cp.token(t, "n1"))
			if err := a.join(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(a.cfg.TokenFile); err != nil {
				t.Fatal(err)
			}
			corrupt(t, filepath.Join(a.dir(), "credentials.json"))
			if err := agentOf(t, "n1", cp.address, dir).join(t.Context()); err == nil {
				t.Error("it started with nothing to serve")
			}
			put(t, a.viewFile(), "state")
			again := agentOf(t, "n1", cp.address, dir)
			if err := again.join(t.Context()); err != nil {
				t.Fatal(err)
			}
			if st := again.renewer.Status(); st.State != identity.CertificateMissing || st.Problem == "" || !strings.Contains(st.Fix, "--token-file") {
				t.Errorf("status %+v", st)
			}
			conn, err := again.connect()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			put(t, again.cfg.TokenFile, cp.token(t, "n1"))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error)
			go func() { done <- again.renewer.Run(ctx) }()
			for deadline := time.Now().Add(time.Minute); again.renewer.Credentials() == nil && time.Now().Before(deadline); {
				time.Sleep(10 * time.Millisecond) // the file is read while it runs
			}
			cancel()
			if err := <-done; err != nil || again.renewer.Credentials() == nil {
				t.Errorf("not joined by the token that was put there: %v", err)
			}
		})
	}
}

// A token of another authority makes what was kept of the old control plane out of
// date.
func TestForgetsTheOldControlPlane(t *testing.T) {
	first, dir := startIssuing(t), t.TempDir()
	a := agentOf(t, "n1", first.address, dir)
	put(t, a.cfg.TokenFile, first.token(t, "n1"))
	if err := a.join(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, a.viewFile(), "state")
	put(t, filepath.Join(a.dir(), "ranges.json"), "[]")
	put(t, a.cfg.TokenFile, first.token(t, "n1"))
	if err := agentOf(t, "n1", first.address, dir).join(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !exists(a.viewFile()) || !exists(filepath.Join(a.dir(), "ranges.json")) {
		t.Error("a new token of the same control plane dropped its state")
	}
	second := startIssuing(t)
	put(t, a.cfg.TokenFile, second.token(t, "n1"))
	if err := agentOf(t, "n1", second.address, dir).join(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exists(a.viewFile()) || exists(filepath.Join(a.dir(), "ranges.json")) {
		t.Error("the state of another control plane was kept")
	}
}
