package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReferenceIsCurrent: docs/reference/problems.md is what the code says.
func TestReferenceIsCurrent(t *testing.T) {
	want, err := os.ReadFile("../../docs/reference/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	if err := write(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("run make gen:\n%s", diff)
	}
}
