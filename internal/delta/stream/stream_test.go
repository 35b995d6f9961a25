package stream

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/proxima-mesh/proxima/internal/delta"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	typ     = "test/a"
	service = "proxima.test.Views"
	method  = "/" + service + "/Stream"
)

// rig is a server on an in-memory listener. Its scope can be exchanged, as if
// the server had been restarted.
type rig struct {
	t      *testing.T
	server *Server
	conn   *grpc.ClientConn

	mu    sync.Mutex
	scope *delta.Scope
	end   chan struct{}
	deny  error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, scope: delta.NewScope(delta.Options{}), end: make(chan struct{})}
	r.server = NewServer(ServerConfig{Admit: func(_ context.Context, node *core.Node) (Admission, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return Admission{Scope: r.scope, Header: metadata.Pairs("test-node", node.GetId()), End: r.end}, r.deny
	}})
	listener := bufconn.Listen(1 << 20)
	gs := grpc.NewServer(ServerOptions()...)
	r.server.Register(gs, service, "Stream")
	go func() { _ = gs.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///bufconn", append(DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	r.conn = conn
	t.Cleanup(func() { _ = conn.Close(); gs.Stop() })
	return r
}

func (r *rig) replace(at delta.Position, names ...string) {
	r.t.Helper()
	var all []delta.Resource
	for _, n := range names {
		name, body, _ := strings.Cut(n, "=")
		all = append(all, delta.Resource{Type: typ, Name: name, Body: []byte(body)})
	}
	if _, err := r.scope.Replace(at, all); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) set(at delta.Position, name, body string) {
	r.t.Helper()
	if _, err := r.scope.Apply(at, []delta.Change{{Resource: delta.Resource{Type: typ, Name: name, Body: []byte(body)}}}); err != nil {
		r.t.Fatal(err)
	}
}

// restart ends every stream and goes on with another scope.
func (r *rig) restart(s *delta.Scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.end)
	r.end = make(chan struct{})
	r.scope = s
}

// mirror is a Follower that keeps what it gets.
type mirror struct {
	t      *testing.T
	refuse func(name string) bool
	gate   chan struct{} // if not nil, each Receive takes a token

	mu        sync.Mutex
	state     map[string]string
	versions  map[string]string
	position  string
	header    metadata.MD
	responses int
}

func newMirror(t *testing.T) *mirror {
	return &mirror{t: t, state: map[string]string{}, versions: map[string]string{},
		refuse: func(string) bool { return false }}
}

func (m *mirror) Have(_ string, cursor bool) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if cursor && m.position != "" {
		return map[string]string{"": delta.Cursor(m.position, m.versions)}
	}
	return m.versions
}

func (m *mirror) Connected(h metadata.MD) { m.header = h }

func (m *mirror) Receive(r *Response) {
	if m.gate != nil {
		<-m.gate
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.responses++
	var refused []string
	for _, res := range r.Resources {
		if m.refuse(res.Name) {
			refused = append(refused, res.Name)
			continue
		}
		m.state[res.Name], m.versions[res.Name] = string(res.Resource.Value), res.Version
	}
	for _, name := range r.Removed {
		delete(m.state, name)
		delete(m.versions, name)
	}
	if r.Position != "" {
		m.position = r.Position
	}
	if len(refused) > 0 {
		r.Reject(strings.Join(refused, " "))
	} else {
		r.Accept()
	}
}

// await waits until nothing moves any more, and fails unless the position is
// reached then.
func (m *mirror) await(position string) map[string]string {
	m.t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.position != position {
		m.t.Fatalf("position %s not reached, at %q", position, m.position)
	}
	return m.state
}

// follow runs a client until the test ends.
func (r *rig) follow(m *mirror) *Client {
	c := NewClient(ClientConfig{Conn: r.conn, Method: method, Node: &core.Node{Id: "node-1"}, Types: []string{typ}, Follower: m})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	r.t.Cleanup(func() { cancel(); <-done })
	return c
}

// settle waits until nothing moves any more, and fails unless ok holds then.
func settle(t *testing.T, what string, ok func() bool) {
	t.Helper()
	synctest.Wait()
	if !ok() {
		t.Fatalf("not seen: %s", what)
	}
}

func manyNames(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("r%04d=%s", i, strings.Repeat("x", 100)))
	}
	return out
}

