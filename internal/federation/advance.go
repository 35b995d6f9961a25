package federation

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
)

// Progress is what follows from a transaction that was applied.
type Progress struct {
	// Answer to send; nil: none.
	Answer *discovery.DeltaDiscoveryRequest
	// Checkpoint to store; nil: unchanged.
	Checkpoint *Checkpoint
	// Urgent: the checkpoint should be stored before the answer is sent.
	Urgent bool
}

// Advance records that the pending transaction is durable.
func (r *Receiver) Advance(tx *Transaction, o Outcome, now time.Time) (Progress, error) {
	if r.pending == nil || r.pending != tx {
		return Progress{}, errors.New("advance: the transaction is not the pending one")
	}
	r.pending = nil
	sub := tx.sub
	before := sub.checkpoint
	sub.applied(tx, o)
	if tx.complete {
		sub.batched(tx, now)
	}
	if tx.confirms != nil {
		g := sub.guard(*tx.confirms)
		g.held, g.recent = nil, nil
	}
	sub.move()
	var p Progress
	if !before.equal(sub.checkpoint) {
		c := sub.checkpoint
		p.Checkpoint, p.Urgent = &c, !slices.Equal(before.Holding, c.Holding)
	}
	if sub.last != 0 { // also after a confirmation or retry: what is refused has changed
		p.Answer = sub.answer(sub.last)
	}
	return p, nil
}

// applied records puts and deletions.
func (f *followed) applied(tx *Transaction, o Outcome) {
	for _, c := range tx.Deletes {
		f.forget(c.Resource)
	}
	for _, bad := range tx.invalid {
		f.refused[bad.Resource] = bad.Reason
		delete(f.waiting, bad.Resource)
	}
	for _, put := range tx.Puts {
		delete(f.refused, put.Resource)
		delete(f.waiting, put.Resource)
		if err := o.Refused[put.Resource]; err != nil {
			f.refused[put.Resource] = err.Error()
		} else if err := o.Waiting[put.Resource]; err != nil {
			f.waiting[put.Resource] = waiting{put: put, reason: err.Error()}
		} else {
			f.set(put.Copy)
		}
	}
}

// batched records the end of a batch.
func (f *followed) batched(tx *Transaction, now time.Time) {
	for name := range f.removed { // the peer does not have them, so nothing is refused
		delete(f.refused, name)
		delete(f.waiting, name)
	}
	clear(f.removed)
	for owner, g := range f.guards {
		if g.resumed {
			g.resumed, g.held = false, nil // the batch repeated what is still held
		}
		g.hold(tx.held[owner])
		g.count(now, tx.counted[owner], len(tx.held[owner]))
	}
	f.snapshot, f.complete = false, true
	f.checkpoint.Seen, f.checkpoint.SeenEpoch = tx.position, tx.epoch
}

// move brings the checkpoint up to what was seen, unless something before is missing.
func (f *followed) move() {
	f.checkpoint.Holding = f.holding()
	if !f.complete || len(f.checkpoint.Holding) > 0 {
		return // what was missing before the stream began may not have come yet
	}
	f.trusted = f.checkpoint.SeenEpoch
	if len(f.refused)+len(f.waiting) == 0 {
		f.checkpoint.Position, f.checkpoint.StoreEpoch = f.checkpoint.Seen, f.checkpoint.SeenEpoch
	}
}

// holding returns the owners of which removals are held, in order.
func (f *followed) holding() []Owner {
	var out []Owner
	for owner, g := range f.guards {
		if g.resumed || len(g.held) > 0 {
			out = append(out, owner)
		}
	}
	slices.SortFunc(out, func(a, b Owner) int { return cmp.Compare(a.Zone, b.Zone) })
	return out
}

// answer is the ACK of a response, or a NACK that lists all that is refused or waits.
func (f *followed) answer(sequence uint64) *discovery.DeltaDiscoveryRequest {
	return &discovery.DeltaDiscoveryRequest{
		TypeUrl: f.typ.Name, ResponseNonce: strconv.FormatUint(sequence, 10), ErrorDetail: f.refusals(),
	}
}

func (f *followed) refusals() *spb.Status {
	total := len(f.refused) + len(f.waiting)
	if total == 0 {
		return nil
	}
	m := &federationv1.Refusals{Total: uint32(total)}
	add := func(name, reason string, waiting bool) {
		if len(m.Refusals) < maxRefusals {
			m.Refusals = append(m.Refusals, &federationv1.Refusal{Name: valid(name), Reason: valid(reason), Waiting: waiting})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.refused)) {
		add(name, f.refused[name], false)
	}
	for _, name := range slices.Sorted(maps.Keys(f.waiting)) {
		add(name, f.waiting[name].reason, true)
	}
	s := &spb.Status{
		Code: int32(codes.InvalidArgument),
		Message: fmt.Sprintf("%d resources of %s are not taken, the first is %s: %s",
			total, f.typ.Name, m.Refusals[0].Name, m.Refusals[0].Reason),
	}
	if detail, err := anypb.New(m); err == nil { // it cannot fail: all is valid UTF-8
		s.Details = append(s.Details, detail)
	}
	return s
}

// maxReason bounds the text of one refusal in a NACK.
const maxReason = 500

// valid makes text fit for a message.
func valid(s string) string {
	if len(s) > maxReason {
		s = s[:maxReason]
	}
	return strings.ToValidUTF8(s, "?")
}
