package fromview

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/atomicfile"
)

// The state file is a magic string, which names the version of the layout, the
// SHA-256 of the rest, and the rest: a nodev1.State.
const magic = "proxima view 1\n"

var errNoState = errors.New("no state file")

// readState reads a state file. errNoState: there is none. After any other error it
// cannot be used.
func readState(path string) (*nodev1.State, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoState
	}
	if err != nil {
		return nil, err
	}
	return decodeState(b)
}

func decodeState(b []byte) (*nodev1.State, error) {
	rest, ok := bytes.CutPrefix(b, []byte(magic))
	if !ok {
		return nil, errors.New("not a state file of this version")
	}
	if len(rest) < sha256.Size {
		return nil, errors.New("cut short")
	}
	sum, body := rest[:sha256.Size], rest[sha256.Size:]
	if actual := sha256.Sum256(body); !bytes.Equal(sum, actual[:]) {
		return nil, errors.New("checksum does not match")
	}
	var s nodev1.State
	if err := proto.Unmarshal(body, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

func encodeState(s *nodev1.State) ([]byte, error) {
	body, err := proto.Marshal(s)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	return append(append([]byte(magic), sum[:]...), body...), nil
}

// writeState replaces a state file atomically and durably: after a crash there is the
// old one or the new one, complete.
func writeState(path string, s *nodev1.State) (size int, err error) {
	b, err := encodeState(s)
	if err != nil {
		return 0, fmt.Errorf("marshal state: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return 0, err
	}
	return len(b), atomicfile.Write(path, b, 0o600)
}
