package build

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	setfilter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func testMesh(passthrough bool) *meshv1alpha1.Mesh {
	return &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: meshv1alpha1.DefaultMesh}, Spec: meshv1alpha1.MeshSpec{
		MTLS:       &meshv1alpha1.MeshMTLS{EnabledBackend: "ca", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "ca", Mode: "Strict"}}},
		Networking: &meshv1alpha1.MeshNetworking{Outbound: &meshv1alpha1.MeshOutbound{Passthrough: &passthrough}},
	}}
}

// TestWorkloadAddresses: a connection to the address of a workload is mutual TLS with exactly its account,
// from the moment at which it has a proxy; without one it is plain, and refused where nothing but the mesh
// may be reached.
func TestWorkloadAddresses(t *testing.T) {
	server := testDataplane("server", "10.1.0.2", nil)
	server.Spec.ServiceAccount = "api"
	for _, open := range []bool{true, false} {
		w := newWorld(t, testMesh(open), testDataplane("a", "10.1.0.1", nil), server)
		w.builder.config.Workloads = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		c := w.connect("a", Sidecar)
		prefix := vipPrefix
		if !open {
			prefix = memberPrefix
		}
		if got := lookups(t, outVirtual(w.builder.ranges(), w.builder.config.Workloads, w.builder.restOf(c.proxy), false)); !slices.Equal(got, []string{"services vip|", "workloads " + prefix}) {
			t.Errorf("passthrough %v: %q", open, got)
		}
		s := delta.NewLayered(c.Config)
		defer s.Close()
		served, nobody, undeclared := prefix+"10.1.0.2:8080", prefix+"10.1.9.9:8080", prefix+"10.1.0.2:9999"
		if err := s.Step(delta.Request{Type: ClusterType, Subscribe: []string{served, nobody, undeclared}}); err != nil {
			t.Fatal(err)
		}
		is := func(when, name, want string, sent bool) {
			t.Helper()
			resources := 0
			for f, _ := s.Next(time.Time{}); f != nil; f, _ = s.Next(time.Time{}) {
				resources += f.Resources
			}
			if got := reached(t, w.builder.classCluster(c, name)); got != want || resources > 0 != sent {
				t.Errorf("passthrough %v, %s, %s: %q, want %q; %d resources were sent", open, when, name, got, want, resources)
			}
		}
		plain := map[bool]string{true: "plain", false: "nobody"}[open]
		is("without a proxy", served, plain, true)
		is("without a proxy", nobody, plain, false)
		is("without a proxy", undeclared, plain, false)
		proxied := w.connect("server", Sidecar)
		is("with a proxy", served, "spiffe://default.mesh/ns/shop/sa/api", true)
		is("with a proxy", undeclared, plain, false)
		proxied.Close(nil)
		is("its stream is lost", served, "spiffe://default.mesh/ns/shop/sa/api", false)
		moved := server.DeepCopy()
		moved.Spec.ServiceAccount, moved.Generation = "other", 2
		w.seed(moved)
		again := w.connect("server", Sidecar)
		is("of another account", served, "spiffe://default.mesh/ns/shop/sa/other", true)
		again.Close(nil)
		if err := w.client.Delete(t.Context(), kind.Dataplane, resource.Key{Namespace: "shop", Name: "server"}, resource.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		w.next()
		is("gone", served, plain, true)
	}
}

// lookups of the listener of redirected connections: chains, and what the names of their clusters begin with.
func lookups(t *testing.T, l *listener.Listener) (out []string) {
	t.Helper()
	for _, chain := range l.FilterChains {
		var state setfilter.Config
		if err := chain.Filters[0].GetTypedConfig().UnmarshalTo(&state); err != nil {
			t.Fatal(err)
		}
		name := state.OnNewConnection[0].GetFormatString().GetTextFormatSource().GetInlineString()
		out = append(out, chain.Name+" "+strings.TrimSuffix(name, "%DOWNSTREAM_LOCAL_ADDRESS%"))
	}
	return out
}

// reached is whom a cluster leads to.
func reached(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	switch {
	case c == nil:
		return "nobody"
	case c.TransportSocket == nil:
		return "plain"
	}
	var tls tlsv3.UpstreamTlsContext
	if err := c.TransportSocket.GetTypedConfig().UnmarshalTo(&tls); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, san := range tls.GetCommonTlsContext().GetCombinedValidationContext().GetDefaultValidationContext().GetMatchTypedSubjectAltNames() {
		out = append(out, san.GetMatcher().GetExact())
	}
	return strings.Join(out, " ")
}

// TestMatchedInOwnRanges: a match of an address in the range of Services has no effect, as the mesh knows
// it; one in the range of workloads has.
func TestMatchedInOwnRanges(t *testing.T) {
	l := outVirtual([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, Blackhole, false)
	letThrough(l, destinationsOf([]meshv1alpha1.PassthroughMatch{
		{Type: meshv1alpha1.PassthroughIP, Value: "10.96.0.9"}, {Type: "CIDR", Value: "10.1.7.0/24"}, {Type: "CIDR", Value: "10.1.0.0/16"},
	}))
	var got []string
	for _, c := range l.FilterChains {
		got = append(got, c.Name)
	}
	if want := []string{"services", "workloads", "passthrough 0 10.1.7.0/24"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
