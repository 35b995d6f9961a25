package e2e

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// insideNamespace runs a test again in a network namespace without a way out,
// and, if asked, with mounts of its own. It reports whether this is that run.
func insideNamespace(t *testing.T, mounts bool) bool {
	t.Helper()
	const inside = "PROXIMA_TEST_NAMESPACE"
	if os.Getenv(inside) == t.Name() {
		if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	testkit.Binary(t) // built out here, where modules can be had
	testkit.Kubectl(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if mounts {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNS
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("in the namespace: %v\n%s", err, out)
	}
	t.Logf("%s", out)
	return false
}

// TestRangeAddedAndDeleted: a range of virtual addresses that is added while
// everything runs is served at once, by an agent that was not restarted; its
// deletion waits for the Service that has an address of it.
func TestRangeAddedAndDeleted(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	p := startPlaneWith(t, "10.50.0.0/16")
	p.startNode("edge-1", "zone-a")
	p.apply(`
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: more}
spec: {cidrs: [10.60.0.0/24]}
`)
	testkit.Eventually(t, "the range can be used", func() bool {
		_, err := p.try(inRange("web", "10.60.0.10"), testkit.Kubectl(t), "apply", "-f", "-")
		return err == nil
	})
	p.startBackend("web-a", "zone-a")
	awaitAnswers(t, "10.60.0.10:8080", "web-a")
	p.kubectl("wait", "servicecidr/more", "--for=condition=Ready=true", "--timeout=10s")

	p.kubectl("delete", "servicecidr", "more", "--wait=false")
	p.kubectl("wait", "servicecidr/more", "--for=condition=Ready=false", "--timeout=10s")
	if out := p.kubectl("get", "servicecidr", "more", "-o", "jsonpath={.status.conditions[0].reason}"); out != "Terminating" {
		t.Errorf("the condition's reason is %q, want Terminating", out)
	}
	if out, err := p.try(inRange("late", "10.60.0.11"), testkit.Kubectl(t), "apply", "-f", "-"); err == nil ||
		!strings.Contains(out, "does not match the current range") {
		t.Errorf("an address of a range that is being deleted: %v: %s", err, out)
	}
	askMany(t, "10.60.0.10:8080", "web-a", "its range is being deleted")

	p.kubectl("delete", "service", "web")
	p.kubectl("wait", "servicecidr/more", "--for=delete", "--timeout=10s")
	testkit.Eventually(t, "the agent gives the route back", func() bool {
		out, err := exec.Command("ip", "route", "show", "table", "local").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return !strings.Contains(string(out), "10.60.0.0/24") && strings.Contains(string(out), "10.50.0.0/16")
	})
}

func inRange(name, address string) string {
	return `
apiVersion: v1
kind: Service
metadata: {name: ` + name + `, namespace: default}
spec:
  clusterIP: ` + address + `
  selector: {app: web}
  ports: [{name: http, port: 8080, targetPort: http}]
`
}
