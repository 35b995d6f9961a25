package witness

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	witnessv1 "github.com/proxima-mesh/proxima/api/witness/v1"
	"github.com/proxima-mesh/proxima/internal/controller/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func loopback(port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port))
}

// TestAsk: an agent answers; one that is stopped leaves its socket open and does not; where
// there is none, the machine says so; another node's agent does not answer for it.
func TestAsk(t *testing.T) {
	r, err := Listen("n1", 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	taken, err := Listen("n2", r.Port()) // taken: another port
	if err != nil || taken.Port() == r.Port() {
		t.Fatalf("the same port twice: %v", err)
	}
	defer taken.Close()
	stopped, err := net.ListenPacket("udp4", "127.0.0.1:0") // nothing reads it
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	gone, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	port := func(c net.PacketConn) int { return c.LocalAddr().(*net.UDPAddr).Port }
	for _, tc := range []struct {
		name, node string
		addr       netip.AddrPort
		want       health.Outcome
	}{
		{"an agent", "n1", loopback(r.Port()), health.Answered},
		{"another address of its machine", "n1", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 9}), uint16(r.Port())), health.Answered},
		{"another node's agent", "n9", loopback(r.Port()), health.Silent},
		{"a stopped agent", "n1", loopback(port(stopped)), health.Silent},
		{"no agent", "n1", loopback(port(gone)), health.Refused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Ask(t.Context(), tc.node, tc.addr); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
	if got := r.Answered(); got != 2 {
		t.Errorf("answered %d probes", got)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if got := Ask(ended, "n1", loopback(port(stopped))); got != health.Failed {
		t.Errorf("asked in vain: %s", got)
	}
	ended, end = context.WithTimeout(t.Context(), askEvery/2)
	defer end()
	if got := Ask(ended, "n1", loopback(port(stopped))); got != health.Failed {
		t.Errorf("ended while it waits: %s", got)
	}
}

// TestAskForged: nothing counts as an answer but the one to the question.
func TestAskForged(t *testing.T) {
	var asking sync.WaitGroup
	defer asking.Wait()
	for name, forge := range map[string]func(p packet) []byte{
		"another nonce": func(p packet) []byte { p.kind, p.nonce[3] = answer, p.nonce[3]+1; return p.encode() },
		"another name":  func(p packet) []byte { p.kind, p.name = answer, nameOf("n9"); return p.encode() },
		"an echo":       func(p packet) []byte { return p.encode() },
		"shorter":       func(p packet) []byte { p.kind = answer; return p.encode()[:packetSize-1] },
		"longer":        func(p packet) []byte { p.kind = answer; return append(p.encode(), 0) },
	} {
		conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		asking.Go(func() { // until it is closed
			b := make([]byte, packetSize)
			for {
				_, from, err := conn.ReadFrom(b)
				if err != nil {
					return
				}
				if p, err := decodePacket(b); err == nil {
					_, _ = conn.WriteTo(forge(p), from)
				}
			}
		})
		asking.Go(func() {
			defer conn.Close()
			if got := Ask(t.Context(), "n1", loopback(conn.LocalAddr().(*net.UDPAddr).Port)); got != health.Silent {
				t.Errorf("%s: %s", name, got)
			}
		})
	}
}

func TestOutcomeOf(t *testing.T) {
	for err, want := range map[error]string{
		syscall.ECONNREFUSED: "refused", syscall.EPERM: "failed", syscall.EACCES: "failed",
		syscall.EHOSTUNREACH: "", syscall.ENETUNREACH: "", os.ErrDeadlineExceeded: "",
	} {
		o, known := outcomeOf(&net.OpError{Op: "read", Err: err})
		if known != (want != "") || known && o.String() != want {
			t.Errorf("%v: %s, %v; want %q", err, o, known, want)
		}
	}
}

func FuzzDecodePacket(f *testing.F) {
	f.Add(newQuestion("n1").encode())
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePacket(b)
		if err == nil && !slices.Equal(p.encode(), b) {
			t.Fatalf("%x is read as %x", b, p.encode())
		}
	})
}

