package ingress_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/gatewaytest"
	"github.com/proxima-mesh/proxima/internal/gateway/ingress"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
)

// pair is a node and an ingress in front of one endpoint.
func pair(t testing.TB, handle func(*net.TCPConn)) (*node, *gateway) {
	t.Helper()
	ca := must(gatewaytest.NewCA())
	g := startIngress(t, ca, route(endpoint(t, handle)), nil)
	return startNode(t, must(ca.Credentials(workload1, ingressID)), nil, g.peer("west-1")), g
}

func TestStreamsUseOneConnection(t *testing.T) {
	n, g := pair(t, echo)
	for i := range 5 {
		c := n.dial(t)
		exchange(t, c, fmt.Sprintf("hello %d", i))
		exchange(t, c, "and again")
		finish(t, c)
		eventually(t, "the connection is pooled", func() bool { return metric(t, n.registry, "proxima_tunnel_pool_idle_connections") == 1 })
	}
	if got := metric(t, n.registry, "proxima_tunnel_connections_total"); got != 1 {
		t.Errorf("%v connections, want 1", got)
	}
	if got := metric(t, n.registry, "proxima_tunnel_pool_reused_total"); got != 4 {
		t.Errorf("%v streams reused a connection, want 4", got)
	}
	for _, s := range g.policy.Streams() {
		if s.Peer.Identity != workload1 || s.Stream.Identity != workload1 || s.Stream.Node != "node-1" ||
			s.Stream.Destination != destination || !s.Stream.Client.Addr().IsLoopback() || s.Peer.SNI != sni {
			t.Errorf("the ingress saw %+v", s)
		}
	}
	eventually(t, "idle connections hold no buffer", func() bool { return n.buffers.InUse() == 0 && g.buffers.InUse() == 0 })
}

// TestBulk carries enough for buffers and records to grow, in both directions at the
// same time, in pieces of any size.
func TestBulk(t *testing.T) {
	n, g := pair(t, echo)
	for _, size := range []int{1, 4096, 65536, 1 << 20, 1<<20 + 1, 24 << 20} {
		c := n.dial(t)
		data := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
		want := sha256.Sum256(data)
		var wg sync.WaitGroup
		wg.Go(func() {
			for rest := data; len(rest) > 0; {
				k := min(len(rest), 1+rand.IntN(300_000))
				if _, err := c.Write(rest[:k]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[k:]
			}
			_ = c.CloseWrite()
		})
		got := sha256.New()
		k, err := io.Copy(got, c)
		wg.Wait()
		if err != nil || k != int64(size) || !bytes.Equal(got.Sum(nil), want[:]) {
			t.Fatalf("%d of %d bytes came back, or others: %v", k, size, err)
		}
		eventually(t, "the connection is pooled", func() bool { return metric(t, n.registry, "proxima_tunnel_pool_idle_connections") == 1 })
	}
	eventually(t, "idle connections hold no buffer", func() bool { return n.buffers.InUse() == 0 && g.buffers.InUse() == 0 })
	sent := metric(t, n.registry, "proxima_tunnel_sent_bytes_total")
	if received := metric(t, g.registry, "proxima_gateway_received_bytes_total"); sent != received || sent < 24<<20 {
		t.Errorf("the node sent %v bytes, the ingress received %v", sent, received)
	}
}

func TestHalfClose(t *testing.T) {
	n, _ := pair(t, func(c *net.TCPConn) {
		request, err := io.ReadAll(c)
		_, _ = fmt.Fprintf(c, "%d bytes, %v", len(request), err)
	})
	c := n.dial(t)
	if _, err := c.Write(bytes.Repeat([]byte("x"), 100_000)); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil || string(answer) != "100000 bytes, <nil>" {
		t.Errorf("answer %q, %v", answer, err)
	}
}

// TestEndpointClosesFirst: its end is passed on, and the client may still send.
func TestEndpointClosesFirst(t *testing.T) {
	received := make(chan string, 1)
	n, _ := pair(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("bye"))
		_ = c.CloseWrite()
		rest, _ := io.ReadAll(c)
		received <- string(rest)
	})
	c := n.dial(t)
	if answer, err := io.ReadAll(c); err != nil || string(answer) != "bye" {
		t.Fatalf("%q, %v", answer, err)
	}
	if _, err := c.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := <-received; got != "late" {
		t.Errorf("the endpoint received %q", got)
	}
}

func TestServerFirst(t *testing.T) {
	for _, marked := range []bool{true, false} {
		t.Run(fmt.Sprintf("marked=%v", marked), func(t *testing.T) {
			n, _ := pair(t, func(c *net.TCPConn) {
				_, _ = c.Write([]byte("220 ready"))
				echo(c)
			})
			n.set(func(r *tunnel.Route) { r.ServerFirst = marked })
			c := n.dial(t)
			greeting := make([]byte, 9)
			if _, err := io.ReadFull(c, greeting); err != nil || string(greeting) != "220 ready" {
				t.Fatalf("%q, %v", greeting, err)
			}
			exchange(t, c, "EHLO")
		})
	}
}

