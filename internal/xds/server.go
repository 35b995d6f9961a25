package xds

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	loadstats "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	sidecarv1 "github.com/proxima-mesh/proxima/api/sidecar/v1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	deltastream "github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/xds/build"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

// ClientID is who a client says it is: MESH/NAMESPACE/DATAPLANE, the ID of its Node; or */ingress/NAME and
// */egress/NAME of a gateway, which is of all meshes.
type ClientID struct {
	Mesh string
	// Dataplane of the client. That of a gateway has its name, and GatewayNamespace.
	Dataplane catalog.Key
	// Gateway is its role; build.NoRole: it is none.
	Gateway build.Role
}

// GatewayNamespace stands for the namespace of gateways, which have none. No namespace is called so.
const GatewayNamespace = "*"

func (c ClientID) String() string {
	if c.Gateway != build.NoRole {
		return c.Mesh + "/" + c.Gateway.String() + "/" + c.Dataplane.Name
	}
	return c.Mesh + "/" + c.Dataplane.Namespace + "/" + c.Dataplane.Name
}

// maxID of a Node's ID in bytes: three names of objects.
const maxID = 3*253 + 2

// ParseClientID reads the ID of a Node.
func ParseClientID(id string) (ClientID, error) {
	parts := strings.Split(id, "/")
	if len(id) > maxID || len(parts) != 3 || slices.Contains(parts, "") {
		return ClientID{}, fmt.Errorf("node ID %.100q: want MESH/NAMESPACE/DATAPLANE, as in default/shop/web-1", id)
	}
	if parts[0] == build.AllMeshes {
		for _, role := range []build.Role{build.Ingress, build.Egress} {
			if parts[1] == role.String() {
				return ClientID{parts[0], catalog.Key{Namespace: GatewayNamespace, Name: parts[2]}, role}, nil
			}
		}
		return ClientID{}, fmt.Errorf("node ID %.100q: want */ingress/NAME or */egress/NAME of a gateway", id)
	}
	return ClientID{Mesh: parts[0], Dataplane: catalog.Key{Namespace: parts[1], Name: parts[2]}}, nil
}

// Observer is told what happens on streams: of the proxy of a Dataplane or a gateway, on the stream with an ID that
// no other stream has, of resources of the type URL typ. Its methods must not block. An
// insight.Recorder is one.
type Observer interface {
	// Connected: a stream was admitted.
	Connected(key insight.Subject, c insight.Connection)
	Disconnected(key insight.Subject, id string)
	// Sent: a response was sent.
	Sent(key insight.Subject, id, typ string)
	// Acked: the proxy took a response with these resources, set or removed. Those of which it has
	// a version other than the one that was refused are not named.
	Acked(key insight.Subject, id, typ string, names []string)
	// Nacked: the proxy refused a response. The cause is among these resources; those that are not
	// are acknowledged or released later.
	Nacked(key insight.Subject, id, typ string, names []string, why insight.Rejection)
	// Withheld: the present version of a resource is not sent to the proxy, as others refused it.
	Withheld(key insight.Subject, id, typ, name string, why insight.Rejection)
	// Released: a resource that was refused or withheld is so no more.
	Released(key insight.Subject, id, typ, name string)
}

// StreamInfo describes a stream that was admitted.
type StreamInfo struct {
	// ID is unique among the streams of all servers.
	ID      string
	Client  ClientID
	Variant build.Variant
	// Version of the client's program, as it says, and Peer its address.
	Program, Version, Peer string
	// Supervisor is the version of the supervisor, as it says; empty: there is none.
	Supervisor string
	Since      time.Time
}

// Config configures a Server. Builder and Admit are needed.
type Config struct {
	Builder *build.Builder
	// Admit checks that the credential of a call (in ctx) may be that client. Its errors should
	// be gRPC statuses.
	Admit func(ctx context.Context, client ClientID) error
	// Observer of streams; nil: there is none.
	Observer Observer
	// LoadReports takes load reports; nil: that is not offered.
	LoadReports loadstats.LoadReportingServiceServer
	Registerer  prometheus.Registerer // nil: no metrics
	Log         *slog.Logger          // nil: discard
	Now         func() time.Time      // nil: time.Now
}

// Server is the discovery service. Safe for concurrent use.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	config  Config
	metrics *metrics

	// run is the first part of the IDs of streams.
	run string

	wanted chan struct{} // closed by the first client
	once   sync.Once

	supervisors supervisors

	mu      sync.Mutex
	streams map[uint64]*stream
	last    uint64
}

// New makes a server without any stream.
func New(c Config) *Server {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	s := &Server{config: c, run: rand.Text(), wanted: make(chan struct{}), streams: map[uint64]*stream{}}
	s.supervisors.server, s.supervisors.of = s, map[catalog.Key]*supervisor{}
	s.metrics = newMetrics(c.Registerer, s)
	return s
}

