package xds

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/proxima-mesh/proxima/internal/delta"
	deltastream "github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

type statusProto = spb.Status

// stream is one client. The goroutine of its handler receives; another one answers while there is
// something to answer or to send, as most streams have nothing most of the time, and a stack takes 8 kB.
type stream struct {
	server     *Server
	grpc       grpc.ServerStream
	number     uint64
	info       StreamInfo
	connection *build.Connection
	parse      parser
	// requests that were received and not looked at.
	requests chan deltastream.Encoded

	// nacked is set when the client, or one like it, has refused something.
	nacked atomic.Bool

	mu      sync.Mutex
	session *delta.Layered

	sending sender
}

// sender is whether a goroutine sends.
type sender struct {
	mu sync.Mutex
	// running: a goroutine sends. again: there may be more than when it looked last.
	running, again bool
	// over: nothing is sent any more. idle is closed then when no goroutine sends; nil: none did.
	over bool
	idle chan struct{}
	// timer starts one; nil: none was needed yet.
	timer *time.Timer
	// err ends the stream; nil: the client does.
	err error
}

// run the stream until the client, its connection or its admission ends.
func (st *stream) run() error {
	stop := context.AfterFunc(st.connection.End, func() {
		st.fail(status.Error(codes.Aborted, "what this proxy is to have has changed, or its Dataplane is gone; connect again"))
	})
	err := st.receive()
	stop()
	if failed := st.finish(); failed != nil {
		err = failed
	}
	st.server.remove(st, err)
	return err
}

// receive requests until the stream is at its end. One that waits is enough: a client that does not
// read is not listened to either.
func (st *stream) receive() error {
	for {
		var request deltastream.Encoded
		err := st.grpc.RecvMsg(&request)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if st.acknowledge(request) {
			continue
		}
		select {
		case st.requests <- request:
			st.wake()
		case <-st.grpc.Context().Done():
			return status.FromContextError(st.grpc.Context().Err()).Err()
		}
	}
}

// wake sees to it that what there is to send is sent. It does not block.
func (st *stream) wake() {
	s := &st.sending
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
	case s.running:
		s.again = true
	default:
		s.running = true
		go st.push()
	}
}

// push answers and sends until there is nothing more.
func (st *stream) push() {
	for {
		more, wake := st.once()
		if st.rest(more, wake) {
			return
		}
	}
}

// once takes the requests that wait, and sends a response. wake is as that of Next.
func (st *stream) once() (more bool, wake time.Time) {
	f, more, wake, err := st.next()
	if err == nil && f != nil {
		err = st.send(f)
	}
	if err != nil {
		st.fail(err)
		return false, wake
	}
	return more, wake
}

// rest ends the sending goroutine, unless there is more to send. wake is when there will be; zero: that
// is not known.
func (st *stream) rest(more bool, wake time.Time) bool {
	s := &st.sending
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over && (more || s.again) {
		s.again = s.again && more
		return false
	}
	if !s.over && !wake.IsZero() {
		in := max(time.Millisecond, wake.Sub(st.server.config.Now()))
		if s.timer == nil {
			s.timer = time.AfterFunc(in, st.wake)
		} else {
			s.timer.Reset(in)
		}
	}
	s.running = false
	if s.idle != nil {
		close(s.idle)
	}
	return true
}

// fail ends the stream with an error, unless there was another one before.
func (st *stream) fail(err error) {
	s := &st.sending
	s.mu.Lock()
	first := !s.over
	if first {
		s.over, s.err = true, err
	}
	s.mu.Unlock()
	if first {
		deltastream.Interrupt(st.grpc.Context(), err)
	}
}

// finish waits until nothing is sent any more. It returns the error of fail.
func (st *stream) finish() error {
	s := &st.sending
	s.mu.Lock()
	s.over = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.running {
		s.idle = make(chan struct{})
	}
	idle, err := s.idle, s.err
	s.mu.Unlock()
	if idle != nil {
		<-idle
	}
	return err
}

// next takes the requests that wait, and returns the next response; nil: there is none. more: there may be
// another one. wake is as that of Next.
func (st *stream) next() (f *delta.Frame, more bool, wake time.Time, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for {
		select {
		case message := <-st.requests:
			request, _, err := st.parse(message)
			if err == nil {
				err = st.step(request)
			}
			if err != nil {
				return nil, false, wake, err
			}
			continue
		default:
		}
		f, wake = st.session.Next(st.server.config.Now())
		return f, f != nil && st.session.Pending(), wake, nil
	}
}

func (st *stream) send(f *delta.Frame) error {
	if err := st.grpc.SendMsg(f); err != nil {
		return err
	}
	st.server.metrics.sent(f)
	if o := st.server.config.Observer; o != nil {
		o.Sent(st.info.Client.Subject(), st.info.ID, f.Type)
	}
	return nil
}

// step takes a request. st.mu is held.
func (st *stream) step(r delta.Request) error {
	if err := st.session.Step(r); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// acknowledge takes a message in the goroutine that receives, if it is nothing but an acknowledgement and all
// before it were taken. Most messages are that, and nothing is to be sent after most of them: then no other
// goroutine is needed. What is called has to fit into the stack that receiving needs.
func (st *stream) acknowledge(message deltastream.Encoded) bool {
	if st.info.Variant == build.GRPC {
		return false // names are in each of its requests
	}
	r, ok := acknowledgement(message)
	if !ok {
		return false
	}
	st.mu.Lock()
	if len(st.requests) > 0 {
		st.mu.Unlock()
		return false
	}
	err := st.step(r)
	pending := st.session.Pending() // it may have opened the gate
	st.mu.Unlock()
	if err != nil {
		st.fail(err)
	} else if pending {
		st.wake()
	}
	return true
}

// Fields of envoy.service.discovery.v3.DeltaDiscoveryRequest.
const (
	requestType  = 2
	requestNonce = 6
)

// acknowledgement reads a request of delta xDS that has a type which proxies have, and a nonce, and no other
// field; false: it is another one, or malformed.
func acknowledgement(message []byte) (r delta.Request, ok bool) {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 || kind != protowire.BytesType {
			return r, false
		}
		value, m := protowire.ConsumeBytes(message[n:])
		if m < 0 || !utf8.Valid(value) {
			return r, false
		}
		switch field {
		case requestType:
			r.Type = knownType(value)
		case requestNonce:
			r.Nonce = string(value)
		default:
			return r, false
		}
		message = message[n+m:]
	}
	return r, r.Type != "" && r.Nonce != ""
}

// knownType is the constant for a type URL, of which streams need no copy; empty: it is none of a proxy's.
func knownType[T string | []byte](url T) string {
	for _, t := range [...]string{build.ClusterType, build.EndpointType, build.ListenerType, build.RouteType, build.SecretType} {
		if string(url) == t {
			return t
		}
	}
	return ""
}
