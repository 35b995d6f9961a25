package federation

import (
	"cmp"
	"maps"
	"slices"
)

// ReceivedType describes one type of a Receiver.
type ReceivedType struct {
	Type string
	// Answered: the peer serves the type in this stream. Complete: all that it had
	// when the stream began has arrived.
	Answered, Complete bool
	// Copies in the local store.
	Copies     int
	Checkpoint Checkpoint
	// Held removals wait for an operator.
	Held []Held
	// Refused resources are not in the local store, or in an older version, as they
	// are invalid. Waiting ones will be applied when something else has happened.
	Refused, Waiting []Refusal
}

// Held are the objects of one owner that the peer has removed, and that are kept until
// an operator confirms.
type Held struct {
	Owner Owner
	Count int
	// Names of the first ten, in order, as their owner names them.
	Names []string
	// Token for Receiver.Confirm.
	Token string
}

// Status describes every type, in the order of the configuration.
func (r *Receiver) Status() []ReceivedType {
	out := make([]ReceivedType, 0, len(r.subs))
	for _, f := range r.subs {
		t := ReceivedType{
			Type: f.typ.Name, Answered: f.last != 0, Complete: f.complete,
			Copies: len(f.copies), Checkpoint: f.checkpoint,
		}
		for owner, g := range f.guards {
			if len(g.held) > 0 {
				names := slices.Sorted(maps.Keys(g.held))
				t.Held = append(t.Held, Held{Owner: owner, Count: len(names), Names: names[:min(len(names), listed)], Token: g.token()})
			}
		}
		slices.SortFunc(t.Held, func(a, b Held) int { return cmp.Compare(a.Owner.Zone, b.Owner.Zone) })
		for _, name := range slices.Sorted(maps.Keys(f.refused)) {
			t.Refused = append(t.Refused, Refusal{Resource: name, Reason: f.refused[name]})
		}
		for _, name := range slices.Sorted(maps.Keys(f.waiting)) {
			t.Waiting = append(t.Waiting, Refusal{Resource: name, Reason: f.waiting[name].reason, Waiting: true})
		}
		out = append(out, t)
	}
	return out
}
