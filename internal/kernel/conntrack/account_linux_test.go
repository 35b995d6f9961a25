package conntrack

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// TestAccountingWithoutSysctl: the kernel counts bytes, too, where /proc/sys is read-only, as in a
// container; nothing is left in its tables.
func TestAccountingWithoutSysctl(t *testing.T) {
	ns := netns.New(t, "accounting")
	ns.Set("net.netfilter.nf_conntrack_acct", "0")
	table := NewReader(ns.Fd())
	if was, err := table.Counting(); err != nil || was {
		t.Fatalf("before: %v, %v", was, err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: it has mounts of its own, and ends with this function
		done <- ns.Do(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return err
			}
			for _, m := range []struct {
				from, to string
				flags    uintptr
			}{
				{"", "/", unix.MS_PRIVATE | unix.MS_REC},
				{"/proc/sys", "/proc/sys", unix.MS_BIND},
				{"", "/proc/sys", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY},
			} {
				if err := unix.Mount(m.from, m.to, "", m.flags, ""); err != nil {
					return err
				}
			}
			if err := os.WriteFile(accountSysctl, []byte("1"), 0o644); err == nil {
				t.Error("/proc/sys can be written")
			}
			was, err := NewReader(0).Accounting()
			if was {
				t.Error("it was on before")
			}
			return err
		})
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if on, err := table.Counting(); err != nil || !on {
		t.Errorf("after: %v, %v", on, err)
	}
	if rules := ns.Run("nft", "list", "ruleset"); rules != "" {
		t.Errorf("left in the kernel:\n%s", rules)
	}
}
