package files_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/authority/files"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ authority.Source = (*files.Files)(nil)

func write(t *testing.T, path, data string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	cert, key, roots := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")
	f := files.New(cert, key, roots)
	if _, err := f.Load(t.Context()); err == nil {
		t.Error("loaded nothing")
	}
	write(t, cert, "C", 0o644)
	write(t, key, "K", 0o640)
	write(t, roots, "R", 0o644)
	m, err := f.Load(t.Context())
	if err != nil || string(m.Certificate) != "C" || string(m.Key) != "K" || string(m.Roots) != "R" {
		t.Errorf("%+v %v", m, err)
	}
	if m, err := files.New(cert, key, "").Load(t.Context()); err != nil || m.Roots != nil {
		t.Errorf("%+v %v", m, err)
	}
	write(t, key, "K", 0o644)
	if _, err := f.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("a key for everyone: %v", err)
	}
	write(t, key, strings.Repeat("x", 300<<10), 0o600)
	if _, err := f.Load(t.Context()); err == nil {
		t.Error("a key of 300 kB")
	}
}

// TestChanged: a rename of a file, and of a link to its folder as Kubernetes mounts
// Secrets, is noticed.
func TestChanged(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"1", "2"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, d, "tls.crt"), "C"+d, 0o600)
		write(t, filepath.Join(dir, d, "tls.key"), "K"+d, 0o600)
	}
	link := func(target, name string) {
		t.Helper()
		next := filepath.Join(dir, "next")
		if err := os.Symlink(target, next); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("1", "..data")
	link("..data/tls.crt", "tls.crt")
	link("..data/tls.key", "tls.key")
	f := files.New(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), "")
	first := f.Changed()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	await(t, first) // the watch is there
	for _, change := range []func(){
		func() { link("2", "..data") },
		func() {
			write(t, filepath.Join(dir, "new"), "C3", 0o600)
			if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "tls.crt")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		before, err := f.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		changed := f.Changed()
		change()
		for { // the first notification may be of a step before the rename
			await(t, changed)
			changed = f.Changed()
			if m, err := f.Load(t.Context()); err == nil && string(m.Certificate) != string(before.Certificate) {
				break
			}
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := files.New("/nonexistent/a", "/nonexistent/b", "").Run(t.Context()); err == nil {
		t.Error("a folder that is not there is watched")
	}
}

func await(t *testing.T, changed <-chan struct{}) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("no change is noticed")
	}
}
