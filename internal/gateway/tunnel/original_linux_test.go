package tunnel

import (
	"net"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// TestOriginalDestination: connections to virtual addresses that a real kernel
// redirects, of both families.
func TestOriginalDestination(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	ns := netns.New(t, "tunnel")
	ns.Run("ip", "route", "add", "local", "240.0.0.0/4", "dev", "lo")
	ns.Run("ip", "-6", "route", "add", "local", "fd00:240::/64", "dev", "lo")
	ns.Run("nft", `add table inet test; add chain inet test out { type nat hook output priority -100; };
		add rule inet test out ip daddr 240.0.0.0/4 tcp dport 80 redirect to :10003;
		add rule inet test out ip6 daddr fd00:240::/64 tcp dport 80 redirect to :10003`)
	for _, c := range []struct{ listen, to string }{
		{"127.0.0.1:10003", "240.0.0.7:80"}, {"[::1]:10003", "[fd00:240::7]:80"},
	} {
		l, err := ns.Listen("tcp", c.listen)
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan net.Conn, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				t.Error(err)
			}
			accepted <- conn
		}()
		ns.Dial("tcp", c.to)
		conn := <-accepted
		if got, err := originalDestination(conn); err != nil || got != netip.MustParseAddrPort(c.to) {
			t.Errorf("%s: %v, %v", c.to, got, err)
		}
		conn.Close()
		l.Close()
	}
	l, err := ns.Listen("tcp", "127.0.0.1:10004")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ns.Dial("tcp", l.Addr().String())
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := originalDestination(conn); err == nil {
		t.Errorf("a connection that was not redirected: %v", got)
	}
}
