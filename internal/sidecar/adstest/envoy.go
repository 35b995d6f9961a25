package adstest

import (
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	filterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	setstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Pack a message into an Any.
func Pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

// ADS is the source of what comes by the stream that everything comes by.
func ADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3, InitialFetchTimeout: durationpb.New(0),
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}

// Cluster with the endpoints of a service.
func Cluster(name, service string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(time.Second), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: service, EdsConfig: ADS()},
	}
}

// Nowhere is a cluster without endpoints.
func Nowhere(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(time.Second), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
	}
}

// Address of "HOST:PORT".
func Address(t testing.TB, hostPort string) *corev3.Address {
	t.Helper()
	host, text, err := net.SplitHostPort(hostPort)
	port, portErr := strconv.ParseUint(text, 10, 16)
	if err != nil || portErr != nil {
		t.Fatalf("address %q", hostPort)
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
	}}}
}

// Passthrough is a listener for connections that are led to it, which go on to where they were
// for: to the cluster of this name, which is there too.
func Passthrough(t testing.TB, name, address, cluster string) (*listenerv3.Listener, *clusterv3.Cluster) {
	t.Helper()
	l := Listener(t, name, address, cluster)
	l.ListenerFilters = []*listenerv3.ListenerFilter{{
		Name:       "envoy.filters.listener.original_dst",
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: Pack(t, &originaldstv3.OriginalDst{})},
	}}
	return l, &clusterv3.Cluster{
		Name: cluster, ConnectTimeout: durationpb.New(time.Second), LbPolicy: clusterv3.Cluster_CLUSTER_PROVIDED,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST},
	}
}

// Endpoints of a service.
func Endpoints(t testing.TB, service string, addresses ...string) *endpointv3.ClusterLoadAssignment {
	t.Helper()
	var all []*endpointv3.LbEndpoint
	for _, a := range addresses {
		all = append(all, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: Address(t, a)}},
		})
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: service, Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: all}}}
}

// Listener at an address that passes connections on to a cluster.
func Listener(t testing.TB, name, address, cluster string) *listenerv3.Listener {
	t.Helper()
	return listener(t, name, address, &tcpproxyv3.TcpProxy{
		StatPrefix: "tcp", ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster},
	})
}

// OnDemand is a listener whose clusters, "vip|" and its address, are asked for by connections.
func OnDemand(t testing.TB, name, address string) *listenerv3.Listener {
	t.Helper()
	state := &setstatev3.Config{OnNewConnection: []*filterstatev3.FilterStateValue{{
		Key: &filterstatev3.FilterStateValue_ObjectKey{ObjectKey: "envoy.tcp_proxy.cluster"},
		Value: &filterstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: "vip|%DOWNSTREAM_LOCAL_ADDRESS%"},
			}},
		}},
	}}}
	l := listener(t, name, address, &tcpproxyv3.TcpProxy{
		StatPrefix: "vip", ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: "none"},
		OnDemand: &tcpproxyv3.TcpProxy_OnDemand{OdcdsConfig: ADS(), Timeout: durationpb.New(2 * time.Second)},
	})
	first := &listenerv3.Filter{
		Name: "envoy.filters.network.set_filter_state", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: Pack(t, state)},
	}
	l.FilterChains[0].Filters = append([]*listenerv3.Filter{first}, l.FilterChains[0].Filters...)
	return l
}

func listener(t testing.TB, name, address string, filter *tcpproxyv3.TcpProxy) *listenerv3.Listener {
	t.Helper()
	return &listenerv3.Listener{
		Name: name, Address: Address(t, address),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "envoy.filters.network.tcp_proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: Pack(t, filter)},
		}}}},
	}
}

// Echo is a TCP server of a name, which it writes to each connection before it closes it. It
// returns its address.
func Echo(t testing.TB, name string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	EchoOn(t, l, name)
	return l.Addr().String()
}

// EchoOn is Echo on a listener.
func EchoOn(t testing.TB, l net.Listener, name string) {
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintln(conn, name) // a client that has gone does not matter
			_ = conn.Close()
		}
	}()
}

// Ask connects to an address, and returns what Echo wrote; "" if the connection fails.
func Ask(address string, timeout time.Duration) string {
	conn, err := net.DialTimeout("tcp", address, timeout)
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(timeout)) // a failure shows in the read
	buffer := make([]byte, 64)
	n, _ := conn.Read(buffer)
	if n == 0 {
		return ""
	}
	return string(buffer[:n-1])
}
