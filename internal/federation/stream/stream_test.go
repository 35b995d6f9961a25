package stream

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	deltastream "github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pki is an authority and what it has signed.
type pki struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newPKI(t testing.TB) *pki {
	p := &pki{t: t, pool: x509.NewCertPool()}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.key = key
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if p.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	p.pool.AddCert(p.cert)
	return p
}

func (p *pki) sign(name string) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, key.Public(), p.key)
	if err != nil {
		p.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// store is a control plane's state in memory.
type store struct {
	t         testing.TB
	mesh      *resource.Descriptor
	dataplane *resource.Descriptor
	config    *resource.Descriptor
	client    *resourcetest.Client
}

func newStore(t testing.TB) *store {
	s := &store{t: t, mesh: kind.Mesh, dataplane: kind.Dataplane, config: kind.ConfigMap}
	s.client = resourcetest.New(s.mesh, s.dataplane, s.config)
	return s
}

func (s *store) kinds() []local.Kind {
	var out []local.Kind
	for _, d := range []*resource.Descriptor{s.mesh, s.dataplane} {
		typ, _ := local.TypeOf(d)
		typ.KeepName, typ.Transient = d == s.mesh, d == s.dataplane
		out = append(out, local.Kind{Descriptor: d, Type: typ})
	}
	return out
}

func (s *store) outlet(ctx context.Context, side federation.Side, zone, epoch string, running *sync.WaitGroup) *local.Outlet {
	o, err := local.NewOutlet(local.OutletConfig{Client: s.client, Kinds: s.kinds(), Side: side, Zone: zone, StoreEpoch: epoch})
	if err != nil {
		s.t.Fatal(err)
	}
	running.Go(func() { _ = o.Run(ctx) })
	return o
}

func (s *store) inlet(side federation.Side, zone string) *local.Inlet {
	i, err := local.NewInlet(local.InletConfig{
		Client: s.client, Kinds: s.kinds(), Side: side, Zone: zone, Namespace: "system",
		Checkpoints: &local.ConfigMapCheckpoints{
			Client: s.client, Kind: s.config, Key: resource.Key{Namespace: "system", Name: "federation-" + zone},
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return i
}

func (s *store) create(d *resource.Descriptor, o resource.Object) {
	s.t.Helper()
	if _, err := s.client.Create(context.Background(), d, o); err != nil {
		s.t.Fatal(err)
	}
}

func (s *store) addMesh(name string) {
	s.t.Helper()
	s.create(s.mesh, &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

func (s *store) addDataplane(name string) {
	s.t.Helper()
	s.create(s.dataplane, &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: meshv1alpha1.DataplaneSpec{Addresses: []string{"10.0.0.1"}},
	})
}

func (s *store) count(d *resource.Descriptor) int {
	s.t.Helper()
	objects, _, err := s.client.List(context.Background(), d, resource.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return len(objects)
}

// eventually polls, as real connections do not end at a known time.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not seen in 30 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// wire is loopback TCP with mutual TLS, whose connections can be cut.
type wire struct {
	t       testing.TB
	pki     *pki
	address string

	mu    sync.Mutex
	conns []net.Conn
}

// dial remembers the connection.
func (w *wire) dial(ctx context.Context, _ string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", w.address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
	return c, nil
}

// cut breaks all connections.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// globalRig is a global control plane on loopback. It can be restarted.
type globalRig struct {
	t      testing.TB
	pki    *pki
	store  *store
	epoch  string
	addr   string
	global *Global

	mu      sync.Mutex
	inlets  map[string]*local.Inlet
	ends    map[string]chan struct{}
	refused map[string]bool
	stop    func()
}

func newGlobalRig(t testing.TB, p *pki) *globalRig {
	g := &globalRig{
		t: t, pki: p, store: newStore(t), epoch: "global-1", addr: "127.0.0.1:0",
		ends: map[string]chan struct{}{}, refused: map[string]bool{},
	}
	g.start()
	t.Cleanup(func() { g.stop() })
	return g
}

func (g *globalRig) start() {
	g.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	outlet := g.store.outlet(ctx, federation.AtGlobal, "", g.epoch, &running)
	g.mu.Lock()
	g.inlets = map[string]*local.Inlet{}
	g.mu.Unlock()
	global := NewGlobal(GlobalConfig{Admit: func(ctx context.Context) (Admission, error) { return g.admit(ctx, outlet) }})
	cert := g.pki.sign("global")
	server := grpc.NewServer(append(deltastream.ServerOptions(), grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: g.pki.pool,
	})))...)
	global.Register(server)
	var listener net.Listener
	eventually(g.t, "the port is free", func() bool {
		var err error
		listener, err = net.Listen("tcp", g.addr)
		return err == nil
	})
	g.addr, g.global = listener.Addr().String(), global
	running.Go(func() { _ = server.Serve(listener) })
	g.stop = func() { global.Close(); server.Stop(); cancel(); running.Wait() }
}

func (g *globalRig) admit(ctx context.Context, outlet federation.Outlet) (Admission, error) {
	p, _ := grpcpeer.FromContext(ctx)
	zone := p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].Subject.CommonName
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refused[zone] {
		return Admission{}, status.Errorf(codes.PermissionDenied, "zone %s is disabled", zone)
	}
	if g.inlets[zone] == nil {
		g.inlets[zone] = g.store.inlet(federation.AtGlobal, zone)
	}
	if g.ends[zone] == nil {
		g.ends[zone] = make(chan struct{})
	}
	return Admission{Zone: zone, Outlet: outlet, Inlet: g.inlets[zone], End: g.ends[zone]}, nil
}

// zoneRig is a zone that dials it.
type zoneRig struct {
	name  string
	store *store
	wire  *wire
	zone  *Zone
	inlet *local.Inlet
	tally *tally
	stop  func()
}

func newZoneRig(t testing.TB, g *globalRig, name string, protocol int, calls CallHandler) *zoneRig {
	z := &zoneRig{name: name, store: newStore(t)}
	z.start(t, g, protocol, calls)
	t.Cleanup(func() { z.stop() })
	return z
}

func (z *zoneRig) start(t testing.TB, g *globalRig, protocol int, calls CallHandler) {
	t.Helper()
	name := z.name
	z.wire = &wire{t: t, pki: g.pki, address: g.addr}
	conn, err := grpc.NewClient("passthrough:///"+g.addr, append(deltastream.DialOptions(),
		grpc.WithContextDialer(z.wire.dial),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: g.pki.pool, Certificates: []tls.Certificate{g.pki.sign(name)}, ServerName: "127.0.0.1",
		})))...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	z.inlet = z.store.inlet(federation.AtZone, name)
	z.tally = &tally{Inlet: z.inlet}
	z.zone, err = NewZone(ZoneConfig{
		Conn: conn, Zone: name, Instance: name + "-1", Version: "test", Protocol: protocol, Calls: calls, Inlet: z.tally,
		Outlet: z.store.outlet(ctx, federation.AtZone, name, name+"-1", &running),
	})
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() { _ = z.zone.Run(ctx) })
	z.stop = sync.OnceFunc(func() { cancel(); running.Wait(); _ = conn.Close() })
}

