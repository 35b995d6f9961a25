package app

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/gateway/egress"
	"github.com/proxima-mesh/proxima/internal/gateway/ingress"
	"github.com/proxima-mesh/proxima/internal/gateway/outbound"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/gateway/site"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/userspace"
	sitetable "github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// sharesNet is the data path of several sites in one process, without control planes: from
// a client through the mode of a node of site a, its tunnel, and the ingresses of other
// sites to their endpoints. What a control plane would send follows from objects.
type sharesNet struct {
	t     *testing.T
	root  *catest.CA
	trust *mesh.Trust
	delta catalog.Delta
	// plan of site a for the service; nil: there is none.
	plan *sitetable.Split
	// slices of site a's own endpoints.
	slices map[proxy.SliceName]*proxy.Slice
	// counts are connections by the site of their endpoint.
	mu     sync.Mutex
	counts map[string]int
	// accepted are connections to endpoints, however they ended.
	accepted atomic.Int64
}

var (
	sharedName    = proxy.ServiceName{Namespace: "shop", Name: "web"}
	sharedDerived = proxy.ServiceName{Namespace: "shop", Name: "derived-web"}
)

func newSharesNet(t *testing.T) *sharesNet {
	t.Helper()
	n := &sharesNet{t: t, root: catest.New(t, "root", nil, nil), counts: map[string]int{}, slices: map[proxy.SliceName]*proxy.Slice{}}
	var err error
	n.trust, err = mesh.NewTrust(mesh.Bundle{Mesh: "default", Domain: n.domain(), Roots: []*x509.Certificate{n.root.Cert}})
	if err != nil {
		t.Fatal(err)
	}
	n.delta.Services = append(n.delta.Services, catalog.Change[*corev1.Service]{
		Key: catalog.Key{Namespace: "shop", Name: sharedDerived.Name}, New: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: sharedDerived.Name, Labels: map[string]string{mcs.LabelServiceName: "web"}},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8080}}},
		},
	})
	return n
}

func (n *sharesNet) domain() mesh.Domain {
	d, err := mesh.DomainOf("default", "")
	if err != nil {
		n.t.Fatal(err)
	}
	return d
}

// sharesIdentities of one participant, as site.Identities and outbound.Identities.
type sharesIdentities struct {
	trust *mesh.Trust
	svid  *mesh.SVID
	site  string
}

func (i *sharesIdentities) Own(string) (*mesh.SVID, error)                     { return i.svid, nil }
func (i *sharesIdentities) Of(outbound.Connection, string) (*mesh.SVID, error) { return i.svid, nil }
func (i *sharesIdentities) Admits(outbound.Connection, string) error           { return nil }
func (i *sharesIdentities) Trust() *mesh.Trust                                 { return i.trust }
func (i *sharesIdentities) Zone() string                                       { return i.site }
func (i *sharesIdentities) Holds(string, string) bool                          { return true }
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (n *sharesNet) identities(id mesh.ID, site string) *sharesIdentities {
	n.t.Helper()
	return n.issue(n.root, "default", id, site, time.Now().Add(time.Hour))
}

// issue a certificate in a mesh for a participant of a site.
func (n *sharesNet) issue(ca *catest.CA, meshName string, id mesh.ID, site string, notAfter time.Time) *sharesIdentities {
	n.t.Helper()
	key := must[crypto.Signer](n.t)(authority.NewKey())
	leaf := must[*x509.Certificate](n.t)(ca.Sign(&x509.Certificate{
		URIs: []*url.URL{id.URL()}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}, key.Public()))
	return &sharesIdentities{n.trust, must[*mesh.SVID](n.t)(mesh.NewSVID(meshName, []*x509.Certificate{leaf}, key)), site}
}

// endpoint answers each connection's first byte with the end, and counts it for a site.
func (n *sharesNet) endpoint(site string) netip.AddrPort {
	n.t.Helper()
	l := must[net.Listener](n.t)(net.Listen("tcp", "127.0.0.1:0"))
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.accepted.Add(1)
			wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(testkit.Timeout))
				if _, err := io.Copy(c, c); err != nil {
					return
				}
				n.mu.Lock()
				n.counts[site]++
				n.mu.Unlock()
			})
		}
	})
	n.t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// local adds endpoints of site a itself.
