package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module writes a module with one package of tests and returns its folder.
func module(t *testing.T, tests string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.test/m\n\ngo 1.26\n",
		"m_test.go": "package m\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\n" +
			"func TestFine(t *testing.T) { _ = os.Args }\n" + tests,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// once is a test that fails the first time it runs.
func once(dir, name, failing string) string {
	mark := filepath.Join(dir, name)
	return fmt.Sprintf(`
func %s(t *testing.T) {
	t.Run("part", func(t *testing.T) {
		if _, err := os.Stat(%q); err != nil {
			os.WriteFile(%q, nil, 0o600)
			%s
		}
	})
}
`, name, mark, mark, failing)
}

// TestAgain: a test that passes the second time is distinguished from one that passed,
// and only if it failed in a way that time may explain.
func TestAgain(t *testing.T) {
	marks := t.TempDir()
	for name, c := range map[string]struct {
		tests    string
		most     int
		forgiven []string
		fine     bool
	}{
		"passes alone": {once(marks, "TestA", "t.Error()"), 1, []string{"example.test/m TestA"}, true},
		"fails again":  {"func TestB(t *testing.T) { t.Error() }", 1, nil, false},
		"one of two": {once(marks, "TestC", "t.Error()") + "func TestD(t *testing.T) { t.Error() }", 2,
			[]string{"example.test/m TestC"}, false},
		"too many":      {once(marks, "TestE", "t.Error()") + once(marks, "TestF", "t.Error()"), 1, nil, false},
		"panics":        {once(marks, "TestG", `panic("oh")`), 9, nil, false},
		"races":         {once(marks, "TestH", "n, done := 0, make(chan bool); go func() { n++; close(done) }(); n++; <-done"), 9, nil, false},
		"outside tests": {once(marks, "TestI", "t.Error()") + "\nfunc TestMain(m *testing.M) { m.Run(); os.Exit(3) }", 9, nil, false},
		"no build":      {"func TestJ(t *testing.T) { undefined() }", 9, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReport()
			args := []string{"test", "-race", "-json", "-vet=off", "-count=1"}
			if r.run(module(t, c.tests), append(slices.Clone(args), "./...")) {
				t.Fatal("nothing failed")
			}
			forgiven, fine := r.again(c.most, args)
			if !slices.Equal(forgiven, c.forgiven) || fine != c.fine {
				t.Errorf("%v, %v", forgiven, fine)
			}
			var out strings.Builder
			r.close(&out, forgiven)
			if len(forgiven) > 0 && !strings.Contains(out.String(), "passed only alone: 1\n  example.test/m TestC") &&
				!strings.Contains(out.String(), "passed only alone: 1\n  example.test/m TestA") {
				t.Error(out.String())
			}
		})
	}
}

// TestReasons: a skip without a word has the reason that a test around it gave.
func TestReasons(t *testing.T) {
	r := newReport()
	r.run(module(t, `
func TestOwn(t *testing.T) { t.Skip("its own: reason") }
func TestNone(t *testing.T) { t.Skip() }
func TestAround(t *testing.T) {
	t.Log("the one around")
	t.Run("a", func(t *testing.T) { t.Run("b", func(t *testing.T) { t.Parallel(); t.Skip() }) })
}
`), []string{"test", "-json", "-vet=off", "-count=1", "./..."})
	slices.Sort(r.skips)
	want := []string{
		"example.test/m TestAround/a/b: the one around",
		"example.test/m TestNone: no reason given",
		"example.test/m TestOwn: its own: reason",
	}
	if !slices.Equal(r.skips, want) {
		t.Errorf("%q", r.skips)
	}
}
