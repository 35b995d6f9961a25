package stream

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	deltastream "github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/federation"
)

// expiredKey is metadata of a stream on which the zone sends: it cannot serve the
// position of the stream before, and needs the versions.
const expiredKey = "proxima-position-expired"

// versionKey is metadata of every stream and check: the version of the zone's program.
const versionKey = "proxima-version"

// lagKey is metadata of a check: the lag of what the zone sends, as Lag.text writes it.
const lagKey = "proxima-lag"

// VersionOf is the version that the peer of a call announces; empty: none. It is for
// GlobalConfig.Admit.
func VersionOf(ctx context.Context) string {
	if v := metadata.ValueFromIncomingContext(ctx, versionKey); len(v) > 0 {
		return v[0]
	}
	return ""
}

// retryPolicy: the first retry is at once. The random part keeps zones from coming back
// together.
var retryPolicy = backoff.Policy{First: 100 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.5}

// ZoneConfig configures a Zone.
type ZoneConfig struct {
	// Conn reaches global; it should be made with DialOptions of package delta/stream.
	// It stays the caller's.
	Conn grpc.ClientConnInterface
	// Zone is this zone's name, Instance that of this instance of its control plane.
	Zone, Instance, Version string
	// Protocol is 1 or 2; 0: 2.
	Protocol int
	Outlet   federation.Outlet
	Inlet    federation.Inlet
	// Calls answers reverse calls; nil: they are Unimplemented.
	Calls CallHandler
	// Connected, if not nil, is called when a stream of objects of global begins. It must not
	// block.
	Connected func()
	// Instances, if not nil, is called with the instances of global, as often as global tells
	// them; Silent when global does not answer a health check in time. Neither may block.
	Instances func([]Instance)
	Silent    func()
	Log       *slog.Logger // nil: silence
}

// Zone is the end of a zone's control plane. Make it with NewZone.
type Zone struct {
	config ZoneConfig

	link link

	mu     sync.Mutex
	status ZoneStatus
	engine engine
}

// ZoneStatus describes the connection to global.
type ZoneStatus struct {
	// Receiving and Sending: a stream of that direction is open, and something came.
	Receiving, Sending bool
	// Streams counts those that were opened.
	Streams uint64
	// LastCheck is when global answered a health check last; zero: never.
	LastCheck time.Time
	// LastError is why the last stream or check failed; nil: it did not.
	LastError error
	// Refused is why global does not admit this zone, as global says; empty: it did not say so.
	Refused string
	Sender  federation.SenderStatus
	// Link is what is known of the synchronisation with global.
	Link Link
}

// NewZone makes the zone's end.
func NewZone(c ZoneConfig) (*Zone, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	switch c.Protocol {
	case 0:
		c.Protocol = 2
	case 1, 2:
	default:
		return nil, fmt.Errorf("federation protocol %d: it must be 1 or 2", c.Protocol)
	}
	return &Zone{config: c}, nil
}

// Status describes the connection. Safe at any time.
func (z *Zone) Status() ZoneStatus {
	z.mu.Lock()
	defer z.mu.Unlock()
	s := z.status
	if z.engine != nil {
		s.Sender = z.engine.status()
	}
	s.Link = z.link.status()
	return s
}

func (z *Zone) update(f func(*ZoneStatus)) {
	z.mu.Lock()
	defer z.mu.Unlock()
	f(&z.status)
}

// Run keeps the streams to global open until ctx ends, and returns nil then.
func (z *Zone) Run(ctx context.Context) error {
	var running sync.WaitGroup
	keep := func(name string, attempt func(ctx context.Context, versions bool, received func()) error) {
		running.Go(func() { z.keep(ctx, name, attempt) })
	}
	if z.config.Protocol == 1 {
		keep("sync", z.multiplex)
	} else {
		keep("receive", z.receive)
		keep("send", z.send)
	}
	keep("calls", z.serveCalls)
	running.Go(func() { z.check(ctx) })
	running.Wait()
	return nil
}

// keep makes attempts until ctx ends: the first retry at once, others after growing
// delays. A position that cannot be served is replaced by versions.
func (z *Zone) keep(ctx context.Context, name string, attempt func(ctx context.Context, versions bool, received func()) error) {
	versions := false
	var failures atomic.Int32 // a stream's goroutines reset it
	for {
		one, cancel := context.WithCancel(ctx)
		err := attempt(one, versions, func() { failures.Store(0) })
		cancel()
		if ctx.Err() != nil {
			return
		}
		z.failed(name, int(failures.Load()), err)
		expired := !versions && status.Code(err) == codes.FailedPrecondition
		if versions = expired; expired {
			continue
		}
		if !backoff.Sleep(ctx, retryPolicy.After(int(failures.Load()))) {
			return
		}
		failures.Add(1)
	}
}

