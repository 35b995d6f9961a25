package lab_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// TestEnvoyGateways: a workload with a sidecar asks one of another zone, through an egress and an
// ingress whose ports are an Envoy's, over the replacement of both Envoys and the death of both
// gateways. No request fails. A client without a sidecar gets there by the tunnel of its node.
func TestEnvoyGateways(t *testing.T) {
	if _, err := cgroup.Find(); err != nil {
		t.Skip(err)
	}
	// An Envoy of its own, which is replaced.
	envoy := filepath.Join(t.TempDir(), "envoy")
	replaceEnvoy(t, envoy)
	t.Setenv("PATH", filepath.Dir(testkit.Sidecar(t))+":"+os.Getenv("PATH"))
	s := &sidecars{t: t, results: filepath.Join(t.TempDir(), "results"), l: start(t, lab.Spec{
		Zones: 2, Nodes: 1, Mode: "nftables", IPv4Only: true, Global: true, Egress: true, EnvoyGateways: true, Envoy: envoy,
	})}
	s.exportStock()
	s.run("b-1", "stock", "sleep", "1000")
	testkit.Eventually(t, "the export says that all endpoints have proxies", func() bool {
		e, err := s.api.Get(t.Context(), kind.ServiceExport, resource.Key{Namespace: "default", Name: "stock"})
		return err == nil && e.(*mcs.ServiceExport).Status.Available != nil && e.(*mcs.ServiceExport).Status.Available.Proxied
	})
	s.importStock()
	s.run("a-1", "shop", "sh", "-c", fmt.Sprintf(
		`while :; do curl -s -m 5 -o /dev/null -w '%%{http_code}\n' http://%s/ >>%s; sleep 0.02; done`, s.vip, s.results))
	egress, ingress := s.passed("egress-a"), s.passed("gateway-b")
	testkit.Eventually(t, "TLS of the sidecars passes both gateways", func() bool {
		return s.passed("egress-a") > egress+5 && s.passed("gateway-b") > ingress+5
	})
	s.skip()
	s.none("through both Envoys", 40)
	if err := s.plain("client-a"); err != nil {
		t.Errorf("a client without a sidecar: %v", err)
	}

	replaceEnvoy(t, envoy)
	for _, machine := range []string{"egress-a", "gateway-b"} {
		testkit.Eventually(t, "another Envoy takes over in "+machine, func() bool { return s.epoch(machine) == 1 })
	}
	s.none("while both Envoys are replaced", 40)
	for _, machine := range []string{"egress-a", "gateway-b"} {
		if err := s.l.Kill(t.Context(), machine); err != nil {
			t.Fatal(err)
		}
	}
	s.none("without the processes of the gateways", 40)
	if err := s.l.Heal(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	s.none("with new ones, which have adopted the Envoys", 40)
	testkit.Eventually(t, "a client without a sidecar gets there again", func() bool { return s.plain("client-a") == nil })
}

// replaceEnvoy at a path by a copy of the real one.
func replaceEnvoy(t *testing.T, path string) {
	t.Helper()
	in, err := os.Open(envoytest.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err == nil {
		_, err = io.Copy(out, in)
	}
	if err == nil {
		err = out.Close()
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// exportStock serves on node b-1, as Service "stock" that zone b exports.
func (s *sidecars) exportStock() {
	s.t.Helper()
	var err error
	if s.api, err = s.l.Client("zone-b"); err != nil {
		s.t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Namespace: "default", Name: "stock"}
	_, err = s.api.Create(s.t.Context(), kind.Service, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "stock"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8090)}},
	}})
	if err == nil {
		_, err = s.api.Create(s.t.Context(), kind.ServiceExport, &mcs.ServiceExport{ObjectMeta: meta})
	}
	if err != nil {
		s.t.Fatal(err)
	}
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

// importStock waits for the virtual address in zone a.
func (s *sidecars) importStock() {
	s.t.Helper()
	api, err := s.l.Client("zone-a")
	if err != nil {
		s.t.Fatal(err)
	}
	s.api = api
	testkit.Eventually(s.t, "zone a has the import", func() bool {
		i, err := api.Get(s.t.Context(), kind.ServiceImport, resource.Key{Namespace: "default", Name: "stock"})
		if err != nil || len(i.(*mcs.ServiceImport).Spec.IPs) == 0 {
			return false
		}
		s.vip = i.(*mcs.ServiceImport).Spec.IPs[0]
		return true
	})
}

// passed counts the connections that a gateway's Envoy has passed on by server name.
func (s *sidecars) passed(machine string) (n int) {
	socket := filepath.Join(s.l.DataDir(machine), "node", "envoy", "envoy", "admin.sock")
	response, err := envoytest.AdminClient(socket).Get("http://admin/stats?filter=tcp.passthrough.downstream_cx_total")
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body) // empty: none were passed
	_, value, _ := strings.Cut(strings.TrimSpace(string(text)), ": ")
	_, _ = fmt.Sscan(value, &n)
	return n
}

// epoch of a gateway's Envoy: how often it was replaced.
func (s *sidecars) epoch(machine string) int {
	socket := filepath.Join(s.l.DataDir(machine), "node", "envoy", "control.sock")
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}}
	response, err := client.Get("http://sidecar/status")
	if err != nil {
		return -1
	}
	defer response.Body.Close()
	var status struct {
		Envoy struct{ Epoch int }
	}
	if json.NewDecoder(response.Body).Decode(&status) != nil {
		return -1
	}
	return status.Envoy.Epoch
}
