package ebpf

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestObject: the committed object is that of the source, as clang 14 of Debian 12 makes it.
func TestObject(t *testing.T) {
	for _, tool := range []string{"clang-14", "llvm-strip-14"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%v: the object cannot be compared; tools/setup installs clang-14 and llvm-14 of Debian 12", err)
		}
	}
	built := filepath.Join(t.TempDir(), "connect.o")
	if out, err := exec.CommandContext(t.Context(), "program/build", built).CombinedOutput(); err != nil {
		t.Fatalf("program/build: %v\n%s", err, out)
	}
	want, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("program/connect.o")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Error("program/connect.o is not that of program/connect.c: run internal/proxy/ebpf/program/build")
	}
}
