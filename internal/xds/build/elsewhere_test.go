package build

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// shown is the localities of endpoints: PRIORITY ZONE/SITE=WEIGHT(ENDPOINT*WEIGHT:MATCH …).
func shown(c *endpoint.ClusterLoadAssignment) string {
	var out []string
	for _, l := range c.Endpoints {
		var all []string
		for _, e := range l.LbEndpoints {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			text := fmt.Sprintf("%s*%d", at.GetAddress(), e.GetLoadBalancingWeight().GetValue())
			for _, name := range []string{matchMTLS, matchTunnel} {
				if v := e.GetMetadata().GetFilterMetadata()["envoy.transport_socket_match"].GetFields()[name]; v != nil && (v.GetBoolValue() || v.GetStringValue() != "") {
					text += ":" + name + strings.TrimPrefix(v.GetStringValue(), "ingress|")
				}
			}
			all = append(all, text)
		}
		out = append(out, fmt.Sprintf("%d %s/%s=%d(%s)", l.Priority, l.Locality.Zone, l.Locality.SubZone, l.LoadBalancingWeight.GetValue(), strings.Join(all, " ")))
	}
	return strings.Join(out, " ")
}

// TestBeyondThisSite: other sites are the last priority, or have the share that a plan or their
// instances give them, without gaps.
func TestBeyondThisSite(t *testing.T) {
	target := func(addr string, zone locality.Zone, weight uint32) proxy.Target {
		return proxy.Target{Addr: netip.MustParseAddrPort(addr), Zone: zone, Weight: weight}
	}
	gateway := func(addr string) []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort(addr)} }
	here := []proxy.Target{target("10.0.0.1:80", "z1", 1), target("10.0.0.2:80", "z2", 1)}
	b := way{site: "b", weight: 2, instances: 2, gateways: gateway("10.1.0.1:1"), proxied: true}
	c := way{site: "c", weight: 6, instances: 6, gateways: gateway("10.2.0.1:1")}
	unused := c
	unused.weight = 0
	const own = "z1/a=5000(10.0.0.1*1) %[1]d z2/a=5000(10.0.0.2*1)"
	for name, tc := range map[string]struct {
		choice proxy.Choice
		beyond *beyond
		want   string
	}{
		"nothing beyond": {proxy.Choice{Cluster: here}, nil, "0 " + fmt.Sprintf(own, 0)},
		"no gateway":     {proxy.Choice{Cluster: here}, &beyond{remote: &sites.Remote{}}, "0 " + fmt.Sprintf(own, 0)},
		"last": {proxy.Choice{Cluster: here[:1], Fallback: here[1:]}, &beyond{remote: &sites.Remote{}, ways: []way{b, c}},
			"0 z1/a=10000(10.0.0.1*1) 1 z2/a=10000(10.0.0.2*1) 2 site:*/b=2501(10.1.0.1*2:mtls) 2 site:*/c=7499(10.2.0.1*6:tunnelc)"},
		"nothing here": {proxy.Choice{Why: proxy.NoEndpoint}, &beyond{remote: &sites.Remote{}, ways: []way{b}}, "0 site:*/b=10000(10.1.0.1*2:mtls)"},
		"terminating here": {proxy.Choice{Cluster: here[:1], Why: proxy.TerminatingFallback}, &beyond{remote: &sites.Remote{}, ways: []way{b}},
			"0 site:*/b=10000(10.1.0.1*2:mtls) 1 z1/a=10000(10.0.0.1*1)"},
		"all sites alike": {proxy.Choice{Cluster: here}, &beyond{remote: &sites.Remote{Spread: true}, ways: []way{b, c}},
			"0 z1/a=1001(10.0.0.1*1) 0 z2/a=1001(10.0.0.2*1) 0 site:*/b=2000(10.1.0.1*2:mtls) 0 site:*/c=5998(10.2.0.1*6:tunnelc)"},
		"a plan": {proxy.Choice{Cluster: here}, &beyond{remote: &sites.Remote{}, split: proxy.Split{Here: 6, Away: 2}, ways: []way{b, unused}},
			"0 z1/a=3750(10.0.0.1*1) 0 z2/a=3750(10.0.0.2*1) 0 site:*/b=2500(10.1.0.1*2:mtls) 1 site:*/c=10000(10.2.0.1*6:tunnelc)"},
		"a plan with nothing here": {proxy.Choice{Cluster: here}, &beyond{remote: &sites.Remote{}, split: proxy.Split{Away: 2}, ways: []way{b, unused}},
			"0 site:*/b=10000(10.1.0.1*2:mtls) 1 " + fmt.Sprintf(own, 1) + " 2 site:*/c=10000(10.2.0.1*6:tunnelc)"},
	} {
		got := shown(loadAssignment(&assignment{name: "x", site: "a", choice: &tc.choice, beyond: tc.beyond, live: func(netip.AddrPort) bool { return false }}))
		if got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, tc.want)
		}
	}
}

