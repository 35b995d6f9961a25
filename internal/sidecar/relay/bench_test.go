package relay

import (
	"context"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/proxima-mesh/proxima/internal/sidecar/adstest"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// BenchmarkPush is the time from a change at the control plane to the answer of a client that
// answers at once: directly, and by the relay.
func BenchmarkPush(b *testing.B) {
	for _, name := range []string{"direct", "relayed"} {
		b.Run(name, func(b *testing.B) {
			t := newBench(b)
			cp := adstest.New(b)
			server, _ := cp.Start("127.0.0.1:0", t.server)
			var conn *grpc.ClientConn
			var err error
			if name == "direct" {
				config := t.client.Clone()
				config.ServerName = "127.0.0.1"
				conn, err = grpc.NewClient("passthrough:///"+server, grpc.WithTransportCredentials(credentials.NewTLS(config)),
					grpc.WithDefaultCallOptions(grpc.ForceCodec(wire.Codec{})))
			} else {
				t.relay(server)
				conn, err = grpc.NewClient("passthrough:///relay", grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithDefaultCallOptions(grpc.ForceCodec(wire.Codec{})),
					grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
						return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(t.dir, "xds.sock"))
					}))
			}
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			var client sync.WaitGroup
			defer client.Wait()
			defer conn.Close()
			defer cancel()
			client.Go(func() { answer(ctx, b, conn) })
			cp.Set(wire.Endpoint, "web", "0", adstest.Endpoints(b, "web", "127.0.0.1:1"))
			acked := func(n int) {
				cp.Await(b.Context(), "the answer", func(s *adstest.Server) bool { return s.Acks >= n })
			}
			acked(1)
			b.ResetTimer()
			for i := range b.N {
				cp.Set(wire.Endpoint, "web", strconv.Itoa(i+1), adstest.Endpoints(b, "web", "127.0.0.1:"+strconv.Itoa(1+i%60000)))
				acked(i + 2)
			}
			b.StopTimer()
		})
	}
}

// answer as an Envoy that accepts everything, until ctx ends.
func answer(ctx context.Context, b *testing.B, conn *grpc.ClientConn) {
	stream, err := conn.NewStream(ctx, streamDesc(deltaMethod), "/"+discoveryService+"/"+deltaMethod)
	if err != nil {
		b.Error(err)
		return
	}
	say := func(r wire.Request) bool {
		frame := wire.Frame(r.Append(nil))
		return stream.SendMsg(&frame) == nil
	}
	node := append([]byte{0x0a, byte(len(nodeID))}, nodeID...)
	for ok := say(wire.Request{Node: node, TypeURL: wire.Endpoint, Subscribe: []string{"web"}}); ok; {
		var frame wire.Frame
		if stream.RecvMsg(&frame) != nil {
			return
		}
		r, err := wire.ParseResponse(frame)
		if err != nil {
			b.Error(err)
			return
		}
		ok = say(wire.Request{TypeURL: r.TypeURL, Nonce: r.Nonce})
	}
}
