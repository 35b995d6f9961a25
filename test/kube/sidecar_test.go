package kube_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/sidecar/redirect"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// xdsTestPort of the control plane of the cluster.
const xdsTestPort = 15010

// sidecarRig is a cluster with sidecars: as zone east, or alone.
type sidecarRig struct {
	*sites
	token string   // file of the zone's token; "": it is no zone
	set   []string // values of the chart
}

// newSidecarRig of a preset, zone or kube-proxy-replacement.
func newSidecarRig(t *testing.T, preset string) *sidecarRig {
	t.Helper()
	b := newBench(t)
	client, err := kubernetes.NewForConfig(b.Admin(t))
	if err != nil {
		t.Fatal(err)
	}
	s := &sites{
		rig:    &rig{bench: b, client: client, nodes: map[string]*cluster.Node{}, pods: map[string]*corev1.Pod{}},
		global: t.TempDir(), east: t.TempDir(),
	}
	for _, name := range []string{"ours", "third"} {
		s.nodes[name] = s.AddNode(t, name, "zone-a")
	}
	b.Programs = openPrograms(t)
	r := &sidecarRig{sites: s}
	// The namespace enforces what it says of pods.
	set := []string{"--set", "agent.workloadCIDRs=[" + cluster.PodCIDR + "]", "--set", "webhook.enabled=true", "--set", "sidecar.enabled=true", "--set", "createNamespace=true"}
	if preset != "zone" {
		s.gatewayAPI() // a zone does without
	} else {
		s.startGlobal()
		r.token = s.token("east")
		s.atGlobal(defaultMesh, "apply", "-f", "-")
		set = append(set, "--set", "zone.global="+s.globals(), "--set", "ingress.engine=envoy")
	}
	r.set = set
	s.kubectl(s.manifests(preset, set...), "apply", "--server-side", "-f", "-")
	r.startPlane()
	for _, node := range []string{"ours", "third"} {
		a := s.agentArgs(node, fmt.Sprintf("%s:%d", address, eastPort))
		a.args = replaced(a.args, map[string]string{"--pod-namespaces": s.nodes[node].NetnsDir()})
		a.run(s.rig)
	}
	b.virtualIP(fmt.Sprintf("%s:%d", address, eastPort))
	b.until("the API server is given the authority", func() bool {
		return b.kubectl("", "get", "mutatingwebhookconfiguration", "proxima", "-o", "jsonpath={.webhooks[0].clientConfig.caBundle}") != ""
	})
	if preset != "zone" {
		s.kubectl(defaultMesh, "apply", "-f", "-")
	}
	b.until("the cluster has the Mesh", func() bool {
		_, err := b.run("", testkit.Kubectl(t), "get", "mesh", "default")
		return err == nil
	})
	s.kubectl(`
apiVersion: v1
kind: Namespace
metadata:
  name: shop
  labels: {mesh.proxima.dev/sidecar-injection: enabled, pod-security.kubernetes.io/enforce: restricted}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`, "apply", "-f", "-")
	b.until("the account of shop is there", func() bool {
		_, err := client.CoreV1().ServiceAccounts("shop").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return r
}

// startPlane runs the control plane with the arguments of the chart's Deployment.
func (r *sidecarRig) startPlane() {
	r.t.Helper()
	var d appsv1.Deployment
	r.object(&d, "deployment", "proxima")
	with := map[string]string{
		"--api-address": fmt.Sprintf("%s:%d", address, eastPort), "--data-dir": r.east, "--advertise-address": address,
		"--xds-port": fmt.Sprint(xdsTestPort),
	}
	if r.token != "" {
		with["--token-file"] = r.token
	}
	args := replaced(d.Spec.Template.Spec.Containers[0].Args, with)
	args = append(args, fmt.Sprintf("--grpc-port=%d", eastPort+1), fmt.Sprintf("--sidecar-server=%s:%d", address, xdsTestPort))
	r.eastPlane = testkit.Start(r.t, []string{"PROXIMA_KUBECONFIG=" + r.kubeconfigOf("proxima")}, testkit.Binary(r.t), args...)
	if line := r.eastPlane.FirstLine(); !strings.HasPrefix(line, "ready api=https://") {
		r.t.Fatalf("the control plane of the cluster says %q: %s", line, r.eastPlane.Stderr)
	}
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
		if out, err := exec.Command("cp", from, to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := os.Chmod(to, 0o755); err != nil {
			t.Fatal(err)
		}
		return to
	}
	return cluster.Programs{Sidecar: open(testkit.Sidecar(t)), Envoy: open(envoytest.Binary(t))}
}

// create a Pod of namespace shop on a node, as the restricted standard wants it, and return what the API
// server has of it.
func (r *sidecarRig) create(name, node string, labels map[string]string) *corev1.Pod {
	r.t.Helper()
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	all := map[string]string{"app": name}
	for k, v := range labels {
		all[k] = v
	}
	p, err := r.client.CoreV1().Pods("shop").Create(r.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: all},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: new(int64(1)), Containers: []corev1.Container{{
			Name: "main", Image: "none", Command: []string{self}, Env: []corev1.EnvVar{{Name: podVariable, Value: name}},
			Ports: []corev1.ContainerPort{{ContainerPort: 8080}},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), RunAsNonRoot: new(true), RunAsUser: new(int64(1000)),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.pods[name] = p
	return p
}

func (r *sidecarRig) await(name string) {
	r.t.Helper()
	r.until("pod "+name+" is ready", func() bool {
		p, err := r.client.CoreV1().Pods("shop").Get(r.t.Context(), name, metav1.GetOptions{})
		if err != nil || p.Status.PodIP == "" || p.Status.Phase != corev1.PodRunning {
			return false
		}
		r.pods[name] = p
		return true
	})
}

// ask an address from the namespace of a Pod, as its containers do: who answers, and by which address it was asked.
func (r *sidecarRig) ask(from, to string) (string, error) {
	p := r.pods[from]
	var answer []byte
	err := r.nodes[p.Spec.NodeName].PodNamespace(p.UID).Do(func() error {
		conn, err := (&net.Dialer{Timeout: callTimeout}).Dial("tcp", to)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(callTimeout))
		answer, err = io.ReadAll(conn)
		if err == nil && len(answer) == 0 {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	return string(answer), err
}

// stats of the sidecar of a Pod, in the text format of Prometheus.
func (r *sidecarRig) stats(name string) string {
	p := r.pods[name]
	conn, err := r.nodes[p.Spec.NodeName].NS.DialContext(r.t.Context(), "tcp", net.JoinHostPort(p.Status.PodIP, "15020"))
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /metrics HTTP/1.0\r\n\r\n")
	text, _ := io.ReadAll(conn)
	return string(text)
}

// TestSidecars: in a namespace with one label, and the restricted standard of pod security, Pods get a
// sidecar from the real API server; it runs without a capability, the node's agent leads connections to
// it, and two Pods talk by mutual TLS. Without a certificate nobody comes in. A Pod that opted out, and one
// that is created while nobody answers, have no sidecar.
func TestSidecars(t *testing.T) {
	r := newSidecarRig(t, "zone")
	web, client := r.create("web", "third", nil), r.create("client", "ours", nil)
	for _, p := range []*corev1.Pod{web, client} {
		if n := len(p.Spec.InitContainers); n != 2 || p.Spec.InitContainers[1].Name != "proxima-sidecar" {
			t.Fatalf("pod %s has %d initContainers", p.Name, n)
		}
	}
	out := r.create("out", "ours", map[string]string{"mesh.proxima.dev/sidecar-injection": "disabled"})
	if len(out.Spec.InitContainers) > 0 || len(out.Annotations) > 0 {
		t.Errorf("a pod that opted out: %+v", out)
	}
	for _, name := range []string{"web", "client", "out"} {
		r.await(name)
	}
	service := r.kubectl("", "--namespace", "shop", "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	r.until("the client is answered by the Service", func() bool {
		answer, err := r.ask("client", service+":80")
		return err == nil && strings.HasPrefix(answer, "web ")
	})
	// The application sees its own sidecar, not the client: the connection ended there.
	if answer, err := r.ask("client", service+":80"); err != nil || strings.Contains(answer, r.pods["client"].Status.PodIP) {
		t.Errorf("the answer is %q, %v", answer, err)
	}
	if stats := r.stats("web"); !strings.Contains(stats, "ssl_handshake") {
		t.Errorf("no handshakes of TLS are counted:\n%.2000s", stats)
	}
	if answer, err := r.ask("out", net.JoinHostPort(r.pods["web"].Status.PodIP, "8080")); err == nil {
		t.Errorf("a pod without a certificate is answered: %q", answer)
	}
	var status struct {
		ControlPlane struct {
			Proxies struct {
				Connected, Missing int
				Without            []string
			}
		}
	}
	state := func() bool {
		text := r.proxima("status", "-o", "json", "--kubeconfig", filepath.Join(r.east, "kubeconfig"))
		return json.Unmarshal([]byte(text), &status) == nil
	}
	r.until("two sidecars follow", func() bool { return state() && status.ControlPlane.Proxies.Connected == 2 })
	r.externalSecret()

	r.eastPlane.Kill() // nobody answers the API server
	late := r.create("late", "ours", nil)
	if len(late.Spec.InitContainers) > 0 {
		t.Error("a pod has a sidecar while nobody answers")
	}
	if answer, err := r.ask("client", service+":80"); err != nil || !strings.HasPrefix(answer, "web ") {
		t.Errorf("without a control plane the answer is %q, %v", answer, err)
	}
	r.startPlane()
	r.until("the pod without a sidecar is told", func() bool {
		return state() && status.ControlPlane.Proxies.Missing == 1 && status.ControlPlane.Proxies.Without[0] == "shop/late"
	})

	// The rules are put back where they are gone: without them no connection is of the mesh.
	p := r.pods["client"]
	if err := r.nodes["ours"].PodNamespace(p.UID).Do(func() error { return redirect.Remove("default/shop/client") }); err != nil {
		t.Fatal(err)
	}
	if answer, err := r.ask("client", service+":80"); err == nil {
		t.Errorf("without rules there is an answer: %q", answer)
	}
	r.until("connections are led to the sidecar again", func() bool {
		answer, err := r.ask("client", service+":80")
		return err == nil && strings.HasPrefix(answer, "web ")
	})
	if got := r.kubectl("", "--namespace", manifests.Namespace, "get", "dataplaneinsights", "-A"); !strings.Contains(got, "web") {
		t.Errorf("no insight of a pod:\n%s", got)
	}

	// A gateway with an Envoy, which the control plane serves by the certificate of the gateway's Pod.
	gateway := r.gatewayPod("ingress", 1, "third", "--envoy="+r.Programs.Envoy)
	t.Cleanup(func() {
		if log, err := os.ReadFile(r.nodes["third"].PodLog(gateway)); t.Failed() && err == nil {
			t.Logf("the gateway:\n%s", log)
		}
	})
	r.until("the Envoy of the gateway follows, too", func() bool { return state() && status.ControlPlane.Proxies.Connected == 3 })
	pids, err := r.nodes["third"].PodNamespace(gateway.UID).Processes()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(pids, func(pid int) bool {
		path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return path == r.Programs.Envoy
	}) {
		t.Error("no Envoy runs in the Pod of the gateway")
	}
}

// externalSecret: the sidecar of a Pod connects to a service outside every mesh by itself, with the client certificate and the
// authorities of a Secret that the ExternalService names, once the chart's Role lets the control plane read it; and with those that
// take their place.
func (r *sidecarRig) externalSecret() {
	t := r.t
	t.Helper()
	clients, servers := catest.New(t, "clients", nil, nil), catest.New(t, "servers", nil, nil)
	leaf := func(ca *catest.CA, usage x509.ExtKeyUsage) *catest.CA {
		return catest.New(t, "", ca, func(c *x509.Certificate) {
			c.IsCA, c.KeyUsage, c.ExtKeyUsage, c.DNSNames = false, x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{usage}, []string{"bank.example"}
		})
	}
	own, pool := leaf(servers, x509.ExtKeyUsageServerAuth), x509.NewCertPool()
	pool.AddCert(clients.Cert)
	l, err := tls.Listen("tcp", net.JoinHostPort(address, "0"), &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{own.Cert.Raw}, PrivateKey: own.Key}}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(callTimeout))
				if secured := c.(*tls.Conn); secured.Handshake() == nil {
					host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
					fmt.Fprintf(c, "%s %s", host, secured.ConnectionState().PeerCertificates[0].SerialNumber.Text(16))
				}
			}()
		}
	}()
	secret := func() (serial string) {
		client := leaf(clients, x509.ExtKeyUsageClientAuth)
		encode := base64.StdEncoding.EncodeToString
		r.kubectl(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: bank-tls, namespace: shop}\ndata: {ca: %s, cert: %s, key: %s}\n",
			encode(catest.PEM(servers)), encode(catest.PEM(client)), encode(client.KeyPEM(t))), "apply", "-f", "-")
		return client.Cert.SerialNumber.Text(16)
	}
	serial := secret()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	r.atGlobal("", "create", "namespace", "shop")
	r.atGlobal(fmt.Sprintf(`
apiVersion: mesh.proxima.dev/v1alpha1
kind: ExternalService
metadata: {name: bank, namespace: shop}
spec:
  hosts: [bank.example]
  addresses: [{address: %s}]
  ports: [{port: 80, targetPort: %s}]
  tls:
    caCertificates: {secretRef: {name: bank-tls, key: ca}}
    clientCertificate: {secretRef: {name: bank-tls, key: cert}}
    clientKey: {secretRef: {name: bank-tls, key: key}}
`, address, port), "apply", "-f", "-")
	virtual := ""
	r.until("the service has a virtual IP", func() bool {
		virtual, err = r.run("", testkit.Kubectl(t), "--namespace", "shop", "get", "service", "bank", "-o", "jsonpath={.spec.clusterIP}")
		return err == nil && virtual != ""
	})
	if answer, err := r.ask("client", virtual+":80"); err == nil {
		t.Errorf("the service answers before the Secret may be read: %q", answer)
	}
	r.kubectl(r.manifests("zone", append(slices.Clone(r.set), "--set", "policySecrets.shop=[bank-tls]")...), "apply", "--server-side", "-f", "-")
	last := ""
	shows := func(what, serial string) {
		t.Helper()
		r.until(what, func() bool {
			last, err = r.ask("client", virtual+":80")
			return err == nil && last == r.pods["client"].Status.PodIP+" "+serial // and not by the node
		})
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last answer of the service outside: %q, %v", last, err)
		}
	})
	shows("the sidecar shows the certificate of the Secret", serial)
	shows("the sidecar shows the certificate that took its place", secret())
}

