package local

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestSockets(t *testing.T) {
	long := "/srv/" + strings.Repeat("x", 100)
	for _, tc := range []struct {
		name, dir string
		uid       int
		want      []string // beginnings
	}{
		{"root, default", SystemDataDir, 0, []string{SystemSocket, SystemDataDir + "/node/agent.sock", "/run/proxima/agent-"}},
		{"root, another", "/srv/b", 0, []string{"/srv/b/node/agent.sock", "/run/proxima/agent-"}},
		{"a user", "/home/u/.local/share/proxima", 1000, []string{"/home/u/.local/share/proxima/node/agent.sock", filepath.Join(os.TempDir(), "proxima-1000/agent-")}},
		{"a user, root's directory", SystemDataDir, 1000, []string{SystemDataDir + "/node/agent.sock", filepath.Join(os.TempDir(), "proxima-1000/agent-")}},
		{"a long path", long, 0, []string{"/run/proxima/agent-"}},
	} {
		got := sockets(tc.dir, tc.uid)
		if len(got) != len(tc.want) {
			t.Fatalf("%s: %q, want %q…", tc.name, got, tc.want)
		}
		for i, want := range tc.want {
			if !strings.HasPrefix(got[i], want) || len(got[i]) > maxPath {
				t.Errorf("%s: %q, want %q…", tc.name, got[i], want)
			}
		}
	}
	a, b := sockets("/srv/a"+long, 0), sockets("/srv/b"+long, 0)
	if a[0] == b[0] {
		t.Error("two data directories have one socket")
	}
}

// agent serves a data directory's socket until the test ends, or stop is called.
func agent(t *testing.T, dir string, handler http.Handler) (stop func()) {
	t.Helper()
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: handler}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	stop = func() { srv.Close(); <-done }
	t.Cleanup(stop)
	return stop
}

func TestAsk(t *testing.T) {
	dir := t.TempDir()
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+AlivePath, func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET "+StatusPath, func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"to": r.URL.Query().Get("to")})
	})
	mux.HandleFunc("GET "+DumpPath, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "read the kernel's tables: permission denied", http.StatusServiceUnavailable)
	})
	stop := agent(t, dir, mux)
	client := &Client{DataDir: dir}
	var got map[string]string
	if err := client.Ask(t.Context(), StatusPath, url.Values{"to": {"[fd00::1]:80"}}, &got); err != nil || got["to"] != "[fd00::1]:80" {
		t.Errorf("%v, %v", got, err)
	}
	if err := client.Ask(t.Context(), DumpPath, nil, &got); err == nil || err.Error() != "agent: read the kernel's tables: permission denied" {
		t.Errorf("a refusal: %v", err)
	}
	if err := client.Ask(t.Context(), TracePath, nil, &got); err == nil || !strings.Contains(err.Error(), "does not know /trace") {
		t.Errorf("another version: %v", err)
	}
	if info, err := os.Stat(filepath.Join(dir, "node", "agent.sock")); err != nil {
		t.Error(err)
	} else if runtime.GOOS != "windows" && info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket has mode %v, want it for its owner alone", info.Mode())
	}
	stop()
	if err := client.Alive(t.Context()); !IsNoAgent(err) {
		t.Errorf("after the agent's end: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "node")); len(left) != 0 {
		t.Errorf("the agent left %v", left)
	}
}

// An agent that hangs accepts connections in the kernel and never answers.
func TestHungAgentIsReportedInTwoSeconds(t *testing.T) {
	dir := t.TempDir()
	l, err := Listen(dir) // and no accept
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, path := range []string{StatusPath, TracePath, DumpPath} {
		began := time.Now()
		err := (&Client{DataDir: dir}).Ask(t.Context(), path, nil, new(any))
		if took := time.Since(began); !IsHung(err) || took > 2*time.Second {
			t.Errorf("%s: %v after %s", path, err, took)
		}
	}
	// It is still there for a second agent.
	var used *InUseError
	if _, err := Listen(dir); !errors.As(err, &used) {
		t.Errorf("a second agent got %v", err)
	}
}

// What a killed agent left is replaced; an agent that runs is not.
func TestStaleSocketIsReplaced(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "node"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "node", "agent.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	if err := (&Client{DataDir: dir}).Alive(t.Context()); !IsNoAgent(err) {
		t.Errorf("a socket that is left: %v", err)
	}
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var used *InUseError
	if _, err := Listen(dir); !errors.As(err, &used) || used.Path != path {
		t.Errorf("a second agent: %v", err)
	}
}

func TestSomethingElseIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "node", "agent.sock")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(dir)
	if err == nil { // at the next path
		defer l.Close()
		if l.Addr().String() == path {
			t.Error("the file was replaced")
		}
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "mine" {
		t.Errorf("the file is %q, %v", data, err)
	}
}

// A data directory whose path is too long for a socket has one elsewhere, which
// clients find.
func TestLongDataDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 120))
	agent(t, dir, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if err := (&Client{DataDir: dir}).Alive(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOneAgentForADirectory(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no lock of directories; the socket shows the other agent")
	}
	dir := t.TempDir()
	release, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	var used *InUseError
	if _, err := Lock(dir); !errors.As(err, &used) || used.Path != dir {
		t.Errorf("the second lock: %v", err)
	}
	release()
	if again, err := Lock(dir); err != nil {
		t.Errorf("after the release: %v", err)
	} else {
		again()
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("the lock wrote %v", left)
	}
}

func TestDirectoryOfOthersIsRefused(t *testing.T) {
	if os.Geteuid() != 0 || runtime.GOOS == "windows" {
		t.Skip("needs root to make a directory of another user")
	}
	dir := t.TempDir()
	if err := checkOwner(dir); err != nil {
		t.Error(err)
	}
	if err := os.Chown(dir, 12345, 0); err != nil {
		t.Fatal(err)
	}
	if err := checkOwner(dir); err == nil {
		t.Error("a directory of another user is taken for private")
	}
	if err := errors.Join(os.Chown(dir, 0, 0), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := checkOwner(dir); err == nil {
		t.Error("a directory that all can write to is taken for private")
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&Client{DataDir: t.TempDir()}).Dial(ctx); err == nil {
		t.Error("connected to nothing")
	}
}
