package e2e

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestRoutedRange: a range that is not loopback is served by an agent that gets it
// from the control plane alone, also when it starts while that is unreachable. It
// runs in a network namespace without a way out.
func TestRoutedRange(t *testing.T) {
	const inside = "PROXIMA_TEST_NAMESPACE"
	if os.Getenv(inside) == "" {
		if os.Geteuid() != 0 {
			t.Skip("needs root to make a network namespace")
		}
		testkit.Binary(t) // built out here, where modules can be had
		testkit.Kubectl(t)
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRoutedRange$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=yes")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("in the namespace: %v\n%s", err, out)
		}
		return
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p := startPlaneWith(t, "10.50.0.0/16")
	n := p.startNode("edge-1", "zone-a")
	p.apply(webService)
	vip := p.vip("web")
	if !strings.HasPrefix(vip, "10.50.") {
		t.Fatalf("the virtual IP is %s, want one of 10.50.0.0/16", vip)
	}
	p.startBackend("web-a", "zone-a")
	awaitAnswers(t, vip, "web-a")
	testkit.Eventually(t, "the agent's state is on disk", func() bool { return n.metric("proxima_view_unsaved") == 0 })
	p.process.Kill()
	n.process.Stop()
	n.start()
	askMany(t, vip, "web-a", "the agent came back without a control plane")
}
