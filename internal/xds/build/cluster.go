package build

import (
	"math"
	"net/netip"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

// Defaults of backends, which break nothing: no limit of requests, and a connection that fails
// is tried elsewhere.
const (
	connectTimeout   = 5 * time.Second
	outlierInterval  = 5 * time.Second
	outlierEjection  = 10 * time.Second
	outlierFailures  = 3
	panicPercent     = 1
	connectAttempts  = 3
	idleTimeout      = time.Hour
	onDemandTimeout  = 2 * time.Second
	inspectorTimeout = 200 * time.Millisecond
	// overProvisioning makes a zone spill over once less than 71 % of it is healthy.
	overProvisioning = 141
)

// inPassthroughSource is where connections to ports that are not declared come from, so that
// their redirection leaves them alone.
var inPassthroughSource = netip.MustParseAddr("127.0.0.6")

func packed(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic(err) // messages of this package are valid UTF-8: names are of DNS
	}
	return a
}

// adsSource is where a resource refers to another.
func adsSource() *core.ConfigSource {
	return &core.ConfigSource{
		ResourceApiVersion:    core.ApiVersion_V3,
		ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}},
	}
}

func selfSource() *core.ConfigSource {
	return &core.ConfigSource{
		ResourceApiVersion:    core.ApiVersion_V3,
		ConfigSourceSpecifier: &core.ConfigSource_Self{Self: &core.SelfConfigSource{}},
	}
}

// upstream is what the cluster of a service port is made of.
type upstream struct {
	port     ServicePort
	protocol Protocol
	// undeclared: requests come by routes, and the port does not say what it speaks. It is spoken to
	// as its clients speak, HTTP/1 or HTTP/2.
	undeclared bool
	affinity   bool
	grpc       bool
	// static is the only endpoint; invalid: endpoints have a resource of their own.
	static netip.AddrPort
	// outside is where a service outside every mesh is; nil: it is none, or proxies do not connect
	// to it by themselves.
	outside *outside
	tls     *clientTLS
	// cluster and endpoints are the names of the cluster, and of its endpoints.
	cluster, endpoints string
	// What policies and routes say; settings are nil where nothing is said, and policed reports
	// whether a BackendPolicy does.
	settings *policy.Backend
	policed  bool
	routes   []policy.Route
	tcp      []policy.RouteBackend
	said     *said
	// supervised: its clients are Envoys with a supervisor.
	supervised bool
}

// http reports whether requests of HTTP go there.
func (u *upstream) http() bool { return u.protocol != TCP || u.undeclared }

// upstreamCluster makes the cluster of a service port, under a name, with what policies say.
func upstreamCluster(name string, b *upstream) *cluster.Cluster {
	c := &cluster.Cluster{
		Name: name, ConnectTimeout: durationpb.New(connectTimeout),
		LrsServer: selfSource(),
		LbPolicy:  cluster.Cluster_ROUND_ROBIN,
		CircuitBreakers: &cluster.CircuitBreakers{Thresholds: []*cluster.CircuitBreakers_Thresholds{{
			MaxConnections: unlimited(), MaxPendingRequests: unlimited(), MaxRequests: unlimited(), MaxRetries: unlimited(),
		}}},
	}
	switch {
	case b.outside != nil:
		b.outside.on(c)
	case b.static.IsValid():
		c.ClusterDiscoveryType = &cluster.Cluster_Type{Type: cluster.Cluster_STATIC}
		c.LoadAssignment = oneEndpoint(name, b.static)
	default:
		c.ClusterDiscoveryType = &cluster.Cluster_Type{Type: cluster.Cluster_EDS}
		c.EdsClusterConfig = &cluster.Cluster_EdsClusterConfig{EdsConfig: adsSource(), ServiceName: b.endpoints}
	}
	if b.affinity {
		c.LbPolicy = cluster.Cluster_RING_HASH
	}
	if b.grpc {
		c.CircuitBreakers.Thresholds[0] = &cluster.CircuitBreakers_Thresholds{MaxRequests: unlimited()}
		if b.policed {
			translate.GRPCCluster(c, b.settings)
		}
		b.tls.onGRPC(c)
		return c
	}
	if b.http() && !b.affinity {
		c.LbPolicy = cluster.Cluster_LEAST_REQUEST
	}
	c.CommonLbConfig = &cluster.Cluster_CommonLbConfig{
		HealthyPanicThreshold: &typev3.Percent{Value: panicPercent},
		LocalityConfigSpecifier: &cluster.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &cluster.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
		},
	}
	c.OutlierDetection = &cluster.OutlierDetection{
		SplitExternalLocalOriginErrors: true, ConsecutiveLocalOriginFailure: wrapperspb.UInt32(outlierFailures),
		EnforcingConsecutive_5Xx: wrapperspb.UInt32(0), EnforcingSuccessRate: wrapperspb.UInt32(0),
		EnforcingLocalOriginSuccessRate: wrapperspb.UInt32(0),
		Interval:                        durationpb.New(outlierInterval), BaseEjectionTime: durationpb.New(outlierEjection),
		MaxEjectionPercent: wrapperspb.UInt32(100),
	}
	c.TypedExtensionProtocolOptions = httpOptions(b.protocol)
	if b.undeclared {
		c.TypedExtensionProtocolOptions = clientsOptions()
	}
	policedCluster(c, b)
	b.tls.on(c)
	return c
}

