package fromview

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/view"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plane is a control plane whose process can be killed and started again.
type plane struct {
	mu       sync.Mutex
	listener *bufconn.Listener
	grpc     *grpc.Server
	server   *stream.Server
}

type admit = func(context.Context, *core.Node) (stream.Admission, error)

func (p *plane) start(a admit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener = bufconn.Listen(1 << 20)
	p.grpc = grpc.NewServer(stream.ServerOptions()...)
	p.server = stream.NewServer(stream.ServerConfig{Admit: a})
	p.server.Register(p.grpc, wire.GRPCService, wire.Method)
	go func(s *grpc.Server, l net.Listener) { _ = s.Serve(l) }(p.grpc, p.listener)
}

func (p *plane) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.grpc != nil {
		p.grpc.Stop()
		_ = p.listener.Close()
		p.grpc, p.listener = nil, nil
	}
}

func (p *plane) dial(ctx context.Context, _ string) (net.Conn, error) {
	p.mu.Lock()
	l := p.listener
	p.mu.Unlock()
	if l == nil {
		return nil, status.Error(codes.Unavailable, "no listener")
	}
	return l.DialContext(ctx)
}

// agent is a process with a feed.
type agent struct {
	t    *testing.T
	feed *Feed
	log  *bytes.Buffer
	stop func()

	mu      sync.Mutex
	updates []node.Update
	model   map[string]string // as the updates make it: services, slices with addresses
}

