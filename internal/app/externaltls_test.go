package app

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// privateServer is outside every mesh and asks for a certificate; it echoes over TLS.
type privateServer struct {
	roots, clients *catest.CA
	port           int32
	// serial of the last client's certificate.
	serial atomic.Pointer[string]
}

func startPrivate(t *testing.T) *privateServer {
	t.Helper()
	p := &privateServer{roots: catest.New(t, "private root", nil, nil), clients: catest.New(t, "clients", nil, nil)}
	cert, key := p.pair(t, p.roots, "localhost")
	own, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(catest.PEM(p.clients))
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p.port = int32(l.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.echo(c.(*tls.Conn))
		}
	}()
	return p
}

func (p *privateServer) echo(c *tls.Conn) {
	defer c.Close()
	if c.Handshake() != nil {
		return
	}
	serial := c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	p.serial.Store(&serial)
	_, _ = io.Copy(c, c)
}

// pair for a name, as PEM.
func (*privateServer) pair(t *testing.T, ca *catest.CA, name string) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Sign(&x509.Certificate{
		DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, k.Public())
	if err != nil {
		t.Fatal(err)
	}
	if key, err = certpem.EncodeKey(k); err != nil {
		t.Fatal(err)
	}
	return certpem.EncodeCertificates(leaf), key
}

// editSecret of the service.
func (s testSite) editSecret(edit func(data map[string][]byte)) {
	s.t.Helper()
	client, key := s.cp.api.client, resource.Key{Namespace: "default", Name: "private-tls"}
	testkit.Eventually(s.t, "the secret is written", func() bool {
		obj, err := client.Get(s.t.Context(), kind.Secret, key)
		if err != nil {
			return false
		}
		secret := obj.DeepCopyObject().(*corev1.Secret)
		edit(secret.Data)
		_, err = client.Update(s.t.Context(), kind.Secret, secret)
		return err == nil
	})
}

// enforces waits for the condition of TLS.
func (s testSite) enforces(name string, want metav1.ConditionStatus, text string) {
	s.t.Helper()
	testkit.Eventually(s.t, "TLSEnforced is "+string(want)+": "+text, func() bool {
		_, status := s.external(name)
		c := meta.FindStatusCondition(status.Conditions, meshv1alpha1.ExternalServiceTLSEnforced)
		return c != nil && c.Status == want && strings.Contains(c.Message, text)
	})
}

// TestExternalSecrets: a service that asks for a certificate is reached with what is in a
// Secret, by the agent and through an egress. Its values go to the nodes that begin the TLS
// alone; without them nothing is reached, and the status says why.
func TestExternalSecrets(t *testing.T) {
	l, err := net.Listen("tcp", "127.96.89.1:0")
	if err != nil {
		t.Skip("this system has one loopback address only")
	}
	l.Close()
	private, s := startPrivate(t), startSite(t, "a", "127.96.89.0/24", catest.New(t, "corp root", nil, nil))
	cert, key := private.pair(t, private.clients, "client")
	from := func(value string) *meshv1alpha1.DataSource {
		return &meshv1alpha1.DataSource{SecretRef: &meshv1alpha1.SecretKeyReference{Name: "private-tls", Key: value}}
	}
	s.create(kind.ExternalService, &meshv1alpha1.ExternalService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "private"},
		Spec: meshv1alpha1.ExternalServiceSpec{
			Hosts: []string{"localhost"}, Ports: []meshv1alpha1.ExternalServicePort{{Port: 8443, TargetPort: &private.port}},
			TLS: &meshv1alpha1.ExternalServiceTLS{CACertificates: from("ca"), ClientCertificate: from("cert"), ClientKey: from("key")},
		},
	})
	var n1, egress string // data directories
	s.start("n1", func(c *NodeConfig) { n1 = c.DataDir })
	s.create(kind.Dataplane, &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "client", Annotations: map[string]string{meshv1alpha1.AnnotationMachineID: t.Name()}},
		Spec:       meshv1alpha1.DataplaneSpec{NodeName: "n1", Addresses: []string{"127.0.0.1"}},
	})
	at, _ := s.external("private")
	s.enforces("private", metav1.ConditionFalse, "there is no Secret private-tls")
	if err := echoed(at); err == nil {
		t.Error("the service is reached without the Secret")
	}
	s.create(kind.Secret, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "private-tls"},
		Data:       map[string][]byte{"ca": catest.PEM(private.roots), "cert": cert, "key": key},
	})
	var last error
	defer func() {
		if t.Failed() {
			t.Log("last:", last)
		}
	}()
	reached := func() bool { last = echoed(at); return last == nil }
	testkit.Eventually(t, "the service is reached by the agent", reached)
	s.enforces("private", metav1.ConditionTrue, "Secrets")

	before := *private.serial.Load()
	renewed, renewedKey := private.pair(t, private.clients, "client")
	s.editSecret(func(data map[string][]byte) { data["cert"], data["key"] = renewed, renewedKey })
	testkit.Eventually(t, "the renewed certificate is shown", func() bool { return reached() && *private.serial.Load() != before })

	s.editSecret(func(data map[string][]byte) { data["ca"] = catest.PEM(private.clients) })
	testkit.Eventually(t, "another authority's server is refused", func() bool { return echoed(at) != nil })
	s.editSecret(func(data map[string][]byte) { data["ca"] = []byte("junk") })
	s.enforces("private", metav1.ConditionFalse, "spec.tls.caCertificates")
	s.editSecret(func(data map[string][]byte) { data["ca"] = catest.PEM(private.roots) })
	testkit.Eventually(t, "the service is reached again", reached)
	onDisk(t, n1, renewedKey, true)

	s.editMesh("an egress", func(spec *meshv1alpha1.MeshSpec) { spec.Routing = &meshv1alpha1.MeshRouting{ZoneEgress: new(true)} })
	s.start("egress-1", func(c *NodeConfig) {
		egress = c.DataDir
		c.Gateway = &GatewayConfig{Egress: true, Address: netip.MustParseAddr("127.0.0.1")}
	})
	testkit.Eventually(t, "the service is reached through the egress", func() bool { return hasFile(egress) && reached() })
	testkit.Eventually(t, "the agent no longer has the key", func() bool { return !hasFile(n1) })
	onDisk(t, egress, renewedKey, true)
	onDisk(t, n1, renewedKey, false)
}

