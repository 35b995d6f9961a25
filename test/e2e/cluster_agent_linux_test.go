package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// The agent in kube-proxy's place: it follows an API by client-go alone, with
// what kube-proxy gets, a kubeconfig and a configuration file. The API is that of
// our control plane, which is Kubernetes' own machinery.

// backendNamed serves its name until the test ends, on an address of this
// namespace: the API takes none of loopback for an endpoint.
func backendNamed(t testing.TB, name string) (port int) {
	t.Helper()
	ln, err := net.Listen("tcp", "192.0.2.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"name": name})
	}), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close() })
	return ln.Addr().(*net.TCPAddr).Port
}

// endpoint of a slice in a manifest: it is of a slice of its own, as ports differ.
func endpoint(service, name string, port int, node, zone, hint string) string {
	hints := ""
	if hint != "" {
		hints = fmt.Sprintf(", hints: {forZones: [{name: %s}]}", hint)
	}
	return fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%s, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.1], nodeName: %[4]s, zone: %[5]s, conditions: {ready: true}%[6]s}]
ports: [{name: http, port: %[3]d, protocol: TCP}]
---
`, service, name, port, node, zone, hints)
}

// kubeProxyFile is a configuration as kubeadm's, for a machine that has other
// things on the usual ports.
func kubeProxyFile(t testing.TB, kubeconfig string, health, metrics int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.conf")
	text := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: %s, qps: 0}
clusterCIDR: 10.244.0.0/16
conntrack: {maxPerCore: null, min: null}
healthzBindAddress: 127.0.0.1:%d
hostnameOverride: Edge-1
iptables: {masqueradeBit: 14, minSyncPeriod: 1s}
metricsBindAddress: 127.0.0.1:%d
nodePortAddresses: [127.0.0.0/8]
`, kubeconfig, health, metrics)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func nodeManifest(zone string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: edge-1, labels: {topology.kubernetes.io/zone: %s}}
`, zone)
}

// clusterAgent is an agent that follows an API as kube-proxy does.
type clusterAgent struct {
	*node
	args []string
}

// startCluster starts a control plane to be the API, and an agent next to it.
func startCluster(t testing.TB, args func(p *plane, health, metrics int) []string) (*plane, *clusterAgent) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ip", "address", "add", "192.0.2.1/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p := startPlane(t)
	p.apply(nodeManifest("zone-a"))
	a := &clusterAgent{node: &node{plane: p, name: "edge-1", dir: t.TempDir(), health: testkit.FreePort(t), metrics: testkit.FreePort(t)}}
	a.args = append([]string{"node", "--mode", "userspace", "--data-dir", a.dir}, args(p, a.health, a.metrics)...)
	a.run()
	return p, a
}

func (a *clusterAgent) run() {
	a.plane.t.Helper()
	a.process = testkit.Start(a.plane.t, nil, testkit.Binary(a.plane.t), a.args...)
	if line := a.process.FirstLine(); !strings.Contains(line, "node=edge-1 mode=userspace dns=off") {
		a.plane.t.Errorf("the agent says %q", line)
	}
}

// get requests a path from a port of loopback.
func get(port int, path string) (code int, body string, err error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}

const httpService = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {%sports: [{name: http, port: 8080}]}
---
`

// only waits until no others than these answer.
func only(t testing.TB, vip string, names ...string) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("only %v answer at %s", names, vip), func() bool {
		heard := map[string]bool{}
		for range 10 * len(names) {
			name, _, err := who(vip)
			if err != nil {
				return false
			}
			heard[name] = true
		}
		for _, n := range names {
			if !heard[n] {
				return false
			}
		}
		return len(heard) == len(names)
	})
}

