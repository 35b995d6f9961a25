package app

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// meshPlane is a standalone control plane, with an agent of node n1.
type meshPlane struct {
	t      *testing.T
	cp     *standalone
	client resource.Client // over HTTP, as an administrator
	stop   func()          // the control plane
	node   NodeConfig
}

func startMeshPlane(t *testing.T) *meshPlane {
	t.Helper()
	return startMeshPlaneOf(t, "", "10.96.0.0/24")
}

// startMeshPlaneOf a site, with a range of virtual addresses.
func startMeshPlaneOf(t *testing.T, site, cidr string) *meshPlane {
	t.Helper()
	dir := t.TempDir()
	var detector resourcetest.Detector
	ctx, cancel := context.WithCancel(context.Background())
	cp, err := newStandalone(ctx, ControlPlaneConfig{
		Wrap:  detector.Wrap,
		Store: "memory", DataDir: dir, APIAddress: "127.0.0.1:0", GRPCPort: testkit.FreePort(t), MachineID: t.Name(),
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}, Zone: site,
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- run(ctx, cp.election, append(cp.components(), announce(func(Serving) { close(ready) }, cp.serving())))
	}()
	p := &meshPlane{t: t, cp: cp}
	p.stop = func() {
		if p.cp == nil {
			return
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		p.cp.close()
		p.cp = nil
		if detector.Check(t) == 0 {
			t.Error("no object was shared")
		}
	}
	t.Cleanup(p.stop)
	p.await(ready, "the control plane")
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if p.client, err = kubeclient.New(cfg, kind.All()); err != nil {
		t.Fatal(err)
	}
	token, _, err := cp.storage.tokens.Create(ctx, identity.Node, "n1", time.Hour, "test")
	if err != nil {
		t.Fatal(err)
	}
	p.node = NodeConfig{
		Server: reachable(cp.api.address), Token: token.Reveal(), Name: "n1", Mode: "userspace", DataDir: t.TempDir(),
		SpiffeSocket: SpiffeSocketAuto, MachineID: t.Name(), certificateSpread: -1,
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("127.96.0.0/16")},
	}
	// Root's socket would be outside of the test's folder.
	p.node.SpiffeSocket = filepath.Join(p.node.DataDir, "spiffe.sock")
	return p
}

func (p *meshPlane) await(done <-chan struct{}, what string) {
	p.t.Helper()
	select {
	case <-done:
	case <-time.After(testkit.Timeout):
		p.t.Fatalf("%s does not become ready", what)
	}
}

// startAgent runs the agent, with this process as workload web-1, until stop is called.
func (p *meshPlane) startAgent() (stop func()) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- RunNode(ctx, p.node, func(Serving) { close(ready) }) }()
	p.await(ready, "the agent")
	attested, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		// It ends with the agent.
		_ = (&local.Client{DataDir: p.node.DataDir}).Attest(ctx, "default", "web-1", "", func(bool) { close(attested) })
	}()
	p.await(attested, "the attestation")
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			p.t.Error(err)
		}
		<-ended
	}
	p.t.Cleanup(stop)
	return stop
}

// mesh writes the mTLS of the default mesh.
func (p *meshPlane) mesh(m *meshv1alpha1.MeshMTLS) error {
	for {
		obj, err := p.client.Get(p.t.Context(), kind.Mesh, resource.Key{Name: "default"})
		if err != nil {
			return err
		}
		obj.(*meshv1alpha1.Mesh).Spec.MTLS = m
		_, err = p.client.Update(p.t.Context(), kind.Mesh, obj)
		if err == nil || !strings.Contains(err.Error(), "the object has been modified") {
			return err
		}
	}
}

// awaitStable waits until a backend is the only one that is trusted.
func (p *meshPlane) awaitStable(backend string) (id string) {
	p.t.Helper()
	var status meshv1alpha1.MeshStatus
	testkit.Eventually(p.t, "backend "+backend+" is the only one", func() bool {
		obj, err := p.client.Get(p.t.Context(), kind.Mesh, resource.Key{Name: "default"})
		if err != nil {
			return false
		}
		status = obj.(*meshv1alpha1.Mesh).Status
		return status.MTLS != nil && status.MTLS.Phase == "Stable" && len(status.MTLS.Authorities) == 1 &&
			status.MTLS.Authorities[0].Backend == backend && status.MTLS.Authorities[0].Issuing && status.MTLS.Authorities[0].ID != id
	})
	return status.MTLS.Authorities[0].ID
}

