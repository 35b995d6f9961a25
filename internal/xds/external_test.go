package xds_test

import (
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// TestExternalService: a real Envoy connects to a service outside every mesh by itself, with the
// TLS that the object asks for, or through the egress where the mesh says so.
func TestExternalService(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.TLS.ServerName, r.URL.Path)
	}))
	t.Cleanup(server.Close)
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	out := freePort(t)
	client := dataplane("client-1", "127.0.0.1")
	client.Spec.Proxy.Outbound = []meshv1alpha1.DataplaneOutbound{{Port: out, Service: "pay", ServicePort: 80}}
	s := service("pay", "10.96.0.30", port("web", 80, ""))
	s.Labels = map[string]string{meshv1alpha1.LabelExternalService: "pay", meshv1alpha1.LabelMesh: "default"}
	external := func(address, name string, own []byte) *meshv1alpha1.ExternalService {
		e := &meshv1alpha1.ExternalService{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pay"}, Spec: meshv1alpha1.ExternalServiceSpec{
			Hosts: []string{"pay.example"}, Addresses: []meshv1alpha1.ExternalServiceAddress{{Address: address}},
			Ports: []meshv1alpha1.ExternalServicePort{{Name: "web", Port: 80, TargetPort: new(int32(server.Listener.Addr().(*net.TCPAddr).Port))}},
			TLS:   &meshv1alpha1.ExternalServiceTLS{ServerName: name},
		}}
		if own != nil {
			e.Spec.TLS.CACertificates = &meshv1alpha1.DataSource{Inline: own}
		}
		return e
	}
	e := external("127.0.0.1", "example.com", roots) // the server's certificate is of this name
	p := newPlane(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, strict("Strict"), client, s, e)
	p.roots = roots
	dir := envoytest.Dir(t)
	cert, key := p.identity(dir, "shop", "default")
	envoy := envoytest.Start(t, dir, bootstrap(p, dir, "default/shop/client-1", cert, key, nil))
	envoy.WaitReady()
	answers := func(what, want string) {
		t.Helper()
		var got string
		var err error
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if got, _, err = get(out, "/x"); err == nil && got == want {
				return
			}
		}
		_, stats, _ := envoy.Admin(http.MethodGet, "/stats?usedonly&filter=pay|sds")
		t.Fatalf("%s: %q (%v), want %q\n%s", what, got, err, want, stats)
	}
	answers("by its address", "example.com/x")
	p.seed(external("127.0.0.1", "other.example", roots))
	envoy.Await("a certificate of another name is refused", func() bool { _, _, err := get(out, "/x"); return err != nil })
	p.seed(external("localhost", "example.com", nil))
	answers("by its name, with the authorities of the system", "example.com/x")

	m := strict("Strict")
	m.Spec.Routing = &meshv1alpha1.MeshRouting{ZoneEgress: new(true)}
	router, way, metrics := startEgress(t, p)
	table := sites.NewTable("local")
	named := catalog.Key{Namespace: "shop", Name: "pay"}
	table.Apply(&catalog.Delta{
		Services:         []catalog.Change[*corev1.Service]{{Key: named, New: s}},
		ExternalServices: []catalog.Change[*meshv1alpha1.ExternalService]{{Key: named, New: e}},
	})
	remote, err := table.Remote(proxy.ServiceName(named))
	if err != nil || remote == nil {
		t.Fatal(remote, err)
	}
	router.Apply(node.Update{Remotes: map[proxy.ServiceName]*sites.Remote{remote.Service: remote}})
	p.seed(m, e, &meshv1alpha1.ZoneEgress{
		ObjectMeta: metav1.ObjectMeta{Name: "e1"}, Spec: meshv1alpha1.ZoneGatewaySpec{Zone: "local", Address: way.Addr().String(), Port: int32(way.Port())},
	})
	envoy.Await("the egress is used", func() bool {
		got, _, err := get(out, "/x")
		return err == nil && got == "example.com/x" && counted(t, metrics, "proxima_gateway_handshakes_total", "full") > 0
	})
	p.seen.none(t)
}
