package build

import (
	"crypto/x509"
	"encoding/pem"
	"slices"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rawbuffer "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

const (
	tlsSocket = "envoy.transport_sockets.tls"
	// alpn tells a connection between proxies from the application's own TLS.
	alpn = frame.ProtocolProxy
	// providerName of certificates in the bootstrap of gRPC.
	providerName = "default"
)

// clientTLS is how a cluster connects by mutual TLS; nil: it does not.
type clientTLS struct {
	sni    string
	domain string
	accept mesh.Matcher
	// fileIdentity: the certificate is a static secret of the client's bootstrap.
	fileIdentity bool
	// always: also to endpoints that are not known to have a proxy.
	always bool
	// http2: servers may be gRPC programs, which know no protocol (ALPN) but "h2".
	http2 bool
	// gateways at which TLS ends.
	gateways []gatewayTLS
}

// gatewayTLS is how a cluster connects to gateways of a site that end TLS: to the endpoints whose
// metadata say so (matchTunnel).
type gatewayTLS struct {
	match string
	// id is the only identity that the gateways may have.
	id string
}

// sans that a server may have: exact names, else prefixes of namespaces.
func (t *clientTLS) sans() []*tlsv3.SubjectAltNameMatcher {
	var exact []string
	for _, id := range t.accept.Exact() {
		exact = append(exact, id.String())
	}
	slices.Sort(exact)
	prefixes := slices.Sorted(slices.Values(t.accept.Prefixes()))
	out := make([]*tlsv3.SubjectAltNameMatcher, 0, len(exact)+len(prefixes))
	add := func(m *matcher.StringMatcher) {
		out = append(out, &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: m})
	}
	for _, uri := range exact {
		add(&matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Exact{Exact: uri}})
	}
	for _, prefix := range prefixes {
		add(&matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Prefix{Prefix: prefix}})
	}
	if len(out) == 0 { // without endpoints nobody is accepted; no matcher would accept everybody
		add(&matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Exact{Exact: "spiffe://" + t.domain + "/nobody"}})
	}
	return out
}

// A sidecar's connections to what may have a proxy have a priority (SO_PRIORITY of Linux, asm-generic/socket.h), by
// which those that lead back to its own workload are led to the sidecar again: redirect.ProxyPriority.
const (
	solSocket     = 1
	soPriority    = 12
	proxyPriority = 4
)

// on adds TLS to a cluster: to those endpoints that have a proxy.
func (t *clientTLS) on(c *cluster.Cluster) {
	if t == nil {
		return
	}
	mutual := commonTLS(t.domain, t.fileIdentity, t.sans())
	if t.http2 {
		mutual.AlpnProtocols = append(mutual.AlpnProtocols, "h2")
	}
	secured := transportSocket(&tlsv3.UpstreamTlsContext{Sni: t.sni, CommonTlsContext: mutual})
	for _, g := range t.gateways {
		common := commonTLS(t.domain, t.fileIdentity, []*tlsv3.SubjectAltNameMatcher{exactURI(g.id)})
		common.AlpnProtocols = []string{frame.ProtocolTunnel}
		c.TransportSocketMatches = append(c.TransportSocketMatches, &cluster.Cluster_TransportSocketMatch{
			Name: g.match, Match: &structpb.Struct{Fields: map[string]*structpb.Value{matchTunnel: structpb.NewStringValue(g.match)}},
			TransportSocket: transportSocket(&tlsv3.UpstreamTlsContext{Sni: t.sni, CommonTlsContext: common}),
		})
	}
	if !t.fileIdentity { // its connections are led to it, on Linux
		c.UpstreamBindConfig = &core.BindConfig{SocketOptions: []*core.SocketOption{{
			Description: "client of a mesh", Level: solSocket, Name: soPriority, Value: &core.SocketOption_IntValue{IntValue: proxyPriority},
			State: core.SocketOption_STATE_PREBIND,
		}}}
	}
	// What no match is for is never plain: endpoints and clusters do not change in one step.
	c.TransportSocket = secured
	if t.always {
		return
	}
	raw := &core.TransportSocket{
		Name: "envoy.transport_sockets.raw_buffer", ConfigType: &core.TransportSocket_TypedConfig{TypedConfig: packed(&rawbuffer.RawBuffer{})},
	}
	c.TransportSocketMatches = append(c.TransportSocketMatches, socketFor(matchMTLS, true, secured), socketFor("plain", false, raw))
}

// socketFor endpoints that have a proxy, or have none.
func socketFor(name string, proxied bool, socket *core.TransportSocket) *cluster.Cluster_TransportSocketMatch {
	match := &structpb.Struct{Fields: map[string]*structpb.Value{matchMTLS: structpb.NewBoolValue(proxied)}}
	return &cluster.Cluster_TransportSocketMatch{Name: name, Match: match, TransportSocket: socket}
}