func (n *sharesNet) local(instances int) {
	n.t.Helper()
	for i := range instances {
		at := n.endpoint("a")
		name := proxy.SliceName{Namespace: "shop", Name: fmt.Sprintf("derived-web-%d", i)}
		n.slices[name] = &proxy.Slice{
			Name: name, Service: sharedDerived, Ports: []proxy.SlicePort{{Protocol: proxy.TCP, Port: at.Port()}},
			Endpoints: []proxy.SliceEndpoint{{Addr: at.Addr(), Ready: true, Serving: true}},
		}
	}
}

// remote adds a site with so many instances, and so many ZoneIngress objects that advertise
// the address of one ingress.
func (n *sharesNet) remote(zone string, instances int32, objects int) {
	n.t.Helper()
	copied := map[string]string{
		meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone, meshv1alpha1.LabelZone: zone, meshv1alpha1.LabelDisplayName: "web",
	}
	n.delta.ServiceExports = append(n.delta.ServiceExports, exportOf("web-of-"+zone, copied, instances))

	at, _ := n.ingress(zone, n.identities(must[mesh.ID](n.t)(mesh.Ingress(n.domain(), zone)), zone))
	for i := range objects {
		// Behind one address, as that of a load balancer, though each has one of its own.
		o := &meshv1alpha1.ZoneIngress{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("i%d-%s", i, zone), Labels: copied},
			Spec: meshv1alpha1.ZoneGatewaySpec{
				Address: fmt.Sprintf("192.0.2.%d", i+1), Port: 10001, AdvertisedAddress: at.Addr().String(), AdvertisedPort: int32(at.Port()),
			},
		}
		if i%2 == 1 { // the same address by a name
			o.Spec.AdvertisedAddress = "lb.example"
		}
		n.delta.ZoneIngresses = append(n.delta.ZoneIngresses, catalog.Change[*meshv1alpha1.ZoneIngress]{Key: catalog.Key{Name: o.Name}, New: o})
	}
}

// exportOf the service, by the name and labels of its object.
func exportOf(name string, labels map[string]string, instances int32) catalog.Change[*mcs.ServiceExport] {
	return catalog.Change[*mcs.ServiceExport]{Key: catalog.Key{Namespace: "shop", Name: name}, New: &mcs.ServiceExport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: labels},
		Status: mcs.ServiceExportStatus{Available: &mcs.AvailableService{
			Mesh: "default", Type: mcs.ClusterSetIP, Instances: instances, ExportTime: metav1.NewTime(time.Unix(100, 0)),
			Ports: []mcs.ServicePort{{Port: 8080}},
		}},
	}}
}

// ingress of a site that offers the service, and the server name of its port.
func (n *sharesNet) ingress(zone string, ids *sharesIdentities) (at netip.AddrPort, serverName string) {
	n.t.Helper()
	table := sitetable.NewTable(zone)
	table.Apply(&catalog.Delta{
		Services: []catalog.Change[*corev1.Service]{{Key: catalog.Key{Namespace: "shop", Name: "web"}, New: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8080}}},
		}}},
		ServiceExports: []catalog.Change[*mcs.ServiceExport]{exportOf("web", nil, 1)},
	})
	offer := must[*sitetable.Offer](n.t)(table.Offer(sharedName))
	in := site.NewIngress(ids, nil)
	in.SetOffers(node.Update{Offers: map[proxy.ServiceName]*sitetable.Offer{sharedName: offer}})
	err := in.Apply(n.t.Context(), []proxy.Change{{
		Name:  proxy.PortName{ServiceName: sharedName},
		State: &proxy.PortState{IPv4: proxy.Choice{Cluster: []proxy.Target{{Addr: n.endpoint(zone), Weight: 1}}}},
	}})
	if err != nil {
		n.t.Fatal(err)
	}
	return n.serve("ingress", in, in.Certificate, must[*ingress.Handler](n.t)(ingress.New(ingress.Config{Routes: in}))), offer.Ports[0].SNI
}

func (n *sharesNet) mesh(routing meshv1alpha1.MeshRouting) {
	n.delta.Meshes = append(n.delta.Meshes, catalog.Change[*meshv1alpha1.Mesh]{Key: catalog.Key{Name: "default"}, New: &meshv1alpha1.Mesh{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: meshv1alpha1.MeshSpec{Routing: &routing},
	}})
}

