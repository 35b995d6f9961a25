package proxima_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestComparisons: each page of docs/compared says when, with which versions and by which command it was made, and where
// the other one is better.
func TestComparisons(t *testing.T) {
	pages, err := filepath.Glob("docs/compared/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	date, better := regexp.MustCompile(`\d{4}-\d{2}-\d{2}`), regexp.MustCompile(`(?m)^## Where (.*) (is|are) better\n\n- `)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range []string{"date", "versions", "command"} {
			_, cell, ok := strings.Cut(string(text), "\n| "+row+" | ")
			cell, _, _ = strings.Cut(cell, "\n")
			if !ok || row == "date" && !date.MatchString(cell) || strings.Trim(cell, " |") == "" {
				t.Errorf("%s: its table has no row %q", page, row)
			}
		}
		if !better.Match(text) {
			t.Errorf("%s: has no section that says where the other one is better", page)
		}
	}
}
