package sqlite

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const childDisk = "PROXIMA_TEST_SQLITE_DISK"

// TestDisk runs its child, of the same name, in namespaces of its own, where it
// may mount a small disk.
func TestDisk(t *testing.T) {
	if folder := os.Getenv(childDisk); folder != "" {
		smallDisk(t, folder)
		return
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDisk$", "-test.v")
	child.Env = append(os.Environ(), childDisk+"="+t.TempDir())
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := child.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case strings.Contains(string(out), noMount):
		t.Skipf("this system does not allow mounts in a new namespace:\n%s", out)
	case errors.As(err, &exit):
		t.Errorf("%v:\n%s", err, out)
	case err != nil:
		t.Skipf("this system gives no namespaces: %v", err)
	}
	t.Logf("%s", out)
}

const noMount = "mounting is not allowed"

// smallDisk fills a disk of 1 MiB, in a namespace of the process's own.
func smallDisk(t *testing.T, folder string) {
	if err := syscall.Mount("none", folder, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("%s: %v", noMount, err)
	}
	path := filepath.Join(folder, "state.db")
	s := open(t, path)
	filler := filepath.Join(folder, "filler")
	if err := os.WriteFile(filler, make([]byte, 256<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	acknowledged := fill(t, s)
	if err := s.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("ready on a full disk: %v", err)
	}
	if n, err := s.Count(t.Context(), ""); n != acknowledged || err != nil {
		t.Errorf("reading on a full disk: %d keys, %v; want %d", n, err, acknowledged)
	}
	if err := s.Close(); err != nil {
		t.Logf("close: %v", err)
	}

	// A full disk does not keep the state from being opened, nor loses anything.
	s = open(t, path)
	if n, err := s.Count(t.Context(), ""); n != acknowledged || err != nil {
		t.Errorf("reopened: %d keys, %v; want %d", n, err, acknowledged)
	}
	fill(t, s)
	remove(t, filler)
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("not ready with space again: %v", err)
	}
	rev, err := s.Commit(t.Context(), put("more", make([]byte, 8000)))
	if err != nil {
		t.Errorf("commit with space again: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s = open(t, path)
	if now, err := s.Revision(t.Context()); now != rev || err != nil {
		t.Errorf("reopened: revision %d, %v; want %d", now, err, rev)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}

	if err := syscall.Mount("none", folder, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatalf("read-only: %v", err)
	}
	if _, err := Open(t.Context(), path, Options{}); !errors.Is(err, syscall.EROFS) ||
		!strings.Contains(err.Error(), "must exist and be writable") {
		t.Errorf("read-only: %v", err)
	}
}

// fill commits until the disk is full and returns the number of keys.
func fill(t *testing.T, s *Store) int64 {
	t.Helper()
	n, err := s.Count(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for {
		before, err := s.Revision(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		rev, err := s.Commit(t.Context(), put(fmt.Sprintf("k/%d", n), make([]byte, 4000)))
		switch {
		case err == nil && rev == before+1:
			n++
		case err == nil:
			t.Fatalf("revision %d follows %d", rev, before)
		case !strings.Contains(err.Error(), "the disk is full"):
			t.Fatalf("error %v", err)
		default:
			t.Logf("%d keys, then: %v", n, err)
			if now, _ := s.Revision(t.Context()); now != before {
				t.Errorf("a failed commit moved the revision from %d to %d", before, now)
			}
			return n
		}
	}
}
