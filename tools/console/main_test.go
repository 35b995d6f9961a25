package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestCommitted: the files that the program carries are those of the sources.
func TestCommitted(t *testing.T) {
	root := filepath.Join("..", "..")
	dist, fresh := filepath.Join(root, "internal", "console", "dist"), t.TempDir()
	if err := bundle(filepath.Join(root, "web"), fresh); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(fresh)
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadDir(dist)
	if err != nil {
		t.Fatal(err)
	}
	if len(committed) != len(entries) {
		t.Errorf("%d files are committed, the sources make %d: make gen", len(committed), len(entries))
	}
	for _, e := range entries {
		want, err := os.ReadFile(filepath.Join(fresh, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dist, e.Name()))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the sources make (%v): make gen", e.Name(), err)
		}
	}
}
