package netns_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func anonymous(t *testing.T, name string) *netns.NS {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	n, err := netns.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func current(t *testing.T) string {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	id, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestTwoMachinesTalk(t *testing.T) {
	a, b := anonymous(t, "a"), anonymous(t, "b")
	err := netns.Connect(
		netns.End{NS: a, Link: "eth0", Addrs: []netip.Prefix{prefix("192.0.2.1/24"), prefix("2001:db8::1/64")}},
		netns.End{NS: b, Link: "eth0", Addrs: []netip.Prefix{prefix("192.0.2.2/24"), prefix("2001:db8::2/64")}})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"192.0.2.2", "2001:db8::2"} {
		ln, err := b.Listen("tcp", net.JoinHostPort(host, "80"))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if c, err := ln.Accept(); err == nil {
				_, _ = fmt.Fprintln(c, "hello")
				_ = c.Close()
			}
		}()
		c, err := a.DialContext(t.Context(), "tcp", net.JoinHostPort(host, "80"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); string(got) != "hello\n" || err != nil {
			t.Errorf("%s said %q, %v", host, got, err)
		}
		_, _ = c.Close(), ln.Close()
	}
	// A link that is cut carries nothing, and there is no other way out.
	if err := b.SetLinkUp("eth0", false); err != nil {
		t.Fatal(err)
	}
	if up, err := b.LinkUp("eth0"); up || err != nil {
		t.Errorf("link that is down: up=%v, %v", up, err)
	}
	if c, err := b.DialContext(t.Context(), "udp", "192.0.2.1:1"); err == nil {
		_ = c.Close()
		t.Error("there is a way out without a link")
	}
}

func TestBridgeAndRoutes(t *testing.T) {
	router, left, right := anonymous(t, "router"), anonymous(t, "left"), anonymous(t, "right")
	steps := []error{
		router.AddBridge("br0", prefix("192.0.2.1/24")),
		router.AddBridge("br1", prefix("198.51.100.1/24")),
		netns.Connect(netns.End{NS: left, Link: "eth0", Addrs: []netip.Prefix{prefix("192.0.2.2/24")}}, netns.End{NS: router, Link: "left", Bridge: "br0"}),
		netns.Connect(netns.End{NS: right, Link: "eth0", Addrs: []netip.Prefix{prefix("198.51.100.2/24")}}, netns.End{NS: router, Link: "right", Bridge: "br1"}),
		left.AddRoute(prefix("0.0.0.0/0"), netip.MustParseAddr("192.0.2.1")),
		right.AddRoute(prefix("0.0.0.0/0"), netip.MustParseAddr("198.51.100.1")),
		router.SetSysctl("net.ipv4.ip_forward", "1"),
	}
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	if v, err := router.Sysctl("net.ipv4.ip_forward"); v != "1" || err != nil {
		t.Errorf("ip_forward is %q, %v", v, err)
	}
	server, err := right.ListenPacket("udp", "198.51.100.2:53")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := left.DialContext(t.Context(), "udp", "198.51.100.2:53")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	if _, from, err := server.ReadFrom(make([]byte, 10)); err != nil || from.(*net.UDPAddr).IP.String() != "192.0.2.2" {
		t.Errorf("datagram from %v, %v", from, err)
	}
}

const (
	// answers is how long a refusal may take: several retransmissions of a SYN, on a busy machine.
	answers = 10 * time.Second
	// silence without one is taken for no answer at all.
	silence = 300 * time.Millisecond
)

// refused reports whether a connection is, within a time.
func refused(t *testing.T, from *netns.NS, to string, within time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	_, err := from.DialContext(ctx, "tcp", to)
	return errors.Is(err, syscall.ECONNREFUSED)
}

// TestBlock: a router drops what goes between two ranges, and nothing else.
func TestBlock(t *testing.T) {
	router := anonymous(t, "router")
	steps := []error{router.SetSysctl("net.ipv4.ip_forward", "1"), router.SetSysctl("net.ipv6.conf.all.forwarding", "1")}
	hosts := map[string]*netns.NS{}
	for i, name := range []string{"a", "b", "c"} {
		host := anonymous(t, name)
		hosts[name] = host
		addr := func(n int) []netip.Prefix {
			return []netip.Prefix{prefix(fmt.Sprintf("192.0.%d.%d/24", i+1, n)), prefix(fmt.Sprintf("2001:db8:%d::%d/64", i+1, n))}
		}
		steps = append(steps,
			netns.Connect(netns.End{NS: router, Link: name, Addrs: addr(1)}, netns.End{NS: host, Link: "eth0", Addrs: addr(2)}),
			host.AddRoute(prefix("0.0.0.0/0"), addr(1)[0].Addr()), host.AddRoute(prefix("::/0"), addr(1)[1].Addr()))
	}
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	// Nobody listens: an answer is a refusal, none is a timeout.
	reaches := func(from, to string) bool { return refused(t, hosts[from], to, answers) }
	for _, family := range []struct{ a, b, hostB, hostC string }{
		{"192.0.1.0/24", "192.0.2.0/24", "192.0.2.2:9", "192.0.3.2:9"},
		{"2001:db8:1::/64", "2001:db8:2::/64", "[2001:db8:2::2]:9", "[2001:db8:3::2]:9"},
	} {
		a, b := prefix(family.a), prefix(family.b)
		if !reaches("a", family.hostB) {
			t.Fatalf("%s does not reach %s", family.a, family.hostB)
		}
		for range 2 {
			if err := router.Block(a, b); err != nil {
				t.Fatal(err)
			}
		}
		if blocked, err := router.Blocked(b, a); !blocked || err != nil {
			t.Errorf("Blocked: %v, %v", blocked, err)
		}
		if refused(t, hosts["a"], family.hostB, silence) || !reaches("a", family.hostC) || !reaches("c", family.hostB) {
			t.Errorf("%s and %s are not the two that are cut off", family.a, family.b)
		}
		for range 2 {
			if err := router.Unblock(b, a); err != nil {
				t.Fatal(err)
			}
		}
		if blocked, err := router.Blocked(a, b); blocked || err != nil || !reaches("a", family.hostB) {
			t.Errorf("still blocked: %v, %v", blocked, err)
		}
	}
}

func TestDoComesBack(t *testing.T) {
	n := anonymous(t, "n")
	here := current(t)
	boom := errors.New("boom")
	err := n.Do(func() error {
		there := current(t)
		if there == here {
			t.Error("Do did not enter the namespace")
		}
		_ = n.Do(func() error { return nil })
		if current(t) != there {
			t.Error("nested Do left its surroundings")
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Errorf("Do returned %v", err)
	}
	done := make(chan struct{})
	go func() { // as testing's Fatal ends a goroutine
		defer close(done)
		defer func() {
			if current(t) != here {
				t.Error("Goexit left the thread in the namespace")
			}
		}()
		_ = n.Do(func() error { runtime.Goexit(); return nil })
	}()
	<-done
	if current(t) != here {
		t.Error("Do did not come back")
	}
}

func TestNamesLiveUntilRemoved(t *testing.T) {
	anonymous(t, "probe")
	name := fmt.Sprintf("pxtest-%d-named", os.Getpid())
	n, err := netns.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netns.Remove(name) })
	if _, err := netns.Create(name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a taken name: %v", err)
	}
	if err := n.AddBridge("br0"); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := netns.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if links, err := again.Links(); err != nil || !slices.Contains(links, "br0") {
		t.Errorf("links %v, %v", links, err)
	}
	if names, err := netns.List(name); err != nil || len(names) != 1 {
		t.Errorf("List: %v, %v", names, err)
	}
	for range 2 { // once more is no error
		if err := netns.Remove(name); err != nil {
			t.Error(err)
		}
	}
	if names, err := netns.List(name); err != nil || len(names) != 0 {
		t.Errorf("after Remove: %v, %v", names, err)
	}
	if _, err := netns.Open(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opening what is gone: %v", err)
	}
	// What a creation leaves that was killed half-way.
	if err := os.WriteFile(netns.Dir+"/"+name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := netns.Open(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opening half a name: %v", err)
	}
	if err := netns.Remove(name); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", ".", "..", "a/b"} {
		if _, err := netns.Create(bad); err == nil {
			t.Errorf("name %q is taken", bad)
		}
	}
}

func TestKillHitsThoseInside(t *testing.T) {
	n := anonymous(t, "n")
	start := func(start func(*exec.Cmd) error) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "echo up; exec sleep 60")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = start(cmd)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	inside := start(n.Start)
	outside := start((*exec.Cmd).Start)
	if pids, err := n.Processes(); err != nil || !slices.Equal(pids, []int{inside.Process.Pid}) {
		t.Errorf("processes %v, %v, want %d", pids, err, inside.Process.Pid)
	}
	if err := n.Kill(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := inside.Wait(); err == nil {
		t.Error("the process inside ended by itself")
	}
	if outside.ProcessState != nil || outside.Process.Signal(os.Kill) != nil {
		t.Error("a process outside was hit")
	}
	_ = outside.Wait()
	if pids, err := n.Processes(); err != nil || len(pids) != 0 {
		t.Errorf("processes left: %v, %v", pids, err)
	}
}

// TestBlockNeighbour: two hosts of one switch do not reach each other, and reach others.
func TestBlockNeighbour(t *testing.T) {
	hub := anonymous(t, "hub")
	steps := []error{hub.AddBridge("switch")}
	hosts := map[string]*netns.NS{}
	addr := map[string][]netip.Prefix{}
	for i, name := range []string{"a", "b", "c"} {
		hosts[name] = anonymous(t, name)
		addr[name] = []netip.Prefix{prefix(fmt.Sprintf("192.0.2.%d/24", i+1)), prefix(fmt.Sprintf("2001:db8::%d/64", i+1))}
		steps = append(steps, netns.Connect(netns.End{NS: hosts[name], Link: "eth0", Addrs: addr[name]}, netns.End{NS: hub, Link: name, Bridge: "switch"}))
	}
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	try := func(from, to string, family int, wait time.Duration) bool {
		return refused(t, hosts[from], netip.AddrPortFrom(addr[to][family].Addr(), 9).String(), wait)
	}
	reaches := func(from, to string, family int) bool { return try(from, to, family, answers) }
	for family := range 2 {
		a, b := addr["a"][family].Addr(), addr["b"][family].Addr()
		if !reaches("a", "b", family) {
			t.Fatalf("%s does not reach %s", a, b)
		}
		for range 2 {
			if err := errors.Join(hosts["a"].BlockNeighbour("eth0", b), hosts["b"].BlockNeighbour("eth0", a)); err != nil {
				t.Fatal(err)
			}
		}
		if try("a", "b", family, silence) || try("b", "a", family, silence) || !reaches("a", "c", family) || !reaches("c", "b", family) {
			t.Errorf("%s and %s are not the two that are cut off", a, b)
		}
		for range 2 {
			if err := errors.Join(hosts["a"].UnblockNeighbour("eth0", b), hosts["b"].UnblockNeighbour("eth0", a)); err != nil {
				t.Fatal(err)
			}
		}
		if !reaches("a", "b", family) || !reaches("b", "a", family) {
			t.Errorf("%s and %s are still cut off", a, b)
		}
	}
}
