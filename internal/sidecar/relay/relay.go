package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

const (
	// maxMessage that is received, in bytes: a thousand services in one response have 5 MB.
	maxMessage = 64 << 20
	// saveDelay after a change, and saveInterval between two writes of the file.
	saveDelay    = 50 * time.Millisecond
	saveInterval = time.Second
	// expireCheck is how often names are looked for that no Envoy asks for any more.
	expireCheck = time.Minute
	// DefaultExpiry of names that no Envoy has asked for. One that has started again asks for a
	// cluster on demand when the next connection needs it, which may be a day later.
	DefaultExpiry = 24 * time.Hour
	// maxStreams of the connection of an Envoy, which has a handful.
	maxStreams = 100
)

// Config configures a Relay. Node, Servers and TLS are required.
type Config struct {
	// Node is the ID that an Envoy has to have: the credential is that of this one alone.
	Node string
	// Servers are the addresses (HOST:PORT) of one control plane, which are tried in turn.
	Servers []string
	// TLS is the configuration for a server's host, asked for before each connection. An error
	// means that there are no credentials now.
	TLS func(host string) (*tls.Config, error)
	// Control is for the sockets of connections to servers, as of net.Dialer; nil: nothing is set.
	Control func(network, address string, conn syscall.RawConn) error
	// Start is closed when there are credentials; nil: there are.
	Start <-chan struct{}
	// File keeps what Envoy has accepted; "": nothing is kept.
	File string
	// Expiry of names that no Envoy asks for; 0: DefaultExpiry.
	Expiry time.Duration
	// Refused is called for each resource of the file that Envoy refuses. It must not block.
	Refused func(typeURL, name, version, message string)
	// Answer answers a question of the control plane (wire.AskConfig and so on). Its errors should be
	// gRPC statuses. nil: none is answered.
	Answer func(ctx context.Context, question, argument string) ([]byte, error)
	// Programs: there is no Envoy, but gRPC programs, each of which follows the control plane by a stream of its
	// own. Nothing is held for them, and File and Follow are not used.
	Programs bool
	// Follow are types of resources that the supervisor itself takes, all of them, and by what. They
	// are kept on disk as those of Envoy.
	Follow map[string]Following
	// Log takes lines of Envoy's access logs for servers (HOST:PORT) that Envoy cannot send them to. It must
	// not block. nil: such logs are refused.
	Log func(server, line string)
	// Version of the supervisor, which the control plane is told.
	Version string
	Logger  *slog.Logger // nil: silence
}

// Relay passes resources from control planes to Envoy.
type Relay struct {
	config Config

	mu       sync.Mutex
	core     *Core
	node     []byte // of the newest Envoy, without extensions
	sentNode []byte // with the present stream
	wake     map[int]chan struct{}
	reopen   func() // ends the stream to the control plane
	state    UpstreamState

	upstream  chan struct{} // there is something to be sent
	announced chan struct{} // closed when the first Envoy has said who it is
	dirty     chan struct{}
	accepted  chan struct{} // what Envoy has accepted may be something else
	link      link
}

// UpstreamState is that of the stream to the control plane.
type UpstreamState struct {
	Connected bool      `json:"connected"`
	Server    string    `json:"server,omitempty"`
	Since     time.Time `json:"since"`
	// Error of the last attempt.
	Error string `json:"error,omitempty"`
}

// New makes a relay that holds what an earlier one left in the file. A file that cannot be used
// is an error in the log: everything comes from the control plane then.
func New(c Config) *Relay {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Expiry == 0 {
		c.Expiry = DefaultExpiry
	}
	r := &Relay{
		config: c, core: NewCore(), wake: map[int]chan struct{}{}, reopen: func() {},
		upstream: make(chan struct{}, 1), announced: make(chan struct{}), dirty: make(chan struct{}, 1), accepted: make(chan struct{}, 1),
		state: UpstreamState{Since: time.Now()},
	}
	r.link.changed = make(chan struct{})
	r.core.Refused = func(typeURL, name, version, message string) {
		c.Logger.Warn("Envoy refuses a resource that it accepted before; it is asked for again",
			"type", typeURL, "name", name, "version", version, "error", message)
		if c.Refused != nil {
			c.Refused(typeURL, name, version, message)
		}
	}
	if c.File != "" {
		if err := r.core.load(c.File, c.Node, time.Now()); err != nil {
			c.Logger.Warn("the configuration of the last run is not used", "error", err)
		}
	}
	for _, typeURL := range []string{wire.Settings, wire.Names} {
		if c.Follow[typeURL].Take == nil {
			r.core.Forget(typeURL) // an earlier run may have followed it
		}
	}
	r.core.SetOwn(wire.Secret, wire.OwnSecret, nil)
	return r
}

