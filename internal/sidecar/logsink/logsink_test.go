package logsink

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collect lines of one connection.
func collect(t *testing.T, l net.Listener) (net.Conn, *bufio.Scanner) {
	t.Helper()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second)) // a failure shows in the read
	return conn, bufio.NewScanner(conn)
}

// TestLines come in order, over the end of a connection and of the server.
func TestLines(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	s := New(Config{})
	s.Write(address, "one")
	s.Write(address, "two")
	conn, lines := collect(t, l)
	for _, want := range []string{"one", "two"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("%q, want %q", lines.Text(), want)
		}
	}
	// The server ends; lines wait for it.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	to := s.servers[address]
	testkit.Eventually(t, "the end is known", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !to.connected
	})
	s.Write(address, "three")
	if l, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if _, lines = collect(t, l); !lines.Scan() || lines.Text() != "three" {
		t.Fatalf("%q after the server has started again", lines.Text())
	}
	if s.servers[address] != to {
		t.Error("the server has another queue")
	}
	testkit.Eventually(t, "lines are counted", func() bool { sent, dropped := s.Counters(); return sent == 3 && dropped == 0 })
	s.Write(address, "four")
	s.End()
	if !lines.Scan() || lines.Text() != "four" {
		t.Errorf("%q at the end", lines.Text())
	}
	s.Write(address, "five")
	if _, dropped := s.Counters(); dropped != 1 {
		t.Errorf("%d dropped after the end", dropped)
	}
}

// TestBounds: a server that takes nothing costs lines and a queue, and nobody waits for it.
func TestBounds(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	dead := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	line := strings.Repeat("x", 1023)
	begin := time.Now()
	for range 4 * maxQueue / 1024 {
		s.Write(dead, line)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("lines for nobody take %s", took)
	}
	if _, dropped := s.Counters(); dropped < 2*maxQueue/1024 {
		t.Errorf("%d lines dropped", dropped)
	}
	for i := range 2 * maxServers {
		s.Write(fmt.Sprintf("127.0.0.1:%d", i+1), "x")
	}
	s.mu.Lock()
	if n := len(s.servers); n > maxServers {
		t.Errorf("%d servers", n)
	}
	s.mu.Unlock()
	begin = time.Now()
	s.End()
	if took := time.Since(begin); took > 5*lastWords {
		t.Errorf("the end takes %s", took)
	}
	if sent, dropped := s.Counters(); sent != 0 || dropped != 4*maxQueue/1024+2*maxServers {
		t.Errorf("%d sent, %d dropped", sent, dropped)
	}
}
