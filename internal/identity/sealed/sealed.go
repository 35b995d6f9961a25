// Package sealed keeps small records with keys in them in the store, encrypted.
//
// Enter at Record, which is one key of the store. It satisfies the Keepers of packages
// authority (by Simple) and rotation. It never writes a record in the clear, and never
// reads one: package keyring refuses what is not encrypted.
package sealed

import (
	"context"
	"errors"
	"fmt"

	"github.com/proxima-mesh/proxima/internal/identity/rotation"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Prefix of the records in the store.
const Prefix = "/proxima/authorities/"

// Sealer encrypts and decrypts under a name; a *keyring.Ring is one.
type Sealer interface {
	Seal(name, plain []byte) ([]byte, error)
	Unseal(name, sealed []byte) (plain []byte, stale bool, err error)
}

// Record is one sealed record. Safe for concurrent use.
type Record struct {
	store store.Store
	ring  Sealer
	key   string
}

// New names a record, as in "roots/default/4f1c…". It does no I/O.
func New(s store.Store, ring Sealer, name string) *Record {
	return &Record{store: s, ring: ring, key: Prefix + name}
}

// Load implements rotation.Keeper. The version is the revision of the record.
func (r *Record) Load(ctx context.Context) (data []byte, version int64, err error) {
	rec, ok, _, err := r.store.Get(ctx, r.key, 0)
	if err != nil || !ok {
		return nil, 0, err
	}
	plain, _, err := r.ring.Unseal([]byte(r.key), rec.Value)
	if err != nil {
		return nil, 0, fmt.Errorf("record %s: %w", r.key, err)
	}
	return plain, int64(rec.Modified), nil
}

// Save implements rotation.Keeper.
func (r *Record) Save(ctx context.Context, data []byte, version int64) (int64, error) {
	sealed, err := r.ring.Seal([]byte(r.key), data)
	if err != nil {
		return 0, fmt.Errorf("record %s: %w", r.key, err)
	}
	revision, err := r.store.Commit(ctx, store.Txn{
		Conditions: []store.Condition{{Key: r.key, Modified: store.Revision(version)}},
		Ops:        []store.Op{{Kind: store.Put, Key: r.key, Value: sealed}},
	})
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		return 0, fmt.Errorf("record %s: %w", r.key, rotation.ErrConflict)
	}
	return int64(revision), err
}

// Delete removes the record, as when an authority is no longer trusted. That there is
// none is no error.
func (r *Record) Delete(ctx context.Context) error {
	_, err := r.store.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Delete, Key: r.key}}})
	return err
}

// Simple is the record for one that is the only writer, or for whom the last one wins:
// an authority.Keeper.
func (r *Record) Simple() Simple { return Simple{r} }

// Simple is a Record without versions.
type Simple struct{ record *Record }

// Load returns nil if there is no record.
func (s Simple) Load(ctx context.Context) ([]byte, error) {
	data, _, err := s.record.Load(ctx)
	return data, err
}

// Save replaces the record, whatever it is.
func (s Simple) Save(ctx context.Context, data []byte) error {
	sealed, err := s.record.ring.Seal([]byte(s.record.key), data)
	if err != nil {
		return fmt.Errorf("record %s: %w", s.record.key, err)
	}
	_, err = s.record.store.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Put, Key: s.record.key, Value: sealed}}})
	return err
}
