package dist

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/release"
	"github.com/proxima-mesh/proxima/tools/release/build/buildtest"
)

// TestGuide runs the commands of docs/how-to/release.md, but for the build itself.
func TestGuide(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed: the page makes keys with it")
	}
	page, err := os.ReadFile("../../../docs/how-to/release.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(mark string) (string, error) {
		t.Helper()
		_, commands, ok := strings.Cut(string(page), "<!-- test: "+mark+" -->\n```\n")
		if !ok {
			t.Fatalf("the page has no block %q", mark)
		}
		commands, _, _ = strings.Cut(commands, "```")
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", commands)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(buildtest.Binary(t, "../../.."))+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run("key"); err != nil {
		t.Fatal(err, out)
	}
	private, err := os.ReadFile(filepath.Join(dir, "release.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := release.ParseKey(private)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "dist", "proxima_v1.2.3_linux_amd64.tar.gz")
	err = errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("archive"), 0o600), newRelease(t, nil, key).vouch(t.Context(), filepath.Dir(file)))
	if err != nil {
		t.Fatal(err)
	}
	out, err := run("verify")
	if err != nil || !strings.Contains(out, "signatures: every statement is signed by the key in release.pub") {
		t.Error(err, out)
	}
	if out, err = run("verify one"); err != nil || strings.Count(out, "passed") != 1 {
		t.Error(err, out)
	}
	if err := os.WriteFile(file, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err = run("verify"); err == nil || !strings.Contains(out, "proxima_v1.2.3_linux_amd64.tar.gz: its SHA-256 is ") || !strings.Contains(out, "code: release-invalid") {
		t.Errorf("a changed file: %v\n%s", err, out)
	}
}
