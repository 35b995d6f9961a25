package lab_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// meshes is a lab with three meshes, first Permissive. Services "open" and "closed" are of mesh
// default; "open" is exported to mesh blue. A client with a sidecar is of blue, one of red.
type meshes struct {
	t    *testing.T
	l    *lab.Lab
	api  resource.Client
	vips map[string]string
}

// TestMeshes: a proxy serves one mesh, sees it and what is exported to it, which it calls by mutual
// TLS. Workloads take certificates of their own trust domain, and of those of the meshes that they are
// exported to, each by its own roots.
func TestMeshes(t *testing.T) {
	if _, err := cgroup.Find(); err != nil {
		t.Skip(err)
	}
	m := openMeshes(t)
	for _, c := range []struct {
		client, service string
		served          bool
	}{
		{"blue", "open", true},
		{"blue", "closed", false},
		{"red", "open", false},
		{"red", "closed", false},
	} {
		// What a proxy has learned comes after its first connection.
		testkit.Eventually(t, fmt.Sprintf("%s to %s: %v", c.client, c.service, c.served), func() bool {
			return (m.ask(c.client, c.service) == nil) == c.served
		})
		more := 20
		if !c.served {
			more = 2 // each waits until nobody answers for the address
		}
		for range more {
			if err := m.ask(c.client, c.service); (err == nil) != c.served {
				t.Errorf("%s to %s: %v; served: want %v", c.client, c.service, err, c.served)
			}
		}
	}
	t.Run("no longer exported", func(t *testing.T) {
		m.export("")
		testkit.Eventually(t, "blue is refused", func() bool { return m.ask("blue", "open") != nil })
		m.export("blue")
		testkit.Eventually(t, "blue is served again", func() bool { return m.ask("blue", "open") == nil })
	})
	t.Run("strict", func(t *testing.T) {
		m.mode("Strict")
		testkit.Eventually(t, "a client without a certificate is refused", func() bool { return m.handshake("", openAt) != nil })
		for range 20 {
			if err := m.ask("blue", "open"); err != nil {
				t.Errorf("blue calls what is exported to it: %v", err)
			}
		}
		m.handshakes(t, "strict", map[string][]string{openAt: {"closed", "blue"}, closedAt: {"open"}})
	})
	t.Run("permissions", m.permissions)
	t.Run("no longer exported, strict", func(t *testing.T) {
		m.export("")
		testkit.Eventually(t, "blue is refused", func() bool { return m.handshake("blue", openAt) != nil && m.ask("blue", "open") != nil })
		m.handshakes(t, "not exported", map[string][]string{openAt: {"closed"}})
		m.export("*")
		testkit.Eventually(t, "blue and red are served", func() bool { return m.ask("blue", "open") == nil && m.ask("red", "open") == nil })
		m.handshakes(t, "exported to all", map[string][]string{openAt: {"closed", "blue", "red"}, closedAt: {"open"}})
	})
}

// Where workloads of mesh default serve.
const openAt, closedAt = "10.200.1.12:9101", "10.200.2.12:9101"

// handshakes of each workload, and of a client without a certificate: admitted, by address, are those
// that get in.
func (m *meshes) handshakes(t *testing.T, when string, admitted map[string][]string) {
	t.Helper()
	for address, in := range admitted {
		for _, certificate := range []string{"open", "closed", "blue", "red", ""} {
			want := slices.Contains(in, certificate) || certificate != "" && address == map[string]string{"open": openAt, "closed": closedAt}[certificate]
			if err := m.handshake(certificate, address); (err == nil) != want {
				t.Errorf("%s: a certificate of %q to %s: %v; admitted: want %v", when, certificate, address, err, want)
			}
		}
	}
}

