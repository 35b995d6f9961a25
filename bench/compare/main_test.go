package main

import (
	"strings"
	"testing"
)

// TestVerdicts reads figures as the benchmarks print them, and judges them.
func TestVerdicts(t *testing.T) {
	for _, test := range []struct {
		name            string
		first, now, old string // the output of each series
		want            string
	}{
		{"slower", "100 ns/op", "120 ns/op", "101 ns/op", "worse"},
		{"as slow as old differs from old", "100 ns/op", "120 ns/op", "130 ns/op", ""},
		{"within 5 %", "100 ns/op", "104 ns/op", "100 ns/op", ""},
		{"faster", "100 ns/op", "50 ns/op", "100 ns/op", ""},
		{"a lower rate", "100 answers/s", "80 answers/s", "100 answers/s", "worse"},
		{"a higher rate", "100 answers/s", "180 answers/s", "100 answers/s", ""},
		{"both nothing", "0 B/op", "0 B/op", "0 B/op", ""},
		{"something in place of nothing", "0 B/op", "8 B/op", "0 B/op", "worse"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newResults()
			for series, out := range []string{oldFirst: test.first, newTree: test.now, oldAgain: test.old} {
				for range 3 {
					r.addBenchmarks("m", "BenchmarkX/a-2 \t 100 \t"+out+"\n", series)
				}
			}
			var b strings.Builder
			r.print(&b)
			lines := strings.Split(b.String(), "\n")
			if len(lines) < 3 || !strings.HasPrefix(lines[1], "m X/a\t") {
				t.Fatalf("no figure:\n%s", b.String())
			}
			if got := lines[1][strings.LastIndex(lines[1], "\t")+1:]; got != test.want {
				t.Errorf("verdict %q, want %q:\n%s", got, test.want, b.String())
			}
		})
	}
}

func TestTableOfTheAPI(t *testing.T) {
	r := newResults()
	r.addTable(
		"writes",
		"what  measured  goal  \nsqlite, 8 clients: creates  3400/s  ≥ 3000/s  ok\nstart, p50  0.21 s  ≤ 1.00 s  ok\npostgres  skipped: no server\n",
		newTree,
	)
	if len(r.order) != 2 {
		t.Fatalf("figures %q, want 2", r.order)
	}
	if f := r.figures["writes sqlite, 8 clients: creates /s"]; f == nil || median(f.values[newTree]) != 3400 {
		t.Errorf("rate: %+v of %q", f, r.order)
	}
	if f := r.figures["writes start, p50 s"]; f == nil || median(f.values[newTree]) != 0.21 {
		t.Errorf("time: %+v of %q", f, r.order)
	}
}

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{0: nil, 2: {3, 1, 2}, 2.5: {4, 1, 2, 3}} {
		if got := median(values); got != want {
			t.Errorf("median of %v is %v, want %v", values, got, want)
		}
	}
}

func TestProgramsOfOneRun(t *testing.T) {
	m := programPrefix.FindStringSubmatch("program 2: memory write answered → event, p50  0.12 ms\n")
	if m == nil || m[1] != "2" {
		t.Fatalf("no program in the row: %q", m)
	}
	if m := programPrefix.FindStringSubmatch("memory write answered → event, p50  0.12 ms\n"); m != nil {
		t.Errorf("a program in a row of one: %q", m)
	}
}
