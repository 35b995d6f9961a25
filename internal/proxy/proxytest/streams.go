package proxytest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// streamCase is a conversation.
type streamCase struct {
	name  string
	needs []Feature
	run   func(*setup)
}

var streamCases = []streamCase{
	{name: "connections survive changes and removal", run: survivesChanges},
	{name: "half-close is carried to the endpoint", run: halfCloseToEndpoint},
	{name: "half-close is carried to the client", run: halfCloseToClient},
	{name: "a reset endpoint resets the client", run: resetReachesClient},
	{name: "a reset client resets the endpoint", run: resetReachesEndpoint},
	{name: "bulk arrives intact in both directions", run: bulkIsIntact},
	{name: "a UDP flow stays with its endpoint until that is gone", run: flowStays},
	{name: "large datagrams pass", run: largeDatagrams},
	{name: "Close ends everything", run: closeEndsEverything},
}

const port = 8080

func (s *setup) serve(proto proxy.Protocol, shares map[int]uint32) {
	s.Helper()
	s.apply(proto, []service{{name: "a", port: port, cluster: shares}})
}

// dial opens a connection to the virtual address. It must not hang.
func (s *setup) dial(network string) net.Conn {
	s.Helper()
	c, err := net.Dial(network, netip.AddrPortFrom(s.vip(0), port).String())
	if err != nil {
		s.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	s.Cleanup(func() { _ = c.Close() })
	return c
}

// listen is an endpoint that a test plays itself; it is added as a backend.
func (s *setup) listen() *net.TCPListener {
	s.Helper()
	ln, err := net.Listen("tcp", net.JoinHostPort(s.env.Endpoint(len(s.backends)).String(), "0"))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = ln.Close() })
	s.backends = append(s.backends, &backend{number: len(s.backends), addr: ln.Addr().(*net.TCPAddr).AddrPort()})
	return ln.(*net.TCPListener)
}

// pair is a connection seen from both ends.
func (s *setup) pair() (client, endpoint *net.TCPConn) {
	s.Helper()
	ln := s.listen()
	s.serve(proxy.TCP, map[int]uint32{0: 1})
	client = s.dial("tcp").(*net.TCPConn)
	endpoint, err := ln.AcceptTCP()
	if err != nil {
		s.Fatal(err)
	}
	_ = endpoint.SetDeadline(time.Now().Add(10 * time.Second))
	s.Cleanup(func() { _ = endpoint.Close() })
	return client, endpoint
}

func (s *setup) exchange(c net.Conn, r *bufio.Reader, text string) string {
	s.Helper()
	if _, err := fmt.Fprintln(c, text); err != nil {
		s.Fatal(err)
	}
	line, err := r.ReadString('\n')
	if err != nil {
		s.Fatalf("after sending %q: %v", text, err)
	}
	return line[:len(line)-1]
}

func survivesChanges(s *setup) {
	s.addBackend(proxy.TCP, false)
	s.addBackend(proxy.TCP, false)
	s.serve(proxy.TCP, map[int]uint32{0: 1})
	c := s.dial("tcp")
	r := bufio.NewReader(c)
	if _, err := r.ReadString('\n'); err != nil {
		s.Fatal(err)
	}
	for _, shares := range []map[int]uint32{{0: 1, 1: 1}, {1: 1}} {
		s.serve(proxy.TCP, shares)
		if got := s.exchange(c, r, "still there?"); got != "still there?" {
			s.Errorf("with endpoints %v got %q", shares, got)
		}
	}
	s.apply(proxy.TCP, nil)
	if got := s.exchange(c, r, "and now?"); got != "and now?" {
		s.Errorf("after the removal of the service got %q", got)
	}
}

func halfCloseToEndpoint(s *setup) {
	client, endpoint := s.pair()
	_, _ = client.Write([]byte("request"))
	_ = client.CloseWrite()
	if got, err := io.ReadAll(endpoint); string(got) != "request" || err != nil {
		s.Fatalf("endpoint got %q, %v", got, err)
	}
	_, _ = endpoint.Write([]byte("answer after the end of the request"))
	_ = endpoint.Close()
	if got, err := io.ReadAll(client); string(got) != "answer after the end of the request" || err != nil {
		s.Errorf("client got %q, %v", got, err)
	}
}

