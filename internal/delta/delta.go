// Package delta is the engine that sends any number of streams what changed.
//
// It owns, for every scope (a zone's view, say) and type of resource, the newest
// state of each resource in the order of its last change, and the rules by which
// a stream follows it: one cursor per type, each lagging stream gets a name once
// and newest, and streams at the same position share one marshalled response.
// Enter at Scope (the state, written by one party) and Session (one stream that
// reads it).
//
// It never does I/O, starts no goroutine and reads no clock; package stream
// carries sessions over gRPC. It never looks into a resource: the caller marshals
// it once. DESIGN.md in this folder gives the invariants.
package delta

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Position is a point in the history of a scope. Positions of one epoch are
// ordered by their sequence; those of different epochs cannot be compared.
//
// Who writes a scope promises that equal positions mean equal content, on every
// instance that uses the epoch. Whatever else the content depends on (the scope
// itself, the format of its resources) therefore belongs into the epoch.
type Position struct {
	Epoch, Sequence uint64
}

// String is "epoch:sequence", the epoch in hexadecimal.
func (p Position) String() string {
	return strconv.FormatUint(p.Epoch, 16) + ":" + strconv.FormatUint(p.Sequence, 10)
}

// ParsePosition reads what String wrote, and nothing else.
func ParsePosition(s string) (Position, error) {
	epoch, sequence, ok := strings.Cut(s, ":")
	if !ok {
		return Position{}, fmt.Errorf("parse position %.50q: no colon", s)
	}
	var p Position
	var err error
	if p.Epoch, err = strconv.ParseUint(epoch, 16, 64); err == nil {
		p.Sequence, err = strconv.ParseUint(sequence, 10, 64)
	}
	if err != nil {
		return Position{}, fmt.Errorf("parse position %.50q: %w", s, err)
	}
	if p.String() != s {
		return Position{}, fmt.Errorf("parse position %.50q: not in canonical form", s)
	}
	return p, nil
}

// VersionOf is the version of a resource: a hash of its marshalled body, equal
// wherever the same content was marshalled the same way.
//
// It is SHA-256 cut to 128 bits. Equal versions make a client keep what it has,
// and bodies are written by users, so a hash for which collisions can be made at
// will would let one hold a client at stale content. It is computed once per
// change, which makes its cost (below a microsecond) irrelevant.
func VersionOf(body []byte) string {
	sum := sha256.Sum256(body)
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// Resource is the state of one resource. The body belongs to the scope once it
// is handed over and must not be changed.
type Resource struct {
	Type, Name string
	Body       []byte
	// Options are of use to layered sessions alone; nil: the defaults.
	Options *ResourceOptions
	// Encoding of Type, Name and Body, which scopes with the same resource share; nil: the scope makes
	// its own.
	Encoding *Encoding
}

// Encoding is a resource as it is sent. Immutable.
type Encoding struct {
	typ, name, version string
	field              []byte
}

// Encode a resource.
func Encode(typ, name string, body []byte) *Encoding {
	version := VersionOf(body)
	return &Encoding{typ, name, version, appendResource(nil, typ, name, version, body)}
}

// Is reports whether it is the encoding of a resource.
func (e *Encoding) Is(typ, name string, body []byte) bool {
	return e.typ == typ && e.name == name && e.version == VersionOf(body)
}

// ResourceOptions say how layered sessions send a resource. Immutable.
type ResourceOptions struct {
	// Unlisted: wildcard subscriptions do not have the resource. It is sent to who asks for
	// it by name, and where a Selection names it.
	Unlisted bool
	// Follower is a resource that is sent again after this one, changed or not, to whoever
	// subscribes to it: a cluster that changes waits for its endpoints, which Envoy does not
	// ask for again. The zero value: there is none.
	Follower Ref
	// Fallback is sent in place of Body once a client has refused that; nil: clients keep
	// the last version that one of them accepted.
	Fallback []byte
}

// Ref names a resource.
type Ref struct{ Type, Name string }

// Change is a new state of one resource, or its end.
type Change struct {
	Resource
	// Removed: the resource is gone; Body is ignored. Removing the absent is no
	// error.
	Removed bool
	// Trace, if the change is followed, is sent beside it to streams that had what was before; nil: it is not followed.
	Trace *Trace
}

// Trace is sent beside a change. Layered sessions do not have it.
type Trace struct {
	// Context, opaque.
	Context string
	// Made is set by Scope.Apply: the change has made a difference.
	Made bool
}

var (
	// ErrPosition: the cursor of a stream cannot be served, as it is of another
	// epoch, newer than the scope, or older than the removals that the scope
	// remembers. The client starts again with its map of versions.
	ErrPosition = errors.New("position cannot be served; connect again with the versions of your resources")
	// ErrRequest: the client broke the protocol.
	ErrRequest = errors.New("invalid request")
)
