package delta

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const (
	// wildcard subscribes to everything of a type (xDS protocol, "How the client
	// specifies what resources to return").
	wildcard = "*"
	// cursorKey stands for the position among the versions a client has. No
	// resource has an empty name.
	cursorKey = ""
	// maxTypes bounds what one stream can make the server remember.
	maxTypes = 64
	// maxNames of one type bounds it, too: maxRequest of package stream fits about twice as many.
	maxNames = 100_000
)

// Request is what a client says, in the terms of delta xDS.
type Request struct {
	Type                   string
	Subscribe, Unsubscribe []string
	// Versions the client has, by name; only in the first request of a type. The
	// key "" holds the position up to which it is complete, or a Cursor: if that can be served
	// nothing else is needed. The map belongs to the session.
	Versions map[string]string
	// Nonce of the response that the request answers; empty: none.
	Nonce string
	// Rejected says why the client refused (part of) that response.
	Rejected string
}

// Session is one stream that reads a scope. It is a state machine: Step takes
// what the client says, Next gives what is to be sent. A session belongs to one
// goroutine at a time; sessions of one scope are independent of each other.
type Session struct {
	scope *Scope
	types []*subscription
	turn  int
	nonce uint64
}

// NewSession starts a session on a scope.
func NewSession(s *Scope) *Session { return &Session{scope: s} }

// subscription is what a session knows of one type.
type subscription struct {
	typ      string
	wildcard bool
	// names subscribed to one by one.
	names map[string]struct{}
	// have are the versions that the client brought, as far as they are not dealt
	// with; nil: it brought none, or they are all dealt with.
	have map[string]string
	// opened: have has been looked at for a cursor.
	opened bool
	// again are names to be sent whatever the cursor says.
	again map[string]struct{}
	// index is the cursor.
	index uint64
	// began is the newest removal that was dropped when the stream had nothing yet. It
	// cannot miss that one, nor those before.
	began uint64
	// answered: the client has heard up to which position it is complete.
	answered bool

	sent   Position
	acked  uint64
	reject Rejection
	// confirmed is the last position that the client accepted, awaited are those of later responses, oldest first.
	confirmed Position
	awaited   []sentPosition
}

// sentPosition is where a client is that accepts what reaches an index.
type sentPosition struct {
	index uint64
	at    Position
}

// maxAwaited positions are remembered of one type. A client that answers less often is at its last ones later than it could be known.
const maxAwaited = 32

// Rejection is a response, or part of one, that a client refused.
type Rejection struct {
	Nonce, Reason string
}

// SubscriptionStatus describes where a stream is with one type.
type SubscriptionStatus struct {
	Type string
	// Sent is the last position sent; zero before the first complete response.
	Sent Position
	// Unsent and Unacked count changes, before coalescing, that the stream has
	// not been sent and that the client has not confirmed.
	Unsent, Unacked uint64
	// Confirmed is the newest position sent of which the client has answered all, as far as that is remembered; zero: none.
	Confirmed Position
	// Rejected is the last refusal, if any, and is kept when later responses are
	// accepted.
	Rejected Rejection
}

// Step takes a request. It never blocks. An error (ErrRequest) ends the stream.
func (s *Session) Step(r Request) error {
	if r.Type == "" {
		return fmt.Errorf("%w: no type", ErrRequest)
	}
	i := slices.IndexFunc(s.types, func(sub *subscription) bool { return sub.typ == r.Type })
	if i < 0 {
		if len(s.types) == maxTypes {
			return fmt.Errorf("%w: more than %d types", ErrRequest, maxTypes)
		}
		if err := checkNames(r, 0); err != nil {
			return err
		}
		s.types = append(s.types, subscribe(r))
		return nil
	}
	sub := s.types[i]
	if err := checkNames(r, max(len(sub.names), len(sub.again))); err != nil {
		return err
	}
	if r.Nonce != "" {
		sub.answer(r)
	}
	sub.change(r)
	return nil
}

// checkNames bounds what a client may name of a type in a stream, in which it has named held already.
func checkNames(r Request, held int) error {
	if n := held + len(r.Subscribe) + len(r.Unsubscribe); n > maxNames {
		return fmt.Errorf("%w: %d names of type %s, where a stream may have %d: subscribe to * for all", ErrRequest, n, r.Type, maxNames)
	}
	return nil
}

