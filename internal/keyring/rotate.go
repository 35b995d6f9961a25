package keyring

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// ErrBusy: a rotation step is under way already.
var ErrBusy = errors.New("a rotation is under way; wait until it has ended")

// UnfinishedError: something still needs an old key, or may.
type UnfinishedError struct {
	// Records that need it.
	Records int
	// Wait is how long a write may still bring a record that does.
	Wait time.Duration
}

func (e *UnfinishedError) Error() string {
	if e.Records > 0 {
		return fmt.Sprintf("%d records still need an old key: rotate first", e.Records)
	}
	return fmt.Sprintf("requests that began before the rotation may still write with the old key for %s", e.Wait)
}

// settle is longer than any request to the API lives (60 s, upstream's
// RequestTimeout): what was encrypted before a new key came is then committed.
const settle = 70 * time.Second

// Rotation changes the keys of what is in a store. It keeps no state of its own:
// which key a record needs is written in it, so a rotation that was cut short
// at any point goes on with the next Step. All fields are required.
type Rotation struct {
	Ring  *Ring
	Store store.Store
	// Prefixes of the keys in the store whose values are encrypted.
	Prefixes []string
	// Rewrite writes the object of a key in the store unchanged, through the
	// API's write path. That it is gone, or was changed meanwhile, is no error.
	Rewrite func(ctx context.Context, key string) error
	// Now; nil: time.Now.
	Now func() time.Time

	busy sync.Mutex
}

// KeyStatus is what a key is used for.
type KeyStatus struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created,omitzero"`
	// Encrypts: new values are encrypted with it.
	Encrypts bool `json:"encrypts,omitempty"`
	// Missing: records need it, and it is not in the key file.
	Missing bool `json:"missing,omitempty"`
	Records int  `json:"records"`
}

// Status of all keys.
type Status struct {
	Keys []KeyStatus `json:"keys"`
	// Unreadable records are not encrypted, or not as this program does it.
	Unreadable []string `json:"unreadable,omitempty"`
	// Lost are objects whose key is missing (secrets/NAMESPACE/NAME), the first
	// of them; see Rotation.Discard.
	Lost []string `json:"lost,omitempty"`
}

// maxLost is how many lost objects a Status names.
const maxLost = 100

// Outdated counts the records that need another key of the ring than the first.
// Those whose key is missing need none that could be dropped.
func (s Status) Outdated() int {
	n := 0
	for _, k := range s.Keys {
		if !k.Encrypts && !k.Missing {
			n += k.Records
		}
	}
	return n
}

// Status counts which record needs which key.
func (r *Rotation) Status(ctx context.Context) (Status, error) {
	var s Status
	for i, k := range r.Ring.Keys() {
		s.Keys = append(s.Keys, KeyStatus{ID: k.ID, Created: k.Created, Encrypts: i == 0})
	}
	err := eachSealed(ctx, r.Store, r.Prefixes, func(rec store.Record) error {
		id, err := KeyID(rec.Value)
		if err != nil {
			s.Unreadable = append(s.Unreadable, rec.Key)
			return nil
		}
		i := slices.IndexFunc(s.Keys, func(k KeyStatus) bool { return k.ID == id })
		if i < 0 {
			i = len(s.Keys)
			s.Keys = append(s.Keys, KeyStatus{ID: id, Missing: true})
		}
		s.Keys[i].Records++
		if s.Keys[i].Missing && len(s.Lost) < maxLost {
			s.Lost = append(s.Lost, r.objectOf(rec.Key))
		}
		return nil
	})
	return s, err
}

