package netns_test

import (
	"os"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

func TestNetworkOfATest(t *testing.T) {
	a, b, c := netns.New(t, "client"), netns.New(t, "router-with-a-long-name"), netns.New(t, "server")
	netns.Connect(a, b, [2]string{"192.0.2.1/24", "192.0.2.2/24"}, [2]string{"2001:db8:1::1/64", "2001:db8:1::2/64"})
	netns.Connect(b, c, [2]string{"198.51.100.1/24", "198.51.100.2/24"}, [2]string{"2001:db8:2::1/64", "2001:db8:2::2/64"})
	b.Forward()
	a.Route("0.0.0.0/0", "192.0.2.2")
	a.Route("::/0", "2001:db8:1::2")
	c.Route("192.0.2.0/24", "198.51.100.1")
	c.Route("2001:db8:1::/64", "2001:db8:2::1")
	c.Addr("lo", "203.0.113.1/32")
	a.Set("net.ipv4.ping_group_range", "0 0")
	for _, host := range []string{"198.51.100.2", "2001:db8:2::2"} {
		ln, err := c.Listen("tcp", "["+host+"]:80")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		a.Dial("tcp", "["+host+"]:80")
	}
	inside, _ := os.Readlink("/proc/self/ns/net")
	if got := strings.TrimSpace(a.Run("readlink", "/proc/self/ns/net")); got == inside || got == "" {
		t.Errorf("the command ran in %q, and this test is in %q", got, inside)
	}
}

func TestNothingIsLeft(t *testing.T) {
	var n *netns.NS
	t.Run("inner", func(t *testing.T) { n = netns.New(t, "inner") })
	if err := n.Do(func() error { return nil }); err == nil {
		t.Error("the namespace is still there after its test")
	}
}
