package ebpf

import (
	"encoding/binary"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// TestPeerIsVIP: getpeername returns the address that was asked for, over generations and restarts, to the socket that asked for
// it alone, and only while the endpoint is its peer.
func TestPeerIsVIP(t *testing.T) {
	inside(t, func(w *world) {
		w.listen(0, 1)
		vips := func(o *Options) { o.PeerIsVIP = true }
		w.close(w.mode)
		w.open(vips)
		w.apply(w.service("api", 0, 0))
		type conn struct {
			what     string
			peer     func() netip.AddrPort
			vip, end netip.AddrPort
		}
		var open []conn
		for _, v6 := range []bool{false, true} {
			c, err := net.Dial("tcp", w.vip(v6, 0).String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			raw, err := c.(*net.TCPConn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, conn{what: w.vip(v6, 0).String(), vip: w.vip(v6, 0), end: netip.AddrPortFrom(podAt(v6, 0), 8080), peer: func() (at netip.AddrPort) {
				if err := raw.Control(func(fd uintptr) { at = peerOf(t, int(fd)) }); err != nil {
					t.Error(err)
				}
				return at
			}})
		}
		mapped, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(mapped) })
		if err := unix.Connect(mapped, &unix.SockaddrInet6{Port: 80, Addr: w.vip(false, 0).Addr().As16()}); err != nil {
			t.Fatal(err)
		}
		open = append(open, conn{"a mapped address", func() netip.AddrPort { return peerOf(t, mapped) }, w.vip(false, 0), netip.AddrPortFrom(podAt(false, 0), 8080)})
		see := func(when string, endpoint bool) {
			t.Helper()
			for _, c := range open {
				want := c.vip
				if endpoint {
					want = c.end
				}
				if at := c.peer(); at != want {
					t.Errorf("%s: %s: the peer is %s, want %s", when, c.what, at, want)
				}
			}
		}
		see("at first", false)
		w.mode.mu.Lock()
		w.mode.generate()
		w.mode.mu.Unlock()
		see("another generation", false)
		w.close(w.mode)
		see("no agent", false)
		w.open(vips)
		w.apply(w.service("api", 0, 0))
		see("another agent", false)
		// A socket that nobody translated, and one that goes on to another peer.
		if at := dial(t, net.Dialer{}, "tcp", open[0].end); at != open[0].end {
			t.Errorf("connected to the endpoint itself: the peer is %s", at)
		}
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(s) })
		direct := &unix.SockaddrInet4{Port: int(open[0].end.Port()), Addr: podAt(false, 1).As4()}
		for _, to := range []*unix.SockaddrInet4{{Port: 80, Addr: w.vip(false, 0).Addr().As4()}, direct} {
			if err := unix.Connect(s, to); err != nil {
				t.Fatal(err)
			}
			want := netip.AddrPortFrom(netip.AddrFrom4(to.Addr), uint16(to.Port))
			if at := peerOf(t, s); at != want {
				t.Errorf("a socket that connects again: the peer is %s, want %s", at, want)
			}
			disconnect(t, s)
		}
		// Another socket takes the place in the ring.
		for _, name := range []string{"peers4", "peers6"} {
			forget(t, w.mode.gen.coll.Maps[name])
		}
		see("65,536 sockets later", true)
		w.close(w.mode)
		w.open(nil)
		w.apply(w.service("api", 0, 0))
		if at := dial(t, net.Dialer{}, "tcp", open[0].vip); at != open[0].end {
			t.Errorf("without the option the peer is %s, want %s", at, open[0].end)
		}
		if left, err := filepath.Glob(filepath.Join(w.bpffs, pinFolder, "*", "*peer*")); err != nil || len(left) > 0 {
			t.Errorf("pins of the option are left: %v, %v", left, err)
		}
	})
}

func peerOf(t *testing.T, fd int) netip.AddrPort {
	t.Helper()
	at, err := unix.Getpeername(fd)
	switch a := at.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	t.Errorf("getpeername: %v, %v", at, err)
	return netip.AddrPort{}
}

// disconnect makes a socket one that can connect to another peer (AF_UNSPEC, connect(2)).
func disconnect(t *testing.T, fd int) {
	t.Helper()
	var none unix.RawSockaddr
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unix.SizeofSockaddrInet4); errno != 0 {
		t.Fatal(errno)
	}
}

// forget who asked, in all entries of a ring.
func forget(t *testing.T, ring *ebpf.Map) {
	t.Helper()
	value := make([]byte, ring.ValueSize())
	for i := range ring.MaxEntries() {
		if err := ring.Lookup(i, value); err != nil {
			t.Fatal(err)
		}
		cookie := value[len(value)-8:]
		if n := binary.NativeEndian.Uint64(cookie); n != 0 {
			binary.NativeEndian.PutUint64(cookie, n+peersSize)
			if err := ring.Update(i, value, ebpf.UpdateAny); err != nil {
				t.Fatal(err)
			}
		}
	}
}