func unlimited() *wrapperspb.UInt32Value { return wrapperspb.UInt32(math.MaxUint32) }

// httpOptions of upstreams; nil for TCP.
func httpOptions(p Protocol) map[string]*anypb.Any {
	explicit := &httpv3.HttpProtocolOptions_ExplicitHttpConfig{}
	switch p {
	case TCP:
		return nil
	case HTTP2:
		explicit.ProtocolConfig = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &core.Http2ProtocolOptions{}}
	default:
		explicit.ProtocolConfig = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &core.Http1ProtocolOptions{}}
	}
	return map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": packed(&httpv3.HttpProtocolOptions{
		CommonHttpProtocolOptions: &core.HttpProtocolOptions{IdleTimeout: durationpb.New(idleTimeout)},
		UpstreamProtocolOptions:   &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: explicit},
	})}
}

// clientsOptions are those of an upstream that is spoken to as its clients speak.
func clientsOptions() map[string]*anypb.Any {
	return map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": packed(&httpv3.HttpProtocolOptions{
		CommonHttpProtocolOptions: &core.HttpProtocolOptions{IdleTimeout: durationpb.New(idleTimeout)},
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
			UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
				HttpProtocolOptions: &core.Http1ProtocolOptions{}, Http2ProtocolOptions: &core.Http2ProtocolOptions{},
			},
		},
	})}
}

// emptyCluster has no endpoint: connections to it are refused at once.
func emptyCluster(name string) *cluster.Cluster {
	return &cluster.Cluster{
		Name: name, ConnectTimeout: durationpb.New(connectTimeout),
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_STATIC},
		LoadAssignment:       &endpoint.ClusterLoadAssignment{ClusterName: name},
	}
}

// originalCluster connects to where the client wanted to go.
func originalCluster(name string, from netip.Addr) *cluster.Cluster {
	c := &cluster.Cluster{
		Name: name, ConnectTimeout: durationpb.New(connectTimeout), LbPolicy: cluster.Cluster_CLUSTER_PROVIDED,
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_ORIGINAL_DST},
		CircuitBreakers: &cluster.CircuitBreakers{Thresholds: []*cluster.CircuitBreakers_Thresholds{{
			MaxConnections: unlimited(), MaxPendingRequests: unlimited(), MaxRequests: unlimited(),
		}}},
	}
	if from.IsValid() {
		c.UpstreamBindConfig = &core.BindConfig{SourceAddress: socketAddress(netip.AddrPortFrom(from, 0)).GetSocketAddress()}
	}
	return c
}

// localCluster is the workload itself, on one of its ports.
func localCluster(name string, at netip.AddrPort, protocol Protocol) *cluster.Cluster {
	c := &cluster.Cluster{
		Name: name, ConnectTimeout: durationpb.New(connectTimeout),
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_STATIC},
		LoadAssignment:       oneEndpoint(name, at),
		CircuitBreakers: &cluster.CircuitBreakers{Thresholds: []*cluster.CircuitBreakers_Thresholds{{
			MaxConnections: unlimited(), MaxPendingRequests: unlimited(), MaxRequests: unlimited(), MaxRetries: unlimited(),
		}}},
		TypedExtensionProtocolOptions: httpOptions(protocol),
	}
	return c
}

func oneEndpoint(name string, at netip.AddrPort) *endpoint.ClusterLoadAssignment {
	return &endpoint.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints:   []*endpoint.LocalityLbEndpoints{{LbEndpoints: []*endpoint.LbEndpoint{lbEndpoint(at)}}},
	}
}

func lbEndpoint(at netip.AddrPort) *endpoint.LbEndpoint {
	return &endpoint.LbEndpoint{HostIdentifier: &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{Address: socketAddress(at)}}}
}

func socketAddress(at netip.AddrPort) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: at.Addr().String(), PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(at.Port())},
	}}}
}
