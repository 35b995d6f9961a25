package proxima_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// requiredTest is a test, or a case of its table, in docs/reference/proxy-requirements.md.
var requiredTest = regexp.MustCompile("`([a-z0-9/]+): (Test[A-Za-z0-9]+)(?:/([^`]+))?`")

// TestRequirementsHaveTests: each row of docs/reference/proxy-requirements.md names tests, and cases, that exist.
func TestRequirementsHaveTests(t *testing.T) {
	page, err := os.ReadFile("docs/reference/proxy-requirements.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(cells[0], "---") || strings.TrimSpace(cells[0]) == "requirement" {
			continue
		}
		rows++
		if len(cells) != 2 || strings.TrimSpace(cells[0]) == "" {
			t.Errorf("want a requirement and its tests: %s", line)
			continue
		}
		named := requiredTest.FindAllStringSubmatch(cells[1], -1)
		if len(named) == 0 || len(named) != strings.Count(cells[1], "`")/2 {
			t.Errorf("%d tests are understood: %s", len(named), line)
		}
		for _, m := range named {
			if !hasTest(t, m[1], m[2]) {
				t.Errorf("package %s has no test %s", m[1], m[2])
			}
			if m[3] != "" && !hasCase(t, m[1], m[3]) {
				t.Errorf("the tests of package %s have no case %q", m[1], m[3])
			}
		}
	}
	if rows < 60 {
		t.Errorf("%d rows: are they read?", rows)
	}
}

// hasCase reports whether tests of a folder have a case of that name.
func hasCase(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "name: "+strconv.Quote(name)) {
			return true
		}
	}
	return false
}
