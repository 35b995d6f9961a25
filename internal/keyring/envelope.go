package keyring

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

const (
	prefix    = "proxima:sealed:1:"
	anyPrefix = "proxima:sealed:"
	idSize    = 16
	saltSize  = 32
	nonceSize = 12
	tagSize   = 16
	headSize  = len(prefix) + idSize + 1 + saltSize
)

var (
	// ErrPlain: a value that should be encrypted is not. It is never accepted:
	// otherwise a writer to the store could forge secrets.
	ErrPlain = errors.New("it is not encrypted")
	// ErrTampered: the value was changed, or belongs to another name.
	ErrTampered = errors.New("it was changed, or is the value of another name: authentication failed")
)

// FormatError reports a value that no version of this package wrote.
type FormatError struct{ Reason string }

func (e *FormatError) Error() string { return "encrypted value: " + e.Reason }

// KeyID returns the ID of the key that encrypted a value, without decrypting it.
// Errors: ErrPlain, *FormatError.
func KeyID(sealed []byte) (string, error) {
	id, _, err := split(sealed)
	return id, err
}

// split checks the outside of a value.
func split(sealed []byte) (id string, salt []byte, err error) {
	switch {
	case !bytes.HasPrefix(sealed, []byte(anyPrefix)):
		return "", nil, ErrPlain
	case !bytes.HasPrefix(sealed, []byte(prefix)):
		return "", nil, &FormatError{"another version of the format; use a newer version of proxima"}
	case len(sealed) < headSize+tagSize:
		return "", nil, &FormatError{fmt.Sprintf("it is cut off after %d bytes", len(sealed))}
	}
	id = string(sealed[len(prefix):][:idSize])
	if !isID(id) || sealed[len(prefix)+idSize] != ':' {
		return "", nil, &FormatError{"no key id"}
	}
	return id, sealed[headSize-saltSize : headSize], nil
}

func isID(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) == idSize
}

// Seal encrypts a value for a name. Two calls never give the same result.
// Errors: *MissingKeyError.
func (r *Ring) Seal(name, plain []byte) ([]byte, error) {
	k, ok := r.first()
	if !ok {
		return nil, &MissingKeyError{Path: r.path}
	}
	sealed := make([]byte, 0, headSize+len(plain)+tagSize)
	sealed = append(sealed, prefix...)
	sealed = append(sealed, k.ID...)
	sealed = append(sealed, ':')
	sealed = sealed[:headSize]
	salt := sealed[headSize-saltSize:]
	_, _ = rand.Read(salt) // crypto/rand.Read never fails
	aead, nonce, err := k.message(salt)
	if err != nil {
		return nil, err
	}
	return aead.Seal(sealed, nonce, plain, authenticated(sealed, name)), nil
}

// Unseal decrypts the value stored under name. stale: it should be re-encrypted with
// the ring's first key. Errors: ErrPlain, ErrTampered, *FormatError,
// *MissingKeyError.
func (r *Ring) Unseal(name, sealed []byte) (plain []byte, stale bool, err error) {
	id, salt, err := split(sealed)
	if err != nil {
		return nil, false, err
	}
	k, ok := r.find(id)
	if !ok {
		return nil, false, &MissingKeyError{ID: id, Path: r.path}
	}
	aead, nonce, err := k.message(salt)
	if err != nil {
		return nil, false, err
	}
	head, box := sealed[:headSize], sealed[headSize:]
	plain, err = aead.Open(make([]byte, 0, len(box)), nonce, box, authenticated(head, name))
	if err != nil {
		return nil, false, ErrTampered
	}
	first, _ := r.first()
	return plain, first.ID != id, nil
}

// authenticated is head and name; head has always the same length.
func authenticated(head, name []byte) []byte {
	return append(append(make([]byte, 0, len(head)+len(name)), head...), name...)
}

// message derives what encrypts one message.
func (k *Key) message(salt []byte) (cipher.AEAD, []byte, error) {
	// The ring's key is uniformly random, so expanding is enough (RFC 5869, 3.3).
	derived, err := hkdf.Expand(sha256.New, k.secret[:], "proxima sealed 1:"+string(salt), keySize+nonceSize)
	if err != nil {
		return nil, nil, err
	}
	block, err := aes.NewCipher(derived[:keySize])
	if err != nil {
		return nil, nil, err
	}
	aead, err := cipher.NewGCM(block)
	return aead, derived[keySize:], err
}
