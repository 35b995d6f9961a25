package relay

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	sidecarv1 "github.com/proxima-mesh/proxima/api/sidecar/v1"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// asker is a control plane with one stream of calls.
type asker struct {
	sidecarv1.UnimplementedCallsServer
	use func(grpc.BidiStreamingServer[sidecarv1.Answer, sidecarv1.Call]) error
}

func (a asker) Attend(s grpc.BidiStreamingServer[sidecarv1.Answer, sidecarv1.Call]) error {
	return a.use(s)
}

// TestAttend: the supervisor says hello, answers in parts, refuses, and ends what is cancelled.
func TestAttend(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2*callPart+1)
	begun, ended := make(chan struct{}), make(chan struct{})
	r := New(Config{Node: "default/shop/web-1", Version: "v1.2.3", Logger: slog.New(slog.DiscardHandler), Answer: func(
		ctx context.Context, question, argument string,
	) ([]byte, error) {
		switch question {
		case "long":
			return []byte(long + argument), nil
		case "waits":
			close(begun)
			<-ctx.Done()
			close(ended)
			return nil, ctx.Err()
		}
		return nil, status.Error(codes.Unimplemented, "what?")
	}})
	result := make(chan error, 1)
	server := grpc.NewServer()
	sidecarv1.RegisterCallsServer(server, asker{use: func(s grpc.BidiStreamingServer[sidecarv1.Answer, sidecarv1.Call]) error {
		result <- converse(t, s, long, begun, ended)
		return nil
	}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }() // its end is Stop
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(wire.Codec{})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = r.attendOn(t.Context(), conn) // it ends with the stream
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// converse is what the control plane asks.
func converse(t *testing.T, s grpc.BidiStreamingServer[sidecarv1.Answer, sidecarv1.Call], long string, begun, ended chan struct{}) error {
	hello, err := s.Recv()
	if err != nil {
		return err
	}
	if h := hello.GetHello(); h.GetNode() != "default/shop/web-1" || h.GetVersion() != "v1.2.3" {
		t.Errorf("hello %v", h)
	}
	for _, c := range []*sidecarv1.Call{{Id: 1, Question: "waits"}, {Id: 2, Question: "long", Argument: "!"}} {
		if err := s.Send(c); err != nil {
			return err
		}
	}
	<-begun
	var body []byte
	for parts := 1; ; parts++ {
		a, err := s.Recv()
		if err != nil {
			return err
		}
		if body = append(body, a.GetPart()...); a.GetId() != 2 {
			t.Errorf("an answer to %d", a.GetId())
		}
		if a.GetLast() {
			if string(body) != long+"!" || parts != 3 {
				t.Errorf("%d bytes in %d parts", len(body), parts)
			}
			break
		}
	}
	if err := s.Send(&sidecarv1.Call{Id: 1, Cancelled: true}); err != nil {
		return err
	}
	<-ended
	if err := s.Send(&sidecarv1.Call{Id: 3, Question: "else"}); err != nil {
		return err
	}
	for {
		a, err := s.Recv()
		if err != nil {
			return err
		}
		if a.GetId() == 1 {
			continue // of the call that was cancelled
		}
		if a.GetId() != 3 || codes.Code(a.GetCode()) != codes.Unimplemented || a.GetMessage() != "what?" {
			t.Errorf("a refusal: %v", a)
		}
		return nil
	}
}
