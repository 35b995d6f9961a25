package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var referenceDir = filepath.Join("..", "..", "docs", "reference")

func TestReferenceIsUpToDate(t *testing.T) {
	files, err := referenceFiles(newRoot(&settings{}))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(referenceDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is out of date: run make gen\n%s", name, diff)
		}
	}
}

// TestDefaultsFileChangesNothing: every command is as it is without the file.
func TestDefaultsFileChangesNothing(t *testing.T) {
	file := filepath.Join(referenceDir, defaultsFile)
	for _, line := range commandLines(t) {
		if cmd, _, err := newRoot(&settings{}).Find(line); err == nil && cmd.DisableFlagParsing {
			continue // another program reads its command line
		}
		want, err := parsed(t, nil, line...)
		if err != nil {
			t.Fatal(line, err)
		}
		want["config"] = file
		got, err := parsed(t, nil, append(line, "--config", file)...)
		if err != nil {
			t.Fatal(line, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v: %s", line, diff)
		}
	}
}

// TestDefaultsFileIsComplete: every setting that a file may have is there, with
// its variable.
func TestDefaultsFileIsComplete(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(referenceDir, defaultsFile))
	if err != nil {
		t.Fatal(err)
	}
	hidden := []string{"config", "dir", "listen", "client-socket"} // of the file itself, and of hidden commands
	for name := range allFlags(newRoot(&settings{})) {
		written := regexp.MustCompile(`(?m)^# Environment: ` + envName(name) + "\n" + name + ": ").Match(data)
		if isHidden := strings.Contains(" "+strings.Join(hidden, " ")+" ", " "+name+" "); written == isHidden {
			t.Errorf("%s: written %t, hidden %t", name, written, isHidden)
		}
	}
}

func TestReferenceDoesNotDependOnTheUser(t *testing.T) {
	here, err := referenceFiles(newRoot(&settings{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	there, err := referenceFiles(newRoot(&settings{}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(here, there); diff != "" {
		t.Error(diff)
	}
	if host, err := os.Hostname(); err == nil && len(host) > 4 && strings.Contains(string(here[commandsFile]), host) {
		t.Error("the host name is in it")
	}
}
