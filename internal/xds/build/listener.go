package build

import (
	"net/netip"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	setstate "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	inspector "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	setfilter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	tcpproxy "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

const (
	streamIdleTimeout = 30 * time.Minute
	retryAttempts     = 2
	retryOn           = "connect-failure,refused-stream"
	// loadHeader is how an application reports its load (ORCA). It is for proxies.
	loadHeader      = "endpoint-load-metrics"
	statOut, statIn = "out", "in"
)

func networkFilter(name string, m proto.Message) *listener.Filter {
	return &listener.Filter{Name: name, ConfigType: &listener.Filter_TypedConfig{TypedConfig: packed(m)}}
}

// tcpTo sends connections to a cluster.
func tcpTo(cluster, stat string, affinity bool) *listener.Filter {
	return networkFilter("envoy.filters.network.tcp_proxy", tcpProxy(cluster, stat, affinity))
}

func tcpProxy(cluster, stat string, affinity bool) *tcpproxy.TcpProxy {
	p := &tcpproxy.TcpProxy{
		StatPrefix: stat, ClusterSpecifier: &tcpproxy.TcpProxy_Cluster{Cluster: cluster},
		MaxConnectAttempts: wrapperspb.UInt32(connectAttempts), IdleTimeout: durationpb.New(idleTimeout),
	}
	if affinity {
		p.HashPolicy = []*typev3.HashPolicy{{PolicySpecifier: &typev3.HashPolicy_SourceIp_{SourceIp: &typev3.HashPolicy_SourceIp{}}}}
	}
	return p
}

// connectionManager routes requests by a route configuration, and changes nothing of them.
func connectionManager(routes, stat string) *hcm.HttpConnectionManager {
	return &hcm.HttpConnectionManager{
		StatPrefix:                 stat,
		RouteSpecifier:             &hcm.HttpConnectionManager_Rds{Rds: &hcm.Rds{RouteConfigName: routes, ConfigSource: adsSource()}},
		HttpFilters:                []*hcm.HttpFilter{router()},
		CommonHttpProtocolOptions:  &core.HttpProtocolOptions{IdleTimeout: durationpb.New(idleTimeout)},
		StreamIdleTimeout:          durationpb.New(streamIdleTimeout),
		ServerHeaderTransformation: hcm.HttpConnectionManager_PASS_THROUGH,
		SkipXffAppend:              true, PreserveExternalRequestId: true,
		UpgradeConfigs: []*hcm.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
	}
}

func router() *hcm.HttpFilter {
	return &hcm.HttpFilter{Name: "envoy.filters.http.router", ConfigType: &hcm.HttpFilter_TypedConfig{TypedConfig: packed(&routerv3.Router{})}}
}

// routesTo is one virtual host: the address chose the Service.
func routesTo(name, cluster string, retries, affinity bool) *route.RouteConfiguration {
	action := &route.RouteAction{
		ClusterSpecifier: &route.RouteAction_Cluster{Cluster: cluster},
		Timeout:          durationpb.New(0),
	}
	if retries {
		action.RetryPolicy = &route.RetryPolicy{RetryOn: retryOn, NumRetries: wrapperspb.UInt32(retryAttempts)}
		translate.RetryElsewhere(action.RetryPolicy)
	}
	if affinity {
		action.HashPolicy = []*route.RouteAction_HashPolicy{{PolicySpecifier: &route.RouteAction_HashPolicy_ConnectionProperties_{
			ConnectionProperties: &route.RouteAction_HashPolicy_ConnectionProperties{SourceIp: true},
		}}}
	}
	return &route.RouteConfiguration{
		Name: name, ValidateClusters: wrapperspb.Bool(false), ResponseHeadersToRemove: []string{loadHeader},
		VirtualHosts: []*route.VirtualHost{{Name: cluster, Domains: []string{"*"}, Routes: []*route.Route{{
			Match:  &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: "/"}},
			Action: &route.Route_Route{Route: action},
		}}}},
	}
}

// outListener takes connections to an address of a Service.
func outListener(at netip.AddrPort, b *upstream, bound bool) *listener.Listener {
	return &listener.Listener{
		Name: outName(at), Address: socketAddress(at), BindToPort: wrapperspb.Bool(bound), TrafficDirection: core.TrafficDirection_OUTBOUND,
		FilterChains: []*listener.FilterChain{{Filters: outFilters(b)}},
	}
}

