package kube_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/resource/kind/kindtest"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestControlPlane: with the chart's service account and the arguments of its Deployment, a
// control plane plans the Services of a cluster, and needs all of its permissions.
func TestControlPlane(t *testing.T) {
	b := newBench(t)
	if !strings.Contains(b.proxima("control-plane", "--help"), "--own-namespace") {
		t.Skip("this build has no control plane for a cluster")
	}
	client, err := kubernetes.NewForConfig(b.Admin(t))
	if err != nil {
		t.Fatal(err)
	}
	fill(t, client)
	b.kubectl(b.manifests("kube-proxy-replacement"), "apply", "--server-side", "-f", "-")
	dir := t.TempDir()
	start := func(dir string, port int) *testkit.Process {
		p := testkit.Start(t, []string{"PROXIMA_KUBECONFIG=" + b.kubeconfigOf("proxima")}, testkit.Binary(t),
			append(b.podArgs(dir, fmt.Sprintf("%s:%d", address, port)), fmt.Sprintf("--grpc-port=%d", port+1))...)
		if line := p.FirstLine(); !strings.HasPrefix(line, "ready api=https://") {
			t.Fatalf("the control plane says %q", line)
		}
		return p
	}
	first := start(dir, planePort)
	plans := func() int {
		return strings.Count(b.kubectl("", "--namespace", "shop", "get", "trafficplans", "-o", "name"), "trafficplan")
	}
	b.until("all Services have plans", func() bool { return plans() == services })
	if got := b.kubectl("", "--namespace", "shop", "get", "service", "svc-007", "-o", "jsonpath={.status.conditions[*].type}"); got == "" {
		t.Error("the Service has no condition")
	}
	b.tellsRefusals()
	b.refusesForeignToken(dir)
	// Another replica leads when the first one ends, and takes back plans that are not wanted.
	start(t.TempDir(), planePort+2)
	first.Stop()
	ctx := context.Background()
	if err := client.CoreV1().Services("shop").Delete(ctx, "svc-000", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.kubectl("", "--namespace", "shop", "annotate", "service", "svc-001", "service.kubernetes.io/topology-mode=Disabled")
	b.until("two plans are gone", func() bool { return plans() == services-2 })
	// A plan follows its endpoints.
	slice, err := client.DiscoveryV1().EndpointSlices("shop").Get(ctx, "svc-002-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slice.Endpoints = slice.Endpoints[:1]
	if _, err := client.DiscoveryV1().EndpointSlices("shop").Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.until("the plan is another one", func() bool {
		return b.kubectl("", "--namespace", "shop", "get", "trafficplan", "svc-002", "-o", "jsonpath={.spec.version}") == "2"
	})
	b.assignsAddresses()
	b.tellsPolicies()
	// Pods are followed once a Service warms its endpoints up.
	if n := b.asked("proxima")[permission{"", "pods", "watch"}]; n != 0 {
		t.Errorf("%d watches of pods before they are needed", n)
	}
	b.kubectl("", "--namespace", "shop", "annotate", "service", "svc-003", "topology.proxima.dev/warmup=30s")
	b.until("pods are watched", func() bool { return b.asked("proxima")[permission{"", "pods", "watch"}] > 0 })
	b.wantAllUsed("kube-proxy-replacement", "proxima", append(lists("services", "nodes", "namespaces", "pods",
		"endpointslices.discovery.k8s.io",
		"meshes.mesh.proxima.dev", "zonecosts.mesh.proxima.dev", "topologyheuristics.mesh.proxima.dev", "ipaddresspools.mesh.proxima.dev", "trafficplans.planner.mesh.proxima.dev"),
		permission{"", "configmaps", "update"}, // after the Secret of the authority was replaced
	))
}

// tellsRefusals: a parameter that cannot be used is a condition and an Event of its Service.
func (b *bench) tellsRefusals() {
	b.t.Helper()
	b.kubectl("", "--namespace", "shop", "annotate", "service", "svc-003", "topology.proxima.dev/overload=wide")
	b.until("the Service tells it", func() bool {
		text := b.kubectl("", "--namespace", "shop", "describe", "service", "svc-003")
		return strings.Contains(text, "TopologyParametersInvalid") && strings.Contains(text, "must be a number from 0 to 10")
	})
	if got := b.kubectl("", "--namespace", "shop", "get", "service", "svc-003",
		"-o", `jsonpath={.status.conditions[?(@.type=="proxima.dev/TopologyParameters")].reason}`); got != "Invalid" {
		b.t.Errorf("the condition of the parameters has reason %q", got)
	}
}

// tellsPolicies: the status of a policy says that it is in effect, or why not.
func (b *bench) tellsPolicies() {
	b.t.Helper()
	for _, kind := range []string{"ZoneCosts", "TopologyHeuristic"} {
		obj := decode(b.t, descriptor(kind), kindtest.Valid()[kind])
		text, err := obj.MarshalJSON()
		if err != nil {
			b.t.Fatal(err)
		}
		b.kubectl(string(text), "apply", "--server-side", "-f", "-")
		b.until(kind+" has a condition", func() bool {
			return b.kubectl("", "get", strings.ToLower(kind), obj.GetName(), "-o", "jsonpath={.status.conditions}") != ""
		})
	}
}

// planePort is where the API of the first replica is.
const planePort = 7443

// refusesForeignToken: the API server verifies a token of an agent's account, but it is of no
// pod, so it joins no node.
func (b *bench) refusesForeignToken(dir string) {
	b.t.Helper()
	ca, err := os.ReadFile(filepath.Join(dir, "pki", "ca", "ca.crt"))
	if err != nil {
		b.t.Fatal(err)
	}
	token := strings.TrimSpace(b.kubectl("", "--namespace", manifests.Namespace, "create", "token", "proxima-agent", "--audience=proxima"))
	client, err := rest.HTTPClientFor(&rest.Config{BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
	if err != nil {
		b.t.Fatal(err)
	}
	url := fmt.Sprintf("https://%s:%d%s", address, planePort, identity.CertificatesPath)
	answer, err := client.Post(url, "application/json", strings.NewReader("{}"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusUnauthorized {
		b.t.Errorf("a token of no pod is answered with %s", answer.Status)
	}
}
