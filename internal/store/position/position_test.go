package position_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/store/position"
)

func TestReadAndWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.position")
	if p, err := position.Read(path); err != nil || p != (position.Position{}) {
		t.Errorf("without a file: %v %v", p, err)
	}
	for _, want := range []position.Position{{Epoch: "a", Revision: 7}, {Epoch: "b", Revision: 8}} {
		if err := want.Write(path); err != nil {
			t.Fatal(err)
		}
		if p, err := position.Read(path); err != nil || p != want {
			t.Errorf("%v %v, want %v", p, err, want)
		}
	}
	if err := os.WriteFile(path, []byte(`{"epoch": 1`), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := position.Read(path); err == nil || !strings.Contains(err.Error(), path) || p != (position.Position{}) {
		t.Errorf("a damaged file: %v %v", p, err)
	}
}