// permissions select callers of another mesh by its name, and by their SPIFFE IDs.
func (m *meshes) permissions(t *testing.T) {
	allow := func(from meshv1alpha1.PolicySource) *meshv1alpha1.TrafficPermission {
		p := &meshv1alpha1.TrafficPermission{ObjectMeta: named("callers")}
		p.Spec.Allow = []meshv1alpha1.PermissionRule{{From: []meshv1alpha1.PolicySource{from}}}
		return p
	}
	exact := func(id string) meshv1alpha1.PolicySource {
		return meshv1alpha1.PolicySource{SPIFFE: []meshv1alpha1.ValueMatch{{Type: meshv1alpha1.MatchExact, Value: id}}}
	}
	for _, c := range []struct {
		name              string
		from              meshv1alpha1.PolicySource
		blue, ownWorkload bool
	}{
		{"mesh blue", meshv1alpha1.PolicySource{Mesh: "blue"}, true, false},
		{"mesh red", meshv1alpha1.PolicySource{Mesh: "red"}, false, false},
		{"the ID of blue", exact("spiffe://blue.mesh/ns/blue/sa/default"), true, false},
		{"the same account in the own mesh", exact("spiffe://default.mesh/ns/blue/sa/default"), false, false},
		{"an ID of the own mesh", exact("spiffe://default.mesh/ns/default/sa/default"), false, true},
	} {
		m.create(kind.TrafficPermission, allow(c.from))
		testkit.Eventually(t, "permission for "+c.name, func() bool {
			return (m.ask("blue", "open") == nil) == c.blue && (m.handshake("closed", openAt) == nil) == c.ownWorkload
		})
		if err := m.api.Delete(t.Context(), kind.TrafficPermission, resource.Key{Namespace: "default", Name: "callers"}, resource.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "without a permission", func() bool { return m.ask("blue", "open") == nil && m.handshake("closed", openAt) == nil })
	}
}

func openMeshes(t *testing.T) *meshes {
	t.Helper()
	m := &meshes{t: t, vips: map[string]string{}, l: start(t, lab.Spec{Zones: 2, Nodes: 2, Mode: "nftables", IPv4Only: true})}
	var err error
	if m.api, err = m.l.Client(""); err != nil {
		t.Fatal(err)
	}
	m.mode("Permissive")
	mtls := &meshv1alpha1.MeshMTLS{EnabledBackend: "ca", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "ca", Mode: "Permissive"}}}
	for _, name := range []string{"blue", "red"} {
		m.create(kind.Mesh, &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: meshv1alpha1.MeshSpec{MTLS: mtls}})
		m.create(kind.Namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{meshv1alpha1.LabelMesh: name}}})
	}
	for _, name := range []string{"open", "closed"} {
		made := m.create(kind.Service, &corev1.Service{ObjectMeta: named(name), Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "main", Port: 80, TargetPort: intstr.FromInt32(9101), AppProtocol: new("http")}},
		}})
		m.vips[name] = made.(*corev1.Service).Spec.ClusterIP + ":80"
	}
	m.export("blue")
	m.serve("a-2")
	m.serve("b-2")
	m.run("a-2", "default", "open")
	m.run("b-2", "default", "closed")
	m.run("a-1", "blue", "blue")
	m.run("b-1", "red", "red")
	return m
}

// mode of mesh default.
func (m *meshes) mode(name string) {
	m.t.Helper()
	object, err := m.api.Get(m.t.Context(), kind.Mesh, resource.Key{Name: meshv1alpha1.DefaultMesh})
	if err == nil {
		object.(*meshv1alpha1.Mesh).Spec.MTLS = &meshv1alpha1.MeshMTLS{
			EnabledBackend: "ca", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "ca", Mode: name}},
		}
		_, err = m.api.Update(m.t.Context(), kind.Mesh, object)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *meshes) create(d *resource.Descriptor, object resource.Object) resource.Object {
	m.t.Helper()
	made, err := m.api.Create(m.t.Context(), d, object)
	if err != nil {
		m.t.Fatal(err)
	}
	return made
}

