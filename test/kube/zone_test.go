package kube_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	kernelnetns "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// Ports of the control planes, all of which are at address.
const (
	globalPort = 9443
	eastPort   = 7443 // the cluster's
	westPort   = 8443
	northPort  = 10443
)

// sites are a cluster that is zone east, machines that are zone west, and global.
type sites struct {
	*rig
	global, east, west string // data directories
	globalPlane        *testkit.Process
	inCluster          *globalCluster // that has global; nil: it is outside
	eastPlane          *testkit.Process
	westPlane          *testkit.Process
	ingress            *corev1.Pod // of east
	westIngress        *cluster.Program
	machine            *netns.NS // of west
	machineAddr        netip.Addr
	machineDir         string // of its agent
	ingressDir         string // of east's
}

// zoneObjects are a Service of a zone, and its export. Names are of the namespace shop.
func zoneObjects(name, selector string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: shop}
spec: {%[2]s ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: %[1]s, namespace: shop}
`, name, selector)
}

// defaultMesh has mutual TLS, without which no zone calls another one.
const defaultMesh = `
apiVersion: mesh.proxima.dev/v1alpha1
kind: Mesh
metadata: {name: default}
spec: {mtls: {enabledBackend: ca, backends: [{name: ca, type: Builtin}]}}
`

// newSites starts all of it, global outside of clusters.
func newSites(t *testing.T) *sites {
	t.Helper()
	need(t)
	return newSitesOf(t, newBench(t), nil)
}

// newSitesOf starts all of it, with a global control plane that is in a cluster; nil: outside.
func newSitesOf(t *testing.T, b *bench, global *globalCluster) *sites {
	t.Helper()
	client, err := kubernetes.NewForConfig(b.Admin(t))
	if err != nil {
		t.Fatal(err)
	}
	s := &sites{
		rig:    &rig{bench: b, client: client, nodes: map[string]*cluster.Node{}, pods: map[string]*corev1.Pod{}},
		global: t.TempDir(), east: t.TempDir(), west: t.TempDir(), inCluster: global,
	}
	// All are on the network before anything talks: the bridge's address follows from its links.
	for _, name := range []string{"ours", "third"} {
		s.nodes[name] = s.AddNode(t, name, "zone-a")
	}
	s.machine, s.machineAddr = s.AddMachine(t, "m1")
	if global == nil {
		s.startGlobal()
	}
	eastToken, westToken := s.token("east"), s.token("west")
	s.atGlobal(defaultMesh, "apply", "-f", "-")
	s.startEast(eastToken)
	s.startWest(westToken)
	return s
}

func (s *sites) plane(dir string, port int, args ...string) *testkit.Process {
	s.t.Helper()
	p := testkit.Start(s.t, nil, testkit.Binary(s.t), append([]string{
		"control-plane", "--data-dir=" + dir, fmt.Sprintf("--api-address=%s:%d", address, port), fmt.Sprintf("--grpc-port=%d", port+1),
	}, args...)...)
	if line := p.FirstLine(); !strings.HasPrefix(line, "ready api=https://") {
		s.t.Fatalf("a control plane says %q: %s", line, p.Stderr)
	}
	return p
}

func (s *sites) startGlobal() { s.globalPlane = s.plane(s.global, globalPort, "--role=global") }

// globals are the addresses of global.
func (s *sites) globals() string {
	if s.inCluster != nil {
		return s.inCluster.addresses()
	}
	return fmt.Sprintf("%s:%d", address, globalPort)
}

// token of a zone, in a file.
func (s *sites) token(zone string) string {
	s.t.Helper()
	made := ""
	if s.inCluster != nil {
		made = s.inCluster.admit(zone)
	} else {
		made = s.proxima("zone", "create", zone, "-o", "token", "--kubeconfig", filepath.Join(s.global, "kubeconfig"))
	}
	text, _, _ := strings.Cut(made, "\n")
	path := filepath.Join(s.t.TempDir(), zone+".token")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// at runs kubectl on the API of a control plane's data directory.
func (s *sites) at(dir, in string, args ...string) string {
	s.t.Helper()
	out, err := s.run(in, testkit.Kubectl(s.t), append([]string{"--kubeconfig", filepath.Join(dir, "kubeconfig")}, args...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// atGlobal runs kubectl where the policies are.
func (s *sites) atGlobal(in string, args ...string) string {
	s.t.Helper()
	if s.inCluster != nil {
		return s.inCluster.kubectl(in, args...)
	}
	return s.at(s.global, in, args...)
}

// startEast installs the preset zone, and runs what its manifests would: two nodes with agents,
// a gateway, a Service with a Pod, and one that asks.
func (s *sites) startEast(token string) {
	s.t.Helper()
	s.gatewayAPI()
	s.install()
	s.until("the account of pods is there", func() bool {
		_, err := s.client.CoreV1().ServiceAccounts("default").Get(s.t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	s.startEastPlane(token)
	s.agentArgs("ours", address+":7443").run(s.rig)
	s.agentArgs("third", address+":7443").run(s.rig)
	s.kubectl(zoneObjects("from-east", "selector: {app: web},"), "apply", "-f", "-")
	s.until("the account of shop is there", func() bool {
		_, err := s.client.CoreV1().ServiceAccounts("shop").Get(s.t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	s.shopPod("web", "third")
	s.shopPod("client", "ours")
	s.ingress = s.gatewayPod("ingress", 1, "third")
}

// install the preset zone in the cluster, with further values.
func (s *sites) install(more ...string) {
	s.t.Helper()
	values := append([]string{"--set", "zone.global=" + s.globals(), "--set", "agent.workloadCIDRs=[" + cluster.PodCIDR + "]"}, more...)
	s.kubectl(s.manifests("zone", values...), "apply", "--server-side", "-f", "-")
}

// startEastPlane runs the control plane with the arguments of the chart's Deployment.
func (s *sites) startEastPlane(token string) {
	s.t.Helper()
	var d appsv1.Deployment
	s.object(&d, "deployment", "proxima")
	args := replaced(d.Spec.Template.Spec.Containers[0].Args, map[string]string{
		"--api-address": fmt.Sprintf("%s:%d", address, eastPort), "--data-dir": s.east, "--advertise-address": address, "--token-file": token,
	})
	s.eastPlane = testkit.Start(s.t, []string{"PROXIMA_KUBECONFIG=" + s.kubeconfigOf("proxima")}, testkit.Binary(s.t),
		append(args, fmt.Sprintf("--grpc-port=%d", eastPort+1))...)
	if line := s.eastPlane.FirstLine(); !strings.HasPrefix(line, "ready api=https://") {
		s.t.Fatalf("the control plane of the cluster says %q: %s", line, s.eastPlane.Stderr)
	}
}

// shopPod is a Pod of namespace shop that answers with its name, on a node.
func (s *sites) shopPod(name, node string) {
	s.t.Helper()
	s.podIn("shop", name, node)
}

// podIn is shopPod in another namespace.
func (s *sites) podIn(namespace, name, node string) {
	s.t.Helper()
	s.replica(namespace, name, name, node)
}

// replica of an app is podIn with the label of it.
func (s *sites) replica(namespace, app, name, node string) {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = s.client.CoreV1().Pods(namespace).Create(s.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: new(int64(1)), Containers: []corev1.Container{{
			Name: "main", Image: "none", Command: []string{self}, Env: []corev1.EnvVar{{Name: podVariable, Value: "east"}},
			Ports: []corev1.ContainerPort{{ContainerPort: 8080}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.until("pod "+name+" is ready", func() bool {
		p, err := s.client.CoreV1().Pods(namespace).Get(s.t.Context(), name, metav1.GetOptions{})
		s.pods[name] = p
		return err == nil && p.Status.PodIP != "" && p.Status.Phase == corev1.PodRunning
	})
}

// gatewayPod is a Pod of a gateway on a node, the n-th of its role, with the arguments of the chart's Deployment and a
// token of its own, and with more arguments. It waits for the token, which kubelet would have mounted.
func (s *sites) gatewayPod(role string, n int, node string, more ...string) *corev1.Pod {
	s.t.Helper()
	var d appsv1.Deployment
	s.object(&d, "deployment", "proxima-"+role)
	name, dir := fmt.Sprintf("proxima-%s-%d", role, n), s.t.TempDir()
	args := replaced(slices.DeleteFunc(d.Spec.Template.Spec.Containers[0].Args, func(a string) bool {
		return strings.HasPrefix(a, "--listen-address=") // $(POD_IP), which is not known yet
	}), map[string]string{
		"--node-name": name, "--server": fmt.Sprintf("%s:%d", address, eastPort), "--data-dir": filepath.Join(dir, "state"),
		"--token-file": filepath.Join(dir, "token"), "--server-ca-file": filepath.Join(dir, "ca.crt"),
	})
	s.ingressDir = filepath.Join(dir, "state")
	wait := fmt.Sprintf("while [ ! -s %s ]; do sleep 0.1; done; exec %s %s", filepath.Join(dir, "token"), testkit.Binary(s.t), strings.Join(append(args, more...), " "))
	pod, err := s.client.CoreV1().Pods(manifests.Namespace).Create(s.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: d.Spec.Template.Labels},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "proxima-gateway", TerminationGracePeriodSeconds: new(int64(10)),
			Containers: []corev1.Container{{
				Name: "main", Image: "none", Command: []string{"/bin/sh", "-c", wait}, Ports: d.Spec.Template.Spec.Containers[0].Ports,
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	token := s.kubectl("", "--namespace", manifests.Namespace, "create", "token", "proxima-gateway", "--audience=proxima",
		"--bound-object-kind=Pod", "--bound-object-name="+pod.Name, "--bound-object-uid="+string(pod.UID))
	ca := s.kubectl("", "--namespace", manifests.Namespace, "get", "configmap", "proxima-ca", "-o", `jsonpath={.data.ca\.crt}`)
	for _, file := range []struct{ name, text string }{{"ca.crt", ca}, {"token", token}} {
		if err := os.WriteFile(filepath.Join(dir, file.name), []byte(file.text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	return pod
}

// startWest runs the control plane of the machines, and one machine.
func (s *sites) startWest(token string) {
	s.t.Helper()
	s.westPlane = s.plane(s.west, westPort, "--role=zone", "--zone=west", "--token-file="+token, "--global="+s.globals())
	s.machineDir = s.t.TempDir()
	s.westIngress = s.startMachine(machine{zone: "west", node: "m1", dir: s.west, port: westPort, ns: s.machine, addr: s.machineAddr, state: s.machineDir})
	s.at(s.west, zoneObjects("from-west", "selector: {app: web},"), "apply", "-f", "-")
}

// machine of a zone that is no cluster.
type machine struct {
	zone, node string
	dir        string // of its control plane
	port       int    // of its control plane
	ns         *netns.NS
	addr       netip.Addr
	state      string // data directory of its agent
}

// startMachine runs an agent, a gateway, and a program of namespace shop that answers with the name of the zone.
func (s *sites) startMachine(m machine) (ingress *cluster.Program) {
	s.t.Helper()
	gate := "gate-" + m.zone
	for _, node := range []string{m.node, gate} {
		text, _, _ := strings.Cut(s.proxima("token", "create", "--kind", "node", "--name", node, "--kubeconfig", filepath.Join(m.dir, "kubeconfig")), "\n")
		if err := os.WriteFile(filepath.Join(m.dir, node+".token"), []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	server := fmt.Sprintf("--server=%s:%d", address, m.port)
	s.RunOn(s.t, m.ns, "agent-"+m.node, testkit.Binary(s.t), nil, "node", server, "--node-name="+m.node, "--token-file="+filepath.Join(m.dir, m.node+".token"),
		"--data-dir="+m.state, "--mode=nftables", "--dns-port=10053", "--host="+m.addr.String(), "--spiffe-socket=none", "--zone=zone-"+m.zone[:1])
	ingress = s.RunOn(s.t, m.ns, "ingress-"+m.zone, testkit.Binary(s.t), nil, "ingress", server, "--node-name="+gate,
		"--token-file="+filepath.Join(m.dir, gate+".token"), "--data-dir="+s.t.TempDir(), "--listen-address="+m.addr.String(), "--health-port=0", "--metrics-port=0")
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	s.RunOn(s.t, m.ns, "web-"+m.zone, self, []string{podVariable + "=" + m.zone})
	s.at(m.dir, "", "create", "namespace", "shop")
	s.at(m.dir, fmt.Sprintf(`