func TestEndpointResetIsAReset(t *testing.T) {
	n, g := pair(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 5))
		_ = c.SetLinger(0)
	})
	c := n.dial(t)
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	expectReset(t, c)
	eventually(t, "both sides count it", func() bool {
		return metric(t, n.registry, "proxima_tunnel_resets_total", "endpoint-reset") == 1 &&
			metric(t, g.registry, "proxima_gateway_resets_total", "endpoint-reset") == 1
	})
	if got := metric(t, n.registry, "proxima_tunnel_pool_idle_connections"); got != 0 {
		t.Errorf("%v connections went back to the pool after a reset", got)
	}
}

func TestClientResetIsAReset(t *testing.T) {
	ended := make(chan error, 1)
	n, g := pair(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 5))
		_, _ = c.Write([]byte("!"))
		_, err := io.ReadAll(c)
		ended <- err
	})
	c := n.dial(t)
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = c.SetLinger(0)
	c.Close()
	if err := <-ended; !isReset(err) {
		t.Errorf("the endpoint's connection ended with %v, want a reset", err)
	}
	eventually(t, "the ingress counts it", func() bool { return metric(t, g.registry, "proxima_gateway_resets_total", "client-reset") == 1 })
}

// TestRefusedEndpointCostsNoByte: what the client sent at once arrives whole at the
// endpoint of the next ingress.
func TestRefusedEndpointCostsNoByte(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	received := make(chan int, 1)
	good := startIngress(t, ca, route(endpoint(t, func(c *net.TCPConn) {
		all, _ := io.ReadAll(c)
		received <- len(all)
	})), nil)
	for name, bad := range map[string]ingress.Route{
		"refused": route(unusedAddress(t)), "none": route(), "the ingress itself": route(good.addr),
	} {
		t.Run(name, func(t *testing.T) {
			refusing := startIngress(t, ca, bad, nil)
			if name == "the ingress itself" {
				refusing.routes.routes[sni] = route(refusing.addr)
			}
			first, second := refusing.peer("west-1"), good.peer("north-1")
			second.Weight = 0
			n := startNode(t, must(ca.Credentials(workload1)), nil, first, second)
			c := n.dial(t)
			message := bytes.Repeat([]byte("x"), 60_000)
			if _, err := c.Write(message); err != nil {
				t.Fatal(err)
			}
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(c); err != nil {
				t.Fatal(err)
			}
			if got := <-received; got != len(message) {
				t.Errorf("%d of %d bytes arrived", got, len(message))
			}
			if got := metric(t, n.registry, "proxima_tunnel_retries_total"); got != 1 {
				t.Errorf("%v retries, want 1", got)
			}
			eventually(t, "the refusing connection stays of use", func() bool {
				return metric(t, n.registry, "proxima_tunnel_pool_idle_connections") == 2
			})
		})
	}
}

// unusedAddress refuses connections.
func unusedAddress(t testing.TB) (a netip.AddrPort) {
	t.Helper()
	l := listen(t)
	defer l.Close()
	return addrPort(l.Addr())
}

func TestUnreachablePeerComesLast(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	g := startIngress(t, ca, route(endpoint(t, echo)), nil)
	dead := tunnel.Peer{Name: "dead", Address: unusedAddress(t), Site: "north", Weight: 1 << 20}
	n := startNode(t, must(ca.Credentials(workload1)), nil, dead, g.peer("west-1"))
	for range 5 {
		c := n.dial(t)
		exchange(t, c, "hello")
		finish(t, c)
	}
	if got := metric(t, n.registry, "proxima_tunnel_connections_total", "failed"); got != 1 {
		t.Errorf("%v attempts with the dead peer, want 1: it is suspect afterwards", got)
	}
}

func TestNoPeerIsAReset(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	n := startNode(t, must(ca.Credentials(workload1)), nil, tunnel.Peer{Name: "dead", Address: unusedAddress(t), Site: "north", Weight: 1})
	c := n.dial(t)
	_, _ = c.Write([]byte("x"))
	expectReset(t, c)
	eventually(t, "it is counted", func() bool { return metric(t, n.registry, "proxima_tunnel_resets_total", "unreachable") == 1 })
}

