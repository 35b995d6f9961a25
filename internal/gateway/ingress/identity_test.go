package ingress_test

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/gatewaytest"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
)

// open opens a stream for a workload, and ends it, with its connection. It returns what
// the ingress took the workload for.
func open(t *testing.T, client *tunnel.Client, g *gateway, creds *tunnel.Credentials) string {
	t.Helper()
	before := len(g.policy.Streams())
	conn, err := client.Open(context.Background(), tunnel.Request{
		SNI: sni, Peers: []tunnel.Peer{g.peer("west-1")}, Credentials: creds,
		Stream: frame.Stream{Client: destination},
	}, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	conn.Finish(false) // not back to the pool: the next one is a handshake
	streams := g.policy.Streams()
	if len(streams) != before+1 {
		t.Fatalf("%d streams, want %d", len(streams), before+1)
	}
	last := streams[before]
	if last.Peer.Identity != last.Stream.Identity {
		t.Errorf("a stream of %s is authorized as %s", last.Peer.Identity, last.Stream.Identity)
	}
	return last.Peer.Identity
}

func resumed(t *testing.T, g *gateway) float64 {
	return metric(t, g.registry, "proxima_gateway_handshakes_total", "resumed")
}

// TestTwoWorkloadsKeepTheirIdentitiesAfterResumption: with one session cache for the client,
// the second workload would resume the first one's session.
func TestTwoWorkloadsKeepTheirIdentitiesAfterResumption(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	g := startIngress(t, ca, route(endpoint(t, echo)), nil)
	client := tunnel.NewClient(tunnel.Config{Site: "east"})
	defer client.Close()
	first, second := must(ca.Credentials(workload1)), must(ca.Credentials(workload2))
	for round := range 3 {
		for _, creds := range []*tunnel.Credentials{first, second} {
			if got := open(t, client, g, creds); got != creds.Identity {
				t.Fatalf("round %d: the ingress takes %s for %s", round, creds.Identity, got)
			}
		}
	}
	if got := resumed(t, g); got != 4 {
		t.Errorf("%v sessions were resumed, want 4 of 6: the test shows nothing", got)
	}
}

// TestRenewalAndRetirementDropSessions: another certificate of the same identity, and
// one that was retired, begin with a full handshake.
func TestRenewalAndRetirementDropSessions(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	g := startIngress(t, ca, route(endpoint(t, echo)), nil)
	client := tunnel.NewClient(tunnel.Config{Site: "east"})
	defer client.Close()
	creds, renewed := must(ca.Credentials(workload1)), must(ca.Credentials(workload1))
	open(t, client, g, creds)
	open(t, client, g, renewed)
	if got := resumed(t, g); got != 0 {
		t.Fatalf("the renewed certificate resumed a session of the old one")
	}
	open(t, client, g, creds)
	if got := resumed(t, g); got != 1 {
		t.Fatalf("%v sessions were resumed, want 1: the test shows nothing", got)
	}
	client.Retire(creds.Identity, creds.Serial)
	open(t, client, g, creds)
	if got := resumed(t, g); got != 1 {
		t.Errorf("a session outlived the retirement of its certificate")
	}
}

// TestRetireDropsConnections: those in the pool at once, and one in use when its stream
// ends.
func TestRetireDropsConnections(t *testing.T) {
	n, g := pair(t, echo)
	creds := n.route.Credentials
	pooled, used := n.dial(t), n.dial(t)
	exchange(t, pooled, "x")
	exchange(t, used, "x")
	finish(t, pooled)
	eventually(t, "one is pooled", func() bool { return metric(t, n.registry, "proxima_tunnel_pool_idle_connections") == 1 })
	n.client.Retire(creds.Identity, creds.Serial)
	eventually(t, "it is dropped", func() bool { return metric(t, g.registry, "proxima_gateway_connections") == 1 })
	other := n.dial(t)
	exchange(t, other, "x") // the key is in use again
	exchange(t, used, "the stream goes on")
	finish(t, used)
	eventually(t, "the old connection ends with its stream", func() bool { return metric(t, g.registry, "proxima_gateway_connections") == 1 })
	if got := metric(t, n.registry, "proxima_tunnel_pool_idle_connections"); got != 0 {
		t.Errorf("%v connections in the pool, want none", got)
	}
}

// TestRevokedIdentityIsRefusedOnItsPooledConnection: the connection outlives a change
// of policy, the right to open streams does not.
func TestRevokedIdentityIsRefusedOnItsPooledConnection(t *testing.T) {
	n, g := pair(t, echo)
	c := n.dial(t)
	exchange(t, c, "allowed")
	finish(t, c)
	eventually(t, "it is pooled", func() bool { return metric(t, n.registry, "proxima_tunnel_pool_idle_connections") == 1 })
	g.policy.Deny(workload1)
	c = n.dial(t)
	_, _ = c.Write([]byte("not any more"))
	expectReset(t, c)
	eventually(t, "both sides count it", func() bool {
		return metric(t, n.registry, "proxima_tunnel_resets_total", "unauthorized") == 1 &&
			metric(t, g.registry, "proxima_gateway_refused_total", "unauthorized") == 1
	})
	if got := metric(t, n.registry, "proxima_tunnel_connections_total"); got != 1 {
		t.Errorf("%v handshakes, want 1: the stream was not refused on the pooled connection", got)
	}
}

func TestExpiredCertificateIsRefusedOnItsPooledConnection(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	g := startIngress(t, ca, route(endpoint(t, echo)), nil)
	cert := must(ca.Issue(workload1, 1500*time.Millisecond))
	creds := must(gatewaytest.CredentialsOf(cert, ca.Roots()))
	n := startNode(t, creds, nil, g.peer("west-1"))
	c := n.dial(t)
	exchange(t, c, "valid")
	finish(t, c)
	eventually(t, "the certificate expires", func() bool {
		c := n.dial(t)
		defer c.Close()
		_, _ = c.Write([]byte("x"))
		_, err := c.Read(make([]byte, 1))
		return isReset(err)
	})
	if got := metric(t, g.registry, "proxima_gateway_refused_total", "unauthorized"); got < 1 {
		t.Errorf("%v refusals, want one at OPEN", got)
	}
}

func TestStreamsForOthers(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	g := startIngress(t, ca, route(endpoint(t, echo)), nil)
	const egressID = "spiffe://mesh.example/egress/east"
	g.policy.Asserters = map[string]bool{egressID: true}
	client := tunnel.NewClient(tunnel.Config{Site: "east"})
	defer client.Close()
	for _, c := range []struct {
		peer string
		want frame.Reason
	}{{workload2, frame.Unauthorized}, {egressID, 0}} {
		conn, err := client.Open(context.Background(), tunnel.Request{
			SNI: sni, Peers: []tunnel.Peer{g.peer("west-1")}, Credentials: must(ca.Credentials(c.peer)),
			Stream: frame.Stream{Client: destination, Identity: workload1},
		}, nil)
		var failure *tunnel.OpenError
		switch {
		case c.want == 0 && err != nil:
			t.Errorf("%s: %v", c.peer, err)
		case c.want != 0 && (!errors.As(err, &failure) || failure.Reason != c.want):
			t.Errorf("%s: %v, want %s", c.peer, err, c.want)
		}
		if conn != nil {
			conn.Finish(false)
		}
	}
	if s := g.policy.Streams(); len(s) != 1 || s[0].Stream.Identity != workload1 || s[0].Peer.Identity != egressID {
		t.Errorf("authorized: %+v", s)
	}
}

// TestHandshakesThatFail: a peer of another authority, on either side, and one without
// a SPIFFE ID.
func TestHandshakesThatFail(t *testing.T) {
	ca, other := must(gatewaytest.NewCA()), must(gatewaytest.NewCA())
	g := startIngress(t, ca, route(endpoint(t, echo)), nil)
	trusting := must(other.Credentials(workload1))
	trusting.VerifyPeer = func(tunnel.Peer, tls.ConnectionState) error { return nil }
	for name, creds := range map[string]*tunnel.Credentials{
		"ingress of another authority": must(other.Credentials(workload1)),
		"another ingress":              must(ca.Credentials(workload1, "spiffe://mesh.example/ingress/south")),
		"client of another authority":  trusting,
	} {
		client := tunnel.NewClient(tunnel.Config{Site: "east"})
		_, err := client.Open(context.Background(), tunnel.Request{
			SNI: sni, Peers: []tunnel.Peer{g.peer("west-1")}, Credentials: creds, Stream: frame.Stream{Client: destination},
		}, nil)
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
		client.Close()
	}
	if s := g.policy.Streams(); len(s) != 0 {
		t.Errorf("streams were authorized: %+v", s)
	}
}

// TestRefusedHandshakeCostsNoByte: in TLS 1.3 the client is done, and has sent its
// first bytes, when the server refuses its certificate.
func TestRefusedHandshakeCostsNoByte(t *testing.T) {
	ca, other := must(gatewaytest.NewCA()), must(gatewaytest.NewCA())
	to := endpoint(t, echo)
	refusing, good := startIngress(t, ca, route(to), nil), startIngress(t, ca, route(to), nil)
	refusing.policy.Roots = other.Roots()
	second := good.peer("north-1")
	second.Weight = 0
	n := startNode(t, must(ca.Credentials(workload1)), nil, refusing.peer("west-1"), second)
	for range 10 {
		c := n.dial(t)
		exchange(t, c, strings.Repeat("x", 50_000))
		finish(t, c)
	}
	if got := metric(t, refusing.registry, "proxima_gateway_handshakes_total", "failed"); got != 10 {
		t.Errorf("%v handshakes failed, want 10", got)
	}
}

// keys are ticket keys that a test rotates.
type keys struct {
	mu      sync.Mutex
	keys    map[string][][32]byte
	changed chan struct{}
}

func (k *keys) Keys(address string) ([][32]byte, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys[address], k.changed
}

func (k *keys) set(address string, all ...byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([][32]byte, len(all))
	for i, b := range all {
		list[i] = [32]byte{b}
	}
	k.keys = map[string][][32]byte{address: list}
	if k.changed != nil {
		close(k.changed)
	}
	k.changed = make(chan struct{})
}

// TestTicketKeys: instances behind one advertised address resume each other's
// sessions; the key before the current one opens tickets, those before do not.
func TestTicketKeys(t *testing.T) {
	const advertised = "gateway.example:10001"
	ca := must(gatewaytest.NewCA())
	k := &keys{}
	k.set(advertised, 1)
	to := endpoint(t, echo)
	shared := func(c *server.Config) { c.TicketKeys, c.Advertised = k, advertised }
	one, two := startIngress(t, ca, route(to), shared), startIngress(t, ca, route(to), shared)
	cache := tls.NewLRUClientSessionCache(1)
	cert := must(ca.Issue(workload1, time.Hour))
	connect := func(g *gateway) bool {
		c, err := tls.Dial("tcp", g.addr.String(), &tls.Config{
			ServerName: sni, Certificates: []tls.Certificate{*cert}, ClientSessionCache: cache, NextProtos: []string{frame.ProtocolTunnel},
			InsecureSkipVerify: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		exchange(t, c, "x") // the ticket comes with the answer
		return c.ConnectionState().DidResume
	}
	if connect(one) {
		t.Fatal("the first session was resumed")
	}
	if !connect(two) {
		t.Error("another instance did not resume the session")
	}
	saved, ok := cache.Get(sni)
	if !ok {
		t.Fatal("no session in the cache")
	}
	restore := func() { cache.Put(sni, saved) }
	for rotation, want := range []bool{true, false} {
		if rotation == 0 {
			k.set(advertised, 2, 1)
		} else {
			k.set(advertised, 4, 3, 1) // a third one must not count
		}
		eventually(t, "the keys are used", func() bool { restore(); return connect(one) == want })
	}
}
