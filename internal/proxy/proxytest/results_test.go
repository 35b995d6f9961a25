package proxytest

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

//go:generate env PROXIMA_UPDATE=1 go test -count=1 -run ^TestDifferences$ .

const (
	differencesFile  = "../../../docs/concepts/modes.md"
	differencesBegin = "<!-- made of the results of the suites by make gen -->\n"
	differencesEnd   = "<!-- end -->\n"
)

// TestDifferences: the table in modes.md is that of the results, which the suites of the modes compare with what they find.
func TestDifferences(t *testing.T) {
	table, err := differences("testdata")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(differencesFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, began := strings.Cut(string(data), differencesBegin)
	have, after, ended := strings.Cut(rest, differencesEnd)
	if !began || !ended {
		t.Fatalf("%s lacks the lines %q and %q", differencesFile, differencesBegin, differencesEnd)
	}
	if have == table {
		return
	}
	if os.Getenv(updateVariable) != "1" {
		t.Errorf("%s is not what the suites found: run make gen\n%s", differencesFile, cmp.Diff(have, table))
		return
	}
	if err := os.WriteFile(differencesFile, []byte(before+differencesBegin+table+differencesEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestResults(t *testing.T) {
	const text = "holds\ta\nlacks\tb\tsome: it has none\npart\tc\tother: why\tsome: it has none\n"
	all, err := parseResults(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := formatResults(all); got != text {
		t.Errorf("%q, want %q", got, text)
	}
	if got, want := without(text, map[string]bool{"b": true}), "holds\ta\npart\tc\tother: why\tsome: it has none\n"; got != want {
		t.Errorf("without b: %q, want %q", got, want)
	}
	for _, wrong := range []string{"holds\n", "holds\ta\tb\n", "part\ta\n", "perhaps\ta\n"} {
		if _, err := parseResults(wrong); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
	other, err := parseResults("holds\ta\nholds\tb\n")
	if err != nil {
		t.Fatal(err)
	}
	byMode := map[string]map[string]*result{"x": {}, "y": {}}
	for _, r := range all {
		byMode["x"][r.name] = r
	}
	for _, r := range other {
		byMode["y"][r.name] = r
	}
	want := "1 of 3 cases hold in all of these modes alike. The others:\n\n| case | `x` | `y` |\n|---|---|---|\n| b | no: 1 | holds |\n| c | but for 2, 1 | not run |\n\n1. some: it has none.\n2. other: why.\n"
	if diff := cmp.Diff(want, formatTable([]string{"x", "y"}, []string{"a", "b", "c"}, byMode)); diff != "" {
		t.Error(diff)
	}
}