apiVersion: mesh.proxima.dev/v1alpha1
kind: Dataplane
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: %s, addresses: [%s], ports: [{name: http, port: 8080}]}
`, m.node, m.addr), "apply", "-f", "-")
	s.machineWorkload(m.dir, true)
	return ingress
}

// workloadInWest is ready, or not.
func (s *sites) workloadInWest(ready bool) {
	s.t.Helper()
	s.machineWorkload(s.west, ready)
}

// machineWorkload of the zone of a control plane is ready, or not.
func (s *sites) machineWorkload(dir string, ready bool) {
	s.t.Helper()
	is := metav1.ConditionFalse
	if ready {
		is = metav1.ConditionTrue
	}
	s.at(dir, "", "--namespace", "shop", "patch", "dataplane", "web", "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
		`{"status":{"conditions":[{"type":"Ready","status":%q,"reason":"Test","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, is))
}

// caller is where calls are made from, and where names are answered there.
type caller struct {
	ns  *kernelnetns.NS
	dns string
}

// inEast is the Pod that asks, inWest the machine.
func (s *sites) inEast() caller {
	return caller{s.nodes["ours"].PodNamespace(s.pods["client"].UID), s.nodes["ours"].Addr + ":10053"}
}

func (s *sites) inWest() caller {
	return caller{s.machine.NS, s.machineAddr.String() + ":10053"}
}

// callTimeout of one call, of which the name is a part.
const callTimeout = 5 * time.Second

// call a name, and return what answers.
func (c caller) call(name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	addr, err := c.lookup(ctx, name)
	if err != nil {
		return "", err
	}
	return c.connect(addr)
}

// resolve a name.
func (c caller) resolve(name string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return c.lookup(ctx, name)
}

func (c caller) lookup(ctx context.Context, name string) (netip.Addr, error) {
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return c.ns.DialContext(ctx, "udp", c.dns)
	}}
	addrs, err := resolver.LookupNetIP(ctx, "ip4", name+".")
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0].Unmap(), nil
}

