package skew

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

const (
	page  = "docs/how-to/upgrade.md"
	begin = "<!-- table of make interop-skew: begin -->"
	end   = "<!-- table of make interop-skew: end -->"
	head  = "| global | zone | agent | calls in the zone | calls to other zones | failed |\n|---|---|---|---|---|---|\n"
)

// writeTable replaces the table of a page.
func writeTable(path string, results []result, of string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok1 := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no lines %q and %q", path, begin, end)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s\nThis tree is %s.\n\n%s", before, begin, of, head)
	for _, r := range results {
		remote := "–"
		if r.remote > 0 {
			remote = fmt.Sprint(r.remote)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %s | %d |\n", r.global, r.zone, r.agent, r.calls, remote, r.failed)
	}
	fmt.Fprintf(&b, "\n%s%s", end, after)
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

var row = regexp.MustCompile(`^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| (\d+) \| (\d+|–) \| (\d+) \|$`)

// TestTable: the page has a row without a failure for each pairing of the revisions that are
// listed.
func TestTable(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(testkit.Root(t), page))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok1 := strings.Cut(string(text), begin)
	table, _, ok2 := strings.Cut(rest, end)
	caption, rows, ok3 := strings.Cut(table, head)
	if !ok1 || !ok2 || !ok3 || !regexp.MustCompile(`This tree is [0-9a-f]{7,}( with changes)? of \d{4}-\d\d-\d\d\.`).MatchString(caption) {
		t.Fatalf("%s has no table: make interop-skew", page)
	}
	var got []string
	for line := range strings.SplitSeq(strings.TrimSpace(rows), "\n") {
		cells := row.FindStringSubmatch(line)
		if cells == nil || cells[4] == "0" || cells[6] != "0" {
			t.Fatalf("%s: %q is no row of a pairing that works", page, line)
		}
		got = append(got, strings.Join(cells[1:4], " "))
	}
	var want, controls, agents []string
	for _, r := range listed(t, nil) {
		agents = append(agents, r.name)
		if r.controls {
			controls = append(controls, r.name)
		}
	}
	agents = append(agents, tree)
	for _, old := range controls {
		for _, global := range []string{old, tree} {
			for _, zone := range []string{old, tree} {
				for _, agent := range agents {
					if pairing := strings.Join([]string{global, zone, agent}, " "); !slices.Contains(want, pairing) {
						want = append(want, pairing)
					}
				}
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s has the pairings %q, and test/skew/revisions lists %q: make interop-skew", page, got, want)
	}
}

// TestWriteTable: what is written is what TestTable reads, and the rest of the page stays.
func TestWriteTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte("# Page\n"+begin+"\nold\n"+end+"\nmore\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	results := []result{{global: "abc", zone: "abc", agent: tree, calls: 10, remote: 5}, {global: "abc", zone: tree, agent: "abc", calls: 7, failed: 1}}
	for range 2 {
		if err := writeTable(path, results, "1234567 of 2030-01-01"); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	want := "# Page\n" + begin + "\nThis tree is 1234567 of 2030-01-01.\n\n" + head +
		"| abc | abc | this tree | 10 | 5 | 0 |\n| abc | this tree | abc | 7 | – | 1 |\n\n" + end + "\nmore\n"
	if err != nil || string(text) != want {
		t.Errorf("%q, %v, want %q", text, err, want)
	}
	if err := writeTable(filepath.Join(testkit.Root(t), "README.md"), results, "x"); err == nil {
		t.Error("a page without a table was written")
	}
}
