package xds_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/gateway/egress"
	"github.com/proxima-mesh/proxima/internal/gateway/ingress"
	"github.com/proxima-mesh/proxima/internal/gateway/outbound"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/gateway/site"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// gatewayOf a site, with an identity of its role.
type gatewayOf struct {
	p    *plane
	site string
	id   func(mesh.Domain, string) (mesh.ID, error)
}

func (g *gatewayOf) Zone() string { return g.site }

func (g *gatewayOf) Trust() *mesh.Trust {
	domain, _ := mesh.DomainOf("default", "")
	trust, err := mesh.NewTrust(mesh.Bundle{Mesh: "default", Domain: domain, Roots: []*x509.Certificate{g.p.ca.Cert}})
	if err != nil {
		panic(err)
	}
	return trust
}

func (g *gatewayOf) Own(string) (*mesh.SVID, error) {
	domain, _ := mesh.DomainOf("default", "")
	id, err := g.id(domain, g.site)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf, err := g.p.ca.Sign(&x509.Certificate{
		URIs: []*url.URL{id.URL()}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, key.Public())
	if err != nil {
		return nil, err
	}
	return &mesh.SVID{ID: id, Chain: []*x509.Certificate{leaf}, Key: key}, nil
}

// serveGateway as the program's own gateways are served.
func serveGateway(t *testing.T, c server.Config) (netip.AddrPort, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	c.Registerer = registry
	s, err := server.New(c)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		s.Shutdown(ctx)
		<-done
	})
	return l.Addr().(*net.TCPAddr).AddrPort(), registry
}

// startIngress of site b.
func startIngress(t *testing.T, p *plane) (*site.Ingress, netip.AddrPort, *prometheus.Registry) {
	t.Helper()
	of := site.NewIngress(&gatewayOf{p, "b", mesh.Ingress}, nil)
	handler, err := ingress.New(ingress.Config{Routes: of})
	if err != nil {
		t.Fatal(err)
	}
	at, registry := serveGateway(t, server.Config{Role: "ingress", Authority: of, Handler: handler, GetCertificate: of.Certificate})
	return of, at, registry
}

// startEgress of this site, which knows the other one as nodes do.
func startEgress(t *testing.T, p *plane) (*outbound.Router, netip.AddrPort, *prometheus.Registry) {
	t.Helper()
	client := tunnel.NewClient(tunnel.Config{})
	t.Cleanup(client.Close)
	router := outbound.New(outbound.Config{Client: client, Site: func() string { return "local" }})
	of := site.NewEgress(&gatewayOf{p, "local", mesh.Egress}, router)
	handler, err := egress.New(egress.Config{Targets: of, Tunnel: client, Credentials: of.Credentials})
	if err != nil {
		t.Fatal(err)
	}
	at, registry := serveGateway(t, server.Config{Role: "egress", Authority: of, Handler: handler, GetCertificate: of.Certificate})
	return router, at, registry
}

