package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// raw passes bytes through, so that the clients, which are the same for every
// server, cost as little as can be.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// subject is a server under test with its clients.
type subject struct {
	server   server
	grpc     *grpc.Server
	cancel   context.CancelFunc
	clients  sync.WaitGroup
	streams  int64
	received atomic.Int64
	all      chan struct{} // a token when every stream has received
	failed   chan error
}

const roundLimit = 30 * time.Second

// start serves on loopback and connects n streams that have all there is.
func start(srv server, n int) (*subject, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &subject{
		server:  srv,
		cancel:  cancel,
		streams: int64(n),
		all:     make(chan struct{}, 1),
		failed:  make(chan error, n),
		grpc:    srv.grpcServer(),
	}
	go func() { _ = s.grpc.Serve(l) }()
	if err := s.connect(ctx, srv.method(), l.Addr().String()); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// connect the clients, and wait until they have all there is.
func (s *subject) connect(ctx context.Context, method, addr string) error {
	for range s.streams {
		s.clients.Go(func() {
			if err := s.client(ctx, method, addr); ctx.Err() == nil {
				s.failed <- err
			}
		})
	}
	return s.wait(method)
}

func (s *subject) stop() {
	s.cancel()
	s.clients.Wait()
	if s.grpc != nil {
		s.grpc.Stop()
	}
}

func (s *subject) client(ctx context.Context, method, addr string) error {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodecV2(raw{}))
	if err != nil {
		return err
	}
	first, err := proto.Marshal(&discovery.DeltaDiscoveryRequest{TypeUrl: typeURL}) // no names: all there is
	if err != nil {
		return err
	}
	if err := stream.SendMsg(first); err != nil {
		return err
	}
	for {
		var response []byte
		if err := stream.RecvMsg(&response); err != nil {
			return err
		}
		if s.received.Add(1) == s.streams {
			s.all <- struct{}{}
		}
		if err := stream.SendMsg(acknowledge(response)); err != nil {
			return err
		}
	}
}

// acknowledge makes the answer to a response: its type and nonce.
func acknowledge(response []byte) []byte {
	const responseNonce, requestType, requestNonce = 5, 2, 6
	var nonce []byte
	for b := response; len(b) > 0; {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			break
		}
		b = b[n:]
		if field == responseNonce {
			nonce, _ = protowire.ConsumeBytes(b) // the last one counts
		}
		if n = protowire.ConsumeFieldValue(field, kind, b); n < 0 {
			break
		}
		b = b[n:]
	}
	out := protowire.AppendString(protowire.AppendTag(nil, requestType, protowire.BytesType), typeURL)
	return protowire.AppendBytes(protowire.AppendTag(out, requestNonce, protowire.BytesType), nonce)
}

func (s *subject) wait(what string) error {
	select {
	case <-s.all:
		s.received.Store(0)
		return nil
	case err := <-s.failed:
		return fmt.Errorf("%s: stream: %w", what, err)
	case <-time.After(roundLimit):
		return fmt.Errorf("%s: %w", what, errors.New("not every stream received"))
	}
}

// settle is the time for acknowledgements to be processed, before the next
// server has its turn.
const settle = 100 * time.Millisecond

func (s *subject) round(i int) (sample, error) {
	resource := assignment(0, i)
	cpu, begin := cpuTime(), time.Now()
	if err := s.server.change(resource); err != nil {
		return sample{}, err
	}
	if err := s.wait(s.server.name()); err != nil {
		return sample{}, err
	}
	last := time.Since(begin)
	time.Sleep(settle)
	return sample{last, cpuTime() - cpu}, nil
}
