package outbound

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// identities have one certificate, or an error.
type identities struct {
	svid *mesh.SVID
	err  error
	held bool
}

func (i *identities) Of(Connection, string) (*mesh.SVID, error) { return i.svid, i.err }
func (i *identities) Admits(Connection, string) error           { return i.err }
func (i *identities) Trust() *mesh.Trust                        { t, _ := mesh.NewTrust(); return t }
func (i *identities) Holds(string, string) bool                 { return i.held }

func issued(t *testing.T) *mesh.SVID {
	t.Helper()
	domain, err := mesh.DomainOf("default", "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := mesh.Workload(domain, "shop", "client")
	if err != nil {
		t.Fatal(err)
	}
	ca := catest.New(t, "root", nil, nil)
	key, err := authority.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Sign(&x509.Certificate{URIs: []*url.URL{id.URL()}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)}, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	svid, err := mesh.NewSVID("default", []*x509.Certificate{leaf}, key)
	if err != nil {
		t.Fatal(err)
	}
	return svid
}

var (
	web     = proxy.ServiceName{Namespace: "shop", Name: "web"}
	virtual = netip.MustParseAddrPort("10.96.0.7:80")
	client  = netip.MustParseAddrPort("10.1.0.5:40000")
)

func remote() *sites.Remote {
	return &sites.Remote{
		Service: web, Mesh: "default", Ports: []sites.RemotePort{{Name: "http", Number: 80, SNI: "web.sni"}},
		Sites: []sites.Site{
			{Name: "b", Instances: 6, Ports: []uint16{80}, Ingresses: []sites.Gateway{
				{Name: "b1", Host: "10.2.0.1", Port: 10001}, {Name: "b2", Host: "10.2.0.2", Port: 10001}}},
			{Name: "c", Instances: 3, Ports: []uint16{80}, Ingresses: []sites.Gateway{{Name: "c1", Host: "c.example", Port: 443}}},
			{Name: "d", Instances: 9, Ports: []uint16{81}, Ingresses: []sites.Gateway{{Name: "d1", Host: "10.4.0.1", Port: 1}}},
		},
	}
}

func update(r *sites.Remote) node.Update {
	return node.Update{
		Update: proxy.Update{Services: map[proxy.ServiceName]*proxy.Service{
			web: {Name: web, ClusterIPs: []netip.Addr{virtual.Addr()}, Ports: []proxy.Port{{Name: "http", Port: 80}}},
		}},
		Remotes: map[proxy.ServiceName]*sites.Remote{web: r},
	}
}

func newRouter(t *testing.T, i *identities) *Router {
	t.Helper()
	c := tunnel.NewClient(tunnel.Config{})
	t.Cleanup(c.Close)
	return New(Config{
		Node: "n1", Identities: i, Client: c, Site: func() string { return "a" },
		Lookup: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("10.3.0.1")}, nil
		},
	})
}

func TestRoute(t *testing.T) {
	i := &identities{svid: issued(t), held: true}
	r := newRouter(t, i)
	r.Apply(update(remote()))
	r.hosts.Resolve(t.Context(), "c.example")
	route, err := r.Route(t.Context(), client, virtual)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint32{}
	for _, p := range route.Peers {
		if p.Role != tunnel.RoleIngress {
			t.Errorf("%+v", p)
		}
		got[p.Site+" "+p.Address.String()] = p.Weight
	}
	want := map[string]uint32{"b 10.2.0.1:10001": 300, "b 10.2.0.2:10001": 300, "c 10.3.0.1:443": 300}
	if len(got) != len(want) {
		t.Errorf("peers %v, want %v", got, want)
	}
	for p, weight := range want {
		if got[p] != weight {
			t.Errorf("peers %v, want %v", got, want)
		}
	}
	if route.SNI != "web.sni" || route.Stream.Node != "n1" || route.Stream.Identity != i.svid.ID.String() {
		t.Errorf("%+v", route)
	}

	planned := remote().WithSplits(func(string) *sites.Split { return &sites.Split{Here: 9, Sites: map[string]uint32{"b": 4}} })
	r.Apply(update(planned))
	if route, err = r.Route(t.Context(), client, virtual); err != nil {
		t.Fatal(err)
	}
	want = map[string]uint32{"b 10.2.0.1:10001": 200, "b 10.2.0.2:10001": 200, "c 10.3.0.1:443": 1}
	for _, p := range route.Peers {
		if at := p.Site + " " + p.Address.String(); p.Weight != want[at] || len(route.Peers) != len(want) {
			t.Errorf("by the plan %s has weight %d, want %d", at, p.Weight, want[at])
		}
	}

	only := remote()
	only.EgressOnly, only.Egresses = true, []sites.Gateway{{Name: "e", Host: "10.1.0.9", Port: 10002}}
	r.Apply(update(only))
	if route, err = r.Route(t.Context(), client, virtual); err != nil || len(route.Peers) != 1 || !route.EgressOnly ||
		route.Peers[0].Role != tunnel.RoleEgress || route.Peers[0].Site != "a" {
		t.Errorf("%+v %v", route, err)
	}
	if b, ok := r.Beyond("web.sni"); !ok || b.Mesh != "default" || len(b.Ingresses) != 3 || b.External != nil {
		t.Errorf("an egress: %+v %v", b, ok)
	}

	refused := func(reason frame.Reason) {
		t.Helper()
		_, err := r.Route(t.Context(), client, virtual)
		var failure *tunnel.OpenError
		if !errors.As(err, &failure) || failure.Reason != reason {
			t.Errorf("%v, want %s", err, reason)
		}
	}
	outside := &sites.Remote{
		Service: web, Mesh: "default", Ports: []sites.RemotePort{{Name: "http", Number: 80, SNI: "pay.sni", Target: 443}},
		External: &sites.External{Places: []sites.Place{{Host: "pay.example"}}},
	}
	r.Apply(update(outside))
	if route, err = r.Route(t.Context(), client, virtual); err != nil || route.Connect == nil || len(route.Peers) != 0 || route.SNI != "pay.sni" {
		t.Errorf("an external service: %+v %v", route, err)
	}
	if b, ok := r.Beyond("pay.sni"); !ok || b.External == nil || b.External.Targets[0].Port != 443 {
		t.Errorf("an external service at an egress: %+v %v", b, ok)
	}
	i.err = errors.New("none")
	refused(frame.Unauthorized)
	outside.EgressOnly = true
	r.Apply(update(outside))
	refused(frame.Unauthorized)
	r.Apply(update(remote()))
	refused(frame.Unauthorized)
	r.Apply(update(nil))
	refused(frame.NoRoute)
}

