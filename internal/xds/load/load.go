package load

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lrs "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/proxima-mesh/proxima/internal/demand"
)

const (
	// burst of messages that a stream may send at once, and refill, the time in which it may
	// send one more. It is asked for one each demand.Interval.
	burst  = 5
	refill = time.Second
)

// Proxy is who reports.
type Proxy struct {
	// Namespace and Name of its Dataplane or pod.
	Namespace, Name string
	// Gateway: it carries the traffic of others, which they report, so its own reports are
	// no demand.
	Gateway bool
}

// Identify says who is at the other end of a stream, from the credentials in ctx and the node
// that it names in its first message. Errors should be gRPC statuses; they end the stream.
type Identify func(ctx context.Context, node *core.Node) (Proxy, error)

// Taker takes reports of demand. After codes.InvalidArgument a report is given up, after any
// other error it is handed over again, the same. A *wire.Server is one.
type Taker interface {
	Take(ctx context.Context, r *demand.Report) error
}

// Config of a Server. Identify, Taker and Ports are required.
type Config struct {
	Identify Identify
	Taker    Taker
	Ports    Ports
	// Interval at which proxies are asked to report; 0: demand.Interval.
	Interval time.Duration
	Logger   *slog.Logger // nil: silence
	// Registerer of metrics; nil: none. Registering twice panics.
	Registerer prometheus.Registerer
}

// Server implements the load reporting service. Its methods are safe for concurrent use.
type Server struct {
	lrs.UnimplementedLoadReportingServiceServer
	config Config
	stats  stats
}

// stats of a Server since it was made.
type stats struct {
	streams                               atomic.Int64
	accepted, refused, excessive, delayed atomic.Uint64
	services, others, implausible         atomic.Uint64
	connections, requests                 atomic.Uint64
}

// New makes a server.
func New(c Config) *Server {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Interval == 0 {
		c.Interval = demand.Interval
	}
	s := &Server{config: c}
	if c.Registerer != nil {
		c.Registerer.MustRegister(s)
	}
	return s
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { lrs.RegisterLoadReportingServiceServer(r, s) }

// settings that every proxy is sent: all clusters, by locality alone.
func (s *Server) settings() *lrs.LoadStatsResponse {
	return &lrs.LoadStatsResponse{SendAllClusters: true, LoadReportingInterval: durationpb.New(s.config.Interval)}
}

// StreamLoadStats implements the service: it reads a stream until it ends. What was reported
// and could not be handed over by then is lost, which the rates of demand do not notice.
func (s *Server) StreamLoadStats(stream grpc.BidiStreamingServer[lrs.LoadStatsRequest, lrs.LoadStatsResponse]) error {
	ctx := stream.Context()
	message, err := stream.Recv()
	if err != nil {
		return ended(err)
	}
	who, err := s.config.Identify(ctx, message.GetNode())
	if err != nil {
		return err
	}
	if who.Namespace == "" || who.Name == "" {
		return status.Error(codes.Internal, "the proxy of the stream has no name")
	}
	if err := stream.Send(s.settings()); err != nil {
		return err
	}
	s.stats.streams.Add(1)
	defer s.stats.streams.Add(-1)
	one := &report{server: s, who: who, last: time.Now(), budget: budget{left: burst, at: time.Now()}}
	one.tally = tally{proxy: who.Namespace + "/" + who.Name, run: rand.Text()}
	one.take(ctx, message, 0)
	for {
		message, err := stream.Recv()
		if err != nil {
			return ended(err)
		}
		now := time.Now()
		if !one.budget.spend(now) {
			s.stats.excessive.Add(1)
			continue
		}
		since := now.Sub(one.last)
		one.last = now
		one.take(ctx, message, since)
	}
}

// ended is the outcome of a stream whose client has gone.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// report is the state of one stream.
type report struct {
	server *Server
	who    Proxy
	tally  tally
	last   time.Time
	budget budget
	// failing: the last attempt to hand a report over failed.
	failing bool
	// implausible counts were logged.
	implausible bool
}

// take a message, and hand over what can be.
func (r *report) take(ctx context.Context, message *lrs.LoadStatsRequest, since time.Duration) {
	s := r.server
	if r.who.Gateway {
		return
	}
	saw := r.tally.add(s.config.Ports, message.GetClusterStats(), since)
	s.stats.services.Add(uint64(saw.services))
	s.stats.others.Add(uint64(saw.others))
	s.stats.implausible.Add(uint64(saw.refused))
	s.stats.connections.Add(saw.connections)
	s.stats.requests.Add(saw.requests)
	if saw.refused > 0 && !r.implausible {
		r.implausible = true
		s.config.Logger.Warn("load report with counts that cannot be, they are left out", "proxy", r.tally.proxy, "clusters", saw.refused)
	}
	// After an outage: the report that was left over, and one of all since.
	for {
		next := r.tally.next()
		if next == nil {
			return
		}
		if !r.deliver(ctx, next) {
			return
		}
	}
}

// deliver a report; false: it is to be delivered again, with the next message.
func (r *report) deliver(ctx context.Context, d *demand.Report) bool {
	s := r.server
	err := s.config.Taker.Take(ctx, d)
	switch code := status.Code(err); {
	case err == nil:
		s.stats.accepted.Add(1)
		r.failing = false
	case code == codes.InvalidArgument:
		s.stats.refused.Add(1)
		s.config.Logger.Error("load report refused", "proxy", r.tally.proxy, "error", err)
	default:
		s.stats.delayed.Add(1)
		if !r.failing && ctx.Err() == nil {
			s.config.Logger.Info("load report not taken, it is repeated with the next one", "proxy", r.tally.proxy, "error", err)
		}
		r.failing = true
		return false
	}
	r.tally.taken()
	return true
}

// budget of messages of a stream.
type budget struct {
	left float64
	at   time.Time
}

// spend one message, if there is one left.
func (b *budget) spend(now time.Time) bool {
	b.left = min(burst, b.left+now.Sub(b.at).Seconds()/refill.Seconds())
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