// connect to port 80 of an address, and return what answers.
func (c caller) connect(addr netip.Addr) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	conn, err := c.ns.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, 80).String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(callTimeout))
	text, err := io.ReadAll(conn)
	if err == nil && len(text) == 0 {
		err = io.ErrUnexpectedEOF
	}
	who, _, _ := strings.Cut(string(text), " ")
	return who, err
}

// namesOf a Service of another zone.
func namesOf(service string) []string {
	return []string{service + ".shop.svc.clusterset.local", service + "_shop_svc_80.mesh"}
}

// wantBoth waits until each zone calls the other's Service by all of its names.
func (s *sites) wantBoth() {
	s.t.Helper()
	for _, way := range []struct {
		from caller
		to   string
	}{{s.inEast(), "west"}, {s.inWest(), "east"}} {
		for _, name := range namesOf("from-" + way.to) {
			var last string
			deadline := time.Now().Add(commandTimeout / 2)
			for {
				who, err := way.from.call(name)
				if err == nil && who == way.to {
					break
				}
				if last = fmt.Sprintf("%q, %v", who, err); time.Now().After(deadline) {
					s.dump()
					s.t.Fatalf("%s is not answered: %s", name, last)
				}
				time.Sleep(500 * time.Millisecond)
			}
		}
	}
}