// SetSecrets replaces the resources of type Secret that the supervisor has, by names of wire.OwnSecret.
func (r *Relay) SetSecrets(all []wire.Resource) {
	r.do(func(c *Core) { c.SetOwn(wire.Secret, wire.OwnSecret, all) })
}

// Holds reports whether there is a configuration from which an Envoy can start.
func (r *Relay) Holds() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.core.types[wire.Listener]
	return t != nil && t.answered
}

// Status is what a relay does now.
type Status struct {
	Upstream UpstreamState `json:"upstream"`
	// Envoys that are connected; two during a hot restart.
	Envoys int `json:"envoys"`
	// Resources that are held, by type.
	Resources map[string]int `json:"resources"`
	Counters  `json:"counters"`
}

// Status of the relay.
func (r *Relay) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := Status{Upstream: r.state, Envoys: r.core.Envoys(), Resources: map[string]int{}, Counters: r.core.Counters}
	for url, t := range r.core.types {
		out.Resources[url] = len(t.accepted)
	}
	return out
}

// do changes the state, and has what follows sent.
func (r *Relay) do(f func(*Core)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.core)
	for id, wake := range r.wake {
		if s := r.core.sessions[id]; s != nil && len(s.out) > 0 {
			notify(wake)
		}
	}
	if len(r.core.up) > 0 {
		notify(r.upstream)
	}
	if r.core.Dirty {
		notify(r.dirty)
		notify(r.accepted)
	}
	if r.core.Resync && r.core.connected {
		r.core.Resync = false
		r.reopen()
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run serves Envoy on a listener, and follows the control plane, until ctx ends. It closes the
// listener, and returns nil then.
func (r *Relay) Run(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer(
		grpc.ForceServerCodec(wire.Codec{}), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxMessage),
		grpc.ReadBufferSize(bufferSize), grpc.WriteBufferSize(bufferSize),
	)
	for _, d := range r.services() {
		server.RegisterService(&d, r)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	var tasks sync.WaitGroup
	tasks.Go(func() { r.follow(ctx) })
	tasks.Go(func() { r.keep(ctx) })
	tasks.Go(func() { r.expire(ctx) })
	tasks.Go(func() { r.attend(ctx) })
	for typeURL, f := range r.config.Follow {
		tasks.Go(func() { r.supply(ctx, typeURL, f) })
	}
	err := server.Serve(l)
	ended := ctx.Err() != nil || errors.Is(err, grpc.ErrServerStopped)
	cancel()
	tasks.Wait()
	if ended {
		return nil
	}
	return fmt.Errorf("serve Envoy: %w", err)
}

// bufferSize of connections: there is one of each kind, and messages are small.
const bufferSize = 4 << 10

// services that an Envoy finds: discovery and load reports.
func (r *Relay) services() []grpc.ServiceDesc {
	stream := func(name string, serve func(*Relay, grpc.ServerStream) error) grpc.StreamDesc {
		return grpc.StreamDesc{
			StreamName: name, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, s grpc.ServerStream) error { return serve(r, s) },
		}
	}
	return []grpc.ServiceDesc{
		{
			ServiceName: discoveryService, HandlerType: (*any)(nil),
			Streams: []grpc.StreamDesc{stream(deltaMethod, (*Relay).delta), stream(sotwMethod, (*Relay).sotw)},
		},
		{ServiceName: loadService, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{stream(loadMethod, (*Relay).loads)}},
		{ServiceName: logService, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: logMethod, Handler: func(
			_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor,
		) (any, error) {
			return r.logs(decode)
		}}}},
	}
}

