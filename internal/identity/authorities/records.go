package authorities

import (
	"context"
	"fmt"
	"strings"

	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
)

// Record is one sealed record.
type Record interface {
	rotation.Keeper
	// Delete removes it. That there is none is no error.
	Delete(ctx context.Context) error
}

// Records are the sealed records of a control plane, which all its instances share.
type Records interface {
	// Record of a name, as in "rotations/default". It does no I/O.
	Record(name string) Record
	// Simple is the same without versions.
	Simple(name string) authority.Keeper
	// Names of the records that begin with a prefix, sorted.
	Names(ctx context.Context, prefix string) ([]string, error)
	// Watch calls changed after each change of a record, by whichever instance, and
	// after the watch was cut. It blocks until ctx ends, and returns nil then.
	Watch(ctx context.Context, changed func()) error
}

// Names of records.
const (
	rotations     = "rotations/"     // + MESH
	roots         = "roots/"         // + MESH/BACKEND/ID
	intermediates = "intermediates/" // + MESH/ID/ZONE
	zones         = "zones/"         // + MESH/ZONE, at global
)

func rotationName(mesh string) string { return rotations + mesh }

func rootPrefix(mesh, backend string) string { return roots + mesh + "/" + backend + "/" }

func rootName(mesh, backend, id string) string { return rootPrefix(mesh, backend) + id }

func intermediateName(mesh, id, zone string) string {
	return intermediates + mesh + "/" + id + "/" + zone
}

// ZoneRecord is the name of the record that global keeps of a zone in a mesh. It goes with
// the mesh.
func ZoneRecord(mesh, zone string) string { return zones + mesh + "/" + zone }

// lastSegment of a record's name: the ID of a root.
func lastSegment(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// loadState of a mesh's rotation; ok is false if there is none.
func loadState(ctx context.Context, r Records, mesh string) (s rotation.State, ok bool, err error) {
	data, _, err := r.Record(rotationName(mesh)).Load(ctx)
	if err != nil || data == nil {
		return rotation.State{}, false, err
	}
	if s, err = rotation.Decode(data); err != nil {
		return rotation.State{}, false, err
	}
	return s, true, nil
}

// loadRoot of a mesh's built-in authority.
func loadRoot(ctx context.Context, r Records, mesh, backend, id string) (*authority.Root, error) {
	data, err := r.Simple(rootName(mesh, backend, id)).Load(ctx)
	if err != nil {
		return nil, err
	}
	if data == nil {
		return nil, fmt.Errorf("the key of root %s of mesh %s is not in the store", id, mesh)
	}
	return authority.LoadRoot(data)
}