// TestApportion: the parts sum to the whole, whatever their number and size.
func TestApportion(t *testing.T) {
	for _, parts := range [][]uint64{{1}, {1, 1, 1}, {1, 1 << 62}, {1 << 61, 1 << 61, 1 << 61}, {0, 5}} {
		sum := uint32(0)
		for i, share := range apportion(parts) {
			sum += share
			if share == 0 {
				t.Errorf("%v: part %d has nothing", parts, i)
			}
		}
		if sum != totalWeight {
			t.Errorf("%v: %d in all", parts, sum)
		}
	}
}

// named are addresses of names.
type named map[string][]netip.Addr

func (n named) Want([]string)                      {}
func (n named) Addresses(name string) []netip.Addr { return n[name] }

func importOf(zone string, edit func(*mcs.AvailableService)) *mcs.ServiceExport {
	e := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-of-" + zone, Labels: map[string]string{
		meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone, meshv1alpha1.LabelZone: zone, meshv1alpha1.LabelDisplayName: "web",
	}}}
	e.Status.Available = &mcs.AvailableService{
		Mesh: "default", Type: mcs.ClusterSetIP, Instances: 2, ExportTime: metav1.Unix(100, 0), Ports: []mcs.ServicePort{{Port: 80}},
	}
	if edit != nil {
		edit(e.Status.Available)
	}
	return e
}

func gatewayObject(zone, host string) *meshv1alpha1.ZoneIngress {
	return &meshv1alpha1.ZoneIngress{
		ObjectMeta: metav1.ObjectMeta{Name: "i-of-" + zone, Labels: map[string]string{
			meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone, meshv1alpha1.LabelZone: zone, meshv1alpha1.LabelDisplayName: "i",
		}},
		Spec: meshv1alpha1.ZoneGatewaySpec{Zone: zone, Address: host, Port: 10001},
	}
}