// subscribe takes the first request of a type. One that names nothing wants
// everything.
func subscribe(r Request) *subscription {
	sub := &subscription{typ: r.Type, names: map[string]struct{}{}, have: r.Versions}
	sub.wildcard = len(r.Subscribe) == 0
	for _, name := range r.Subscribe {
		if name == wildcard {
			sub.wildcard = true
		} else {
			sub.names[name] = struct{}{}
		}
	}
	return sub
}

// answer takes an ACK or NACK. Nonces begin with the index they reach.
func (sub *subscription) answer(r Request) {
	if r.Rejected != "" {
		sub.reject = Rejection{Nonce: r.Nonce, Reason: r.Rejected}
	}
	head, _, _ := strings.Cut(r.Nonce, ".")
	index, err := strconv.ParseUint(head, 10, 64)
	if err != nil || index > sub.index {
		return
	}
	sub.acked = max(sub.acked, index)
	for len(sub.awaited) > 0 && sub.awaited[0].index <= index {
		sub.confirmed, sub.awaited = sub.awaited[0].at, sub.awaited[1:]
	}
}

// await the answer to what reaches an index.
func (sub *subscription) await(index uint64, at Position) {
	if len(sub.awaited) == maxAwaited {
		sub.awaited = slices.Delete(slices.Clone(sub.awaited), maxAwaited-2, maxAwaited-1)
	}
	sub.awaited = append(sub.awaited, sentPosition{index, at})
}

// change takes subscriptions that come after the first request. What a client
// names it is sent, even if it had it.
func (sub *subscription) change(r Request) {
	for _, name := range r.Unsubscribe {
		if name == wildcard {
			sub.wildcard = false
			continue
		}
		delete(sub.names, name)
		if sub.wildcard { // the client forgets it, but is still to have it
			sub.resend(name)
		} else {
			delete(sub.again, name)
		}
	}
	for _, name := range r.Subscribe {
		if name != wildcard {
			sub.names[name] = struct{}{}
			sub.resend(name)
			continue
		}
		if !sub.wildcard {
			// From the start, where removals are left out: what the client may hold
			// of them is distinguished.
			sub.wildcard, sub.index, sub.answered = true, fresh, false
			for name := range sub.names {
				sub.resend(name)
			}
		}
	}
}

func (sub *subscription) resend(name string) {
	if sub.again == nil {
		sub.again = map[string]struct{}{}
	}
	sub.again[name] = struct{}{}
}

func (sub *subscription) wants(name string) bool {
	if sub.wildcard {
		return true
	}
	_, ok := sub.names[name]
	return ok
}

// Next returns the next response to send, or nil if the client has all there is
// (wait for Scope.Changed, or a request). What it returns counts as sent. After
// an error (ErrPosition) the session is at its end.
func (s *Session) Next() (*Frame, error) {
	s.scope.mu.Lock()
	defer s.scope.mu.Unlock()
	if !s.scope.filled {
		return nil, nil
	}
	for range s.types {
		sub := s.types[s.turn%len(s.types)]
		f, err := s.next(sub)
		if err != nil || f != nil {
			// A type with more to come goes on, so that it is complete before the
			// next one starts: types of one stream refer to each other.
			if f == nil || f.Complete {
				s.turn++
			}
			return f, err
		}
		s.turn++
	}
	return nil, nil
}

func (s *Session) next(sub *subscription) (*Frame, error) {
	t := s.scope.lookup(sub.typ)
	if !sub.opened {
		if err := sub.open(s.scope, t); err != nil {
			return nil, err
		}
	}
	if sub.index == fresh {
		sub.began = t.evicted
	}
	if sub.index < t.evicted && sub.began < t.evicted {
		return nil, fmt.Errorf("%w: too many removals of %s since", ErrPosition, sub.typ)
	}
	if len(sub.again) > 0 {
		return s.named(sub, t), nil
	}
	if sub.answered && sub.index == t.index {
		return nil, nil
	}
	if !sub.wildcard || sub.have != nil {
		return s.selected(sub, t), nil
	}
	return sub.took(s.scope.shared(t, sub.typ, sub.index)), nil
}

