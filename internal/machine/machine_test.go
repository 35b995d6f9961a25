package machine

import (
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
)

func TestIDIsStableAndWellFormed(t *testing.T) {
	first, err := ID()
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(first) {
		t.Errorf("ID() = %q, want 32 hexadecimal digits", first)
	}
	if second, _ := ID(); second != first {
		t.Errorf("ID() = %q, then %q", first, second)
	}
}

func TestIDDoesNotRevealTheHost(t *testing.T) {
	const host = "3d1219c7c4c5404aaa1f6d2a48adfda4"
	if derive(host, "") == host {
		t.Error("the ID is the host's own machine ID")
	}
	if derive(host, "") == derive(host, "boot 7") {
		t.Error("two network namespaces of one host have one ID")
	}
}

func TestReadID(t *testing.T) {
	for text, want := range map[string]string{"abc\n": "abc", "": "", "uninitialized\n": ""} {
		path := filepath.Join(t.TempDir(), "id")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readID(path); err != nil || got != want {
			t.Errorf("readID of %q = %q, %v; want %q", text, got, err, want)
		}
	}
	if got, err := readID(filepath.Join(t.TempDir(), "absent")); err != nil || got != "" {
		t.Errorf("readID of no file = %q, %v", got, err)
	}
}

func TestGeneratedIDsOfConcurrentStartsAgree(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "machine-id")
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			id, err := generated(path)
			if err != nil {
				t.Error(err)
			}
			ids[i] = id
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Fatalf("generated IDs differ: %q", ids)
		}
	}
}
