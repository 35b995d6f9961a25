package proxytest

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// updateVariable, set to 1, has the suites write what they find into testdata, in place of comparing it.
const updateVariable = "PROXIMA_UPDATE"

// resultsVariable, set to 1, has results compared also where there is no source tree, as in a virtual machine, with those that the
// test was built with. With updateVariable they are logged, a line each behind recordedPrefix.
const (
	resultsVariable = "PROXIMA_TEST_RESULTS"
	recordedPrefix  = "RECORDED"
)

//go:embed testdata/*.txt
var recorded embed.FS

// Names of the suites, as files of results have them.
const (
	suiteContract = "contract"
	suiteKernel   = "kernel"
)

// result is what a suite found of a mode in one case, of either family.
type result struct {
	// name of the case.
	name string
	// whole: nothing of the case was checked, as the mode lacks what it is about.
	whole bool
	// lacks are the features that were not checked, and why, sorted; none: the case holds.
	lacks []string
}

func lackOf(f Feature, why string) string { return string(f) + ": " + why }

// recorder collects the results of a suite, if they are to be compared.
type recorder struct {
	mode, suite string

	mu      sync.Mutex
	results []*result
	// cases that did not run, or not to their end.
	incomplete map[string]bool
}

// at is the result of a case, whose lacks are to be added.
func (r *recorder) at(name string) *result {
	for _, one := range r.results {
		if one.name == name {
			return one
		}
	}
	one := &result{name: name}
	r.results = append(r.results, one)
	return one
}

// begin a case. The result is taken when its test has ended.
func (r *recorder) begin(t *testing.T, name string, needs []Feature, lacks map[Feature]string, logged map[Feature]bool) {
	t.Cleanup(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		one := r.at(name)
		found := maps.Clone(logged)
		for _, f := range needs {
			if _, lacking := lacks[f]; lacking {
				one.whole = true
				found = map[Feature]bool{f: true}
				break
			}
		}
		if t.Failed() || t.Skipped() && !one.whole {
			r.incomplete[name] = true
		}
		for f := range found {
			if text := lackOf(f, lacks[f]); !slices.Contains(one.lacks, text) {
				one.lacks = append(one.lacks, text)
			}
		}
		slices.Sort(one.lacks)
	})
}

// end compares what was found with the file of the mode, whose package is beside this one; with updateVariable it writes the
// file. names are those of all cases: where some did not run, as -run said so, there is nothing to compare.
func (r *recorder) end(t *testing.T, names []string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mode == "" || t.Failed() || len(r.results) < len(names) {
		return
	}
	dir := filepath.Join("..", "proxytest", "testdata")
	_, err := os.Stat(dir)
	apart := errors.Is(err, fs.ErrNotExist)
	if apart && os.Getenv(resultsVariable) != "1" {
		t.Logf("results are not compared: the test runs where there is no %s", dir)
		return
	}
	file := filepath.Join(dir, r.mode+"."+r.suite+".txt")
	got := formatResults(r.results)
	if os.Getenv(updateVariable) == "1" {
		if len(r.incomplete) > 0 {
			t.Errorf("results of mode %s cannot be written: these cases did not run to their end here: %v", r.mode, slices.Sorted(maps.Keys(r.incomplete)))
		} else if apart {
			for line := range strings.Lines(got) {
				t.Logf("%s\t%s\t%s", recordedPrefix, filepath.Base(file), strings.TrimSuffix(line, "\n"))
			}
		} else if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Error(err)
		}
		return
	}
	read := os.ReadFile
	if apart {
		read = func(file string) ([]byte, error) { return recorded.ReadFile("testdata/" + filepath.Base(file)) }
	}
	data, err := read(file)
	if err != nil {
		t.Errorf("%v: %s=1 writes it", err, updateVariable)
		return
	}
	if want := without(string(data), r.incomplete); without(got, r.incomplete) != want {
		t.Errorf("results of mode %s differ from %s: run the test with %s=1, and then make gen\nhave\n%s\nwant\n%s", r.mode, file, updateVariable, got, want)
	}
}

