package ingress_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/gatewaytest"
	"github.com/proxima-mesh/proxima/internal/gateway/ingress"
	"github.com/proxima-mesh/proxima/internal/gateway/proxyproto"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
	"github.com/proxima-mesh/proxima/internal/listener"
)

// dialTLS connects to the ingress as a program without frames does.
func dialTLS(t *testing.T, g *gateway, cert *tls.Certificate, name string, protocols ...string) (*tls.Conn, error) {
	t.Helper()
	c, err := tls.Dial("tcp", g.addr.String(), &tls.Config{
		ServerName: name, Certificates: []tls.Certificate{*cert}, NextProtos: protocols, InsecureSkipVerify: true,
	})
	if err == nil {
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	}
	return c, err
}

// TestPeerWithoutFrames: bytes in TLS, whose end is close_notify, from a client as
// Envoy is one.
func TestPeerWithoutFrames(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	g := startIngress(t, ca, route(endpoint(t, echo)), nil)
	cert := must(ca.Issue(workload1, time.Hour))
	c, err := dialTLS(t, g, cert, sni, frame.ProtocolTunnel)
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, c, strings.Repeat("x", 100_000))
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		t.Errorf("the end: %q, %v", rest, err)
	}
	// FIN without close_notify is no end.
	ended := make(chan error, 1)
	g.routes.routes[sni] = route(endpoint(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("!"))
		_, err := io.Copy(io.Discard, c)
		ended <- err
	}))
	c, err = dialTLS(t, g, cert, sni, frame.ProtocolTunnel)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = c.NetConn().(*net.TCPConn).CloseWrite()
	if err := <-ended; !isReset(err) {
		t.Errorf("the endpoint's connection ended with %v, want a reset", err)
	}
}

// tlsPeer is the other side of a tunnel without frames, by crypto/tls alone.
func tlsPeer(t *testing.T, ca *gatewaytest.CA, protocol string, handle func(*tls.Conn)) tunnel.Peer {
	t.Helper()
	cert := must(ca.Issue(ingressID, time.Hour))
	at := endpoint(t, func(c *net.TCPConn) {
		s := tls.Server(c, &tls.Config{
			Certificates: []tls.Certificate{*cert}, NextProtos: []string{protocol}, ClientAuth: tls.RequireAnyClientCert,
		})
		if s.Handshake() == nil {
			handle(s)
		}
	})
	return tunnel.Peer{Name: "plain", Address: at, Site: "west", Weight: 1}
}

func TestIngressWithoutFrames(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	peer := tlsPeer(t, ca, frame.ProtocolTunnel, func(c *tls.Conn) {
		_, _ = io.Copy(struct{ io.Writer }{c}, c)
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c.NetConn())
	})
	n := startNode(t, must(ca.Credentials(workload1)), nil, peer)
	c := n.dial(t)
	exchange(t, c, strings.Repeat("x", 300_000))
	finish(t, c)
}

// TestTruncationIsAReset: as TestKilledIngressIsAReset, for a peer without frames.
func TestTruncationIsAReset(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	peer := tlsPeer(t, ca, frame.ProtocolTunnel, func(c *tls.Conn) {
		_, _ = c.Write([]byte("half an ans"))
		_ = c.NetConn().(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c.NetConn())
	})
	n := startNode(t, must(ca.Credentials(workload1)), nil, peer)
	expectReset(t, n.dial(t))
}

// TestOpenAndFirstBytesAreOneRecord, and nothing else is sent before the answer.
func TestOpenAndFirstBytesAreOneRecord(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	first := make(chan []byte, 1)
	peer := tlsPeer(t, ca, frame.ProtocolFrames, func(c *tls.Conn) {
		b := make([]byte, 64<<10)
		n, _ := c.Read(b) // crypto/tls returns one record at most
		first <- b[:n]
	})
	n := startNode(t, must(ca.Credentials(workload1)), nil, peer)
	c := n.dial(t)
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	record := <-first
	var d frame.Decoder
	typ, _, k, err := d.Next(record)
	if err != nil || typ != frame.Open {
		t.Fatalf("%s, %v", typ, err)
	}
	typ, data, k2, err := d.Next(record[k:])
	if err != nil || typ != frame.Data || string(data) != "hello" || k+k2 != len(record) {
		t.Errorf("%s %q, %v after OPEN, and %d bytes more", typ, data, err, len(record)-k-k2)
	}
}

// TestBreakWithoutAnswerIsNeverRepeated: the peer may have acted on what it received.
func TestBreakWithoutAnswerIsNeverRepeated(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	got := make(chan struct{}, 4)
	peer := tlsPeer(t, ca, frame.ProtocolFrames, func(c *tls.Conn) {
		_, _ = c.Read(make([]byte, 64<<10))
		got <- struct{}{}
	})
	other := startIngress(t, ca, route(endpoint(t, echo)), nil)
	second := other.peer("north-1")
	second.Weight = 0
	n := startNode(t, must(ca.Credentials(workload1)), nil, peer, second)
	c := n.dial(t)
	_, _ = c.Write([]byte("once"))
	expectReset(t, c)
	<-got
	eventually(t, "it is counted", func() bool { return metric(t, n.registry, "proxima_tunnel_resets_total", "broken") == 1 })
	if s := other.policy.Streams(); len(s) != 0 {
		t.Errorf("the stream was opened again: %+v", s)
	}
}

