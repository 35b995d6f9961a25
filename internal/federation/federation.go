// Package federation is the protocol by which the control planes of zones and the
// global one keep their objects in step.
//
// It owns the two ends of a stream as state machines: Sender, which serves types of
// objects from delta.Scopes, and Receiver, which turns responses into transactions
// of the local store and guards it against mass deletions. It also owns what they
// agree on: the declaration of types (Type), the labels of synchronised objects,
// their names (HashedName) and their encoding (Object). ProjectedSender and
// ProjectedReceiver are the same ends in protocol version 1.
//
// It never does I/O, reads no clock and starts no goroutine: time is an argument,
// transactions and messages are results. Package local drives it on a
// resource.Client, package stream carries it over gRPC. DESIGN.md beside this file
// has the invariants.
package federation

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Side is the control plane that an end of a stream belongs to.
type Side uint8

// The sides.
const (
	AtZone Side = iota + 1
	AtGlobal
)

// Direction is the way that objects of a type travel.
type Direction uint8

// The directions.
const (
	// GlobalToZone: global owns the objects, zones have copies.
	GlobalToZone Direction = iota + 1
	// ZoneToGlobal: a zone owns its objects, global has copies.
	ZoneToGlobal
	// ZoneToZones: a zone owns its objects, global has copies and sends them on to
	// the other zones.
	ZoneToZones
)

// FanOut is which zones are sent an object of global.
type FanOut uint8

// The ways to fan out. Types of direction ZoneToGlobal have none.
const (
	// EveryZone is sent it; of a ZoneToZones type, every zone but the owner.
	EveryZone FanOut = iota
	// SelectedZones are sent it: those that the local store names, as they use it.
	SelectedZones
)

// Type declares, once, how objects of one type travel.
type Type struct {
	// Name on the wire, "mesh.proxima.dev/Mesh": group and kind.
	Name string
	// Direction in which it travels.
	Direction Direction
	// Namespaced: objects have a namespace.
	Namespaced bool
	// FanOut says which zones are sent it.
	FanOut FanOut
	// KeepName: a copy has the name of the original, as other objects refer to it
	// by name. A copy whose name is taken by an object of the receiving control
	// plane is refused. Otherwise a copy's name is a HashedName.
	KeepName bool
	// LabelName: names are DNS labels of at most 63 characters, not subdomains of
	// at most 253.
	LabelName bool
	// Transient: objects come and go with workloads, so that many removals are
	// usual. They are guarded only in a snapshot, or from another epoch.
	Transient bool
}

// Types is a set of types, in the order in which they are synchronised. Objects
// refer to those of earlier types. It is immutable.
type Types struct{ all []Type }

// NewTypes checks the declarations.
func NewTypes(types ...Type) (*Types, error) {
	seen := map[string]bool{}
	for _, t := range types {
		switch {
		case t.Name == "" || seen[t.Name]:
			return nil, fmt.Errorf("declare type %q: the name is empty or declared twice", t.Name)
		case t.Direction < GlobalToZone || t.Direction > ZoneToZones:
			return nil, fmt.Errorf("declare type %s: direction %d is none", t.Name, t.Direction)
		case t.Direction == ZoneToGlobal && t.FanOut != EveryZone:
			return nil, fmt.Errorf("declare type %s: a type that ends at global does not fan out", t.Name)
		}
		seen[t.Name] = true
	}
	return &Types{all: slices.Clone(types)}, nil
}

// SentBy returns the types that a side sends, in order. The caller owns the slice.
func (t *Types) SentBy(side Side) []Type {
	return slices.DeleteFunc(slices.Clone(t.all), func(t Type) bool { return !t.sentBy(side) })
}

// ReceivedBy returns the types that a side receives, in order. The caller owns the
// slice.
func (t *Types) ReceivedBy(side Side) []Type {
	other := AtZone
	if side == AtZone {
		other = AtGlobal
	}
	return t.SentBy(other)
}

func (t Type) sentBy(side Side) bool {
	if side == AtGlobal {
		return t.Direction != ZoneToGlobal
	}
	return t.Direction != GlobalToZone
}

// StreamEpoch is the epoch of the positions of one type in streams to one zone. It
// depends on all that the content of such a stream depends on: the history of the
// store, the type, the zone where it makes a difference, and the encoding.
func StreamEpoch(storeEpoch, typ, zone string) uint64 {
	h := sha256.New()
	for _, s := range []string{encoding, storeEpoch, typ, zone} {
		_ = binary.Write(h, binary.BigEndian, uint64(len(s))) // a hash does not fail
		h.Write([]byte(s))
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// encoding names the way in which objects are marshalled. Whoever changes the bytes
// of unchanged objects changes it.
const encoding = "1"

var (
	// ErrProtocol: the peer broke the protocol, or messages of a stream were lost,
	// repeated or exchanged. The stream must end; another one resumes.
	ErrProtocol = errors.New("federation protocol violated")
	// ErrBehind: the sender is older than what the receiver has seen of the same
	// history. The stream must end; a later one, or one to another instance, resumes.
	ErrBehind = errors.New("this instance is behind what its peer has seen")
	// ErrPending: a transaction of the receiver is not finished.
	ErrPending = errors.New("a transaction is pending")
	// ErrChanged: what an operator confirms is not what is held now.
	ErrChanged = errors.New("the held deletions have changed")
)
