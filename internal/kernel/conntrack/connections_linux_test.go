package conntrack_test

import (
	"net"
	"net/netip"
	"testing"
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