// TestSidecarsOfAClusterAlone: the same in the preset kube-proxy-replacement, where the control plane itself
// makes the authorities of meshes. A Pod without the sidecar that it should have is told so by an Event, and
// by doctor. The control plane needs all that it is granted for sidecars.
func TestSidecarsOfAClusterAlone(t *testing.T) {
	r := newSidecarRig(t, "kube-proxy-replacement")
	r.create("web", "third", nil)
	r.create("client", "ours", nil)
	r.create("out", "ours", map[string]string{"mesh.proxima.dev/sidecar-injection": "disabled"})
	for _, name := range []string{"web", "client", "out"} {
		r.await(name)
	}
	service := r.kubectl("", "--namespace", "shop", "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	answered := func() bool {
		answer, err := r.ask("client", service+":80")
		return err == nil && strings.HasPrefix(answer, "web ")
	}
	r.until("the client is answered by the Service", answered)
	if stats := r.stats("web"); !strings.Contains(stats, "ssl_handshake") {
		t.Errorf("no handshakes of TLS are counted:\n%.2000s", stats)
	}
	if answer, err := r.ask("out", net.JoinHostPort(r.pods["web"].Status.PodIP, "8080")); err == nil {
		t.Errorf("a pod without a certificate is answered: %q", answer)
	}

	r.eastPlane.Kill() // nobody answers the API server
	r.create("late", "ours", nil)
	if !answered() {
		t.Error("there is no answer without a control plane")
	}
	r.startPlane()
	r.until("the pod without a sidecar is told", func() bool {
		text := r.kubectl("", "--namespace", "shop", "describe", "pod", "late")
		return strings.Contains(text, "SidecarMissing") && strings.Contains(text, "kubectl --namespace shop delete pod late")
	})
	r.until("doctor finds it", func() bool {
		out, _ := r.run("", testkit.Binary(t), "doctor", "--kubeconfig", filepath.Join(r.east, "kubeconfig"))
		return strings.Contains(out, "shop/late")
	})
	// The authorities are those of before: a sidecar that starts is trusted by one that runs.
	r.create("second", "third", nil)
	r.await("second")
	r.until("a pod of after is answered by one of before", func() bool {
		answer, err := r.ask("second", service+":80")
		return err == nil && strings.HasPrefix(answer, "web ")
	})
	r.wantUsed()
}

