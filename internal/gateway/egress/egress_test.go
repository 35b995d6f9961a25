package egress_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/gateway/egress"
	"github.com/proxima-mesh/proxima/internal/gateway/external"
	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/front"
	"github.com/proxima-mesh/proxima/internal/gateway/gatewaytest"
	"github.com/proxima-mesh/proxima/internal/gateway/ingress"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
)

const (
	remote      = "0123456789abcdef.80.web.default.default.proxima"
	externalSNI = "0123456789abcdef.443.api.default.default.proxima"
	workloadID  = "spiffe://mesh.example/ns/default/sa/one"
	egressID    = "spiffe://mesh.example/egress/east"
	ingressID   = "spiffe://mesh.example/ingress/west"
)

var client = netip.MustParseAddrPort("10.0.0.1:1234")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

type targets struct {
	mu  sync.Mutex
	all map[string]egress.Target
}

func (t *targets) Target(sni string) (egress.Target, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	target, ok := t.all[sni]
	return target, ok
}

type routes map[string]ingress.Route

func (r routes) Route(sni string) (ingress.Route, bool)                        { route, ok := r[sni]; return route, ok }
func (r routes) PassthroughRoute(sni string, _ []string) (ingress.Route, bool) { return r.Route(sni) }

type resolver map[string]netip.Addr

