package workload_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/issue"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
	"github.com/proxima-mesh/proxima/internal/identity/workload"
)

// plane is a control plane with mesh "shop": real server, board and rotation, over an
// in-memory connection.
type plane struct {
	t      testing.TB
	board  *issue.Board
	driver *rotation.Driver

	mu      sync.Mutex
	signers map[string]*authority.ZoneSigner // by authority ID
	roots   map[string]*authority.Root
	state   rotation.State
	keeper  *memKeeper
	issued  []issue.Issued
	hold    chan struct{} // Issue waits for it to be closed, if there is one
	server  *issue.Server
	up      context.Context
	down    context.CancelFunc
	streams sync.WaitGroup
}

type memKeeper struct {
	record  []byte
	version int64
}

func (k *memKeeper) Load(context.Context) ([]byte, int64, error) { return k.record, k.version, nil }

func (k *memKeeper) Save(_ context.Context, record []byte, version int64) (int64, error) {
	if version != k.version {
		return 0, rotation.ErrConflict
	}
	k.record, k.version = record, version+1
	return k.version, nil
}

type noKeeper struct{}

func (noKeeper) Load(context.Context) ([]byte, error) { return nil, nil }
func (noKeeper) Save(context.Context, []byte) error   { return nil }

func shop(t testing.TB) mesh.Domain {
	t.Helper()
	d, err := mesh.ParseDomain("shop.mesh")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func newPlane(t testing.TB) *plane {
	t.Helper()
	p := &plane{t: t, signers: map[string]*authority.ZoneSigner{}, roots: map[string]*authority.Root{}, keeper: &memKeeper{}}
	p.restart()
	if _, err := p.driver.Ensure(t.Context(), p.newAuthority()); err != nil {
		t.Fatal(err)
	}
	p.serve()
	return p
}

// restart forgets what is in memory, as a new process does.
func (p *plane) restart() {
	var peers []issue.Issued
	p.mu.Lock()
	peers = slices.Clone(p.issued)
	p.mu.Unlock()
	p.board = issue.NewBoard(nil)
	p.board.Restore(peers)
	p.driver = rotation.NewDriver(rotation.DriverConfig{
		Mesh: "shop", Keeper: p.keeper, Peers: func() []rotation.Peer { return p.board.Peers("shop") },
		CanSign: func(ctx context.Context, a rotation.Authority) error {
			p.mu.Lock()
			s := p.signers[a.ID]
			p.mu.Unlock()
			return authority.Probe(ctx, s, shop(p.t), time.Now())
		},
		Publish: func(s rotation.State) {
			p.mu.Lock()
			p.state = s
			p.mu.Unlock()
			if err := p.board.Publish(issue.Published{State: s, Domain: shop(p.t)}); err != nil {
				p.t.Error(err)
			}
		},
	})
}

// newAuthority makes a root with a zone's signer.
func (p *plane) newAuthority() rotation.Authority {
	p.t.Helper()
	root, err := authority.NewRoot("shop", shop(p.t), time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	z, err := authority.NewZoneSigner(p.t.Context(), authority.ZoneConfig{
		Mesh: "shop", Domain: shop(p.t), Zone: "east", Issuer: root.ForZone("east", time.Now), Keeper: noKeeper{},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	// One intermediate is enough for 90 days.
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = z.Run(ctx) }()
	for z.NotAfter().IsZero() {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
	id := authority.ID(root.Certificate())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.signers[id], p.roots[id] = z, root
	return rotation.Authority{ID: id, Backend: "builtin", Roots: certpem.EncodeCertificates(root.Certificate())}
}

// Workload implements issue.Workloads: workloads "NODE-…" run on NODE.
func (p *plane) Workload(_ context.Context, namespace, name string) (issue.Workload, bool, error) {
	var node string
	var i int
	if n, err := fmt.Sscanf(name, "%2s-%d", &node, &i); n != 2 || err != nil {
		return issue.Workload{}, false, nil
	}
	return issue.Workload{Mesh: "shop", Namespace: namespace, ServiceAccount: fmt.Sprintf("sa-%d", i), Node: node}, true, nil
}

func (p *plane) Gateway(context.Context, string, mesh.Kind) (bool, error) { return true, nil }

func (p *plane) NodeInMesh(_ context.Context, _, meshName string) (bool, error) {
	return meshName == "shop", nil
}

// nodeKey of the caller in a context.
type nodeKey struct{}

func (p *plane) serve() {
	server := issue.NewServer(issue.Config{
		Zone: "east",
		Caller: func(ctx context.Context) (string, error) {
			if node, ok := ctx.Value(nodeKey{}).(string); ok {
				return node, nil
			}
			if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("node")) == 1 {
				return md.Get("node")[0], nil
			}
			return "", status.Error(codes.Unauthenticated, "no node")
		},
		Workloads: p,
		Mesh: func(name string) (issue.Mesh, bool) {
			p.mu.Lock()
			defer p.mu.Unlock()
			s, ok := p.signers[p.state.Issuer]
			return issue.Mesh{Name: "shop", Domain: shop(p.t), Issuer: p.state.Issuer, Signer: s}, ok && name == "shop"
		},
		Record: func(_ context.Context, i issue.Issued) error {
			p.mu.Lock()
			p.issued = append(p.issued, i)
			hold := p.hold
			p.mu.Unlock()
			if hold != nil {
				<-hold
			}
			return nil
		},
		Board: p.board,
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = server
	p.up, p.down = context.WithCancel(context.Background())
}

// stop the server: the control plane is away.
func (p *plane) stop() {
	p.mu.Lock()
	p.server = nil
	p.down()
	p.mu.Unlock()
	p.streams.Wait()
}

// now is the server that is up.
func (p *plane) now() (*issue.Server, context.Context, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return nil, nil, status.Error(codes.Unavailable, "the control plane is away")
	}
	return p.server, p.up, nil
}

// direct calls the server of a plane without a network: days of connections that fail
// are many timers for the race detector (golang.org/issue/78156). TestWire has gRPC.
type direct struct {
	plane *plane
	node  string
}

func (d direct) Issue(ctx context.Context, r *identityv1.IssueRequest, _ ...grpc.CallOption) (*identityv1.IssueResponse, error) {
	server, up, err := d.plane.now()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, nodeKey{}, d.node))
	defer cancel()
	defer context.AfterFunc(up, cancel)()
	return server.Issue(ctx, r)
}

func (direct) External(context.Context, *identityv1.ExternalRequest, ...grpc.CallOption) (identityv1.Identity_ExternalClient, error) {
	return nil, status.Error(codes.Unimplemented, "not here")
}

func (direct) Redirection(context.Context, *identityv1.RedirectionRequest, ...grpc.CallOption) (*identityv1.RedirectionResponse, error) {
	return &identityv1.RedirectionResponse{}, nil
}

func (direct) Members(context.Context, *identityv1.MembersRequest, ...grpc.CallOption) (identityv1.Identity_MembersClient, error) {
	return nil, status.Error(codes.Unimplemented, "not here")
}

func (d direct) Trust(ctx context.Context, _ ...grpc.CallOption) (identityv1.Identity_TrustClient, error) {
	server, up, err := d.plane.now()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, nodeKey{}, d.node))
	requests, responses := make(chan *identityv1.TrustRequest), make(chan *identityv1.TrustResponse)
	stop := context.AfterFunc(up, cancel)
	d.plane.streams.Go(func() {
		defer stop()
		defer cancel()
		_ = server.Trust(&serverEnd{ctx: ctx, in: requests, out: responses})
	})
	return &clientEnd{ctx: ctx, in: responses, out: requests}, nil
}

