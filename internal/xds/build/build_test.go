package build

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

// world is a builder on a catalog.
type world struct {
	t       *testing.T
	client  *resourcetest.Client
	sub     *catalog.Subscription
	builder *Builder
}

func newWorld(t *testing.T, objects ...resource.Object) *world {
	t.Helper()
	w := &world{t: t, client: resourcetest.New(kind.All()...), builder: NewBuilder(Config{
		Site: "local", Ranges: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")} },
	})}
	w.client.Seed(objects...)
	c := catalog.New(catalog.Config{Client: w.client, Descriptors: kind.All()})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(t.Context())
	}()
	t.Cleanup(func() { <-done })
	w.sub = c.Subscribe(Tables()...)
	t.Cleanup(w.sub.Close)
	w.next()
	return w
}

func (w *world) next() {
	w.t.Helper()
	d, err := w.sub.Next(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.builder.Apply(&d, nil)
}

func (w *world) seed(objects ...resource.Object) {
	w.t.Helper()
	w.client.Seed(objects...)
	w.next()
}

func (w *world) connect(name string, v Variant) *Connection {
	w.t.Helper()
	c, err := w.builder.Connect(catalog.Key{Namespace: "shop", Name: name}, v)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// names of a type that a wildcard of the connection has.
func names(c *Connection, typ string) []string {
	s := delta.NewLayered(c.Config)
	defer s.Close()
	if err := s.Step(delta.Request{Type: typ, Subscribe: []string{"*"}}); err != nil {
		panic(err)
	}
	for f, _ := s.Next(time.Time{}); f != nil; f, _ = s.Next(time.Time{}) {
	}
	var out []string
	s.Sent(func(ref delta.Ref, _ string, _ bool) { out = append(out, ref.Name) })
	slices.Sort(out)
	return out
}

func testService(name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip}}
	if ports == nil {
		ports = []corev1.ServicePort{{Name: "http", Port: 80}}
	}
	s.Spec.Ports = ports
	return s
}

func testDataplane(name, address string, annotations map[string]string) *meshv1alpha1.Dataplane {
	return &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Generation: 1, Annotations: annotations},
		Spec:       meshv1alpha1.DataplaneSpec{Addresses: []string{address}, Ports: []meshv1alpha1.DataplanePort{{Port: 8080}}},
	}
}

