package build_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/tools/release/build"
)

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.test"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_COMMITTER_DATE=2030-01-02T03:04:05Z")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

func TestRead(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "")
	dir := t.TempDir()
	if _, err := build.Read(t.Context(), dir, "v1.2.3"); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
		t.Errorf("without git: %v", err)
	}
	if _, err := build.Read(t.Context(), dir, "1.2.3"); err == nil || !strings.Contains(err.Error(), "begins with v") {
		t.Errorf("a version without v: %v", err)
	}
	git(t, dir, "init", "--quiet")
	git(t, dir, "commit", "--quiet", "--allow-empty", "-m", "a")
	s, err := build.Read(t.Context(), dir, "v1.2.3")
	if err != nil || len(s.Commit) != 40 || s.Changed || s.Time.Format("2006-01-02 15:04:05") != "2030-01-02 03:04:05" {
		t.Errorf("%+v, %v", s, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "86400")
	if s, err = build.Read(t.Context(), dir, "v1.2.3"); err != nil || !s.Changed || s.Time.Unix() != 86400 {
		t.Errorf("%+v, %v", s, err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if _, err = build.Read(t.Context(), dir, "v1.2.3"); err == nil {
		t.Error("a time that is none")
	}
}