// counted is a counter of a gateway, of one value of its label.
func counted(t *testing.T, r *prometheus.Registry, name, value string) (n float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetValue() == value {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

// imported are a Service of site b as this site has it: with its own virtual address.
func imported(edit func(*mcs.AvailableService)) []resource.Object {
	s := service("derived-web", "10.96.0.20", port("web", 80, ""))
	s.Labels, s.Spec.Selector = map[string]string{mcs.LabelServiceName: "web"}, nil
	copied := map[string]string{
		meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone, meshv1alpha1.LabelZone: "b", meshv1alpha1.LabelDisplayName: "web",
	}
	e := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-of-b", Labels: copied}}
	e.Status.Available = &mcs.AvailableService{
		Mesh: "default", Type: mcs.ClusterSetIP, Instances: 2, ExportTime: metav1.NewTime(time.Unix(100, 0)), Ports: []mcs.ServicePort{{Port: 80}},
	}
	if edit != nil {
		edit(e.Status.Available)
	}
	return []resource.Object{s, e}
}

func ingressObject(at netip.AddrPort) *meshv1alpha1.ZoneIngress {
	return &meshv1alpha1.ZoneIngress{
		ObjectMeta: metav1.ObjectMeta{Name: "i1-of-b", Labels: map[string]string{
			meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone, meshv1alpha1.LabelZone: "b", meshv1alpha1.LabelDisplayName: "i1",
		}},
		Spec: meshv1alpha1.ZoneGatewaySpec{Zone: "b", Address: at.Addr().String(), Port: int32(at.Port())},
	}
}

// TestOtherSite: a real Envoy reaches a Service of another site through the program's own gateways.
func TestOtherSite(t *testing.T) {
	plain, secured := application(t, "plain"), application(t, "secured")
	out, inbound := freePort(t), freePort(t)
	client := dataplane("client-1", "127.0.0.1", meshv1alpha1.DataplanePort{Port: inbound, AppProtocol: new("http"), TargetPort: new(secured)})
	client.Spec.Proxy.Outbound = []meshv1alpha1.DataplaneOutbound{{Port: out, Service: "derived-web", ServicePort: 80}}
	p := newPlane(t, append(imported(nil),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "a"}}}, strict("Strict"), client)...)
	in, at, metrics := startIngress(t, p)
	p.seed(ingressObject(at))
	sni, err := mesh.SNI(mesh.Service{Mesh: "default", Namespace: "shop", Name: "web", Port: "80"})
	if err != nil {
		t.Fatal(err)
	}
	web := proxy.ServiceName{Namespace: "shop", Name: "web"}
	offer := func(endpoint int32, proxied bool) { // what site b knows
		to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(endpoint))
		in.SetOffers(node.Update{Offers: map[proxy.ServiceName]*sites.Offer{web: {
			Service: web, Mesh: "default", Ports: []sites.OfferedPort{{Name: "web", SNI: sni}}, Proxied: proxied, ServiceAccounts: []string{"default"},
		}}})
		_ = in.Apply(t.Context(), []proxy.Change{{Name: proxy.PortName{ServiceName: web, Port: "web"}, State: &proxy.PortState{
			IPv4: proxy.Choice{Cluster: []proxy.Target{{Addr: to, Weight: 1}}},
		}}})
	}
	passed := func(r *prometheus.Registry) float64 {
		return counted(t, r, "proxima_gateway_handshakes_total", "passthrough")
	}
	offer(plain, false)
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
		_, stats, _ := envoy.Admin(http.MethodGet, "/clusters?filter=derived")
		t.Fatalf("%s: %q (%v), want %q\n%s", what, got, err, want, stats)
	}
	answers("TLS ends at the ingress", "plain/x")
	if n := passed(metrics); n != 0 {
		t.Errorf("%v connections passed the ingress", n)
	}

	offer(inbound, true)
	answers("the ingress begins TLS with a strict proxy", "secured/x")
	if n := passed(metrics); n != 0 {
		t.Errorf("%v connections passed the ingress", n)
	}

	p.seed(imported(func(a *mcs.AvailableService) { a.Proxied, a.ServiceAccounts = true, []string{"default"} })...)
	envoy.Await("TLS passes the ingress", func() bool {
		_, _, err := get(out, "/x")
		return err == nil && passed(metrics) > 0
	})
	answers("TLS passes the ingress", "secured/x")

	p.seed(imported(func(a *mcs.AvailableService) { a.Proxied, a.ServiceAccounts = true, []string{"other"} })...)
	envoy.Await("a proxy of another service account is refused", func() bool { _, _, err := get(out, "/x"); return err != nil })
	p.seed(imported(func(a *mcs.AvailableService) { a.Proxied, a.ServiceAccounts = true, []string{"default"} })...)
	answers("and accepted again", "secured/x")

	local := application(t, "local")
	own := slice("derived-web", "web", local, "a", "local-1=127.0.0.1")
	p.seed(own)
	answers("an endpoint of this site is preferred", "local/x")
	p.seed(slice("derived-web", "web", freePort(t), "a", "local-1=127.0.0.1"))
	answers("one that does not answer is not", "secured/x")
	own.Endpoints[0].Conditions.Ready, own.Endpoints[0].Conditions.Serving, own.Endpoints[0].Conditions.Terminating = new(false), new(true), new(true)
	p.seed(own)
	answers("nor one that terminates", "secured/x")
	testEgress(t, p, envoy, at, answers, offer, plain, inbound)
	p.seen.none(t)
}

// testEgress: the only way out is the egress of this site.
func testEgress(t *testing.T, p *plane, envoy *envoytest.Proxy, at netip.AddrPort, answers func(what, want string), offer func(int32, bool), plain, inbound int32) {
	m := strict("Strict")
	m.Spec.Routing = &meshv1alpha1.MeshRouting{ZoneEgress: new(true)}
	router, way, metrics := startEgress(t, p)
	remote := &sites.Remote{
		Service: proxy.ServiceName{Namespace: "shop", Name: "derived-web"}, Mesh: "default",
		Sites: []sites.Site{{Name: "b", Instances: 2, Ports: []uint16{80}, Ingresses: []sites.Gateway{{Name: "i1", Host: at.Addr().String(), Port: at.Port()}}}},
	}
	sni, _ := mesh.SNI(mesh.Service{Mesh: "default", Namespace: "shop", Name: "web", Port: "80"})
	remote.Ports = []sites.RemotePort{{Name: "web", Number: 80, SNI: sni}}
	router.Apply(node.Update{Remotes: map[proxy.ServiceName]*sites.Remote{remote.Service: remote}})
	p.seed(m, &meshv1alpha1.ZoneEgress{
		ObjectMeta: metav1.ObjectMeta{Name: "e1"}, Spec: meshv1alpha1.ZoneGatewaySpec{Zone: "local", Address: way.Addr().String(), Port: int32(way.Port())},
	})
	envoy.Await("TLS passes the egress", func() bool {
		_, _, err := get(envoyOut(p), "/x")
		return err == nil && counted(t, metrics, "proxima_gateway_handshakes_total", "passthrough") > 0
	})
	answers("TLS passes the egress and the ingress", "secured/x")
	p.seed(imported(nil)...)
	offer(plain, false)
	answers("TLS ends at the egress", "plain/x")
	offer(inbound, true)
	answers("and is begun with a strict proxy by the ingress", "secured/x")
	if n := counted(t, metrics, "proxima_gateway_handshakes_total", "full"); n == 0 {
		t.Error("no handshake ended at the egress")
	}
}

// envoyOut is the outbound port of client-1.
func envoyOut(p *plane) int32 {
	d, err := p.client.Get(p.t.Context(), kind.Dataplane, resource.Key{Namespace: "shop", Name: "client-1"})
	if err != nil {
		p.t.Fatal(fmt.Errorf("client-1: %w", err))
	}
	return d.(*meshv1alpha1.Dataplane).Spec.Proxy.Outbound[0].Port
}