// without the lines of cases.
func without(text string, cases map[string]bool) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(fields) < 2 || !cases[fields[1]] {
			out.WriteString(line)
		}
	}
	return out.String()
}

// formatResults as lines of a verdict, the case, and what the mode lacks for it, with tabs between.
func formatResults(all []*result) string {
	var out strings.Builder
	for _, r := range all {
		verdict := "holds"
		switch {
		case r.whole:
			verdict = "lacks"
		case len(r.lacks) > 0:
			verdict = "part"
		}
		fmt.Fprintln(&out, strings.Join(append([]string{verdict, r.name}, r.lacks...), "\t"))
	}
	return out.String()
}

func parseResults(text string) ([]*result, error) {
	var out []*result
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) < 2 || !slices.Contains([]string{"holds", "lacks", "part"}, fields[0]) || (fields[0] == "holds") != (len(fields) == 2) {
			return nil, fmt.Errorf("%q: want a verdict, a case, and what is lacking, with tabs between", line)
		}
		out = append(out, &result{name: fields[1], whole: fields[0] == "lacks", lacks: fields[2:]})
	}
	return out, nil
}

// tableOrder of modes in the table of differences; others follow by their names.
var tableOrder = []string{"nftables", "iptables", "ebpf", "ipvs", "kernelspace", "userspace"}

func rank(mode string) int {
	if i := slices.Index(tableOrder, mode); i >= 0 {
		return i
	}
	return len(tableOrder)
}

// differences is the table, in Markdown, of the cases in which modes differ, by the results in a folder, and what the numbers in
// it mean.
func differences(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.*.txt"))
	if err != nil {
		return "", err
	}
	byMode := map[string]map[string]*result{}
	var names []string // of cases, as the suites have them
	slices.SortFunc(files, func(a, b string) int {
		mode := func(file string) string { m, _, _ := strings.Cut(filepath.Base(file), "."); return m }
		return cmp.Or(cmp.Compare(rank(mode(a)), rank(mode(b))), cmp.Compare(a, b))
	})
	var modes []string
	for _, file := range files {
		mode, _, _ := strings.Cut(filepath.Base(file), ".")
		data, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		all, err := parseResults(string(data))
		if err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		if byMode[mode] == nil {
			byMode[mode] = map[string]*result{}
			modes = append(modes, mode)
		}
		for _, r := range all {
			byMode[mode][r.name] = r
			if !slices.Contains(names, r.name) {
				names = append(names, r.name)
			}
		}
	}
	return formatTable(modes, names, byMode), nil
}

func formatTable(modes, names []string, byMode map[string]map[string]*result) string {
	var reasons []string
	number := func(text string) string {
		i := slices.Index(reasons, text)
		if i < 0 {
			i, reasons = len(reasons), append(reasons, text)
		}
		return fmt.Sprint(i + 1)
	}
	var table strings.Builder
	alike := 0
	for _, name := range names {
		row, differs := "| "+name+" |", false
		for _, mode := range modes {
			r := byMode[mode][name]
			if r == nil {
				row, differs = row+" not run |", true
				continue
			}
			var of []string
			for _, text := range r.lacks {
				of = append(of, number(text))
			}
			switch {
			case r.whole:
				row += " no: " + strings.Join(of, ", ") + " |"
			case len(of) > 0:
				row += " but for " + strings.Join(of, ", ") + " |"
			default:
				row += " holds |"
			}
			differs = differs || len(of) > 0
		}
		if !differs {
			alike++
			continue
		}
		table.WriteString(row + "\n")
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%d of %d cases hold in all of these modes alike. The others:\n\n| case | `%s` |\n|%s\n%s\n", alike, len(names),
		strings.Join(modes, "` | `"), strings.Repeat("---|", len(modes)+1), table.String())
	for i, text := range reasons {
		fmt.Fprintf(&out, "%d. %s.\n", i+1, text)
	}
	return out.String()
}
