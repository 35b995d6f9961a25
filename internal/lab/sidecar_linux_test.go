package lab_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// sidecars is a lab with a server on node b-1 and a client on node a-1, both with a sidecar. The
// client asks the Service of the server without a pause.
type sidecars struct {
	t       *testing.T
	l       *lab.Lab
	api     resource.Client
	vip     string
	results string // a line for each answer: status, and x-envoy-upstream-service-time
	seen    int
}

// TestSidecars: two workloads whose connections are led to sidecars, over a change of the mesh's
// mode, without a control plane, and over the end of an Envoy. No request fails.
func TestSidecars(t *testing.T) {
	if _, err := cgroup.Find(); err != nil {
		t.Skip(err)
	}
	s := &sidecars{t: t, l: start(t, lab.Spec{Zones: 2, Nodes: 1, Mode: "nftables", IPv4Only: true}), results: filepath.Join(t.TempDir(), "results")}
	var err error
	if s.api, err = s.l.Client(""); err != nil {
		t.Fatal(err)
	}
	s.setMode("Permissive")
	s.serve()
	s.run("b-1", "stock", "sleep", "1000")
	s.run("a-1", "shop", "sh", "-c", fmt.Sprintf(
		`while :; do curl -s -m 5 -o /dev/null -w '%%{http_code} %%header{x-envoy-upstream-service-time}\n' http://%s/ >>%s; sleep 0.02; done`, s.vip, s.results))
	s.none("with a sidecar at both ends", 20)
	testkit.Eventually(t, "requests go through HTTP of the client's sidecar", func() bool {
		lines := s.lines()
		return len(lines) > 0 && len(strings.Fields(lines[len(lines)-1])) == 2
	})
	for _, from := range []string{"client-a", "b-1"} {
		if got := s.plain(from); got != nil {
			t.Errorf("permissive, a client without a sidecar at %s: %v", from, got)
		}
	}

	s.setMode("Strict")
	// The agent of b-1 translates the virtual IP to the server itself: that connection cannot be led to the sidecar.
	for _, from := range []string{"client-a", "b-1"} {
		testkit.Eventually(t, "a client without a sidecar at "+from+" is refused", func() bool { return s.plain(from) != nil })
	}
	s.none("strict", 40)

	if err := s.l.Kill(t.Context(), "control"); err != nil {
		t.Fatal(err)
	}
	s.none("without a control plane", 40)
	s.killEnvoy("shop")
	testkit.Eventually(t, "an Envoy that was killed serves again, without a control plane", func() bool {
		lines := s.lines()
		return len(lines) > s.seen+20 && !slices.ContainsFunc(lines[len(lines)-10:], func(l string) bool { return !strings.HasPrefix(l, "200") })
	})
	s.skip() // requests of the moment without an Envoy
	s.none("after another Envoy began without a control plane", 40)
	if err := s.l.Heal(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	s.none("with the control plane again", 40)
}

func (s *sidecars) setMode(mode string) {
	s.t.Helper()
	object, err := s.api.Get(s.t.Context(), kind.Mesh, resource.Key{Name: meshv1alpha1.DefaultMesh})
	if err == nil {
		object.(*meshv1alpha1.Mesh).Spec.MTLS = &meshv1alpha1.MeshMTLS{
			EnabledBackend: "ca-1", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "ca-1", Mode: mode}},
		}
		_, err = s.api.Update(s.t.Context(), kind.Mesh, object)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// service of workloads by their name, at port 80.
func (s *sidecars) service(name, protocol string, port int32) (vip string) {
	s.t.Helper()
	made, err := s.api.Create(s.t.Context(), kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{
			{Name: "main", Port: 80, TargetPort: intstr.FromInt32(port), AppProtocol: &protocol},
		}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return made.(*corev1.Service).Spec.ClusterIP
}

// serve on node b-1, as Service "stock".
func (s *sidecars) serve() {
	s.t.Helper()
	s.vip = s.service("stock", "http", 8090)
	machine := inNamespace(s.t, "b-1")
	defer machine.Close()
	listener, err := machine.Listen("tcp", "0.0.0.0:8090")
	if err != nil {
		s.t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "in stock\n") })}
	go func() { _ = server.Serve(listener) }()
	s.t.Cleanup(func() { _ = server.Close() })
}

