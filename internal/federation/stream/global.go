package stream

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	"github.com/proxima-mesh/proxima/internal/federation"
)

// Admission is what a zone may do.
type Admission struct {
	// Zone that the credential names. Whatever the peer says of itself does not count.
	Zone   string
	Outlet federation.Outlet
	Inlet  federation.Inlet
	// End, if not nil, ends the streams when it is closed, as when the zone is disabled
	// or its credential withdrawn.
	End <-chan struct{}
	// Opened, if not nil, is called when a stream begins, and what it returns when the
	// stream has ended.
	Opened func() (closed func())
}

// GlobalConfig configures a Global. All but Admit may be left out.
type GlobalConfig struct {
	// Admit decides by the credentials in ctx. It is called for every stream and health
	// check, concurrently. Its errors should be gRPC statuses.
	Admit func(ctx context.Context) (Admission, error)
	// Timeout after which a silent zone is offline; 0: DefaultZoneTimeout.
	Timeout time.Duration
	// Observe is called when a zone comes online or goes offline, one call at a time
	// for each zone.
	Observe func(zone string, online bool)
	// Instances of global, which zones learn; nil: this one is alone. It must not block.
	Instances func() []Instance
	Log       *slog.Logger
}

// Instance is where an instance of global is reached: HOST:PORT of its API and of its gRPC
// port.
type Instance struct{ API, GRPC string }

// Global is global's end of all zones. Make it with NewGlobal, and end it with Close.
type Global struct {
	config GlobalConfig

	mu     sync.Mutex
	zones  map[string]*peer
	closed bool
}

// peer is a zone that has connected once.
type peer struct {
	name     string
	online   bool
	observed sync.Mutex // orders calls of Observe
	timer    *time.Timer
	lastSign time.Time
	instance string
	version  string
	streams  map[*stream]struct{}
	caller   *caller
	link     link
}

// stream is one open stream of a zone.
type stream struct {
	method string
	since  time.Time
	cancel context.CancelCauseFunc
	engine engine
	link   *link // of the zone
}

// NewGlobal makes global's end.
func NewGlobal(c GlobalConfig) *Global {
	if c.Timeout == 0 {
		c.Timeout = DefaultZoneTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Global{config: c, zones: map[string]*peer{}}
}

// Register adds the services to a gRPC server, which must be made with ServerOptions of
// package delta/stream.
func (g *Global) Register(r grpc.ServiceRegistrar) {
	register := func(service string, handler func(grpc.ServerStream) error) {
		r.RegisterService(&grpc.ServiceDesc{
			ServiceName: service, HandlerType: (*any)(nil),
			Streams: []grpc.StreamDesc{{
				StreamName: streamMethod, ServerStreams: true, ClientStreams: true,
				Handler: func(_ any, s grpc.ServerStream) error { return handler(s) },
			}},
		}, g)
	}
	register(globalToZoneService, g.globalToZone)
	register(zoneToGlobalService, g.zoneToGlobal)
	register(federationv1.MultiplexedSync_ServiceDesc.ServiceName, g.multiplexed)
	federationv1.RegisterZoneServiceServer(r, zoneService{g: g})
}

// Close ends all streams and forgets the zones; streams that begin later are refused. It
// does not wait. It is idempotent.
func (g *Global) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, p := range g.zones {
		p.timer.Stop()
		p.end(status.Error(codes.Unavailable, "this control plane is shutting down"))
	}
}

func (p *peer) end(cause error) {
	for s := range p.streams {
		s.cancel(cause)
	}
}

func (g *Global) globalToZone(s grpc.ServerStream) error {
	return g.serve(s, globalToZoneMethod, func(ctx context.Context, a Admission, st *stream) error {
		return serveDelta(ctx, s, a.Outlet, a.Zone, st.link, g.observe(st), func() {})
	})
}

