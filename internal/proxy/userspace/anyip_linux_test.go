package userspace_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/proxytest"
	"github.com/proxima-mesh/proxima/internal/proxy/userspace"
)

// inNamespace runs the calling test once more, in a process with a network
// namespace of its own, and reports whether this is that process. A thread of
// its own would not do: connections are made on whichever thread is free.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const inside = "PROXIMA_TEST_IN_NAMESPACE"
	if os.Getenv(inside) == t.Name() {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Skipf("cannot make a network namespace: %v", err)
	}
	if err != nil {
		t.Errorf("in the namespace: %v\n%s", err, out)
	}
	t.Logf("in the namespace:\n%s", out)
	return false
}

// loopback brings lo up and gives it addresses.
func loopback(t *testing.T, addrs ...netip.Addr) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(lo, addr); err != nil {
			t.Fatalf("adding %s: %v", a, err)
		}
	}
}

func localRoutes(t *testing.T, p netip.Prefix) int {
	t.Helper()
	family := netlink.FAMILY_V4
	if p.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	dst := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	found, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Dst: dst},
		netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

func testContractRouted(t *testing.T, cidr, endpoints string) {
	if !inNamespace(t) {
		return
	}
	var hosts []netip.Addr
	for i := range 8 {
		hosts = append(hosts, netip.MustParseAddr(fmt.Sprint(endpoints, i+1)))
	}
	loopback(t, hosts...)
	prefix := netip.MustParsePrefix(cidr)
	proxytest.Run(t, proxytest.Env{
		New: func(t *testing.T) proxy.Mode {
			t.Cleanup(func() {
				if n := localRoutes(t, prefix); n != 0 {
					t.Errorf("%d routes left after Close", n)
				}
			})
			return newMode(t, userspace.Options{LocalRanges: []netip.Prefix{prefix}})
		},
		VIP: func(i int) netip.Addr {
			b := prefix.Addr().AsSlice()
			b[len(b)-2], b[len(b)-1] = byte(i>>8+1), byte(i)
			a, _ := netip.AddrFromSlice(b)
			return a
		},
		Endpoint: func(i int) netip.Addr { return hosts[i] },
		Node:     hosts[0],
	})
}

func TestContractRoutedIPv4(t *testing.T) { testContractRouted(t, "10.96.0.0/16", "192.0.2.") }
func TestContractRoutedIPv6(t *testing.T) { testContractRouted(t, "fd00:96::/108", "2001:db8::") }

func TestRoutesOfOthersAreLeftAlone(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	loopback(t)
	prefix := netip.MustParsePrefix("10.96.0.0/16")
	opts := userspace.Options{LocalRanges: []netip.Prefix{prefix}}

	crashed := newMode(t, opts)
	next := newMode(t, opts) // takes over what a crashed process left
	if err := next.Close(t.Context()); err != nil || localRoutes(t, prefix) != 0 {
		t.Errorf("route of a crashed process: %v, %d left", err, localRoutes(t, prefix))
	}
	if err := crashed.Close(t.Context()); err != nil {
		t.Errorf("removing a route that is gone: %v", err)
	}

	killed := newMode(t, opts)
	if err := userspace.Cleanup(); err != nil || localRoutes(t, prefix) != 0 {
		t.Errorf("route of a killed process: %v, %d left by the clean-up", err, localRoutes(t, prefix))
	}
	if err := killed.Close(t.Context()); err != nil {
		t.Error(err)
	}

	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	foreign := &netlink.Route{
		LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
		Dst: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(16, 32)},
	}
	if err := netlink.RouteAdd(foreign); err != nil {
		t.Fatal(err)
	}
	m := newMode(t, opts)
	if err := errors.Join(m.Close(t.Context()), userspace.Cleanup()); err != nil || localRoutes(t, prefix) != 1 {
		t.Errorf("route of another program: %v, %d left", err, localRoutes(t, prefix))
	}
}

// TestRangesChange: a range that comes while the mode runs carries a Service that
// could not be served before, and its route goes with it.
func TestRangesChange(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	loopback(t)
	first, second := netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("10.97.0.0/24")
	m := newMode(t, userspace.Options{LocalRanges: []netip.Prefix{first}})
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	go func() {
		for {
			conn, err := backend.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	name := proxy.PortName{ServiceName: proxy.ServiceName{Namespace: "default", Name: "web"}, Port: "http"}
	state := &proxy.PortState{
		Name:    name,
		Service: &proxy.Service{Name: name.ServiceName, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.97.0.7")}},
		Port:    proxy.Port{Name: "http", Protocol: proxy.TCP, Port: 80},
		IPv4:    proxy.Choice{Cluster: []proxy.Target{{Addr: backend.Addr().(*net.TCPAddr).AddrPort(), Weight: 1}}},
	}
	change := []proxy.Change{{Name: name, State: state}}
	var failed *proxy.PortError
	if err := m.Apply(t.Context(), change); !errors.As(err, &failed) {
		t.Fatalf("an address that is not routed here: %v, want a PortError", err)
	}
	listens := func() bool {
		conn, err := net.DialTimeout("tcp", "10.97.0.7:80", time.Second)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}
	for range 2 {
		if err := m.SetRanges([]netip.Prefix{first, second, netip.MustParsePrefix("127.96.0.0/16")}); err != nil {
			t.Fatal(err)
		}
	}
	if !listens() {
		t.Error("the Service is not served, though its range is routed")
	}
	if err := m.Apply(t.Context(), change); err != nil {
		t.Error(err)
	}
	if err := m.SetRanges([]netip.Prefix{first}); err != nil {
		t.Fatal(err)
	}
	if a, b := localRoutes(t, first), localRoutes(t, second); a != 1 || b != 0 {
		t.Errorf("%d and %d routes, want 1 and 0", a, b)
	}
	if err := m.Close(t.Context()); err != nil || localRoutes(t, first) != 0 {
		t.Errorf("close: %v, %d routes are left", err, localRoutes(t, first))
	}
	if err := m.SetRanges([]netip.Prefix{second}); !errors.Is(err, userspace.ErrClosed) || localRoutes(t, second) != 0 {
		t.Errorf("after Close: %v", err)
	}
}