// serve a gateway until the test ends.
func (n *sharesNet) serve(
	role string, a server.Authority, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), h server.Handler,
) netip.AddrPort {
	n.t.Helper()
	l := must[net.Listener](n.t)(net.Listen("tcp", "127.0.0.1:0"))
	s := must[*server.Server](n.t)(server.New(server.Config{Role: role, Authority: a, Handler: h, GetCertificate: certificate}))
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	n.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Timeout)
		defer cancel()
		s.Shutdown(ctx)
		if err := <-served; err != nil {
			n.t.Error(err)
		}
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// router to other sites, until the test ends.
func (n *sharesNet) router(cfg outbound.Config) *outbound.Router {
	n.t.Helper()
	cfg.Client = tunnel.NewClient(tunnel.Config{Site: "a"})
	n.t.Cleanup(cfg.Client.Close)
	cfg.Site = func() string { return "a" }
	resolved := make(chan struct{}, 64)
	cfg.Lookup = func(context.Context, string) ([]netip.Addr, error) {
		defer func() { resolved <- struct{}{} }()
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	r := outbound.New(cfg)
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(n.t.Context()) })
	n.t.Cleanup(running.Wait) // the test's context has ended then
	return r
}

// egress of site a.
func (n *sharesNet) egress() {
	n.t.Helper()
	ids := n.identities(must[mesh.ID](n.t)(mesh.Egress(n.domain(), "a")), "a")
	r := n.router(outbound.Config{})
	client := tunnel.NewClient(tunnel.Config{Site: "a"})
	n.t.Cleanup(client.Close)
	e := site.NewEgress(ids, r)
	at := n.serve("egress", e, e.Certificate, must[*egress.Handler](n.t)(egress.New(egress.Config{Targets: e, Tunnel: client, Credentials: e.Credentials})))
	o := &meshv1alpha1.ZoneEgress{ObjectMeta: metav1.ObjectMeta{Name: "e"}}
	o.Spec.Address, o.Spec.Port = at.Addr().String(), int32(at.Port())
	n.delta.ZoneEgresses = append(n.delta.ZoneEgresses, catalog.Change[*meshv1alpha1.ZoneEgress]{Key: catalog.Key{Name: "e"}, New: o})
	n.mesh(meshv1alpha1.MeshRouting{ZoneEgress: new(true), LocalityAware: n.localityAware()})
	r.Apply(n.update(netip.Addr{}))
}

// localityAware of the mesh, as set before.
func (n *sharesNet) localityAware() *bool {
	for _, m := range n.delta.Meshes {
		return m.New.Spec.Routing.LocalityAware
	}
	return nil
}

// update of the view of site a.
func (n *sharesNet) update(virtual netip.Addr) node.Update {
	n.t.Helper()
	table := sitetable.NewTable("a")
	table.Apply(&n.delta)
	remote := must[*sitetable.Remote](n.t)(table.Remote(sharedDerived))
	if remote == nil {
		n.t.Fatal("no other site offers the service")
	}
	if n.plan != nil {
		remote = remote.WithSplits(func(string) *sitetable.Split { return n.plan })
	}
	service := &proxy.Service{Name: sharedDerived, Ports: []proxy.Port{{Port: 8080, Protocol: proxy.TCP}}}
	if virtual.IsValid() {
		service.ClusterIPs = []netip.Addr{virtual}
	}
	return node.Update{
		Update: proxy.Update{
			Reset: true, Services: map[proxy.ServiceName]*proxy.Service{sharedDerived: service},
			Slices:    n.slices,
			Elsewhere: map[proxy.ServiceName]*proxy.Elsewhere{sharedDerived: remote.Elsewhere()},
		},
		Remotes: map[proxy.ServiceName]*sitetable.Remote{sharedDerived: remote},
	}
}

// node of site a, and the address of the service there.
func (n *sharesNet) node(virtual netip.Addr) netip.AddrPort {
	n.t.Helper()
	ids := n.identities(must[mesh.ID](n.t)(mesh.Workload(n.domain(), "shop", "client")), "a")
	r := n.router(outbound.Config{Node: "n1", Identities: ids})
	update := n.update(virtual)
	r.Apply(update)
	mode := must[*userspace.Mode](n.t)(userspace.New(userspace.Options{NodePortAddresses: []netip.Addr{}}))
	client := tunnel.NewClient(tunnel.Config{Site: "a"})
	s := tunnel.NewServer(tunnel.ServerConfig{Client: client, Router: r, Origin: r.Announced})
	l := must[net.Listener](n.t)(net.Listen("tcp", "127.0.0.1:0"))
	at := []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}
	mode.AnnounceTo(at, r.Announce)
	agent := must[*node.Agent](n.t)(node.New(node.Options{Mode: mode, Facts: node.Facts{Name: "n1", Tunnel: at}}))
	agent.Apply(update.Update)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(n.t.Context(), l) })
	running.Go(func() { _ = agent.Run(n.t.Context()) })
	n.t.Cleanup(func() {
		running.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Timeout)
		defer cancel()
		s.Close(ctx)
		client.Close()
		if err := mode.Close(ctx); err != nil {
			n.t.Error(err)
		}
	})
	select {
	case <-agent.Ready():
	case <-time.After(testkit.Timeout):
		n.t.Fatal("the agent does not become ready")
	}
	return netip.AddrPortFrom(virtual, 8080)
}

