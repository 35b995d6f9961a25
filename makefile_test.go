package proxima_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMakeHelp: "make help" lists every target with what it does, and fits a
// screen of 24 lines and 100 columns.
func TestMakeHelp(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "make", "-s", "help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	if len(lines) > 24 {
		t.Errorf("%d lines do not fit a screen", len(lines))
	}
	listed := map[string]bool{}
	for _, line := range lines {
		if len(line) > 100 {
			t.Errorf("%d columns: %s", len(line), line)
		}
		if words := strings.Fields(line); len(words) > 2 && words[0] == "make" {
			listed[words[1]] = true
		}
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(makefile), "\n") {
		targets, ok := strings.CutPrefix(line, ".PHONY:")
		if !ok {
			continue
		}
		for _, target := range strings.Fields(targets) {
			if !listed[target] {
				t.Errorf("make help does not list %s: give it a text after ##", target)
			}
		}
	}
	if len(listed) == 0 {
		t.Error("make help lists nothing")
	}
}
