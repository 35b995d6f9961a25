package xds_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// TestServerOfAnotherName: an Envoy calls a Service whose endpoint shows the certificate of another
// workload of the mesh, or one with the right name by another authority: no request gets through. No
// private key is in what its admin interface says.
func TestServerOfAnotherName(t *testing.T) {
	outbound := freePort(t)
	client := dataplane("client-1", "127.0.0.1")
	client.Spec.Proxy.Outbound = []meshv1alpha1.DataplaneOutbound{{Port: outbound, Service: "api", ServicePort: 80}}
	server := dataplane("server-1", "127.0.0.1")
	server.Spec.ServiceAccount = "server"
	m := strict("Strict")
	m.Spec.MTLS.Outbound = meshv1alpha1.OutboundAlways
	p := newPlane(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, m, client, server, service("api", "10.96.0.20", port("web", 80, "http")))
	dir := envoytest.Dir(t)
	// endpoint with the certificate of an account.
	endpoint := func(account string, by *catest.CA) {
		t.Helper()
		own := p.ca
		p.ca = by
		cert, key := p.identity(t.TempDir(), "shop", account)
		p.ca = own
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(account)) }))
		s.Listener = opaque{tls.NewListener(s.Listener, &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"proxima"}})}
		s.Start()
		t.Cleanup(s.Close)
		p.seed(slice("api", "web", int32(s.Listener.Addr().(*net.TCPAddr).Port), "a", "server-1=127.0.0.1"))
	}
	cert, key := p.identity(dir, "shop", "default")
	envoy := envoytest.Start(t, dir, bootstrap(p, dir, "default/shop/client-1", cert, key, nil))
	envoy.WaitReady()
	refused := func() float64 {
		return envoy.Stats("cluster.shop/api_80.ssl.fail_verify")["cluster.shop/api_80.ssl.fail_verify_san"]
	}
	failed := func() float64 {
		return envoy.Stats("cluster.shop/api_80.ssl.fail_verify")["cluster.shop/api_80.ssl.fail_verify_error"]
	}
	answers := func(when, want string) {
		t.Helper()
		testkit.Eventually(t, when, func() bool { got, _, err := get(outbound, "/"); return err == nil && got == want })
	}
	endpoint("server", p.ca)
	answers("the right server", "server")
	endpoint("other", p.ca)
	testkit.Eventually(t, "a server of another account is refused", func() bool {
		got, _, _ := get(outbound, "/")
		return got == "503" && refused() > 0
	})
	endpoint("server", catest.New(t, "other root", nil, nil))
	testkit.Eventually(t, "a server of another authority is refused", func() bool {
		got, _, _ := get(outbound, "/")
		return got == "503" && failed() > 0
	})
	endpoint("server", p.ca)
	answers("the right server again", "server")
	_, dump, err := envoy.Admin(http.MethodGet, "/config_dump?include_eds")
	if err != nil || strings.Contains(dump, "PRIVATE KEY") || !strings.Contains(dump, "spiffe://") {
		t.Errorf("a dump of the configuration has a private key, or no names: %v", err)
	}
}

// opaque hides that connections are TLS from the HTTP server, which ends those whose protocol (ALPN) it
// does not know.
type opaque struct{ net.Listener }

func (l opaque) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return struct{ net.Conn }{c}, err
}