// TestOtherSites: a cluster follows what other sites offer, with TLS as each of them needs it;
// without certificates, and for gRPC, the node's data path serves.
func TestOtherSites(t *testing.T) {
	s := testService("derived-web", "10.96.0.9")
	s.Labels = map[string]string{mcs.LabelServiceName: "web"}
	mtls := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: meshv1alpha1.MeshSpec{MTLS: &meshv1alpha1.MeshMTLS{
		EnabledBackend: "b", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "b"}},
	}}}
	w := newWorld(t, s, mtls, testDataplane("a", "10.0.0.1", nil), testDataplane("g", "10.0.0.2", nil), importOf("b", nil), importOf("c", func(a *mcs.AvailableService) {
		a.Proxied, a.ServiceAccounts = true, []string{"web"}
	}), gatewayObject("b", "10.1.0.1"), gatewayObject("c", "c.example"))
	hosts := named{}
	w.builder.config.Hosts = hosts
	c := w.connect("a", Sidecar)
	const name = "shop/derived-web:80"
	c.Config.Source.Want(delta.Ref{Type: ClusterType, Name: name})
	c.Config.Source.Want(delta.Ref{Type: EndpointType, Name: name})
	sockets := func() (out []string) {
		for _, m := range w.builder.classCluster(c, name).GetTransportSocketMatches() {
			out = append(out, m.Name)
		}
		return out
	}
	if got := sockets(); !slices.Equal(got, []string{"ingress|b", "mtls", "plain"}) {
		t.Errorf("sockets %v", got)
	}
	if w.builder.classCluster(c, name).GetTransportSocket() == nil {
		t.Error("an endpoint that no match is for gets plain bytes")
	}
	of := ServicePort{catalog.Key{Namespace: "shop", Name: "derived-web"}, 80}
	endpoints := func(want string) {
		t.Helper()
		m := w.builder.zoneEndpoints(c, name)
		if got := shown(m); got != want {
			t.Errorf("endpoints %s, want %s", got, want)
		}
	}
	endpoints("0 site:*/b=10000(10.1.0.1*2:tunnelb)")
	hosts["c.example"] = []netip.Addr{netip.MustParseAddr("10.2.0.1")}
	was := w.builder.zones[zoneKey{}].sequence
	w.builder.SetHosts()
	if w.builder.zones[zoneKey{}].sequence == was {
		t.Error("endpoints are as before, although a name has another address")
	}
	endpoints("0 site:*/b=5000(10.1.0.1*2:tunnelb) 0 site:*/c=5000(10.2.0.1*2:mtls)")
	if got := sansOf(t, w.builder.classCluster(c, name)); !slices.Contains(got, "spiffe://default.mesh/ns/shop/sa/web") {
		t.Errorf("the proxies of the other site are not accepted: %v", got)
	}
	w.seed(importOf("c", func(a *mcs.AvailableService) { a.Instances = 0 }))
	endpoints("0 site:*/b=10000(10.1.0.1*2:tunnelb)")

	g := w.connect("g", GRPC)
	g.Config.Source.Want(delta.Ref{Type: ClusterType, Name: name})
	if body := w.builder.classCluster(g, name); body.GetType() != cluster.Cluster_EDS || body.GetTransportSocket() != nil {
		t.Errorf("gRPC has %v", body)
	}
	program := &endpoint.ClusterLoadAssignment{}
	if err := proto.Unmarshal(w.builder.makeEndpoints(zoneKey{grpc: true}, of, view{}).body, program); err != nil {
		t.Fatal(err)
	}
	if got := shown(program); got != "0 /local=10000(10.96.0.9*1)" {
		t.Errorf("gRPC: %s", got)
	}
	w.seed(&meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	if body := w.builder.classCluster(c, name); body.GetType() != cluster.Cluster_STATIC {
		t.Errorf("without certificates: %v", body)
	}
}

// zoneEndpoints of a connection, as they would be made now.
func (b *Builder) zoneEndpoints(c *Connection, name string) *endpoint.ClusterLoadAssignment {
	u := b.zone(zoneKey{zone: c.proxy.zone.zone}).units[delta.Ref{Type: EndpointType, Name: name}]
	out := &endpoint.ClusterLoadAssignment{}
	if err := proto.Unmarshal(u.make().body, out); err != nil {
		panic(err)
	}
	return out
}

// sansOf the TLS with proxies of endpoints.
func sansOf(t *testing.T, c *cluster.Cluster) (out []string) {
	t.Helper()
	for _, m := range c.GetTransportSocketMatches() {
		if m.Name != matchMTLS {
			continue
		}
		var tls tlsv3.UpstreamTlsContext
		if err := m.TransportSocket.GetTypedConfig().UnmarshalTo(&tls); err != nil {
			t.Fatal(err)
		}
		for _, san := range tls.GetCommonTlsContext().GetCombinedValidationContext().GetDefaultValidationContext().GetMatchTypedSubjectAltNames() {
			out = append(out, san.GetMatcher().GetExact())
		}
	}
	return out
}
