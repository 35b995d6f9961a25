// Package e2e uses Proxima the way people do: the real binary, the real kubectl,
// the real client-go, one process each.
package e2e

import (
	"context"
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

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// plane is a control plane in a process of its own.
type plane struct {
	t          testing.TB
	dir        string
	api, grpc  int
	cidr       string
	kubeconfig string
	flags      []string // further ones
	process    *testkit.Process
}

func startPlane(t testing.TB) *plane {
	t.Helper()
	return startPlaneWith(t, "127.96.0.0/16")
}

func startPlaneWith(t testing.TB, cidr string) *plane {
	t.Helper()
	p := &plane{t: t, dir: t.TempDir(), api: testkit.FreePort(t), grpc: testkit.FreePort(t), cidr: cidr}
	p.kubeconfig = filepath.Join(p.dir, "kubeconfig")
	p.start()
	return p
}

// start or restart on the same data.
func (p *plane) start() {
	p.t.Helper()
	p.process = testkit.Start(p.t, nil, testkit.Binary(p.t), append([]string{"control-plane", "--role", "standalone",
		"--data-dir", p.dir, "--store", "sqlite:" + filepath.Join(p.dir, "store.db"),
		"--api-address", p.apiAddress(), "--grpc-port", strconv.Itoa(p.grpc), "--service-cidr", p.cidr}, p.flags...)...)
	p.process.FirstLine()
}

func (p *plane) apiAddress() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.api)) }

// proxima runs a command to its end and returns its standard output.
func (p *plane) proxima(args ...string) string {
	p.t.Helper()
	return p.run(testkit.Binary(p.t), args...)
}

// kubectl runs the real one, as an administrator.
func (p *plane) kubectl(args ...string) string {
	p.t.Helper()
	return p.run(testkit.Kubectl(p.t), args...)
}

func (p *plane) run(path string, args ...string) string {
	p.t.Helper()
	out, err := p.try("", path, args...)
	if err != nil {
		p.t.Fatalf("%s %s: %v\n%s", filepath.Base(path), strings.Join(args, " "), err, out)
	}
	return out
}

// try runs a command with an input; its output holds both streams on failure.
func (p *plane) try(stdin, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(testkit.CleanEnv(), "KUBECONFIG="+p.kubeconfig, "HOME="+p.dir)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out) + stderr.String(), err
	}
	return string(out), nil
}

func (p *plane) apply(manifest string) {
	p.t.Helper()
	if out, err := p.try(manifest, testkit.Kubectl(p.t), "apply", "-f", "-"); err != nil {
		p.t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

func (p *plane) config() *rest.Config {
	p.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig)
	if err != nil {
		p.t.Fatal(err)
	}
	cfg.QPS = -1
	return cfg
}

// startNode joins an agent, a process of its own, with a node token.
func (p *plane) startNode(name, zone string) *node {
	p.t.Helper()
	n := &node{
		plane:   p,
		name:    name,
		zone:    zone,
		dir:     p.t.TempDir(),
		health:  testkit.FreePort(p.t),
		metrics: testkit.FreePort(p.t),
		dns:     testkit.FreePort(p.t),
	}
	n.join()
	return n
}

// join with a token of its own, and start.
func (n *node) join() {
	n.plane.t.Helper()
	n.token = filepath.Join(n.dir, "token")
	token := n.plane.proxima("token", "create", "--kind", "node", "--name", n.name)
	if err := os.WriteFile(n.token, []byte(token), 0o600); err != nil {
		n.plane.t.Fatal(err)
	}
	n.start()
}

// node is an agent in a process of its own.
type node struct {
	plane      *plane
	name, zone string
	dir, token string
	// Ports.
	health, metrics, dns int
	flags                []string // further ones
	process              *testkit.Process
}

func (n *node) start() {
	n.plane.t.Helper()
	n.process = testkit.Start(n.plane.t, nil, testkit.Binary(n.plane.t), append([]string{"node", "--server", n.plane.apiAddress(),
		"--token-file", n.token, "--node-name", n.name, "--zone", n.zone, "--mode", "userspace", "--data-dir", n.dir,
		"--health-port", strconv.Itoa(n.health), "--metrics-port", strconv.Itoa(n.metrics), "--dns-port", strconv.Itoa(n.dns)}, n.flags...)...)
	n.process.FirstLine()
}

// lookup queries the agent for a name.
func (n *node) lookup(name string) ([]string, error) {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", strconv.Itoa(n.dns)))
	}}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Timeout)
	defer cancel()
	return resolver.LookupHost(ctx, name)
}

func (n *node) metricsURL() string { return fmt.Sprintf("http://127.0.0.1:%d/metrics", n.metrics) }

// scrape metrics, in their text format.
func scrape(t testing.TB, client *http.Client, url string) string {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, resp.Status, err)
	}
	return string(text)
}

// metric reads one value of the agent's metrics; labels are matched as text.
func (n *node) metric(name string) float64 {
	n.plane.t.Helper()
	text := scrape(n.plane.t, http.DefaultClient, n.metricsURL())
	for line := range strings.Lines(text) {
		if after, ok := strings.CutPrefix(line, name); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(after), 64)
			if err == nil {
				return value
			}
		}
	}
	n.plane.t.Fatalf("metric %s is not served:\n%s", name, text)
	return 0
}

// backend is a real HTTP server run as a workload.
func (p *plane) startBackend(name, zone string) *testkit.Process {
	p.t.Helper()
	port := strconv.Itoa(testkit.FreePort(p.t))
	bin := testkit.Binary(p.t)
	return testkit.Start(p.t, []string{"KUBECONFIG=" + p.kubeconfig}, bin, "run", "--name", name,
		"--labels", "app=web,topology.kubernetes.io/zone="+zone, "--port", "http:"+port, "--address", "127.0.0.1", "--ready-http", "/",
		"--", bin, "demo", "backend", "--name", name, "--zone", zone, "--listen", "127.0.0.1:"+port)
}

const webService = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  selector: {app: web}
  ports: [{name: http, port: 8080, targetPort: http}]
`

// who answers one request on a fresh connection.
func who(addr string) (name string, pid int, err error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + addr + "/")
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	var answer struct {
		Name string
		PID  int
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return "", 0, err
	}
	return answer.Name, answer.PID, nil
}

// awaitAnswers sends requests until every named backend has answered.
func awaitAnswers(t testing.TB, addr string, names ...string) {
	t.Helper()
	missing := map[string]bool{}
	for _, n := range names {
		missing[n] = true
	}
	testkit.Eventually(t, fmt.Sprintf("answers of %v at %s", names, addr), func() bool {
		if name, _, err := who(addr); err == nil {
			delete(missing, name)
		}
		return len(missing) == 0
	})
}

func (p *plane) vip(service string) string {
	p.t.Helper()
	return strings.TrimSpace(p.kubectl("get", "service", service, "-o", "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}"))
}
