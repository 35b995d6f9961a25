package keyring

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/proxima-mesh/proxima/internal/store"
)

var (
	// ErrAbsent: there is no such object.
	ErrAbsent = errors.New("there is no such object")
	// ErrReadable: the object can be decrypted, so it is deleted as any other.
	ErrReadable = errors.New("it can be decrypted: delete it as usual")
	// ErrChanged: the object was written after it was read.
	ErrChanged = errors.New("it was written just now: review it again")
)

// UnknownResourceError: nothing of this resource is encrypted.
type UnknownResourceError struct{ Resource string }

func (e *UnknownResourceError) Error() string {
	return fmt.Sprintf("no %q are encrypted", e.Resource)
}

// Discard deletes an object that cannot be decrypted any more, as its key is lost
// for good: the API cannot, as it reads what it deletes. The object is named by
// its resource ("secrets") and, behind it, by namespace/name or name. What can be
// decrypted is refused, also after the key came back. Errors: ErrAbsent,
// ErrReadable, ErrChanged, *UnknownResourceError and those of the store.
func (r *Rotation) Discard(ctx context.Context, resource, object string) error {
	key, err := r.keyOf(resource, object)
	if err != nil {
		return fmt.Errorf("discard %s %s: %w", resource, object, err)
	}
	err = r.discard(ctx, key)
	if err != nil {
		return fmt.Errorf("discard %s %s: %w", resource, object, err)
	}
	return nil
}

func (r *Rotation) discard(ctx context.Context, key string) error {
	rec, ok, _, err := r.Store.Get(ctx, key, 0)
	switch {
	case err != nil:
		return err
	case !ok:
		return ErrAbsent
	}
	if _, _, err := r.Ring.Unseal([]byte(rec.Key), rec.Value); err == nil {
		return ErrReadable
	}
	_, err = r.Store.Commit(ctx, store.Txn{
		Conditions: []store.Condition{{Key: rec.Key, Modified: rec.Modified}},
		Ops:        []store.Op{{Kind: store.Delete, Key: rec.Key}},
	})
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		return ErrChanged
	}
	return err
}

// keyOf finds the key in the store by what people call an object.
func (r *Rotation) keyOf(resource, object string) (string, error) {
	for _, prefix := range r.Prefixes {
		if path.Base(prefix) != resource {
			continue
		}
		if object == "" || path.Clean(object) != object || strings.HasPrefix(object, "/") || strings.HasPrefix(object, "..") {
			return "", ErrAbsent
		}
		return prefix + object, nil
	}
	return "", &UnknownResourceError{Resource: resource}
}

// objectOf is the name of the object stored at a key, as secrets/NAMESPACE/NAME.
func (r *Rotation) objectOf(key string) string {
	for _, prefix := range r.Prefixes {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			return path.Base(prefix) + "/" + rest
		}
	}
	return key
}