func TestPassthrough(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	g := startIngress(t, ca, route(), nil)
	const id = "spiffe://mesh.example/ns/default/sa/web"
	cert := must(ca.Issue(id, time.Hour))
	g.routes.pass["web.mesh"] = route(endpoint(t, func(c *net.TCPConn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2", "proxima"}})
		_, _ = io.Copy(struct{ io.Writer }{s}, s)
		_ = s.CloseWrite()
		_ = c.CloseWrite()
	}))
	for _, protocols := range [][]string{{"proxima"}, {"h2"}, nil} {
		c, err := dialTLS(t, g, must(ca.Issue(workload1, time.Hour)), "web.mesh", protocols...)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.ConnectionState().PeerCertificates[0].URIs[0].String(); got != id {
			t.Errorf("TLS ends at %s, want %s", got, id)
		}
		exchange(t, c, "hello")
		// Enough for splice.
		go func() { _, _ = c.Write(bytes.Repeat([]byte("y"), 8<<20)); _ = c.CloseWrite() }()
		if n, err := io.Copy(io.Discard, c); n != 8<<20 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
	if _, err := dialTLS(t, g, cert, "unknown.mesh", "proxima"); err == nil {
		t.Error("an unknown name is passed through")
	}
	eventually(t, "it is counted", func() bool {
		return metric(t, g.registry, "proxima_gateway_handshakes_total", "passthrough") == 3 &&
			metric(t, g.registry, "proxima_gateway_refused_total", "no-route") == 1
	})
	eventually(t, "no buffer is held", func() bool { return g.buffers.InUse() == 0 })
}

// TestProxyProtocol: the header comes before everything, also to an endpoint that
// sends first, and has what OPEN had.
func TestProxyProtocol(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	received := make(chan []byte, 1)
	to := endpoint(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		received <- b
	})
	g := startIngress(t, ca, ingress.Route{Endpoints: []netip.AddrPort{to}, ProxyProtocol: true}, nil)
	n := startNode(t, must(ca.Credentials(workload1)), nil, g.peer("west-1"))
	c := n.dial(t)
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	finish(t, c)
	want := must(proxyproto.Append(nil, proxyproto.Header{
		Source: addrPort(c.LocalAddr()), Destination: destination, Node: "node-1", Identity: workload1,
	}))
	if got := <-received; !bytes.Equal(got, append(want, "hello"...)) {
		t.Errorf("the endpoint received %q, want the header %q and the data", got, want)
	}
}

// TestListenerBoundsConnections: the listener of the product is used as it is, and
// gets its slots back however connections end.
func TestListenerBoundsConnections(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	g := startIngress(t, ca, route(endpoint(t, echo)), nil)
	limited := listener.Limit(listen(t), listener.Config{Name: "test", MaxConnections: 2})
	served := make(chan error, 1)
	go func() { served <- g.Serve(limited) }()
	g.addr = addrPort(limited.Addr())
	n := startNode(t, must(ca.Credentials(workload1)), func(c *tunnel.Config) {
		c.MaxIdle, c.IdleTimeout = 1, time.Millisecond
	}, g.peer("west-1"))
	for range 8 {
		clean, aborted := n.dial(t), n.dial(t)
		exchange(t, clean, "x")
		exchange(t, aborted, "x")
		finish(t, clean)
		_ = aborted.SetLinger(0)
		aborted.Close()
	}
	g.shutdown()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestTLSToEndpoints: TLS that ends at the ingress is begun anew with the proxy of an endpoint. An
// endpoint that is not whom it should be gets nothing.
func TestTLSToEndpoints(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	cert := must(ca.Issue(ingressID, time.Hour))
	seen := make(chan string, 1)
	to := endpoint(t, func(c *net.TCPConn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{frame.ProtocolProxy}, ClientAuth: tls.RequireAnyClientCert})
		if s.Handshake() != nil {
			return
		}
		seen <- s.ConnectionState().NegotiatedProtocol + " " + s.ConnectionState().ServerName + " " + s.ConnectionState().PeerCertificates[0].URIs[0].String()
		_, _ = io.Copy(struct{ io.Writer }{s}, s)
		_ = s.CloseWrite()
		_ = c.CloseWrite()
	})
	var refuse error
	g := startIngress(t, ca, ingress.Route{Endpoints: []netip.AddrPort{to}, TLS: &tls.Config{
		ServerName: sni, NextProtos: []string{frame.ProtocolProxy}, Certificates: []tls.Certificate{*cert}, InsecureSkipVerify: true,
		VerifyConnection: func(tls.ConnectionState) error { return refuse },
	}}, nil)
	for _, protocol := range []string{frame.ProtocolTunnel, frame.ProtocolFrames} {
		var c interface {
			io.ReadWriteCloser
			CloseWrite() error
		}
		if protocol == frame.ProtocolTunnel {
			c = must(dialTLS(t, g, must(ca.Issue(workload1, time.Hour)), sni, protocol))
		} else {
			c = startNode(t, must(ca.Credentials(workload1)), nil, g.peer("west-1")).dial(t)
		}
		text := strings.Repeat("x", 100_000)
		go func() { _, _ = io.WriteString(c, text); _ = c.CloseWrite() }()
		if got, err := io.ReadAll(c); err != nil || string(got) != text {
			t.Errorf("%s: %d bytes, %v", protocol, len(got), err)
		}
		if got, want := <-seen, frame.ProtocolProxy+" "+sni+" "+ingressID; got != want {
			t.Errorf("%s: the endpoint sees %q, want %q", protocol, got, want)
		}
	}
	refuse = errors.New("somebody else")
	n := startNode(t, must(ca.Credentials(workload1)), nil, g.peer("west-1"))
	expectReset(t, n.dial(t))
	eventually(t, "no buffer is held", func() bool { return g.buffers.InUse() == 0 })
}