// TestEagerSet: what a workload declares, and what its service account learns, is in its
// wildcard; other workloads of the class are not concerned; Services are found when they come.
func TestEagerSet(t *testing.T) {
	w := newWorld(t,
		testService("web", "10.96.0.1"), testService("db", "10.96.0.2"),
		testDataplane("a", "10.0.0.1", map[string]string{AnnotationBackends: "web, later:80"}),
		testDataplane("b", "10.0.0.2", nil),
	)
	a, b := w.connect("a", Sidecar), w.connect("b", Sidecar)
	fixed := []string{Blackhole, InPassthrough, localName(8080), Passthrough}
	check := func(what string, c *Connection, typ string, want ...string) {
		t.Helper()
		if typ == ClusterType {
			want = append(want, fixed...)
		} else {
			want = append(want, inName(8080), InVirtual, OutVirtual)
		}
		slices.Sort(want)
		if got := names(c, typ); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	check("declared", a, ClusterType, "shop/web:80")
	check("declared", a, ListenerType, "out|10.96.0.1:80")
	check("nothing declared", b, ClusterType)
	w.seed(testService("later", "10.96.0.3"))
	check("a Service that came later", a, ClusterType, "shop/web:80", "shop/later:80")
	vip := delta.Ref{Type: ClusterType, Name: "vip|10.96.0.2:80"}
	b.Config.Source.Want(vip)
	check("learned", b, ListenerType, "out|10.96.0.2:80")
	check("learned by the same service account", a, ListenerType, "out|10.96.0.1:80", "out|10.96.0.2:80", "out|10.96.0.3:80")
	b.Config.Source.Release(vip)
	check("learned stays", b, ListenerType, "out|10.96.0.2:80")
	a.Close(nil)
	b.Close(nil)
}

// TestUnitsGo: what nobody uses any more is not kept.
func TestUnitsGo(t *testing.T) {
	w := newWorld(t, testService("web", "10.96.0.1"), testDataplane("a", "10.0.0.1", nil))
	c := w.connect("a", Direct)
	refs := []delta.Ref{
		{Type: ClusterType, Name: "shop/web:80"}, {Type: ClusterType, Name: "vip|10.96.0.9:80"}, {Type: EndpointType, Name: "shop/web:80"},
		{Type: RouteType, Name: "out|shop/web:80"}, {Type: SecretType, Name: "roots|default.mesh"}, {Type: ClusterType, Name: "nonsense"},
	}
	for _, ref := range refs {
		c.Config.Source.Want(ref)
	}
	for _, ref := range refs {
		c.Config.Source.Release(ref)
	}
	b := w.builder
	if n := len(b.byService) + len(b.byAddress) + len(b.others); n != 0 {
		t.Errorf("%d are left: %v %v %v", n, b.byService, b.byAddress, b.others)
	}
}

// TestAbsent: nobody answers at an address, until a Service does.
func TestAbsent(t *testing.T) {
	w := newWorld(t, testDataplane("a", "10.0.0.1", nil))
	c := w.connect("a", Sidecar)
	s := delta.NewLayered(c.Config)
	defer s.Close()
	const name = "vip|10.96.0.7:80"
	if err := s.Step(delta.Request{Type: ClusterType, Subscribe: []string{name}}); err != nil {
		t.Fatal(err)
	}
	if f, _ := s.Next(time.Time{}); f == nil || f.Resources != 1 || f.Removed != 0 {
		t.Fatalf("an address of nobody: %+v", f)
	}
	w.seed(testService("web", "10.96.0.7"))
	if f, _ := s.Next(time.Time{}); f == nil || f.Resources != 1 {
		t.Fatalf("the Service is there: %+v", f)
	}
	if body := w.builder.classCluster(c, name); body == nil || body.GetEdsClusterConfig().GetServiceName() != "shop/web:80" {
		t.Errorf("cluster %v", body)
	}
}

// TestMeshesAreApart: a Service of another mesh does not exist.
func TestMeshesAreApart(t *testing.T) {
	other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{meshv1alpha1.LabelMesh: "m2"}}}
	s := testService("web", "10.96.0.1")
	s.Namespace = "other"
	w := newWorld(t, other, s, testDataplane("a", "10.0.0.1", map[string]string{AnnotationBackends: "other/web"}))
	c := w.connect("a", Sidecar)
	if got := names(c, ListenerType); slices.Contains(got, "out|10.96.0.1:80") {
		t.Errorf("listeners %v", got)
	}
	c.Config.Source.Want(delta.Ref{Type: ClusterType, Name: "vip|10.96.0.1:80"})
	if body := w.builder.classCluster(c, "vip|10.96.0.1:80"); body != nil {
		t.Errorf("cluster %v", body)
	}
}

// classCluster is the cluster of this name in the class of a connection; nil: there is none.
func (b *Builder) classCluster(c *Connection, name string) *cluster.Cluster {
	u := c.proxy.class.layer.units[delta.Ref{Type: ClusterType, Name: name}]
	if u == nil {
		return nil
	}
	m, err := u.safe()
	if err != nil || m == nil {
		return nil
	}
	out := &cluster.Cluster{}
	if err := proto.Unmarshal(m.body, out); err != nil {
		panic(err)
	}
	return out
}

