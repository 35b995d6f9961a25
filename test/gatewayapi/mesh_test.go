package gatewayapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

const (
	ownNamespace = manifests.Namespace
	// Ports of the control planes, which are at address.
	globalPort = 9443
	zonePort   = 7443
	xdsPort    = 15010
	// commandTimeout bounds a command, and what is waited for, on a busy machine.
	commandTimeout = 2 * time.Minute
)

// defaultMesh has mutual TLS, and servers take nothing else: also a case that connects to the address of a
// Pod itself has to use it.
const defaultMesh = `
apiVersion: mesh.proxima.dev/v1alpha1
kind: Mesh
metadata: {name: default}
spec: {mtls: {enabledBackend: ca, backends: [{name: ca, type: Builtin, mode: Strict}]}}
`

// mesh is a cluster that is zone east, with sidecars in namespaces that ask for them.
type mesh struct {
	*cluster.Cluster
	t            *testing.T
	client       kubernetes.Interface
	kubeconfig   string
	global, zone string // data directories
	nodes        []*cluster.Node
}

// newMesh installs the preset zone, and runs what its manifests would: a control plane, and an agent on
// each of two nodes. The global control plane is outside of the cluster.
func newMesh(t *testing.T, program string) *mesh {
	t.Helper()
	m := &mesh{Cluster: cluster.Start(t, cluster.Config{Host: address}), t: t, global: t.TempDir(), zone: t.TempDir()}
	m.kubeconfig = m.Kubeconfig(t, "admin")
	var err error
	if m.client, err = kubernetes.NewForConfig(m.Admin(t)); err != nil {
		t.Fatal(err)
	}
	m.Programs = openPrograms(t)
	m.Programs.Entrypoints = map[string][]string{echoImage: {program, echoServer}}
	for _, name := range []string{"n1", "n2"} {
		m.nodes = append(m.nodes, m.AddNode(t, name, "zone-a"))
	}
	m.plane(nil, "control-plane", "--role=global", "--data-dir="+m.global, fmt.Sprintf("--api-address=%s:%d", address, globalPort),
		fmt.Sprintf("--grpc-port=%d", globalPort+1))
	global := fmt.Sprintf("%s:%d", address, globalPort)
	made := m.run("", testkit.Binary(t), "zone", "create", "east", "-o", "token", "--kubeconfig", filepath.Join(m.global, "kubeconfig"))
	token, _, _ := strings.Cut(made, "\n")
	tokenFile := m.file("east.token", token)
	m.run(defaultMesh, testkit.Kubectl(t), "--kubeconfig", filepath.Join(m.global, "kubeconfig"), "apply", "-f", "-")

	m.definitions()
	m.kubectl(m.run("", testkit.Binary(t), "install", "kubernetes", "--preset", "zone", "--set", "createNamespace=true",
		"--set", "apiServer="+m.URL(), "--set", "zone.name=east", "--set", "zone.global="+global,
		"--set", "agent.workloadCIDRs=["+cluster.PodCIDR+"]", "--set", "webhook.enabled=true", "--set", "sidecar.enabled=true",
	), "apply", "--server-side", "-f", "-")
	m.startPlane(tokenFile)
	dns := m.dnsService()
	for _, node := range m.nodes {
		m.startAgent(node)
		k := &kubelet{t: t, node: node, client: m.client, dns: dns, dir: t.TempDir(), program: program}
		k.serve()
	}
	m.extension()
	schedule(t, m.client, []string{"n1", "n2"})
	m.until("the API server is given the authority of the webhook", func() bool {
		return m.kubectl("", "get", "mutatingwebhookconfiguration", "proxima", "-o", "jsonpath={.webhooks[0].clientConfig.caBundle}") != ""
	})
	m.until("the cluster has the Mesh", func() bool {
		return m.try("", testkit.Kubectl(t), "get", "mesh", "default") == nil
	})
	return m
}

// openPrograms are copies of the programs of sidecars that every user can run.
func openPrograms(t *testing.T) cluster.Programs {
	t.Helper()
	dir, err := os.MkdirTemp("", "programs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	open := func(from string) string {
		to := filepath.Join(dir, filepath.Base(from))
		out, err := exec.Command("cp", from, to).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := os.Chmod(to, 0o755); err != nil {
			t.Fatal(err)
		}
		return to
	}
	return cluster.Programs{Sidecar: open(testkit.Sidecar(t)), Envoy: open(envoytest.Binary(t))}
}