func (z *zoneRig) await(t testing.TB, g *globalRig, meshes, dataplanes int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d meshes in zone %s, %d Dataplanes at global", meshes, z.name, dataplanes), func() bool {
		return z.store.count(z.store.mesh) == meshes && g.store.count(g.store.dataplane) == dataplanes
	})
}

// TestLoopback: two zones of different protocol versions over mutual TLS converge, with
// connections that are cut and a global that restarts, under live changes.
func TestLoopback(t *testing.T) {
	g := newGlobalRig(t, newPKI(t))
	east, west := newZoneRig(t, g, "east", 2, nil), newZoneRig(t, g, "west", 1, nil)
	g.store.addMesh("default")
	east.store.addDataplane("web")
	west.store.addDataplane("web")
	east.await(t, g, 1, 2)
	west.await(t, g, 1, 2)

	for n := range 30 {
		g.store.addMesh(fmt.Sprintf("m%d", n))
		east.store.addDataplane(fmt.Sprintf("n%d", n))
		west.store.addDataplane(fmt.Sprintf("n%d", n))
		switch n {
		case 5, 20:
			east.wire.cut()
		case 8, 9, 25:
			west.wire.cut()
		case 15:
			g.stop()
			g.start()
		}
	}
	east.await(t, g, 31, 62)
	west.await(t, g, 31, 62)
	// Streams that carry no objects may still be connecting again.
	eventually(t, "all streams of zone east", func() bool {
		s := east.zone.Status()
		return s.Receiving && s.Sending && len(s.Sender.Types) == 1
	})
	eventually(t, "all streams at global", func() bool {
		s := g.global.Status()
		return len(s) == 2 && s[0].Online && s[0].Zone == "east" && len(s[0].Streams) == 3 && len(s[1].Streams) == 2
	})
}