func (r resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if a, ok := r[host]; ok {
		return []netip.Addr{a}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// start serves a handler, and returns its address.
func start(t *testing.T, ca *gatewaytest.CA, id string, policy *gatewaytest.Policy, h server.Handler, buffers *record.Pool) netip.AddrPort {
	t.Helper()
	cert := must(ca.Issue(id, time.Hour))
	policy.Roots = ca.Roots()
	s := must(server.New(server.Config{
		Role: "test", Authority: policy, Handler: h, Buffers: buffers,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil },
	}))
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func serve(t *testing.T, handle func(net.Conn)) netip.AddrPort {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				handle(c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func echo(c net.Conn) { _, _ = io.Copy(struct{ io.Writer }{c}, c) }

// rig is a client, an egress, an ingress of another site, and what is behind them.
type rig struct {
	client  *tunnel.Client
	creds   *tunnel.Credentials
	egress  tunnel.Peer
	targets *targets
	ingress *gatewaytest.Policy
	ca      *gatewaytest.CA
}

func newRig(t *testing.T, endpoint netip.AddrPort, names resolver) *rig {
	t.Helper()
	return newRigOf(t, must(gatewaytest.NewCA()), endpoint, names)
}

func newRigOf(t *testing.T, ca *gatewaytest.CA, endpoint netip.AddrPort, names resolver) *rig {
	t.Helper()
	r := &rig{ca: ca, targets: &targets{}, ingress: &gatewaytest.Policy{Asserters: map[string]bool{egressID: true}}}
	buffers := record.NewPool(0)
	in := must(ingress.New(ingress.Config{Routes: routes{remote: {Endpoints: []netip.AddrPort{endpoint}}}}))
	ingressAt := start(t, r.ca, ingressID, r.ingress, in, record.NewPool(0))
	onward := tunnel.NewClient(tunnel.Config{Site: "east"})
	t.Cleanup(onward.Close)
	own := must(r.ca.Credentials(egressID, ingressID))
	out := must(egress.New(egress.Config{
		Targets: r.targets, Tunnel: onward, Buffers: buffers, Resolver: names,
		Credentials: func(string) (*tunnel.Credentials, error) { return own, nil },
	}))
	r.targets.all = map[string]egress.Target{
		remote: {Ingresses: []tunnel.Peer{{Name: "west-1", Address: ingressAt, Role: tunnel.RoleIngress, Site: "west", Weight: 1}}},
	}
	egressAt := start(t, r.ca, egressID, &gatewaytest.Policy{}, out, buffers)
	r.egress = tunnel.Peer{Name: "egress-1", Address: egressAt, Role: tunnel.RoleEgress, Site: "east", Weight: 1}
	r.client = tunnel.NewClient(tunnel.Config{Site: "east"})
	t.Cleanup(r.client.Close)
	r.creds = must(r.ca.Credentials(workloadID, egressID))
	return r
}

func (r *rig) open(sni string, first string) (*tunnel.Conn, error) {
	return r.client.Open(context.Background(), tunnel.Request{
		SNI: sni, Peers: []tunnel.Peer{r.egress}, EgressOnly: true, Credentials: r.creds,
		Stream: frame.Stream{Client: client, Node: "node-1", Identity: workloadID},
	}, []byte(first))
}

// expect reads an answer, and ends the stream.
func expect(t *testing.T, c *tunnel.Conn, want string) {
	t.Helper()
	got := ""
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for {
		chunk, err := c.Receive()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		got += string(chunk.Data())
	}
	if got != want {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
	}
	c.Finish(true)
}

// TestToAnotherSite: the ingress there sees the egress as its peer and the workload as
// the one whom the stream is for.
func TestToAnotherSite(t *testing.T) {
	r := newRig(t, serve(t, echo), nil)
	for range 2 {
		message := strings.Repeat("x", 15_000)
		c, err := r.open(remote, message)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, c, message)
	}
	for _, s := range r.ingress.Streams() {
		if s.Peer.Identity != egressID || s.Stream.Identity != workloadID || s.Stream.Client != client || s.Stream.Node != "node-1" {
			t.Errorf("the ingress saw %+v", s)
		}
	}
	r.ingress.Deny(workloadID)
	expectFailure(t, r, remote, frame.Unauthorized)
}

func expectFailure(t *testing.T, r *rig, sni string, want frame.Reason) {
	t.Helper()
	_, err := r.open(sni, "x")
	var failure *tunnel.OpenError
	if !errors.As(err, &failure) || failure.Reason != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestWhatTheEgressRefuses(t *testing.T) {
	r := newRig(t, serve(t, echo), nil)
	dead := must(net.Listen("tcp", "127.0.0.1:0"))
	at := dead.Addr().(*net.TCPAddr).AddrPort()
	dead.Close()
	r.targets.all["dead"] = egress.Target{Ingresses: []tunnel.Peer{{Name: "dead", Address: at, Site: "west", Weight: 1}}}
	r.targets.all["circle"] = egress.Target{Ingresses: []tunnel.Peer{r.egress}}
	r.targets.all["own"] = egress.Target{Ingresses: []tunnel.Peer{{Name: "own", Address: at, Site: "east", Weight: 1}}}
	expectFailure(t, r, "unknown", frame.NoRoute)
	expectFailure(t, r, "dead", frame.Unreachable)
	expectFailure(t, r, "circle", frame.Unsupported)
	expectFailure(t, r, "own", frame.Unsupported)
}

func TestExternalService(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	cert := must(ca.Issue("spiffe://x.example/x", time.Hour, "api.example.com"))
	secure := serve(t, func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*cert}})
		all, _ := io.ReadAll(s)
		_, _ = s.Write(all)
		_ = s.CloseWrite()
	})
	plain := serve(t, echo)
	r := newRig(t, plain, resolver{"api.example.com": secure.Addr()})
	message := strings.Repeat("y", 200_000)
	for name, e := range map[string]*external.Service{
		"plain by address": {Targets: []external.Target{{Host: plain.Addr().String(), Port: plain.Port()}}},
		"TLS by name":      {Targets: []external.Target{{Host: "api.example.com", Port: secure.Port()}}, TLS: &tls.Config{RootCAs: ca.Roots()}},
		"the second host":  {Targets: []external.Target{{Host: "gone.example.com", Port: secure.Port()}, {Host: "api.example.com", Port: secure.Port()}}, TLS: &tls.Config{RootCAs: ca.Roots()}},
	} {
		r.targets.all[externalSNI] = egress.Target{External: e}
		c, err := r.open(externalSNI, message)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		expect(t, c, message)
	}
	for name, e := range map[string]*external.Service{
		"another authority": {Targets: []external.Target{{Host: "api.example.com", Port: secure.Port()}}, TLS: &tls.Config{RootCAs: r.ca.Roots()}},
		"another name":      {Targets: []external.Target{{Host: secure.Addr().String(), Port: secure.Port()}}, TLS: &tls.Config{RootCAs: ca.Roots()}},
		"no such host":      {Targets: []external.Target{{Host: "gone.example.com", Port: 1}}},
		"no host":           {},
	} {
		t.Run(name, func(t *testing.T) {
			r.targets.all[externalSNI] = egress.Target{External: e}
			expectFailure(t, r, externalSNI, frame.Unreachable)
		})
	}
}

