package build

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// outsideObjects are an ExternalService, and the Service with its virtual address.
func outsideObjects(edit func(*meshv1alpha1.ExternalServiceSpec)) []resource.Object {
	s := testService("pay", "10.96.0.30")
	s.Labels = map[string]string{meshv1alpha1.LabelExternalService: "pay", meshv1alpha1.LabelMesh: "default"}
	e := &meshv1alpha1.ExternalService{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pay"}, Spec: meshv1alpha1.ExternalServiceSpec{
		Hosts: []string{"pay.example"}, Ports: []meshv1alpha1.ExternalServicePort{{Name: "http", Port: 80, TargetPort: new(int32(443))}},
		Addresses: []meshv1alpha1.ExternalServiceAddress{{Address: "192.0.2.1"}},
	}}
	if edit != nil {
		edit(&e.Spec)
	}
	return []resource.Object{s, e}
}

// shownCluster is TYPE PRIORITY:HOST:PORT*WEIGHT …, and TLS as SNI VERSIONS ROOTS NAMES.
func shownCluster(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	out := []string{c.GetType().String()}
	for _, l := range c.GetLoadAssignment().GetEndpoints() {
		for _, e := range l.LbEndpoints {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			out = append(out, fmt.Sprintf("%d:%s:%d*%d", l.Priority, at.GetAddress(), at.GetPortValue(), e.GetLoadBalancingWeight().GetValue()))
		}
	}
	if c.GetTransportSocket() == nil {
		return strings.Join(out, " ")
	}
	var tls tlsv3.UpstreamTlsContext
	if err := c.GetTransportSocket().GetTypedConfig().UnmarshalTo(&tls); err != nil {
		t.Fatal(err)
	}
	common := tls.GetCommonTlsContext()
	names, roots := common.GetValidationContext(), "none"
	switch {
	case common.GetCombinedValidationContext() != nil:
		names = common.GetCombinedValidationContext().GetDefaultValidationContext()
		roots = common.GetCombinedValidationContext().GetValidationContextSdsSecretConfig().GetName()
	case names != nil:
		roots = string(names.GetTrustedCa().GetInlineBytes())
	}
	out = append(out, "TLS", tls.GetSni(), common.GetTlsParams().GetTlsMinimumProtocolVersion().String(), roots)
	for _, san := range names.GetMatchTypedSubjectAltNames() {
		out = append(out, san.GetSanType().String()+"="+san.GetMatcher().GetExact()+san.GetMatcher().GetPrefix()+"*"[:len(san.GetMatcher().GetPrefix())&1])
	}
	return strings.Join(out, " ")
}