// dump what the control planes have of each other, for a test that has failed.
func (s *sites) dump() {
	s.t.Helper()
	kinds := "serviceexports,serviceimports,zoneingresses,meshes,endpointslices,dataplanes"
	s.t.Logf("global:\n%s", s.atGlobal("", "get", kinds, "-A", "-o", "yaml"))
	s.t.Logf("west:\n%s", s.at(s.west, "", "get", kinds, "-A", "-o", "yaml"))
	s.t.Logf("east:\n%s", s.kubectl("", "get", kinds, "-A", "-o", "yaml"))
	for _, dir := range []string{s.machineDir, s.ingressDir} {
		out, err := s.run("", testkit.Binary(s.t), "status", "--data-dir", dir, "--kubeconfig", filepath.Join(s.west, "kubeconfig"))
		s.t.Logf("status of %s: %v\n%s", dir, err, out)
	}
	if log, err := os.ReadFile(filepath.Join(filepath.Dir(s.AuditLog()), "pod-"+manifests.Namespace+"-proxima-ingress-1.log")); err == nil {
		s.t.Logf("the ingress of east:\n%s", log)
	}
	s.t.Logf("east's status:\n%s", s.proxima("status", "--kubeconfig", filepath.Join(s.east, "kubeconfig")))
}

// TestZoneInCluster: a cluster with the chart's service accounts and arguments is one zone,
// machines are the other one, and each calls the other's Service by its names.
func TestZoneInCluster(t *testing.T) {
	s := newSites(t)
	s.wantBoth()
	if got := s.kubectl("", "get", "mesh", "default", "-o", "jsonpath={.spec.mtls.enabledBackend}"); got != "ca" {
		t.Errorf("the cluster has the Mesh of global with backend %q", got)
	}
	if got := s.atGlobal("", "get", "dataplanes", "-A", "-l", "mesh.proxima.dev/zone=east"); !strings.Contains(got, "web") {
		t.Errorf("global does not list the Pods of the cluster:\n%s", got)
	}
	if got := s.proxima("status", "--kubeconfig", filepath.Join(s.east, "kubeconfig")); !strings.Contains(got, "no problems found") {
		t.Errorf("the status of the cluster:\n%s", got)
	}
	s.namesInPods()
	s.twoMeshes()
	s.useAll()
	s.wantAllUsed("zone", "proxima", zoneUnused())
	s.policySecret() // last: what it asks for is refused first
}