func (g *Global) zoneToGlobal(s grpc.ServerStream) error {
	return g.serve(s, zoneToGlobalMethod, func(ctx context.Context, a Admission, st *stream) error {
		versions := len(metadata.ValueFromIncomingContext(ctx, expiredKey)) > 0
		return followDelta(ctx, s, a.Inlet, st.link, versions, func() {})
	})
}

func (g *Global) multiplexed(s grpc.ServerStream) error {
	return g.serve(s, federationv1.MultiplexedSync_Stream_FullMethodName, func(ctx context.Context, a Admission, st *stream) error {
		return multiplex(ctx, s, a.Outlet, a.Zone, a.Inlet, st.link, g.observe(st), func() {})
	})
}

func (g *Global) observe(st *stream) func(engine) {
	return func(e engine) {
		g.mu.Lock()
		defer g.mu.Unlock()
		st.engine = e
	}
}

// serve admits a stream and runs it until it fails, or is ended.
func (g *Global) serve(s grpc.ServerStream, method string, run func(context.Context, Admission, *stream) error) error {
	a, err := g.config.Admit(s.Context())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(s.Context())
	defer cancel(nil)
	st := &stream{method: method, since: time.Now(), cancel: cancel}
	p, err := g.add(a.Zone, st)
	if err != nil {
		return err
	}
	defer g.remove(p, st)
	if a.Opened != nil {
		defer a.Opened()()
	}
	if a.End != nil {
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			select {
			case <-a.End:
				cancel(status.Errorf(codes.Aborted, "what zone %s may do has changed; connect again", a.Zone))
			case <-stop:
			}
		}()
	}
	err = run(ctx, a, st)
	g.config.Log.Info("stream of a zone ended", "zone", a.Zone, "method", method, "reason", status.Convert(err).Message())
	return err
}

func (g *Global) add(zone string, st *stream) (*peer, error) {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil, status.Error(codes.Unavailable, "this control plane is shutting down")
	}
	p := g.peer(zone)
	p.streams[st], st.link = struct{}{}, &p.link
	g.mu.Unlock()
	g.sign(p)
	return p, nil
}

// peer returns the state of a zone. g.mu is held.
func (g *Global) peer(zone string) *peer {
	p := g.zones[zone]
	if p == nil {
		p = &peer{name: zone, streams: map[*stream]struct{}{}}
		p.timer = time.AfterFunc(g.config.Timeout, func() { g.expire(p) })
		g.zones[zone] = p
	}
	return p
}

func (g *Global) remove(p *peer, st *stream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(p.streams, st)
}

// sign notes that a zone is alive.
func (g *Global) sign(p *peer) {
	p.observed.Lock()
	defer p.observed.Unlock()
	g.mu.Lock()
	p.lastSign = time.Now()
	if !g.closed {
		p.timer.Reset(g.config.Timeout)
	}
	news := !p.online
	p.online = true
	g.mu.Unlock()
	if news {
		g.config.Log.Info("zone is online", "zone", p.name)
		if g.config.Observe != nil {
			g.config.Observe(p.name, true)
		}
	}
}

// errSilent ends the streams of a zone that has not checked its health.
var errSilent = errors.New("the zone was silent for too long")

// expire notes that a zone was silent for the timeout.
func (g *Global) expire(p *peer) {
	p.observed.Lock()
	defer p.observed.Unlock()
	g.mu.Lock()
	if g.closed || !p.online || time.Since(p.lastSign) < g.config.Timeout {
		g.mu.Unlock()
		return // a sign came while the timer fired
	}
	p.online = false
	p.end(status.Error(codes.DeadlineExceeded, errSilent.Error()))
	g.mu.Unlock()
	g.config.Log.Warn("zone is offline", "zone", p.name, "timeout", g.config.Timeout)
	if g.config.Observe != nil {
		g.config.Observe(p.name, false)
	}
}

// zoneService implements the generated interface; its methods are not those of Global.
type zoneService struct {
	federationv1.UnimplementedZoneServiceServer
	g *Global
}