// TestEmptyGlobal: a global that comes back empty takes nothing from the zones, until an
// operator says so.
func TestEmptyGlobal(t *testing.T) {
	for protocol := 1; protocol <= 2; protocol++ {
		t.Run(fmt.Sprintf("protocol %d", protocol), func(t *testing.T) {
			g := newGlobalRig(t, newPKI(t))
			z := newZoneRig(t, g, "east", protocol, nil)
			g.store.addMesh("default")
			z.store.addDataplane("web")
			z.await(t, g, 1, 1)
			g.stop()
			g.store, g.epoch = newStore(t), "global-2"
			g.start()
			eventually(t, "the deletion is held", func() bool {
				s := z.inlet.Status()
				return len(s) > 0 && len(s[0].Held) == 1
			})
			z.await(t, g, 1, 1) // and the inventory is there again
			held := z.inlet.Status()[0]
			if err := z.inlet.Confirm(context.Background(), held.Type, held.Held[0].Owner, held.Held[0].Token); err != nil {
				t.Fatal(err)
			}
			z.await(t, g, 0, 1)
		})
	}
}

// tally counts what an inlet asks for, and what it is sent.
type tally struct {
	federation.Inlet
	// requested are versions and positions of first requests, resources those of responses.
	requested, resources atomic.Int64
}

func (c *tally) Open(ctx context.Context, s federation.StreamOptions, send func(proto.Message) error) (federation.Flow, error) {
	f, err := c.Inlet.Open(ctx, s, func(m proto.Message) error {
		if r, ok := m.(*discovery.DeltaDiscoveryRequest); ok {
			c.requested.Add(int64(len(r.GetInitialResourceVersions())))
		}
		return send(m)
	})
	return &countedFlow{f, c}, err
}

type countedFlow struct {
	federation.Flow
	tally *tally
}

func (f *countedFlow) Receive(ctx context.Context, m proto.Message) error {
	if r, ok := m.(*discovery.DeltaDiscoveryResponse); ok {
		f.tally.resources.Add(int64(len(r.GetResources())))
	}
	return f.Flow.Receive(ctx, m)
}