// clientEnd and serverEnd of a stream in memory.
type clientEnd struct {
	grpc.ClientStream
	ctx context.Context
	in  chan *identityv1.TrustResponse
	out chan *identityv1.TrustRequest
}

type serverEnd struct {
	grpc.ServerStream
	ctx context.Context
	in  chan *identityv1.TrustRequest
	out chan *identityv1.TrustResponse
}

func (c *clientEnd) Send(r *identityv1.TrustRequest) error    { return send(c.ctx, c.out, r) }
func (c *clientEnd) Recv() (*identityv1.TrustResponse, error) { return recv(c.ctx, c.in) }
func (s *serverEnd) Send(r *identityv1.TrustResponse) error   { return send(s.ctx, s.out, r) }
func (s *serverEnd) Recv() (*identityv1.TrustRequest, error)  { return recv(s.ctx, s.in) }
func (s *serverEnd) Context() context.Context                 { return s.ctx }

func send[T any](ctx context.Context, to chan T, message T) error {
	select {
	case to <- message:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func recv[T any](ctx context.Context, from chan T) (message T, err error) {
	select {
	case message = <-from:
		return message, nil
	case <-ctx.Done():
		return message, status.FromContextError(ctx.Err()).Err()
	}
}

// agent is a node with its manager.
type agent struct {
	*workload.Manager
	t    testing.TB
	name string
	stop func()
}

// newAgent starts one in a directory. Subjects that are added are "NAME-1" to "NAME-N".
func (p *plane) newAgent(t testing.TB, dir, name string, workloads int) *agent {
	t.Helper()
	m := workload.New(workload.Config{Dir: filepath.Join(dir, name), Client: direct{p, name}})
	for i := range workloads {
		m.Add(subject(name, i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	return &agent{m, t, name, func() { cancel(); <-done }}
}

func subject(node string, i int) (workload.Subject, mesh.ID) {
	d, _ := mesh.ParseDomain("shop.mesh")
	id, _ := mesh.Workload(d, "web", fmt.Sprintf("sa-%d", i))
	return workload.Subject{Namespace: "web", Name: fmt.Sprintf("%s-%d", node, i)}, id
}

// certificate of a workload that has to be there.
func (a *agent) certificate(i int) *mesh.SVID {
	a.t.Helper()
	s, _ := subject(a.name, i)
	svid, _, err := a.Current(s)
	if err != nil {
		a.t.Fatalf("at %s: %v", time.Now(), err)
	}
	return svid
}

// accepts returns nil if an agent's servers accept a client.
func (a *agent) accepts(client *agent, i int) error {
	s, _ := subject(client.name, i)
	svid, _, err := client.Current(s)
	if err != nil {
		return err
	}
	trust, _ := a.Trust()
	peer, err := trust.Client("shop", svid.Chain, time.Now())
	if err == nil && peer.Serial != svid.Serial() {
		err = errors.New("another serial")
	}
	return err
}

func mustDomain(t testing.TB, name string) mesh.Domain {
	t.Helper()
	d, err := mesh.ParseDomain(name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func nodeIn(zone, name string) (mesh.ID, error) {
	d, err := mesh.ParseDomain("shop.mesh")
	if err != nil {
		return mesh.ID{}, err
	}
	return mesh.Node(d, zone, name)
}

// publish a mesh with one authority.
func publish(t testing.TB, p *plane, name string, root *authority.Root) {
	t.Helper()
	a := rotation.Authority{ID: authority.ID(root.Certificate()), Roots: certpem.EncodeCertificates(root.Certificate())}
	if err := p.board.Publish(issue.Published{State: rotation.New(name, a, time.Now()), Domain: root.Domain()}); err != nil {
		t.Fatal(err)
	}
}
