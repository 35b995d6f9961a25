package app

import (
	"encoding/json"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
)

// TestOpenConnections counts what is open at the endpoints that are asked for, whichever way
// sees it, and nothing else.
func TestOpenConnections(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("connections are counted on Linux only")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 2 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	at := netip.MustParseAddrPort(l.Addr().String())
	mapped := netip.AddrPortFrom(netip.AddrFrom16(at.Addr().As16()), at.Port())
	question, err := json.Marshal([]netip.AddrPort{mapped, netip.MustParseAddrPort("192.0.2.1:80")})
	if err != nil {
		t.Fatal(err)
	}
	open, err := openConnections(question)
	if err != nil || len(open) != 1 || open[at] != 2 {
		t.Errorf("%v, %v; want 2 at %s", open, err, at)
	}
	if _, err := openConnections([]byte(`["nowhere"]`)); err == nil || !strings.Contains(err.Error(), "read the endpoints") {
		t.Errorf("a question that cannot be read: %v", err)
	}
}

// FuzzOpenConnections: whatever a control plane asks, the agent answers or refuses.
func FuzzOpenConnections(f *testing.F) {
	f.Add([]byte(`["10.0.0.1:80","[fd00::1]:443"]`))
	f.Add([]byte(`["10.0.0.1"]`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, question []byte) {
		open, err := openConnections(question)
		if err == nil && len(open) > len(question) {
			t.Errorf("%d endpoints for a question of %d bytes", len(open), len(question))
		}
	})
}