// fileOf what an agent keeps of Secrets, in its data directory.
func fileOf(dir string) string { return filepath.Join(dir, "node", "identities", "external-tls.json") }

func hasFile(dir string) bool {
	_, err := os.Stat(fileOf(dir))
	return err == nil
}

// onDisk: an agent has a key in that file, if it has it, and nowhere else.
func onDisk(t *testing.T, dir string, key []byte, want bool) {
	t.Helper()
	line := bytes.Split(key, []byte("\n"))[1] // of the PEM
	found := false
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(data, line) {
			return err
		}
		found = true
		if filepath.Dir(path) != filepath.Dir(fileOf(dir)) { // it may be being written
			t.Errorf("the key is in %s", path)
		}
		return nil
	})
	if err != nil || found != want {
		t.Errorf("the key is on disk: %v, want %v; %v", found, want, err)
	}
}

// TestNeedsConcern: nodes ask again where a change may concern what they need, and that is not
// for each status.
func TestNeedsConcern(t *testing.T) {
	client := resourcetest.New(kind.All()...)
	tables := catalog.New(catalog.Config{Client: client, Descriptors: kind.All()})
	sub := tables.Subscribe(catalog.ExternalServices, catalog.Dataplanes, catalog.Namespaces, catalog.Meshes)
	defer sub.Close()
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { defer close(done); _ = tables.Run(ctx) }()
	defer func() { cancel(); <-done }()
	if _, err := sub.Next(ctx); err != nil { // nothing is there
		t.Fatal(err)
	}
	n := &needs{tables: tables}
	check := func(what string, want bool, object resource.Object) {
		t.Helper()
		client.Seed(object)
		d, err := sub.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got := n.concerns(&d); got != want {
			t.Errorf("%s: nodes ask again: %t, want %t", what, got, want)
		}
	}
	dp := workloadOf("one", "", "192.0.2.1")
	check("nothing is in Secrets", false, dp)
	e := &meshv1alpha1.ExternalService{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bank", Generation: 1}}
	check("a service", true, e)
	e = e.DeepCopy()
	e.Generation, e.Spec.TLS = 2, &meshv1alpha1.ExternalServiceTLS{
		CACertificates: &meshv1alpha1.DataSource{SecretRef: &meshv1alpha1.SecretKeyReference{Name: "roots"}},
	}
	check("its TLS", true, e)
	e = e.DeepCopy()
	e.Status.VirtualIPs = []string{"192.0.2.9"}
	check("its status", false, e)
	dp = dp.DeepCopy()
	dp.Status.Conditions = []metav1.Condition{{Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue}}
	check("the status of a workload", false, dp)
	dp = dp.DeepCopy()
	dp.Spec.NodeName = "n2"
	check("its node", true, dp)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	check("a namespace", true, ns)
	ns = ns.DeepCopy()
	ns.Annotations = map[string]string{"example.com/owner": "us"}
	check("its annotation", false, ns)
}