// TestResumeCost: a reconnect costs what changed, not all that there is: one object comes, and
// the zone names its position instead of all objects that it has.
func TestResumeCost(t *testing.T) {
	g := newGlobalRig(t, newPKI(t))
	const meshes = 300
	for n := range meshes {
		g.store.addMesh(fmt.Sprintf("mesh-%04d", n))
	}
	z := newZoneRig(t, g, "east", 2, nil)
	// What is on disk is what the zone goes on with, whenever it is cut.
	kept := &local.ConfigMapCheckpoints{Client: z.store.client, Kind: z.store.config, Key: resource.Key{Namespace: "system", Name: "federation-east"}}
	eventually(t, "the position of all meshes is kept", func() bool {
		s := z.inlet.Status()
		if len(s) != 1 || s[0].Copies != meshes || !s[0].Complete || s[0].Checkpoint.Position == "" {
			return false
		}
		stored, err := kept.Load(t.Context())
		return err == nil && stored[s[0].Type].Position == s[0].Checkpoint.Position
	})
	if got := z.tally.resources.Load(); got < meshes {
		t.Errorf("%d resources came with the first connection, want %d", got, meshes)
	}
	requested, resources := z.tally.requested.Load(), z.tally.resources.Load()
	z.wire.cut()
	g.store.addMesh("one-more")
	z.await(t, g, meshes+1, 0)
	// A stream that breaks again begins once more, with the same position.
	if got := z.tally.resources.Load() - resources; got < 1 || got > meshes/10 {
		t.Errorf("%d resources came with the reconnect, want the one that is new", got)
	}
	if got := z.tally.requested.Load() - requested; got > meshes/10 {
		t.Errorf("the reconnect named %d versions, want its position alone", got)
	}
}