func TestClusterAgent(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	p, a := startCluster(t, func(p *plane, health, metrics int) []string {
		return []string{"--kube-proxy-config", kubeProxyFile(t, p.kubeconfig, health, metrics)}
	})
	portA, portB := backendNamed(t, "a"), backendNamed(t, "b")
	p.apply(
		fmt.Sprintf(httpService, "") + endpoint("web", "a", portA, "edge-1", "zone-a", "") + endpoint("web", "b", portB, "edge-2", "zone-b", ""))
	vip := p.vip("web")

	t.Run("a virtual address", func(t *testing.T) { only(t, vip, "a", "b") })

	t.Run("health and metrics where the file says", func(t *testing.T) {
		for _, path := range []string{"/healthz", "/livez"} {
			if code, body, err := get(a.health, path); err != nil || code != http.StatusOK {
				t.Errorf("%s: %d %s %v", path, code, body, err)
			}
		}
		if _, body, err := get(a.metrics, "/metrics"); err != nil || !strings.Contains(body, "kubeproxy_sync_proxy_rules_duration_seconds") {
			t.Errorf("metrics: %v\n%s", err, body)
		}
		if _, body, err := get(a.metrics, "/proxyMode"); err != nil || body != "userspace" {
			t.Errorf("/proxyMode: %q %v", body, err)
		}
		var status struct {
			Cluster struct {
				Synced           bool
				Services, Slices int
				LastError        string
			}
		}
		body := p.proxima("status", "--data-dir", a.dir, "-o", "json")
		err := json.Unmarshal([]byte(body), &struct{ Agent any }{&status})
		if err != nil || !status.Cluster.Synced || status.Cluster.Services < 1 || status.Cluster.Slices < 2 || status.Cluster.LastError != "" {
			t.Errorf("status: %v\n%s", err, body)
		}
		if out := p.proxima("status", "--data-dir", a.dir); !strings.Contains(out, "edge-1") {
			t.Errorf("status:\n%s", out)
		}
	})

	t.Run("the time until endpoints are in place", func(t *testing.T) {
		at := time.Now().UTC().Format(time.RFC3339Nano)
		p.kubectl("annotate", "endpointslice", "web-a", "--overwrite", "endpoints.kubernetes.io/last-change-trigger-time="+at)
		testkit.Eventually(t, "it is measured", func() bool {
			_, body, err := get(a.metrics, "/metrics")
			return err == nil && strings.Contains(body, "kubeproxy_network_programming_duration_seconds_count 1\n")
		})
	})

	t.Run("endpoints come and go", func(t *testing.T) {
		p.kubectl("delete", "endpointslice", "web-a")
		only(t, vip, "b")
		portC := backendNamed(t, "c")
		p.apply(endpoint("web", "c", portC, "edge-1", "zone-a", ""))
		only(t, vip, "b", "c")
		p.kubectl("delete", "endpointslice", "web-c")
		p.apply(endpoint("web", "a", portA, "edge-1", "zone-a", ""))
		only(t, vip, "a", "b")
	})

	t.Run("the Node's zone decides about hints", func(t *testing.T) {
		p.apply(endpoint("web", "a", portA, "edge-1", "zone-a", "zone-a") + endpoint("web", "b", portB, "edge-2", "zone-b", "zone-b"))
		only(t, vip, "a")
		p.kubectl("label", "node", "edge-1", "--overwrite", "topology.kubernetes.io/zone=zone-b")
		only(t, vip, "b")
		p.kubectl("label", "node", "edge-1", "topology.kubernetes.io/zone-")
		only(t, vip, "a", "b")
		p.kubectl("label", "node", "edge-1", "topology.kubernetes.io/zone=zone-a")
		only(t, vip, "a")
	})

	t.Run("the node is about to be removed", func(t *testing.T) {
		p.kubectl("taint", "node", "edge-1", "ToBeDeletedByClusterAutoscaler=1:NoSchedule")
		testkit.Eventually(t, "healthz says so", func() bool {
			code, _, err := get(a.health, "/healthz")
			return err == nil && code == http.StatusServiceUnavailable
		})
		if code, _, err := get(a.health, "/livez"); err != nil || code != http.StatusOK {
			t.Errorf("/livez: %d %v, want 200: the agent itself is well", code, err)
		}
		p.kubectl("taint", "node", "edge-1", "ToBeDeletedByClusterAutoscaler-")
		testkit.Eventually(t, "healthz is well again", func() bool {
			code, _, err := get(a.health, "/healthz")
			return err == nil && code == http.StatusOK
		})
	})

	t.Run("headless Services, external names and other proxies' are left alone", func(t *testing.T) {
		p.apply(`
apiVersion: v1
kind: Service
metadata: {name: other, namespace: default, labels: {service.kubernetes.io/service-proxy-name: somebody}}
spec: {ports: [{name: http, port: 8080}]}
---
` + endpoint("other", "a", portA, "edge-1", "zone-a", ""))
		p.apply(strings.ReplaceAll(fmt.Sprintf(httpService, "")+endpoint("mark", "a", portA, "edge-1", "zone-a", ""), "name: web", "name: mark"))
		only(t, p.vip("mark"), "a") // it came later
		if name, _, err := who(p.vip("other")); err == nil {
			t.Errorf("the Service of another proxy is answered by %q", name)
		}
	})

	t.Run("the API is away", func(t *testing.T) {
		p.process.Kill()
		for range 20 {
			if name, _, err := who(vip); err != nil || name != "a" {
				t.Errorf("without an API: %q, %v", name, err)
			}
		}
		p.start()
		p.kubectl("label", "node", "edge-1", "--overwrite", "topology.kubernetes.io/zone=zone-b")
		only(t, vip, "b")
		p.kubectl("delete", "service", "web")
		testkit.Eventually(t, "the address is given up", func() bool {
			c, err := net.DialTimeout("tcp", vip, 5*time.Second)
			if err == nil {
				_ = c.Close()
			}
			return err != nil
		})
	})
}

