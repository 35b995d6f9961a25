package keyring

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/secretfile"
)

// FileName of the keys, in the folder of the control plane's other keys.
const FileName = "secrets.keys"

// maxFile bounds what is read, in bytes.
const maxFile = 1 << 20

const fileHead = `# Keys by which Secrets are encrypted in the store. Without this file they are lost:
# keep a copy in a safe place, apart from backups of the store.
# The first key encrypts, all decrypt. Change them with "proxima secrets rotate".
# id created key
`

// encode writes keys as a file has them.
func encode(keys []Key) []byte {
	b := bytes.NewBufferString(fileHead)
	for _, k := range keys {
		fmt.Fprintf(b, "%s %s %s\n", k.ID, k.Created.Format(time.RFC3339), base64.StdEncoding.EncodeToString(k.secret[:]))
	}
	return b.Bytes()
}

// decode reads what encode wrote. Errors never quote a line: it has a key in it.
func decode(data []byte) ([]Key, error) {
	var keys []Key
	seen := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fmt.Errorf("line %d: want an id, a time and a key", n)
		}
		created, err := time.Parse(time.RFC3339, fields[1])
		if err != nil || created.Year() < 1 || created.Year() > 9999 {
			return nil, fmt.Errorf("line %d: the second word is no time", n)
		}
		secret, err := base64.StdEncoding.Strict().DecodeString(fields[2])
		if err != nil || len(secret) != keySize {
			return nil, fmt.Errorf("line %d: the third word is no key", n)
		}
		k := newKey([keySize]byte(secret), created)
		if k.ID != fields[0] {
			return nil, fmt.Errorf("line %d: the key is not the one with id %.16q: a part of the line was changed", n, fields[0])
		}
		if seen[k.ID] {
			return nil, fmt.Errorf("line %d: key %s is there twice", n, k.ID)
		}
		seen[k.ID] = true
		keys = append(keys, k)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, errors.New("it has no key: put a copy of the file back")
	}
	return keys, nil
}

// changed reports whether the file has changed since it was read.
func (r *Ring) changed() bool {
	info, err := os.Stat(r.path)
	r.mu.RLock()
	defer r.mu.RUnlock()
	return err == nil && stampOf(info) != r.file
}

func (r *Ring) reload() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reloadLocked()
}

// reloadLocked reads the file; on an error the ring keeps what it has.
func (r *Ring) reloadLocked() error {
	data, info, err := secretfile.Open(r.path, secretfile.Rule{
		Readers: secretfile.OwnerOnly, Max: maxFile,
		Advice: fmt.Sprintf("run chmod 600 %s, and proxima secrets rotate if they may have read it", r.path), Kind: "it is no key file",
	})
	if err != nil {
		return err
	}
	keys, err := decode(data)
	if err != nil {
		return fmt.Errorf("%s: %w", r.path, err)
	}
	r.keys, r.file = keys, stampOf(info)
	return nil
}

func (r *Ring) save(keys []Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.saveLocked(keys)
}

// saveLocked replaces the file, so that after a crash it is the old or the new
// one, and then the ring's keys.
func (r *Ring) saveLocked(keys []Key) error {
	folder := filepath.Dir(r.path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	info, err := atomicfile.Replace(r.path, encode(keys), 0o600)
	if info != nil { // the file has the keys, even if it may not be durable
		r.keys, r.file = keys, stampOf(info)
	}
	return err
}
