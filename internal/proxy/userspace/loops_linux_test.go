package userspace_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/userspace"
)

// mute is an address that takes no connection and refuses none: its socket
// discards whatever arrives.
func mute(t *testing.T) netip.AddrPort {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
		var set error
		err := c.Control(func(fd uintptr) {
			set = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
		})
		return errors.Join(set, err)
	}}
	ln, err := lc.Listen(t.Context(), "tcp4", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// TestMuteEndpointIsGivenUp: the timeout of an attempt leads to the next
// endpoint, and other connections do not wait meanwhile.
func TestMuteEndpointIsGivenUp(t *testing.T) {
	good, dead := echo(t), mute(t)
	m := newMode(t, userspace.Options{ConnectTimeout: 100 * time.Millisecond})
	defer closeNow(t, m)
	vip := netip.MustParseAddrPort("127.96.250.10:8080")
	if err := m.Apply(t.Context(), []proxy.Change{change("a", vip, good, dead)}); err != nil {
		t.Fatal(err)
	}
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() { talk(t, vip) })
	}
	clients.Wait()
	for _, c := range m.Counts() {
		if c.Connections != 16 || c.Retries == 0 || c.Failures != 0 {
			t.Errorf("counts are %+v, want 16 connections, some retries, no failure", c)
		}
	}
}

// TestPolicyOfConnecting: a policy's timeout and number of attempts count, not the mode's own.
func TestPolicyOfConnecting(t *testing.T) {
	first, second, third := mute(t), mute(t), mute(t)
	for name, options := range map[string]userspace.Options{"loop": {}, "portable": userspace.Portable(userspace.Options{})} {
		t.Run(name, func(t *testing.T) {
			options.ConnectTimeout = time.Minute
			m := newMode(t, options)
			defer closeNow(t, m)
			slow, quick := netip.MustParseAddrPort("127.96.250.14:8080"), netip.MustParseAddrPort("127.96.250.15:8080")
			a, b := change("a", slow, first), change("b", quick, first, second, third)
			b.State.ConnectTimeout, b.State.TCPAttempts = 50*time.Millisecond, 2
			if err := m.Apply(t.Context(), []proxy.Change{a, b}); err != nil {
				t.Fatal(err)
			}
			waiting, err := net.Dial("tcp", slow.String()) // for a minute: others do not wait behind it
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = waiting.Close() }()
			c, err := net.Dial("tcp", quick.String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the connection ends by %v, want a reset", err)
			}
			for name, n := range m.Counts() {
				if name.Name == "b" && (n.Retries != 1 || n.Failures != 1) {
					t.Errorf("%+v, want 1 retry and 1 failure", n)
				}
			}
		})
	}
}

// TestCloseWhileConnecting: what still looks for an endpoint is reset with Close.
func TestCloseWhileConnecting(t *testing.T) {
	m := newMode(t, userspace.Options{ConnectTimeout: time.Minute})
	vip := netip.MustParseAddrPort("127.96.250.11:8080")
	if err := m.Apply(t.Context(), []proxy.Change{change("a", vip, mute(t))}); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", vip.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for connections(m) == 0 { // until it is accepted
		time.Sleep(time.Millisecond)
	}
	closeNow(t, m)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v, want a reset", err)
	}
}

func connections(m *userspace.Mode) (n uint64) {
	for _, c := range m.Counts() {
		n += c.Connections
	}
	return n
}

// TestSlowReaderLosesNothing: an endpoint that reads late makes every buffer and
// pipe on the way fill up; others are served meanwhile.
func TestSlowReaderLosesNothing(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	m := newMode(t, userspace.Options{})
	defer closeNow(t, m)
	slow, quick := netip.MustParseAddrPort("127.96.250.12:8080"), netip.MustParseAddrPort("127.96.250.13:8080")
	err = m.Apply(t.Context(), []proxy.Change{
		change("slow", slow, ln.Addr().(*net.TCPAddr).AddrPort()), change("quick", quick, echo(t)),
	})
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp", slow.String())
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = endpoint.Close() }()
	sent := bytes.Repeat([]byte("0123456789abcdef\n"), 2<<20)
	go func() {
		_, _ = client.Write(sent)
		_ = client.Close()
	}()
	for range 20 {
		_ = talk(t, quick).Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = endpoint.SetDeadline(time.Unix(1, 0)) })
	got, err := io.ReadAll(endpoint)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d arrived, or not as they were sent: %v", len(got), len(sent), err)
	}
}