// zoneUnused are permissions that TestZoneInCluster does not need.
func zoneUnused() []permission {
	out := append(lists("services", "nodes", "namespaces", "pods", "endpointslices.discovery.k8s.io"),
		permission{"", "events", "create"},                          // of a rule that fails
		permission{"", "secrets", "delete"},                         // of a GlobalSecret; see TestGlobalInCluster
		permission{"discovery.k8s.io", "endpointslices", "update"},  // of a gateway that has moved
		permission{"mesh.proxima.dev", "zoneegresses", "update"},    // the same
		permission{"mesh.proxima.dev", "virtualips", "delete"},      // an hour after the last endpoint
		permission{"mesh.proxima.dev", "topologyheuristics", "get"}, // as ZoneCosts
		permission{"mesh.proxima.dev", "topologyheuristics", "create"},
		permission{"mesh.proxima.dev", "topologyheuristics", "update"},
		permission{"mesh.proxima.dev", "topologyheuristics", "delete"},
		permission{"mesh.proxima.dev", "topologyheuristics/status", "update"},
		permission{"mesh.proxima.dev", "ipaddresspools/status", "update"}, // there is no pool
	)
	for _, name := range []string{
		"meshes", "zonecosts", "topologyheuristics", "externalservices", "zoneingresses", "zoneegresses", "virtualips", "ipaddresspools",
		"trafficpermissions", "backendpolicies", "workloadpolicies", "proxypatches",
	} {
		out = append(out, permission{"mesh.proxima.dev", name, "list"})
	}
	for _, name := range []string{"httproutes", "grpcroutes", "tcproutes", "referencegrants"} {
		out = append(out, permission{"gateway.networking.k8s.io", name, "list"})
	}
	for _, name := range []string{"serviceexports", "serviceimports"} {
		out = append(out, permission{"multicluster.x-k8s.io", name, "list"})
	}
	return append(out, permission{"planner.mesh.proxima.dev", "trafficplans", "list"})
}

// policies of global, which come to the cluster, change, and go.
func policies(note string) string {
	return fmt.Sprintf(`
apiVersion: mesh.proxima.dev/v1alpha1
kind: Mesh
metadata: {name: red, annotations: {note: %[1]s}}
---
apiVersion: mesh.proxima.dev/v1alpha1
kind: ExternalService
metadata: {name: bank, namespace: shop, annotations: {note: %[1]s}}
spec: {hosts: [bank.example], ports: [{port: 443}]}
---
apiVersion: mesh.proxima.dev/v1alpha1
kind: ZoneCosts
metadata: {name: dear, annotations: {note: %[1]s}}
spec: {site: 77}
`, note)
}

