package kube_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// fewObjects are a node, a Service and its slice.
const fewObjects = `
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: zone-a}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.80, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.9], nodeName: n1, zone: zone-a, conditions: {ready: true}}]
ports: [{name: http, port: 8080, protocol: TCP}]
`

// TestAgentPermissions: an agent that follows the Kubernetes API has what it needs by the
// chart's role, and asks for all that the role allows.
func TestAgentPermissions(t *testing.T) {
	b := newBench(t)
	b.kubectl(b.manifests("kube-proxy-replacement"), "apply", "--server-side", "-f", "-")
	b.kubectl(fewObjects, "apply", "-f", "-")
	// Rules stay when an agent ends: without this, virtual IPs of later tests would be dropped.
	t.Cleanup(func() {
		if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
			t.Errorf("nft flush ruleset: %v\n%s", err, out)
		}
	})
	agent := testkit.Start(t, []string{"PROXIMA_MODE=nftables"}, testkit.Binary(t), "node",
		"--kubeconfig", b.kubeconfigOf("proxima-agent"), "--node-name", "n1", "--data-dir", t.TempDir())
	if line := agent.FirstLine(); !strings.Contains(line, "node=n1 mode=nftables") {
		t.Fatalf("the agent says %q", line)
	}
	testkit.Eventually(t, "the Service is in the kernel", func() bool {
		out, err := b.run("", "nft", "list", "ruleset")
		return err == nil && strings.Contains(out, "10.96.0.80") && strings.Contains(out, "192.0.2.9")
	})
	b.wantAllUsed("kube-proxy-replacement", "proxima-agent", lists("services", "nodes", "endpointslices.discovery.k8s.io"))
}