func TestResume(t *testing.T) { synctest.Test(t, testResume) }

func testResume(t *testing.T) {
	r, m := newRig(t), newMirror(t)
	r.replace(delta.Position{Epoch: 1, Sequence: 1}, manyNames(1000)...)
	c := r.follow(m)
	m.await("1:1")
	full := c.Status().BytesReceived
	if full < 100_000 {
		t.Fatalf("first sync took %d bytes, expected at least the content", full)
	}

	// The stream breaks, something changes, the cursor is enough.
	r.restart(r.scope)
	synctest.Wait()
	r.set(delta.Position{Epoch: 1, Sequence: 2}, "r0007", "new")
	if got := m.await("1:2")["r0007"]; got != "new" {
		t.Errorf("r0007 = %q", got)
	}
	settle(t, "second stream", func() bool { return c.Status().Streams == 2 })
	if got := c.Status(); got.BytesReceived > 500 || got.BytesSent > 500 {
		t.Errorf("resume by cursor took %d bytes down, %d up", got.BytesReceived, got.BytesSent)
	}

	// A server with another epoch and nearly the same content: versions, at once.
	scope := delta.NewScope(delta.Options{})
	all := manyNames(1000)[1:]
	all[6] = "r0007=newer"
	r.restart(scope)
	r.replace(delta.Position{Epoch: 2, Sequence: 1}, all...)
	state := m.await("2:1")
	if _, there := state["r0000"]; there || len(state) != 999 || state["r0007"] != "newer" {
		t.Errorf("after restart: %d resources, r0007 = %q, r0000 there: %v", len(state), state["r0007"], there)
	}
	if got := c.Status(); got.BytesReceived > 500 || got.Streams != 3 {
		t.Errorf("resume by versions took %d bytes down; %d streams, want 3", got.BytesReceived, got.Streams)
	}

	// A server with another epoch and the same content, in another order: the first stream is
	// served, and no version is sent.
	scope = delta.NewScope(delta.Options{})
	slices.Reverse(all)
	r.restart(scope)
	r.replace(delta.Position{Epoch: 3, Sequence: 1}, all...)
	m.await("3:1")
	if got := c.Status(); got.BytesReceived > 500 || got.BytesSent > 500 || got.Streams != 4 {
		t.Errorf("resume by a digest took %d bytes down, %d up, %d streams, want 4", got.BytesReceived, got.BytesSent, got.Streams)
	}
	r.set(delta.Position{Epoch: 3, Sequence: 2}, "r0007", "newest")
	if got := m.await("3:2")["r0007"]; got != "newest" {
		t.Errorf("after it, r0007 = %q", got)
	}
}

func TestStatusAndRejection(t *testing.T) { synctest.Test(t, testStatusAndRejection) }

func testStatusAndRejection(t *testing.T) {
	r, m := newRig(t), newMirror(t)
	m.refuse = func(name string) bool { return name == "bad" }
	r.replace(delta.Position{Epoch: 1, Sequence: 1}, "good=1", "bad=1")
	r.follow(m)
	if diff := cmp.Diff(map[string]string{"good": "1"}, m.await("1:1")); diff != "" {
		t.Error(diff)
	}
	var got []StreamStatus
	settle(t, "rejection", func() bool {
		got = r.server.Status()
		return len(got) == 1 && len(got[0].Types) == 1 && got[0].Types[0].Rejected.Reason != ""
	})
	s := got[0]
	if s.Node != "node-1" || s.BytesSent == 0 || s.BytesReceived == 0 || s.Responses != 1 || s.RejectedAt.IsZero() {
		t.Errorf("status = %+v", s)
	}
	if sub := s.Types[0]; sub.Sent.String() != "1:1" || sub.Unsent != 0 || sub.Rejected.Reason != "InvalidArgument: bad" {
		t.Errorf("subscription = %+v", sub)
	}
	r.set(delta.Position{Epoch: 1, Sequence: 2}, "good", "2")
	m.await("1:2")
	settle(t, "acknowledgement", func() bool { return r.server.Status()[0].Types[0].Unacked == 0 })
	if got := m.header.Get("test-node"); len(got) != 1 || got[0] != "node-1" {
		t.Errorf("header = %v", m.header)
	}
}

// TestSlowClient: while a client does not read, changes coalesce; another client
// is not held up.
func TestSlowClient(t *testing.T) { synctest.Test(t, testSlowClient) }