// useAll has the control plane of the cluster do what it may: policies come, change and go; a Service
// is not exported any more; gateways come, change and go.
func (s *sites) useAll() {
	s.t.Helper()
	get := func(args ...string) (string, error) {
		return s.run("", testkit.Kubectl(s.t), append([]string{"--namespace", "shop", "get"}, args...)...)
	}
	noted := func(kind, name, note string) {
		s.t.Helper()
		s.until(fmt.Sprintf("%s %s has the note %q", kind, name, note), func() bool {
			out, err := get(kind, name, "-o", "jsonpath={.metadata.annotations.note}")
			return err == nil && out == note || err != nil && note == ""
		})
	}
	s.atGlobal("", "create", "namespace", "shop")
	for _, note := range []string{"first", "second", ""} {
		verb := []string{"apply", "-f", "-"}
		if note == "" {
			verb = []string{"delete", "-f", "-"}
		}
		s.atGlobal(policies(note)+trafficObjects(note), verb...)
		for _, of := range append(trafficPolicies(), [][2]string{{"mesh", "red"}, {"externalservice", "bank"}, {"zonecosts", "dear"}}...) {
			noted(of[0], of[1], note)
		}
	}
	// What is exported changes, has no endpoint any more, and is not exported any more.
	s.kubectl("", "--namespace", "shop", "patch", "service", "from-east", "--type=merge", "-p",
		`{"spec":{"ports":[{"name":"http","port":80,"targetPort":8080},{"name":"more","port":81,"targetPort":8080}]}}`)
	s.until("the import has the port", func() bool {
		out, err := get("serviceimport", "from-east", "-o", "jsonpath={.spec.ports[*].port}")
		return err == nil && out == "80 81"
	})
	slices := func() string {
		out, err := get("endpointslices", "-l", "multicluster.kubernetes.io/service-name=from-west,multicluster.kubernetes.io/source-cluster=west", "-o", "name")
		if err != nil {
			s.t.Fatal(err)
		}
		return out
	}
	if slices() == "" {
		s.t.Error("there are no slices of the other zone")
	}
	s.workloadInWest(false)
	s.until("the slices of the other zone are gone", func() bool { return slices() == "" })
	s.at(s.west, "", "--namespace", "shop", "delete", "serviceexport", "from-west")
	s.until("the import is gone", func() bool { _, err := get("serviceimport", "from-west"); return err != nil })
	gateways := func(kind string, want string) {
		s.t.Helper()
		s.until(fmt.Sprintf("the %s are %q", kind, want), func() bool {
			out, err := get(kind, "-l", "mesh.proxima.dev/managed-by=gateway", "-o", "jsonpath={.items[*].spec.advertisedAddress}{.items[*].metadata.name}")
			return err == nil && out == want
		})
	}
	s.kubectl("", "--namespace", manifests.Namespace, "annotate", "service", "proxima-ingress", "mesh.proxima.dev/advertised-address=gate.example")
	gateways("zoneingresses", "gate.example"+s.ingress.Name)
	egress := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "egress", Labels: map[string]string{
			"app.kubernetes.io/name": "proxima", "app.kubernetes.io/component": "egress",
		}},
		Spec: corev1.PodSpec{NodeName: "ours", ServiceAccountName: "proxima-gateway", TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{Name: "main", Image: "none", Command: []string{"/bin/sleep", "infinity"}}}},
	}
	if _, err := s.client.CoreV1().Pods(manifests.Namespace).Create(s.t.Context(), egress, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	gateways("zoneegresses", "egress")
	s.kubectl("", "--namespace", manifests.Namespace, "delete", "pod", "egress", s.ingress.Name, "--wait=false")
	gateways("zoneegresses", "")
	gateways("zoneingresses", "")
}

// way is where calls go.
type way struct {
	from  caller
	names []string
	// who may answer: names of zones.
	who []string
	// mayFail at first, where the callers of withWays let calls fail.
	mayFail bool
}

// between the zones: each calls the other one.
func (s *sites) between(mayFail bool) []way {
	return []way{
		{s.inEast(), namesOf("from-west"), []string{"west"}, mayFail},
		{s.inWest(), namesOf("from-east"), []string{"east"}, mayFail},
	}
}

// failedCall is when a call began that failed, and why it did.
type failedCall struct {
	at      time.Time
	mayFail bool
	text    string
}

func (f failedCall) String() string { return f.text }

// calls are made in all ways, one after the other in each, until stop; it returns how many there were, and which of them failed.
func calls(ways []way) (stop func() (n int, failed []failedCall)) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var running sync.WaitGroup
	n, failed := 0, []failedCall(nil)
	for _, w := range ways {
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name, at := w.names[i%len(w.names)], time.Now()
				who, err := w.from.call(name)
				mu.Lock()
				if n++; err != nil || !slices.Contains(w.who, who) {
					failed = append(failed, failedCall{at, w.mayFail, fmt.Sprintf("%s %s: %q, %v", at.Format("15:04:05.000"), name, who, err)})
				}
				mu.Unlock()
				time.Sleep(10 * time.Millisecond) // the rate of calls; nothing waits for it
			}
		})
	}
	return func() (int, []failedCall) {
		cancel()
		running.Wait()
		return n, failed
	}
}

