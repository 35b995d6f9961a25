package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// serveAgent answers as the agent of a new data directory.
func serveAgent(t *testing.T, handler http.Handler) (dataDir string) {
	t.Helper()
	dataDir = t.TempDir()
	l, err := local.Listen(dataDir)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: handler}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return dataDir
}

// agentThatSays has a status, and more handlers.
func agentThatSays(t *testing.T, status *admin.NodeStatus, more map[string]http.Handler) (dataDir string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+local.AlivePath, func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET "+local.StatusPath, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(status) })
	for path, h := range more {
		mux.Handle(path, h)
	}
	return serveAgent(t, mux)
}

func connectedAgent() *admin.NodeStatus {
	s := &admin.NodeStatus{API: "https://192.0.2.10:6443", View: &admin.ViewStatus{Connected: true, Synced: true}}
	s.Agent.Mode, s.Agent.Node.Name, s.Agent.Node.Zone = "userspace", "edge-1", "zone-b"
	return s
}

// says fails unless the command's output has all the wanted words and none of the
// others.
func says(t *testing.T, wantCode int, args, want, not []string) {
	t.Helper()
	began := time.Now()
	code, out, complaint := runHere(t, args...)
	out += complaint
	if wantCode >= 0 && code != wantCode {
		t.Errorf("%v: exit code %d, want %d:\n%s", args, code, wantCode, out)
	}
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("%v: %q is missing in:\n%s", args, w, out)
		}
	}
	for _, w := range not {
		if strings.Contains(out, w) {
			t.Errorf("%v: %q is in:\n%s", args, w, out)
		}
	}
	// Doctor runs programs that list the kernel's rules, too.
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("%v took %s", args, took)
	}
}

// An agent whose process is stopped is reported as such by every command, and its
// ports are not taken for another program's.
func TestAgentHangs(t *testing.T) {
	dir := t.TempDir()
	l, err := local.Listen(dir) // and nothing accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const what = "the agent does not answer"
	says(t, 1, []string{"trace", "10.96.0.1:80", "--data-dir", dir}, []string{what, "hint: ", "SIGCONT"}, nil)
	says(t, 1, []string{"node", "dump", "--data-dir", dir}, []string{what}, nil)
	says(t, 0, []string{"status", "--data-dir", dir}, []string{what, "SIGCONT"}, []string{"no problems found"})
	says(t, 1, []string{"doctor", "--data-dir", dir}, []string{
		"problem  agent: " + what, "names through this machine's resolver: not checked: this machine's agent does not answer",
	}, []string{"another program", "port 10249", "port 6443"})
}

// A control plane that hangs together with the agent (both are `proxima up`) does
// not keep status and doctor waiting.
func TestUpHangs(t *testing.T) {
	dir := t.TempDir()
	l, err := local.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hung := make(chan struct{})
	plane := serveTCP(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hung:
		case <-r.Context().Done():
		}
	}))
	defer close(hung)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: %q}}]\n"+
		"contexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {token: a}}]\n", plane)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, 0, []string{"status", "--data-dir", dir}, []string{"the agent does not answer", plane + " does not answer"}, nil)
	says(t, 1, []string{"doctor", "--data-dir", dir}, []string{"problem  agent: the agent does not answer", "problem  control plane " + plane + ": it does not answer"},
		[]string{"another program"})
}

func serveTCP(t *testing.T, handler http.Handler) (url string) {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return srv.URL
}

// No agent runs, and none has joined: commands say which data directory they mean.
func TestAgentAbsent(t *testing.T) {
	dir := t.TempDir()
	says(t, 1, []string{"trace", "10.96.0.1:80", "--data-dir", dir}, []string{"no agent with data directory " + dir + " runs on this machine", "--data-dir"}, nil)
	says(t, 1, []string{"doctor", "--data-dir", dir}, []string{"ok       agent: none with data directory " + dir}, nil)
	says(t, 1, []string{"status", "--data-dir", dir}, []string{"no kubeconfig", "proxima up"}, nil)
}

// A machine that has joined and whose agent is stopped: doctor and status name the
// command that starts it.
func TestAgentStopped(t *testing.T) {
	dir := t.TempDir()
	server := join(t, filepath.Join(dir, "node"), "edge-1")
	command := "proxima node --server " + server + " --node-name edge-1"
	says(t, 1, []string{"doctor", "--data-dir", dir}, []string{"problem  agent: it is not running", command}, []string{"start a control plane"})
	says(t, 1, []string{"trace", "10.96.0.1:80", "--data-dir", dir}, []string{"no agent with data directory"}, nil)
	code, out, complaint := runHere(t, "status", "--data-dir", dir)
	if out += complaint; code != 0 || !strings.Contains(out, command) {
		t.Errorf("status: exit code %d\n%s", code, out)
	}
}

