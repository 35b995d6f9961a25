package mesh_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

// pki is a mesh with its root and one zone.
type pki struct {
	mesh string
	root *authority.Root
	zone *authority.ZoneSigner
}

type noKeeper struct{}

func (noKeeper) Load(context.Context) ([]byte, error) { return nil, nil }
func (noKeeper) Save(context.Context, []byte) error   { return nil }

func newPKI(t testing.TB, name string) *pki {
	t.Helper()
	d := domain(t, name+".mesh")
	root, err := authority.NewRoot(name, d, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	zone, err := authority.NewZoneSigner(t.Context(), authority.ZoneConfig{
		Mesh: name, Domain: d, Zone: "east", Issuer: root.ForZone("east", time.Now), Keeper: noKeeper{},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = zone.Run(ctx) }()
	for deadline := time.Now().Add(10 * time.Second); zone.NotAfter().IsZero() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
	return &pki{name, root, zone}
}

func (p *pki) bundle(exportedTo ...string) mesh.Bundle {
	return mesh.Bundle{Mesh: p.mesh, Domain: p.root.Domain(), Roots: []*x509.Certificate{p.root.Certificate()}, ExportedTo: exportedTo}
}

func (p *pki) issue(t testing.TB, namespace, account string) *mesh.SVID {
	t.Helper()
	id := workload(t, p.mesh+".mesh", namespace, account)
	key, err := authority.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := authority.NewCSR(id, key)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := p.zone.Sign(t.Context(), authority.Request{ID: id, CSR: csr})
	if err != nil {
		t.Fatal(err)
	}
	svid, err := mesh.NewSVID(p.mesh, chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return svid
}

func newTrust(t testing.TB, bundles ...mesh.Bundle) *mesh.Trust {
	t.Helper()
	trust, err := mesh.NewTrust(bundles...)
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

func TestTrustByMesh(t *testing.T) {
	a, b, c := newPKI(t, "a"), newPKI(t, "b"), newPKI(t, "c")
	trust := newTrust(t, a.bundle("b"), b.bundle(), c.bundle())
	web := map[string]*mesh.SVID{"a": a.issue(t, "shop", "web"), "b": b.issue(t, "shop", "web"), "c": c.issue(t, "shop", "web")}
	now := time.Now()
	for server, welcome := range map[string][]string{"a": {"a", "b"}, "b": {"b"}, "c": {"c"}, "none": nil} {
		for client, svid := range web {
			peer, err := trust.Client(server, svid.Chain, now)
			if (err == nil) != slices.Contains(welcome, client) {
				t.Errorf("client of mesh %s at a server of mesh %s: %v", client, server, err)
			}
			if err == nil && (peer.Mesh != client || peer.IssuerZone != "east" || peer.Serial != svid.Serial() || peer.ID != svid.ID) {
				t.Errorf("peer %+v", peer)
			}
		}
	}
	if got := trust.ClientDomains("a"); len(got) != 2 || got[0].Name() != "a.mesh" || got[1].Name() != "b.mesh" {
		t.Errorf("domains %v", got)
	}
	if len(trust.ClientDomains("none")) != 0 {
		t.Error("domains of no mesh")
	}
	// Life: a leaf is refused before and after it.
	for _, at := range []time.Time{now.Add(-time.Hour), now.Add(25 * time.Hour)} {
		if _, err := trust.Verify(web["a"].Chain, at); err == nil {
			t.Errorf("verified at %s", at)
		}
	}
	// Without the intermediate there is no chain, and without roots none is verified.
	if _, err := trust.Verify(web["a"].Chain[:1], now); err == nil {
		t.Error("a leaf without its intermediate")
	}
	if _, err := trust.Verify(nil, now); err == nil {
		t.Error("nothing is verified")
	}
	if _, err := newTrust(t, mesh.Bundle{Mesh: "a", Domain: a.root.Domain()}).Verify(web["a"].Chain, now); err == nil {
		t.Error("a domain without roots")
	}
	if _, err := mesh.NewTrust(a.bundle(), mesh.Bundle{Mesh: "other", Domain: a.root.Domain()}); err == nil {
		t.Error("two meshes of one trust domain")
	}
	if _, err := mesh.NewTrust(a.bundle(), a.bundle()); err == nil {
		t.Error("a mesh twice")
	}
}

// TestForeignRoot: the root of one mesh signs no identities of another, even if it has
// no name constraints: each domain is verified by its own roots.
func TestForeignRoot(t *testing.T) {
	a := newPKI(t, "a")
	ca := catest.New(t, "free", nil, nil)
	free := ca.Cert
	trust := newTrust(t, a.bundle(), mesh.Bundle{Mesh: "b", Domain: domain(t, "b.mesh"), Roots: []*x509.Certificate{free}})
	leaf := func(edit func(*x509.Certificate)) []*x509.Certificate {
		l := &x509.Certificate{
			NotBefore: free.NotBefore, NotAfter: free.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
			URIs: []*url.URL{workload(t, "b.mesh", "shop", "web").URL()},
		}
		edit(l)
		c, err := ca.Sign(l, ca.Key.Public())
		if err != nil {
			t.Fatal(err)
		}
		return []*x509.Certificate{c}
	}
	good := leaf(func(*x509.Certificate) {})
	if _, err := trust.Verify(good, time.Now()); err != nil {
		t.Errorf("its own domain: %v", err)
	}
	for what, edit := range map[string]func(*x509.Certificate){
		"an identity of mesh a":     func(c *x509.Certificate) { c.URIs = []*url.URL{workload(t, "a.mesh", "shop", "web").URL()} },
		"an unknown domain":         func(c *x509.Certificate) { c.URIs = []*url.URL{workload(t, "x.mesh", "shop", "web").URL()} },
		"two URI names":             func(c *x509.Certificate) { c.URIs = append(c.URIs, workload(t, "a.mesh", "shop", "web").URL()) },
		"no URI name":               func(c *x509.Certificate) { c.URIs = nil },
		"an authority":              func(c *x509.Certificate) { c.IsCA = true },
		"another path":              func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "spiffe", Host: "b.mesh", Path: "/admin"}} },
		"servers only":              func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] },
		"not for digital signature": func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment },
	} {
		if p, err := trust.Verify(leaf(edit), time.Now()); err == nil {
			t.Errorf("%s: verified as %s", what, p.ID)
		}
	}
}