// TestClusterAgentHealthCheckNodePort: load balancers learn whether this node has
// endpoints of a Service that keeps traffic local.
func TestClusterAgentHealthCheckNodePort(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	p, _ := startCluster(t, func(p *plane, health, metrics int) []string {
		return []string{"--kubeconfig", p.kubeconfig, "--node-name", "edge-1", "--health-port", strconv.Itoa(health), "--metrics-port",
			strconv.Itoa(metrics)}
	})
	port := backendNamed(t, "a")
	p.apply(
		fmt.Sprintf(httpService, "type: LoadBalancer, externalTrafficPolicy: Local, ") + endpoint("web", "a", port, "edge-1", "zone-a",
			"") + endpoint("web", "b", port, "edge-2", "zone-b", ""),
	)
	p.kubectl("patch", "service", "web", "--subresource=status", "--type=merge", "-p",
		`{"status":{"loadBalancer":{"ingress":[{"ip":"127.97.0.1"}]}}}`)
	checks, err := strconv.Atoi(p.kubectl("get", "service", "web", "-o", "jsonpath={.spec.healthCheckNodePort}"))
	if err != nil || checks == 0 {
		t.Fatalf("healthCheckNodePort %d, %v", checks, err)
	}
	var said struct {
		Service             struct{ Namespace, Name string }
		LocalEndpoints      int
		ServiceProxyHealthy bool
	}
	answers := func(code, local int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("port %d answers %d for %d endpoints", checks, code, local), func() bool {
			got, body, err := get(checks, "/")
			return err == nil && got == code && json.Unmarshal([]byte(body), &said) == nil && said.LocalEndpoints == local
		})
	}
	answers(http.StatusOK, 1)
	if said.Service.Namespace != "default" || said.Service.Name != "web" || !said.ServiceProxyHealthy {
		t.Errorf("it says %+v", said)
	}
	only(t, "127.97.0.1:8080", "a")
	p.kubectl("delete", "endpointslice", "web-a")
	answers(http.StatusServiceUnavailable, 0)
	p.apply(endpoint("web", "a", port, "edge-1", "zone-a", ""))
	answers(http.StatusOK, 1)
	p.kubectl("patch", "service", "web", "-p", `{"spec":{"externalTrafficPolicy":"Cluster"}}`)
	testkit.Eventually(t, "the port is closed", func() bool {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(checks)))
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
}

// TestClusterAgentLearnsFromItsNode: the settings leave the ranges of workloads
// and the addresses of node ports to the Node, which is not complete yet.
func TestClusterAgentLearnsFromItsNode(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	if out, err := exec.CommandContext(t.Context(), "ip", "address", "add", "192.0.2.1/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p := startPlane(t)
	p.apply(nodeManifest("zone-a"))
	p.kubectl("patch", "node", "edge-1", "--subresource=status", "--type=merge", "-p",
		`{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`)
	file := kubeProxyFile(t, p.kubeconfig, testkit.FreePort(t), testkit.FreePort(t))
	text := strings.NewReplacer("127.0.0.0/8", "primary", "clusterCIDR: 10.244.0.0/16", "detectLocalMode: NodeCIDR").Replace(readFile(t, file))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := testkit.Start(t, nil, testkit.Binary(t), "node", "--mode", "userspace", "--data-dir", t.TempDir(), "--kube-proxy-config", file)
	testkit.Eventually(t, "the agent waits for the pod range", func() bool {
		return strings.Contains(agent.Stderr.String(), "it has no pod range yet")
	})
	p.kubectl("patch", "node", "edge-1", "--type=merge", "-p", `{"spec":{"podCIDR":"10.244.7.0/24","podCIDRs":["10.244.7.0/24"]}}`)
	agent.FirstLine()

	port := backendNamed(t, "a")
	p.apply(
		fmt.Sprintf(httpService, "type: LoadBalancer, externalTrafficPolicy: Local, ") + endpoint("web", "a", port, "edge-1", "zone-a", ""))
	ports := strings.Fields(p.kubectl("get", "service", "web", "-o", "jsonpath={.spec.healthCheckNodePort} {.spec.ports[0].nodePort}"))
	for _, port := range ports {
		testkit.Eventually(t, "port "+port+" answers on the Node's address", func() bool {
			c, err := net.Dial("tcp", net.JoinHostPort("192.0.2.1", port))
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
		if c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
			_ = c.Close()
			t.Errorf("port %s answers on another address, too", port)
		}
	}
}