func startAgent(t *testing.T, p *plane, file string) *agent {
	a := &agent{t: t, log: &bytes.Buffer{}, model: map[string]string{}}
	a.feed = NewFeed(FeedConfig{
		Target: "passthrough:///plane", Credentials: insecure.NewCredentials(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(p.dial)},
		Node:        "n1", Zone: "a", StateFile: file, Update: a.update,
		Logger: slog.New(slog.NewTextHandler(a.log, nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := a.feed.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	a.stop = func() { cancel(); <-done }
	t.Cleanup(a.stop)
	return a
}

func (a *agent) update(u node.Update) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.updates = append(a.updates, u)
	if u.Reset {
		clear(a.model)
	}
	for name, s := range u.Services {
		delete(a.model, name.Name)
		if s != nil {
			a.model[name.Name] = s.ClusterIPs[0].String()
		}
	}
	for name, s := range u.Slices {
		delete(a.model, name.Name)
		if s != nil {
			var ips []string
			for _, e := range s.Endpoints {
				ips = append(ips, e.Addr.String())
			}
			a.model[name.Name] = strings.Join(ips, " ")
		}
	}
}

// expect waits until nothing moves, and compares the model and the number of
// updates since the last call.
func (a *agent) expect(updates int, want map[string]string) {
	a.t.Helper()
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if diff := cmp.Diff(want, a.model); diff != "" {
		a.t.Errorf("-want +got:\n%s", diff)
	}
	if len(a.updates) != updates {
		a.t.Errorf("%d updates, want %d: %+v", len(a.updates), updates, a.updates)
	}
	a.updates = nil
}

func replace(t *testing.T, b *view.Builder, d *catalog.Delta) {
	t.Helper()
	if err := b.Replace(d); err != nil {
		t.Fatal(err)
	}
}

func apply(t *testing.T, b *view.Builder, d *catalog.Delta) {
	t.Helper()
	if err := b.Apply(d, nil); err != nil {
		t.Fatal(err)
	}
}

func filledBuilder(t *testing.T, run string) *view.Builder {
	b := view.NewBuilder(view.BuilderConfig{Run: run})
	fill(t, b)
	return b
}

func fill(t *testing.T, b *view.Builder) {
	t.Helper()
	objects := []any{viewtest.Slice("web-1", "10.1.0.1")}
	for i := range 250 {
		objects = append(objects, viewtest.Service("s"+string(rune('a'+i%25))+strings.Repeat("x", i/25), "10.0.0.9"))
	}
	replace(t, b, viewtest.Delta(1, objects...))
}

// lastMile is what a model of filledBuilder must come to.
func lastMile(extra ...string) map[string]string {
	out := map[string]string{"web-1": "10.1.0.1"}
	for i := range 250 {
		out["s"+string(rune('a'+i%25))+strings.Repeat("x", i/25)] = "10.0.0.9"
	}
	for i := 0; i < len(extra); i += 2 {
		out[extra[i]] = extra[i+1]
	}
	return out
}

func TestFeedLife(t *testing.T) { synctest.Test(t, testFeedLife) }

func testFeedLife(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node", "view.state")
	p := &plane{}
	t.Cleanup(p.kill)
	b := filledBuilder(t, "run 1")
	p.start(b.Assign)

	a := startAgent(t, p, file)
	a.expect(1, lastMile())
	full := a.feed.Status().BytesReceived
	apply(t, b, viewtest.Delta(2, viewtest.Slice("web-1", "10.1.0.2"), "service/sa"))
	want := lastMile("web-1", "10.1.0.2")
	delete(want, "sa")
	a.expect(2, want) // one for each type

	if s := a.feed.Status(); !s.Synced || s.FromDisk || !s.Connected || s.Zone != "a" || len(s.Positions) != len(resourceTypes) {
		t.Errorf("status = %+v", s)
	}

	// The control plane is killed: nothing changes. It comes back as another
	// process: only the difference travels, and without a reset.
	p.kill()
	a.expect(0, want)
	again := filledBuilder(t, "run 2")
	apply(t, again, viewtest.Delta(2, viewtest.Slice("web-1", "10.1.0.2"), "service/sa"))
	apply(t, again, viewtest.Delta(3, viewtest.Service("late", "10.0.0.3")))
	p.start(again.Assign)
	time.Sleep(10 * time.Second) // of the bubble's clock: backoff
	want["late"] = "10.0.0.3"
	a.expect(1, want)
	if got := a.feed.Status().BytesReceived; got > 1000 || full < 10*1000 {
		t.Errorf("after the restart %d bytes were sent, the first time %d", got, full)
	}

	// The agent is stopped, the control plane too: it starts from disk.
	a.stop()
	p.kill()
	a = startAgent(t, p, file)
	a.expect(1, want)
	if s := a.feed.Status(); !s.FromDisk || !s.Synced || s.Connected || s.LastError == nil {
		t.Errorf("status = %+v", s)
	}
	// Then it goes on by its cursor.
	apply(t, again, viewtest.Delta(4, viewtest.Service("later", "10.0.0.4")))
	p.start(again.Assign)
	time.Sleep(10 * time.Second)
	want["later"] = "10.0.0.4"
	a.expect(1, want)
	if s := a.feed.Status(); s.BytesReceived > 900 || s.BytesSent > 1650 { // each type has a request and an answer
		t.Errorf("resume by cursor: %d bytes down, %d up", s.BytesReceived, s.BytesSent)
	}

	// Another process of the control plane has what the agent has: digests show it, so neither
	// versions nor resources travel.
	p.kill()
	third := filledBuilder(t, "run 3")
	apply(t, third, viewtest.Delta(2, viewtest.Slice("web-1", "10.1.0.2"), "service/sa"))
	apply(t, third, viewtest.Delta(3, viewtest.Service("late", "10.0.0.3"), viewtest.Service("later", "10.0.0.4")))
	p.start(third.Assign)
	time.Sleep(10 * time.Second)
	a.expect(0, want)
	if s := a.feed.Status(); !s.Connected || s.BytesReceived > 900 || s.BytesSent > 1650 {
		t.Errorf("resume by digest: %d bytes down, %d up", s.BytesReceived, s.BytesSent)
	}
}

// TestSaving: the first state is written at once, so that a crash right after it
// costs nothing; what comes soon after is gathered.
func TestSaving(t *testing.T) {
	file := filepath.Join(t.TempDir(), "view.state")
	synctest.Test(t, func(t *testing.T) {
		p := &plane{}
		t.Cleanup(p.kill)
		b := view.NewBuilder(view.BuilderConfig{})
		replace(t, b, viewtest.Delta(1, viewtest.Service("web", "10.0.0.1")))
		p.start(b.Assign)
		a := startAgent(t, p, file)
		a.expect(1, map[string]string{"web": "10.0.0.1"})
		synctest.Wait()
		services := func() int {
			state, err := readState(file)
			if err != nil || len(state.GetTypes()) != len(resourceTypes)-2 { // all that do not pass
				t.Fatalf("state = %v, %v", state, err)
			}
			return len(state.GetTypes()[0].GetResources())
		}
		if n := services(); n != 1 || a.feed.Status().Unsaved {
			t.Errorf("at once: %d services on disk, status %+v; want 1", n, a.feed.Status())
		}
		apply(t, b, viewtest.Delta(2, viewtest.Service("later", "10.0.0.2")))
		synctest.Wait()
		if n := services(); n != 1 || !a.feed.Status().Unsaved {
			t.Errorf("within the pause: %d services on disk, status %+v; want 1 and unsaved", n, a.feed.Status())
		}
		time.Sleep(saveDelay + time.Millisecond)
		synctest.Wait()
		if n := services(); n != 2 || a.feed.Status().Unsaved {
			t.Errorf("after the pause: %d services on disk, status %+v; want 2", n, a.feed.Status())
		}
		if info, _ := os.Stat(file); info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v", info.Mode())
		}
	})
}

// TestBadStateFile: a file that cannot be used costs a full fetch and a line in
// the log, nothing else.
func TestBadStateFile(t *testing.T) {
	good := func(t *testing.T) []byte {
		h := newTypeState(wire.ServiceType)
		body, _ := wire.EncodeService(&proxy.Service{Name: proxy.ServiceName{Namespace: "ns", Name: "old"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.7")}})
		h.resources["ns/old"] = entry{version: delta.VersionOf(body), body: body}
		b, err := encodeState(&nodev1.State{Node: "n1", Types: []*nodev1.TypeState{h.toState(), newTypeState(wire.SliceType).toState()}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tt := range []struct {
		name, log string
		content   func([]byte) []byte
	}{
		{"good", "starting with the state on disk", slices.Clone[[]byte]},
		{"empty", "not a state file of this version", func([]byte) []byte { return nil }},
		{"another version", "not a state file of this version", func(b []byte) []byte { return append([]byte("proxima view 0\n"), b[len(magic):]...) }},
		{"cut", "checksum does not match", func(b []byte) []byte { return b[:len(b)-1] }},
		{"cut early", "cut short", func(b []byte) []byte { return b[:len(magic)+4] }},
		{"flipped bit", "checksum does not match", func(b []byte) []byte { b[len(b)-1] ^= 1; return b }},
		{"another node", "it is of node", func([]byte) []byte { b, _ := encodeState(&nodev1.State{Node: "n2"}); return b }},
		{"a type is missing", "it lacks type", func([]byte) []byte { b, _ := encodeState(&nodev1.State{Node: "n1"}); return b }},
		{"bad resource", "no slash", func([]byte) []byte {
			h := newTypeState(wire.ServiceType)
			h.resources["no slash"] = entry{body: []byte{}}
			b, _ := encodeState(&nodev1.State{Node: "n1", Types: []*nodev1.TypeState{h.toState(), newTypeState(wire.SliceType).toState()}})
			return b
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "view.state")
			if err := os.WriteFile(file, tt.content(good(t)), 0o600); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				p := &plane{}
				t.Cleanup(p.kill)
				b := view.NewBuilder(view.BuilderConfig{})
				replace(t, b, viewtest.Delta(1, viewtest.Service("web", "10.0.0.1")))
				p.start(b.Assign)
				a := startAgent(t, p, file)
				updates := 1
				if tt.name == "good" {
					updates = 2
				}
				a.expect(updates, map[string]string{"web": "10.0.0.1"})
				a.stop()
				if !strings.Contains(a.log.String(), tt.log) {
					t.Errorf("log lacks %q:\n%s", tt.log, a.log)
				}
			})
		})
	}
}

// TestRejected: an invalid resource is refused by name, the rest applies, and
// its last good state stays until a good one comes.
func TestRejected(t *testing.T) { synctest.Test(t, testRejected) }

func testRejected(t *testing.T) {
	body := func(name, ip string) []byte {
		b, err := wire.EncodeService(&proxy.Service{Name: proxy.ServiceName{Namespace: "ns", Name: name}, ClusterIPs: []netip.Addr{netip.MustParseAddr(ip)}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	scope := delta.NewScope(delta.Options{})
	set := func(sequence uint64, resources ...delta.Resource) {
		t.Helper()
		var changes []delta.Change
		for _, r := range resources {
			changes = append(changes, delta.Change{Resource: r})
		}
		if _, err := scope.Apply(delta.Position{Epoch: 1, Sequence: sequence}, changes); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := scope.Replace(delta.Position{Epoch: 1, Sequence: 1}, []delta.Resource{{Type: wire.ServiceType, Name: "ns/web", Body: body("web", "10.0.0.1")}}); err != nil {
		t.Fatal(err)
	}
	p := &plane{}
	t.Cleanup(p.kill)
	admit := func(context.Context, *core.Node) (stream.Admission, error) {
		return stream.Admission{Scope: scope}, nil
	}
	p.start(admit)
	a := startAgent(t, p, "")
	a.expect(1, map[string]string{"web": "10.0.0.1"})

	set(2, delta.Resource{Type: wire.ServiceType, Name: "ns/web", Body: []byte{0xff}}, delta.Resource{Type: wire.ServiceType, Name: "ns/other", Body: body("other", "10.0.0.2")})
	a.expect(1, map[string]string{"web": "10.0.0.1", "other": "10.0.0.2"})
	if s := a.feed.Status(); len(s.Rejected) != 1 || s.Rejected[wire.ServiceType+" ns/web"] == "" {
		t.Errorf("rejected = %v", s.Rejected)
	}
	reject := p.server.Status()[0].Types[0].Rejected.Reason
	if !strings.Contains(reject, `"ns/web"`) || strings.Contains(reject, "other") {
		t.Errorf("the server got %q", reject)
	}

	// A new stream asks for it again, in case that it is understood now.
	p.kill()
	p.start(admit)
	time.Sleep(10 * time.Second)
	synctest.Wait()
	if s := p.server.Status(); len(s) != 1 || s[0].Types[0].Rejected.Reason == "" {
		t.Errorf("not asked for again: %+v", s)
	}
	set(3, delta.Resource{Type: wire.ServiceType, Name: "ns/web", Body: body("web", "10.0.0.3")})
	a.expect(1, map[string]string{"web": "10.0.0.3", "other": "10.0.0.2"})
	if s := a.feed.Status(); len(s.Rejected) != 0 {
		t.Errorf("rejected = %v", s.Rejected)
	}
}

// TestAcknowledgedWhenTaken: what the callback has not returned from is not
// acknowledged.
func TestAcknowledgedWhenTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{}
		t.Cleanup(p.kill)
		b := view.NewBuilder(view.BuilderConfig{})
		replace(t, b, viewtest.Delta(1, viewtest.Service("web", "10.0.0.1"), viewtest.Slice("web-1", "10.1.0.1")))
		p.start(b.Assign)
		gate := make(chan struct{})
		f := NewFeed(FeedConfig{
			Target: "passthrough:///plane", Credentials: insecure.NewCredentials(), Node: "n1", Zone: "a",
			DialOptions: []grpc.DialOption{grpc.WithContextDialer(p.dial)},
			Update:      func(node.Update) { <-gate },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = f.Run(ctx) }()
		defer func() { cancel(); <-done }()
		unacked := func() (types int) {
			synctest.Wait()
			for _, s := range p.server.Status()[0].Types {
				if s.Unsent != 0 {
					t.Errorf("not sent: %+v", s)
				}
				if s.Unacked > 0 {
					types++
				}
			}
			return types
		}
		if n := unacked(); n != len(resourceTypes) {
			t.Errorf("of %d types only %d wait: acknowledged before they were taken", len(resourceTypes), n)
		}
		gate <- struct{}{}
		if n := unacked(); n != 0 {
			t.Errorf("%d types not acknowledged after they were taken", n)
		}
	})
}

func FuzzDecodeState(f *testing.F) {
	b, _ := encodeState(&nodev1.State{Node: "n", Types: []*nodev1.TypeState{{TypeUrl: wire.ServiceType}}})
	f.Add(b)
	f.Add(b[:20])
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = decodeState(b) })
}
