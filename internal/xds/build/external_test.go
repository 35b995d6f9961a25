package build

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
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

// TestExternalSecrets: what is in Secrets are resources of their own, for proxies that connect to the service by themselves; the
// cluster names them, and does not change with their values. Without usable values the node connects.
func TestExternalSecrets(t *testing.T) {
	const virtual, name = "STATIC 0:10.96.0.30:80*0", "ext|shop/pay:80"
	objects := outsideObjects(func(s *meshv1alpha1.ExternalServiceSpec) {
		of := func(name string) *meshv1alpha1.DataSource {
			return &meshv1alpha1.DataSource{SecretRef: &meshv1alpha1.SecretKeyReference{Name: "pay", Key: name}}
		}
		s.TLS = &meshv1alpha1.ExternalServiceTLS{CACertificates: of("ca"), ClientCertificate: of("cert"), ClientKey: of("key")}
	})
	external := objects[1].(*meshv1alpha1.ExternalService)
	external.Generation = 1
	other := testDataplane("b", "10.0.0.2", map[string]string{AnnotationBackends: "pay"})
	other.Spec.Mesh = "other"
	w := newWorld(t, append(objects, testDataplane("a", "10.0.0.1", map[string]string{AnnotationBackends: "pay"}), other)...)
	c, stranger := w.connect("a", Sidecar), w.connect("b", Sidecar)
	shown := func() string { return shownCluster(t, w.builder.classCluster(c, name)) }
	secret := func(c *Connection, name string) *tlsv3.Secret {
		t.Helper()
		ref := delta.Ref{Type: SecretType, Name: name}
		c.Config.Source.Want(ref)
		defer c.Config.Source.Release(ref)
		u := c.proxy.class.layer.units[ref]
		if u == nil {
			return nil
		}
		m, err := u.safe()
		if err != nil || m == nil {
			return nil
		}
		out := &tlsv3.Secret{}
		if err := proto.Unmarshal(m.body, out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	set := func(generation uint64, ca, cert, private string) {
		w.builder.SetCredentials(map[catalog.Key]*Credentials{{Namespace: "shop", Name: "pay"}: {
			Generation: generation, Authorities: []byte(ca), Certificate: []byte(cert), Key: []byte(private),
		}})
	}
	if got := shown(); got != virtual {
		t.Errorf("without values: %s", got)
	}
	set(1, "CA", "CERT", "KEY")
	const want = "STATIC 0:192.0.2.1:443*1 TLS pay.example TLSv1_2 authorities|shop/pay DNS=pay.example"
	if got := shown(); got != want {
		t.Errorf("with values:\n got %s\nwant %s", got, want)
	}
	before := w.builder.classCluster(c, name)
	var context tlsv3.UpstreamTlsContext
	if err := before.GetTransportSocket().GetTypedConfig().UnmarshalTo(&context); err != nil {
		t.Fatal(err)
	}
	if all := context.GetCommonTlsContext().GetTlsCertificateSdsSecretConfigs(); len(all) != 1 || all[0].GetName() != "certificate|shop/pay" {
		t.Errorf("certificates: %v", all)
	}
	pair := func() string {
		s := secret(c, "certificate|shop/pay").GetTlsCertificate()
		return string(s.GetCertificateChain().GetInlineBytes()) + " " + string(s.GetPrivateKey().GetInlineBytes())
	}
	if got := pair(); got != "CERT KEY" {
		t.Errorf("the certificate is %q", got)
	}
	if got := string(secret(c, "authorities|shop/pay").GetValidationContext().GetTrustedCa().GetInlineBytes()); got != "CA" {
		t.Errorf("the authorities are %q", got)
	}
	for _, name := range []string{"certificate|shop/pay", "authorities|shop/pay"} {
		if s := secret(stranger, name); s != nil {
			t.Errorf("a proxy of another mesh gets %s", name)
		}
	}
	set(1, "CA", "CERT2", "KEY2")
	if got := pair(); got != "CERT2 KEY2" {
		t.Errorf("after a change the certificate is %q", got)
	}
	if !proto.Equal(before, w.builder.classCluster(c, name)) {
		t.Error("the cluster changes with the values")
	}
	set(0, "CA", "CERT", "KEY")
	if got := shown(); got != virtual {
		t.Errorf("with values of another generation: %s", got)
	}
	set(1, "CA", "", "")
	if s := secret(c, "certificate|shop/pay"); s != nil {
		t.Errorf("without a certificate: %v", s)
	}
	m := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: meshv1alpha1.MeshSpec{Routing: &meshv1alpha1.MeshRouting{ZoneEgress: new(true)}}}
	w.seed(m)
	if s := secret(c, "authorities|shop/pay"); s != nil {
		t.Errorf("where egresses connect: %v", s)
	}
	w.builder.SetCredentials(nil)
	if got := shown(); got != virtual {
		t.Errorf("when the values are gone: %s", got)
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
