package proxima_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// linkedTest is a test in SECURITY.md, with the file that has it.
var linkedTest = regexp.MustCompile("\\[`(Test[A-Za-z0-9]+)`\\]\\(([^)]+)\\)")

// TestSecurityCasesHaveTests: every row of the tables of docs/concepts/security.md says what happens,
// and names tests that exist; so do those of SECURITY.md.
func TestSecurityCasesHaveTests(t *testing.T) {
	doc, err := os.ReadFile("docs/concepts/security.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(doc)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "|") || len(cells) != 3 || strings.HasPrefix(cells[0], "---") || strings.TrimSpace(cells[2]) == "tests" {
			continue
		}
		rows++
		if strings.TrimSpace(cells[0]) == "" || strings.TrimSpace(cells[1]) == "" {
			t.Errorf("an empty cell: %s", line)
		}
		tests := testOf.FindAllStringSubmatch(cells[2], -1)
		if len(tests) == 0 {
			t.Errorf("no test is named: %s", line)
		}
		for _, m := range tests {
			if !hasTest(t, m[1], m[2]) {
				t.Errorf("package %s has no test %s", m[1], m[2])
			}
		}
	}
	if rows < 20 {
		t.Errorf("%d rows: are they read?", rows)
	}
	page, err := os.ReadFile("SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range linkedTest.FindAllStringSubmatch(string(page), -1) {
		code, err := os.ReadFile(filepath.FromSlash(m[2]))
		if err != nil || !strings.Contains(string(code), "func "+m[1]+"(") {
			t.Errorf("SECURITY.md: %s has no test %s (%v)", m[2], m[1], err)
		}
	}
}