// TestGatewaysByNameAndAddressCountOnce: the share of a site does not depend on how often
// the address of one ingress is advertised, and in which form.
func TestGatewaysByNameAndAddressCountOnce(t *testing.T) {
	r := newRouter(t, &identities{svid: issued(t), held: true})
	twice := remote()
	twice.Sites[0].Ingresses = []sites.Gateway{
		{Name: "c1", Host: "10.3.0.1", Port: 443}, {Name: "c2", Host: "c.example", Port: 443}, {Name: "c3", Host: "::ffff:10.3.0.1", Port: 443},
	}
	r.Apply(update(twice))
	r.hosts.Resolve(t.Context(), "c.example")
	route, err := r.Route(t.Context(), client, virtual)
	if err != nil {
		t.Fatal(err)
	}
	weight := 0
	for _, p := range route.Peers {
		if p.Site == "b" {
			weight += int(p.Weight)
		}
	}
	if weight != 600 || len(route.Peers) != 2 {
		t.Errorf("peers %+v, want one of site b with the weight of its 6 instances", route.Peers)
	}
}

// TestReplacedCertificatesAreDropped: what was used and is held no more is retired once.
func TestReplacedCertificatesAreDropped(t *testing.T) {
	i := &identities{svid: issued(t), held: true}
	r := newRouter(t, i)
	r.Apply(update(remote()))
	if _, err := r.Route(t.Context(), client, virtual); err != nil {
		t.Fatal(err)
	}
	r.retire()
	if len(r.used) != 1 {
		t.Error("a certificate in use is dropped")
	}
	i.held = false
	r.retire()
	if len(r.used) != 0 {
		t.Error("a certificate that was replaced is kept")
	}
}

type fromAddress struct {
	net.Conn
	addr netip.AddrPort
}

func (c fromAddress) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.addr) }

// TestAnnouncements: a connection of the mode is known by its announcement, whichever comes
// first; another one is refused.
func TestAnnouncements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Router{arrival: newArrivals()}
		from := netip.MustParseAddrPort("127.0.0.1:5000")
		c := proxy.Redirected{From: from, Client: client, Destination: virtual}
		check := func(what string) {
			t.Helper()
			gotClient, destination, err := r.Announced(fromAddress{addr: from})
			if err != nil || gotClient != client || destination != virtual {
				t.Errorf("%s: %v %v %v", what, gotClient, destination, err)
			}
		}
		r.Announce(c)
		check("announced before")
		go func() { time.Sleep(announceTimeout / 2); r.Announce(c) }()
		check("announced later")
		if _, _, err := r.Announced(fromAddress{addr: from}); !errors.Is(err, errNotAnnounced) {
			t.Errorf("twice: %v", err)
		}
		for port := range uint16(maxArrived + 10) {
			r.Announce(proxy.Redirected{From: netip.AddrPortFrom(from.Addr(), 1+port)})
		}
		if len(r.arrival.arrived) != maxArrived || len(r.arrival.order) != maxArrived {
			t.Errorf("%d and %d are kept", len(r.arrival.arrived), len(r.arrival.order))
		}
	})
}

// TestNamesOfMeshesAreRouted: the addresses of a name below "mesh" lead to other sites, on the
// Service's port and on 80, while these offer its Service.
func TestNamesOfMeshesAreRouted(t *testing.T) {
	name := proxy.ServiceName{Namespace: "default", Name: "web_shop_svc_8080.mesh"}
	address := netip.MustParseAddr("240.0.0.1")
	offered := remote()
	offered.Ports[0].Number, offered.Sites[0].Ports = 8080, []uint16{8080}
	r := newRouter(t, &identities{svid: issued(t), held: true})
	u := update(offered)
	u.VirtualIPs = map[proxy.ServiceName]*proxy.VirtualIP{name: {Name: name, Addresses: []netip.Addr{address}, Service: web, Port: 8080}}
	r.Apply(u)
	routed := func(when string, want bool, ports ...uint16) {
		t.Helper()
		for _, p := range ports {
			route, err := r.Route(t.Context(), client, netip.AddrPortFrom(address, p))
			if (err == nil) != want || want && route.SNI != "web.sni" {
				t.Errorf("%s: port %d: %+v %v", when, p, route, err)
			}
		}
	}
	routed("offered", true, 80, 8080)
	routed("another port", false, 81)
	r.Apply(node.Update{Update: proxy.Update{VirtualIPs: map[proxy.ServiceName]*proxy.VirtualIP{name: nil}}})
	routed("the name is gone", false, 80, 8080)
	r.Apply(node.Update{Update: proxy.Update{VirtualIPs: u.VirtualIPs}})
	routed("it is back", true, 80, 8080)
	r.Apply(node.Update{Remotes: map[proxy.ServiceName]*sites.Remote{web: nil}})
	routed("no longer offered", false, 80, 8080)
}