// handshake of a client and a server; the error of either.
func handshake(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer conn.Close()
		s := tls.Server(conn, server)
		err = s.Handshake()
		if err == nil {
			_, err = s.Write([]byte{1})
		}
		served <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	c := tls.Client(conn, client)
	_, clientErr := io.ReadFull(c, make([]byte, 1))
	return errors.Join(clientErr, <-served)
}

// TestTLS: a server by mesh and a client by the accounts of the service, resumed
// connections included.
func TestTLS(t *testing.T) {
	a, b, c := newPKI(t, "a"), newPKI(t, "b"), newPKI(t, "c")
	all := newTrust(t, a.bundle("b"), b.bundle(), c.bundle())
	trust := func() *mesh.Trust { return all }
	service := mesh.Service{Mesh: "a", Namespace: "shop", Name: "web", Port: "80"}
	index, _, err := mesh.NewIndex([]mesh.Service{service})
	if err != nil {
		t.Fatal(err)
	}
	meshOf := func(name string) (string, bool) {
		s, ok := index.Find(name)
		return s.Mesh, ok
	}
	server := a.issue(t, "shop", "web")
	serverConfig := &tls.Config{
		Certificates: []tls.Certificate{server.TLS()}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13,
		VerifyConnection: mesh.VerifyClient(trust, meshOf, nil),
	}
	sni, _ := mesh.SNI(service)
	connect := func(client *mesh.SVID, want mesh.Matcher, name string, cache tls.ClientSessionCache) error {
		config := &tls.Config{
			ServerName: name, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, ClientSessionCache: cache,
			VerifyConnection: mesh.VerifyServer(trust, want, nil),
		}
		if client != nil {
			config.Certificates = []tls.Certificate{client.TLS()}
		}
		return handshake(t, serverConfig, config)
	}
	good := mesh.Exactly(server.ID)
	for _, tc := range []struct {
		what   string
		client *mesh.SVID
		want   mesh.Matcher
		sni    string
		ok     bool
	}{
		{"own mesh", a.issue(t, "shop", "client"), good, sni, true},
		{"exported to", b.issue(t, "shop", "client"), good, sni, true},
		{"not exported to", c.issue(t, "shop", "client"), good, sni, false},
		{"no certificate", nil, good, sni, false},
		{"unknown server name", a.issue(t, "shop", "client"), good, "other", false},
		{"no server name", a.issue(t, "shop", "client"), good, "", false},
		{"another service's account", a.issue(t, "shop", "client"), mesh.Exactly(workload(t, "a.mesh", "shop", "api")), sni, false},
		{"same account of another mesh", a.issue(t, "shop", "client"), mesh.Exactly(workload(t, "b.mesh", "shop", "web")), sni, false},
		{"nothing is acceptable", a.issue(t, "shop", "client"), mesh.Matcher{}, sni, false},
	} {
		if err := connect(tc.client, tc.want, tc.sni, nil); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.what, err)
		}
	}
	// A session that was begun while mesh b was exported to is refused afterwards.
	cache, client := tls.NewLRUClientSessionCache(4), b.issue(t, "shop", "client")
	if err := connect(client, good, sni, cache); err != nil {
		t.Fatal(err)
	}
	if _, ok := cache.Get(sni); !ok {
		t.Fatal("no session to resume")
	}
	all = newTrust(t, a.bundle(), b.bundle(), c.bundle())
	if err := connect(client, good, sni, cache); err == nil || !strings.Contains(err.Error(), "not exported") {
		t.Errorf("resumed after the export ended: %v", err)
	}
}
