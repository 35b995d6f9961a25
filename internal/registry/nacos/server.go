package nacos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/rawgrpc"
)

// Server serves clients of Nacos. Make it with New.
type Server struct {
	core *registry.Core
	log  *slog.Logger
	ids  atomic.Int64
	beat *beats
	// grace is how long the instances of a connection stay that was cut.
	grace time.Duration
	// byPath are the handlers of HTTP.
	byPath map[string]func(*call) (any, error)

	mu    sync.Mutex
	conns map[*conn]struct{}
	// asked to move, by address.
	asked map[netip.Addr]*asked
}

// New makes a server; Serve and ServeHTTPOn start it.
func New(core *registry.Core) *Server {
	s := &Server{core: core, log: core.Logger.With("protocol", string(registry.Nacos)), grace: reconnectGrace, conns: map[*conn]struct{}{}, asked: map[netip.Addr]*asked{}}
	s.beat = newBeats(s)
	s.byPath = s.routes()
	return s
}

const (
	// maxMessage in bytes: a configuration of 1 MiB, escaped as JSON, and its envelope.
	maxMessage = 10 << 20
	// Clients ask for life signs of the connection every minute, and by HealthCheckRequest.
	minPing   = 20 * time.Second
	idlePing  = 20 * time.Second
	pingLimit = 10 * time.Second
)

// Serve answers by gRPC at l until ctx ends, and returns nil then. It closes l. It must be called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	g := grpc.NewServer(
		grpc.ForceServerCodecV2(rawgrpc.Codec{}), grpc.StatsHandler(s), grpc.MaxRecvMsgSize(maxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: idlePing, Timeout: pingLimit}),
		grpc.ConnectionTimeout(10*time.Second), grpc.MaxConcurrentStreams(256), grpc.MaxHeaderListSize(16<<10),
		grpc.WriteBufferSize(8<<10), grpc.ReadBufferSize(8<<10),
	)
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: "Request", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "request", Handler: unary}},
	}, s)
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: "BiRequestStream", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "requestBiStream", Handler: stream, ServerStreams: true, ClientStreams: true}},
	}, s)
	end := context.AfterFunc(ctx, g.Stop)
	defer end()
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { s.runBalance(ctx) })
	defer func() { stop(); running.Wait() }()
	if err := g.Serve(l); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

func success(id string) result { return result{ResultCode: resultOK, Success: true, RequestID: id} }

func (s *Server) nextID() string { return strconv.FormatInt(s.ids.Add(1), 10) }

// pushed counts a push of a change.
func (s *Server) pushed(changed time.Time) {
	if changed.IsZero() {
		changed = time.Now()
	}
	s.core.Meters.Push(registry.Nacos, time.Since(changed))
}

