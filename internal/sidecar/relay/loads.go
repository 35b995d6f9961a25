package relay

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// loads passes load reports of an Envoy on. Each of them has a Node of 61 kB, of which the
// control plane needs little, once. What is reported while no control plane is there is lost, as
// it is if Envoy reports to it directly.
func (r *Relay) loads(stream grpc.ServerStream) error {
	reports := make(chan wire.Frame)
	ended := make(chan error, 1)
	ctx := stream.Context()
	go func() {
		for {
			var frame wire.Frame
			if err := stream.RecvMsg(&frame); err != nil {
				ended <- err
				return
			}
			select {
			case reports <- frame:
			case <-ctx.Done():
				ended <- ctx.Err()
				return
			}
		}
	}()
	// Envoy sends one report, and the next ones as it is told to: every control plane gets the
	// first, whenever it comes.
	var first wire.Frame
	select {
	case first = <-reports:
	case err := <-ended:
		return ending(err)
	}
	first, _, err := wire.LoadReport(first, true)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	told := "" // what Envoy was last told to report
	for {
		conn, changed := r.link.get()
		over := make(chan struct{})
		var up *loadStream
		if conn != nil {
			up = r.reportTo(ctx, conn, stream, first, &told, over)
		}
		err := up.forward(reports, changed, over, ended)
		up.close()
		if err != nil {
			return ending(err)
		}
		if err := await(reports, changed, ended); err != nil {
			return ending(err)
		}
	}
}

// ending is how a stream ends that Envoy has ended: nothing is wrong.
func ending(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// await another connection; what is reported meanwhile is dropped. An error means that Envoy has
// gone.
func await(reports <-chan wire.Frame, changed <-chan struct{}, ended <-chan error) error {
	for {
		select {
		case <-changed:
			return nil
		case <-reports:
		case err := <-ended:
			return err
		}
	}
}

// loadStream is a stream of reports to a control plane. nil: reports are dropped.
type loadStream struct {
	stream grpc.ClientStream
	cancel context.CancelFunc
	done   chan struct{}
}

// reportTo begins a stream, and passes on what the control plane wants to be reported. over is
// closed when it has ended.
func (r *Relay) reportTo(
	ctx context.Context, conn *grpc.ClientConn, down grpc.ServerStream, first wire.Frame, told *string, over chan<- struct{},
) *loadStream {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := conn.NewStream(ctx, streamDesc(loadMethod), "/"+loadService+"/"+loadMethod)
	if err == nil {
		err = stream.SendMsg(&first)
	}
	if err != nil {
		cancel()
		close(over)
		return nil
	}
	up := &loadStream{stream: stream, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(up.done)
		defer close(over)
		for {
			var frame wire.Frame
			if err := stream.RecvMsg(&frame); err != nil {
				return
			}
			if string(frame) == *told && *told != "" {
				continue // another instance wants the same
			}
			if down.SendMsg(&frame) != nil {
				return
			}
			*told = string(frame)
		}
	}()
	return up
}

// forward reports until the connection changes or the stream ends. An error ends the stream of
// Envoy.
func (up *loadStream) forward(reports <-chan wire.Frame, changed, over <-chan struct{}, ended <-chan error) error {
	for {
		select {
		case err := <-ended:
			return err
		case <-changed:
			return nil
		case <-over:
			if up != nil {
				return nil
			}
			over = nil
		case frame := <-reports:
			if up == nil {
				continue
			}
			report, _, err := wire.LoadReport(frame, false)
			if err != nil {
				return status.Error(codes.InvalidArgument, err.Error())
			}
			out := wire.Frame(report)
			if up.stream.SendMsg(&out) != nil {
				return nil
			}
		}
	}
}

func (up *loadStream) close() {
	if up != nil {
		up.cancel()
		<-up.done
	}
}

// linkWait is how long the stream of a program waits for a control plane.
const linkWait = 5 * time.Second

// sotw passes the stream of a gRPC client through. It has no copy here: such a client goes on
// with what it has while no control plane is there.
func (r *Relay) sotw(down grpc.ServerStream) error {
	conn, changed := r.link.get()
	if conn == nil { // a program whose stream fails waits for a second or more before the next one
		wait := time.NewTimer(linkWait)
		defer wait.Stop()
		select {
		case <-changed:
		case <-wait.C:
		case <-down.Context().Done():
		}
		conn, _ = r.link.get()
	}
	if conn == nil {
		return status.Error(codes.Unavailable, "no control plane is connected")
	}
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	up, err := conn.NewStream(ctx, streamDesc(sotwMethod), "/"+discoveryService+"/"+sotwMethod)
	if err != nil {
		return err
	}
	go func() {
		defer cancel()
		for {
			var frame wire.Frame
			if down.RecvMsg(&frame) != nil || up.SendMsg(&frame) != nil {
				return
			}
		}
	}()
	for {
		var frame wire.Frame
		if err := up.RecvMsg(&frame); err != nil {
			return err
		}
		if err := down.SendMsg(&frame); err != nil {
			return err
		}
	}
}