// HealthCheck notes a sign of life.
func (z zoneService) HealthCheck(ctx context.Context, r *federationv1.HealthCheckRequest) (*federationv1.HealthCheckResponse, error) {
	a, err := z.g.config.Admit(ctx)
	if err != nil {
		return nil, err
	}
	z.g.mu.Lock()
	if z.g.closed {
		z.g.mu.Unlock()
		return nil, status.Error(codes.Unavailable, "this control plane is shutting down")
	}
	p := z.g.peer(a.Zone)
	p.instance, p.version = r.GetInstance(), r.GetVersion()
	z.g.mu.Unlock()
	if texts := metadata.ValueFromIncomingContext(ctx, lagKey); len(texts) > 0 {
		if lag, ok := parseLag(texts[0]); ok {
			p.link.mu.Lock()
			p.link.peerLag = lag
			p.link.mu.Unlock()
		}
	}
	z.g.sign(p)
	out := &federationv1.HealthCheckResponse{IntervalMilliseconds: uint32(min(CheckInterval, z.g.config.Timeout/3).Milliseconds())}
	if z.g.config.Instances != nil {
		for _, i := range z.g.config.Instances() {
			out.Instances = append(out.Instances, &federationv1.GlobalInstance{Api: i.API, Grpc: i.GRPC})
		}
	}
	return out, nil
}

// Serve holds the stream of calls into a zone.
func (z zoneService) Serve(s grpc.BidiStreamingServer[federationv1.CallAnswer, federationv1.Call]) error {
	return z.g.serve(s, federationv1.ZoneService_Serve_FullMethodName, func(ctx context.Context, a Admission, _ *stream) error {
		c := newCaller(s)
		z.g.setCaller(a.Zone, c, nil)
		defer z.g.setCaller(a.Zone, nil, c)
		failed := make(chan error, 1)
		go func() { failed <- c.read(a.Zone) }()
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ended(ctx)
		}
	})
}

// setCaller makes c the caller of a zone; with old, only in its place.
func (g *Global) setCaller(zone string, c, old *caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.zones[zone]; old == nil || p.caller == old {
		p.caller = c
	}
}

// Call makes a call into a zone, by the newest stream that the zone has to this
// instance. It takes at most CallTimeout. Errors are gRPC statuses; Unavailable names
// the hop that is missing. *NoStreamError: another instance may have a stream.
func (g *Global) Call(ctx context.Context, zone string, call *federationv1.Call) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	g.mu.Lock()
	var c *caller
	if p := g.zones[zone]; p != nil {
		c = p.caller
	}
	g.mu.Unlock()
	if c == nil {
		return nil, &NoStreamError{zone}
	}
	return c.call(ctx, zone, call)
}

// PeerStatus describes a zone that has connected to this instance.
type PeerStatus struct {
	Zone              string
	Online            bool
	LastSign          time.Time
	Instance, Version string
	Streams           []StreamStatus
	Link              Link
}

// StreamStatus describes an open stream.
type StreamStatus struct {
	Method string
	Since  time.Time
	// Sender of a stream that sends.
	Sender federation.SenderStatus
}

// Status describes all zones, by name.
func (g *Global) Status() []PeerStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []PeerStatus
	for _, p := range g.zones {
		s := PeerStatus{Zone: p.name, Online: p.online, LastSign: p.lastSign, Instance: p.instance, Version: p.version, Link: p.link.status()}
		for st := range p.streams {
			one := StreamStatus{Method: st.method, Since: st.since}
			if st.engine != nil {
				one.Sender = st.engine.status()
			}
			s.Streams = append(s.Streams, one)
		}
		slices.SortFunc(s.Streams, func(a, b StreamStatus) int { return strings.Compare(a.Method, b.Method) })
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b PeerStatus) int { return strings.Compare(a.Zone, b.Zone) })
	return out
}