// unary is the handler of Request/request.
func unary(srv any, ctx context.Context, decodeBytes func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var in []byte
	if err := decodeBytes(&in); err != nil {
		return nil, err
	}
	out, err := srv.(*Server).handle(ctx, in)
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// handle a request. What is wrong with it is said in the response; an error ends the call.
func (s *Server) handle(ctx context.Context, in []byte) ([]byte, error) {
	p, err := decode(in)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	c := connOf(ctx)
	if c == nil {
		return nil, status.Error(codes.Internal, "a request without a connection")
	}
	message, err := s.respond(ctx, c, p)
	s.core.Meters.Request(registry.Nacos, err)
	if err == nil {
		return encode(responseTo(p.kind), message)
	}
	var head header
	_ = json.Unmarshal(p.body, &head) // it may be what is wrong
	return encode("ErrorResponse", s.refusal(err, head.RequestID))
}

// responseTo a type of request. Two do not follow the rule.
func responseTo(kind string) string {
	switch kind {
	case "ServiceQueryRequest":
		return "QueryServiceResponse"
	case "ConfigBatchListenRequest":
		return "ConfigChangeBatchListenResponse"
	}
	return kind[:len(kind)-len("Request")] + "Response"
}

// refusal is what a client is told of an error.
func (s *Server) refusal(err error, id string) *result {
	out := &result{ResultCode: resultFailed, ErrorCode: codeServerError, Message: err.Error(), RequestID: id}
	var p *problem
	switch {
	case errors.As(err, &p):
		out.ErrorCode = p.code
	case errors.Is(err, registry.ErrStarting):
		out.ErrorCode, out.Message = codeStarting, "Server is starting,please try later."
	case errors.Is(err, registry.ErrEnded):
		out.ErrorCode = codeUnregistered
	case errors.As(err, new(*registry.ForbiddenError)):
		out.ErrorCode = codeForbidden
	case apierrors.IsInvalid(err):
		out.ErrorCode = codeInvalid
	default:
		s.log.Warn("a request of a client of Nacos failed", "error", err)
	}
	return out
}

// respond to a request, by its type.
func (s *Server) respond(ctx context.Context, c *conn, p *payload) (any, error) {
	switch p.kind {
	case "ServerCheckRequest":
		if err := s.core.Welcome(ctx); err != nil {
			return nil, err
		}
		return &serverCheckResponse{result: success(""), ConnectionID: c.id}, nil
	case "HealthCheckRequest":
		if !c.isSetUp() {
			return nil, unregistered()
		}
		return &result{ResultCode: resultOK, Success: true}, nil
	}
	if _, known := requests[p.kind]; !known {
		return nil, &problem{codeNoHandler, "RequestHandler Not Found: " + fmt.Sprintf("%.100s", p.kind)}
	}
	switch err := s.core.Started(); {
	case err != nil:
		return nil, err
	case !c.isSetUp():
		return nil, unregistered()
	}
	user, err := c.admit(ctx, p.headers["accessToken"])
	if err != nil {
		return nil, err
	}
	return requests[p.kind](ctx, c, user, p.body)
}

func unregistered() error { return &problem{codeUnregistered, "Connection is unregistered."} }

// requests are what clients ask for, by type.
var requests = map[string]func(context.Context, *conn, registry.User, []byte) (any, error){
	"InstanceRequest": read(func(ctx context.Context, c *conn, u registry.User, r *instanceRequest) (any, error) {
		return c.instance(ctx, u, r)
	}),
	"BatchInstanceRequest": read(func(ctx context.Context, c *conn, u registry.User, r *batchInstanceRequest) (any, error) {
		return c.batch(ctx, u, r)
	}),
	"SubscribeServiceRequest": read(func(_ context.Context, c *conn, _ registry.User, r *subscribeServiceRequest) (any, error) {
		return c.subscribeService(r)
	}),
	"ServiceQueryRequest": read(func(_ context.Context, c *conn, _ registry.User, r *serviceQueryRequest) (any, error) {
		return c.query(r)
	}),
	"ServiceListRequest": read(func(_ context.Context, c *conn, _ registry.User, r *serviceListRequest) (any, error) {
		return c.list(r)
	}),
	"ConfigQueryRequest": read(func(_ context.Context, c *conn, u registry.User, r *configRequest) (any, error) {
		return c.queryConfig(u, r)
	}),
	"ConfigPublishRequest": read(func(ctx context.Context, c *conn, u registry.User, r *configRequest) (any, error) {
		return &result{ResultCode: resultOK, Success: true, RequestID: r.RequestID}, c.server.publishConfig(ctx, u, r)
	}),
	"ConfigRemoveRequest": read(func(ctx context.Context, c *conn, u registry.User, r *configRequest) (any, error) {
		return &result{ResultCode: resultOK, Success: true, RequestID: r.RequestID}, c.server.removeConfig(ctx, u, &r.configNamed)
	}),
	"ConfigBatchListenRequest": read(func(_ context.Context, c *conn, u registry.User, r *configListenRequest) (any, error) {
		return c.listen(u, r)
	}),
}

// read the body of a request for its handler.
func read[T any](handle func(context.Context, *conn, registry.User, *T) (any, error)) func(context.Context, *conn, registry.User, []byte) (any, error) {
	return func(ctx context.Context, c *conn, user registry.User, body []byte) (any, error) {
		r := new(T)
		if err := json.Unmarshal(body, r); err != nil {
			return nil, invalid("the body of the request: %v", err)
		}
		return handle(ctx, c, user, r)
	}
}

func (c *conn) isSetUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.setUp && !c.closed
}

