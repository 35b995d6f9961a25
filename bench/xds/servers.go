package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcp "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	peer "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	deltastream "github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/memory"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
	"github.com/proxima-mesh/proxima/internal/xds"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// server under test, in this process.
type server interface {
	name() string
	// asks is what the stream of a proxy asks for that uses Services.
	asks(proxy int, services []int) asking
	// set the endpoints of the first Service, to all who hold them.
	set(slice *discoveryv1.EndpointSlice) error
	address() string
	stop()
}

// listening is a gRPC server on loopback.
type listening struct {
	grpc *grpc.Server
	at   string
}

func listen(register func(*grpc.Server), options ...grpc.ServerOption) (listening, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return listening{}, err
	}
	s := listening{grpc.NewServer(options...), l.Addr().String()}
	register(s.grpc)
	go func() { _ = s.grpc.Serve(l) }() // its end is stop
	return s, nil
}

func (l listening) address() string { return l.at }
func (l listening) stop()           { l.grpc.Stop() }

// floor is the least that a server can do: it marshals once and writes the same bytes to every
// stream, one after the other, and looks at no request after the first.
type floor struct {
	listening
	mu      sync.Mutex
	streams []grpc.ServerStream
}

func newFloor(plan) (server, error) {
	f := &floor{}
	var err error
	f.listening, err = listen(func(s *grpc.Server) {
		s.RegisterService(&grpc.ServiceDesc{
			ServiceName: "envoy.service.discovery.v3.AggregatedDiscoveryService", HandlerType: (*any)(nil),
			Streams: []grpc.StreamDesc{{StreamName: "DeltaAggregatedResources", ServerStreams: true, ClientStreams: true,
				Handler: func(_ any, s grpc.ServerStream) error { return f.serve(s) }}},
		}, f)
	}, grpc.ForceServerCodec(wire.Codec{}))
	return f, err
}

func (f *floor) serve(s grpc.ServerStream) error {
	f.mu.Lock()
	f.streams = append(f.streams, s)
	frame, err := floorFrame(turned(0, 0))
	if err == nil {
		err = s.SendMsg(&frame)
	}
	f.mu.Unlock()
	for err == nil {
		var request wire.Frame
		err = s.RecvMsg(&request)
	}
	return err
}

func floorFrame(slice *discoveryv1.EndpointSlice) (wire.Frame, error) {
	body, err := anypb.New(assignment(slice))
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&discovery.DeltaDiscoveryResponse{TypeUrl: wire.Endpoint, Nonce: "1", Resources: []*discovery.Resource{
		{Name: clusterOf(0), Version: "1", Resource: body},
	}})
}

func (f *floor) name() string { return "floor" }

func (f *floor) asks(proxy int, _ []int) asking {
	return asking{id: nodeID(proxyName(proxy)), types: []string{wire.Endpoint}, names: map[string][]string{wire.Endpoint: {clusterOf(0)}}}
}

func (f *floor) set(slice *discoveryv1.EndpointSlice) error {
	frame, err := floorFrame(slice)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.streams {
		err = errors.Join(err, s.SendMsg(&frame))
	}
	return err
}

// ours is the product: objects in memory, tables, resources and the server.
type ours struct {
	listening
	objects *memory.Client
	builder *build.Builder
	end     context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	roots []*x509.Certificate
}

func newOurs(p plan) (server, error) { return startOurs(p, nil) }

// startOurs with proxies, and one more Dataplane, if not nil.
func startOurs(p plan, extra *meshv1alpha1.Dataplane, roots ...*x509.Certificate) (*ours, error) {
	o := &ours{objects: memory.New(kind.All()...), roots: roots}
	ctx, end := context.WithCancel(context.Background())
	o.end = end
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{corev1.LabelTopologyZone: "a"}}}
	m := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: meshv1alpha1.DefaultMesh}}
	if len(roots) > 0 {
		m.Spec.MTLS = &meshv1alpha1.MeshMTLS{EnabledBackend: "b", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "b", Mode: "Permissive"}}}
	}
	err := o.objects.Put(node, m)
	for i := 0; i < p.services && err == nil; i++ {
		err = o.objects.Put(newService(i), turned(i, 0))
	}
	for i := 0; i < 5*p.streams && err == nil; i++ {
		err = o.objects.Put(newDataplane(proxyName(i), proxyAddress(i), usedBy(i, p)))
	}
	if extra != nil && err == nil {
		err = o.objects.Put(extra)
	}
	if err != nil {
		end()
		return nil, err
	}
	tables := catalog.New(catalog.Config{Client: o.objects, Descriptors: kind.All()})
	o.builder = build.NewBuilder(build.Config{Site: "local", Plans: &trafficplan.Table{}, Trust: o.trust})
	sub := tables.Subscribe(build.Tables()...)
	o.running.Go(func() { _ = tables.Run(ctx) })
	o.running.Go(func() { _ = build.Follow(ctx, sub, o.builder) })
	s := xds.New(xds.Config{Builder: o.builder, Admit: func(context.Context, xds.ClientID) error { return nil }})
	o.listening, err = listen(func(g *grpc.Server) { s.Register(g) }, append(deltastream.ServerOptions(),
		grpc.WriteBufferSize(4<<10), grpc.SharedWriteBuffer(true))...) // as the control plane has them
	if err == nil {
		err = errors.Join(tables.WaitSynced(ctx), o.builder.SetTrust())
	}
	return o, err
}

