package kube_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// globalCluster is a cluster of its own with the preset global: two replicas, which zones reach by
// the addresses that a Service's load balancer would have.
type globalCluster struct {
	*bench
	replicas []*testkit.Process
	dirs     []string
}

// hosts of the API server, and of the replicas, on the loopback interface.
var globalHosts = []string{"192.0.2.10", "192.0.2.11", "192.0.2.12"}

func newGlobalCluster(t *testing.T) *globalCluster {
	t.Helper()
	need(t)
	for _, host := range globalHosts {
		add(t, host)
	}
	c := cluster.Start(t, cluster.Config{Host: globalHosts[0]})
	g := &globalCluster{bench: &bench{Cluster: c, t: t, kubeconfig: c.Kubeconfig(t, "admin"), home: t.TempDir()}}
	g.gatewayAPI()
	g.kubectl(g.manifests("global", "--set", "webhook.enabled=true"), "apply", "--server-side", "-f", "-")
	for range globalHosts[1:] {
		g.dirs, g.replicas = append(g.dirs, t.TempDir()), append(g.replicas, nil)
	}
	for n := range g.replicas {
		g.startReplica(n)
	}
	g.virtualIP(strings.Split(g.addresses(), ",")...)
	g.until("the API server is given the authority of the webhook", func() bool {
		bundles := g.kubectl("", "get", "validatingwebhookconfiguration", "proxima", "-o", "jsonpath={.webhooks[*].clientConfig.caBundle}")
		return len(strings.Fields(bundles)) == 4
	})
	return g
}

