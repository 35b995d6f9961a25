package proxima_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// testCell is the last column of a row: `internal/pkg: TestName`.
var testCell = regexp.MustCompile("`([\\w./-]+): (Test\\w+)`")

// TestTroubleRowsHaveTests: every row of a table "situation … test" in the page
// about trouble names a test that exists.
func TestTroubleRowsHaveTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("docs", "how-to", "trouble.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows, inTable := 0, false
	for line := range strings.SplitSeq(string(page), "\n") {
		switch {
		case !strings.HasPrefix(line, "|"):
			inTable = false
			continue
		case strings.HasPrefix(line, "| situation |"):
			inTable = true
			continue
		case !inTable || strings.HasPrefix(line, "|---"):
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(line, "| "), "|")
		named := testCell.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(named) == 0 {
			t.Errorf("no test: %s", line)
		}
		for _, n := range named {
			if !hasTest(t, n[1], n[2]) {
				t.Errorf("%s has no %s", n[1], n[2])
			}
		}
	}
	if rows == 0 {
		t.Error("the table is gone")
	}
}

func hasTest(t *testing.T, pkg, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(source), "\nfunc "+name+"(t *testing.T)") {
			return true
		}
	}
	return false
}
