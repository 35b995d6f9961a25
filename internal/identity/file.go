package identity

import (
	"os"
	"path/filepath"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/secretfile"
)

const (
	secretMode = 0o600
	dirMode    = 0o700
	// maxSecret bounds what is read back, in bytes: many times what is ever written.
	maxSecret = 4 << 20
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
	return secretfile.Read(path, secretfile.Rule{
		Readers: secretfile.OwnerOnly, Max: maxSecret,
		Advice: "chmod 600 it, and replace the key if they may have", Kind: "it is not one of ours",
	})
}