// failed notes why a stream ended. A refusal is logged once.
func (z *Zone) failed(name string, failures int, err error) {
	refused := ""
	if status.Code(err) == codes.PermissionDenied {
		refused = status.Convert(err).Message()
	}
	known := false
	z.update(func(s *ZoneStatus) {
		known = s.Refused == refused
		s.LastError, s.Refused = err, refused
	})
	switch {
	case refused == "":
		z.config.Log.Info("stream to global ended, connecting again", "stream", name, "failures", failures, "reason", status.Convert(err).Message())
	case !known:
		z.config.Log.Warn("global refuses this zone, which goes on with what it has and tries again", "reason", refused)
	}
}

// open opens a stream. Its messages are compressed, and so are those of the server.
func (z *Zone) open(ctx context.Context, desc *grpc.StreamDesc, method string) (grpc.ClientStream, error) {
	ctx = metadata.AppendToOutgoingContext(ctx, versionKey, z.config.Version)
	s, err := z.config.Conn.NewStream(ctx, desc, method, grpc.ForceCodecV2(deltastream.Codec()), grpc.UseCompressor(gzip.Name))
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", method, err)
	}
	z.update(func(s *ZoneStatus) { s.Streams++ })
	return s, nil
}

func (z *Zone) receive(ctx context.Context, versions bool, received func()) error {
	s, err := z.open(ctx, streamDesc(), globalToZoneMethod)
	if err != nil {
		return err
	}
	defer z.update(func(s *ZoneStatus) { s.Receiving = false })
	connected := z.connected()
	return followDelta(ctx, s, z.config.Inlet, &z.link, versions, func() {
		received()
		z.update(func(s *ZoneStatus) { s.Receiving, s.Refused = true, "" })
		connected()
	})
}

func (z *Zone) send(ctx context.Context, versions bool, received func()) error {
	if versions {
		ctx = metadata.AppendToOutgoingContext(ctx, expiredKey, "true")
	}
	s, err := z.open(ctx, streamDesc(), zoneToGlobalMethod)
	if err != nil {
		return err
	}
	defer z.update(func(s *ZoneStatus) { s.Sending = false })
	return serveDelta(ctx, s, z.config.Outlet, z.config.Zone, &z.link, z.observe, func() {
		received()
		z.update(func(s *ZoneStatus) { s.Sending = true })
	})
}

func (z *Zone) multiplex(ctx context.Context, _ bool, received func()) error {
	s, err := z.open(ctx, streamDesc(), federationv1.MultiplexedSync_Stream_FullMethodName)
	if err != nil {
		return err
	}
	defer z.update(func(s *ZoneStatus) { s.Receiving, s.Sending = false, false })
	connected := z.connected()
	return multiplex(ctx, s, z.config.Outlet, z.config.Zone, z.config.Inlet, &z.link, z.observe, func() {
		received()
		z.update(func(s *ZoneStatus) { s.Receiving, s.Sending, s.Refused = true, true, "" })
		connected()
	})
}

// connected calls ZoneConfig.Connected once.
func (z *Zone) connected() func() {
	if z.config.Connected == nil {
		return func() {}
	}
	return sync.OnceFunc(z.config.Connected)
}

func (z *Zone) observe(e engine) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.engine = e
}

// check calls HealthCheck until ctx ends.
func (z *Zone) check(ctx context.Context) {
	client := federationv1.NewZoneServiceClient(z.config.Conn)
	for {
		one, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, versionKey, z.config.Version, lagKey, z.link.status().Lag.text()), CheckInterval)
		r, err := client.HealthCheck(one, &federationv1.HealthCheckRequest{Instance: z.config.Instance, Version: z.config.Version},
			grpc.ForceCodecV2(deltastream.Codec()))
		cancel()
		if ctx.Err() != nil {
			return
		}
		interval := CheckInterval
		if err != nil {
			z.config.Log.Debug("health check failed", "error", err)
			if status.Code(err) == codes.DeadlineExceeded && z.config.Silent != nil {
				z.config.Silent()
			}
			z.update(func(s *ZoneStatus) {
				s.LastError = status.Error(status.Code(err), "health check: "+status.Convert(err).Message())
			})
		} else {
			z.update(func(s *ZoneStatus) { s.LastCheck = time.Now() })
			z.learn(r.GetInstances())
			if wanted := time.Duration(r.GetIntervalMilliseconds()) * time.Millisecond; wanted > 0 {
				interval = min(max(wanted, time.Second), time.Minute)
			}
		}
		if !backoff.Sleep(ctx, interval) {
			return
		}
	}
}

// maxInstances of global that are believed in.
const maxInstances = 100

// learn the instances of global that can be reached.
func (z *Zone) learn(all []*federationv1.GlobalInstance) {
	if z.config.Instances == nil || len(all) == 0 || len(all) > maxInstances {
		return
	}
	var out []Instance
	for _, i := range all {
		if isHostPort(i.GetApi()) && isHostPort(i.GetGrpc()) {
			out = append(out, Instance{API: i.GetApi(), GRPC: i.GetGrpc()})
		}
	}
	z.config.Instances(out)
}

func isHostPort(address string) bool {
	host, port, err := net.SplitHostPort(address)
	return err == nil && host != "" && port != ""
}
