package ingress_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/gatewaytest"
	"github.com/proxima-mesh/proxima/internal/gateway/ingress"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
)

const (
	sni       = "0123456789abcdef.80.web.default.default.proxima"
	ingressID = "spiffe://mesh.example/ingress/west"
	workload1 = "spiffe://mesh.example/ns/default/sa/one"
	workload2 = "spiffe://mesh.example/ns/default/sa/two"
)

var destination = netip.MustParseAddrPort("240.0.0.7:80")

func TestMain(m *testing.M) {
	if role := os.Getenv("PROXIMA_GATEWAY_TEST_ROLE"); role != "" {
		runRole(role)
		return
	}
	goleak.VerifyTestMain(m)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// routes are static.
type routes struct {
	mu     sync.Mutex
	routes map[string]ingress.Route
	pass   map[string]ingress.Route
}

func (r *routes) Route(sni string) (ingress.Route, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	route, ok := r.routes[sni]
	return route, ok
}

func (r *routes) PassthroughRoute(sni string, _ []string) (ingress.Route, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	route, ok := r.pass[sni]
	return route, ok
}

// gateway is an ingress of the real packages.
type gateway struct {
	*server.Server
	addr     netip.AddrPort
	routes   *routes
	policy   *gatewaytest.Policy
	registry *prometheus.Registry
	buffers  *record.Pool
	shutdown func()
}

// peer of weight 1.
func (g *gateway) peer(name string) tunnel.Peer {
	return tunnel.Peer{Name: name, Address: g.addr, Role: tunnel.RoleIngress, Site: "west", Weight: 1}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func startIngress(t testing.TB, ca *gatewaytest.CA, route ingress.Route, change func(*server.Config)) *gateway {
	t.Helper()
	l := listen(t)
	g := &gateway{
		addr:     addrPort(l.Addr()),
		routes:   &routes{routes: map[string]ingress.Route{sni: route}, pass: map[string]ingress.Route{}},
		policy:   &gatewaytest.Policy{Roots: ca.Roots()},
		registry: prometheus.NewRegistry(),
		buffers:  record.NewPool(0),
	}
	handler, err := ingress.New(ingress.Config{Routes: g.routes, Buffers: g.buffers, Own: []netip.AddrPort{g.addr}})
	if err != nil {
		t.Fatal(err)
	}
	cert := must(ca.Issue(ingressID, time.Hour))
	cfg := server.Config{
		Role: "ingress", Authority: g.policy, Handler: handler, Buffers: g.buffers, Registerer: g.registry,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil },
		Logger:         logger(t),
	}
	if change != nil {
		change(&cfg)
	}
	if g.Server, err = server.New(cfg); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	g.shutdown = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		g.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(g.shutdown)
	return g
}

func logger(t testing.TB) *slog.Logger {
	if os.Getenv("PROXIMA_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// node is the agent's part: a client, and the port that connections are redirected to.
type node struct {
	client   *tunnel.Client
	addr     string
	registry *prometheus.Registry
	buffers  *record.Pool

	mu    sync.Mutex
	route tunnel.Route
}

// Route implements tunnel.Router.
func (n *node) Route(context.Context, netip.AddrPort, netip.AddrPort) (tunnel.Route, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.route, nil
}

func (n *node) set(change func(*tunnel.Route)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.route)
}

func startNode(t testing.TB, creds *tunnel.Credentials, change func(*tunnel.Config), peers ...tunnel.Peer) *node {
	t.Helper()
	n := &node{registry: prometheus.NewRegistry(), buffers: record.NewPool(0)}
	cfg := tunnel.Config{Site: "east", Registerer: n.registry, Buffers: n.buffers, Logger: logger(t)}
	if change != nil {
		change(&cfg)
	}
	n.client = tunnel.NewClient(cfg)
	n.route = tunnel.Route{Request: tunnel.Request{
		SNI: sni, Peers: peers, Credentials: creds, Stream: frame.Stream{Node: "node-1", Identity: creds.Identity},
	}}
	s := tunnel.NewServer(tunnel.ServerConfig{
		Client: n.client, Router: n, Logger: logger(t),
		FirstBytesTimeout: 500 * time.Millisecond, // of a busy machine
		Origin: func(c net.Conn) (netip.AddrPort, netip.AddrPort, error) {
			return addrPort(c.RemoteAddr()), destination, nil
		},
	})
	l := listen(t)
	n.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		short, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Close(short)
		n.client.Close()
	})
	return n
}

func (n *node) dial(t testing.TB) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", n.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn)
}

// endpoint serves each connection with handle, which need not close it.
func endpoint(t testing.TB, handle func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l := listen(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				handle(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return addrPort(l.Addr())
}

func echo(c *net.TCPConn) { _, _ = io.Copy(struct{ io.Writer }{c}, c) }

func addrPort(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

func route(endpoints ...netip.AddrPort) ingress.Route { return ingress.Route{Endpoints: endpoints} }

// exchange sends a message, and expects it back.
func exchange(t testing.TB, c net.Conn, message string) {
	t.Helper()
	if _, err := c.Write([]byte(message)); err != nil {
		t.Fatalf("send: %v", err)
	}
	got := make([]byte, len(message))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatalf("receive: %v", err)
	}
	if !bytes.Equal(got, []byte(message)) {
		t.Fatalf("got %q, want %q", got, message)
	}
}

// finish ends a connection cleanly in both directions.
func finish(t testing.TB, c *net.TCPConn) {
	t.Helper()
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		t.Fatalf("the end: %q, %v", rest, err)
	}
	c.Close()
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// expectReset reads until a reset.
func expectReset(t testing.TB, c net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); !isReset(err) {
		t.Fatalf("the connection ended with %v, want a reset", err)
	}
}

// eventually polls with a deadline.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// metric is the sum of a family's samples with the given label values.
func metric(t testing.TB, g prometheus.Gatherer, name string, values ...string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			have := map[string]bool{}
			for _, l := range m.GetLabel() {
				have[l.GetValue()] = true
			}
			match := true
			for _, v := range values {
				match = match && have[v]
			}
			if match {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}