// Register adds the services to a gRPC server, which must be made with the ServerOptions of
// package delta/stream.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	discovery.RegisterAggregatedDiscoveryServiceServer(r, s)
	sidecarv1.RegisterCallsServer(r, &s.supervisors)
	if s.config.LoadReports != nil {
		loadstats.RegisterLoadReportingServiceServer(r, s.config.LoadReports)
	}
}

// DeltaAggregatedResources implements delta xDS.
func (s *Server) DeltaAggregatedResources(g discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.serve(g, parseDelta, false)
}

// StreamAggregatedResources implements the state of the world, for gRPC.
func (s *Server) StreamAggregatedResources(g discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.serve(g, parseWhole, true)
}

// parser of requests. The Node is in the first one.
type parser func(deltastream.Encoded) (delta.Request, *core.Node, error)

func parseDelta(message deltastream.Encoded) (delta.Request, *core.Node, error) {
	r := &discovery.DeltaDiscoveryRequest{}
	if err := proto.Unmarshal(message, r); err != nil {
		return delta.Request{}, nil, status.Error(codes.Internal, err.Error()) // as gRPC's codec answers
	}
	return delta.Request{
		Type: cmp.Or(knownType(r.GetTypeUrl()), r.GetTypeUrl()), Nonce: r.GetResponseNonce(), Rejected: rejected(r),
		Subscribe: r.GetResourceNamesSubscribe(), Unsubscribe: r.GetResourceNamesUnsubscribe(),
		Versions: r.GetInitialResourceVersions(),
	}, r.GetNode(), nil
}

func parseWhole(message deltastream.Encoded) (delta.Request, *core.Node, error) {
	r := &discovery.DiscoveryRequest{}
	if err := proto.Unmarshal(message, r); err != nil {
		return delta.Request{}, nil, status.Error(codes.Internal, err.Error())
	}
	return delta.Request{
		Type: r.GetTypeUrl(), Nonce: r.GetResponseNonce(), Rejected: rejected(r), Subscribe: r.GetResourceNames(),
	}, r.GetNode(), nil
}

func rejected(r interface{ GetErrorDetail() *statusProto }) string {
	if d := r.GetErrorDetail(); d != nil {
		return fmt.Sprintf("%s: %s", codes.Code(d.GetCode()), d.GetMessage())
	}
	return ""
}

// serve one stream. Its goroutine waits in here for as long as the stream is there, and a stack that
// has grown beyond 8 kB never becomes smaller again with what gRPC has on it. So nothing else is done
// on it: other goroutines admit the client, and decode and answer its requests.
func (s *Server) serve(g grpc.ServerStream, parse parser, whole bool) error {
	var first deltastream.Encoded
	if err := g.RecvMsg(&first); err != nil {
		return err
	}
	var st *stream
	opened := make(chan error, 1)
	go func() {
		var err error
		st, err = s.open(g, first, parse, whole)
		opened <- err
	}()
	if err := <-opened; err != nil {
		return err
	}
	return st.run()
}

// open a stream, if its client is admitted, with its first request.
func (s *Server) open(g grpc.ServerStream, message deltastream.Encoded, parse parser, whole bool) (*stream, error) {
	first, node, err := parse(message)
	if err != nil {
		return nil, err
	}
	client, err := ParseClientID(node.GetId())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.ready(g.Context()); err != nil {
		return nil, err
	}
	if err := s.config.Admit(g.Context(), client); err != nil {
		return nil, err
	}
	connection, err := s.connect(client, variantOf(node, whole))
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if connection.Class.Mesh != client.Mesh {
		connection.Close(nil)
		return nil, status.Errorf(codes.PermissionDenied, "Dataplane %s is of mesh %s, and the node ID says %s", client.Dataplane, connection.Class.Mesh, client.Mesh)
	}
	st := &stream{
		server: s, grpc: g, connection: connection, parse: parse, requests: make(chan deltastream.Encoded, 1),
		info: StreamInfo{
			Client: client, Variant: connection.Class.Variant, Program: node.GetUserAgentName(), Version: versionOf(node), Since: s.config.Now(),
			Supervisor: supervisorOf(g.Context()),
		},
	}
	if p, ok := peer.FromContext(g.Context()); ok && p.Addr != nil {
		st.info.Peer = p.Addr.String()
	}
	s.add(st)
	st.mu.Lock()
	err = st.step(first)
	st.mu.Unlock()
	if err != nil {
		s.remove(st, err)
		return nil, err
	}
	st.wake()
	return st, nil
}