// Step rotates for at most the given time: it adds a key, unless an earlier
// rotation is unfinished, and rewrites records. more reports whether records are
// left for the next Step. Errors: ErrBusy, *MissingKeyError, those of Rewrite
// and of the store. Records rewritten before an error stay rewritten.
func (r *Rotation) Step(ctx context.Context, atMost time.Duration, fresh bool) (more bool, err error) {
	if !r.busy.TryLock() {
		return false, ErrBusy
	}
	defer r.busy.Unlock()
	if fresh {
		status, err := r.Status(ctx)
		if err != nil {
			return false, fmt.Errorf("rotate keys: %w", err)
		}
		if status.Outdated() == 0 {
			if _, err := r.Ring.add(r.now()); err != nil {
				return false, fmt.Errorf("rotate keys: %w", err)
			}
		}
	}
	first, ok := r.Ring.first()
	if !ok {
		return false, &MissingKeyError{Path: r.Ring.Path()}
	}
	deadline := r.now().Add(atMost)
	var failed int
	var why error
	err = eachSealed(ctx, r.Store, r.Prefixes, func(rec store.Record) error {
		id, err := KeyID(rec.Value)
		if err != nil || id == first.ID {
			return nil // what cannot be read is in the status, and no reason to stop
		}
		if _, ok := r.Ring.find(id); !ok {
			return nil
		}
		if !r.now().Before(deadline) {
			return errLater
		}
		if err := r.Rewrite(ctx, rec.Key); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if failed++; why == nil {
				why = fmt.Errorf("rewrite %q: %w", rec.Key, err)
			}
		}
		return nil
	})
	switch {
	case failed > 0:
		return false, fmt.Errorf("rotate keys: %d records were not rewritten, the first: %w", failed, why)
	case errors.Is(err, errLater):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("rotate keys: %w", err)
	}
	return false, nil
}

// errLater ends a step whose time is over.
var errLater = errors.New("later")

// Prune drops all keys but the first. It first checks that no record needs them
// and compacts the store, since history may need them too: watches that are behind list again.
// Errors: ErrBusy, *UnfinishedError, *MissingKeyError and those of the store.
func (r *Rotation) Prune(ctx context.Context) (dropped []Key, err error) {
	if !r.busy.TryLock() {
		return nil, ErrBusy
	}
	defer r.busy.Unlock()
	keys := r.Ring.Keys()
	if len(keys) == 0 {
		return nil, &MissingKeyError{Path: r.Ring.Path()}
	}
	if err := r.finished(ctx); err != nil {
		return nil, err
	}
	// A clock that was set back must not extend the wait.
	if wait := min(keys[0].Created.Add(settle).Sub(r.now()), settle); wait > 0 && len(keys) > 1 {
		return nil, &UnfinishedError{Wait: wait.Round(time.Second)}
	}
	revision, err := r.Store.Revision(ctx)
	if err == nil {
		err = r.Store.Compact(ctx, revision)
	}
	if err != nil {
		return nil, fmt.Errorf("prune keys: %w", err)
	}
	// A commit that hung has come through before the compaction did.
	if err := r.finished(ctx); err != nil {
		return nil, err
	}
	if dropped, err = r.Ring.drop(); err != nil {
		return nil, fmt.Errorf("prune keys: %w", err)
	}
	return dropped, nil
}

// finished: no record needs an old key.
func (r *Rotation) finished(ctx context.Context) error {
	status, err := r.Status(ctx)
	if err != nil {
		return fmt.Errorf("prune keys: %w", err)
	}
	if n := status.Outdated(); n > 0 {
		return &UnfinishedError{Records: n}
	}
	return nil
}

func (r *Rotation) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// AnySealed reports whether a store has encrypted records under prefixes.
func AnySealed(ctx context.Context, s store.Store, prefixes []string) (bool, error) {
	found := errors.New("found")
	err := eachSealed(ctx, s, prefixes, func(rec store.Record) error {
		if strings.HasPrefix(string(rec.Value), anyPrefix) {
			return found
		}
		return nil
	})
	if errors.Is(err, found) {
		return true, nil
	}
	return false, err
}

// eachSealed visits the records under prefixes, in pages, each as new as it can
// be: history may be compacted during a rotation.
func eachSealed(ctx context.Context, s store.Store, prefixes []string, visit func(store.Record) error) error {
	const page = 200
	for _, prefix := range prefixes {
		opts := store.ListOptions{Prefix: prefix, Limit: page}
		for more := true; more; {
			p, err := s.List(ctx, opts)
			if err != nil {
				return err
			}
			for _, rec := range p.Records {
				if err := visit(rec); err != nil {
					return err
				}
			}
			if more = p.More; more {
				opts.From = p.Records[len(p.Records)-1].Key + "\x00"
			}
		}
	}
	return nil
}
