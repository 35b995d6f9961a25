// Package keyring encrypts objects that are secret before they reach the store.
//
// It owns the keys, the file they are in, the format of what is encrypted, and
// rotation. Enter at Open for the keys, at Ring.Seal and Ring.Unseal, at
// Ring.Transformer for the API server, and at Rotation. It never sends a key
// anywhere, never logs one, and never makes a new key where one seems to be
// lost.
//
// # What it protects
//
// With the state file or a backup, but without the keys, an attacker cannot read
// a secret, cannot change one undetected, and cannot move the secret of one name
// to another: the name in the store is authenticated with the value. A replay of
// an older value under the same name is not detected, nor is a deletion. The
// running process and every reader of the key file can decrypt everything.
//
// # Format
//
//	"proxima:sealed:1:" key id (16 hexadecimal digits) ":" salt (32 bytes) AES-256-GCM
//
// AES-GCM with a random nonce of 96 bits is limited to 2^32 messages under one
// key (NIST SP 800-38D, 8.3). So no key is used twice: each message has its own
// key and nonce, derived by HKDF-SHA256 (RFC 5869) from the ring's key and a
// random salt of 256 bits. Two of 2^64 messages share a salt with a
// probability of 2^-129. Everything before the ciphertext is authenticated too.
package keyring

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// keySize of AES-256.
const keySize = 32

// Key encrypts. Its bytes leave this package only into the key file.
type Key struct {
	// ID is made from the key, so a file with a mistyped key is noticed.
	ID      string
	Created time.Time
	secret  [keySize]byte
}

// String leaves the secret out.
func (k Key) String() string { return "key " + k.ID }

// GoString leaves the secret out of %#v too.
func (k Key) GoString() string { return k.String() }

func newKey(secret [keySize]byte, created time.Time) Key {
	sum := sha256.Sum256(append([]byte("proxima key id 1:"), secret[:]...))
	return Key{ID: hex.EncodeToString(sum[:idSize/2]), Created: created.UTC().Truncate(time.Second), secret: secret}
}

func randomKey(now time.Time) Key {
	var secret [keySize]byte
	_, _ = rand.Read(secret[:]) // crypto/rand.Read never fails
	return newKey(secret, now)
}

// Ring is the keys of one control plane. Safe for concurrent use.
type Ring struct {
	path string

	mu     sync.RWMutex
	keys   []Key // the first encrypts; none: the file is missing
	file   stamp
	shared Sharing // nil: the ring is of one process
}

// stamp identifies a version of a file, to detect changes.
type stamp struct {
	modified time.Time
	size     int64
}

func stampOf(info os.FileInfo) stamp { return stamp{info.ModTime(), info.Size()} }

// Open reads the key file at path. If it does not exist, Open creates it, unless
// sealed reports that the store has encrypted records: then the keys are lost or
// misplaced, and new ones would hide that. In that case Open returns a ring that
// fails with *MissingKeyError until the file is restored.
func Open(path string, sealed bool) (*Ring, error) {
	r := &Ring{path: path}
	err := r.reload()
	if errors.Is(err, os.ErrNotExist) {
		if sealed {
			return r, nil
		}
		err = r.save([]Key{randomKey(time.Now())})
	}
	if err != nil {
		return nil, fmt.Errorf("keys of secrets: %w", err)
	}
	return r, nil
}

// Path of the key file.
func (r *Ring) Path() string { return r.path }

// Keys are the ring's; the first one encrypts. None: the file is missing.
func (r *Ring) Keys() []Key {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.keys)
}

// add puts a new key first, in the file and then in the ring: nothing is ever
// encrypted with a key that is not on the disk.
func (r *Ring) add(now time.Time) (Key, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.current(); err != nil {
		return Key{}, err
	}
	k := randomKey(now)
	return k, r.publishLocked(append([]Key{k}, r.keys...))
}

// drop forgets all keys but the first.
func (r *Ring) drop() (dropped []Key, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.current(); err != nil || len(r.keys) == 1 {
		return nil, err
	}
	dropped = r.keys[1:]
	return dropped, r.publishLocked(r.keys[:1])
}

// current rereads the keys if another writer changed them, so that keys added
// there are not overwritten. The caller holds the lock.
func (r *Ring) current() error {
	err := r.fetchLocked()
	if r.shared == nil {
		err = r.reloadLocked()
	}
	if errors.Is(err, os.ErrNotExist) {
		return &MissingKeyError{Path: r.path}
	}
	return err
}

// find returns the key with an id. One that is not known may have come into
// the file since, or may have been shared by another process.
func (r *Ring) find(id string) (Key, bool) {
	if k, ok := r.known(id); ok {
		return k, true
	}
	if r.changed() && r.reload() == nil {
		if k, ok := r.known(id); ok {
			return k, true
		}
	}
	if r.Refresh() != nil {
		return Key{}, false
	}
	return r.known(id)
}

func (r *Ring) known(id string) (Key, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	i := slices.IndexFunc(r.keys, func(k Key) bool { return k.ID == id })
	if i < 0 {
		return Key{}, false
	}
	return r.keys[i], true
}

// first returns the key to encrypt with.
func (r *Ring) first() (Key, bool) {
	for range 2 {
		r.mu.RLock()
		keys := r.keys
		r.mu.RUnlock()
		if len(keys) > 0 {
			return keys[0], true
		}
		if !r.changed() || r.reload() != nil {
			break
		}
	}
	return Key{}, false
}

// MissingKeyError reports a key that is not in the file.
type MissingKeyError struct {
	// ID of the key; empty: any key would do, there is none.
	ID   string
	Path string
}

func (e *MissingKeyError) Error() string {
	if e.ID == "" {
		return fmt.Sprintf("the key file %s is missing: put it back", e.Path)
	}
	return fmt.Sprintf("it is encrypted with key %s, which is not in %s: put that line, from a copy of the file, back into it", e.ID, e.Path)
}