func halfCloseToClient(s *setup) {
	client, endpoint := s.pair()
	_, _ = endpoint.Write([]byte("greeting"))
	_ = endpoint.CloseWrite()
	if got, err := io.ReadAll(client); string(got) != "greeting" || err != nil {
		s.Fatalf("client got %q, %v", got, err)
	}
	_, _ = client.Write([]byte("thanks"))
	_ = client.Close()
	if got, err := io.ReadAll(endpoint); string(got) != "thanks" || err != nil {
		s.Errorf("endpoint got %q, %v", got, err)
	}
}

func resetReachesClient(s *setup) {
	client, endpoint := s.pair()
	_ = endpoint.SetLinger(0)
	_ = endpoint.Close()
	if got, err := io.ReadAll(client); !errors.Is(err, syscall.ECONNRESET) {
		s.Errorf("client read %q, %v, want a reset", got, err)
	}
}

func resetReachesEndpoint(s *setup) {
	client, endpoint := s.pair()
	_ = client.SetLinger(0)
	_ = client.Close()
	if got, err := io.ReadAll(endpoint); !errors.Is(err, syscall.ECONNRESET) {
		s.Errorf("endpoint read %q, %v, want a reset", got, err)
	}
}

func bulkIsIntact(s *setup) {
	s.addBackend(proxy.TCP, false)
	s.serve(proxy.TCP, map[int]uint32{0: 1})
	c := s.dial("tcp").(*net.TCPConn)
	r := bufio.NewReader(c)
	if _, err := r.ReadString('\n'); err != nil {
		s.Fatal(err)
	}
	data := make([]byte, 16<<20)
	rnd := rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(data)
	go func() {
		for rest := data; len(rest) > 0; { // in pieces of changing size
			n := min(len(rest), 1+int(rnd.Uint64()%300_000))
			if _, err := c.Write(rest[:n]); err != nil {
				return // the reader will notice
			}
			rest = rest[n:]
		}
		_ = c.CloseWrite()
	}()
	sum := sha256.New()
	n, err := io.Copy(sum, r)
	if want := sha256.Sum256(data); err != nil || n != int64(len(data)) || !bytes.Equal(sum.Sum(nil), want[:]) {
		s.Errorf("%d bytes came back of %d, or not as they were sent: %v", n, len(data), err)
	}
}

func flowStays(s *setup) {
	for range 3 {
		s.addBackend(proxy.UDP, false)
	}
	shares := map[int]uint32{0: 1, 1: 1, 2: 1}
	s.serve(proxy.UDP, shares)
	c := s.dial("udp")
	who := func() (n int) {
		s.Helper()
		buf := make([]byte, 100)
		if _, err := c.Write([]byte("x")); err != nil {
			s.Fatal(err)
		}
		l, err := c.Read(buf)
		if err != nil {
			s.Fatal(err)
		}
		_, _ = fmt.Sscan(string(buf[:l]), &n)
		return n
	}
	first := who()
	for range 10 {
		if n := who(); n != first {
			s.Fatalf("flow went from endpoint %d to %d", first, n)
		}
	}
	delete(shares, first)
	s.serve(proxy.UDP, shares)
	if n := who(); n == first {
		s.Errorf("flow is still at endpoint %d, which is gone", n)
	}
}

func largeDatagrams(s *setup) {
	s.addBackend(proxy.UDP, false)
	s.serve(proxy.UDP, map[int]uint32{0: 1})
	c := s.dial("udp")
	buf := make([]byte, 64<<10)
	for _, size := range []int{0, 1, 1472, 9000, 60_000} {
		if _, err := c.Write(buf[:size]); err != nil {
			s.Fatalf("sending %d bytes: %v", size, err)
		}
		if n, err := c.Read(buf); n != size+len("0\n") || err != nil {
			s.Fatalf("sent %d bytes, got back %d, %v", size, n, err)
		}
	}
}

func closeEndsEverything(s *setup) {
	s.addBackend(proxy.TCP, false)
	s.serve(proxy.TCP, map[int]uint32{0: 1})
	s.close()
	if err := s.mode.Apply(context.Background(), nil); err == nil {
		s.Error("Apply after Close reports success")
	}
	if err := s.mode.Close(context.Background()); err != nil {
		s.Errorf("closing once more: %v", err)
	}
}
