package stream

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"

	"github.com/proxima-mesh/proxima/internal/delta"
	deltastream "github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/federation"
)

const benchType = "mesh.proxima.dev/Mesh"

// benchOutlet is one scope of 1,000 objects.
type benchOutlet struct {
	scope    *delta.Scope
	sequence uint64
}

func newBenchOutlet(b *testing.B) *benchOutlet {
	o := &benchOutlet{scope: delta.NewScope(delta.Options{}), sequence: 1}
	var all []delta.Resource
	for n := range 1000 {
		all = append(all, benchResource(b, n, 0))
	}
	if _, err := o.scope.Replace(delta.Position{Epoch: 1, Sequence: 1}, all); err != nil {
		b.Fatal(err)
	}
	return o
}

// benchResource has 2 KB, as a policy of some rules does.
func benchResource(b *testing.B, n int, value uint64) delta.Resource {
	o := &federation.Object{
		Key:     federation.Key{Name: fmt.Sprintf("mesh-%d", n)},
		Payload: []byte(fmt.Sprintf(`{"spec":{"value":%d,"text":%q}}`, value, strings.Repeat("a rule of some length ", 90))),
	}
	body, err := o.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	return delta.Resource{Type: benchType, Name: o.Resource(), Body: body}
}

func (o *benchOutlet) Changed() <-chan struct{} { return o.scope.Changed() }

func (o *benchOutlet) Sender(string) federation.SenderConfig {
	return federation.SenderConfig{
		Types:      []federation.Type{{Name: benchType, Direction: federation.GlobalToZone}},
		StoreEpoch: "e", Scope: func(string) *delta.Scope { return o.scope },
	}
}

// register serves our streams; change sends one changed object to all of them.
func (o *benchOutlet) register(s *grpc.Server) (change func(b *testing.B)) {
	admit := func(context.Context) (Admission, error) { return Admission{Zone: "east", Outlet: o}, nil }
	NewGlobal(GlobalConfig{Timeout: time.Hour, Admit: admit}).Register(s)
	return func(b *testing.B) {
		o.sequence++
		changed := []delta.Change{{Resource: benchResource(b, int(o.sequence%1000), o.sequence)}}
		if _, err := o.scope.Apply(delta.Position{Epoch: 1, Sequence: o.sequence}, changed); err != nil {
			b.Fatal(err)
		}
	}
}

// floor is the least that a server can do: it marshals a response once and writes the
// bytes to every stream.
type floor struct {
	mu       sync.Mutex
	streams  map[chan encoded]bool
	sequence uint64
}

// encoded is a marshalled message.
type encoded []byte

// Parts implements deltastream.Marshalled.
func (e encoded) Parts() [][]byte { return [][]byte{e} }

func (f *floor) register(s *grpc.Server) (change func(b *testing.B)) {
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: globalToZoneService, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: streamMethod, ServerStreams: true, ClientStreams: true, Handler: f.serve}},
	}, f)
	return func(b *testing.B) {
		f.sequence++
		r := benchResource(b, int(f.sequence%1000), f.sequence)
		scope := delta.NewScope(delta.Options{})
		if _, err := scope.Replace(delta.Position{Epoch: 1, Sequence: f.sequence}, []delta.Resource{r}); err != nil {
			b.Fatal(err)
		}
		session := delta.NewSession(scope)
		if err := session.Step(delta.Request{Type: benchType}); err != nil {
			b.Fatal(err)
		}
		frame, err := session.Next()
		if err != nil {
			b.Fatal(err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for c := range f.streams {
			c <- encoded(frame.Data)
		}
	}
}

func (f *floor) serve(_ any, s grpc.ServerStream) error {
	c := make(chan encoded, 16)
	go func() {
		for s.RecvMsg(&discovery.DeltaDiscoveryRequest{}) == nil {
		}
	}()
	if err := s.SendMsg(&discovery.DeltaDiscoveryResponse{}); err != nil {
		return err
	}
	f.mu.Lock()
	f.streams[c] = true
	f.mu.Unlock()
	for {
		select {
		case m := <-c:
			if err := s.SendMsg(m); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

// BenchmarkFanOut is the time from a change until the last of 50 zones has it, each with
// a connection of its own over loopback, for our engine and for the floor.
func BenchmarkFanOut(b *testing.B) {
	for _, compressed := range []bool{false, true} {
		for _, name := range []string{"floor", "ours"} {
			b.Run(fmt.Sprintf("gzip=%t/%s", compressed, name), func(b *testing.B) {
				server := grpc.NewServer(deltastream.ServerOptions()...)
				var change func(*testing.B)
				if name == "floor" {
					change = (&floor{streams: map[chan encoded]bool{}}).register(server)
				} else {
					change = newBenchOutlet(b).register(server)
				}
				benchFanOut(b, server, change, compressed)
			})
		}
	}
}

func benchFanOut(b *testing.B, server *grpc.Server, change func(*testing.B), compressed bool) {
	const zones = 50
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	ctx, cancel := context.WithCancel(context.Background())
	arrived := make(chan struct{}, 100*zones)
	var conns []*grpc.ClientConn
	for range zones {
		conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), append(deltastream.DialOptions(),
			grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			b.Fatal(err)
		}
		conns = append(conns, conn)
		running.Go(func() { benchZone(ctx, b, conn, compressed, arrived) })
	}
	wait := func() {
		for range zones {
			<-arrived
		}
	}
	wait() // the first state
	for b.Loop() {
		change(b)
		wait()
	}
	b.StopTimer()
	cancel()
	for _, c := range conns {
		_ = c.Close()
	}
	server.Stop()
	running.Wait()
}

// benchZone acknowledges what it gets, and counts what is complete.
func benchZone(ctx context.Context, b *testing.B, conn *grpc.ClientConn, compressed bool, arrived chan<- struct{}) {
	options := []grpc.CallOption{grpc.ForceCodecV2(deltastream.Codec())}
	if compressed {
		options = append(options, grpc.UseCompressor(gzip.Name))
	}
	s, err := conn.NewStream(ctx, streamDesc(), globalToZoneMethod, options...)
	if err == nil {
		err = s.SendMsg(&discovery.DeltaDiscoveryRequest{TypeUrl: benchType})
	}
	if err != nil {
		b.Error(err)
		return
	}
	for first := true; ; first = false {
		m := &discovery.DeltaDiscoveryResponse{}
		if s.RecvMsg(m) != nil {
			return
		}
		if m.GetNonce() != "" {
			_ = s.SendMsg(&discovery.DeltaDiscoveryRequest{TypeUrl: benchType, ResponseNonce: m.GetNonce()})
		}
		if m.GetSystemVersionInfo() != "" || first && m.GetNonce() == "" {
			arrived <- struct{}{}
		}
	}
}
