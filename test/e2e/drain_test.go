package e2e

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestDrainAndCordon: what cordon, drain and undrain do, by the real kubectl and by ours.
func TestDrainAndCordon(t *testing.T) {
	p := startPlane(t)
	h1, _ := p.startNode("h1", "zone-a"), p.startNode("h2", "zone-a")
	p.apply(webService + "---" + `
apiVersion: v1
kind: Pod
metadata: {name: job, namespace: default}
spec: {nodeName: h1, terminationGracePeriodSeconds: 1, containers: [{name: c, image: none}]}
`)
	p.startBackendOn("web-1", "h1")
	p.startBackendOn("web-2", "h2")
	awaitAnswers(t, p.vip("web"), "web-1", "web-2")
	kubectl, proxima := testkit.Kubectl(t), testkit.Binary(t)
	fails := func(path string, args []string, texts ...string) {
		t.Helper()
		out, err := p.try("", path, args...)
		if err == nil {
			t.Errorf("%s %v succeeded:\n%s", filepath.Base(path), args, out)
		}
		for _, text := range texts {
			if !strings.Contains(out, text) {
				t.Errorf("%s %v does not say %q:\n%s", filepath.Base(path), args, text, out)
			}
		}
	}
	only := func(name string) {
		t.Helper()
		for range 30 {
			if got, _, err := who(p.vip("web")); err != nil || got != name {
				t.Fatalf("answered by %q, %v; want %s", got, err, name)
			}
		}
	}

	// kubectl drain does not know Dataplanes. It must not report success.
	fails(kubectl, []string{"drain", "h1", "--force"}, "1 Dataplane is in use", "proxima node drain h1")
	if state := p.kubectl("get", "node", "h1"); !strings.Contains(state, "SchedulingDisabled") || strings.Contains(state, "Drain") {
		t.Errorf("after kubectl drain:\n%s", state)
	}
	awaitAnswers(t, p.vip("web"), "web-1", "web-2") // what runs stays in use

	// The node takes nothing new, whoever registers it.
	run := []string{
		"run", "--name", "new", "--node-name", "h1", "--labels", "app=new", "--port", "http:" + strconv.Itoa(testkit.FreePort(t)),
		"--address", "127.0.0.1", "--", "sleep", "60",
	}
	fails(proxima, run, "node h1 is cordoned", "kubectl uncordon h1")
	if out, err := p.try(`{"apiVersion":"mesh.proxima.dev/v1alpha1","kind":"Dataplane","metadata":{"name":"new","namespace":"default"},
		"spec":{"nodeName":"h1","addresses":["127.0.0.1"]}}`, kubectl, "apply", "-f", "-"); err == nil || !strings.Contains(out, "kubectl uncordon h1") {
		t.Errorf("a Dataplane was applied to a cordoned node: %v\n%s", err, out)
	}
	p.kubectl("label", "dataplane", "web-1", "changed=yes") // what is there may change

	p.proxima("node", "drain", "h1")
	if state := p.kubectl("get", "node", "h1"); !strings.Contains(state, "Ready,SchedulingDisabled,Drained") {
		t.Errorf("after proxima node drain:\n%s", state)
	}
	only("web-2")
	fails(proxima, []string{"node", "drain", "h2"}, "default/web", "--force", "code: last-endpoint")
	p.kubectl("drain", "h1", "--force", "--timeout=30s")
	if pods := p.kubectl("get", "pods", "-o", "name"); pods != "" {
		t.Errorf("kubectl drain left %s", pods)
	}
	if out := p.proxima("status"); !strings.Contains(out, "proxima node undrain h1") {
		t.Errorf("status does not say how to end it:\n%s", out)
	}

	// As after a reboot: a workload starts while the node is drained, by the node's agent.
	port := strconv.Itoa(testkit.FreePort(t))
	late := testkit.Start(t, nil, proxima, "run", "--data-dir", h1.dir, "--name", "late", "--labels", "app=late", "--port", "http:"+port,
		"--address", "127.0.0.1", "--", proxima, "demo", "backend", "--name", "late", "--listen", "127.0.0.1:"+port)
	testkit.Eventually(t, "the command runs", func() bool { _, _, err := who("127.0.0.1:" + port); return err == nil })
	if out, err := p.try("", kubectl, "get", "dataplane", "late"); err == nil {
		t.Errorf("a workload was registered on a drained node:\n%s", out)
	}

	p.proxima("node", "undrain", "h1")
	if state := p.kubectl("get", "node", "h1"); strings.Contains(state, "Drain") || !strings.Contains(state, "SchedulingDisabled") {
		t.Errorf("the node was cordoned before it was drained; after undrain:\n%s", state)
	}
	awaitAnswers(t, p.vip("web"), "web-1", "web-2")
	p.kubectl("uncordon", "h1")
	testkit.Eventually(t, "the late workload is registered", func() bool {
		out, err := p.try("", kubectl, "get", "dataplane", "late")
		return err == nil && strings.Contains(out, "True")
	})
	late.Stop()
	for _, reason := range []string{"Draining", "Drained", "Undrained"} {
		if out := p.kubectl("get", "events", "--field-selector", "reason="+reason); !strings.Contains(out, "node/h1") {
			t.Errorf("there is no event %s:\n%s", reason, out)
		}
	}
}

// startBackendOn a node.
func (p *plane) startBackendOn(name, node string) {
	p.t.Helper()
	port := strconv.Itoa(testkit.FreePort(p.t))
	bin := testkit.Binary(p.t)
	testkit.Start(p.t, []string{"KUBECONFIG=" + p.kubeconfig}, bin, "run", "--name", name, "--node-name", node,
		"--labels", "app=web", "--port", "http:"+port, "--address", "127.0.0.1", "--ready-http", "/",
		"--", bin, "demo", "backend", "--name", name, "--listen", "127.0.0.1:"+port)
}