// TestLoadAssignment: weights of a plan become weights of localities, others come next,
// without gaps, and those that terminate are degraded, but for gRPC.
func TestLoadAssignment(t *testing.T) {
	at := netip.MustParseAddrPort
	targets := []proxy.Target{
		{Addr: at("10.0.0.1:80"), Zone: "a", Weight: 67}, {Addr: at("10.0.0.2:80"), Zone: "b", Weight: 16},
		{Addr: at("10.0.0.3:80"), Zone: "b", Weight: 16}, {Addr: at("10.0.0.4:80"), Zone: "c", Weight: 1},
	}
	live := func(a netip.AddrPort) bool { return a == at("10.0.0.1:80") }
	text := func(a *assignment) string {
		a.live, a.name, a.site = live, "x", "s"
		m := loadAssignment(a)
		if err := m.ValidateAll(); err != nil {
			t.Error(err)
		}
		out := ""
		for _, l := range m.Endpoints {
			out += fmt.Sprintf("%d %s/%s %d:", l.Priority, l.Locality.SubZone, l.Locality.Zone, l.LoadBalancingWeight.GetValue())
			for _, e := range l.LbEndpoints {
				out += fmt.Sprintf(" %s=%d", e.GetEndpoint().Address.GetSocketAddress().Address, e.LoadBalancingWeight.GetValue())
				if e.HealthStatus == core.HealthStatus_DEGRADED {
					out += "~"
				}
				if e.Metadata.GetFilterMetadata()["envoy.transport_socket_match"].GetFields()[matchMTLS].GetBoolValue() {
					out += "*"
				}
			}
			out += "\n"
		}
		return out
	}
	for name, c := range map[string]struct {
		a    *assignment
		want string
	}{
		"plan, and the others": {
			&assignment{choice: &proxy.Choice{Cluster: targets[:3], Fallback: targets[3:]}},
			"0 s/a 6767: 10.0.0.1=67*\n0 s/b 3233: 10.0.0.2=16 10.0.0.3=16\n1 s/c 10000: 10.0.0.4=1\n",
		},
		"at least 1": {
			&assignment{choice: &proxy.Choice{Cluster: []proxy.Target{{Addr: at("10.0.0.1:80"), Zone: "a", Weight: 1 << 20}, {Addr: at("10.0.0.2:80"), Zone: "b"}}}},
			"0 s/a 9999: 10.0.0.1=1048576*\n0 s/b 1: 10.0.0.2=1\n",
		},
		"no gap":      {&assignment{choice: &proxy.Choice{Fallback: targets[3:]}}, "0 s/c 10000: 10.0.0.4=1\n"},
		"terminating": {&assignment{choice: &proxy.Choice{Cluster: targets[3:], Why: proxy.TerminatingFallback}}, "0 s/c 10000: 10.0.0.4=1~\n"},
		"gRPC": {
			&assignment{choice: &proxy.Choice{Cluster: targets[3:], Why: proxy.TerminatingFallback}, healthy: true}, "0 s/c 10000: 10.0.0.4=1\n",
		},
		"local": {&assignment{choice: &proxy.Choice{Cluster: targets, Local: targets[3:]}, local: true}, "0 s/c 10000: 10.0.0.4=1\n"},
		"none":  {&assignment{choice: &proxy.Choice{}}, ""},
	} {
		if got := text(c.a); got != c.want {
			t.Errorf("%s:\n%swant:\n%s", name, got, c.want)
		}
	}
}

// TestInboundModes: who gets in, by the chains of a listener.
func TestInboundModes(t *testing.T) {
	for name, c := range map[string]struct {
		mode  Mode
		first bool
		want  []string
	}{
		"plain":                           {Plain, false, []string{"plain"}},
		"permissive":                      {Permissive, false, []string{"mtls", "tls", "plain"}},
		"permissive, server speaks first": {Permissive, true, []string{"plain"}},
		"strict":                          {Strict, false, []string{"mtls", "strict"}},
		"strict, server speaks first":     {Strict, true, []string{"mtls", "strict"}},
	} {
		l := inListener(&inbound{port: 80, at: netip.MustParseAddrPort("10.0.0.1:80"), mode: c.mode, serverFirst: c.first, domain: "d.mesh"})
		if err := l.ValidateAll(); err != nil {
			t.Error(err)
		}
		var chains []string
		for _, f := range l.FilterChains {
			chains = append(chains, f.Name)
			if (f.TransportSocket != nil) != (f.Name == "mtls" || f.Name == "strict") {
				t.Errorf("%s: chain %s, TLS %v", name, f.Name, f.TransportSocket)
			}
		}
		if !slices.Equal(chains, c.want) {
			t.Errorf("%s: chains %v, want %v", name, chains, c.want)
		}
	}
}

