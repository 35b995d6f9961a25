package atomicfile_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
)

func TestWrite(t *testing.T) {
	for _, c := range []struct {
		name       string
		old        fs.FileMode // 0: there is none
		mode, want fs.FileMode
	}{
		{"new and private", 0, 0o600, 0o600},
		{"new and public", 0, 0o644, 0o644},
		{"new, wider than the umask", 0, 0o666, 0o666},
		{"public file keeps its mode", 0o640, 0o644, 0o640},
		{"private file stays private", 0o600, 0o600, 0o600},
		{"what becomes private is so", 0o644, 0o600, 0o600},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if c.old != 0 {
				if err := errors.Join(os.WriteFile(path, []byte("a longer old content"), 0o600), os.Chmod(path, c.old)); err != nil {
					t.Fatal(err)
				}
			}
			info, err := atomicfile.Replace(path, []byte("new"), c.mode)
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil || string(data) != "new" {
				t.Errorf("content %q, %v", data, err)
			}
			got, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if runtime.GOOS != "windows" && got.Mode().Perm() != c.want {
				t.Errorf("mode %o, want %o", got.Mode().Perm(), c.want)
			}
			if !os.SameFile(info, got) || !info.ModTime().Equal(got.ModTime()) {
				t.Errorf("Replace returned %v for the file, Stat %v", info, got)
			}
			alone(t, path)
		})
	}
}

// alone fails if a folder has more than the file.
func alone(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Errorf("in the folder: %v, %v", entries, err)
	}
}

func TestWriteReplacesLinks(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(target, []byte("old"), 0o600), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(link, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(link)
	data, _ := os.ReadFile(target)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o644 || string(data) != "old" {
		t.Errorf("link is %v, %v; its target has %q", info, err, data)
	}
}

func TestFailuresLeaveTheOldFile(t *testing.T) {
	dir := t.TempDir()
	if err := atomicfile.Write(filepath.Join(dir, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a folder that is not there: %v", err)
	}
	occupied := filepath.Join(dir, "folder") // a folder is in the way of the rename
	if err := os.MkdirAll(filepath.Join(occupied, "within"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := atomicfile.Write(occupied, []byte("new"), 0o600)
	if err == nil || errors.Is(err, atomicfile.ErrNotDurable) || !strings.Contains(err.Error(), occupied) {
		t.Errorf("over a folder: %v", err)
	}
	alone(t, occupied)
}

func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var mu sync.Mutex
	var made []string
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			data := fmt.Sprint(i)
			err := atomicfile.Create(path, []byte(data), 0o644)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made = append(made, data)
			} else if !errors.Is(err, fs.ErrExist) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	data, err := os.ReadFile(path)
	if err != nil || len(made) != 1 || string(data) != made[0] {
		t.Errorf("%v made it, and it has %q (%v)", made, data, err)
	}
	alone(t, path)
}

// TestSweep: what crashed writers left is removed, what others write is not.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	old, young, other := filepath.Join(dir, ".file-1.tmp"), filepath.Join(dir, ".file-2.tmp"), filepath.Join(dir, ".else-1.tmp")
	for _, path := range []string{old, young, other} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	yesterday := time.Now().Add(-24 * time.Hour)
	if err := errors.Join(os.Chtimes(old, yesterday, yesterday), os.Chtimes(other, yesterday, yesterday)); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{".else-1.tmp", ".file-2.tmp", "file"}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
}

// TestOrderOnDisk watches the system calls: the content is synced before the file
// gets its name, and the folder after.
func TestOrderOnDisk(t *testing.T) {
	const inside = "PROXIMA_TEST_ATOMICFILE"
	if path := os.Getenv(inside); path != "" {
		if err := atomicfile.Write(path, []byte("new"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skipf("needs strace: %v", err)
	}
	dir := t.TempDir()
	log := filepath.Join(t.TempDir(), "log")
	cmd := exec.CommandContext(t.Context(), strace, "-f", "-y", "-o", log, "-e", "trace=fsync,fdatasync,rename,renameat,renameat2",
		os.Args[0], "-test.run=^TestOrderOnDisk$")
	cmd.Env = append(os.Environ(), inside+"="+filepath.Join(dir, "file"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("strace does not work here: %v\n%s", err, out)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	for _, m := range regexp.MustCompile(`(?m)^\d+ +(f\w*sync|rename)\w*\((?:\d+<([^>]*)>)?`).FindAllStringSubmatch(string(text), -1) {
		calls = append(calls, m[1]+" "+regexp.MustCompile(`\d{5,}`).ReplaceAllString(strings.TrimPrefix(m[2], dir), "N"))
	}
	if want := []string{"fsync /.file-N.tmp", "rename ", "fsync "}; !slices.Equal(calls, want) {
		t.Errorf("system calls %q, want %q\n%s", calls, want, text)
	}
}
