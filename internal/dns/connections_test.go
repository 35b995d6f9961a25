package dns

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestIdleConnectionsKeepNobodyOut: connections that ask nothing, or half a question, give way
// to new ones; one that goes on asking stays.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	const most = 16
	s := serve(t, func(c *Config) { c.MaxConnections = most })
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ask := func(c net.Conn) error {
		q := new(dns.Msg)
		q.SetQuestion("web.default.svc.cluster.local.", dns.TypeA)
		conn := &dns.Conn{Conn: c}
		_ = c.SetDeadline(time.Now().Add(tcpIdle / 2)) // before idle ones end by themselves
		if err := conn.WriteMsg(q); err != nil {
			return err
		}
		_, err := conn.ReadMsg()
		return err
	}
	busy := dial()
	var all []net.Conn
	for i := range 2 * most {
		if err := ask(busy); err != nil {
			t.Fatalf("one that asks, beside %d others: %v", i+1, err)
		}
		idle := dial()
		all = append(all, idle)
		if i%2 == 1 {
			if _, err := idle.Write([]byte{0}); err != nil {
				t.Fatal(err)
			}
		}
		if err := ask(dial()); err != nil {
			t.Fatalf("a new one, beside %d others: %v", i+2, err)
		}
	}
	open := 0
	for _, idle := range all {
		_ = idle.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := idle.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	if open > most {
		t.Errorf("%d idle connections are open, want %d at most", open, most)
	}
}
