package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	xds "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/federation"
	federationstream "github.com/proxima-mesh/proxima/internal/federation/stream"
)

const typeURL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

// server notifies streams of a change.
type server interface {
	name() string
	// method the clients call.
	method() string
	grpcServer() *grpc.Server
	// change sends the resource's new state to every stream.
	change(r *endpoint.ClusterLoadAssignment) error
}

// assignment is one of the resources: 10 endpoints, of which one depends on the
// round.
func assignment(i, round int) *endpoint.ClusterLoadAssignment {
	const endpoints = 10
	a := &endpoint.ClusterLoadAssignment{ClusterName: fmt.Sprintf("cluster-%05d", i), Endpoints: []*endpoint.LocalityLbEndpoints{{}}}
	for e := range endpoints {
		port := uint32(8080)
		if e == 0 {
			port += uint32(round)
		}
		a.Endpoints[0].LbEndpoints = append(a.Endpoints[0].LbEndpoints, &endpoint.LbEndpoint{
			HostIdentifier: &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{Address: &core.Address{
				Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
					Address:       fmt.Sprintf("10.%d.%d.%d", i/250, i%250, e),
					PortSpecifier: &core.SocketAddress_PortValue{PortValue: port},
				}},
			}}},
		})
	}
	return a
}

// floor is the least that a server can do: marshal once and write the same
// bytes to every stream, one after the other. It keeps no state and reads
// acknowledgements without looking at them.
type floor struct {
	snapshot []byte
	mu       sync.Mutex
	streams  []grpc.ServerStream
}

func newFloor(resources int) (server, error) {
	var all []*discovery.Resource
	for i := range resources {
		r, err := wrap(assignment(i, -1))
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	b, err := proto.Marshal(&discovery.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: "0", Resources: all})
	return &floor{snapshot: b}, err
}

func wrap(a *endpoint.ClusterLoadAssignment) (*discovery.Resource, error) {
	body, err := anypb.New(a)
	return &discovery.Resource{Name: a.ClusterName, Version: "1", Resource: body}, err
}

func (f *floor) name() string   { return "floor" }
func (f *floor) method() string { return "/bench.Floor/Stream" }

func (f *floor) grpcServer() *grpc.Server {
	s := grpc.NewServer(grpc.ForceServerCodecV2(raw{}))
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "bench.Floor", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Stream", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error { return f.serve(stream) },
	}}}, f)
	return s
}

func (f *floor) serve(stream grpc.ServerStream) error {
	f.mu.Lock()
	err := stream.SendMsg(f.snapshot)
	f.streams = append(f.streams, stream)
	f.mu.Unlock()
	for err == nil {
		var request []byte
		err = stream.RecvMsg(&request)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams = slices.DeleteFunc(f.streams, func(s grpc.ServerStream) bool { return s == stream })
	return err
}

func (f *floor) change(a *endpoint.ClusterLoadAssignment) error {
	r, err := wrap(a)
	if err != nil {
		return err
	}
	b, err := proto.Marshal(&discovery.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: "1", Resources: []*discovery.Resource{r}})
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, stream := range f.streams {
		if err := stream.SendMsg(b); err != nil {
			return err
		}
	}
	return nil
}

// ours is the product's engine and transport.
type ours struct {
	scope *delta.Scope
	at    delta.Position
}

func newOurs(resources int) (server, error) {
	o := &ours{scope: delta.NewScope(delta.Options{}), at: delta.Position{Epoch: 1, Sequence: 1}}
	var all []delta.Resource
	for i := range resources {
		r, err := marshal(assignment(i, -1))
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	_, err := o.scope.Replace(o.at, all)
	return o, err
}

func marshal(a *endpoint.ClusterLoadAssignment) (delta.Resource, error) {
	body, err := proto.Marshal(a)
	return delta.Resource{Type: typeURL, Name: a.ClusterName, Body: body}, err
}

func (o *ours) name() string   { return "proxima" }
func (o *ours) method() string { return "/bench.Ours/Stream" }

func (o *ours) grpcServer() *grpc.Server {
	s := grpc.NewServer(stream.ServerOptions()...)
	stream.NewServer(stream.ServerConfig{Admit: func(context.Context, *core.Node) (stream.Admission, error) {
		return stream.Admission{Scope: o.scope}, nil
	}}).Register(s, "bench.Ours", "Stream")
	return s
}

func (o *ours) change(a *endpoint.ClusterLoadAssignment) error {
	r, err := marshal(a)
	if err != nil {
		return err
	}
	o.at.Sequence++
	_, err = o.scope.Apply(o.at, []delta.Change{{Resource: r}})
	return err
}

// zones is ours as global sends to zones: the same engine, below the core of their
// synchronisation. Zones ask for compression, which none of the clients here does.
type zones struct{ *ours }

func newZones(resources int) (server, error) {
	o, err := newOurs(resources)
	if err != nil {
		return nil, err
	}
	return zones{o.(*ours)}, nil
}

func (z zones) name() string   { return "zones" }
func (z zones) method() string { return "/proxima.federation.v1.GlobalToZoneSync/Stream" }

func (z zones) grpcServer() *grpc.Server {
	s := grpc.NewServer(stream.ServerOptions()...)
	federationstream.NewGlobal(federationstream.GlobalConfig{
		// No client checks its health.
		Timeout: 24 * time.Hour,
		Admit: func(context.Context) (federationstream.Admission, error) {
			return federationstream.Admission{Zone: "east", Outlet: z}, nil
		},
	}).Register(s)
	return s
}

// Changed implements federation.Outlet.
func (z zones) Changed() <-chan struct{} { return z.scope.Changed() }

// Sender implements federation.Outlet.
func (z zones) Sender(string) federation.SenderConfig {
	return federation.SenderConfig{
		Types:      []federation.Type{{Name: typeURL, Direction: federation.GlobalToZone}},
		StoreEpoch: "e", Scope: func(string) *delta.Scope { return z.scope },
	}
}

// linear is go-control-plane's LinearCache behind its own server.
type linear struct{ cache *cache.LinearCache }

func newLinear(resources int) (server, error) {
	all := map[string]types.Resource{}
	for i := range resources {
		a := assignment(i, -1)
		all[a.ClusterName] = a
	}
	return &linear{cache: cache.NewLinearCache(typeURL, cache.WithInitialResources(all))}, nil
}

func (l *linear) name() string { return "LinearCache" }
func (l *linear) method() string {
	return "/envoy.service.endpoint.v3.EndpointDiscoveryService/DeltaEndpoints"
}

func (l *linear) grpcServer() *grpc.Server {
	s := grpc.NewServer()
	endpointservice.RegisterEndpointDiscoveryServiceServer(s, xds.NewServer(context.Background(), l.cache, nil))
	return s
}

func (l *linear) change(a *endpoint.ClusterLoadAssignment) error {
	return l.cache.UpdateResource(a.ClusterName, a)
}
