package identity

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
)

const (
	secretMode = 0o600
	dirMode    = 0o700
)

// writeFile replaces a file by a whole new one: after a crash there is the old
// content or the new, never a part.
func writeFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return err
	}
	return atomicfile.Write(path, data, secretMode)
}

// readSecret reads a file that must be readable by its owner only.
func readSecret(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others (mode %04o): chmod 600 it, and replace the key if they may have",
			path, info.Mode().Perm())
	}
	return os.ReadFile(path)
}
