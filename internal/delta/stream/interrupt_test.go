package stream

import (
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// TestInterrupt: a handler that waits for a message of its client can be made to return an error of
// its own.
func TestInterrupt(t *testing.T) {
	const service, method = "envoy.service.discovery.v3.AggregatedDiscoveryService", "DeltaAggregatedResources"
	why := status.Error(codes.Aborted, "connect again")
	handle := func(_ any, s grpc.ServerStream) error {
		go Interrupt(s.Context(), why)
		var message Encoded
		if err := s.RecvMsg(&message); err == nil {
			return status.Error(codes.Internal, "a message has come")
		}
		return why
	}
	server := grpc.NewServer(ServerOptions()...)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: service, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: method, ServerStreams: true, ClientStreams: true, Handler: handle}},
	}, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }() // its end is Stop
	defer server.Stop()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+service+"/"+method, grpc.ForceCodecV2(Codec()))
	if err != nil {
		t.Fatal(err)
	}
	var answer Encoded
	if err := client.RecvMsg(&answer); status.Code(err) != codes.Aborted {
		t.Errorf("the client gets %v, want %v", err, why)
	}
}
