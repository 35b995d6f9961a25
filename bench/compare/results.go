package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The series of a figure.
const (
	oldFirst = iota
	newTree
	oldAgain
	allSeries
)

// results are the figures of all rounds.
type results struct {
	order   []string
	figures map[string]*figure
}

// figure is one quantity, measured in several rounds.
type figure struct {
	name, unit string
	values     [allSeries][]float64
}

func newResults() *results { return &results{figures: map[string]*figure{}} }

func (r *results) add(name, unit string, series int, value float64) {
	key := name + " " + unit
	f := r.figures[key]
	if f == nil {
		f = &figure{name: name, unit: unit}
		r.figures[key] = f
		r.order = append(r.order, key)
	}
	f.values[series] = append(f.values[series], value)
}

// sizes notes the sizes of both programs.
func (r *results) sizes(before, after *tree) error {
	for series, t := range map[int]*tree{oldFirst: before, newTree: after, oldAgain: before} {
		info, err := os.Stat(filepath.Join(t.bin, "proxima"))
		if err != nil {
			return err
		}
		r.add("size of the program", "MB", series, float64(info.Size())/1e6)
	}
	return nil
}

// processors is the suffix that the testing package gives the names of benchmarks.
var processors = regexp.MustCompile(`-\d+$`)

// addBenchmarks reads the lines of Go's benchmarks: name, count, then pairs of value and unit.
func (r *results) addBenchmarks(measurement, out string, series int) {
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := measurement + " " + strings.TrimPrefix(processors.ReplaceAllString(fields[0], ""), "Benchmark")
		units := map[string]float64{}
		for i := 2; i+1 < len(fields); i += 2 {
			if v, err := strconv.ParseFloat(fields[i], 64); err == nil {
				units[fields[i+1]] = v
			}
		}
		if len(units) > 1 && measurement == "readiness" {
			delete(units, "ns/op") // its pauses count there
		}
		for _, unit := range slices.Sorted(maps.Keys(units)) {
			r.add(name, unit, series, units[unit])
		}
	}
}

// column separates the columns of a table of bench/api.
var column = regexp.MustCompile(`\s{2,}`)

// quantity is a figure and its unit as bench/api prints them: "12 ms", "3400/s".
var quantity = regexp.MustCompile(`^(-?[\d.]+)\s*(\S+)$`)

// addTable reads the table of bench/api.
func (r *results) addTable(measurement, out string, series int) {
	for line := range strings.Lines(out) {
		cells := column.Split(strings.TrimSpace(line), -1)
		if len(cells) < 2 || strings.HasPrefix(cells[0], "size of the program") {
			continue
		}
		m := quantity.FindStringSubmatch(cells[1])
		if m == nil {
			continue
		}
		if v, err := strconv.ParseFloat(m[1], 64); err == nil {
			r.add(measurement+" "+cells[0], m[2], series, v)
		}
	}
}

// print the table.
func (r *results) print(out io.Writer) {
	fmt.Fprintln(out, "what\told\tnew\tunit\tnew/old\tspread of old\t")
	worse := 0
	for _, key := range r.order {
		f := r.figures[key]
		ratio, spread := f.ratio(), f.spread()
		verdict := ""
		if f.worse() {
			verdict = "worse"
			worse++
		}
		fmt.Fprintf(out, "%s\t%.4g\t%.4g\t%s\t%.3f\t%.3f\t%s\n", f.name, f.old(), median(f.values[newTree]), f.unit, ratio, spread, verdict)
	}
	fmt.Fprintf(out, "%d figures, %d worse by more than 5 %% and the spread of old\n", len(r.order), worse)
}

// old is the median of all that was measured of the old tree.
func (f *figure) old() float64 {
	return median(slices.Concat(f.values[oldFirst], f.values[oldAgain]))
}

// ratio of new to old, above 1 where there is more of the quantity.
func (f *figure) ratio() float64 { return quotient(median(f.values[newTree]), f.old()) }

// spread of old against old, at least 1: the larger of two ratios. One is that of the medians
// of its two series; the other the median ratio of neighbours in time, as the machine's noise
// is not the same in all rounds.
func (f *figure) spread() float64 {
	first, again := f.values[oldFirst], f.values[oldAgain]
	whole := distance(quotient(median(first), median(again)))
	var pairs []float64
	for i := range min(len(first), len(again)) {
		pairs = append(pairs, distance(quotient(first[i], again[i])))
	}
	return max(whole, median(pairs), 1)
}

// worse reports whether new is worse than old by more than is allowed and the spread.
func (f *figure) worse() bool {
	ratio := f.ratio()
	if strings.HasSuffix(f.unit, "/s") { // a rate: more is better
		ratio = quotient(1, ratio)
	}
	return ratio > max(allowed, f.spread())
}

// distance of a ratio from 1, as a ratio of at least 1.
func distance(ratio float64) float64 {
	if ratio < 1 {
		return quotient(1, ratio)
	}
	return ratio
}

// quotient is 1 for two zeros, as both are equal.
func quotient(a, b float64) float64 {
	switch {
	case a == b:
		return 1
	case b == 0:
		return math.Inf(1)
	}
	return a / b
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
