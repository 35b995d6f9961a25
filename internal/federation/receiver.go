package federation

import (
	"fmt"
	"maps"
	"slices"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/proxima-mesh/proxima/internal/delta"
)

// ReceiverConfig configures a Receiver.
type ReceiverConfig struct {
	// Side that receives.
	Side Side
	// Zone is the receiving zone; at global, the zone that sends, by its credential.
	Zone string
	// Node is who the receiver says it is, in its first request of a stream.
	Node *core.Node
	// Types that the stream carries.
	Types []Type
	// Namespace in which global keeps the namespaced objects of zones.
	Namespace string
}

// Checkpoint is what a receiver remembers of a type, besides the objects. It comes
// after a transaction that is durable, and may be stored late, or not at all: the
// stream then resumes from an older one, or by versions.
// Where Holding changes it should be stored at once: a restart before that forgets
// that removals were held, and judges them again.
type Checkpoint struct {
	// StoreEpoch is the history that Position belongs to.
	StoreEpoch string
	// Position up to which the objects are complete. Removals that are held, and
	// resources that are refused or wait, are after it.
	Position string
	// Seen is the newest position that was reached, in the history SeenEpoch.
	Seen, SeenEpoch string
	// Holding are the owners of which removals are held, in order.
	Holding []Owner
}

// Check verifies what was read from outside.
func (c Checkpoint) Check() error {
	for _, text := range []string{c.Position, c.Seen} {
		if text == "" {
			continue
		}
		if _, err := delta.ParsePosition(text); err != nil {
			return fmt.Errorf("check checkpoint: %w", err)
		}
	}
	for _, o := range c.Holding {
		if err := checkName("zone", o.Zone, true, true); err != nil {
			return fmt.Errorf("check checkpoint: %w", err)
		}
	}
	return nil
}

func (c Checkpoint) equal(d Checkpoint) bool {
	return c.StoreEpoch == d.StoreEpoch && c.Position == d.Position &&
		c.Seen == d.Seen && c.SeenEpoch == d.SeenEpoch && slices.Equal(c.Holding, d.Holding)
}

// Copy is an object of the peer in the local store.
type Copy struct {
	// Resource is its name in the stream (AnnotationSyncName).
	Resource string
	// Version in the stream (AnnotationSyncVersion).
	Version string
	Key     Key
	Owner   Owner
}

// State is what the local store has of one type, of the peer of a stream.
type State struct {
	Type       string
	Copies     []Copy
	Checkpoint Checkpoint
}

// Put is an object to be created, or replaced if it exists and belongs to Owner.
type Put struct {
	Copy
	// Before is the version of the copy that is replaced; empty: it is created.
	Before string
	// Replaces is the copy under another key to delete once the put has succeeded;
	// nil: none.
	Replaces *Copy
	// Object to store under Copy.Key, with the labels and annotations of the copy.
	Object *Object
}

// Transaction is a change of the local store. Puts come before deletions. Deleting the
// absent is no error; an object that does not belong to the owner is never touched.
type Transaction struct {
	Type    string
	Puts    []Put
	Deletes []Copy

	sub      *followed
	sequence uint64 // of the response; 0: none
	complete bool
	position string // reached, if complete
	epoch    string
	invalid  []Refusal
	counted  map[Owner]int      // removals that count for the guard
	held     map[Owner][]string // removals to hold
	confirms *Owner             // whose held removals these are
}

// Outcome says what became of a transaction that was applied.
type Outcome struct {
	// Refused puts, by resource: the rules of their kinds do not accept them.
	Refused map[string]error
	// Waiting puts, by resource: they can be applied when something else has
	// happened, say when their namespace exists. Receiver.Retry returns them.
	Waiting map[string]error
}

// Receiver is the receiving end of the streams of one direction from one peer, one
// after the other. Connect begins a stream; Step takes a response and returns what is
// to be stored; Advance takes the outcome and returns the answer. It belongs to one
// goroutine at a time.
//
// It is made from the durable state, and again after a transaction whose outcome is
// not known.
type Receiver struct {
	config   ReceiverConfig
	subs     []*followed
	pending  *Transaction
	sequence uint64 // of the last response
}

