// Package position keeps how far a state was in a file outside of it, so that a state that went
// back in time is noticed at the next start: it lost acknowledged transactions.
//
// It owns the file, a line of JSON. What a store does that is behind its position is its own
// decision.
package position

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Position is a point of a history. The zero value is before all.
type Position struct {
	Epoch    string         `json:"epoch"`
	Revision store.Revision `json:"revision"`
}

// Read a file; the zero value if there is none. Errors name the file.
func Read(path string) (p Position, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Position{}, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil {
		return Position{}, fmt.Errorf("file %q: %w", path, err)
	}
	return p, nil
}

// Write a file, which is replaced as a whole; it is on the disk when Write returns.
func (p Position) Write(path string) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(data, '\n'), 0o600)
}