// definitions of the Gateway API, of the version and channel that the suite compares with its own.
func (m *mesh) definitions() {
	m.t.Helper()
	out, err := exec.CommandContext(m.t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		m.t.Fatal(err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "standard")
	all, err := filepath.Glob(filepath.Join(dir, "gateway.networking.k8s.io_*s.yaml"))
	if err != nil || len(all) == 0 {
		m.t.Fatalf("no definitions in %s: %v", dir, err)
	}
	for _, path := range all {
		m.kubectl("", "apply", "--server-side", "-f", path)
	}
	m.kubectl("", "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
}

// plane starts a control plane, and waits until it is ready.
func (m *mesh) plane(env []string, args ...string) {
	m.t.Helper()
	p := testkit.Start(m.t, env, testkit.Binary(m.t), args...)
	if line := p.FirstLine(); !strings.HasPrefix(line, "ready api=https://") {
		m.t.Fatalf("a control plane says %q: %s", line, p.Stderr)
	}
}

// startPlane runs the zone's control plane with the arguments of the chart's Deployment.
func (m *mesh) startPlane(tokenFile string) {
	m.t.Helper()
	var d appsv1.Deployment
	m.object(&d, "deployment", "proxima")
	args := replaced(d.Spec.Template.Spec.Containers[0].Args, map[string]string{
		"--api-address": fmt.Sprintf("%s:%d", address, zonePort), "--data-dir": m.zone, "--advertise-address": address,
		"--token-file": tokenFile, "--xds-port": fmt.Sprint(xdsPort),
	})
	m.plane([]string{"PROXIMA_KUBECONFIG=" + m.kubeconfigOf("proxima")},
		append(args, fmt.Sprintf("--grpc-port=%d", zonePort+1), fmt.Sprintf("--sidecar-server=%s:%d", address, xdsPort))...)
}

// startAgent runs the agent of a node with the arguments of the chart's DaemonSet, and the token of a Pod.
func (m *mesh) startAgent(node *cluster.Node) {
	m.t.Helper()
	pod, err := m.client.CoreV1().Pods(ownNamespace).Create(m.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + node.Name},
		Spec: corev1.PodSpec{
			NodeName: node.Name, ServiceAccountName: "proxima-agent", HostNetwork: true,
			Containers: []corev1.Container{{Name: "main", Image: "none", Command: []string{"/bin/sleep", "infinity"}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	token := m.kubectl("", "--namespace", ownNamespace, "create", "token", "proxima-agent", "--audience=proxima",
		"--bound-object-kind=Pod", "--bound-object-name="+pod.Name, "--bound-object-uid="+string(pod.UID))
	ca := m.kubectl("", "--namespace", ownNamespace, "get", "configmap", "proxima-ca", "-o", `jsonpath={.data.ca\.crt}`)
	var d appsv1.DaemonSet
	m.object(&d, "daemonset", "proxima-agent")
	args := replaced(d.Spec.Template.Spec.Containers[0].Args, map[string]string{
		"--node-name": node.Name, "--server": fmt.Sprintf("%s:%d", address, zonePort), "--api-server": m.URL(), "--data-dir": m.t.TempDir(),
		"--token-file": m.file("token", token), "--server-ca-file": m.file("ca.crt", ca), "--pod-namespaces": node.NetnsDir(),
	})
	node.Run(m.t, "agent", testkit.Binary(m.t), append(args, "--kubeconfig="+m.kubeconfigOf("proxima-agent"), "--spiffe-socket=none")...)
}

// dnsService gives the Service proxima-dns the agents as endpoints, which are no Pods here, and returns its
// virtual IP.
func (m *mesh) dnsService() string {
	m.t.Helper()
	var service corev1.Service
	m.object(&service, "service", "proxima-dns")
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "proxima-dns-test", Labels: map[string]string{
			discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: "test",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range service.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol), Port: new(p.TargetPort.IntVal)})
	}
	for _, node := range m.nodes {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{node.Addr}, NodeName: new(node.Name)})
	}
	if _, err := m.client.DiscoveryV1().EndpointSlices(ownNamespace).Create(m.t.Context(), slice, metav1.CreateOptions{}); err != nil {
		m.t.Fatal(err)
	}
	return service.Spec.ClusterIP
}