// followed is one type.
type followed struct {
	typ    Type
	copies map[string]Copy
	byKey  map[Key]string
	guards map[Owner]*guard
	// refused and waiting are what the peer has and the local store does not.
	refused map[string]string
	waiting map[string]waiting

	checkpoint Checkpoint
	// removed are the removals of a batch that is not complete.
	removed map[string]struct{}
	// trusted is the history of the last complete batch of which nothing was held;
	// empty: not known.
	trusted string
	// snapshot: the next complete batch is the difference of two states, not a
	// sequence of changes.
	snapshot bool
	// complete: everything that the peer had when the stream began has arrived.
	complete bool
	// last is the sequence of the last response of the stream; 0: none came.
	last uint64
}

type waiting struct {
	put    Put
	reason string
}

// NewReceiver makes a receiver from what the local store has. States of types that the
// stream does not carry are an error, missing ones are empty.
func NewReceiver(c ReceiverConfig, states []State) (*Receiver, error) {
	if err := checkName("zone", c.Zone, false, true); err != nil {
		return nil, err
	}
	r := &Receiver{config: c}
	for _, t := range c.Types {
		r.subs = append(r.subs, &followed{
			typ: t, copies: map[string]Copy{}, byKey: map[Key]string{}, guards: map[Owner]*guard{},
			refused: map[string]string{}, waiting: map[string]waiting{}, removed: map[string]struct{}{},
		})
	}
	for _, s := range states {
		sub := r.sub(s.Type)
		if sub == nil {
			return nil, fmt.Errorf("make receiver: the stream does not carry %s", s.Type)
		}
		for _, c := range s.Copies {
			if c.Resource == "" || sub.byKey[c.Key] != "" || sub.copies[c.Resource].Resource != "" {
				return nil, fmt.Errorf("make receiver: %s %v is a copy of %q, as another object is, or of nothing", s.Type, c.Key, c.Resource)
			}
			sub.set(c)
		}
		sub.checkpoint, sub.trusted = s.Checkpoint, s.Checkpoint.SeenEpoch
		if len(s.Checkpoint.Holding) > 0 {
			sub.trusted = s.Checkpoint.StoreEpoch
		}
		for _, owner := range s.Checkpoint.Holding {
			sub.guard(owner).resumed = true
		}
	}
	return r, nil
}

func (r *Receiver) sub(typ string) *followed {
	for _, sub := range r.subs {
		if sub.typ.Name == typ {
			return sub
		}
	}
	return nil
}

func (f *followed) guard(o Owner) *guard {
	g := f.guards[o]
	if g == nil {
		g = &guard{}
		f.guards[o] = g
	}
	return g
}

func (f *followed) set(c Copy) {
	f.forget(c.Resource)
	f.copies[c.Resource], f.byKey[c.Key] = c, c.Resource
}

func (f *followed) forget(resource string) {
	if old, ok := f.copies[resource]; ok {
		delete(f.byKey, old.Key)
		delete(f.copies, resource)
	}
}

// Connect begins a stream and returns its first requests. Responses of earlier streams
// must not be given to Step any more; a pending transaction must have been finished.
// With versions, the peer is given the version of every copy, not a position: it did
// not accept the position.
func (r *Receiver) Connect(versions bool) ([]*discovery.DeltaDiscoveryRequest, error) {
	if r.pending != nil {
		return nil, fmt.Errorf("connect: %w", ErrPending)
	}
	r.sequence = 0
	var out []*discovery.DeltaDiscoveryRequest
	for i, sub := range r.subs {
		q := &discovery.DeltaDiscoveryRequest{TypeUrl: sub.typ.Name, InitialResourceVersions: sub.begin(versions)}
		if i == 0 {
			q.Node = r.config.Node
		}
		out = append(out, q)
	}
	return out, nil
}

