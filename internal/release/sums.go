package release

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// SumsName is the file with the checksums, in the format of sha256sum(1).
const SumsName = "SHA256SUMS"

// Digest is a SHA-256.
type Digest [sha256.Size]byte

// String is the digest in lower-case hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// ParseDigest reads what String writes.
func ParseDigest(text string) (Digest, error) {
	var d Digest
	if len(text) != hex.EncodedLen(len(d)) || strings.ToLower(text) != text {
		return d, fmt.Errorf("%.80q is no SHA-256 in lower-case hexadecimal digits", text)
	}
	_, err := hex.Decode(d[:], []byte(text))
	return d, err
}

// DigestFile reads a file, in pieces.
func DigestFile(path string) (Digest, error) {
	var d Digest
	f, err := os.Open(path)
	if err != nil {
		return d, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return d, err
	}
	h.Sum(d[:0])
	return d, nil
}

// Sum is a line of SHA256SUMS.
type Sum struct {
	// Name of the file, in the folder of SHA256SUMS.
	Name   string
	Digest Digest
}

// FormatSums writes lines in the order of their names.
func FormatSums(sums []Sum) []byte {
	sums = slices.Clone(sums)
	slices.SortFunc(sums, func(a, b Sum) int { return cmp.Compare(a.Name, b.Name) })
	var out bytes.Buffer
	for _, s := range sums {
		fmt.Fprintf(&out, "%s  %s\n", s.Digest, s.Name)
	}
	return out.Bytes()
}

// maxSums bounds SHA256SUMS, in bytes: thousands of files.
const maxSums = 1 << 20

// ParseSums reads SHA256SUMS: a digest, two spaces or a space and an asterisk, and the plain
// name of a file, one a line.
func ParseSums(data []byte) ([]Sum, error) {
	if len(data) > maxSums {
		return nil, fmt.Errorf("%d bytes are too many for checksums", len(data))
	}
	var out []Sum
	seen := map[string]bool{}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSuffix(line, "\n")
		digest, name, ok := strings.Cut(line, " ")
		if !ok || name == "" || name[0] != ' ' && name[0] != '*' {
			return nil, fmt.Errorf("line %d: %.80q is no checksum and a file", number, line)
		}
		name = name[1:]
		d, err := ParseDigest(digest)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if err := checkName(name); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if seen[name] {
			return nil, fmt.Errorf("line %d: %s is listed twice", number, name)
		}
		seen[name] = true
		out = append(out, Sum{Name: name, Digest: d})
	}
	if len(out) == 0 {
		return nil, errors.New("no checksum in it")
	}
	return out, nil
}

// checkName refuses what could lead out of the folder, or be mistaken on a terminal.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || name != filepath.Base(name) || strings.ContainsAny(name, `/\`) {
		return fmt.Errorf("%.80q is not the plain name of a file", name)
	}
	for _, r := range name {
		if r <= ' ' || r >= 0x7f {
			return fmt.Errorf("%.80q has other characters than the names of a release", name)
		}
	}
	return nil
}
