//go:build unix

package app

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestMakeDataDir(t *testing.T) {
	root := t.TempDir()
	mode := func(name string, mode os.FileMode) string {
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	shared := mode("tmp", 0o777|os.ModeSticky)
	t.Setenv("TMPDIR", shared)
	for name, c := range map[string]struct {
		dir  string
		left os.FileMode
		want string
	}{
		"new":                      {filepath.Join(root, "a", "b"), 0o700, ""},
		"readable":                 {mode("readable", 0o755), 0o755, ""},
		"volume of a container":    {mode("volume", 0o777), 0o775, ""},
		"tmpfs":                    {mode("tmpfs", 0o777|os.ModeSticky), 0o775, ""},
		"of the packages":          {mode("packages", 0o770|os.ModeSticky), 0o770, ""},
		"directory for temp files": {shared, 0, "files of all users"},
		"/tmp":                     {"/tmp", 0, "files of all users"},
	} {
		err := makeDataDir(c.dir, slog.New(slog.DiscardHandler))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
			continue
		}
		if c.want != "" {
			continue
		}
		if info, err := os.Stat(c.dir); err != nil || info.Mode().Perm() != c.left || strings.HasPrefix(name, "of the") && info.Mode()&os.ModeSticky == 0 {
			t.Errorf("%s: left as %v, %v", name, info.Mode(), err)
		}
	}
}

// TestDataDirOfAnotherUser runs as a user who does not own the directory.
func TestDataDirOfAnotherUser(t *testing.T) {
	if dir := os.Getenv("TEST_DATA_DIR"); dir != "" {
		if err := makeDataDir(dir, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "belongs to user") {
			t.Fatalf("%v", err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be two other users")
	}
	dir, err := os.MkdirTemp("", "proxima-owner-*") // which others can enter
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "test")
	data, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, data, 0o755); err != nil {
		t.Fatal(err)
	}
	theirs := filepath.Join(dir, "theirs")
	for _, err := range []error{os.Chmod(dir, 0o755), os.Mkdir(theirs, 0o777), os.Chown(theirs, 65533, 65533), os.Chmod(theirs, 0o777)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "-test.run=^TestDataDirOfAnotherUser$")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "TEST_DATA_DIR="+theirs, "HOME=/", "TMPDIR=/tmp")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