// begin resets the state of a stream and returns the versions for its first request.
func (f *followed) begin(versions bool) map[string]string {
	clear(f.removed)
	f.complete, f.last = false, 0
	for _, g := range f.guards {
		g.resumed = g.resumed || len(g.held) > 0
	}
	have := map[string]string{}
	if f.checkpoint.Seen != "" {
		have[seenKey] = f.checkpoint.Seen
	}
	f.snapshot = versions || f.checkpoint.Position == ""
	if !f.snapshot {
		have[cursorKey] = f.checkpoint.Position
		return have
	}
	// The peer sends them again, if it still has them.
	clear(f.refused)
	clear(f.waiting)
	for name, c := range f.copies {
		have[name] = c.Version
	}
	return have
}

// Step takes a response and returns the transaction that it amounts to, which the
// caller applies and hands to Advance. now is used for the guard alone. nil: nothing
// is to be done, as the response was repeated. An error (ErrProtocol, ErrPending)
// changes nothing and ends the stream.
func (r *Receiver) Step(now time.Time, m *discovery.DeltaDiscoveryResponse) (*Transaction, error) {
	if r.pending != nil {
		return nil, fmt.Errorf("receive: %w", ErrPending)
	}
	sub := r.sub(m.GetTypeUrl())
	if sub == nil {
		return nil, fmt.Errorf("%w: response of type %.80q, which was not asked for", ErrProtocol, m.GetTypeUrl())
	}
	sequence, err := parseSequence(m.GetNonce())
	if err != nil {
		return nil, err
	}
	switch {
	case sequence <= r.sequence:
		return nil, nil
	case sequence != r.sequence+1:
		return nil, fmt.Errorf("%w: response %d after %d", ErrProtocol, sequence, r.sequence)
	}
	tx := &Transaction{Type: sub.typ.Name, sub: sub, sequence: sequence, epoch: m.GetControlPlane().GetIdentifier()}
	if position := m.GetSystemVersionInfo(); position != "" {
		if _, err := delta.ParsePosition(position); err != nil || tx.epoch == "" {
			return nil, fmt.Errorf("%w: response of %s at %.80q of epoch %.80q", ErrProtocol, sub.typ.Name, position, tx.epoch)
		}
		tx.complete, tx.position = true, position
	}
	if len(sub.copies) == 0 && sub.trusted == "" {
		sub.trusted = tx.epoch // there is nothing to lose
	}
	r.sequence = sequence
	r.puts(tx, m.GetResources())
	for _, name := range m.GetRemovedResources() {
		sub.removed[name] = struct{}{}
	}
	if tx.complete {
		r.removals(now, tx)
	}
	sub.last = sequence
	r.pending = tx
	return tx, nil
}

// Confirm returns the transaction that deletes the held objects of an owner. token is
// that of the status that the operator saw; ErrChanged if others are held now, or
// none, or if the stream has not caught up, as some of them may have come back.
func (r *Receiver) Confirm(typ string, owner Owner, token string) (*Transaction, error) {
	if r.pending != nil {
		return nil, fmt.Errorf("confirm: %w", ErrPending)
	}
	sub := r.sub(typ)
	if sub == nil {
		return nil, fmt.Errorf("confirm deletions of %s: no such type", typ)
	}
	g := sub.guards[owner]
	if g == nil || len(g.held) == 0 || g.token() != token || !sub.complete {
		return nil, fmt.Errorf("confirm deletions of %s of %s: %w", typ, owner, ErrChanged)
	}
	tx := &Transaction{Type: typ, sub: sub, confirms: &owner}
	for name := range g.held {
		tx.Deletes = append(tx.Deletes, sub.copies[name])
	}
	sortCopies(tx.Deletes)
	r.pending = tx
	return tx, nil
}

// Retry returns the transaction that applies what waits of a type; nil: nothing
// waits, or a transaction is pending.
func (r *Receiver) Retry(typ string) *Transaction {
	sub := r.sub(typ)
	if r.pending != nil || sub == nil || len(sub.waiting) == 0 {
		return nil
	}
	tx := &Transaction{Type: sub.typ.Name, sub: sub}
	for _, name := range slices.Sorted(maps.Keys(sub.waiting)) {
		put := sub.waiting[name].put
		sub.prepare(&put) // there is something to do, as it waits
		tx.Puts = append(tx.Puts, put)
	}
	r.pending = tx
	return tx
}