// withCalls does something while calls are made, and for some time after it. None of them fails.
func (s *sites) withCalls(what string, longer time.Duration, act func()) {
	s.t.Helper()
	s.withWays(what, longer, 0, s.between(false), act)
}

// withCallsBut lets calls fail that begin before the end of act, or within grace of it.
func (s *sites) withCallsBut(what string, longer, grace time.Duration, act func()) {
	s.t.Helper()
	s.withWays(what, longer, grace, s.between(true), act)
}

// withWays is withCallsBut for calls in given ways, of which those fail alone that may.
func (s *sites) withWays(what string, longer, grace time.Duration, ways []way, act func()) {
	s.t.Helper()
	stop := calls(ways)
	act()
	until := time.Now().Add(grace)
	time.Sleep(longer) // calls go on meanwhile
	n, failed := stop()
	late := slices.DeleteFunc(slices.Clone(failed), func(f failedCall) bool { return f.mayFail && f.at.Before(until) })
	s.t.Logf("%s: %d of %d calls failed, the last of them %s", what, len(failed), n, failed[max(len(failed)-1, 0):])
	if len(late) > 0 || n == 0 {
		s.t.Errorf("%s: of %d calls %d failed that must not, the first of them %s", what, n, len(late), late[:min(len(late), 5)])
	}
}

// killGateway kills one of two gateways of the cluster: connections that are open die, and others
// go to the other one (within a second).
func (s *sites) killGateway(away time.Duration) {
	s.t.Helper()
	second := s.gatewayPod("ingress", 2, "ours")
	s.until("the machines know both gateways", func() bool {
		out := s.at(s.west, "", "get", "zoneingresses", "-l", "mesh.proxima.dev/zone=east", "-o", "name")
		return len(strings.Fields(out)) == 2
	})
	s.wantBoth()
	s.withCallsBut("one of two gateways is killed", away, time.Second, func() { s.nodes["third"].KillPod(s.t, s.ingress.UID) })
	s.kubectl("", "--namespace", manifests.Namespace, "delete", "pod", s.ingress.Name, "--wait=false")
	s.ingress = second
}

// TestZoneFailures: calls between a cluster and machines go on while control planes are away.
func TestZoneFailures(t *testing.T) {
	s := newSites(t)
	s.wantBoth()
	const away = 5 * time.Second
	s.killGateway(away)
	s.withCalls("global is killed", away, s.globalPlane.Kill)
	s.withCalls("the control plane of the cluster is killed", away, s.eastPlane.Kill)
	s.withCalls("the API server of the cluster is killed", away, func() { s.KillAPI(t) })
	s.withCalls("the control plane of the machines is killed", away, s.westPlane.Kill)
	s.withCalls("all of them come back", away, func() {
		s.StartAPI(t)
		t.Cleanup(func() { s.KillAPI(t) }) // it would wait for the watches of those that end after it
		s.startGlobal()
		s.startEastPlane("/none") // it has its certificate
		s.westPlane = s.plane(s.west, westPort, "--role=zone", "--zone=west", "--token-file=/none", fmt.Sprintf("--global=%s:%d", address, globalPort))
	})
	// What is exported while nothing was connected is known when it is.
	s.at(s.west, zoneObjects("later", "selector: {app: web},"), "apply", "-f", "-")
	s.until("the cluster has an export of after", func() bool {
		out, err := s.run("", testkit.Kubectl(t), "--namespace", "shop", "get", "serviceimport", "later", "-o", "jsonpath={.status.clusters[*].cluster}")
		return err == nil && strings.TrimSpace(out) == "west"
	})
	// With its only gateway a zone is not reached any more, and says so at once.
	s.kubectl("", "--namespace", manifests.Namespace, "delete", "pod", s.ingress.Name, "--wait=false")
	s.until("the object of the gateway is gone", func() bool {
		out, err := s.run("", testkit.Kubectl(t), "get", "zoneingress", s.ingress.Name)
		return err != nil && strings.Contains(out+err.Error(), "NotFound")
	})
	s.until("the machines know it", func() bool {
		began := time.Now()
		_, err := s.inWest().call(namesOf("from-east")[0])
		return err != nil && time.Since(began) < time.Second
	})
}
