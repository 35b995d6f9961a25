package build

import (
	"crypto/tls"
	"net/netip"
	"slices"
	"strings"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/sites"
)

const (
	externalPrefix = "ext|"
	// SystemRoots is the secret with the authorities that TLS to services outside every mesh trusts
	// where the service names none. No trust domain has such a name.
	SystemRoots = "system-roots"
	// nameRefresh is how often the names of services outside are resolved where DNS says nothing.
	nameRefresh = 30 * time.Second
)

// OutsideName is the cluster of a port of a service outside every mesh.
func OutsideName(of ServicePort) string { return externalPrefix + of.String() }

// outside is where a service outside every mesh is, for proxies that connect to it by themselves.
type outside struct {
	places []sites.Place
	target uint16
	// tls; nil: bytes pass as they are.
	tls *tlsv3.UpstreamTlsContext
}

// clusterName of a service port.
func (b *Builder) clusterName(of ServicePort) string {
	if b.external(of.Service) {
		return OutsideName(of)
	}
	return of.String()
}

// parseCluster reads what clusterName wrote.
func parseCluster(name string) (ServicePort, error) {
	return ParseServicePort(strings.TrimPrefix(name, externalPrefix))
}

// outsideOf a service that proxies of this site connect to by themselves; nil: they leave it to the
// node's data path, as
//   - a name is one that workloads, and so the resolver of Envoy, have the virtual address for,
//   - what is in Secrets is not known, or cannot be used: the node says so, and refuses,
//   - or what is to be verified of the server cannot be said to Envoy.
func (b *Builder) outsideOf(to *beyond, protocol Protocol) *outside {
	e := to.remote.External
	for _, p := range e.Places {
		if _, err := netip.ParseAddr(p.Host); err != nil && b.claimed(p.Host) {
			return nil
		}
	}
	out := &outside{places: e.Places, target: to.port.Target}
	if e.TLS == nil {
		return out
	}
	if out.tls = b.externalTLS(to.remote, protocol); out.tls == nil {
		return nil
	}
	return out
}

// claimed reports whether an ExternalService names a host, so that workloads resolve it to a virtual
// address.
func (b *Builder) claimed(host string) bool {
	for _, e := range b.snapshot.ExternalServices.All() {
		if slices.ContainsFunc(e.Spec.Hosts, func(h string) bool { return strings.EqualFold(h, host) }) {
			return true
		}
	}
	return false
}

// externalTLS is how TLS to a service outside is begun; nil: Envoy cannot be told so.
func (b *Builder) externalTLS(r *sites.Remote, protocol Protocol) *tlsv3.UpstreamTlsContext {
	e, t := r.External, r.External.TLS
	name := t.ServerName
	for _, p := range e.Places {
		if name == "" {
			name = p.Host
		}
		if t.ServerName == "" && p.Host != name { // a server name for each place
			return nil
		}
	}
	secrets := &Credentials{Generation: t.Generation}
	if t.Secrets {
		secrets = b.credentials[catalog.Key(r.Service)]
	}
	if secrets == nil || secrets.Generation != t.Generation || t.SkipAuthority && !t.SkipName {
		return nil
	}
	common := &tlsv3.CommonTlsContext{TlsParams: &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsVersion(t.MinVersion, tlsv3.TlsParameters_TLSv1_2),
		TlsMaximumProtocolVersion: tlsVersion(t.MaxVersion, tlsv3.TlsParameters_TLSv1_3),
	}}
	if protocol == HTTP2 {
		common.AlpnProtocols = []string{"h2"}
	}
	out := &tlsv3.UpstreamTlsContext{CommonTlsContext: common, AllowRenegotiation: t.Renegotiation}
	if _, err := netip.ParseAddr(name); err != nil { // no server name is an address (RFC 6066, 3)
		out.Sni = name
	}
	if len(secrets.Certificate) > 0 {
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{{Name: certificatePrefix + r.Service.String(), SdsConfig: adsSource()}}
	}
	if t.SkipAuthority {
		return out
	}
	names := &tlsv3.CertificateValidationContext{}
	if !t.SkipName {
		names.MatchTypedSubjectAltNames = serverNames(name, t.Names)
	}
	roots := SystemRoots
	switch {
	case len(secrets.Authorities) > 0:
		roots = authoritiesPrefix + r.Service.String()
	case len(t.Roots) > 0:
		names.TrustedCa = inline(t.Roots)
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: names}
		return out
	case b.config.SystemRoots == nil:
		return nil
	}
	common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext:         names,
			ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: roots, SdsConfig: adsSource()},
		},
	}
	return out
}