// anyAddress is where redirected connections arrive.
func anyAddress(port uint16, ipv6 bool) *core.Address {
	if !ipv6 {
		return socketAddress(netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	}
	a := socketAddress(netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	a.GetSocketAddress().Ipv4Compat = true
	return a
}

// servicesChain is the filter chain of connections to virtual addresses.
const servicesChain = "services"

// outVirtual takes redirected connections. Those to a learned address go to its listener; those to other
// addresses of Services and workloads to a cluster that is asked for; all others to rest. Where that is
// not Passthrough, workloads without a proxy are not reached by their addresses.
func outVirtual(services, workloads []netip.Prefix, rest string, ipv6 bool) *listener.Listener {
	l := &listener.Listener{
		Name: OutVirtual, Address: anyAddress(outVirtualPort, ipv6), UseOriginalDst: wrapperspb.Bool(true),
		TrafficDirection:   core.TrafficDirection_OUTBOUND,
		DefaultFilterChain: &listener.FilterChain{Name: rest, Filters: []*listener.Filter{tcpTo(rest, rest, false)}},
	}
	byAddress := vipPrefix
	if rest != Passthrough {
		byAddress = memberPrefix
	}
	for _, c := range []struct {
		name, prefix string
		ranges       []netip.Prefix
	}{{servicesChain, vipPrefix, services}, {"workloads", byAddress, workloads}} {
		if len(c.ranges) > 0 {
			l.FilterChains = append(l.FilterChains, lookedUp(c.name, c.prefix, c.ranges))
		}
	}
	return l
}

// lookedUp is the chain of connections to addresses whose clusters are asked for.
func lookedUp(name, prefix string, ranges []netip.Prefix) *listener.FilterChain {
	match := &listener.FilterChainMatch{}
	for _, p := range ranges {
		match.PrefixRanges = append(match.PrefixRanges, &core.CidrRange{
			AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits())),
		})
	}
	return &listener.FilterChain{Name: name, FilterChainMatch: match, Filters: []*listener.Filter{
		networkFilter("envoy.filters.network.set_filter_state", &setfilter.Config{OnNewConnection: []*setstate.FilterStateValue{{
			Key: &setstate.FilterStateValue_ObjectKey{ObjectKey: "envoy.tcp_proxy.cluster"},
			Value: &setstate.FilterStateValue_FormatString{FormatString: &core.SubstitutionFormatString{
				Format: &core.SubstitutionFormatString_TextFormatSource{TextFormatSource: &core.DataSource{
					Specifier: &core.DataSource_InlineString{InlineString: prefix + "%DOWNSTREAM_LOCAL_ADDRESS%"},
				}},
			}},
		}}}),
		networkFilter("envoy.filters.network.tcp_proxy", &tcpproxy.TcpProxy{
			StatPrefix: statOut, ClusterSpecifier: &tcpproxy.TcpProxy_Cluster{Cluster: Blackhole},
			MaxConnectAttempts: wrapperspb.UInt32(connectAttempts), IdleTimeout: durationpb.New(idleTimeout),
			OnDemand: &tcpproxy.TcpProxy_OnDemand{OdcdsConfig: adsSource(), Timeout: durationpb.New(onDemandTimeout)},
		}),
	}}
}

// inVirtual takes redirected connections to ports that the workload does not declare.
func inVirtual(rest string, ipv6 bool) *listener.Listener {
	return &listener.Listener{
		Name: InVirtual, Address: anyAddress(inVirtualPort, ipv6), UseOriginalDst: wrapperspb.Bool(true),
		TrafficDirection:   core.TrafficDirection_INBOUND,
		DefaultFilterChain: &listener.FilterChain{Name: rest, Filters: []*listener.Filter{tcpTo(rest, rest, false)}},
	}
}

// Mode is what a port asks of its clients.
type Mode uint8

// The modes. Plain asks for nothing, Permissive admits clients of the mesh by mutual TLS and
// others without, Strict only those of the mesh.
const (
	Plain Mode = iota
	Permissive
	Strict
)

// inbound is what a port of a workload is made of.
type inbound struct {
	port     int32
	at       netip.AddrPort
	bound    bool
	protocol Protocol
	mode     Mode
	// serverFirst: the server speaks first, so nobody can wait for the client's first bytes.
	serverFirst bool
	domain      string
	// clients are other trust domains whose clients get in.
	clients      []string
	fileIdentity bool
	policies     inPolicies
}

// inListener takes connections to a port of the workload.
func inListener(in *inbound) *listener.Listener {
	l := &listener.Listener{
		Name: inName(in.port), Address: socketAddress(in.at), BindToPort: wrapperspb.Bool(in.bound), TrafficDirection: core.TrafficDirection_INBOUND,
	}
	plain := &listener.FilterChain{Name: "plain", Filters: in.filters(false)}
	if in.mode == Plain || in.mode == Permissive && in.serverFirst {
		l.FilterChains = []*listener.FilterChain{plain}
		return l
	}
	mutual := func(name string, match *listener.FilterChainMatch) *listener.FilterChain {
		return &listener.FilterChain{Name: name, FilterChainMatch: match, Filters: in.filters(true), TransportSocket: in.serverTLS()}
	}
	l.ListenerFilters = []*listener.ListenerFilter{{
		Name:       "envoy.filters.listener.tls_inspector",
		ConfigType: &listener.ListenerFilter_TypedConfig{TypedConfig: packed(&inspector.TlsInspector{})},
	}}
	l.ListenerFiltersTimeout, l.ContinueOnListenerFiltersTimeout = durationpb.New(inspectorTimeout), true
	// Envoy keeps the connections of a chain that is the same in both modes. One that was cut would
	// take a request of the client's pool along.
	l.FilterChains = []*listener.FilterChain{
		mutual("mtls", &listener.FilterChainMatch{TransportProtocol: "tls", ApplicationProtocols: []string{alpn}}),
	}
	if in.mode == Strict {
		l.FilterChains = append(l.FilterChains, mutual("strict", nil)) // clients of the mesh without a proxy
		return l
	}
	// The application's own TLS is not a request that can be read.
	own := &listener.FilterChain{
		Name: "tls", FilterChainMatch: &listener.FilterChainMatch{TransportProtocol: "tls"},
		Filters: in.policies.tcp(localName(in.port)),
	}
	l.FilterChains = append(l.FilterChains, own, plain)
	return l
}

func (in *inbound) filters(named bool) []*listener.Filter {
	if in.protocol == TCP {
		return in.policies.tcp(localName(in.port))
	}
	return in.policies.http(inName(in.port), named)
}

func (in *inbound) serverTLS() *core.TransportSocket {
	if in.policies.set {
		return serverTLS(in.domain, in.clients, in.fileIdentity, translate.TLSParameters(&in.policies.port.TLS))
	}
	return serverTLS(in.domain, in.clients, in.fileIdentity, nil)
}
