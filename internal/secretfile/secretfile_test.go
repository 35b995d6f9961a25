package secretfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/secretfile"
)

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("12345678"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		mode    fs.FileMode
		readers secretfile.Readers
		max     int64
		want    string // part of the error; empty: it is read
	}{
		{"its owner's", 0o600, secretfile.OwnerOnly, 8, ""},
		{"its owner's, to be read only", 0o400, secretfile.OwnerOnly, 8, ""},
		{"readable by the group", 0o640, secretfile.OwnerOnly, 8, "can be read by others (mode 0640): do this"},
		{"readable by the group, which is allowed", 0o640, secretfile.OwnersGroup, 8, ""},
		{"writable by the group", 0o660, secretfile.OwnersGroup, 8, "mode 0660"},
		{"readable by all", 0o604, secretfile.OwnersGroup, 8, "mode 0604"},
		{"no secret", 0o644, secretfile.Anyone, 8, ""},
		{"too large", 0o600, secretfile.OwnerOnly, 7, "more than 7 bytes: it is no key"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if runtime.GOOS == "windows" && strings.Contains(tc.want, "mode") {
				t.Skip("Windows has no modes")
			}
			if err := os.Chmod(path, tc.mode); err != nil {
				t.Fatal(err)
			}
			data, err := secretfile.Read(path, secretfile.Rule{Readers: tc.readers, Max: tc.max, Advice: "do this", Kind: "it is no key"})
			if tc.want == "" {
				if err != nil || string(data) != "12345678" {
					t.Fatalf("%q, %v", data, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || data != nil {
				t.Fatalf("%q, %v, want %q", data, err, tc.want)
			}
			if strings.Contains(err.Error(), "1234") {
				t.Errorf("the error quotes the file: %v", err)
			}
		})
	}
}

func TestMissingFile(t *testing.T) {
	rule := secretfile.Rule{Max: 1}
	if _, err := secretfile.Read(filepath.Join(t.TempDir(), "none"), rule); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
