package build

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpinspector "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldst "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	inspector "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// What a WorkloadPolicy lets through to destinations that the mesh does not know (passthrough.match).
//
// Envoy looks for the filter chain of a connection step by step (port, address, server name,
// protocol), and never goes back: a chain for port 443 hides all chains without a port from
// connections to it. So there is a chain for each combination of a port and a range that any match
// names, made of all matches that hold for it.

// PassthroughHTTP is the cluster of requests that are let through: as Passthrough, with the version
// of HTTP that the client has.
const PassthroughHTTP = "passthrough-http"

const (
	protocolTLS  = "TLS"
	protocolHTTP = "HTTP"
)

// destination is one match, read.
type destination struct {
	domain   string       // of TLS or HTTP; empty: any
	within   netip.Prefix // invalid: any address
	port     uint32       // 0: any
	protocol string
}

// destinationsOf matches, which were validated.
func destinationsOf(all []meshv1alpha1.PassthroughMatch) []destination {
	var out []destination
	for _, m := range all {
		d := destination{port: uint32(m.Port), protocol: m.Protocol} //nolint:gosec // validation bounds it
		switch m.Type {
		case meshv1alpha1.PassthroughDomain:
			d.domain, d.protocol = m.Value, cmp.Or(m.Protocol, protocolTLS)
		case meshv1alpha1.PassthroughIP:
			a, err := netip.ParseAddr(m.Value)
			if err != nil {
				continue
			}
			a = a.Unmap()
			d.within = netip.PrefixFrom(a, a.BitLen())
		default:
			p, err := netip.ParsePrefix(m.Value)
			if err != nil {
				continue
			}
			d.within = p.Masked()
		}
		out = append(out, d)
	}
	return out
}

// in reports whether a destination says something of all connections to a port and a range.
func (d *destination) in(port uint32, within netip.Prefix) bool {
	if d.port != 0 && d.port != port {
		return false
	}
	return !d.within.IsValid() || within.IsValid() && d.within.Bits() <= within.Bits() && d.within.Contains(within.Addr())
}

// letThrough adds chains for destinations to the listener of redirected connections. services are its
// chains for what the mesh knows, which go before.
func letThrough(l *listener.Listener, all []destination) {
	if len(all) == 0 {
		return
	}
	services := slices.Clone(l.FilterChains)
	ports, ranges := []uint32{0}, []netip.Prefix{{}}
	for _, d := range all {
		ports, ranges = append(ports, d.port), append(ranges, d.within)
	}
	slices.Sort(ports)
	slices.SortFunc(ranges, func(x, y netip.Prefix) int {
		return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Bits(), y.Bits()))
	})
	ports, ranges = slices.Compact(ports), slices.Compact(ranges)
	for _, port := range ports {
		for _, s := range services {
			if port != 0 {
				copied := &listener.FilterChain{Name: fmt.Sprintf("%s:%d", s.Name, port), Filters: s.Filters, FilterChainMatch: &listener.FilterChainMatch{
					PrefixRanges: s.FilterChainMatch.PrefixRanges, DestinationPort: wrapperspb.UInt32(port),
				}}
				l.FilterChains = append(l.FilterChains, copied)
			}
		}
		for _, within := range ranges {
			if !known(services, within) {
				l.FilterChains = append(l.FilterChains, chainsOf(all, port, within)...)
			}
		}
	}
	inspect(l, all)
}

// known reports whether a range is in one of the mesh's own, for which there is a chain: a chain for a part
// of it would go before. Of the addresses of workloads a part may be outside the mesh.
func known(services []*listener.FilterChain, within netip.Prefix) bool {
	if !within.IsValid() {
		return false
	}
	return slices.ContainsFunc(services, func(s *listener.FilterChain) bool {
		return slices.ContainsFunc(s.FilterChainMatch.PrefixRanges, func(r *core.CidrRange) bool {
			a, err := netip.ParseAddr(r.AddressPrefix)
			of := netip.PrefixFrom(a, int(r.PrefixLen.GetValue()))
			return err == nil && (of == within || s.Name == servicesChain && of.Bits() <= within.Bits() && of.Contains(within.Addr()))
		})
	})
}

// chainsOf connections to a port and a range.
func chainsOf(all []destination, port uint32, within netip.Prefix) []*listener.FilterChain {
	var names, hosts []string
	anyTLS, anyHTTP := false, false
	match := func() *listener.FilterChainMatch {
		m := &listener.FilterChainMatch{}
		if port != 0 {
			m.DestinationPort = wrapperspb.UInt32(port)
		}
		if within.IsValid() {
			m.PrefixRanges = []*core.CidrRange{{AddressPrefix: within.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(within.Bits()))}} //nolint:gosec // at most 128
		}
		return m
	}
	at := "passthrough " + strconv.FormatUint(uint64(port), 10)
	if within.IsValid() {
		at += " " + within.String()
	}
	for i := range all {
		d := &all[i]
		switch {
		case !d.in(port, within):
		case d.protocol == protocolTLS && d.domain != "":
			names = append(names, d.domain)
		case d.protocol == protocolTLS:
			anyTLS = true
		case d.protocol == protocolHTTP && d.domain != "":
			hosts = append(hosts, d.domain)
		case d.protocol == protocolHTTP:
			anyHTTP = true
		default: // all connections
			return []*listener.FilterChain{{Name: at, FilterChainMatch: match(), Filters: []*listener.Filter{tcpTo(Passthrough, Passthrough, false)}}}
		}
	}
	var out []*listener.FilterChain
	tls := func(names []string) {
		m := match()
		m.ServerNames, m.TransportProtocol = unique(names), "tls"
		name := at + " TLS"
		if len(names) > 0 {
			name += " by name"
		}
		out = append(out, &listener.FilterChain{Name: name, FilterChainMatch: m, Filters: []*listener.Filter{tcpTo(Passthrough, Passthrough, false)}})
	}
	if anyTLS {
		tls(nil)
	}
	if len(names) > 0 && !anyTLS {
		tls(names)
	}
	if anyHTTP {
		hosts = []string{"*"}
	}
	if len(hosts) > 0 {
		m := match()
		m.TransportProtocol, m.ApplicationProtocols = "raw_buffer", []string{"http/1.0", "http/1.1", "h2c"} // as the inspector names them
		out = append(out, &listener.FilterChain{Name: at + " HTTP", FilterChainMatch: m, Filters: []*listener.Filter{httpThrough(unique(hosts))}})
	}
	if len(out) == 0 && (port != 0 || within.IsValid()) { // what is more general is hidden by other chains of this port or range
		out = append(out, &listener.FilterChain{Name: at + " closed", FilterChainMatch: match(), Filters: []*listener.Filter{tcpTo(Blackhole, Blackhole, false)}})
	}
	return out
}

