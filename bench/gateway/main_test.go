package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestMain lets the program start itself in its roles, as it does outside tests.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-role") {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestSmoke runs every way that is installed; the figures are for people.
func TestSmoke(t *testing.T) {
	var out bytes.Buffer
	if err := run(&out, smokePlan); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	for _, want := range []string{"direct", "proxima", "haproxy", "envoy", "kB per connection"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing about %q:\n%s", want, &out)
		}
	}
	t.Log("\n" + out.String())
}

func TestRatio(t *testing.T) {
	// One round was disturbed, for both: its ratio is as good as the others'.
	if got := median(ratios([]float64{1, 20, 1}, []float64{2, 40, 2})); got != 0.5 {
		t.Errorf("ratio: %v, want 0.5", got)
	}
}

func TestUnknownRole(t *testing.T) {
	if err := serve("clerk", "", "127.0.0.1:0", ""); err == nil || !strings.Contains(err.Error(), "clerk") {
		t.Errorf("an unknown role: %v", err)
	}
}