// events notes what streams bring.
type events struct {
	mu    sync.Mutex
	lines []string
	addrs map[string]netip.AddrPort
	heard map[string]int
}

func (e *events) note(line string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = append(e.lines, line)
}

func (e *events) Attend(node string, addr netip.AddrPort) {
	e.note("attend " + node)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.addrs[node] = addr
}

func (e *events) Heard(node string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard[node]++
}

func (e *events) Detach(node string, goodbye bool) {
	if goodbye {
		e.note("goodbye " + node)
	} else {
		e.note("lost " + node)
	}
}

func (e *events) Result(witness string, _ uint64, o health.Outcome) {
	e.note(witness + ": " + o.String())
}

func (e *events) take() []string {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	out := e.lines
	e.lines = nil
	return out
}

func (e *events) expect(t *testing.T, when string, want ...string) {
	t.Helper()
	if got := e.take(); !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", when, got, want)
	}
}

func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &events{addrs: map[string]netip.AddrPort{}, heard: map[string]int{}}
		server := NewServer(ServerConfig{Admit: func(_ context.Context, node string) error {
			if node == "evil" {
				return status.Error(codes.PermissionDenied, "not you")
			}
			return nil
		}}, e)
		listener := bufconn.Listen(1 << 20)
		serve := func() *grpc.Server {
			s := grpc.NewServer()
			server.Register(s)
			go func() { _ = s.Serve(listener) }()
			return s
		}
		running := serve()
		dial := func() *grpc.ClientConn {
			conn, err := grpc.NewClient("passthrough:///plane", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: firstRetry, Multiplier: 2, MaxDelay: time.Second}}),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
			if err != nil {
				t.Fatal(err)
			}
			return conn
		}
		conn := dial()
		defer conn.Close()
		start := func(node string, o health.Outcome) (stop func()) {
			c := NewClient(ClientConfig{Conn: conn, Node: node, ProbePort: 10256})
			c.ask = func(_ context.Context, of string, addr netip.AddrPort) health.Outcome {
				e.note("asked about " + of + " at " + addr.String())
				return o
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- c.Run(ctx) }()
			return func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}

		stop := start("n1", health.Silent)
		e.expect(t, "started", "attend n1")
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		if got := e.heard["n1"]; got != 10 {
			t.Errorf("heard %d times in 10 s", got)
		}
		order := health.Probe{ID: 7, Witness: "n1", Node: "n2", Addr: netip.MustParseAddrPort("10.0.0.2:10256")}
		if !server.Send(order) {
			t.Error("the witness has a stream")
		}
		e.expect(t, "a probe", "asked about n2 at 10.0.0.2:10256", "n1: silent")
		order.Addr = netip.MustParseAddrPort("224.0.0.1:10256")
		server.Send(order)
		e.expect(t, "a probe of no machine", "n1: failed")
		order.Witness = "n9"
		if server.Send(order) {
			t.Error("a witness without a stream took a probe")
		}

		again := start("n1", health.Answered)
		e.expect(t, "a second stream", "attend n1")
		stop() // of the older one: nothing follows
		e.expect(t, "the older stream ends")
		again()
		e.expect(t, "the agent ends", "goodbye n1")

		stop = start("n1", health.Answered)
		e.expect(t, "started again", "attend n1")
		running.Stop()
		time.Sleep(2 * time.Minute)
		e.expect(t, "the control plane ends", "lost n1")
		listener = bufconn.Listen(1 << 20)
		running = serve()
		time.Sleep(maxRetry + time.Second)
		e.expect(t, "and comes back", "attend n1")
		stop()
		e.expect(t, "the agent ends", "goodbye n1")

		refused := start("evil", health.Answered)
		time.Sleep(time.Minute)
		e.expect(t, "another one's name")
		refused()
		stream, err := witnessv1.NewWitnessClient(conn).Attend(t.Context())
		if err == nil {
			err = stream.Send(&witnessv1.AgentMessage{Message: &witnessv1.AgentMessage_Heartbeat{}})
		}
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("a stream without a name: %v", err)
		}
		testNewerStream(t, server, e, conn)
		running.Stop()
		conn.Close()
	})
}

