package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheck: what is missing on one platform is found there, in the body of a function, and in a package that is imported. So is what
// vet finds.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                 "module example.com/m\n\ngo 1.26\n",
		"cmd/main.go":            "package main\n\nimport \"example.com/m/part\"\n\nfunc main() { part.Do() }\n",
		"part/part.go":           "package part\n\nfunc Do() { system() }\n",
		"part/system_linux.go":   "package part\n\nfunc system() {}\n",
		"part/part_arm64.go":     "package part\n\nimport \"fmt\"\n\nfunc init() { fmt.Printf(\"%d\", \"x\") }\n",
		"part/system_windows.go": "package part\n\nimport \"syscall\"\n\nfunc system() { syscall.Kill(0, 0) }\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for platform, want := range map[string]string{
		"linux/amd64": "", "linux/arm64": "Printf format %d has arg",
		"darwin/arm64": "undefined: system", "windows/amd64": "undefined: syscall.Kill", "linux/none": "unsupported GOOS/GOARCH",
	} {
		_, problems := check(dir, platform, "./cmd")
		if got := strings.Join(problems, "\n"); got != want && (want == "" || !strings.Contains(got, want)) {
			t.Errorf("%s: %q, want %q", platform, got, want)
		}
	}
}