// TestResetAfterHalfClose: a reset that comes when the stream from its side has
// ended still reaches the other side.
func TestResetAfterHalfClose(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	m := newMode(t, userspace.Options{})
	defer closeNow(t, m)
	vip := netip.MustParseAddrPort("127.96.250.14:8080")
	if err := m.Apply(t.Context(), []proxy.Change{change("a", vip, ln.Addr().(*net.TCPAddr).AddrPort())}); err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp", vip.String())
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = endpoint.Close() }()
	_ = endpoint.SetDeadline(time.Now().Add(time.Minute))
	_ = client.(*net.TCPConn).CloseWrite()
	if _, err := endpoint.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("after the client's half-close: %v", err)
	}
	_, _ = endpoint.Write([]byte("never read"))
	buf := make([]byte, 1)
	if _, err := io.ReadFull(client, buf); err != nil { // the rest stays unread
		t.Fatal(err)
	}
	_ = client.(*net.TCPConn).SetLinger(0)
	_ = client.Close()
	// The endpoint neither reads nor writes: only the reset itself shows it.
	if got := awaitError(t, endpoint.(*net.TCPConn)); got != syscall.EPIPE && got != syscall.ECONNRESET {
		t.Errorf("the endpoint's connection got %q, want a reset", got)
	}
}

// awaitError waits until the kernel has an error for a connection that no goroutine
// touches, and returns it; 0: there was none.
func awaitError(t *testing.T, c *net.TCPConn) (got syscall.Errno) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	give := time.Now().Add(time.Minute)
	err = raw.Control(func(fd uintptr) {
		for time.Now().Before(give) {
			// Errors are reported without being asked for (poll(2)).
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, int(time.Until(give).Milliseconds())+1)
			if err != nil && !errors.Is(err, unix.EINTR) {
				t.Error(err)
				return
			}
			if n > 0 {
				code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
				if err != nil {
					t.Error(err)
				}
				got = syscall.Errno(code)
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// says is a server that writes a letter to who connects, and closes.
func says(t *testing.T, letter byte) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte{letter})
			_ = c.Close()
		}
	}()
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// TestClientsOfNamespaces: clients whose namespace has a route of its own are sent where that leads, others are not.
func TestClientsOfNamespaces(t *testing.T) {
	all, own := says(t, 'a'), says(t, 'o')
	for name, options := range map[string]userspace.Options{"loop": {}, "portable": userspace.Portable(userspace.Options{})} {
		t.Run(name, func(t *testing.T) {
			m := newMode(t, options)
			defer closeNow(t, m)
			vip := netip.MustParseAddrPort("127.96.250.16:8080")
			a, b := change("a", vip, all), change("a", vip, own)
			a.State.Consumers = map[string]*proxy.PortState{"front": b.State}
			if err := m.Apply(t.Context(), []proxy.Change{a}); err != nil {
				t.Fatal(err)
			}
			m.SetNamespaces(map[netip.Addr]string{netip.MustParseAddr("127.0.0.5"): "front", netip.MustParseAddr("127.0.0.6"): "back"})
			for from, want := range map[string]string{"127.0.0.5": "o", "127.0.0.6": "a", "127.0.0.7": "a"} {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 20 * time.Second}
				c, err := d.Dial("tcp", vip.String())
				if err != nil {
					t.Fatal(err)
				}
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				if got, err := io.ReadAll(c); string(got) != want {
					t.Errorf("%s is served by %q (%v), want %q", from, got, err, want)
				}
				_ = c.Close()
			}
		})
	}
}
