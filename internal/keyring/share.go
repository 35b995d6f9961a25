package keyring

import (
	"bytes"
	"fmt"
	"os"
	"slices"
)

// Sharing keeps the key file of a ring that several processes have: each has a file of its
// own, with the same content. Its methods may block, and are called one at a time.
type Sharing interface {
	// Fetch returns the newest content.
	Fetch() ([]byte, error)
	// Publish replaces the content that Fetch returned last. It fails if another process
	// has replaced it since.
	Publish(content []byte) error
}

// Share makes the ring one of several processes. A new key is published before anything is
// encrypted with it, and a key that is not known is fetched. Call it once, before the ring is
// used.
func (r *Ring) Share(s Sharing) { r.shared = s }

// Refresh takes the keys that other processes have published. Without Share it does nothing.
func (r *Ring) Refresh() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fetchLocked()
}

func (r *Ring) fetchLocked() error {
	if r.shared == nil {
		return nil
	}
	content, err := r.shared.Fetch()
	if err != nil {
		return err
	}
	keys, err := decode(content)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(r.path); err == nil && bytes.Equal(have, content) && len(r.keys) > 0 {
		return nil
	}
	return r.saveLocked(keys)
}

// publishLocked shares keys and saves them.
func (r *Ring) publishLocked(keys []Key) error {
	if r.shared != nil {
		if err := r.shared.Publish(encode(keys)); err != nil {
			return err
		}
	}
	return r.saveLocked(keys)
}

// Covers returns an error unless all keys of a key file are in another one, the shared one.
// An empty file has no keys.
func Covers(shared, file []byte) error {
	if len(file) == 0 {
		return nil
	}
	have, err := decode(shared)
	if err != nil {
		return fmt.Errorf("shared keys: %w", err)
	}
	keys, err := decode(file)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if !slices.ContainsFunc(have, func(h Key) bool { return h.ID == k.ID }) {
			return fmt.Errorf("its key %s is not one that the instances share", k.ID)
		}
	}
	return nil
}
