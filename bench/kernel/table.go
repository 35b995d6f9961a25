//go:build linux

package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// unit prints a figure.
type unit func(float64) string

func seconds(v float64) string {
	d := time.Duration(v * float64(time.Second))
	return d.Round(max(d/1000, 10*time.Nanosecond)).String()
}

func megabytes(v float64) string { return fmt.Sprintf("%.1f MB", v) }

func percent(v float64) string { return fmt.Sprintf("%.2f %%", v) }

func count(v float64) string { return fmt.Sprintf("%.0f", v) }

// goal of a line: of its figure, or of its ratio.
type goal struct {
	limit   float64
	ofRatio bool
}

func atMost(limit float64) *goal { return &goal{limit: limit} }

func ratioAtMost(limit float64) *goal { return &goal{limit: limit, ofRatio: true} }

// row is one line: figures of one side, one per round, and those of another side
// that it is beside.
type row struct {
	what     string
	services int
	unit     unit
	ours     []float64
	beside   string
	theirs   []float64 // of the same rounds; nil: nobody's
	goal     *goal     // nil: none
}

// table prints rows as they come.
type table struct {
	out    io.Writer
	missed int
}

const rowFormat = "%-50s %8s %11s %11s %11s  %-24s %11s %8s  %-10s %s\n"

func (t *table) head() {
	fmt.Fprintf(t.out, rowFormat, "", "services", "median", "least", "most", "beside", "its median", "ratio", "goal", "")
}

// section begins one.
func (t *table) section(name string) { fmt.Fprintf(t.out, "\n%s\n", name) }

// note is a remark between lines.
func (t *table) note(format string, args ...any) { fmt.Fprintf(t.out, format+"\n", args...) }

func (t *table) add(r row) {
	figure := median(r.ours)
	theirs, ratio, want, verdict := "", "", "", ""
	var quotient float64
	if r.theirs != nil {
		quotient = ratioOf(r.ours, r.theirs)
		if theirs = r.unit(median(r.theirs)); median(r.theirs) > 0 {
			ratio = fmt.Sprintf("%.3f", quotient)
		}
	}
	if g := r.goal; g != nil {
		want, verdict = "≤ "+r.unit(g.limit), "met"
		if g.ofRatio {
			want, figure = fmt.Sprintf("≤ %.2f ×", g.limit), quotient
		}
		if figure > g.limit {
			verdict = "MISSED"
			t.missed++
		}
	}
	fmt.Fprintf(t.out, rowFormat, r.what, fmt.Sprint(r.services), r.unit(median(r.ours)), r.unit(slices.Min(r.ours)),
		r.unit(slices.Max(r.ours)), r.beside, theirs, ratio, want, verdict)
}

// median of figures; there must be one at least.
func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	if n := len(all); n%2 == 0 {
		return (all[n/2-1] + all[n/2]) / 2
	}
	return all[len(all)/2]
}

// ratioOf two sides: the median of the rounds' ratios, or where the sides had
// different rounds the ratio of their medians.
func ratioOf(ours, theirs []float64) float64 {
	if len(ours) != len(theirs) {
		return median(ours) / median(theirs)
	}
	all := make([]float64, len(ours))
	for i := range all {
		all[i] = ours[i] / theirs[i]
	}
	return median(all)
}

// middle of a batch of times, in seconds.
func middle(batch []time.Duration) float64 {
	all := make([]float64, len(batch))
	for i, d := range batch {
		all[i] = d.Seconds()
	}
	return median(all)
}
