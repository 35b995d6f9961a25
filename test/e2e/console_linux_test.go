package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestConsoleOffline builds the program where there is neither node nor npm, and opens every page of its console in a network namespace
// without a way out. The second part is a test of test/console, as what drives a browser is not linked here.
func TestConsoleOffline(t *testing.T) {
	bin := t.TempDir()
	build := exec.Command("make", "build", "BIN="+bin)
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "PATH="+withoutNode(t))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	pages := exec.Command("go", "test", "-count=1", "-run=^TestConsoleOffline$", ".")
	pages.Dir = filepath.Join("..", "console")
	pages.Env = append(os.Environ(), "PROXIMA_PROGRAM="+filepath.Join(bin, "proxima"))
	if out, err := pages.CombinedOutput(); err != nil {
		t.Fatalf("go test in test/console: %v\n%s", err, out)
	}
}

// withoutNode is a PATH with all programs but node and what comes with it.
func withoutNode(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, from := range filepath.SplitList(os.Getenv("PATH")) {
		entries, err := os.ReadDir(from)
		if err != nil {
			continue // a PATH names directories that are not there
		}
		for _, e := range entries {
			if name := e.Name(); !slices.Contains([]string{"node", "nodejs", "npm", "npx", "corepack", "yarn", "pnpm", "tsc", "esbuild"}, name) {
				_ = os.Symlink(filepath.Join(from, name), filepath.Join(dir, name)) // the first of a name counts
			}
		}
	}
	for _, name := range []string{"node", "npm"} {
		find := exec.Command("/bin/sh", "-c", "command -v "+name)
		find.Env = []string{"PATH=" + dir}
		if out, err := find.Output(); err == nil {
			t.Fatalf("there is still %s", strings.TrimSpace(string(out)))
		}
	}
	return dir
}