// join leaves the credentials of a node in a directory, as `proxima node` does.
func join(t *testing.T, dir, name string) (server string) {
	t.Helper()
	kubeconfig := startControlPlane(t, app.RoleStandalone, "memory")
	code, token, complaint := runHere(t, "token", "create", "--kind", "node", "--name", name, "--kubeconfig", kubeconfig)
	if code != 0 {
		t.Fatal(complaint)
	}
	s := &settings{kubeconfig: kubeconfig, io: IO{Env: func(string) (string, bool) { return "", false }}}
	cfg, _, err := s.restConfig()
	if err != nil {
		t.Fatal(err)
	}
	server = strings.TrimPrefix(cfg.Host, "https://")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.Enroll(t.Context(), server, strings.TrimSpace(token), dir); err != nil {
		t.Fatal(err)
	}
	return server
}

// A disk that is full or read-only is named with the file, the reason and the time.
func TestAgentCannotSave(t *testing.T) {
	status := connectedAgent()
	since := time.Date(2026, 5, 4, 3, 2, 1, 0, time.Local)
	status.Unsaved = []admin.UnsavedFile{{File: "/var/lib/proxima/node/view", Error: "no space left on device", Since: since}}
	dir := agentThatSays(t, status, nil)
	want := []string{"/var/lib/proxima/node/view cannot be written since 2026-05-04 03:02:01: no space left on device", "free space on the disk"}
	says(t, 1, []string{"doctor", "--data-dir", dir}, append(want, "problem  agent's state on disk"), nil)
	says(t, 0, []string{"status", "--data-dir", dir}, []string{"cannot write /var/lib/proxima/node/view since 2026-05-04 03:02:01: no space left on device", "free space on the disk"}, nil)
}

// A machine with an agent alone is well without a kubeconfig, and doctor checks the
// ways to the service ranges that the agent keeps.
func TestAgentOnlyMachine(t *testing.T) {
	dir := agentThatSays(t, connectedAgent(), nil)
	if err := os.WriteFile(filepath.Join(dir, "node", "ranges.json"), []byte(`["127.96.0.0/16"]`), 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, 0, []string{"status", "--data-dir", dir}, []string{"https://192.0.2.10:6443", "node edge-1", "no problems found"}, nil)
	says(t, -1, []string{"doctor", "--data-dir", dir},
		[]string{"ok       control plane https://192.0.2.10:6443", "ok       agent: mode userspace, connected", "ok       service range 127.96.0.0/16: leads to this machine"},
		[]string{"start a control plane", "no kubeconfig: none", "port 6443"})
}

// The agent of a control plane that is away serves on, and says so.
func TestControlPlaneAway(t *testing.T) {
	status := connectedAgent()
	status.View.Connected, status.View.LastError = false, "connection refused"
	dir := agentThatSays(t, status, map[string]http.Handler{
		"GET " + local.TracePath: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(traces["userspace"]) }),
	})
	says(t, 0, []string{"status", "--data-dir", dir}, []string{"not connected", "serves its last state: connection refused"}, nil)
	says(t, 1, []string{"doctor", "--data-dir", dir}, []string{"problem  agent: it has no connection to the control plane"}, []string{"start a control plane"})
	says(t, 0, []string{"trace", "10.96.0.10:80", "--data-dir", dir}, []string{"shop/web:http"}, nil)
}

// Without a kubeconfig `run` registers through the agent, for the agent's node.
func TestRunThroughTheAgent(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs the program true")
	}
	plane := resourcetest.New()
	var mu sync.Mutex
	var created *v1alpha1.Dataplane
	plane.Intercept(func(c resourcetest.Call) error {
		mu.Lock()
		defer mu.Unlock()
		if dp, ok := c.Object.(*v1alpha1.Dataplane); ok && created == nil {
			created = dp.DeepCopy()
		}
		return nil
	})
	workloads := local.Workloads(local.WorkloadsConfig{Client: plane, Node: "edge-1", MachineID: "m1"})
	status := connectedAgent()
	status.API = "https://127.0.0.1:6443"
	dir := agentThatSays(t, status, map[string]http.Handler{"/api/": workloads, "/apis/": workloads})
	code, out, complaint := runHere(t, "run", "--name", "web-1", "--labels", "app=web", "--data-dir", dir, "--", "true")
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, complaint)
	}
	mu.Lock()
	defer mu.Unlock()
	if created == nil || created.Namespace != "default" || created.Name != "web-1" || created.Spec.NodeName != "edge-1" ||
		created.Annotations[v1alpha1.AnnotationMachineID] != "m1" || len(created.Spec.Addresses) != 1 || created.Spec.Addresses[0] != "127.0.0.1" {
		t.Errorf("registered %+v\n%s", created, complaint)
	}
	if strings.Contains(complaint, "level=WARN") {
		t.Errorf("complained: %s", complaint)
	}
	says(t, 2, []string{"run", "--name", "web-1", "--node-name", "edge-2", "--data-dir", dir, "--", "true"}, []string{"for node edge-1 only"}, nil)
	says(t, 1, []string{"run", "--name", "web-1", "--data-dir", t.TempDir(), "--", "true"}, []string{"no kubeconfig", "no agent runs", "proxima node"}, nil)
}