func (p *meshPlane) register() {
	p.t.Helper()
	_, err := p.client.Create(p.t.Context(), kind.Dataplane, &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"},
		Spec:       meshv1alpha1.DataplaneSpec{NodeName: "n1", Addresses: []string{"10.0.0.1"}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// source is a client of the Workload API.
func (p *meshPlane) source() *workloadapi.X509Source {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), testkit.Timeout)
	defer cancel()
	s, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(workloadapi.WithAddr("unix://"+p.node.SpiffeSocket)))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = s.Close() })
	return s
}

func builtin(enabled string, names ...string) *meshv1alpha1.MeshMTLS {
	m := &meshv1alpha1.MeshMTLS{EnabledBackend: enabled}
	for _, n := range names {
		m.Backends = append(m.Backends, meshv1alpha1.MeshCertificateBackend{Name: n})
	}
	return m
}

func needsWorkloadAPI(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("the Workload API is served on Linux only")
	}
}

// TestWorkloadIdentity: a workload gets its certificate over the Workload API, the root is
// replaced under connections, and a restart of the agent without a control plane keeps
// everything.
func TestWorkloadIdentity(t *testing.T) {
	needsWorkloadAPI(t)
	p := startMeshPlane(t)
	if err := p.mesh(builtin("ca-1", "ca-1")); err != nil {
		t.Fatal(err)
	}
	first := p.awaitStable("ca-1")
	stopAgent := p.startAgent()
	p.register()
	source := p.source()
	svid, err := source.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	if svid.ID.String() != "spiffe://default.mesh/ns/default/sa/default" {
		t.Errorf("identity %s", svid.ID)
	}
	c := newConversation(t, source)
	if err := p.mesh(builtin("ca-2", "ca-1", "ca-2")); err != nil {
		t.Fatal(err)
	}
	c.during(func() {
		if second := p.awaitStable("ca-2"); second == first {
			t.Error("the same root")
		}
	})
	svid, err = source.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := source.GetX509BundleForTrustDomain(svid.ID.TrustDomain())
	if err != nil || len(bundle.X509Authorities()) != 1 || authority.ID(bundle.X509Authorities()[0]) == first {
		t.Errorf("roots of the old authority are trusted still: %v", err)
	}
	if names, err := p.cp.identities.records.Names(t.Context(), "roots/"); err != nil || len(names) != 1 || !strings.Contains(names[0], "/ca-2/") {
		t.Errorf("keys %q %v: want that of the new root alone", names, err)
	}
	_ = source.Close()
	p.stop()
	stopAgent()
	p.startAgent()
	again, err := p.source().GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	if again.Certificates[0].SerialNumber.Cmp(svid.Certificates[0].SerialNumber) != 0 {
		t.Error("another certificate after a restart without a control plane")
	}
}

// conversation is a server and clients of mutual TLS with the certificates of a source.
type conversation struct {
	t      *testing.T
	config *tls.Config
	server net.Listener
	open   net.Conn
}

func newConversation(t *testing.T, s *workloadapi.X509Source) *conversation {
	t.Helper()
	verify := func(cs tls.ConnectionState) error {
		svid, err := s.GetX509SVID()
		if err != nil {
			return err
		}
		bundle, err := s.GetX509BundleForTrustDomain(svid.ID.TrustDomain())
		if err != nil {
			return err
		}
		roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
		for _, c := range bundle.X509Authorities() {
			roots.AddCert(c)
		}
		for _, c := range cs.PeerCertificates[1:] {
			intermediates.AddCert(c)
		}
		_, err = cs.PeerCertificates[0].Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		return err
	}
	own := func() (*tls.Certificate, error) {
		svid, err := s.GetX509SVID()
		if err != nil {
			return nil, err
		}
		out := &tls.Certificate{PrivateKey: svid.PrivateKey}
		for _, c := range svid.Certificates {
			out.Certificate = append(out.Certificate, c.Raw)
		}
		return out, nil
	}
	c := &conversation{t: t, config: &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true, VerifyConnection: verify,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() },
	}}
	l, err := tls.Listen("tcp", "127.0.0.1:0", c.config)
	if err != nil {
		t.Fatal(err)
	}
	c.server = l
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				lines := bufio.NewScanner(conn)
				for lines.Scan() {
					if _, err := fmt.Fprintln(conn, lines.Text()); err != nil {
						return
					}
				}
			}()
		}
	}()
	if c.open, err = tls.Dial("tcp", l.Addr().String(), c.config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.open.Close() })
	return c
}