// TestInboundClients: a port admits clients of the own mesh, and those of meshes that a Service which
// leads to it is exported to; other workloads of the mesh do not, nor does another port. Clients call
// such a Service by mutual TLS, and no other of the mesh.
func TestInboundClients(t *testing.T) {
	secured := func(name string) *meshv1alpha1.Mesh {
		return &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: meshv1alpha1.MeshSpec{MTLS: &meshv1alpha1.MeshMTLS{
			EnabledBackend: "ca", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "ca", Mode: "Strict"}},
		}}}
	}
	service := func(name, ip, to string) *corev1.Service {
		s := testService(name, ip, corev1.ServicePort{Port: 80, TargetPort: intstr.FromInt32(8080)})
		s.Spec.Selector = map[string]string{"app": name}
		s.Annotations = map[string]string{meshv1alpha1.AnnotationToMeshes: to}
		return s
	}
	workload := func(namespace, name, ip string) *meshv1alpha1.Dataplane {
		d := testDataplane(name, ip, nil)
		d.Namespace, d.Labels = namespace, map[string]string{"app": name}
		d.Spec.Ports = append(d.Spec.Ports, meshv1alpha1.DataplanePort{Port: 9090})
		return d
	}
	w := newWorld(t,
		secured("default"), secured("blue"), secured("red"), &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "plain"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{meshv1alpha1.LabelMesh: "blue"}}},
		service("open", "10.96.0.1", "blue,plain,none"), service("closed", "10.96.0.2", ""),
		workload("shop", "open", "10.0.0.1"), workload("shop", "closed", "10.0.0.2"), workload("b", "client", "10.0.0.3"),
	)
	admitted := func(name string, port int32) []string {
		c := w.connect(name, Sidecar)
		defer c.Close(nil)
		w.builder.mu.Lock()
		defer w.builder.mu.Unlock()
		var all translate.Resources
		d, _ := w.builder.snapshot.Dataplanes.Get(c.proxy.Key)
		w.builder.ownInbound(c.proxy, d, &all)
		i := slices.IndexFunc(all.Listeners, func(l *listener.Listener) bool { return l.Name == inName(port) })
		if i < 0 {
			t.Fatalf("%s has no listener of port %d", name, port)
		}
		l := all.Listeners[i]
		var prefixes []string
		for _, chain := range l.FilterChains {
			var tls tlsv3.DownstreamTlsContext
			if err := chain.TransportSocket.GetTypedConfig().UnmarshalTo(&tls); err != nil {
				t.Fatal(err)
			}
			for _, m := range tls.CommonTlsContext.GetCombinedValidationContext().DefaultValidationContext.MatchTypedSubjectAltNames {
				if !slices.Contains(prefixes, m.Matcher.GetPrefix()) {
					prefixes = append(prefixes, m.Matcher.GetPrefix())
				}
			}
		}
		return prefixes
	}
	check := func(name string, port int32, want ...string) {
		t.Helper()
		if got := admitted(name, port); !slices.Equal(got, want) {
			t.Errorf("port %d of %s admits %q, want %q", port, name, got, want)
		}
	}
	check("open", 8080, "spiffe://default.mesh/", "spiffe://blue.mesh/")
	check("open", 9090, "spiffe://default.mesh/")
	check("closed", 8080, "spiffe://default.mesh/")
	client, err := w.builder.Connect(catalog.Key{Namespace: "b", Name: "client"}, Sidecar)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(nil)
	tls := func() *clientTLS {
		w.builder.mu.Lock()
		defer w.builder.mu.Unlock()
		if u := w.builder.upstreamOf(client.proxy.class, ServicePort{catalog.Key{Namespace: "shop", Name: "open"}, 80}); u != nil {
			return u.tls
		}
		return nil
	}
	if is := tls(); is == nil || is.domain != "default.mesh" {
		t.Errorf("a client of blue calls shop/open by %+v, want mutual TLS with default.mesh", is)
	}
	w.seed(service("open", "10.96.0.1", "*"))
	check("open", 8080, "spiffe://default.mesh/", "spiffe://blue.mesh/", "spiffe://red.mesh/")
	w.seed(service("open", "10.96.0.1", "red"))
	check("open", 8080, "spiffe://default.mesh/", "spiffe://red.mesh/")
	if is := tls(); is != nil {
		t.Errorf("a client of blue calls shop/open, which is exported to red alone, by %+v", is)
	}
}

// FuzzNames: names that clients ask for are read in one spelling only.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"shop/web:80", "vip|10.0.0.1:80", "vip|[::ffff:10.0.0.1]:80", "a/b:00", "/:1", "vip|:1", "in|[::]:80", "in|0.0.0.0:080",
		"shop/web:80@a?x=y&z=w", "shop/web:80?", "shop/web:80@"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := ParseServicePort(s); err == nil && p.String() != s {
			t.Errorf("%q is read as %q", s, p)
		}
		if a, ok := parseServer(s); ok && inPrefix+a.String() != s {
			t.Errorf("%q is read as the server %v", s, a)
		}
		if p, v, err := parseViewed(s); err == nil && viewed(p, v) != s {
			t.Errorf("%q is read as %v %v", s, p, v)
		}
		if a, ok := parseVIP(s); ok {
			if again, ok := parseVIP(VIPName(a)); !ok || again != a {
				t.Errorf("%q is read as %v, and that as %v", s, a, again)
			}
		}
	})
}
