package proxima_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// situations is the table of docs/how-to/trouble.md that says what commands say.
const situations = "| situation | status | doctor | trace | test |"

// testOf names a test: `PACKAGE: TestName`.
var testOf = regexp.MustCompile("`([a-z0-9/]+): (Test[A-Za-z0-9]+)`")

// TestSituationsHaveTests: every row of the table names what each command says, and
// tests that exist.
func TestSituationsHaveTests(t *testing.T) {
	doc, err := os.ReadFile("docs/how-to/trouble.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(doc), situations+"\n")
	if !found {
		t.Fatalf("there is no table %s", situations)
	}
	rows := 0
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if strings.HasPrefix(strings.TrimSpace(cells[0]), "---") {
			continue
		}
		rows++
		if len(cells) != 5 {
			t.Errorf("%d cells, want 5: %s", len(cells), line)
			continue
		}
		for _, c := range cells {
			if strings.TrimSpace(c) == "" {
				t.Errorf("an empty cell: %s", line)
			}
		}
		tests := testOf.FindAllStringSubmatch(cells[4], -1)
		if len(tests) == 0 {
			t.Errorf("no test is named: %s", line)
		}
		for _, m := range tests {
			if !hasTest(t, m[1], m[2]) {
				t.Errorf("package %s has no test %s", m[1], m[2])
			}
		}
	}
	if rows == 0 {
		t.Error("the table is empty")
	}
}

func hasTest(t *testing.T, dir, name string) bool {
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
		if strings.Contains(string(data), "\nfunc "+name+"(t *testing.T)") {
			return true
		}
	}
	return false
}