// testNewerStream: it ends an older one of its node, of which nothing counts any more.
func testNewerStream(t *testing.T, server *Server, e *events, conn *grpc.ClientConn) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	open := func() grpc.BidiStreamingClient[witnessv1.AgentMessage, witnessv1.PlaneMessage] {
		stream, err := witnessv1.NewWitnessClient(conn).Attend(ctx)
		if err == nil {
			err = stream.Send(&witnessv1.AgentMessage{Message: &witnessv1.AgentMessage_Hello{Hello: &witnessv1.Hello{Node: "n5", ProbePort: 1}}})
		}
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	older := open()
	e.expect(t, "the older stream", "attend n5")
	server.mu.Lock()
	replaced := server.streams["n5"]
	server.mu.Unlock()
	newer := open()
	e.expect(t, "the newer stream", "attend n5")
	if _, err := older.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("the older stream: %v", err)
	}
	server.heard(replaced)
	if got := e.heard["n5"]; got != 0 {
		t.Errorf("%d signs of life of the older stream", got)
	}
	_ = newer.CloseSend()
	e.expect(t, "the newer stream ends", "goodbye n5")
}

// cuttable is a listener whose connections a test can close.
type cuttable struct {
	*bufconn.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cuttable) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.conns = append(c.conns, conn)
	}
	return conn, err
}

func (c *cuttable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

// TestReconnect: an agent whose connection is closed, as at the end of its certificate, is
// back long before its machine counts as stalled, each time.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &events{addrs: map[string]netip.AddrPort{}, heard: map[string]int{}}
		server := NewServer(ServerConfig{Admit: func(context.Context, string) error { return nil }}, e)
		listener := &cuttable{Listener: bufconn.Listen(1 << 20)}
		running := grpc.NewServer()
		server.Register(running)
		go func() { _ = running.Serve(listener) }()
		defer running.Stop()
		conn, err := grpc.NewClient("passthrough:///plane", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- NewClient(ClientConfig{Conn: conn, Node: "n1", ProbePort: 10256}).Run(ctx) }()
		e.expect(t, "started", "attend n1")
		for range 6 {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			listener.cut()
			time.Sleep((health.StallAfter - health.HeartbeatInterval) / 4)
			e.expect(t, "the connection is closed", "lost n1", "attend n1")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		e.expect(t, "the agent ends", "goodbye n1")
	})
}

// TestLimits: an agent makes no more probes than it should, however many are ordered.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClient(ClientConfig{Node: "n1"})
		block := make(chan struct{})
		c.ask = func(context.Context, string, netip.AddrPort) health.Outcome {
			<-block
			return health.Answered
		}
		order := &witnessv1.Probe{Node: "n2", Address: []byte{10, 0, 0, 2}, Port: 1}
		var asking sync.WaitGroup
		for range health.MaxProbes + 10 {
			asking.Go(func() { c.probe(t.Context(), order) })
		}
		synctest.Wait()
		close(block)
		asking.Wait()
		if got := c.outcomes[health.Failed].Load(); got != 10 {
			t.Errorf("%d probes were refused, want 10", got)
		}
		time.Sleep(time.Second)
		for range probesPerSecond + 5 {
			c.probe(t.Context(), order)
		}
		if got := c.outcomes[health.Failed].Load(); got != 15 {
			t.Errorf("%d probes were refused, want 15", got)
		}
	})
}

func TestProbedAddress(t *testing.T) {
	for _, tc := range []struct {
		host string
		port uint32
		want string
	}{{"10.0.0.1:4000", 10256, "10.0.0.1:10256"}, {"[::ffff:10.0.0.1]:4000", 1, "10.0.0.1:1"}, {"[fd00::1]:4000", 1, "[fd00::1]:1"}, {"10.0.0.1:4000", 0, ""}, {"bufconn", 1, ""}} {
		got := probedFrom(tc.host, tc.port)
		if text := got.String(); text != tc.want && (tc.want != "" || got.IsValid()) {
			t.Errorf("%s and port %d: %s", tc.host, tc.port, text)
		}
	}
}
