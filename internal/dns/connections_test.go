package dns

import (
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestIdleConnectionsKeepNobodyOut: connections that ask nothing, or half a question, give way
// to new ones, the oldest first; one that goes on asking stays.
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
	busy, first := dial(), dial()
	if err := ask(first); err != nil {
		t.Fatal(err)
	}
	for i := range 2 * most {
		if err := ask(busy); err != nil {
			t.Fatalf("one that asks, beside %d others: %v", i+1, err)
		}
		idle := dial()
		if i%2 == 1 {
			if _, err := idle.Write([]byte{0}); err != nil {
				t.Fatal(err)
			}
		}
		if err := ask(dial()); err != nil {
			t.Fatalf("a new one, beside %d others: %v", i+2, err)
		}
	}
	if err := ask(first); err == nil {
		t.Error("the connection that was idle longest is still open")
	}
}