// TestPassthrough: TLS of a sidecar goes to the ingress, and through it, as it is.
func TestPassthrough(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	const id = "spiffe://mesh.example/ns/default/sa/web"
	cert := must(ca.Issue(id, time.Hour))
	endpoint := serve(t, func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{"proxima"}})
		echo(s)
	})
	r := newRigOf(t, ca, endpoint, nil)
	config := &tls.Config{ServerName: remote, NextProtos: []string{"proxima"}, InsecureSkipVerify: true}
	c, err := tls.Dial("tcp", r.egress.Address.String(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.ConnectionState().PeerCertificates[0].URIs[0].String(); got != id {
		t.Errorf("TLS ends at %s", got)
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
}

// upstream of an Envoy that answers by itself.
type upstream struct{ server.Upstream }

// TestFront: an egress with an Envoy connects to services outside by that; by itself where Envoy has no cluster, and
// not where it has refused.
func TestFront(t *testing.T) {
	own := serve(t, echo)
	service := &external.Service{Targets: []external.Target{{Host: own.Addr().String(), Port: own.Port()}}}
	onward := tunnel.NewClient(tunnel.Config{})
	t.Cleanup(onward.Close)
	var answer error
	var asked []string
	h := must(egress.New(egress.Config{
		Targets: &targets{all: map[string]egress.Target{
			"out": {External: service, Outside: "shop/pay:80"},
			"bad": {External: &external.Service{Unusable: errors.New("no key")}, Outside: "shop/bad:80"},
		}},
		Tunnel: onward, Credentials: func(string) (*tunnel.Credentials, error) { return nil, errors.New("none") },
		Front: func(_ context.Context, outside string) (server.Upstream, error) {
			asked = append(asked, outside)
			return upstream{}, answer
		},
	}))
	for name, test := range map[string]struct {
		sni    string
		answer error
		own    bool         // by itself
		reason frame.Reason // Unspecified: it is connected
	}{
		"by Envoy":      {sni: "out"},
		"no cluster":    {sni: "out", answer: fmt.Errorf("%w: away", front.ErrAbsent), own: true},
		"refused":       {sni: "out", answer: &front.RefusedError{Text: "no"}, reason: frame.Unreachable},
		"overloaded":    {sni: "out", answer: &front.RefusedError{Overloaded: true}, reason: frame.Overloaded},
		"cannot be had": {sni: "bad", reason: frame.Unreachable},
	} {
		answer, asked = test.answer, nil
		up, err := h.Connect(t.Context(), server.Call{Peer: server.Peer{SNI: test.sni}})
		var refusal *server.Refusal
		switch _, byEnvoy := up.(upstream); {
		case test.reason != frame.Unspecified:
			if !errors.As(err, &refusal) || refusal.Reason != test.reason {
				t.Errorf("%s: %v", name, err)
			}
		case err != nil || byEnvoy == test.own:
			t.Errorf("%s: %T, %v", name, up, err)
		}
		if test.own && up != nil {
			up.Finish(false)
		}
		if want := test.sni == "out"; (len(asked) == 1 && asked[0] == "shop/pay:80") != want {
			t.Errorf("%s: Envoy is asked for %v", name, asked)
		}
	}
}