// export Service "open" to meshes.
func (m *meshes) export(to string) {
	m.t.Helper()
	testkit.Eventually(m.t, "the Service is updated", func() bool { // a controller may write it, too
		object, err := m.api.Get(m.t.Context(), kind.Service, resource.Key{Namespace: "default", Name: "open"})
		if err != nil {
			m.t.Fatal(err)
		}
		object.SetAnnotations(map[string]string{meshv1alpha1.AnnotationToMeshes: to})
		if to == "" {
			object.SetAnnotations(nil)
		}
		_, err = m.api.Update(m.t.Context(), kind.Service, object)
		if err != nil && !apierrors.IsConflict(err) {
			m.t.Fatal(err)
		}
		return err == nil
	})
}

func (m *meshes) serve(node string) {
	m.t.Helper()
	machine := inNamespace(m.t, node)
	defer machine.Close()
	listener, err := machine.Listen("tcp", "0.0.0.0:9101")
	if err != nil {
		m.t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, node) })}
	go func() { _ = server.Serve(listener) }()
	m.t.Cleanup(func() { _ = server.Close() })
}

func (m *meshes) file(name string) string { return filepath.Join("/run/proxima/lab", labName(), name) }

// run a workload with a sidecar, whose certificate goes to the folder of its name.
func (m *meshes) run(node, namespace, name string) {
	m.t.Helper()
	machine := inNamespace(m.t, node)
	defer machine.Close()
	if err := os.Mkdir(m.file(name), 0o700); err != nil {
		m.t.Fatal(err)
	}
	cmd := exec.Command(testkit.Binary(m.t), "run", "--data-dir", m.l.DataDir(node), "--kubeconfig", m.l.Kubeconfig(), "--node-name", node,
		"--namespace", namespace, "--name", name, "--labels", "app="+name, "--port", "main:9101", "--sidecar", "--envoy", envoytest.Binary(m.t),
		"--redirect", "cgroup", "--", os.Args[0])
	if namespace != "default" { // clients serve nothing
		cmd.Args = append(cmd.Args[:14], cmd.Args[16:]...)
	}
	cmd.Env = append(testkit.CleanEnv(), "PATH="+filepath.Dir(testkit.Sidecar(m.t))+":"+os.Getenv("PATH"),
		dialerSocket+"="+m.file(name+".sock"), grpcIdentity+"="+m.file(name))
	log, err := os.Create(m.file(name + ".txt"))
	if err != nil {
		m.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := machine.Start(cmd); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if text, err := os.ReadFile(log.Name()); m.t.Failed() && err == nil {
			m.t.Logf("--- %s:\n%s", name, text[max(0, len(text)-3000):])
		}
		_ = log.Close()
	})
	testkit.Eventually(m.t, name+" is ready", func() bool {
		d, err := m.api.Get(m.t.Context(), kind.Dataplane, resource.Key{Namespace: namespace, Name: name})
		_, missing := os.Stat(m.file(name + ".sock"))
		return err == nil && missing == nil && meta.IsStatusConditionTrue(d.(*meshv1alpha1.Dataplane).Status.Conditions, meshv1alpha1.DataplaneReady)
	})
}

// ask a Service as a client with a sidecar.
func (m *meshes) ask(client, service string) error {
	ctx, cancel := context.WithTimeout(m.t.Context(), 5*time.Second)
	defer cancel()
	_, err := getBody(ctx, "http://"+m.vips[service]+"/", func(ctx context.Context, _, _ string) (net.Conn, error) {
		return through(ctx, m.file(client+".sock"), m.vips[service])
	})
	return err
}

// handshake with a workload past the client's own sidecar, with the certificate of a client, or
// none, and a request: a server that refuses a certificate says so after the handshake (TLS 1.3).
func (m *meshes) handshake(client, address string) error {
	machine := inNamespace(m.t, "b-1")
	defer machine.Close()
	ctx, cancel := context.WithTimeout(m.t.Context(), 5*time.Second)
	defer cancel()
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"proxima"}} // it is the server that decides
	if client != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(m.file(client), "svid.crt"), filepath.Join(m.file(client), "svid.key"))
		if err != nil {
			m.t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	_, err := getBody(ctx, "http://"+address+"/", func(ctx context.Context, network, _ string) (net.Conn, error) {
		raw, err := machine.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return tls.Client(raw, config), nil
	})
	return err
}
