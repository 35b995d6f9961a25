package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestGenerated: the definitions in the chart, and their page, are those of the code.
func TestGenerated(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "crds.md")
	if err := write(dir, page); err != nil {
		t.Fatal(err)
	}
	const committed = "../../deploy/helm/proxima/files/crds"
	want, got := files(t, dir), files(t, committed)
	delete(want, "crds.md")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s is not what the code says: make gen (-want +got):\n%s", committed, diff)
	}
	if diff := cmp.Diff(read(t, page), read(t, "../../docs/reference/crds.md")); diff != "" {
		t.Errorf("docs/reference/crds.md is not what the code says: make gen (-want +got):\n%s", diff)
	}
}

func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		out[e.Name()] = read(t, filepath.Join(dir, e.Name()))
	}
	return out
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
