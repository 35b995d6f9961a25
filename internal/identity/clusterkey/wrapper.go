package clusterkey

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/secretfile"
)

// Wrapper encrypts small keys by one that never is in the store. Safe for concurrent use.
type Wrapper interface {
	// Wrap encrypts; two calls never give the same result.
	Wrap(ctx context.Context, plain []byte) ([]byte, error)
	// Unwrap decrypts what Wrap returned. Error: ErrWrongKey if the key is another one.
	Unwrap(ctx context.Context, wrapped []byte) (plain []byte, err error)
}

// ErrWrongKey: what is kept in the store was wrapped by another key.
var ErrWrongKey = errors.New("it was wrapped by another cluster key")

// keySize of AES-256.
const keySize = 32

// File is a Wrapper by the keys in a file: a line each, base64 of 32 random bytes, as
// `openssl rand -base64 32` writes. The first wraps, all unwrap, so that a key is changed
// by putting another one before it. Lines that begin with # are comments.
type File struct{ keys [][]byte }

// maxFile in bytes.
const maxFile = 64 << 10

// OpenFile reads a key file. It never makes one: a key that is not the cluster's would
// lock this instance out. Errors never quote the file.
func OpenFile(path string) (*File, error) {
	data, err := readSecret(path)
	if err != nil {
		return nil, fmt.Errorf("cluster key: %w", err)
	}
	f, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("cluster key %s: %w: make one with `openssl rand -base64 32`, and give the same file to all instances", path, err)
	}
	return f, nil
}

func readSecret(path string) ([]byte, error) {
	return secretfile.Read(path, secretfile.Rule{
		Readers: secretfile.OwnersGroup, Max: maxFile,
		Advice: "chmod 600 it, and use another key if they may have read it", Kind: "it is too long for a key file",
	})
}

func parse(data []byte) (*File, error) {
	var f File
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, err := base64.StdEncoding.Strict().DecodeString(line)
		if err != nil || len(key) != keySize {
			return nil, fmt.Errorf("line %d is not base64 of %d bytes", n, keySize)
		}
		if bytes.Equal(key, make([]byte, keySize)) {
			return nil, fmt.Errorf("line %d is zero", n)
		}
		f.keys = append(f.keys, key)
	}
	if len(f.keys) == 0 {
		return nil, errors.New("it has no key")
	}
	return &f, nil
}

// String leaves the keys out.
func (f *File) String() string { return fmt.Sprintf("cluster key file with %d keys", len(f.keys)) }

// GoString leaves the keys out of %#v too.
func (f *File) GoString() string { return f.String() }

// idSize of a key's ID at the beginning of what it wrapped.
const idSize = 8

// Wrap implements Wrapper. AES-256-GCM with a random nonce may be used 2^32 times under
// one key (NIST SP 800-38D, 8.3); a cluster key wraps some keys a year.
func (f *File) Wrap(_ context.Context, plain []byte) ([]byte, error) {
	aead, id, err := seal(f.keys[0], "wrap")
	if err != nil {
		return nil, err
	}
	return append(id, aead.Seal(nil, nil, plain, id)...), nil
}

// Unwrap implements Wrapper.
func (f *File) Unwrap(_ context.Context, wrapped []byte) ([]byte, error) {
	if len(wrapped) < idSize {
		return nil, errors.New("wrapped key: cut off")
	}
	have, box := wrapped[:idSize], wrapped[idSize:]
	for _, key := range f.keys {
		aead, id, err := seal(key, "wrap")
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(id, have) {
			continue
		}
		plain, err := aead.Open(nil, nil, box, id)
		if err != nil {
			return nil, errors.New("wrapped key: it was changed: authentication failed")
		}
		return plain, nil
	}
	return nil, fmt.Errorf("%w (%s): give this instance the key file of the others", ErrWrongKey, hex.EncodeToString(have))
}

// seal derives an AEAD for one purpose, and the ID of the key.
func seal(key []byte, purpose string) (cipher.AEAD, []byte, error) {
	derived, err := hkdf.Expand(sha256.New, key, "proxima cluster key 1: "+purpose, keySize)
	if err != nil {
		return nil, nil, err
	}
	id, err := hkdf.Expand(sha256.New, key, "proxima cluster key 1: id", idSize)
	if err != nil {
		return nil, nil, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return aead, id, err
}

// Command is a Wrapper by a program, as for a key management service. It is run with the
// argument "wrap" or "unwrap" added, gets base64 on its standard input, and writes base64
// to its standard output. Another exit code than 0 is a failure; what it writes to
// standard error is the reason.
type Command struct {
	// Argv is the program with its arguments; no shell is involved.
	Argv []string
	// Timeout of one run; 0: 30 s.
	Timeout time.Duration
}

const (
	commandTimeout = 30 * time.Second
	maxOutput      = 64 << 10
	maxReason      = 1 << 10
)

// Wrap implements Wrapper.
func (c *Command) Wrap(ctx context.Context, plain []byte) ([]byte, error) {
	return c.run(ctx, "wrap", plain)
}

// Unwrap implements Wrapper. The reason of a failure is the program's: it is never
// ErrWrongKey.
func (c *Command) Unwrap(ctx context.Context, wrapped []byte) ([]byte, error) {
	return c.run(ctx, "unwrap", wrapped)
}

func (c *Command) run(ctx context.Context, operation string, input []byte) ([]byte, error) {
	if len(c.Argv) == 0 {
		return nil, errors.New("cluster key command: it is empty")
	}
	timeout := c.Timeout
	if timeout <= 0 {
		timeout = commandTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Argv[0], append(append([]string{}, c.Argv[1:]...), operation)...)
	cmd.Stdin = strings.NewReader(base64.StdEncoding.EncodeToString(input) + "\n")
	stdout, stderr := &bounded{max: maxOutput}, &bounded{max: maxReason}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// Its children may hold the pipes open after it was killed.
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer within %s", timeout)
		}
		return nil, fmt.Errorf("cluster key command %s %s: %w: %s", c.Argv[0], operation, err, strings.TrimSpace(stderr.String()))
	}
	out, err := base64.StdEncoding.DecodeString(strings.TrimSpace(stdout.String()))
	if err != nil || len(out) == 0 || stdout.cut {
		return nil, fmt.Errorf("cluster key command %s %s: its output is not base64 of up to %d bytes", c.Argv[0], operation, maxOutput)
	}
	return out, nil
}

// bounded keeps the beginning of what is written, and takes the rest without an error.
// The buffer is no embedded field: its ReadFrom would pass the bound by.
type bounded struct {
	buffer bytes.Buffer
	max    int
	cut    bool
}

func (b *bounded) Write(p []byte) (int, error) {
	left := b.max - b.buffer.Len()
	if len(p) > left {
		b.cut = true
		b.buffer.Write(p[:left])
		return len(p), nil
	}
	return b.buffer.Write(p)
}

func (b *bounded) String() string { return b.buffer.String() }