// run a workload with a sidecar on a node, until the test ends.
func (s *sidecars) run(node, name string, command ...string) {
	s.t.Helper()
	flags := []string{"--sidecar", "--envoy", envoytest.Binary(s.t), "--redirect", "cgroup"}
	if name == "stock" {
		flags = append(flags, "--port", "http:8090")
	}
	s.runWith(node, name, flags, nil, command...)
}

// runWith flags of run, and an environment, a command on a node, until the test ends.
func (s *sidecars) runWith(node, name string, flags, env []string, command ...string) {
	s.t.Helper()
	machine := inNamespace(s.t, node)
	defer machine.Close()
	kubeconfig, err := s.l.KubeconfigOf("zone-" + node[:1])
	if err != nil {
		s.t.Fatal(err)
	}
	args := []string{
		"run", "--data-dir", s.l.DataDir(node), "--kubeconfig", kubeconfig, "--node-name", node, "--name", name, "--labels", "app=" + name,
	}
	cmd := exec.Command(testkit.Binary(s.t), append(append(append(args, flags...), "--"), command...)...)
	cmd.Env = append(append(testkit.CleanEnv(), "PATH="+filepath.Dir(testkit.Sidecar(s.t))+":"+os.Getenv("PATH")), env...)
	log, err := os.Create(filepath.Join(s.t.TempDir(), name+".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := machine.Start(cmd); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if text, err := os.ReadFile(log.Name()); s.t.Failed() && err == nil {
			s.t.Logf("--- %s:\n%s", name, text)
		}
		_ = log.Close()
	})
	testkit.Eventually(s.t, name+" is ready", func() bool {
		d, err := s.api.Get(s.t.Context(), kind.Dataplane, resource.Key{Namespace: "default", Name: name})
		return err == nil && meta.IsStatusConditionTrue(d.(*meshv1alpha1.Dataplane).Status.Conditions, meshv1alpha1.DataplaneReady)
	})
}

// lines of the client.
func (s *sidecars) lines() []string {
	data, err := os.ReadFile(s.results)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// skip what was seen so far.
func (s *sidecars) skip() { s.seen = len(s.lines()) }

// none of the requests since the last call, and of so many more, failed.
func (s *sidecars) none(when string, more int) {
	s.t.Helper()
	until := len(s.lines()) + more
	testkit.Eventually(s.t, fmt.Sprintf("%d more answers, %s", more, when), func() bool { return len(s.lines()) >= until })
	failed, all := 0, s.lines()
	for _, line := range all[s.seen:] {
		if !strings.HasPrefix(line, "200") {
			failed++
		}
	}
	s.t.Logf("%s: %d of %d failed", when, failed, len(all)-s.seen)
	if failed > 0 {
		s.t.Errorf("%s: %d of %d failed: %.500q", when, failed, len(all)-s.seen, all[s.seen:])
	}
	s.seen = len(all)
}

// plain is what a client without a sidecar gets.
func (s *sidecars) plain(from string) error {
	ns := inNamespace(s.t, from)
	defer ns.Close()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: ns.DialContext, DisableKeepAlives: true}}
	response, err := client.Get("http://" + net.JoinHostPort(s.vip, "80"))
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// killEnvoy of a workload, as a crash does.
func (s *sidecars) killEnvoy(name string) {
	s.t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		s.t.Fatal(err)
	}
	killed := 0
	for _, dir := range dirs {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !strings.Contains(string(line), envoytest.Binary(s.t)+"\x00") ||
			!strings.HasPrefix(string(line), envoytest.Binary(s.t)) || !strings.Contains(string(line), s.l.DataDir("a-1")) {
			continue
		}
		var pid int
		if _, err := fmt.Sscan(filepath.Base(dir), &pid); err != nil {
			s.t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			s.t.Fatal(err)
		}
		killed++
	}
	if killed != 1 {
		s.t.Fatalf("%d processes of %s's Envoy", killed, name)
	}
}