// serverNames that a certificate may have: those that are listed, else the server's.
func serverNames(name string, listed []sites.NameMatch) []*tlsv3.SubjectAltNameMatcher {
	types := []tlsv3.SubjectAltNameMatcher_SanType{
		tlsv3.SubjectAltNameMatcher_DNS, tlsv3.SubjectAltNameMatcher_EMAIL, tlsv3.SubjectAltNameMatcher_URI,
		tlsv3.SubjectAltNameMatcher_IP_ADDRESS,
	}
	if len(listed) == 0 {
		listed, types = []sites.NameMatch{{Value: name}}, types[:1]
		if _, err := netip.ParseAddr(name); err == nil {
			types = []tlsv3.SubjectAltNameMatcher_SanType{tlsv3.SubjectAltNameMatcher_IP_ADDRESS}
		}
	}
	var out []*tlsv3.SubjectAltNameMatcher
	for _, n := range listed {
		match := &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Exact{Exact: n.Value}}
		if n.Prefix {
			match = &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Prefix{Prefix: n.Value}}
		}
		for _, typ := range types {
			out = append(out, &tlsv3.SubjectAltNameMatcher{SanType: typ, Matcher: match})
		}
	}
	return out
}

func tlsVersion(v uint16, otherwise tlsv3.TlsParameters_TlsProtocol) tlsv3.TlsParameters_TlsProtocol {
	switch v {
	case tls.VersionTLS12:
		return tlsv3.TlsParameters_TLSv1_2
	case tls.VersionTLS13:
		return tlsv3.TlsParameters_TLSv1_3
	}
	return otherwise
}

// on makes a cluster one of the places. Those that are near come first.
func (o *outside) on(c *cluster.Cluster) {
	c.ClusterDiscoveryType = &cluster.Cluster_Type{Type: cluster.Cluster_STATIC}
	c.LoadAssignment = &endpoint.ClusterLoadAssignment{ClusterName: c.Name}
	for _, near := range []bool{true, false} {
		l := &endpoint.LocalityLbEndpoints{LoadBalancingWeight: wrapperspb.UInt32(1), Priority: uint32(len(c.LoadAssignment.Endpoints))}
		for _, p := range o.places {
			if p.Near != near {
				continue
			}
			port := p.Port
			if port == 0 {
				port = o.target
			}
			if _, err := netip.ParseAddr(p.Host); err != nil {
				c.ClusterDiscoveryType = &cluster.Cluster_Type{Type: cluster.Cluster_STRICT_DNS}
				c.DnsLookupFamily = cluster.Cluster_V4_PREFERRED
				//nolint:staticcheck // what takes the place of both is a cluster of another type
				c.DnsRefreshRate, c.RespectDnsTtl = durationpb.New(nameRefresh), true
			}
			l.LbEndpoints = append(l.LbEndpoints, &endpoint.LbEndpoint{
				HostIdentifier: &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{Address: hostAddress(p.Host, port)}},
				// 0 is taken for 1, as everywhere.
				LoadBalancingWeight: wrapperspb.UInt32(max(p.Weight, 1)),
			})
		}
		if len(l.LbEndpoints) > 0 {
			c.LoadAssignment.Endpoints = append(c.LoadAssignment.Endpoints, l)
		}
	}
	if o.tls != nil {
		c.TransportSocket = transportSocket(o.tls)
	}
}

func hostAddress(host string, port uint16) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: host, PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(port)},
	}}}
}

func (b *Builder) makeSystemRoots() *made {
	if b.config.SystemRoots == nil {
		return nil
	}
	roots := b.config.SystemRoots()
	if len(roots) == 0 {
		return nil
	}
	return unlisted(&tlsv3.Secret{Name: SystemRoots, Type: &tlsv3.Secret_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(roots)},
	}})
}
