package kernelspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/proxima-mesh/proxima/internal/proxy/kernelspace/hns"
)

// record is what this mode has made in HNS, on disk: load balancers and access control lists carry
// no mark of who made them. Endpoints do: see endpointName.
type record struct {
	// Network that it is in, by name.
	Network string `json:"network"`
	// Balancers are identifiers.
	Balancers []string `json:"balancers"`
	// Creating are the fronts of load balancers that were about to be made, so that one whose
	// identifier could not be written any more is known all the same.
	Creating []string `json:"creating,omitempty"`
	// ACLs that are there, or were about to be added.
	ACLs []hns.ACL `json:"acls,omitempty"`
}

// readRecord of a file; one that is not there, or damaged, is empty. A damaged one is an error, too:
// load balancers of it stay until something else wants their fronts.
func readRecord(path string) (r record, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return record{}, fmt.Errorf("record of HNS objects %s: %w", path, err)
	}
	return r, nil
}

// save writes the record, if it differs from what is on disk.
func (m *Mode) save(r record) error {
	slices.Sort(r.Balancers)
	slices.Sort(r.Creating)
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	m.record = r
	if string(data) == m.saved {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(m.o.StateFile), 0o755); err != nil {
		return fmt.Errorf("record of HNS objects: %w", err)
	}
	if err := m.o.write(m.o.StateFile, data, 0o600); err != nil {
		return fmt.Errorf("record of HNS objects: %w", err)
	}
	m.saved = string(data)
	return nil
}