func exactURI(uri string) *tlsv3.SubjectAltNameMatcher {
	return &tlsv3.SubjectAltNameMatcher{
		SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Exact{Exact: uri}},
	}
}

// onGRPC adds TLS as gRPC has it: by the providers of its bootstrap, to all endpoints alike.
func (t *clientTLS) onGRPC(c *cluster.Cluster) {
	if t == nil || !t.always {
		return
	}
	c.TransportSocket = transportSocket(&tlsv3.UpstreamTlsContext{CommonTlsContext: providerTLS(t.sans())})
}

func transportSocket(m *tlsv3.UpstreamTlsContext) *core.TransportSocket {
	return &core.TransportSocket{Name: tlsSocket, ConfigType: &core.TransportSocket_TypedConfig{TypedConfig: packed(m)}}
}

// commonTLS refers to secrets: the proxy's certificate, and the roots of a trust domain.
func commonTLS(domain string, fileIdentity bool, sans []*tlsv3.SubjectAltNameMatcher) *tlsv3.CommonTlsContext {
	own := &tlsv3.SdsSecretConfig{Name: Identity}
	if !fileIdentity {
		own.SdsConfig = adsSource()
	}
	return &tlsv3.CommonTlsContext{
		AlpnProtocols: []string{alpn},
		// The newest version of Envoy's clients is 1.2 unless it is set. Servers decide whether it is
		// used: they have 1.3 alone unless a policy of theirs says otherwise.
		TlsParams: &tlsv3.TlsParameters{
			TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{own},
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: sans},
				ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: RootsName(domain), SdsConfig: adsSource()},
			},
		},
	}
}

// providerTLS refers to the certificate provider of a gRPC bootstrap.
func providerTLS(sans []*tlsv3.SubjectAltNameMatcher) *tlsv3.CommonTlsContext {
	instance := &tlsv3.CertificateProviderPluginInstance{InstanceName: providerName}
	return &tlsv3.CommonTlsContext{
		TlsCertificateProviderInstance: instance,
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			CaCertificateProviderInstance: instance, MatchTypedSubjectAltNames: sans,
		}},
	}
}

// serverTLS asks clients for certificates of the mesh's own trust domain, or of one that it is
// exported to. The secret with the roots may have those of more domains: of meshes that export to
// this one, whose servers its workloads call, and whose clients it does not admit.
// params are those of policies; nil: TLS 1.3.
func serverTLS(domain string, clients []string, fileIdentity bool, params *tlsv3.TlsParameters) *core.TransportSocket {
	admitted := make([]*tlsv3.SubjectAltNameMatcher, 0, len(clients)+1)
	for _, name := range append([]string{domain}, clients...) {
		admitted = append(admitted, &tlsv3.SubjectAltNameMatcher{
			SanType: tlsv3.SubjectAltNameMatcher_URI,
			Matcher: &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Prefix{Prefix: "spiffe://" + name + "/"}},
		})
	}
	common := commonTLS(domain, fileIdentity, admitted)
	common.TlsParams.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
	if params != nil {
		common.TlsParams = params
	}
	return &core.TransportSocket{Name: tlsSocket, ConfigType: &core.TransportSocket_TypedConfig{TypedConfig: packed(&tlsv3.DownstreamTlsContext{
		CommonTlsContext: common, RequireClientCertificate: wrapperspb.Bool(true),
	})}}
}

// rootsSecret has the roots of every trust domain whose clients servers of a domain admit, each
// for its own certificates (SPIFFE validator).
func rootsSecret(trust *mesh.Trust, meshName string) *tlsv3.Secret {
	own, ok := trust.Bundle(meshName)
	if !ok {
		return nil
	}
	spiffe := &tlsv3.SPIFFECertValidatorConfig{}
	for _, domain := range trust.ClientDomains(meshName) {
		of, _ := trust.MeshOf(domain)
		bundle, _ := trust.Bundle(of)
		if len(bundle.Roots) == 0 {
			continue
		}
		spiffe.TrustDomains = append(spiffe.TrustDomains, &tlsv3.SPIFFECertValidatorConfig_TrustDomain{
			Name: domain.Name(), TrustBundle: inline(pemOf(bundle.Roots)),
		})
	}
	if len(spiffe.TrustDomains) == 0 {
		return nil
	}
	return &tlsv3.Secret{Name: RootsName(own.Domain.Name()), Type: &tlsv3.Secret_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{CustomValidatorConfig: &core.TypedExtensionConfig{
			Name: "envoy.tls.cert_validator.spiffe", TypedConfig: packed(spiffe),
		}},
	}}
}

func pemOf(roots []*x509.Certificate) []byte {
	var out []byte
	for _, r := range roots {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Raw})...)
	}
	return out
}

func inline(b []byte) *core.DataSource {
	return &core.DataSource{Specifier: &core.DataSource_InlineBytes{InlineBytes: b}}
}
