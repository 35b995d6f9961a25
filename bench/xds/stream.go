package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// adsMethod of delta xDS.
const adsMethod = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

// asking is what a stream asks for.
type asking struct {
	id string
	// names by type, in order; none: all.
	types []string
	names map[string][]string
}

// sidecarAsks is what the supervisor of a proxy asks for that uses Services, after Envoy has read
// its clusters and listeners.
func sidecarAsks(id string, services []int) asking {
	a := asking{id: id, types: []string{wire.Cluster, wire.Endpoint, wire.Listener, wire.Route}, names: map[string][]string{}}
	for _, i := range services {
		a.names[wire.Endpoint] = append(a.names[wire.Endpoint], clusterOf(i))
		if isHTTP(i) {
			a.names[wire.Route] = append(a.names[wire.Route], "out|"+clusterOf(i))
		}
	}
	if len(a.names[wire.Route]) == 0 {
		a.types = a.types[:3]
	}
	return a
}

// crowd is streams that count what they receive.
type crowd struct {
	method string
	// watched is a resource whose arrivals are counted; empty: those of its type are.
	watched string

	ctx      context.Context //nolint:containedctx // that of the streams
	cancel   context.CancelFunc
	running  sync.WaitGroup
	complete atomic.Int64 // streams that have an answer for each type
	changed  atomic.Int64 // arrivals of what is watched
	last     atomic.Int64 // when the newest arrival was, in ns of the clock that began at start
	start    time.Time
	moved    chan struct{}
	failed   chan error
}

func newCrowd(ctx context.Context, method, watched string) *crowd {
	ctx, cancel := context.WithCancel(ctx)
	return &crowd{
		method: method, watched: watched, ctx: ctx, cancel: cancel, start: time.Now(), moved: make(chan struct{}, 1), failed: make(chan error, 1),
	}
}

// end all streams.
func (c *crowd) end() {
	c.cancel()
	c.running.Wait()
}

func (c *crowd) move() {
	select {
	case c.moved <- struct{}{}:
	default:
	}
}

// patience with what is awaited.
const patience = 60 * time.Second

// wait until a count has reached n.
func (c *crowd) wait(count *atomic.Int64, n int) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	for count.Load() < int64(n) {
		select {
		case <-c.moved:
		case err := <-c.failed:
			return err
		case <-late.C:
			return fmt.Errorf("%d of %d streams within %s", count.Load(), n, patience)
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
	return nil
}

// add a stream to a server, by a connection of its own.
func (c *crowd) add(address string, a asking, options ...grpc.DialOption) {
	c.running.Go(func() {
		if err := c.follow(address, a, options); c.ctx.Err() == nil {
			select {
			case c.failed <- fmt.Errorf("stream of %s: %w", a.id, err):
			default:
			}
		}
	})
}

func (c *crowd) follow(address string, a asking, options []grpc.DialOption) error {
	// The buffers are those of a supervisor.
	conn, err := grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.ForceCodec(wire.Codec{})), grpc.WithReadBufferSize(4 << 10), grpc.WithWriteBufferSize(4 << 10),
	}, options...)...)
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := conn.NewStream(c.ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, c.method, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	node, err := proto.Marshal(&core.Node{Id: a.id, Cluster: namespace + "/" + account, UserAgentName: "envoy"})
	if err != nil {
		return err
	}
	for i, typ := range a.types {
		r := wire.Request{TypeURL: typ, Subscribe: a.names[typ]}
		if i == 0 {
			r.Node = node
		}
		if err := send(stream, r); err != nil {
			return err
		}
	}
	return c.read(stream, slices.Clone(a.types))
}

func send(s grpc.ClientStream, r wire.Request) error {
	frame := wire.Frame(r.Append(nil))
	return s.SendMsg(&frame)
}

// read and acknowledge. missing are the types without an answer.
func (c *crowd) read(s grpc.ClientStream, missing []string) error {
	for {
		var frame wire.Frame
		if err := s.RecvMsg(&frame); err != nil {
			return err
		}
		r, err := wire.ParseResponse(frame)
		if err != nil {
			return err
		}
		if r.TypeURL == wire.Endpoint && (c.watched == "" || slices.ContainsFunc(r.Resources, func(r wire.Resource) bool { return r.Name == c.watched })) {
			c.last.Store(int64(time.Since(c.start)))
			c.changed.Add(1)
			c.move()
		}
		if i := slices.Index(missing, r.TypeURL); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
			if len(missing) == 0 {
				c.complete.Add(1)
				c.move()
			}
		}
		if err := send(s, wire.Request{TypeURL: r.TypeURL, Nonce: r.Nonce}); err != nil {
			return err
		}
	}
}

// until a condition holds, asked every 0.2 ms.
func until(ctx context.Context, condition func() bool) (time.Duration, error) {
	begin := time.Now()
	for end := begin.Add(patience); !condition(); {
		if time.Now().After(end) {
			return 0, errors.New("not within " + patience.String())
		}
		if err := pause(ctx, 200*time.Microsecond); err != nil {
			return 0, err
		}
	}
	return time.Since(begin), nil
}
