// Package buildtest has the binary of the product for tests.
package buildtest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/proxima-mesh/proxima/tools/release/build"
)

// Binary is the one that "make build" left, which "make test" does first, or else a new one.
// root is the root of the repository.
func Binary(t *testing.T, root string) string {
	t.Helper()
	return command(t, root, "proxima", build.Source.Binary)
}

// Sidecar is proxima-sidecar, as Binary.
func Sidecar(t *testing.T, root string) string {
	t.Helper()
	return command(t, root, "proxima-sidecar", build.Source.Sidecar)
}

func command(t *testing.T, root, name string, make func(build.Source, context.Context, build.Platform, string) error) string {
	t.Helper()
	file, err := filepath.Abs(filepath.Join(root, "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil {
		return file
	}
	source, err := build.Read(t.Context(), root, "v0.1.0-test")
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), name)
	if err := make(source, t.Context(), build.Host(), file); err != nil {
		t.Fatal(err)
	}
	return file
}
