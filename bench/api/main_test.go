package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestSmoke runs every section; the figures are for people.
func TestSmoke(t *testing.T) {
	var out bytes.Buffer
	b := &bench{sizes: smoke, binary: testkit.Binary(t)}
	if err := b.run(t.Context(), &out, ""); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"sqlite, 8 clients: creates", "write sent", "informer", "slow readers", "memory of a plan", "start to ready", "size of the program"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line about %q:\n%s", want, out.String())
		}
	}
}

// TestTwoPrograms measures two programs at the same time.
func TestTwoPrograms(t *testing.T) {
	var out bytes.Buffer
	program := testkit.Binary(t)
	b := &bench{sizes: smoke, binary: program + "," + program}
	if err := b.run(t.Context(), &out, "watch"); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"program 1: memory write sent", "program 2: sqlite: CPU of the control plane"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line %q:\n%s", want, out.String())
		}
	}
}

func TestQuantile(t *testing.T) {
	d := durations{4e6, 1e6, 3e6, 2e6}
	for q, want := range map[float64]float64{0: 1, 0.5: 3, 0.99: 4, 1: 4} {
		if got := d.quantile(q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if got := (durations{}).quantile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
