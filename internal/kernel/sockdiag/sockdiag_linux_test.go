package sockdiag_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/proxima-mesh/proxima/internal/kernel/sockdiag"
)

// TestConnections counts connections from both ends' view: those of the endpoint count, those
// to it do not, and closed ones neither. A socket of IPv6 carries IPv4 in one of the cases.
func TestConnections(t *testing.T) {
	for _, tc := range []struct{ listen, dial string }{
		{"127.0.0.1:0", "127.0.0.1"},
		{"[::1]:0", "::1"},
		{":0", "127.0.0.1"},
	} {
		t.Run(tc.listen, func(t *testing.T) {
			l, err := net.Listen("tcp", tc.listen)
			if err != nil {
				t.Skipf("this machine has no such address: %v", err)
			}
			defer l.Close()
			at := netip.AddrPortFrom(netip.MustParseAddr(tc.dial), uint16(l.Addr().(*net.TCPAddr).Port))
			want := func(n int) {
				t.Helper()
				found, err := sockdiag.Connections(map[netip.AddrPort]bool{at: true})
				if err != nil {
					t.Fatal(err)
				}
				if found[at] != n || len(found) > 1 {
					t.Fatalf("found %v, want %d at %s", found, n, at)
				}
			}
			want(0)
			var clients, servers []net.Conn
			for range 2 {
				c, err := net.Dial("tcp", at.String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				s, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				clients, servers = append(clients, c), append(servers, s)
			}
			want(2)
			clients[0].Close()
			_, _ = servers[0].Read(make([]byte, 1)) // the client has closed
			want(2)                                 // the server has not
			servers[0].Close()
			servers[1].Close()
			_, _ = clients[1].Read(make([]byte, 1))
			clients[1].Close()
			want(0)
		})
	}
}
