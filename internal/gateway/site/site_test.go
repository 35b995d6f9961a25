package site

import (
	"context"
	"crypto/x509"
	"net/netip"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	authoritypkg "github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

const sni = "web.sni"

var web = proxy.ServiceName{Namespace: "shop", Name: "web"}

// rig has meshes "shop" and "other", each with one authority.
type rig struct {
	t     *testing.T
	trust *mesh.Trust
	roots map[string]*catest.CA
}

func newRig(t *testing.T, exportedTo ...string) *rig {
	t.Helper()
	r := &rig{t: t, roots: map[string]*catest.CA{}}
	var bundles []mesh.Bundle
	for _, name := range []string{"shop", "other"} {
		r.roots[name] = catest.New(t, name, nil, nil)
		b := mesh.Bundle{Mesh: name, Domain: r.domain(name), Roots: []*x509.Certificate{r.roots[name].Cert}}
		if name == "shop" {
			b.ExportedTo = exportedTo
		}
		bundles = append(bundles, b)
	}
	var err error
	if r.trust, err = mesh.NewTrust(bundles...); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) domain(name string) mesh.Domain {
	d, err := mesh.DomainOf(name, "")
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

func (r *rig) Own(string) (*mesh.SVID, error) { return nil, context.Canceled }
func (r *rig) Trust() *mesh.Trust             { return r.trust }
func (r *rig) Zone() string                   { return "a" }

// chain of a workload of a mesh, that a zone has signed; empty: the root has.
func (r *rig) chain(meshName, zone string) []*x509.Certificate {
	r.t.Helper()
	id, err := mesh.Workload(r.domain(meshName), "shop", "client")
	if err != nil {
		r.t.Fatal(err)
	}
	key, err := authoritypkg.NewKey()
	if err != nil {
		r.t.Fatal(err)
	}
	ca, chain := r.roots[meshName], []*x509.Certificate(nil)
	if zone != "" {
		ca = catest.New(r.t, zone, ca, func(c *x509.Certificate) { c.Subject.OrganizationalUnit = []string{mesh.ZoneUnit(zone)} })
		chain = append(chain, ca.Cert)
	}
	leaf, err := ca.Sign(&x509.Certificate{
		URIs: []*url.URL{id.URL()}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}, key.Public())
	if err != nil {
		r.t.Fatal(err)
	}
	return append([]*x509.Certificate{leaf}, chain...)
}

func offering(toSites ...string) node.Update {
	return node.Update{Offers: map[proxy.ServiceName]*sites.Offer{web: {
		Service: web, Mesh: "shop", ToSites: toSites, Ports: []sites.OfferedPort{{Name: "http", SNI: sni, ProxyProtocol: true}},
	}}}
}

func TestWhoMayConnect(t *testing.T) {
	for name, tc := range map[string]struct {
		exportedTo []string
		toSites    []string
		mesh, zone string
		sni        string
		ok         bool
	}{
		"its mesh":                         {mesh: "shop", zone: "b", sni: sni, ok: true},
		"another mesh":                     {mesh: "other", zone: "b", sni: sni},
		"a mesh that it is exported to":    {exportedTo: []string{"other"}, mesh: "other", zone: "b", sni: sni, ok: true},
		"another service":                  {mesh: "shop", zone: "b", sni: "x"},
		"a site that may":                  {toSites: []string{"b"}, mesh: "shop", zone: "b", sni: sni, ok: true},
		"a site that may not":              {toSites: []string{"c"}, mesh: "shop", zone: "b", sni: sni},
		"the own site":                     {toSites: []string{"c"}, mesh: "shop", zone: "a", sni: sni, ok: true},
		"an authority without sites below": {toSites: []string{"c"}, mesh: "shop", sni: sni, ok: true},
	} {
		r := newRig(t, tc.exportedTo...)
		i := NewIngress(r, nil)
		i.SetOffers(offering(tc.toSites...))
		if err := i.VerifyPeer(tc.sni, r.chain(tc.mesh, tc.zone)); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStreams(t *testing.T) {
	i := NewIngress(newRig(t), nil)
	i.SetOffers(offering())
	const workload, foreign = "spiffe://shop.mesh/ns/shop/sa/client", "spiffe://other.mesh/ns/shop/sa/client"
	peer := server.Peer{Identity: workload, SNI: sni}
	if err := i.AuthorizeStream(peer, frame.Stream{Identity: workload}); err != nil {
		t.Error(err)
	}
	if i.AuthorizeStream(peer, frame.Stream{Identity: foreign}) == nil || i.AuthorizeStream(peer, frame.Stream{Identity: "x"}) == nil {
		t.Error("an identity of another mesh is let in")
	}
	egress := server.Peer{Identity: "spiffe://shop.mesh/zone/b/egress", SNI: sni}
	if !i.MayAssert(egress, workload) || i.MayAssert(egress, "spiffe://shop.mesh/zone/b/ingress") || i.MayAssert(peer, workload) {
		t.Error("an egress speaks for workloads, and nobody else for anybody")
	}
	i.SetOffers(node.Update{Offers: map[proxy.ServiceName]*sites.Offer{web: nil}})
	if i.AuthorizeStream(peer, frame.Stream{Identity: workload}) == nil {
		t.Error("the service is not offered any more")
	}
}

func TestEndpoints(t *testing.T) {
	i := NewIngress(newRig(t), nil)
	i.SetOffers(offering())
	target := func(addr string, weight uint32) proxy.Target {
		return proxy.Target{Addr: netip.MustParseAddrPort(addr), Weight: weight}
	}
	state := &proxy.PortState{IPv4: proxy.Choice{
		Cluster:  []proxy.Target{target("10.0.0.1:80", 1), target("10.0.0.2:80", 3)},
		Fallback: []proxy.Target{target("10.0.0.3:80", 1)},
	}}
	name := proxy.PortName{ServiceName: web, Port: "http"}
	if err := i.Apply(t.Context(), []proxy.Change{{Name: name, State: state}}); err != nil {
		t.Fatal(err)
	}
	first := map[string]int{}
	const n = 4000
	for range n {
		route, ok := i.Route(sni)
		if !ok || !route.ProxyProtocol || len(route.Endpoints) != 3 || route.Endpoints[2] != state.IPv4.Fallback[0].Addr {
			t.Fatalf("%+v %v", route, ok)
		}
		if sorted := slices.Clone(route.Endpoints); len(slices.Compact(sorted)) != 3 {
			t.Fatalf("%v", route.Endpoints)
		}
		first[route.Endpoints[0].String()]++
	}
	if share := float64(first["10.0.0.2:80"]) / n; share < 0.7 || share > 0.8 {
		t.Errorf("first %v: want three quarters at the endpoint of weight 3", first)
	}
	if err := i.Apply(t.Context(), []proxy.Change{{Name: name}}); err != nil {
		t.Fatal(err)
	}
	if route, ok := i.Route(sni); !ok || len(route.Endpoints) != 0 {
		t.Errorf("without endpoints: %+v %v", route, ok)
	}
	if _, ok := i.Route("x"); ok {
		t.Error("another service is served")
	}
}

// TestPassthrough: only what proxies offer, only to endpoints that all have proxies, and only where
// any site may.
func TestPassthrough(t *testing.T) {
	for name, tc := range map[string]struct {
		proxied   bool
		toSites   []string
		sni       string
		protocols []string
		ok        bool
	}{
		"a proxy":                   {proxied: true, sni: sni, protocols: []string{"proxima"}, ok: true},
		"an endpoint without proxy": {sni: sni, protocols: []string{"proxima"}},
		"another protocol":          {proxied: true, sni: sni, protocols: []string{"h2"}},
		"a proxy's beside another":  {proxied: true, sni: sni, protocols: []string{"h2", "proxima"}},
		"no protocol":               {proxied: true, sni: sni},
		"another service":           {proxied: true, sni: "x", protocols: []string{"proxima"}},
		"for some sites":            {proxied: true, toSites: []string{"b"}, sni: sni, protocols: []string{"proxima"}},
	} {
		i := NewIngress(newRig(t), nil)
		u := offering(tc.toSites...)
		u.Offers[web].Proxied, u.Offers[web].ServiceAccounts = tc.proxied, []string{"web"}
		i.SetOffers(u)
		if route, ok := i.PassthroughRoute(tc.sni, tc.protocols); ok != tc.ok || route.TLS != nil {
			t.Errorf("%s: %v, TLS %v", name, ok, route.TLS != nil)
		}
		if route, ok := i.Route(sni); !ok || (route.TLS != nil) != tc.proxied {
			t.Errorf("%s: TLS to endpoints: %v %v", name, ok, route.TLS != nil)
		}
	}
}