// Service and method by which Envoy sends logs.
const (
	logService = "opentelemetry.proto.collector.logs.v1.LogsService"
	logMethod  = "Export"
)

// logs are passed on, and count as taken: what becomes of them is for Log to count.
func (r *Relay) logs(decode func(any) error) (any, error) {
	var frame wire.Frame
	if err := decode(&frame); err != nil {
		return nil, err
	}
	if r.config.Log == nil {
		return nil, status.Error(codes.Unimplemented, "this supervisor sends no logs")
	}
	lines, err := wire.ParseLogs(frame)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	for _, l := range lines {
		r.config.Log(l.Server, l.Line)
	}
	return &wire.Frame{}, nil
}

// delta serves the stream of an Envoy.
func (r *Relay) delta(stream grpc.ServerStream) error {
	id, wake := 0, make(chan struct{}, 1)
	r.do(func(c *Core) {
		id = c.Open()
		r.wake[id] = wake
	})
	defer r.do(func(c *Core) {
		c.Close(id, time.Now())
		delete(r.wake, id)
	})
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	var sender sync.WaitGroup
	sender.Go(func() { r.send(ctx, stream, id, wake) })
	err := r.receive(stream, id)
	cancel()
	sender.Wait()
	return err
}

// send what there is for a session. Its end is found by the receiver.
func (r *Relay) send(ctx context.Context, stream grpc.ServerStream, id int, wake <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		}
		r.mu.Lock()
		out := r.core.Downstream(id)
		r.mu.Unlock()
		for _, response := range out {
			frame := wire.Frame(response.Append(nil))
			if stream.SendMsg(&frame) != nil {
				return
			}
		}
	}
}

func (r *Relay) receive(stream grpc.ServerStream, id int) error {
	for known := false; ; {
		var frame wire.Frame
		if err := stream.RecvMsg(&frame); err != nil {
			return nil // Envoy has gone
		}
		request, err := wire.ParseRequest(frame)
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		if !known {
			if err := r.announce(request.Node); err != nil {
				return err
			}
			known = true
		}
		if request.Error != nil {
			r.config.Logger.Warn("Envoy refuses a response", "type", request.TypeURL, "error", request.Error.Message)
		}
		r.do(func(c *Core) { c.Request(id, request) })
	}
}

// announce who the proxy is: its first request says so.
func (r *Relay) announce(node []byte) error {
	id, err := wire.NodeID(node)
	if err == nil && id != r.config.Node {
		return status.Errorf(codes.PermissionDenied, "node ID %q: this is the supervisor of %q", id, r.config.Node)
	}
	if err == nil {
		node, err = wire.WithoutExtensions(node)
	}
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	r.mu.Lock()
	first := r.node == nil
	r.node = node
	// Another Envoy, as after an upgrade: the control plane learns it by a new stream.
	r.core.Resync = r.core.Resync || r.sentNode != nil && string(r.sentNode) != string(node)
	r.mu.Unlock()
	if first {
		close(r.announced)
	}
	return nil
}

// keep the file up to date.
func (r *Relay) keep(ctx context.Context) {
	if r.config.File == "" {
		return
	}
	for {
		select {
		case <-ctx.Done():
			r.write()
			return
		case <-r.dirty:
		}
		wait(ctx, saveDelay)
		r.write()
		wait(ctx, saveInterval-saveDelay)
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (r *Relay) write() {
	r.mu.Lock()
	if !r.core.Dirty {
		r.mu.Unlock()
		return
	}
	data := r.core.Encode(r.config.Node)
	r.core.Dirty = false
	r.mu.Unlock()
	if err := save(r.config.File, data); err != nil {
		r.config.Logger.Error("the configuration is not on disk: Envoy cannot start without a control plane", "error", err)
		r.mu.Lock()
		r.core.Dirty = true // tried again with the next change
		r.mu.Unlock()
	}
}

func (r *Relay) expire(ctx context.Context) {
	ticker := time.NewTicker(expireCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			r.do(func(c *Core) { c.Expire(now.Add(-r.config.Expiry)) })
		}
	}
}