// TestSharesAcrossSites counts connections: sites share traffic by their instances,
// however many ingresses they have, also through an egress.
func TestSharesAcrossSites(t *testing.T) {
	calls, within := 500, 10.5 // points: five standard deviations
	if os.Getenv("PROXIMA_SOAK") != "" {
		calls, within = 30_000, 2
	}
	for i, tc := range []struct {
		name string
		make func(*sharesNet)
		want map[string]float64 // percent
	}{
		{"two sites, 2:1", func(n *sharesNet) { n.remote("b", 2, 1); n.remote("c", 1, 1) }, map[string]float64{"b": 200. / 3, "c": 100. / 3}},
		{"ingresses behind one address", func(n *sharesNet) { n.remote("b", 1, 4); n.remote("c", 2, 1) },
			map[string]float64{"b": 100. / 3, "c": 200. / 3}},
		{"own endpoints first", func(n *sharesNet) { n.local(1); n.remote("b", 9, 1) }, map[string]float64{"a": 100}},
		{"locality off", func(n *sharesNet) {
			n.mesh(meshv1alpha1.MeshRouting{LocalityAware: new(bool)})
			n.local(2)
			n.remote("b", 1, 1)
		}, map[string]float64{"a": 200. / 3, "b": 100. / 3}},
		{"a plan", func(n *sharesNet) {
			n.plan = &sitetable.Split{Here: 5, Sites: map[string]uint32{"b": 2, "c": 3}}
			n.local(2)
			n.remote("b", 9, 2)
			n.remote("c", 1, 1)
		}, map[string]float64{"a": 50, "b": 20, "c": 30}},
		{"an egress", func(n *sharesNet) { n.remote("b", 2, 2); n.remote("c", 1, 1); n.egress() }, map[string]float64{"b": 200. / 3, "c": 100. / 3}},
		{"an egress, locality off", func(n *sharesNet) {
			n.mesh(meshv1alpha1.MeshRouting{LocalityAware: new(bool)})
			n.local(2)
			n.remote("b", 1, 2)
			n.egress()
		}, map[string]float64{"a": 200. / 3, "b": 100. / 3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newSharesNet(t)
			tc.make(n)
			at := n.node(netip.AddrFrom4([4]byte{127, 96, 79, byte(1 + i)}))
			testkit.Eventually(t, "the service is reached", func() bool { return call(at) == nil })
			n.mu.Lock()
			clear(n.counts)
			n.mu.Unlock()
			n.call(at, calls)
			n.mu.Lock()
			defer n.mu.Unlock()
			sum := 0
			for _, of := range n.counts {
				sum += of
			}
			if sum != calls {
				t.Errorf("%d of %d connections arrived", sum, calls)
			}
			for site, count := range n.counts {
				if got := 100 * float64(count) / float64(calls); math.Abs(got-tc.want[site]) > within {
					t.Errorf("site %s: %.1f %% of %d connections, want %.1f", site, got, calls, tc.want[site])
				}
			}
			t.Log(n.counts)
		})
	}
}

// call makes connections, and waits until they have ended.
func (n *sharesNet) call(at netip.AddrPort, calls int) {
	n.t.Helper()
	const callers = 8
	var callersDone sync.WaitGroup
	for k := range callers {
		callersDone.Go(func() {
			for range calls/callers + min(1, max(0, calls%callers-k)) {
				if err := call(at); err != nil {
					n.t.Error(err)
					return
				}
			}
		})
	}
	callersDone.Wait()
}

// call carries a byte both ways, and ends a connection cleanly in both directions.
func call(at netip.AddrPort) error {
	c, err := net.DialTimeout("tcp", at.String(), testkit.Timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testkit.Timeout))
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err == nil && len(got) != 1 {
		err = io.ErrUnexpectedEOF
	}
	return err
}
