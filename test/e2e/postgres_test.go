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
		process := testkit.Start(t, nil, testkit.Binary(t), "control-plane", "--store", url, "--data-dir", p.dir,
			"--api-address", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.api)), "--grpc-port", strconv.Itoa(p.grpc), "--service-cidr", "127.96.0.0/16")
		process.FirstLine()
		return process
	}
	first := start()
	p.apply(webService)
	vip := p.vip("web")
	p.startNode("edge-1", "zone-a")
	p.startBackend("web-a", "zone-a")
	awaitAnswers(t, vip, "web-a")
	if out := p.proxima("status", "--metrics-port", "0"); !strings.Contains(out, "postgres, revision") || strings.Contains(out, "postgres://") {
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
