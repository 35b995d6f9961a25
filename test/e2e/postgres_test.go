package e2e

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestPostgres runs a control plane on a real PostgreSQL server, kills it and
// finds everything again.
func TestPostgres(t *testing.T) {
	p := &plane{t: t, dir: t.TempDir(), api: testkit.FreePort(t), grpc: testkit.FreePort(t)}
	p.kubeconfig = filepath.Join(p.dir, "kubeconfig")
	url := testkit.Postgres(t)
	start := func() *testkit.Process {
		t.Helper()
		process := testkit.Start(t, nil, testkit.Binary(t), "control-plane", "--store", url, "--data-dir", p.dir, "--api-address",
			net.JoinHostPort("127.0.0.1", strconv.Itoa(p.api)), "--grpc-port", strconv.Itoa(p.grpc), "--service-cidr", "127.96.0.0/16")
		process.FirstLine()
		return process
	}
	first := start()
	p.apply(webService)
	vip := p.vip("web")
	p.startNode("edge-1", "zone-a")
	p.startBackend("web-a", "zone-a")
	awaitAnswers(t, vip, "web-a")
	if out := p.proxima("status"); !strings.Contains(out, "postgres, revision") || strings.Contains(out, "postgres://") {
		t.Errorf("status should name the store, not its URL:\n%s", out)
	}
	first.Kill()
	askMany(t, vip, "web-a", "the control plane is dead")
	start()
	if again := p.vip("web"); again != vip {
		t.Errorf("the Service came back at %s, it was at %s", again, vip)
	}
	p.startBackend("web-b", "zone-b")
	awaitAnswers(t, vip, "web-a", "web-b")
}

// TestPostgresAlone: a control plane without a cluster key has its database for itself.
// The second is refused, is told how both could run, and takes over when the first is gone.
func TestPostgresAlone(t *testing.T) {
	url := testkit.Postgres(t)
	start := func(dir string) (*testkit.Process, []string) {
		args := []string{"control-plane", "--store", url, "--data-dir", dir, "--api-address",
			net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.FreePort(t))), "--grpc-port", "0"}
		return testkit.Start(t, nil, testkit.Binary(t), args...), args
	}
	first, args := start(t.TempDir())
	first.FirstLine()
	p := &plane{t: t, dir: t.TempDir()}
	args[4] = p.dir
	out, err := p.try("", testkit.Binary(t), args...)
	if err == nil || !strings.Contains(out, "in use by another process") || !strings.Contains(out, "start both with the same --cluster-key-file") {
		t.Fatalf("the second: %v\n%s", err, out)
	}
	first.Kill()
	second, _ := start(p.dir)
	second.FirstLine()
}

// TestPostgresRestore moves a control plane's state from SQLite to PostgreSQL.
func TestPostgresRestore(t *testing.T) {
	p := startPlane(t)
	p.apply(webService)
	vip := p.vip("web")
	file := filepath.Join(p.dir, "all.backup")
	p.proxima("backup", "--with-keys", file)
	p.process.Kill()
	url := testkit.Postgres(t)
	dir := t.TempDir()
	p.proxima("restore", file, "--store", url, "--data-dir", dir)
	out, err := p.try("", testkit.Binary(t), "restore", file, "--store", url, "--data-dir", dir)
	if err == nil || !strings.Contains(out, "there is a state already") || !strings.Contains(out, "search_path=NAME") {
		t.Errorf("again: %v\n%s", err, out)
	}
	moved := &plane{t: t, dir: dir, kubeconfig: filepath.Join(dir, "kubeconfig")}
	testkit.Start(t, nil, testkit.Binary(t), "control-plane", "--store", url, "--data-dir", dir,
		"--api-address", net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.FreePort(t))), "--grpc-port", "0").FirstLine()
	if again := moved.vip("web"); again != vip {
		t.Errorf("the Service is at %s, it was at %s", again, vip)
	}
}
