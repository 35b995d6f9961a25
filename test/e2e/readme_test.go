package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// block returns the commands that follow a "test:" mark in the README.
func block(t *testing.T, mark string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(testkit.Root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(data), "<!-- test: "+mark+" -->\n```\n")
	if !ok {
		t.Fatalf("the README has no block marked %q", mark)
	}
	body, _, _ := strings.Cut(after, "```")
	var lines []string
	for line := range strings.Lines(body) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "   #")
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestREADME follows the first steps of the README.
func TestREADME(t *testing.T) {
	home, root := t.TempDir(), testkit.Root(t)
	bin := filepath.Dir(testkit.Binary(t))
	data := filepath.Join(home, ".local", "share", "proxima")
	port := strconv.Itoa(testkit.FreePort(t))
	env := []string{
		"HOME=" + home, "PATH=" + filepath.Dir(testkit.Kubectl(t)) + ":" + bin + ":" + os.Getenv("PATH"),
		// The ports and the directory of a real installation may be taken here.
		"PROXIMA_DATA_DIR=" + data, "PROXIMA_HEALTH_PORT=0", "PROXIMA_METRICS_PORT=0",
		"PROXIMA_API_ADDRESS=127.0.0.1:" + strconv.Itoa(testkit.FreePort(t)), "PROXIMA_GRPC_PORT=" + strconv.Itoa(testkit.FreePort(t)),
	}
	adapt := func(line string) string {
		return strings.ReplaceAll(strings.ReplaceAll(line, "8081", port), "bin/proxima", testkit.Binary(t))
	}
	for _, line := range block(t, "start") {
		if line == "make build" {
			continue // testkit did
		}
		words := strings.Fields(adapt(line))
		p := testkit.Start(t, env, words[0], words[1:]...)
		if words[1] == "up" {
			p.FirstLine()
		}
	}
	script := "set -e\n" + adapt(strings.Join(block(t, "use"), "\n"))
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Dir, cmd.Env = root, append(testkit.CleanEnv(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, script, out)
	}
	for _, want := range []string{"service/web created", "web-1", `{"name":"web-1","pid":`, "no problems found"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
}