// wantUsed: the control plane of a cluster alone tells what becomes of policies, and needs all that it is
// granted for sidecars.
func (r *sidecarRig) wantUsed() {
	r.t.Helper()
	r.kubectl(strings.ReplaceAll(trafficObjects("first"), "from-east", "web"), "apply", "-f", "-")
	for _, of := range trafficPolicies() {
		r.until("the status of "+of[0], func() bool {
			return of[0] == "referencegrants" || r.kubectl("", "--namespace", "shop", "get", of[0], of[1], "-o", "jsonpath={.status}") != ""
		})
	}
	// Insights are gone through after half a minute.
	insights := permission{"mesh.proxima.dev", "dataplaneinsights", "watch"}
	r.until("insights are watched", func() bool { return r.asked("proxima")[insights] > 0 })
	r.wantPartUsed("kube-proxy-replacement", "proxima", "sidecar", lists(
		"trafficpermissions.mesh.proxima.dev", "backendpolicies.mesh.proxima.dev", "workloadpolicies.mesh.proxima.dev", "proxypatches.mesh.proxima.dev",
		"httproutes.gateway.networking.k8s.io", "grpcroutes.gateway.networking.k8s.io", "tcproutes.gateway.networking.k8s.io", "referencegrants.gateway.networking.k8s.io",
		"dataplaneinsights.mesh.proxima.dev", "mutatingwebhookconfigurations.admissionregistration.k8s.io",
	), "webhook")
}