func unique(all []string) []string {
	slices.Sort(all)
	return slices.Compact(all)
}

// httpThrough lets requests for hosts through, and answers others itself.
func httpThrough(hosts []string) *listener.Filter {
	m := connectionManager("", Passthrough)
	routes := &route.RouteConfiguration{
		Name: Passthrough, IgnorePortInHostMatching: true, ValidateClusters: wrapperspb.Bool(false),
		VirtualHosts: []*route.VirtualHost{{Name: "let through", Domains: hosts, Routes: []*route.Route{{
			Match: &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: "/"}},
			Action: &route.Route_Route{Route: &route.RouteAction{
				ClusterSpecifier: &route.RouteAction_Cluster{Cluster: PassthroughHTTP}, Timeout: durationpb.New(0),
			}},
		}}}},
	}
	if !slices.Contains(hosts, "*") {
		routes.VirtualHosts = append(routes.VirtualHosts, &route.VirtualHost{Name: "others", Domains: []string{"*"}, Routes: []*route.Route{{
			Match: &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: "/"}},
			Action: &route.Route_DirectResponse{DirectResponse: &route.DirectResponseAction{
				Status: 403, Body: &core.DataSource{Specifier: &core.DataSource_InlineString{InlineString: "no passthrough to this host\n"}},
			}},
		}}})
	}
	m.RouteSpecifier = &hcm.HttpConnectionManager_RouteConfig{RouteConfig: routes}
	return networkFilter("envoy.filters.network.http_connection_manager", m)
}

// passthroughHTTP is the cluster of requests that are let through.
func passthroughHTTP() *cluster.Cluster {
	c := originalCluster(PassthroughHTTP, netip.Addr{})
	c.TypedExtensionProtocolOptions = clientsOptions()
	return c
}

// inspect the first bytes of connections to ports of which a match needs to know them. A client that
// waits for its server is let on after the time of the inspector.
func inspect(l *listener.Listener, all []destination) {
	add := func(name string, config *anypb.Any, of ...string) {
		var ports []uint32
		for _, d := range all {
			if slices.Contains(of, d.protocol) {
				ports = append(ports, d.port)
			}
		}
		if len(ports) == 0 {
			return
		}
		slices.Sort(ports)
		f := &listener.ListenerFilter{Name: name, ConfigType: &listener.ListenerFilter_TypedConfig{TypedConfig: config}}
		if ports[0] != 0 {
			f.FilterDisabled = otherPorts(slices.Compact(ports))
		}
		l.ListenerFilters = append(l.ListenerFilters, f)
		l.ListenerFiltersTimeout, l.ContinueOnListenerFiltersTimeout = durationpb.New(inspectorTimeout), true
	}
	// The ports are those that clients wanted to go to, which the listener's own filter finds last.
	l.ListenerFilters = append(l.ListenerFilters, &listener.ListenerFilter{
		Name:       "envoy.filters.listener.original_dst",
		ConfigType: &listener.ListenerFilter_TypedConfig{TypedConfig: packed(&originaldst.OriginalDst{})},
	})
	add("envoy.filters.listener.tls_inspector", packed(&inspector.TlsInspector{}), protocolTLS, protocolHTTP)
	add("envoy.filters.listener.http_inspector", packed(&httpinspector.HttpInspector{}), protocolHTTP)
}

// otherPorts than these.
func otherPorts(ports []uint32) *listener.ListenerFilterChainMatchPredicate {
	var rules []*listener.ListenerFilterChainMatchPredicate
	for _, p := range ports {
		rules = append(rules, &listener.ListenerFilterChainMatchPredicate{Rule: &listener.ListenerFilterChainMatchPredicate_DestinationPortRange{
			DestinationPortRange: &typev3.Int32Range{Start: int32(p), End: int32(p) + 1}, //nolint:gosec // a port
		}})
	}
	is := rules[0]
	if len(rules) > 1 {
		is = &listener.ListenerFilterChainMatchPredicate{Rule: &listener.ListenerFilterChainMatchPredicate_OrMatch{
			OrMatch: &listener.ListenerFilterChainMatchPredicate_MatchSet{Rules: rules},
		}}
	}
	return &listener.ListenerFilterChainMatchPredicate{Rule: &listener.ListenerFilterChainMatchPredicate_NotMatch{NotMatch: is}}
}