func (s *Server) connect(client ClientID, variant build.Variant) (*build.Connection, error) {
	switch {
	case client.Gateway == build.NoRole:
		return s.config.Builder.Connect(client.Dataplane, variant)
	case variant == build.GRPC:
		return nil, errors.New("a gateway follows by delta xDS")
	}
	return s.config.Builder.ConnectGateway(client.Gateway, client.Dataplane.Name)
}

// Subject of what is observed of a client.
func (c ClientID) Subject() insight.Subject {
	switch c.Gateway {
	case build.Ingress:
		return insight.Gateway(insight.OfIngress, c.Dataplane.Name)
	case build.Egress:
		return insight.Gateway(insight.OfEgress, c.Dataplane.Name)
	}
	return insight.Workload(c.Dataplane)
}

// readyTimeout is how long a stream waits for a server that has just started. Then the client does
// better to try another one.
const readyTimeout = 5 * time.Second

// ready waits until the builder has read the tables: a client whose stream fails waits for a
// second or more before the next one.
func (s *Server) ready(ctx context.Context) error {
	s.once.Do(func() { close(s.wanted) })
	timer := time.NewTimer(readyTimeout)
	defer timer.Stop()
	select {
	case <-s.config.Builder.Ready():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return status.Error(codes.Unavailable, "the control plane is still reading its store")
	}
}

// Wanted is closed when the first client comes: until then nobody needs the resources, and so
// the builder can do without the tables.
func (s *Server) Wanted() <-chan struct{} { return s.wanted }

// variantOf a client. A supervisor leaves out the list of extensions, which every Envoy sends.
func variantOf(node *core.Node, whole bool) build.Variant {
	switch {
	case whole:
		return build.GRPC
	case len(node.GetExtensions()) == 0:
		return build.Sidecar
	}
	return build.Direct
}

func versionOf(n *core.Node) string {
	if v := n.GetUserAgentVersion(); v != "" {
		return v
	}
	v := n.GetUserAgentBuildVersion().GetVersion()
	if v == nil {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
}

// supervisorOf a call: its version, by its user agent.
func supervisorOf(ctx context.Context) string {
	for _, agent := range metadata.ValueFromIncomingContext(ctx, "user-agent") {
		if rest, ok := strings.CutPrefix(agent, wire.UserAgent); ok {
			version, _, _ := strings.Cut(rest, " ")
			return version
		}
	}
	return ""
}

func (s *Server) add(st *stream) {
	c := st.connection.Config
	c.Report = reporter{st}
	c.Woken = st.wake
	st.mu.Lock() // it may be woken at once
	st.session = delta.NewLayered(c)
	st.mu.Unlock()
	s.mu.Lock()
	s.last++
	st.number, st.info.ID = s.last, s.run+"-"+strconv.FormatUint(s.last, 10)
	s.streams[st.number] = st
	s.mu.Unlock()
	s.config.Log.Info("proxy connected", "client", st.info.Client, "kind", st.info.Variant, "version", st.info.Version, "peer", st.info.Peer)
	if o := s.config.Observer; o != nil {
		o.Connected(st.info.Client.Subject(), insight.Connection{ID: st.info.ID, Versions: meshv1alpha1.ProxyVersions{
			Proxy: st.info.Program, Version: st.info.Version, Supervisor: st.info.Supervisor,
		}})
	}
}

func (s *Server) remove(st *stream, err error) {
	s.mu.Lock()
	delete(s.streams, st.number)
	s.mu.Unlock()
	st.mu.Lock()
	unfollowed := st.session.Unfollowed()
	st.session.Close()
	st.mu.Unlock()
	st.connection.Close(unfollowed)
	reason := "closed by the client"
	if err != nil {
		reason = status.Convert(err).Message()
	}
	s.config.Log.Info("proxy disconnected", "client", st.info.Client, "reason", reason)
	if o := s.config.Observer; o != nil {
		o.Disconnected(st.info.Client.Subject(), st.info.ID)
	}
}

// StreamStatus describes one stream.
type StreamStatus struct {
	StreamInfo
	Types []delta.LaneStatus
}

// Status describes all streams, oldest first.
func (s *Server) Status() []StreamStatus {
	s.mu.Lock()
	streams := make([]*stream, 0, len(s.streams))
	for _, st := range s.streams {
		streams = append(streams, st)
	}
	s.mu.Unlock()
	slices.SortFunc(streams, func(a, b *stream) int { return cmp.Compare(a.number, b.number) })
	out := make([]StreamStatus, 0, len(streams))
	for _, st := range streams {
		st.mu.Lock()
		out = append(out, StreamStatus{st.info, st.session.Status()})
		st.mu.Unlock()
	}
	return out
}