// say something on a connection and wait for its echo.
func say(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(testkit.Timeout)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(conn, "hello"); err != nil {
		return err
	}
	_, err := bufio.NewReader(conn).ReadString('\n')
	return err
}

// during a change, connections are made and the open one is used: none fails.
func (c *conversation) during(change func()) {
	c.t.Helper()
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { done <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			conn, err := tls.Dial("tcp", c.server.Addr().String(), c.config)
			if err == nil {
				err = say(conn)
				conn.Close()
			}
			if err != nil {
				c.t.Errorf("connection %d: %v", n, err)
				return
			}
			if err := say(c.open); err != nil {
				c.t.Errorf("the open connection: %v", err)
				return
			}
			n++
		}
	}()
	change()
	close(stop)
	if n := <-done; n == 0 {
		c.t.Error("no connection was made meanwhile")
	}
}

// TestProvidedAuthority: an authority in a GlobalSecret signs; another certificate below
// its root is used at once, another root by overlap, and one that cannot sign not at all.
func TestProvidedAuthority(t *testing.T) {
	needsWorkloadAPI(t)
	p := startMeshPlane(t)
	provided := builtin("corp", "ca-1", "corp")
	provided.Backends[1].Type = meshv1alpha1.BackendProvided
	ref := func(key string) meshv1alpha1.DataSource {
		return meshv1alpha1.DataSource{SecretRef: &meshv1alpha1.SecretKeyReference{Name: "corp", Key: key}}
	}
	provided.Backends[1].Provided = &meshv1alpha1.MeshProvidedAuthority{Certificate: ref("tls.crt"), Key: ref("tls.key")}
	if err := p.mesh(builtin("ca-1", "ca-1")); err != nil {
		t.Fatal(err)
	}
	p.awaitStable("ca-1")
	if err := p.mesh(provided); err == nil || !strings.Contains(err.Error(), "cannot sign now") || !strings.Contains(err.Error(), "no GlobalSecret corp") {
		t.Fatalf("a backend without a key is enabled: %v", err)
	}
	root := catest.New(t, "corp root", nil, nil)
	write := func(signs, root *catest.CA) {
		t.Helper()
		secret := &meshv1alpha1.GlobalSecret{
			ObjectMeta: metav1.ObjectMeta{Name: "corp"},
			Data:       map[string][]byte{"tls.crt": catest.PEM(signs, root), "tls.key": signs.KeyPEM(t)},
		}
		_, err := p.client.Create(t.Context(), kind.GlobalSecret, secret)
		if err != nil {
			_, err = p.client.Update(t.Context(), kind.GlobalSecret, secret)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	middle := catest.New(t, "corp 1", root, nil)
	write(middle, root)
	testkit.Eventually(t, "the backend can sign", func() bool { return p.mesh(provided) == nil })
	p.startAgent()
	p.register()
	if id := p.awaitStable("corp"); id != authority.ID(root.Cert) {
		t.Errorf("authority %s", id)
	}
	source := p.source()
	signedBy := func(ca *catest.CA) func() bool {
		return func() bool {
			i, ok := p.cp.identities.authorities.Issuer("default")
			if !ok || authority.Probe(t.Context(), i.Signer, i.Domain, time.Now()) != nil {
				return false
			}
			svid, err := source.GetX509SVID()
			return err == nil && svid.Certificates[0].CheckSignatureFrom(ca.Cert) == nil
		}
	}
	testkit.Eventually(t, "the provided authority signs", signedBy(middle))
	other := catest.New(t, "other root", nil, nil)
	second := catest.New(t, "other 1", other, nil)
	c := newConversation(t, source)
	c.during(func() {
		write(second, other)
		testkit.Eventually(t, "the new root signs", signedBy(second))
	})
	testkit.Eventually(t, "the old root is not trusted any more", func() bool {
		return p.awaitStable("corp") == authority.ID(other.Cert)
	})
}
