package conntrack_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestConnections: open connections count at their endpoint, translated or not, and closed
// ones do not.
func TestConnections(t *testing.T) {
	ns, table := world(t, "iptables-legacy -t nat -A OUTPUT -p tcp -d 10.96.0.1 --dport 80 -j DNAT --to-destination 10.7.0.1:8080")
	ns.Run("ip", "route", "add", "10.96.0.0/16", "dev", "lo")
	at := map[netip.AddrPort]bool{}
	listen := func(address string) net.Listener {
		t.Helper()
		l, err := ns.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		at[netip.MustParseAddrPort(address)] = true
		return l
	}
	v4, v6 := listen("10.7.0.1:8080"), listen("[fd07::1]:8080")
	open := func(l net.Listener, to string) (client, server net.Conn) {
		t.Helper()
		client = ns.Dial("tcp", to)
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close(); server.Close() })
		return client, server
	}
	want := func(n4, n6 int) {
		t.Helper()
		got, err := table.Connections(at)
		if err != nil {
			t.Fatal(err)
		}
		if got[netip.MustParseAddrPort("10.7.0.1:8080")] != n4 || got[netip.MustParseAddrPort("[fd07::1]:8080")] != n6 {
			t.Fatalf("%v, want %d and %d", got, n4, n6)
		}
	}
	want(0, 0)
	client, server := open(v4, "10.7.0.1:8080")
	open(v4, "10.96.0.1:80")
	open(v6, "[fd07::1]:8080")
	want(2, 1)
	client.Close()
	_, _ = server.Read(make([]byte, 1)) // it has closed
	want(2, 1)                          // and the server has not
	server.Close()
	_, _ = client.Read(make([]byte, 1))
	want(1, 1)
}

// TestEndUnanswered: a connection that waits for a machine that is gone gets through to another
// one as soon as its flow has been ended. Flows that were answered, or not translated, stay.
func TestEndUnanswered(t *testing.T) {
	ns, table := world(t,
		"iptables-legacy -A INPUT -p tcp -d 10.7.0.2 -j DROP",
		"iptables-legacy -t nat -A OUTPUT -p tcp -d 10.96.0.1 --dport 80 -j DNAT --to-destination 10.7.0.2:8080",
		"iptables-legacy -t nat -A OUTPUT -p tcp -d 10.96.0.2 --dport 80 -j DNAT --to-destination 10.7.0.1:8080")
	ns.Run("ip", "route", "add", "10.96.0.0/16", "dev", "lo")
	l, err := ns.Listen("tcp", "10.7.0.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answered := ns.Dial("tcp", "10.96.0.2:80")
	defer answered.Close()
	dial := func(to string) <-chan error {
		done := make(chan error, 1)
		go func() {
			c, err := ns.DialContext(t.Context(), "tcp", to)
			if err == nil {
				c.Close()
			}
			done <- err
		}()
		return done
	}
	waits, untranslated := dial("10.96.0.1:80"), dial("10.7.0.2:8080")
	at := map[netip.AddrPort]bool{netip.MustParseAddrPort("10.7.0.2:8080"): true, netip.MustParseAddrPort("10.7.0.1:8080"): true}
	testkit.Eventually(t, "both wait", func() bool { return strings.Count(ns.Run("cat", "/proc/net/nf_conntrack"), "SYN_SENT") == 2 })
	ns.Run("iptables-legacy", "-t", "nat", "-R", "OUTPUT", "1", "-p", "tcp", "-d", "10.96.0.1", "--dport", "80", "-j", "DNAT", "--to-destination", "10.7.0.1:8080")
	if n, err := table.EndUnanswered(at); n != 1 || err != nil {
		t.Fatalf("%d ended, %v, want the one that waits", n, err)
	}
	if err := <-waits; err != nil {
		t.Error(err)
	}
	if n := strings.Count(ns.Run("cat", "/proc/net/nf_conntrack"), "ESTABLISHED"); n == 0 {
		t.Error("the connection that was answered has ended")
	}
	select {
	case err := <-untranslated:
		t.Errorf("a connection without translation: %v", err)
	default:
	}
}
