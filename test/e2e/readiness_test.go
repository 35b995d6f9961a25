package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestAgentProbes: a workload without "proxima run" is ready while the probes of
// its node's agent succeed, and drains when it is deleted.
func TestAgentProbes(t *testing.T) {
	p := startPlane(t)
	n := p.startNode("edge-1", "zone-a")
	p.apply(webService)
	vip := p.vip("web")
	bin, port := testkit.Binary(t), strconv.Itoa(testkit.FreePort(t))
	serve := func() *testkit.Process {
		return testkit.Start(t, nil, bin, "demo", "backend", "--name", "web-a", "--zone", "zone-a", "--listen", "127.0.0.1:"+port)
	}
	p.apply(fmt.Sprintf(`
apiVersion: mesh.proxima.dev/v1alpha1
kind: Dataplane
metadata: {name: web-a, namespace: default, labels: {app: web}}
spec:
  nodeName: edge-1
  addresses: [127.0.0.1]
  ports: [{name: http, port: %s}]
  drainSeconds: 2
  readiness: {httpGet: {port: http, path: /}, periodSeconds: 1, failureThreshold: 2}
`, port))
	ready := func() string {
		return p.kubectl("get", "dataplane", "web-a", "-o",
			`jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].reason}`)
	}
	testkit.Eventually(t, "a workload that does not answer is reported", func() bool { return ready() == "False ProbeFailed" })
	backend := serve()
	awaitAnswers(t, vip, "web-a")
	if got := ready(); got != "True ProbeSucceeded" {
		t.Errorf("Ready is %q", got)
	}
	backend.Signal(syscall.SIGKILL)
	backend.Wait()
	testkit.Eventually(t, "the end is noticed", func() bool { return ready() == "False ProbeFailed" })
	serve()
	awaitAnswers(t, vip, "web-a")

	t.Run("drain", func(t *testing.T) {
		p.kubectl("delete", "dataplane", "web-a", "--wait=false")
		out := p.kubectl("get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "jsonpath={.items[0].endpoints[0].conditions}")
		testkit.Eventually(t, "the endpoint is terminating and serves", func() bool {
			out = p.kubectl("get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "jsonpath={.items[0].endpoints[*].conditions}")
			return out == "" || strings.Contains(out, `"terminating":true`)
		})
		if out != "" && (!strings.Contains(out, `"serving":true`) || !strings.Contains(out, `"ready":false`)) {
			t.Errorf("while it drains its conditions are %s", out)
		}
		p.kubectl("wait", "dataplane/web-a", "--for=delete", "--timeout=30s")
	})
	if failed := n.metric("proxima_view_rejected_resources"); failed != 0 {
		t.Errorf("%.0f resources were rejected", failed)
	}
}

// TestServiceVariables: a command that is run finds the Services of its
// namespace as a container of Kubernetes does.
func TestServiceVariables(t *testing.T) {
	p := startPlane(t)
	p.kubectl("create", "namespace", "shop")
	p.apply(`
apiVersion: v1
kind: Service
metadata: {name: big-web, namespace: shop}
spec: {clusterIP: 127.96.0.77, selector: {app: web}, ports: [{name: http, port: 8080}]}
`)
	environment := func(env []string, flags ...string) string {
		out := filepath.Join(t.TempDir(), "env")
		args := append([]string{"run", "--name", "job", "--namespace", "shop", "--address", "127.0.0.1"}, flags...)
		r := testkit.Start(t, append(env, "KUBECONFIG="+p.kubeconfig), testkit.Binary(t), append(args, "--", "sh", "-c", "env > "+out)...)
		if code := r.Wait(); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		data, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return "\n" + string(data)
	}
	got := environment([]string{"BIG_WEB_SERVICE_PORT=mine"})
	for _, line := range []string{
		"BIG_WEB_SERVICE_HOST=127.96.0.77", "BIG_WEB_SERVICE_PORT_HTTP=8080", "BIG_WEB_PORT=tcp://127.96.0.77:8080",
		"BIG_WEB_PORT_8080_TCP_ADDR=127.96.0.77", "KUBERNETES_SERVICE_HOST=127.96.0.1", "KUBERNETES_SERVICE_PORT_HTTPS=443",
		"BIG_WEB_SERVICE_PORT=mine", // the user's own
	} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("%s is missing in:%s", line, got)
		}
	}
	if got := environment(nil, "--env-services=false"); strings.Contains(got, "_SERVICE_HOST=") {
		t.Errorf("reported although turned off:%s", got)
	}
}
