package clusterkey

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Key of the record in the store.
const Key = "/proxima/cluster/keys"

// Items are what instances share, by name: the authority, the key ring.
type Items map[string][]byte

func (i Items) equal(o Items) bool { return maps.EqualFunc(i, o, bytes.Equal) }

// Errors of Join and Update.
var (
	// ErrKeyNeeded: the store has shared keys, and this instance no cluster key.
	ErrKeyNeeded = errors.New("this control plane has several instances, which share their keys: start it with --cluster-key-file")
	// ErrDiffers: this instance has other keys than the others share.
	ErrDiffers = errors.New("this instance has keys of its own, which are not those that the others share")
	// ErrConflict: another instance has changed the keys meanwhile.
	ErrConflict = errors.New("the shared keys were changed meanwhile")
)

// record is what is in the store.
type record struct {
	Version int `json:"version"`
	// Wrapped is the random key that encrypts Items, wrapped.
	Wrapped []byte `json:"wrapped"`
	Items   []byte `json:"items"`
}

const version = 1

// Shared are the keys of a control plane, as the store has them.
type Shared struct {
	Items Items
	// revision of the record; 0: there is none.
	revision store.Revision
}

// Join takes part in a control plane. local is what this instance has on its disk, nil if
// it has nothing yet; fresh makes everything new.
//
// If the store has shared keys, those are returned, and local must be nil or the same.
// Otherwise this instance is the first: it shares local, or what fresh makes. Of several
// that are first at the same time, one wins, and all return what that one shared. With no
// wrapper nothing is shared: Join returns nil Items, or ErrKeyNeeded where others share.
func Join(ctx context.Context, s store.Store, w Wrapper, local Items, fresh func() (Items, error)) (*Shared, error) {
	out, err := join(ctx, s, w, local, fresh)
	if err != nil {
		return nil, fmt.Errorf("share the keys of the control plane: %w", err)
	}
	return out, nil
}

func join(ctx context.Context, s store.Store, w Wrapper, local Items, fresh func() (Items, error)) (*Shared, error) {
	for {
		shared, err := Load(ctx, s, w)
		if err != nil {
			return nil, err
		}
		if shared.revision != 0 {
			if local != nil && !local.equal(shared.Items) {
				return nil, fmt.Errorf("%w (%s): remove them from the data directory, or start it with an empty one", ErrDiffers,
					differing(local, shared.Items))
			}
			return shared, nil
		}
		if w == nil {
			return shared, nil
		}
		items := local
		if items == nil {
			if items, err = fresh(); err != nil {
				return nil, err
			}
		}
		err = shared.Update(ctx, s, w, items)
		if err == nil {
			return shared, nil
		}
		if !errors.Is(err, ErrConflict) {
			return nil, err
		}
		// Another instance was first: its keys count, unless these were in use before.
	}
}

func differing(a, b Items) string {
	names := map[string]bool{}
	for name := range a {
		names[name] = !bytes.Equal(a[name], b[name])
	}
	for name := range b {
		names[name] = !bytes.Equal(a[name], b[name])
	}
	var out []string
	for name, differs := range names {
		if differs {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

// Load reads the shared keys; of none, Items is nil. Errors: ErrKeyNeeded, ErrWrongKey.
func Load(ctx context.Context, s store.Store, w Wrapper) (*Shared, error) {
	rec, ok, _, err := s.Get(ctx, Key, 0)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return &Shared{}, nil
	case w == nil:
		return nil, ErrKeyNeeded
	}
	items, err := open(ctx, w, rec.Value)
	if err != nil {
		return nil, err
	}
	return &Shared{Items: items, revision: rec.Modified}, nil
}

// Update replaces the shared keys, as after a rotation of the key ring or of the cluster
// key. Error: ErrConflict if they are not those that were loaded.
func (sh *Shared) Update(ctx context.Context, s store.Store, w Wrapper, items Items) error {
	value, err := seals(ctx, w, items)
	if err != nil {
		return err
	}
	revision, err := s.Commit(ctx, store.Txn{
		Conditions: []store.Condition{{Key: Key, Modified: sh.revision}},
		Ops:        []store.Op{{Kind: store.Put, Key: Key, Value: value}},
	})
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		return ErrConflict
	}
	if err != nil {
		return err
	}
	sh.Items, sh.revision = maps.Clone(items), revision
	return nil
}

// seals items by a random key, and that key by the wrapper.
func seals(ctx context.Context, w Wrapper, items Items) ([]byte, error) {
	plain, err := json.Marshal(items)
	if err != nil {
		return nil, err
	}
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // crypto/rand.Read never fails
	aead, _, err := seal(key, "items")
	if err != nil {
		return nil, err
	}
	wrapped, err := w.Wrap(ctx, key)
	if err != nil {
		return nil, err
	}
	return json.Marshal(record{Version: version, Wrapped: wrapped, Items: aead.Seal(nil, nil, plain, []byte(Key))})
}

// open what seals made.
func open(ctx context.Context, w Wrapper, value []byte) (Items, error) {
	var rec record
	if err := json.Unmarshal(value, &rec); err != nil {
		return nil, errors.New("the shared keys in the store are damaged")
	}
	if rec.Version != version {
		return nil, fmt.Errorf("the shared keys in the store are of version %d: use a newer version of proxima", rec.Version)
	}
	key, err := w.Unwrap(ctx, rec.Wrapped)
	if err != nil {
		return nil, err
	}
	if len(key) != keySize {
		return nil, fmt.Errorf("the cluster key unwraps to %d bytes, not %d", len(key), keySize)
	}
	aead, _, err := seal(key, "items")
	if err != nil {
		return nil, err
	}
	plain, err := aead.Open(nil, nil, rec.Items, []byte(Key))
	if err != nil {
		return nil, errors.New("the shared keys in the store were changed: authentication failed")
	}
	items := Items{}
	if err := json.Unmarshal(plain, &items); err != nil {
		return nil, errors.New("the shared keys in the store are damaged")
	}
	return items, nil
}
