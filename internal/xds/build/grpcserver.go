package build

import (
	"net/netip"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

// Servers of gRPC programs (gRFC A36) ask for the listener of the address that they listen at, by the
// template of their bootstrap, and serve once they have it.

// AnnotationGRPCServer ("true") on a Dataplane says that its gRPC server has credentials of xDS: also
// before the program has asked, clients use mutual TLS with it where its ports are strict.
const AnnotationGRPCServer = "mesh.proxima.dev/grpc-server"

// parseServer reads the name of a gRPC server's listener, "in|ADDRESS:PORT".
func parseServer(name string) (netip.AddrPort, bool) {
	text, ok := strings.CutPrefix(name, inPrefix)
	if !ok {
		return netip.AddrPort{}, false
	}
	at, err := netip.ParseAddrPort(text)
	return at, err == nil && at.Port() != 0 && at.String() == text
}

// serve notes that a gRPC program asks for the listener of a server, and makes it. It stays as long
// as the proxy: a program that is away serves on.
func (b *Builder) serve(p *Proxy, name string, at netip.AddrPort) {
	if _, known := p.servers[name]; known {
		return
	}
	if p.servers == nil {
		p.servers = map[string]netip.AddrPort{}
	}
	p.servers[name] = at
	b.writeOwn(p)
}

// secured are the ports of a workload at which its gRPC server takes mutual TLS alone.
func (b *Builder) secured(key catalog.Key, d *meshv1alpha1.Dataplane) []netip.AddrPort {
	if d == nil {
		return nil
	}
	p := b.proxies[key]
	if p != nil && p.class.Variant != GRPC {
		return nil
	}
	var out []netip.AddrPort
	for i := range d.Spec.Ports {
		port := &d.Spec.Ports[i]
		asked := d.Annotations[AnnotationGRPCServer] == "true"
		if p != nil {
			for _, at := range p.servers {
				asked = asked || int32(at.Port()) == port.Port
			}
		}
		if mode, _ := b.inboundMode(key, d, port.Port); !asked || mode != Strict {
			continue
		}
		for _, a := range dataplaneAddresses(d) {
			out = append(out, netip.AddrPortFrom(a, uint16(port.Port)))
		}
	}
	return out
}

// inboundMode of a port of a workload, and the trust domain of its mesh.
func (b *Builder) inboundMode(key catalog.Key, d *meshv1alpha1.Dataplane, port int32) (mode Mode, domain string) {
	name := d.Spec.Mesh
	if name == "" {
		name = b.meshOf(key.Namespace)
	}
	trust, m, ok := b.meshTLS(name)
	if !ok {
		return Plain, "" // a mesh without mTLS has no certificates
	}
	if said := b.inPoliciesOf(key, port).port.TLS.Mode; said != "" {
		return modeNamed(said), trust.Name()
	}
	return modeOf(m), trust.Name()
}

// writeServers writes the listeners of a gRPC program's servers: those whose port the workload has
// declared. Clients use TLS with strict ones from then on.
func (b *Builder) writeServers(p *Proxy, d *meshv1alpha1.Dataplane) {
	var all translate.Resources
	for name, at := range p.servers {
		for i := range d.Spec.Ports {
			port := &d.Spec.Ports[i]
			if port.Port != int32(at.Port()) || port.Protocol != "" && port.Protocol != "TCP" {
				continue
			}
			mode, _ := b.inboundMode(p.Key, d, port.Port)
			permission := b.inPoliciesOf(p.Key, port.Port).permission
			all.Listeners = append(all.Listeners, serverListener(name, at, mode == Strict, &permission))
		}
	}
	next := map[delta.Ref][]byte{}
	b.encodeOwn(p, next, all)
	b.replaceOwn(p, next)
	live, changed := b.secured(p.Key, d), map[netip.Addr]struct{}{}
	for _, at := range livePorts(d) {
		is := false
		for _, other := range live {
			is = is || other == at
		}
		switch {
		case is && b.live[at] != p.Key:
			b.live[at], changed[at.Addr()] = p.Key, struct{}{}
		case !is && b.live[at] == p.Key:
			delete(b.live, at)
			changed[at.Addr()] = struct{}{}
		}
	}
	if len(changed) > 0 {
		services := map[catalog.Key]struct{}{}
		b.behind(d, func(s catalog.Key) { services[s] = struct{}{} })
		b.refresh(services, changed, false)
	}
}

// serverListener is that of a gRPC server. A server takes either TLS or plain text (A29), so one that
// is permissive takes plain text. Its provider has the roots of the own trust domain alone, which is
// in the place of matchers of names: gRPC has none for clients.
func serverListener(name string, at netip.AddrPort, strict bool, permission *policy.Permission) *listener.Listener {
	manager := &hcm.HttpConnectionManager{
		StatPrefix: statIn,
		RouteSpecifier: &hcm.HttpConnectionManager_RouteConfig{RouteConfig: &route.RouteConfiguration{
			Name: name, VirtualHosts: []*route.VirtualHost{{Name: name, Domains: []string{"*"}, Routes: []*route.Route{{
				Match:  &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: ""}},
				Action: &route.Route_NonForwardingAction{NonForwardingAction: &route.NonForwardingAction{}},
			}}}},
		}},
		HttpFilters: append(translate.InboundFilters(&policy.WorkloadPort{}, permission, nil), router()),
	}
	chain := &listener.FilterChain{Name: "plain", Filters: []*listener.Filter{networkFilter("envoy.filters.network.http_connection_manager", manager)}}
	if strict {
		chain.Name = "strict"
		chain.TransportSocket = &core.TransportSocket{Name: tlsSocket, ConfigType: &core.TransportSocket_TypedConfig{TypedConfig: packed(
			&tlsv3.DownstreamTlsContext{CommonTlsContext: providerTLS(nil), RequireClientCertificate: wrapperspb.Bool(true)},
		)}}
	}
	return &listener.Listener{Name: name, Address: socketAddress(at), TrafficDirection: core.TrafficDirection_INBOUND, FilterChains: []*listener.FilterChain{chain}}
}