func (o *ours) trust() (*mesh.Trust, error) {
	domain, err := mesh.DomainOf(meshv1alpha1.DefaultMesh, "")
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.roots) == 0 {
		return mesh.NewTrust()
	}
	return mesh.NewTrust(mesh.Bundle{Mesh: meshv1alpha1.DefaultMesh, Domain: domain, Roots: o.roots})
}

func (o *ours) setRoots(roots ...*x509.Certificate) error {
	o.mu.Lock()
	o.roots = roots
	o.mu.Unlock()
	return o.builder.SetTrust()
}

func (o *ours) name() string { return "proxima" }
func (o *ours) asks(proxy int, services []int) asking {
	return sidecarAsks(nodeID(proxyName(proxy)), services)
}
func (o *ours) set(slice *discoveryv1.EndpointSlice) error { return o.objects.Put(slice) }

func (o *ours) stop() {
	o.listening.stop()
	o.end()
	o.running.Wait()
}

// snapshot is go-control-plane's SnapshotCache behind its own server, with one snapshot that all
// proxies share: one for each of them would cost more.
type snapshot struct {
	listening
	cache     cache.SnapshotCache
	version   int
	clusters  []types.Resource
	endpoints []types.Resource
	listeners []types.Resource
}

// sharedID is the one group of nodes.
type sharedID struct{}

func (sharedID) ID(*core.Node) string { return "all" }

func newSnapshot(p plan) (server, error) { return startSnapshot(p, 0) }

// startSnapshot with a listener for the first Service, if the port is not 0.
func startSnapshot(p plan, port uint32) (*snapshot, error) {
	s := &snapshot{cache: cache.NewSnapshotCache(true, sharedID{}, nil)}
	ads := &core.ConfigSource{ResourceApiVersion: core.ApiVersion_V3, ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}}}
	for i := range p.services {
		s.clusters = append(s.clusters, &cluster.Cluster{
			Name: clusterOf(i), ConnectTimeout: durationpb.New(5 * time.Second), ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS},
			EdsClusterConfig: &cluster.Cluster_EdsClusterConfig{EdsConfig: ads},
		})
		s.endpoints = append(s.endpoints, assignment(turned(i, 0)))
	}
	if port > 0 {
		s.clusters = s.clusters[:1]
		config, err := anypb.New(&tcp.TcpProxy{StatPrefix: "out", ClusterSpecifier: &tcp.TcpProxy_Cluster{Cluster: clusterOf(0)}})
		if err != nil {
			return nil, err
		}
		s.listeners = []types.Resource{&listener.Listener{
			Name: "out", Address: socketAddress(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port))),
			FilterChains: []*listener.FilterChain{{Filters: []*listener.Filter{
				{Name: "envoy.filters.network.tcp_proxy", ConfigType: &listener.Filter_TypedConfig{TypedConfig: config}},
			}}},
		}}
	}
	if err := s.publish(); err != nil {
		return nil, err
	}
	var err error
	s.listening, err = listen(func(g *grpc.Server) {
		discovery.RegisterAggregatedDiscoveryServiceServer(g, peer.NewServer(context.Background(), s.cache, nil))
	})
	return s, err
}

func (s *snapshot) publish() error {
	s.version++
	next, err := cache.NewSnapshot(fmt.Sprint(s.version), map[string][]types.Resource{
		wire.Cluster: s.clusters, wire.Endpoint: s.endpoints, wire.Listener: s.listeners,
	})
	if err != nil {
		return err
	}
	return s.cache.SetSnapshot(context.Background(), "all", next)
}

func (s *snapshot) name() string { return "SnapshotCache" }

func (s *snapshot) asks(proxy int, services []int) asking {
	a := asking{id: nodeID(proxyName(proxy)), types: []string{wire.Cluster, wire.Endpoint}, names: map[string][]string{}}
	for _, i := range services { // the wildcard would be all clusters
		a.names[wire.Cluster] = append(a.names[wire.Cluster], clusterOf(i))
		a.names[wire.Endpoint] = append(a.names[wire.Endpoint], clusterOf(i))
	}
	return a
}

func (s *snapshot) set(slice *discoveryv1.EndpointSlice) error {
	s.endpoints = append([]types.Resource{assignment(slice)}, s.endpoints[1:]...)
	return s.publish()
}

// assignment of a slice, for those who have no builder.
func assignment(slice *discoveryv1.EndpointSlice) *endpoint.ClusterLoadAssignment {
	out := &endpoint.ClusterLoadAssignment{
		ClusterName: fmt.Sprintf("%s/%s:%d", slice.Namespace, slice.Name, servicePort), Endpoints: []*endpoint.LocalityLbEndpoints{{}},
	}
	for _, e := range slice.Endpoints {
		at := netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*slice.Ports[0].Port))
		out.Endpoints[0].LbEndpoints = append(out.Endpoints[0].LbEndpoints, &endpoint.LbEndpoint{
			HostIdentifier: &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{Address: socketAddress(at)}},
		})
	}
	return out
}

func socketAddress(at netip.AddrPort) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: at.Addr().String(), PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(at.Port())},
	}}}
}
