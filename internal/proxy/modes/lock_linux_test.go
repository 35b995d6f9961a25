package modes

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy/ebpf"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// testLock is a name of this process's own.
func testLock(t *testing.T) string {
	return fmt.Sprintf("@proxima.dev/test-%d-%s", os.Getpid(), t.Name())
}

func TestLock(t *testing.T) {
	name, log := testLock(t), slog.New(slog.DiscardHandler)
	first, err := takeLock(t.Context(), name, "node n1, data directory /d", time.Minute, log)
	if err != nil {
		t.Fatal(err)
	}
	_, err = takeLock(t.Context(), name, "node n2", 0, log)
	held := new(HeldError)
	if want := fmt.Sprintf("pid %d, node n1, data directory /d", os.Getpid()); !errors.As(err, &held) || held.Holder != want {
		t.Fatalf("a second one: %v, want it held by %s", err, want)
	}
	if !strings.Contains(problem.HintOf(err, ""), "--mode userspace") {
		t.Errorf("no hint in %v", err)
	}
	var said strings.Builder
	got := make(chan error)
	go func() {
		second, err := takeLock(t.Context(), name, "node n2", time.Minute, slog.New(slog.NewTextHandler(&said, nil)))
		second.release()
		got <- err
	}()
	time.AfterFunc(2*lockPause, first.release)
	if err := <-got; err != nil {
		t.Errorf("a waiting one: %v", err)
	}
	if !strings.Contains(said.String(), "node n1") {
		t.Errorf("nothing said while it waited: %s", said.String())
	}
}

// TestLockOfAnotherUser: any user can take the name, which must not stop an agent.
func TestLockOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to act as another user")
	}
	name := testLock(t)
	listening := make(chan net.Listener)
	go func() {
		runtime.LockOSThread() // for good: the thread ends as the user that it became
		const nobody = 65534
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			t.Error(errno)
		}
		l, err := net.Listen("unix", name)
		if err != nil {
			t.Error(err)
		}
		listening <- l
	}()
	other := <-listening
	if t.Failed() {
		t.FailNow()
	}
	defer func() { _ = other.Close() }()
	var said strings.Builder
	l, err := takeLock(t.Context(), name, "node n1", 0, slog.New(slog.NewTextHandler(&said, nil)))
	l.release()
	if err != nil || !strings.Contains(said.String(), "of user 65534") {
		t.Errorf("%v; said %q", err, said.String())
	}
}

// TestOneKernelModePerNamespace: a second agent in a network namespace fails and says who has
// it, with mode auto as well; in another namespace it works, and once the first has ended.
func TestOneKernelModePerNamespace(t *testing.T) {
	ns, other := netns.New(t, "pmod-lock-a"), netns.New(t, "pmod-lock-b")
	make := func(ns *netns.NS, mode, owner string) (m Mode, err error) {
		err = ns.Do(func() (err error) {
			m, err = New(t.Context(), mode, Config{Logger: slog.New(slog.DiscardHandler), Owner: owner, lockTimeout: time.Nanosecond})
			return err
		})
		return m, err
	}
	first, err := make(ns, nftablesName, "node n1")
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{nftablesName, iptablesName, Auto} {
		held := new(HeldError)
		if _, err := make(ns, mode, "node n2"); !errors.As(err, &held) || !strings.HasSuffix(held.Holder, "node n1, mode nftables") {
			t.Errorf("%s beside it: %v", mode, err)
		}
	}
	if err := ns.Do(func() error {
		_, err := Exclusive(t.Context(), "cleanup", slog.New(slog.DiscardHandler))
		return err
	}); !errors.As(err, new(*HeldError)) {
		t.Errorf("clean-up beside it: %v", err)
	}
	apart, err := make(other, nftablesName, "node n3")
	if err != nil {
		t.Fatalf("in another namespace: %v", err)
	}
	_ = apart.Close(t.Context())
	_ = first.Close(t.Context())
	second, err := make(ns, nftablesName, "node n2")
	if err != nil {
		t.Fatalf("after the first: %v", err)
	}
	_ = second.Close(t.Context())
}

// TestHostOnlyNeedsHost: in another network namespace than the host's, nothing would be translated.
func TestHostOnlyNeedsHost(t *testing.T) {
	if err := ebpf.Check(ebpf.Options{}); err != nil {
		t.Skip(err)
	}
	err := netns.New(t, "pmod-host").Do(func() error {
		_, err := New(t.Context(), ebpfName, Config{Logger: slog.New(slog.DiscardHandler), Cgroup: t.TempDir(), HostOnly: true})
		return err
	})
	if p, _ := problem.Of(err); p.Code != problem.Usage || !strings.Contains(err.Error(), "--ebpf-host-only") {
		t.Errorf("%v, want that --ebpf-host-only is refused", err)
	}
}
