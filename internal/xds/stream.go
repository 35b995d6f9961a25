package xds

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

type statusProto = spb.Status

// stream is one client.
type stream struct {
	server     *Server
	grpc       grpc.ServerStream
	number     uint64
	info       StreamInfo
	connection *build.Connection
	selection  *delta.Selection
	// asked has a token after a request that may have an answer.
	asked chan struct{}

	// nacked is set when the client, or one like it, has refused something.
	nacked atomic.Bool

	mu      sync.Mutex
	session *delta.Layered
}

// run sends until the client, its connection or its admission ends.
func (st *stream) run(first delta.Request, receive func() (delta.Request, *core.Node, error)) error {
	if err := st.take(first); err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- st.read(receive) }()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		selected := st.selection.Changed()
		f, wake := st.next()
		if f != nil {
			if err := st.send(f); err != nil {
				return err
			}
			select {
			case err := <-failed:
				return err
			default:
				continue
			}
		}
		var due <-chan time.Time
		if !wake.IsZero() {
			timer.Reset(max(time.Millisecond, wake.Sub(st.server.config.Now())))
			due = timer.C
		}
		select {
		case <-st.session.Wake():
		case <-selected:
		case <-st.asked:
		case <-due:
		case err := <-failed:
			return err
		case <-st.connection.End:
			return status.Error(codes.Aborted, "what this proxy is to have has changed, or its Dataplane is gone; connect again")
		}
	}
}

func (st *stream) next() (*delta.Frame, time.Time) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.session.Next(st.server.config.Now())
}

func (st *stream) send(f *delta.Frame) error {
	if err := st.grpc.SendMsg(f); err != nil {
		return err
	}
	st.server.metrics.sent(f)
	if o := st.server.config.Observer; o != nil {
		o.Sent(st.info.Client.Dataplane, st.info.ID, f.Type)
	}
	return nil
}

// read takes requests until the stream is at its end: gRPC ends its receive when the handler
// has returned.
func (st *stream) read(receive func() (delta.Request, *core.Node, error)) error {
	for {
		r, _, err := receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := st.take(r); err != nil {
			return err
		}
	}
}

func (st *stream) take(r delta.Request) error {
	st.mu.Lock()
	err := st.session.Step(r)
	st.mu.Unlock()
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	select { // an acknowledgement may open the gate for others
	case st.asked <- struct{}{}:
	default:
	}
	return nil
}