func (sub *subscription) took(f *Frame) *Frame {
	sub.index = f.to
	if f.Complete {
		sub.answered, sub.sent = true, f.Position
		sub.await(f.to, f.Position)
	}
	return f
}

// open decides from where a client is served: from its cursor, else by comparing
// the versions that it brought, else from the start.
func (sub *subscription) open(s *Scope, t *table) error {
	sub.opened = true
	if sub.wildcard {
		sub.absent(t)
	}
	cursor, ok := sub.have[cursorKey]
	if !ok {
		if len(sub.have) == 0 {
			sub.have = nil
		}
		return nil
	}
	position, digest, _ := strings.Cut(cursor, digestMark)
	p, err := ParsePosition(position)
	// A cursor says nothing of names: it needs a client that wants all.
	if err == nil && s.serves(t, p) && sub.wildcard {
		sub.have = nil
		sub.index = t.indexOf(p.Sequence)
		sub.acked = sub.index
		return nil
	}
	if digest != "" && sub.wildcard && digest == t.digest() {
		sub.have = nil
		sub.index, sub.acked = t.index, t.index
		return nil
	}
	if len(sub.have) == 1 {
		return fmt.Errorf("%w: %.50q of %s, scope is at %s", ErrPosition, cursor, sub.typ, s.position)
	}
	delete(sub.have, cursorKey)
	return nil
}

// named sends names that were asked for, in their present state, and leaves the
// cursor alone.
func (s *Session) named(sub *subscription, t *table) *Frame {
	c := content{limit: s.scope.options.FrameSize}
	for _, name := range slices.Sorted(maps.Keys(sub.again)) {
		if e := t.byName[name]; e != nil && !c.add(e) || e == nil && !c.addRemoved(name) {
			break
		}
		delete(sub.again, name)
		delete(sub.have, name)
	}
	s.nonce++
	return c.frame(sub.typ, sub.index, nil, s.nonce)
}

// selected sends a stream that is not like the others on: it wants some names
// only, or still compares versions. Nil: nothing of it was news.
func (s *Session) selected(sub *subscription, t *table) *Frame {
	c := content{limit: s.scope.options.FrameSize}
	first := !sub.answered
	to, at := sub.index, &s.scope.position
	done := t.walk(sub.index, func(e *entry) bool {
		if sub.wants(e.name) && !sub.has(e) && !c.add(e) {
			return false
		}
		delete(sub.have, e.name)
		to = e.index
		return true
	})
	if done {
		to = t.index
		done = !first || sub.vanished(&c, t)
	}
	if !done {
		at = nil
	} else {
		sub.have = nil
	}
	if c.empty() && !first {
		sub.index = to
		return nil
	}
	s.nonce++
	return sub.took(c.frame(sub.typ, to, at, s.nonce))
}

// has reports whether the client brought exactly this.
func (sub *subscription) has(e *entry) bool {
	version, ok := sub.have[e.name]
	return ok && e.live() && version == e.version
}

// vanished ends the first answer: it adds what the client has and does not exist
// any more, and reports whether all of it fitted. Names asked for that do not
// exist are sent after, as no position depends on them.
func (sub *subscription) vanished(c *content, t *table) bool {
	for _, name := range slices.Sorted(maps.Keys(sub.have)) {
		if !sub.wants(name) {
			continue
		}
		if e := t.byName[name]; (e == nil || !e.live()) && !c.addRemoved(name) {
			return false
		}
		delete(sub.have, name)
	}
	sub.absent(t)
	return true
}

// absent sends the client which of the names that it asked for do not exist.
func (sub *subscription) absent(t *table) {
	for name := range sub.names {
		if e := t.byName[name]; e == nil || !e.live() {
			sub.resend(name)
		}
	}
}

// Status describes every subscription, in the order in which they were made.
func (s *Session) Status() []SubscriptionStatus {
	s.scope.mu.Lock()
	defer s.scope.mu.Unlock()
	var out []SubscriptionStatus
	for _, sub := range s.types {
		head := s.scope.lookup(sub.typ).index
		out = append(out, SubscriptionStatus{
			Type: sub.typ, Sent: sub.sent, Rejected: sub.reject, Confirmed: sub.confirmed,
			Unsent: head - min(sub.index, head), Unacked: head - min(sub.acked, head),
		})
	}
	return out
}