// TestZoneRestart: a zone that has not kept the changes since global's position is sent
// the versions of global's copies, and so removes what is gone.
func TestZoneRestart(t *testing.T) {
	g := newGlobalRig(t, newPKI(t))
	z := newZoneRig(t, g, "east", 2, nil)
	z.store.addDataplane("gone")
	z.store.addDataplane("stays")
	z.await(t, g, 0, 2)
	z.stop()
	gone := resource.Key{Namespace: "a", Name: "gone"}
	if err := z.store.client.Delete(context.Background(), z.store.dataplane, gone, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	z.start(t, g, 2, nil)
	z.await(t, g, 0, 1)
}

// TestWrongCredential: only a certificate of the authority opens a stream, and what it
// names is the zone.
func TestWrongCredential(t *testing.T) {
	g := newGlobalRig(t, newPKI(t))
	z := newZoneRig(t, &globalRig{pki: newPKI(t), addr: g.addr}, "east", 2, nil)
	eventually(t, "the failure", func() bool { return z.zone.Status().LastError != nil })
	if got := g.global.Status(); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// TestDisabledZone: its streams end at once, and others are refused with the reason.
func TestDisabledZone(t *testing.T) {
	for _, protocol := range []int{1, 2} {
		t.Run(fmt.Sprint("protocol ", protocol), func(t *testing.T) { disabledZone(t, protocol) })
	}
}

func disabledZone(t *testing.T, protocol int) {
	g := newGlobalRig(t, newPKI(t))
	z := newZoneRig(t, g, "east", protocol, nil)
	g.store.addMesh("default")
	z.await(t, g, 1, 0)
	g.mu.Lock()
	g.refused["east"] = true
	close(g.ends["east"])
	g.ends["east"] = nil
	g.mu.Unlock()
	eventually(t, "the refusal", func() bool { return z.zone.Status().Refused == "zone east is disabled" })
	// Every stream gets the reason, whether it fails when it sends or when it reads.
	for range 20 {
		attempts := map[string]func(context.Context, bool, func()) error{"calls": z.zone.serveCalls}
		if protocol == 1 {
			attempts["sync"] = z.zone.multiplex
		} else {
			attempts["receive"], attempts["send"] = z.zone.receive, z.zone.send
		}
		for name, attempt := range attempts {
			if err := attempt(t.Context(), false, func() {}); status.Convert(err).Message() != "zone east is disabled" {
				t.Fatalf("stream %s: %v", name, err)
			}
		}
	}
	g.store.addMesh("another")
	g.mu.Lock()
	g.refused["east"] = false
	g.mu.Unlock()
	z.await(t, g, 2, 0)
	if got := z.zone.Status().Refused; got != "" {
		t.Errorf("it is admitted, and still says %q", got)
	}
}

// TestCalls: global reads from the zone over the link that the zone has dialled.
func TestCalls(t *testing.T) {
	g := newGlobalRig(t, newPKI(t))
	large := make([]byte, 3*partSize+17)
	_, _ = rand.Read(large)
	started, cancelled := make(chan struct{}), make(chan struct{})
	z := newZoneRig(t, g, "east", 2, func(ctx context.Context, call *federationv1.Call) ([]byte, error) {
		switch call.GetName() {
		case "large":
			return large, nil
		case "gone":
			return nil, status.Errorf(codes.Unavailable, "node %s has no stream to zone east", call.GetName())
		case "late":
			return nil, fmt.Errorf("ask the store: %w", context.DeadlineExceeded)
		case "hangs":
			close(started)
			<-ctx.Done()
			close(cancelled)
			return nil, ctx.Err()
		}
		return []byte(call.GetKind().String() + " of " + call.GetNamespace() + "/" + call.GetName()), nil
	})
	ctx := context.Background()
	if _, err := g.global.Call(ctx, "nowhere", &federationv1.Call{}); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	call := &federationv1.Call{
		Kind: federationv1.CallKind_CALL_KIND_STATS, Target: federationv1.TargetKind_TARGET_KIND_DATAPLANE, Namespace: "a", Name: "web",
	}
	eventually(t, "an answer", func() bool {
		body, err := g.global.Call(ctx, "east", call)
		return err == nil && string(body) == "CALL_KIND_STATS of a/web"
	})
	if body, err := g.global.Call(ctx, "east", &federationv1.Call{Name: "large"}); err != nil || string(body) != string(large) {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	if _, err := g.global.Call(ctx, "east", &federationv1.Call{Name: "gone"}); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if _, err := g.global.Call(ctx, "east", &federationv1.Call{Name: "late"}); status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	one, cancel := context.WithCancel(ctx)
	go func() { <-started; cancel() }()
	if _, err := g.global.Call(one, "east", &federationv1.Call{Name: "hangs"}); status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	<-cancelled
	z.wire.cut()
	eventually(t, "calls after a cut", func() bool {
		_, err := g.global.Call(ctx, "east", call)
		return err == nil
	})
}

// TestOffline: a silent zone is offline after the timeout, counted from its stream, and
// online again with its next sign. The clock is the bubble's.
func TestOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var seen []string
		began := time.Now()
		g := NewGlobal(GlobalConfig{
			Admit: func(context.Context) (Admission, error) { return Admission{Zone: "east"}, nil },
			Observe: func(zone string, online bool) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, fmt.Sprintf("%s %t %s", zone, online, time.Since(began)))
			},
		})
		defer g.Close()
		listener := bufconn.Listen(1 << 16)
		server := grpc.NewServer(deltastream.ServerOptions()...)
		g.Register(server)
		go func() { _ = server.Serve(listener) }()
		defer server.Stop()
		conn, err := grpc.NewClient("passthrough:///global", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		client := federationv1.NewZoneServiceClient(conn)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s, err := client.Serve(ctx)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(10 * time.Second)
		r, err := client.HealthCheck(ctx, &federationv1.HealthCheckRequest{Instance: "i", Version: "v"})
		if err != nil || r.GetIntervalMilliseconds() != 5000 {
			t.Fatal(r, err)
		}
		time.Sleep(14 * time.Second)
		if st := g.Status(); len(st) != 1 || !st[0].Online || st[0].Instance != "i" || len(st[0].Streams) != 1 {
			t.Errorf("%+v", st)
		}
		if _, err := s.Recv(); status.Code(err) != codes.DeadlineExceeded { // the stream ends with the timeout
			t.Error(err)
		}
		time.Sleep(time.Second)
		if _, err := client.HealthCheck(ctx, &federationv1.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		want := []string{"east true 0s", "east false 25s", "east true 26s"}
		if fmt.Sprint(seen) != fmt.Sprint(want) {
			t.Errorf("%v, want %v", seen, want)
		}
	})
}

func TestProtocolVersion(t *testing.T) {
	if _, err := NewZone(ZoneConfig{Protocol: 3}); err == nil {
		t.Error("protocol 3 was accepted")
	}
}