// add an address to the loopback interface of the tests.
func add(t *testing.T, host string) {
	t.Helper()
	if out, err := exec.Command("ip", "address", "add", host+"/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "address", "delete", host+"/32", "dev", "lo").Run() })
}

// startReplica with the arguments of the chart's Deployment.
func (g *globalCluster) startReplica(n int) {
	g.t.Helper()
	var d appsv1.Deployment
	g.object(&d, "deployment", "proxima")
	host := globalHosts[n+1]
	args := replaced(d.Spec.Template.Spec.Containers[0].Args, map[string]string{
		"--api-address": fmt.Sprintf("%s:%d", host, globalPort), "--data-dir": g.dirs[n], "--advertise-address": host,
	})
	g.replicas[n] = testkit.Start(g.t, []string{"PROXIMA_KUBECONFIG=" + g.kubeconfigOf("proxima")}, testkit.Binary(g.t),
		append(args, fmt.Sprintf("--grpc-port=%d", globalPort+1))...)
	if line := g.replicas[n].FirstLine(); !strings.HasPrefix(line, "ready api=https://") {
		g.t.Fatalf("replica %d of global says %q: %s", n, line, g.replicas[n].Stderr)
	}
}

func (g *globalCluster) addresses() string {
	var out []string
	for _, host := range globalHosts[1:] {
		out = append(out, fmt.Sprintf("%s:%d", host, globalPort))
	}
	return strings.Join(out, ",")
}

// ask a replica, as kubectl exec would.
func (g *globalCluster) ask(n int, args ...string) string {
	g.t.Helper()
	return g.proxima(append(args, "--kubeconfig", filepath.Join(g.dirs[n], "kubeconfig"))...)
}

// admit a zone: its object, and a token for its control plane.
func (g *globalCluster) admit(zone string) string {
	g.t.Helper()
	g.kubectl(fmt.Sprintf("apiVersion: mesh.proxima.dev/v1alpha1\nkind: Zone\nmetadata: {name: %s}\n", zone), "apply", "-f", "-")
	return g.ask(0, "token", "create", "--kind", "zone", "--name", zone)
}

// TestGlobalInCluster: global is in one cluster, another one is a zone, machines are the second zone.
// Policies are written by kubectl, and the zones call each other, whatever of global is away.
func TestGlobalInCluster(t *testing.T) {
	g := newGlobalCluster(t)
	s := newSitesOf(t, newBench(t), g)
	s.wantBoth()
	if got := s.kubectl("", "get", "mesh", "default", "-o", "jsonpath={.spec.mtls.enabledBackend}"); got != "ca" {
		t.Errorf("the zone has the Mesh of global with backend %q", got)
	}
	for _, zone := range []string{"east", "west"} {
		g.until("the workloads of "+zone, func() bool {
			return strings.Contains(g.kubectl("", "get", "dataplanes", "-A", "-l", "mesh.proxima.dev/zone="+zone), "web")
		})
		g.until("global says that "+zone+" is connected", func() bool {
			return g.kubectl("", "get", "zoneinsight", zone, "-o", "jsonpath={.status.online}") == "true"
		})
	}
	for n := range g.replicas {
		if got := g.ask(n, "status"); !strings.Contains(got, "no problems found") || !strings.Contains(got, "west") {
			t.Errorf("the status of replica %d:\n%s", n, got)
		}
	}
	g.kubectl("", "create", "namespace", "shop")
	g.refusals(t)
	g.routeRefusals()
	written := func(what string) {
		t.Helper()
		note := strings.ReplaceAll(what, " ", "-")
		g.kubectl(policies(note)+trafficObjects(note), "apply", "-f", "-")
		for _, way := range []func(string, ...string) string{s.kubectl, func(in string, args ...string) string { return s.at(s.west, in, args...) }} {
			s.until("the policy of "+what, func() bool {
				return strings.Contains(way("", "get", "zonecosts", "-o", "jsonpath={.items[*].metadata.annotations.note}"), note)
			})
			for _, policy := range trafficPolicies() {
				s.until("the "+policy[0]+" of "+what, func() bool {
					return strings.Contains(way("", "--namespace", "shop", "get", policy[0], "-o", "jsonpath={.items[*].metadata.annotations.note}"), note)
				})
			}
		}
	}
	written("all is well")
	for _, policy := range trafficPolicies()[:4] {
		g.until("what west observes of the "+policy[0], func() bool {
			return strings.Contains(g.kubectl("", "--namespace", "shop", "get", policy[0], "-o", "jsonpath={.items[*].status.zones[*].zone}"), "west")
		})
	}
	s.globalSecret()

	const away = 5 * time.Second
	s.withCalls("a replica of global is killed", away, g.replicas[0].Kill)
	written("one replica")
	s.withCalls("the API server of global is killed", away, func() { g.KillAPI(t) })
	s.withCalls("it comes back", away, g.startAgain)
	g.startReplica(0)
	written("all are back")
	s.withCalls("global is killed", away, func() { g.replicas[0].Kill(); g.replicas[1].Kill() })
	g.startReplica(0)
	g.startReplica(1)
	written("all were away")
	if got := s.kubectl("", "--namespace", "shop", "get", "httproutes", "-o", "name"); strings.Contains(got, "door") {
		t.Errorf("the zone has a route of a Gateway of global's cluster: %s", got)
	}
	g.kubectl(policies("gone")+trafficObjects("gone"), "delete", "-f", "-")
	s.until("the policy is gone", func() bool { return !strings.Contains(s.kubectl("", "get", "zonecosts"), "dear") })

	// Nothing of a zone stays behind but what is in the zone.
	s.westPlane.Kill()
	g.until("west is offline", func() bool {
		return g.kubectl("", "get", "zoneinsight", "west", "-o", "jsonpath={.status.online}") != "true"
	})
	g.kubectl("", "delete", "zone", "west", "--timeout=60s")
	if got := g.kubectl("", "get", "dataplanes,serviceexports,zoneingresses", "-A", "-l", "mesh.proxima.dev/zone=west", "-o", "name"); strings.TrimSpace(got) != "" {
		t.Errorf("copies of a zone that is gone: %s", got)
	}
	g.wantAllUsed("global", "proxima", globalUnused(), "webhook")
}

// globalSecret that an ExternalService refers to goes to the zones that have it, and goes with it.
func (s *sites) globalSecret() {
	s.t.Helper()
	const objects = `
apiVersion: v1
kind: Secret
metadata: {name: bank-key, namespace: proxima-system}
type: mesh.proxima.dev/global
stringData: {key: for-the-bank, other: nobody-asks}
---
apiVersion: mesh.proxima.dev/v1alpha1
kind: ExternalService
metadata: {name: vault, namespace: shop}
spec:
  hosts: [vault.example]
  ports: [{port: 443}]
  tls:
    clientCertificate: {secretRef: {kind: GlobalSecret, name: bank-key, key: key}}
    clientKey: {secretRef: {kind: GlobalSecret, name: bank-key, key: key}}
`
	s.inCluster.kubectl(objects, "apply", "-f", "-")
	const want = "Zm9yLXRoZS1iYW5r" // for-the-bank
	s.until("the cluster has the Secret", func() bool {
		out, err := s.run("", testkit.Kubectl(s.t), "--namespace", manifests.Namespace, "get", "secret", "bank-key", "-o", "jsonpath={.type} {.data}")
		return err == nil && strings.TrimSpace(out) == `mesh.proxima.dev/global {"key":"`+want+`"}`
	})
	s.until("the machines have it", func() bool {
		return strings.Contains(s.at(s.west, "", "get", "globalsecrets", "-o", "jsonpath={.items[*].data.key}"), want)
	})
	s.inCluster.kubectl(objects, "delete", "-f", "-")
	s.until("the Secret is gone", func() bool {
		_, err := s.run("", testkit.Kubectl(s.t), "--namespace", manifests.Namespace, "get", "secret", "bank-key")
		return err != nil && strings.Contains(err.Error(), "NotFound")
	})
}

// refusals of the webhook, by the rules of a global control plane outside of clusters.
func (g *globalCluster) refusals(t *testing.T) {
	t.Helper()
	copied := strings.Fields(g.kubectl("", "get", "serviceexports", "--namespace", manifests.Namespace, "-l", "mesh.proxima.dev/zone=west", "-o", "name"))
	if len(copied) != 1 {
		t.Fatalf("copies of exports: %q", copied)
	}
	for _, write := range []struct {
		want string
		args []string
	}{
		{"it is a copy of an object of zone west, which alone changes it: change it there", []string{"delete", copied[0]}},
		{"it is a copy of an object of zone west, which alone changes it: change it there", []string{"label", copied[0], "a=b"}},
		{"it is online: stop its control plane or disable it first", []string{"delete", "zone", "west"}},
	} {
		_, err := g.run("", testkit.Kubectl(t), append([]string{"--namespace", manifests.Namespace}, write.args...)...)
		if err == nil || !strings.Contains(err.Error(), write.want) {
			t.Errorf("%q: %v, want %q", write.args, err, write.want)
		}
	}
	// A dry run asks the zones: nothing is stored anywhere.
	g.kubectl(policies("none"), "apply", "--dry-run=server", "-f", "-")
	if got := g.kubectl("", "get", "zonecosts", "-o", "name"); strings.TrimSpace(got) != "" {
		t.Errorf("a dry run has stored %s", got)
	}
}

// globalUnused are permissions that TestGlobalInCluster does not need.
func globalUnused() []permission {
	out := lists("namespaces")
	for _, name := range []string{
		"meshes", "zonecosts", "topologyheuristics", "externalservices", "zones", "zoneinsights", "zoneingresses", "zoneegresses",
		"zoneingressinsights", "zoneegressinsights", "dataplanes", "dataplaneinsights",
		"trafficpermissions", "backendpolicies", "workloadpolicies", "proxypatches",
	} {
		out = append(out, permission{"mesh.proxima.dev", name, "list"})
	}
	out = append(out, lists("httproutes.gateway.networking.k8s.io", "grpcroutes.gateway.networking.k8s.io", "tcproutes.gateway.networking.k8s.io",
		"referencegrants.gateway.networking.k8s.io")...)
	out = append(out, permission{"multicluster.x-k8s.io", "serviceexports", "list"},
		permission{"mesh.proxima.dev", "topologyheuristics", "get"}, // as ZoneCosts
		permission{"mesh.proxima.dev", "topologyheuristics/status", "update"},
		permission{"admissionregistration.k8s.io", "validatingwebhookconfigurations", "list"},
		permission{"mesh.proxima.dev", "zones", "get"}, // of a zone that connects before its object is known
	)
	// There is no egress, no gateway here has an insight, and that of a workload never changes.
	out = append(out, permission{"mesh.proxima.dev", "dataplaneinsights", "update"})
	for _, name := range []string{"zoneegresses", "zoneegressinsights", "zoneingressinsights"} {
		for _, verb := range []string{"get", "create", "update", "delete"} {
			out = append(out, permission{"mesh.proxima.dev", name, verb})
		}
	}
	return out
}