func testSlowClient(t *testing.T) {
	r, slow, quick := newRig(t), newMirror(t), newMirror(t)
	slow.gate = make(chan struct{})
	r.replace(delta.Position{Epoch: 1, Sequence: 1})
	r.follow(slow)
	r.follow(quick)
	quick.await("1:1")
	const changes = 200
	for i := range changes {
		at := delta.Position{Epoch: 1, Sequence: uint64(i + 2)}
		r.set(at, "big", strings.Repeat("x", 50_000)+fmt.Sprint(i))
		quick.await(at.String())
	}
	close(slow.gate)
	last := delta.Position{Epoch: 1, Sequence: changes + 1}.String()
	if got := slow.await(last)["big"]; !strings.HasSuffix(got, fmt.Sprint(changes-1)) {
		t.Error("slow client has an old state")
	}
	if slow.responses > changes/4 {
		t.Errorf("slow client was sent %d responses for %d changes", slow.responses, changes)
	}
}

// TestOrdinaryClient speaks plain delta xDS with the default codec.
func TestOrdinaryClient(t *testing.T) { synctest.Test(t, testOrdinaryClient) }

func testOrdinaryClient(t *testing.T) {
	r := newRig(t)
	r.replace(delta.Position{Epoch: 1, Sequence: 1}, "a=1", "b=1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := r.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	exchange := func(req *discovery.DeltaDiscoveryRequest) *discovery.DeltaDiscoveryResponse {
		t.Helper()
		if err := s.SendMsg(req); err != nil {
			t.Fatal(err)
		}
		var resp discovery.DeltaDiscoveryResponse
		if err := s.RecvMsg(&resp); err != nil {
			t.Fatal(err)
		}
		return &resp
	}
	resp := exchange(&discovery.DeltaDiscoveryRequest{TypeUrl: typ, ResourceNamesSubscribe: []string{"a"}})
	if len(resp.Resources) != 1 || resp.Resources[0].Name != "a" || resp.Resources[0].Resource.TypeUrl != typ {
		t.Errorf("first response: %v", resp)
	}
	resp = exchange(&discovery.DeltaDiscoveryRequest{TypeUrl: typ, ResponseNonce: resp.Nonce, ResourceNamesSubscribe: []string{"b"},
		ErrorDetail: &spb.Status{Message: "no"}})
	if len(resp.Resources) != 1 || resp.Resources[0].Name != "b" {
		t.Errorf("second response: %v", resp)
	}
	if err := s.SendMsg(&discovery.DeltaDiscoveryRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(resp); status.Code(err) != codes.InvalidArgument {
		t.Errorf("request without a type: %v", err)
	}
}

func TestDenied(t *testing.T) { synctest.Test(t, testDenied) }

func testDenied(t *testing.T) {
	r, m := newRig(t), newMirror(t)
	r.mu.Lock()
	r.deny = status.Error(codes.PermissionDenied, "not you")
	r.mu.Unlock()
	r.replace(delta.Position{Epoch: 1, Sequence: 1}, "a=1")
	c := r.follow(m)
	settle(t, "refusal", func() bool { return status.Code(c.Status().LastError) == codes.PermissionDenied })
	r.mu.Lock()
	r.deny = nil
	r.mu.Unlock()
	time.Sleep(retryPolicy.Last) // of the bubble's clock
	m.await("1:1")
}

// TestFirstRetryIsAtOnce: a stream that ended is opened again without delay.
func TestFirstRetryIsAtOnce(t *testing.T) {
	if d := retryPolicy.After(0); d != 0 {
		t.Errorf("the first retry is after %v", d)
	}
	if d := retryPolicy.After(1000); d < retryPolicy.Last/2 || d > retryPolicy.Last {
		t.Errorf("a late retry is after %v", d)
	}
}

func TestCodecSharesFrames(t *testing.T) {
	f := &delta.Frame{Data: []byte("marshalled")}
	out, err := Codec().Marshal(f)
	if err != nil || len(out) != 1 || &out[0].ReadOnlyData()[0] != &f.Data[0] {
		t.Errorf("frame was copied: %v, %v", out, err)
	}
	if err := Codec().Unmarshal(out, f); err == nil {
		t.Error("a frame was unmarshalled")
	}
}
