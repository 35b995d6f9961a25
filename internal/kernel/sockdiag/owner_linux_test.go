package sockdiag

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
)

// TestCgroupOf: the cgroup of a connection's client, of both families; a listener at the
// client's port, and a socket that is closed, are none.
func TestCgroupOf(t *testing.T) {
	h, err := cgroup.Find()
	if err != nil {
		t.Skip(err)
	}
	g, err := h.Create("test-sockdiag", "web")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		t.Run(host, func(t *testing.T) {
			l, err := net.Listen("tcp", host+":0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			at := l.Addr().(*net.TCPAddr).AddrPort()
			// The shell's redirection is the client; it ends when the server closes.
			cmd := exec.CommandContext(t.Context(), "bash", "-c", `exec 3<>"/dev/tcp/$0/$1"; read -r -u 3`, strings.Trim(host, "[]"), l.Addr().String()[strings.LastIndex(l.Addr().String(), ":")+1:])
			g.Start(cmd)
			cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			client := c.RemoteAddr().(*net.TCPAddr).AddrPort()
			number, err := CgroupOf(client, at)
			if err != nil {
				t.Fatal(err)
			}
			if p, err := h.PathOf(number); err != nil || p != g.Path()+"/command" {
				t.Errorf("the client is in %q (%v), want %s/command", p, err, g.Path())
			}
			if number, err := CgroupOf(at, client); err != nil {
				t.Errorf("the server's end: %v", err)
			} else if p, _ := h.PathOf(number); strings.HasPrefix(p, g.Path()) {
				t.Errorf("the server's end is in %q", p)
			}
			// Another remote end: the kernel finds the listener.
			if _, err := CgroupOf(at, netip.AddrPortFrom(at.Addr(), 1)); !errors.Is(err, ErrNoSocket) {
				t.Errorf("a listener: %v", err)
			}
			c.Close()
			_ = cmd.Wait()
			if _, err := CgroupOf(client, at); !errors.Is(err, ErrNoSocket) {
				t.Errorf("a closed socket: %v", err)
			}
		})
	}
}

func FuzzCgroupIn(f *testing.F) {
	f.Add(append(make([]byte, messageSize), 12, 0, cgroupAttr, 0, 1, 2, 3, 4, 5, 6, 7, 8), uint16(0))
	f.Fuzz(func(t *testing.T, answer []byte, port uint16) {
		if _, ok := cgroupIn(answer, port); ok && len(answer) < messageSize+unix.SizeofRtAttr+8 {
			t.Fatal("a number out of nothing")
		}
	})
}