// stream is the handler of BiRequestStream/requestBiStream: by it the server sends requests, and the
// client acknowledges them.
func stream(srv any, ss grpc.ServerStream) error {
	s, c := srv.(*Server), connOf(ss.Context())
	if c == nil {
		return status.Error(codes.Internal, "a stream without a connection")
	}
	ended := make(chan error, 1)
	go func() { ended <- s.receive(ss, c) }()
	for {
		select {
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-ss.Context().Done():
			return nil
		case <-c.wake:
			if err := s.send(ss, c); err != nil {
				return err
			}
		}
	}
}

// receive what the client sends by its stream: who it is, at first, then acknowledgements.
func (s *Server) receive(ss grpc.ServerStream, c *conn) error {
	for {
		var in []byte
		if err := ss.RecvMsg(&in); err != nil {
			return err
		}
		p, err := decode(in)
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		if p.kind != "ConnectionSetupRequest" {
			continue
		}
		var setup connectionSetup
		if err := json.Unmarshal(p.body, &setup); err != nil {
			return status.Error(codes.InvalidArgument, "ConnectionSetupRequest: "+err.Error())
		}
		c.mu.Lock()
		c.setUp, c.golang = true, strings.HasPrefix(setup.ClientVersion, goClient)
		c.mu.Unlock()
		s.log.Debug("a client of Nacos", "connection", c.id, "version", setup.ClientVersion)
	}
}

// send what the client is to be told.
func (s *Server) send(ss grpc.ServerStream, c *conn) error {
	subs, configs, move := c.take()
	for _, sub := range subs {
		b, err := c.push(sub)
		if err != nil {
			return err
		}
		if b != nil {
			if err := ss.SendMsg(&b); err != nil {
				return err
			}
		}
	}
	for _, l := range configs {
		b, err := encode("ConfigChangeNotifyRequest", &configChangeNotify{header: header{s.nextID()}, configNamed: l.named, Module: "config"})
		if err != nil {
			return err
		}
		s.pushed(time.Time{})
		if err := ss.SendMsg(&b); err != nil {
			return err
		}
		c.told(l)
	}
	if move == nil {
		return nil
	}
	move.RequestID = s.nextID()
	b, err := encode("ConnectResetRequest", move)
	if err != nil {
		return err
	}
	return ss.SendMsg(&b)
}

// annotationProtect on a Service is the share of healthy instances below which clients are told that all
// are, as it is better to try them than to overload the few (protectThreshold).
const annotationProtect = registry.GroupName + "/protect-threshold"

// infoOf a listing, as the settings of its service have it.
func (s *Server) infoOf(l *registry.Listing, clusters string, healthyOnly bool) *serviceInfo {
	return infoOf(l, clusters, healthyOnly, s.protectOf(l.Service))
}

// protectOf a service is its protectThreshold.
func (s *Server) protectOf(name registry.Service) float64 {
	object := s.serviceObject(name)
	if object == nil {
		return 0
	}
	protect, err := strconv.ParseFloat(object.Annotations[annotationProtect], 64)
	if err != nil || protect != protect { // none: NaN is no key either
		return 0
	}
	return protect
}

// serviceObject is the Service of Kubernetes; nil: there is none.
func (s *Server) serviceObject(name registry.Service) *corev1.Service {
	object, ok := s.core.Index.Snapshot().Services.Get(corev1Key(name))
	if !ok {
		return nil
	}
	return object
}