// TestRequestsThatAreRefusedByName have no connection.
func TestRequestsThatAreRefusedByName(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	creds := must(ca.Credentials(workload1))
	client := tunnel.NewClient(tunnel.Config{Site: "east"})
	defer client.Close()
	at := unusedAddress(t)
	peer := func(name string, role tunnel.Role, site string) []tunnel.Peer {
		return []tunnel.Peer{{Name: name, Address: at, Role: role, Site: site}}
	}
	for name, c := range map[string]struct {
		request tunnel.Request
		want    string
	}{
		"node":        {tunnel.Request{Peers: peer("node-2", tunnel.RoleNode, "east"), Credentials: creds}, "from node to node"},
		"in the site": {tunnel.Request{Peers: peer("east-1", tunnel.RoleIngress, "east"), Credentials: creds}, "in this site"},
		"past egress": {
			tunnel.Request{Peers: peer("west-1", tunnel.RoleIngress, "west"), Credentials: creds, EgressOnly: true}, "egress only",
		},
		"nothing":      {tunnel.Request{Credentials: creds}, "no peer"},
		"without cert": {tunnel.Request{Peers: []tunnel.Peer{{Address: at, Site: "west"}}}, "no certificate"},
	} {
		_, err := client.Open(context.Background(), c.request, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestDrain(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	to := endpoint(t, echo)
	old, next := startIngress(t, ca, route(to), nil), startIngress(t, ca, route(to), nil)
	second := next.peer("west-2")
	second.Weight = 0
	n := startNode(t, must(ca.Credentials(workload1)), nil, old.peer("west-1"), second)
	open, pooled := n.dial(t), n.dial(t)
	exchange(t, open, "before")
	exchange(t, pooled, "before")
	finish(t, pooled)
	eventually(t, "one is pooled", func() bool { return metric(t, n.registry, "proxima_tunnel_pool_idle_connections") == 1 })
	drained := make(chan struct{})
	go func() { old.shutdown(); close(drained) }()
	eventually(t, "the pooled connection goes at once", func() bool {
		return metric(t, n.registry, "proxima_tunnel_pool_dropped_total", "stale") == 1
	})
	exchange(t, open, "after")
	c := n.dial(t)
	exchange(t, c, "elsewhere")
	if got := len(next.policy.Streams()); got != 1 {
		t.Errorf("%d streams at the other ingress, want 1", got)
	}
	select {
	case <-drained:
		t.Error("the shutdown did not wait for the open stream")
	default:
	}
	finish(t, open)
	<-drained
}

// TestShutdownEndsWithItsContext: a stream that goes on is reset.
func TestShutdownEndsWithItsContext(t *testing.T) {
	n, g := pair(t, echo)
	c := n.dial(t)
	exchange(t, c, "hello")
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	g.Shutdown(ctx)
	expectReset(t, c)
}

// TestSlowHandshakesHoldNoSlot: clients that send nothing, or a part of the first
// message, do not keep others from theirs, and end with the timeout.
func TestSlowHandshakesHoldNoSlot(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	g := startIngress(t, ca, route(endpoint(t, echo)), func(c *server.Config) {
		c.Handshakes, c.HandshakeTimeout = 1, 2*time.Second
	})
	var slow []net.Conn
	for i := range 4 {
		c := must(net.Dial("tcp", g.addr.String()))
		defer c.Close()
		_, _ = c.Write([]byte{22, 3, 1, 2, 0, 1}[:6*(i%2)])
		slow = append(slow, c)
	}
	eventually(t, "they are accepted", func() bool { return metric(t, g.registry, "proxima_gateway_connections") == 4 })
	n := startNode(t, must(ca.Credentials(workload1)), nil, g.peer("west-1"))
	exchange(t, n.dial(t), "hello")
	for _, c := range slow {
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.Copy(io.Discard, c); err != nil && !isReset(err) {
			t.Errorf("a handshake that makes no progress: %v", err)
		}
	}
	if got := metric(t, g.registry, "proxima_gateway_handshakes_total", "failed"); got != 4 {
		t.Errorf("%v handshakes failed, want 4", got)
	}
}

func TestIdleConnectionsEnd(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	g := startIngress(t, ca, route(endpoint(t, echo)), nil)
	n := startNode(t, must(ca.Credentials(workload1)), func(c *tunnel.Config) {
		c.IdleTimeout, c.MaxIdle = 100*time.Millisecond, 2
	}, g.peer("west-1"))
	var conns []*net.TCPConn
	for range 4 {
		c := n.dial(t)
		exchange(t, c, "hello")
		conns = append(conns, c)
	}
	for _, c := range conns {
		finish(t, c)
	}
	eventually(t, "two are pooled, then none", func() bool {
		return metric(t, n.registry, "proxima_tunnel_pool_dropped_total", "idle") == 2 &&
			metric(t, g.registry, "proxima_gateway_connections") == 0
	})
}

// TestServerEndsIdleConnections: a client that keeps them for too long loses no
// stream, as its parked reader removes what the server has closed.
func TestServerEndsIdleConnections(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	g := startIngress(t, ca, route(endpoint(t, echo)), func(c *server.Config) { c.IdleTimeout = 50 * time.Millisecond })
	n := startNode(t, must(ca.Credentials(workload1)), nil, g.peer("west-1"))
	c := n.dial(t)
	exchange(t, c, "hello")
	finish(t, c)
	eventually(t, "the pool drops it", func() bool { return metric(t, n.registry, "proxima_tunnel_pool_dropped_total", "stale") == 1 })
	c = n.dial(t)
	exchange(t, c, "hello")
}