// wantHandshakes checks that the suite's Pods were reached by mutual TLS, which their sidecars count.
func (m *mesh) wantHandshakes() {
	m.t.Helper()
	pods, err := m.client.CoreV1().Pods(suite.MeshNamespace).List(m.t.Context(), metav1.ListOptions{LabelSelector: "app=echo"})
	if err != nil || len(pods.Items) == 0 {
		m.t.Fatalf("%d Pods: %v", len(pods.Items), err)
	}
	for _, p := range pods.Items {
		i := slices.IndexFunc(m.nodes, func(n *cluster.Node) bool { return n.Name == p.Spec.NodeName })
		client := http.Client{Transport: &http.Transport{DialContext: m.nodes[i].NS.DialContext, DisableKeepAlives: true}, Timeout: requestTimeout}
		answer, err := client.Get("http://" + net.JoinHostPort(p.Status.PodIP, "15020") + "/metrics")
		if err != nil {
			m.t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			m.t.Fatal(err)
		}
		if n := handshakes(string(text)); n == 0 {
			m.t.Errorf("Pod %s: nobody came by TLS", p.Name)
		}
	}
}

// inboundHandshake is the count of a listener for clients.
var inboundHandshake = regexp.MustCompile(`(?m)^envoy_listener_ssl_handshake\S* ([0-9]+)$`)

// handshakes of clients with a sidecar, by its metrics.
func handshakes(metrics string) int {
	sum := 0
	for _, found := range inboundHandshake.FindAllStringSubmatch(metrics, -1) {
		n, _ := strconv.Atoi(found[1])
		sum += n
	}
	return sum
}

// extension serves the virtual IP of the webhooks in the namespace of the API server, which no node routes.
func (m *mesh) extension() {
	m.t.Helper()
	ip := m.kubectl("", "--namespace", ownNamespace, "get", "service", "proxima-extension", "-o", "jsonpath={.spec.clusterIP}")
	if out, err := exec.Command("ip", "address", "add", ip+"/32", "dev", "lo").CombinedOutput(); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "6443"))
	if err != nil {
		m.t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { join(c, fmt.Sprintf("%s:%d", address, zonePort)) })
		}
	})
	m.t.Cleanup(func() { _ = l.Close() })
}

// join a connection with a new one to an address, until one of them ends.
func join(c net.Conn, to string) {
	defer c.Close()
	d, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer d.Close()
	go func() {
		_, _ = io.Copy(d, c)
		_ = d.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, d)
}

// kubeconfigOf is that of a service account of Proxima's, with a token as a Pod has it.
func (m *mesh) kubeconfigOf(account string) string {
	m.t.Helper()
	token := strings.TrimSpace(m.kubectl("", "--namespace", ownNamespace, "create", "token", account, "--duration=2h"))
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["cluster"] = &clientcmdapi.Cluster{Server: m.URL(), CertificateAuthority: m.CAFile()}
	cfg.AuthInfos[account] = &clientcmdapi.AuthInfo{Token: token}
	cfg.Contexts["cluster"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: account}
	cfg.CurrentContext = "cluster"
	path := filepath.Join(m.t.TempDir(), account+".kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		m.t.Fatal(err)
	}
	return path
}

// file with a text, in a folder of its own.
func (m *mesh) file(name, text string) string {
	m.t.Helper()
	path := filepath.Join(m.t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return path
}

// object of Proxima's namespace, as the API server has it.
func (m *mesh) object(into any, kind, name string) {
	m.t.Helper()
	if err := json.Unmarshal([]byte(m.kubectl("", "--namespace", ownNamespace, "get", kind, name, "-o", "json")), into); err != nil {
		m.t.Fatal(err)
	}
}

// replaced are arguments with other values of some flags.
func replaced(args []string, with map[string]string) []string {
	out := slices.Clone(args)
	for i, a := range out {
		name, _, _ := strings.Cut(a, "=")
		if value, ok := with[name]; ok {
			out[i] = name + "=" + value
		}
	}
	return out
}

// kubectl as an administrator; it must succeed.
func (m *mesh) kubectl(in string, args ...string) string {
	m.t.Helper()
	return m.run(in, testkit.Kubectl(m.t), args...)
}

// run a command with the kubeconfig of an administrator, which must succeed; in is its standard input.
func (m *mesh) run(in, path string, args ...string) string {
	m.t.Helper()
	out, err := m.output(in, path, args...)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

func (m *mesh) try(in, path string, args ...string) error {
	_, err := m.output(in, path, args...)
	return err
}

func (m *mesh) output(in, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &stdout, &stderr
	cmd.Env = append(testkit.CleanEnv(), "KUBECONFIG="+m.kubeconfig, "HOME="+m.zone)
	if err := cmd.Run(); err != nil {
		return "", errors.Join(fmt.Errorf("%s %v: %w", path, args, err), errors.New(stdout.String()+stderr.String()))
	}
	return stdout.String(), nil
}

// until polls, slowly enough for a busy machine.
func (m *mesh) until(what string, done func() bool) {
	m.t.Helper()
	deadline := time.NewTimer(commandTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			m.t.Fatalf("%s: not within %s", what, commandTimeout)
		}
	}
}
