package main

import (
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/netns"
)

func TestSmoke(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	var out strings.Builder
	if err := run(t.Context(), sizes{services: []int{7}, installs: 2, changes: 3, batches: 1}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cold install", "one endpoint replaced", "short transaction", "last / first"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
}