// TestExternalService: a cluster of where it is, and the virtual address where Envoy cannot do as
// the object says.
func TestExternalService(t *testing.T) {
	const virtual = "STATIC 0:10.96.0.30:80*0"
	tls := func(edit func(*meshv1alpha1.ExternalServiceTLS)) func(*meshv1alpha1.ExternalServiceSpec) {
		return func(s *meshv1alpha1.ExternalServiceSpec) {
			s.TLS = &meshv1alpha1.ExternalServiceTLS{}
			edit(s.TLS)
		}
	}
	for name, tc := range map[string]struct {
		edit func(*meshv1alpha1.ExternalServiceSpec)
		want string
	}{
		"an address": {nil, "STATIC 0:192.0.2.1:443*1"},
		"names, ports, weights": {func(s *meshv1alpha1.ExternalServiceSpec) {
			s.Addresses = append(s.Addresses, meshv1alpha1.ExternalServiceAddress{Address: "far.example", Port: new(int32(8443)), Weight: new(int32(3))})
		}, "STRICT_DNS 0:192.0.2.1:443*1 0:far.example:8443*3"},
		"a near one": {func(s *meshv1alpha1.ExternalServiceSpec) {
			s.Addresses = append(s.Addresses, meshv1alpha1.ExternalServiceAddress{Address: "192.0.2.2", Zone: "local"})
		}, "STATIC 0:192.0.2.2:443*1 1:192.0.2.1:443*1"},
		"a name that leads back": {func(s *meshv1alpha1.ExternalServiceSpec) { s.Addresses = nil }, virtual},
		"the system's authorities": {tls(func(*meshv1alpha1.ExternalServiceTLS) {}),
			"STATIC 0:192.0.2.1:443*1 TLS pay.example TLSv1_2 system-roots DNS=pay.example"},
		"its own": {tls(func(s *meshv1alpha1.ExternalServiceTLS) {
			s.ServerName, s.MinVersion, s.CACertificates = "other.example", meshv1alpha1.TLS13, &meshv1alpha1.DataSource{Inline: []byte("PEM")}
		}), "STATIC 0:192.0.2.1:443*1 TLS other.example TLSv1_3 PEM DNS=other.example"},
		"other names": {tls(func(s *meshv1alpha1.ExternalServiceTLS) {
			s.SubjectAltNames = []meshv1alpha1.SubjectAltNameMatch{{Value: "a.example"}, {Value: "b.", Type: meshv1alpha1.MatchPrefix}}
		}), "STATIC 0:192.0.2.1:443*1 TLS pay.example TLSv1_2 system-roots DNS=a.example EMAIL=a.example URI=a.example IP_ADDRESS=a.example DNS=b. EMAIL=b. URI=b. IP_ADDRESS=b."},
		"any name":    {tls(func(s *meshv1alpha1.ExternalServiceTLS) { s.Verification = meshv1alpha1.VerifySkipSAN }), "STATIC 0:192.0.2.1:443*1 TLS pay.example TLSv1_2 system-roots"},
		"anything":    {tls(func(s *meshv1alpha1.ExternalServiceTLS) { s.Verification = meshv1alpha1.VerifySkipAll }), "STATIC 0:192.0.2.1:443*1 TLS pay.example TLSv1_2 none"},
		"a name only": {tls(func(s *meshv1alpha1.ExternalServiceTLS) { s.Verification = meshv1alpha1.VerifySkipCA }), virtual},
		"a certificate of the client": {tls(func(s *meshv1alpha1.ExternalServiceTLS) {
			s.ClientCertificate = &meshv1alpha1.DataSource{Inline: []byte("PEM")}
		}), virtual},
		"from another zone": {func(s *meshv1alpha1.ExternalServiceSpec) { s.Zones = []string{"b"} }, virtual},
	} {
		w := newWorld(t, append(outsideObjects(tc.edit), testDataplane("a", "10.0.0.1", map[string]string{AnnotationBackends: "pay"}))...)
		w.builder.config.SystemRoots = func() []byte { return []byte("PEM") }
		c := w.connect("a", Sidecar)
		got := shownCluster(t, w.builder.classCluster(c, "ext|shop/pay:80"))
		if got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, tc.want)
		}
		if all := names(c, ClusterType); !slices.Contains(all, "ext|shop/pay:80") || slices.Contains(all, "shop/pay:80") {
			t.Errorf("%s: clusters %v", name, all)
		}
		c.Close(nil)
	}
}

// TestNoLongerOutside: the cluster of a Service that becomes one outside, or the reverse, has another name.
func TestNoLongerOutside(t *testing.T) {
	w := newWorld(t, testService("pay", "10.96.0.30"), testDataplane("a", "10.0.0.1", map[string]string{AnnotationBackends: "pay"}))
	c := w.connect("a", Sidecar)
	if all := names(c, ClusterType); !slices.Contains(all, "shop/pay:80") {
		t.Errorf("clusters %v", all)
	}
	w.seed(outsideObjects(nil)...)
	if all := names(c, ClusterType); !slices.Contains(all, "ext|shop/pay:80") || slices.Contains(all, "shop/pay:80") {
		t.Errorf("outside: clusters %v", all)
	}
	c.Config.Source.Want(delta.Ref{Type: ClusterType, Name: "shop/pay:80"})
	if body := w.builder.classCluster(c, "shop/pay:80"); body != nil {
		t.Errorf("two names for one: %v", body)
	}
}
