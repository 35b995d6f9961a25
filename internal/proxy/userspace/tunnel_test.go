package userspace_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/userspace"
)

// TestAnnouncesConnectionsToTheTunnel: who the client is, and where it connected to, is
// announced for connections to the tunnel alone.
func TestAnnouncesConnectionsToTheTunnel(t *testing.T) {
	for name, with := range map[string]func(userspace.Options) userspace.Options{
		"loops": func(o userspace.Options) userspace.Options { return o }, "portable": userspace.Portable,
	} {
		t.Run(name, func(t *testing.T) {
			var ends [2]netip.AddrPort
			accepted := make(chan netip.AddrPort, 2)
			for i := range ends {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				ends[i] = l.Addr().(*net.TCPAddr).AddrPort()
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						accepted <- c.RemoteAddr().(*net.TCPAddr).AddrPort()
						_ = c.Close()
					}
				}()
			}
			tunnel, endpoint := ends[0], ends[1]
			front := [2]netip.AddrPort{netip.MustParseAddrPort("127.96.251.8:8080"), netip.MustParseAddrPort("127.96.251.9:8080")}
			m := newMode(t, with(userspace.Options{}))
			defer closeNow(t, m)
			announced := make(chan proxy.Redirected, 2)
			m.AnnounceTo([]netip.AddrPort{tunnel}, func(r proxy.Redirected) { announced <- r })
			if err := m.Apply(t.Context(), []proxy.Change{change("a", front[0], tunnel), change("b", front[1], endpoint)}); err != nil {
				t.Fatal(err)
			}
			for i, at := range front {
				c, err := net.Dial("tcp", at.String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				from := <-accepted
				if i > 0 {
					break
				}
				select {
				case got := <-announced:
					want := proxy.Redirected{From: from, Client: c.LocalAddr().(*net.TCPAddr).AddrPort(), Destination: at}
					if got != want {
						t.Errorf("announced %+v, want %+v", got, want)
					}
				case <-time.After(10 * time.Second):
					t.Fatal("not announced")
				}
			}
			if len(announced) > 0 {
				t.Errorf("a connection to an endpoint is announced: %+v", <-announced)
			}
		})
	}
}
