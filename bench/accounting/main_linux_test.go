package main

import (
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
)

// TestSmoke runs every part; the figures are for people.
func TestSmoke(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	var out strings.Builder
	if err := smoke.run(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{"2000 flows, 2000 of them translated", "2000 flows, 500 of them", "of a core", "heap", "allocations", "vishvananda", "a datagram"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line about %q:\n%s", want, &out)
		}
	}
}
