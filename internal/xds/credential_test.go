package xds_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// TestExternalSecrets: a real Envoy shows a service outside every mesh the client certificate of a Secret, and verifies it by the
// authorities of one. Values that take their place are used for the next connection, with the same cluster; no dump of the
// configuration has a key.
func TestExternalSecrets(t *testing.T) {
	clients := catest.New(t, "clients", nil, nil)
	pool := x509.NewCertPool()
	pool.AddCert(clients.Cert)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.TLS.PeerCertificates[0].SerialNumber.Text(16))
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})

	out := freePort(t)
	client := dataplane("client-1", "127.0.0.1")
	client.Spec.Proxy.Outbound = []meshv1alpha1.DataplaneOutbound{{Port: out, Service: "pay", ServicePort: 80}}
	s := service("pay", "10.96.0.30", port("web", 80, ""))
	s.Labels = map[string]string{meshv1alpha1.LabelExternalService: "pay", meshv1alpha1.LabelMesh: "default"}
	of := func(key string) *meshv1alpha1.DataSource {
		return &meshv1alpha1.DataSource{SecretRef: &meshv1alpha1.SecretKeyReference{Name: "pay", Key: key}}
	}
	e := &meshv1alpha1.ExternalService{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pay", Generation: 1}, Spec: meshv1alpha1.ExternalServiceSpec{
		Hosts: []string{"pay.example"}, Addresses: []meshv1alpha1.ExternalServiceAddress{{Address: "127.0.0.1"}},
		Ports: []meshv1alpha1.ExternalServicePort{{Name: "web", Port: 80, TargetPort: new(int32(server.Listener.Addr().(*net.TCPAddr).Port))}},
		TLS:   &meshv1alpha1.ExternalServiceTLS{ServerName: "example.com", CACertificates: of("ca"), ClientCertificate: of("cert"), ClientKey: of("key")},
	}}
	p := newPlane(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, strict("Strict"), client, s, e)
	set := func(authorities []byte) (serial, key string) {
		leaf := catest.New(t, "", clients, func(c *x509.Certificate) {
			c.IsCA, c.KeyUsage, c.ExtKeyUsage = false, x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		})
		private := leaf.KeyPEM(t)
		p.builder.SetCredentials(map[catalog.Key]*build.Credentials{{Namespace: "shop", Name: "pay"}: {
			Generation: 1, Authorities: authorities, Certificate: catest.PEM(leaf), Key: private,
		}})
		return leaf.Cert.SerialNumber.Text(16), strings.Split(string(private), "\n")[1]
	}
	first, key := set(roots)
	dir := envoytest.Dir(t)
	cert, own := p.identity(dir, "shop", "default")
	envoy := envoytest.Start(t, dir, bootstrap(p, dir, "default/shop/client-1", cert, own, nil))
	envoy.WaitReady()
	shows := func(serial string) {
		t.Helper()
		envoy.Await("the certificate of the Secret is shown", func() bool {
			got, _, err := get(out, "/")
			return err == nil && got == serial
		})
	}
	admin := func(path string) string {
		t.Helper()
		_, text, err := envoy.Admin(http.MethodGet, path)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	shows(first)
	clusters := admin("/stats?filter=cluster_manager.cluster_(modified|added|removed)")
	second, _ := set(roots)
	shows(second)
	if now := admin("/stats?filter=cluster_manager.cluster_(modified|added|removed)"); now != clusters {
		t.Errorf("clusters changed with the Secret:\n%s\n%s", clusters, now)
	}
	dump := admin("/config_dump")
	if !strings.Contains(dump, "certificate|shop/pay") || strings.Contains(dump, key) || strings.Contains(dump, "PRIVATE KEY") {
		t.Error("the dump of the configuration lacks the secret's name, or has a key")
	}
	set(catest.PEM(clients)) // not those of the server
	envoy.Await("a server that the Secret's authorities did not sign is refused", func() bool { _, _, err := get(out, "/"); return err != nil })
	p.seen.none(t)
}
