package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestSmoke: all servers reach all streams, in a size that says nothing of
// speed.
func TestSmoke(t *testing.T) {
	var out bytes.Buffer
	if err := compare(&out, 5, 2, 20); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"floor", "proxima", "zones", "LinearCache"} {
		if !strings.Contains(out.String(), name) {
			t.Errorf("no figures for %s:\n%s", name, out.String())
		}
	}
}
