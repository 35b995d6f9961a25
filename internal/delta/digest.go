package delta

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"maps"
	"slices"
	"strings"
)

// digestMark separates the position from the digest in a cursor.
const digestMark = "#"

// Cursor is what a client gives as its position when it is complete up to there, and has these
// versions by name. A server that cannot serve the position, as it has restarted, sees by their
// digest whether the client has what it has all the same. Then nothing else need be sent, in
// either direction.
func Cursor(position string, versions map[string]string) string {
	d := newDigester()
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		d.add(name, versions[name])
	}
	return position + digestMark + d.sum()
}

// digest of the live resources, as in Cursor. It is kept until the next change.
func (t *table) digest() string {
	if t.digestOf == t.index && t.digested != "" {
		return t.digested
	}
	entries := make([]*entry, 0, t.live.len)
	for e := t.live.first; e != nil; e = e.next {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b *entry) int { return strings.Compare(a.name, b.name) })
	d := newDigester()
	for _, e := range entries {
		d.add(e.name, e.version)
	}
	t.digestOf, t.digested = t.index, d.sum()
	return t.digested
}

// digester hashes names and versions, each after its length, so that no two lists have one
// encoding. SHA-256 cut to 128 bits, for the reason that VersionOf gives.
type digester struct {
	hash   hash.Hash
	buffer []byte
}

func newDigester() *digester { return &digester{hash: sha256.New()} }

func (d *digester) add(name, version string) {
	b := binary.AppendUvarint(d.buffer[:0], uint64(len(name)))
	b = append(b, name...)
	b = binary.AppendUvarint(b, uint64(len(version)))
	d.buffer = append(b, version...)
	_, _ = d.hash.Write(d.buffer) // it cannot fail
}

func (d *digester) sum() string { return base64.RawURLEncoding.EncodeToString(d.hash.Sum(nil)[:16]) }
