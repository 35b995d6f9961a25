package delta

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// LayeredConfig is what a layered session follows.
type LayeredConfig struct {
	// Layers are scopes. A name is that of the first one which has it.
	Layers []*Scope
	// Order of the types: resources are set in it, so that what others refer to is there
	// first, and removed in reverse, Drain after they ceased to be.
	Order []string
	// Gated are those types of Order that wait until the client has answered what it was
	// sent of the types before; at most maxHold.
	Gated []string
	// Prompt is the type whose removals go before those of all others, and at once.
	Prompt string
	// Drain is how long what was referred to outlives what referred to it.
	Drain time.Duration
	// Selection of unlisted entries for the wildcard; nil: none.
	Selection *Selection
	// Source of entries that are made only when somebody wants them; nil: there is none.
	Source Source
	// Quarantine of clients like this; nil: one of its own.
	Quarantine *Quarantine
	// Report is told what the client takes; nil: nobody is.
	Report Reporter
	// Again are followers that are sent whatever the client has: what Unfollowed of the
	// session before returned, if the client comes back.
	Again []Ref
	// MaxNames of one type that the client may ask for by name; 0: 2048. Beyond it, names are
	// answered as if they did not exist.
	MaxNames int
	// Woken is called, in place of a token in Wake, when what the client is to have may be other. It
	// must not block and not use the session or a scope: both may be locked. nil: there are tokens.
	Woken func()
	// Whole: the client speaks state of the world, and each response has everything of its
	// type that the client wants.
	Whole bool
}

// Source makes entries of layers on demand. Its methods are called without locks, by the
// goroutines of sessions.
type Source interface {
	// Want asks for a name that a client has asked for; Release ends that. The source puts the
	// entry into a layer, now or once it can exist.
	Want(Ref)
	Release(Ref)
	// Absent is what a client gets for a name that does not exist; nil: that it does not.
	Absent(Ref) []byte
}

const (
	// maxHold bounds how long a gated type waits.
	maxHold = 2 * time.Second
	// maxUnanswered responses of one type; a client that has so many gets no more.
	maxUnanswered = 32
	// unknownVersion of a resource that the client has in one version or another, or not at all.
	unknownVersion = "?"
	// defaultMaxNames is twice what a proxy uses that has 256 services in its eager set and
	// four times as many on demand.
	defaultMaxNames = 2048
)

// Layered is one stream that reads several scopes, as Session reads one: Step takes what the
// client says, Next gives what is to be sent. It belongs to one goroutine at a time. It keeps
// what the client has by name, and so never loses a removal, however far behind it is.
type Layered struct {
	c     LayeredConfig
	lanes []*lane
	nonce uint64
	// selected is the selection as it was looked at last.
	selected   []*Ref
	generation uint64
	// awaited are followers that the client is to take before gated types, with the last nonce
	// before they were due; late are those that gated types do not wait for any more. They are nil
	// while there are none.
	awaited, late map[Ref]uint64
	// held is since when a gated type waits; zero: none does.
	held  time.Time
	waker *waker
	// seats are those of the waker, by layer.
	seats []seat
}

// NewLayered starts a session. Close it when the stream is over.
func NewLayered(c LayeredConfig) *Layered {
	if c.MaxNames == 0 {
		c.MaxNames = defaultMaxNames
	}
	if c.Quarantine == nil {
		c.Quarantine = NewQuarantine()
	}
	if c.Report == nil {
		c.Report = silent{}
	}
	l := &Layered{c: c, waker: newWaker(c.Woken), seats: make([]seat, len(c.Layers))}
	for i, s := range c.Layers {
		l.seats[i] = s.attach(l.waker)
	}
	c.Selection.attach(l.waker)
	l.selected, l.generation = c.Selection.load()
	for _, ref := range l.selected {
		l.watch(ref.Type, ref.Name)
	}
	for _, ref := range c.Again {
		await(&l.late, ref, 0)
	}
	return l
}

// Wake has a token after each change of its Selection, and of a layer that may concern the client: of
// a name that it asks for, that its Selection has, or that its wildcard has. It is nil if the session
// has a function Woken.
func (l *Layered) Wake() <-chan struct{} { return l.waker.c }

func (l *Layered) watch(typ, name string) {
	for i, s := range l.c.Layers {
		s.follow(l.seats[i], typ, name)
	}
}

// unwatch a name, if nothing else holds it.
func (l *Layered) unwatch(typ, name string) {
	if n := l.lane(typ); n != nil && n.known.asked(name) || selects(l.selected, Ref{typ, name}) {
		return
	}
	for i, s := range l.c.Layers {
		s.unfollow(l.seats[i], typ, name)
	}
}

// lane is what a layered session knows of one type.
type lane struct {
	typ      string
	rank     int // in Order
	wildcard bool
	// known is what the client asks for and what it has, by name.
	known records
	// refused names, as there are too many; they are told once.
	refused []string
	// dirty are names to be looked at, forced those that are sent whatever the client has. Both
	// are nil while there are none, which is mostly so: maps keep the room that they once had.
	dirty, forced map[string]struct{}
	// everything is to be looked at.
	everything bool
	cursors    []uint64 // by layer
	// due is when names that are gone are removed.
	due map[string]time.Time
	// halves are groups of a refused response, to be sent apart.
	halves [][]string
	// bad are versions that only this client refused.
	bad map[string]Quarantined
	// refusals are the versions that were reported as refused or withheld, by name.
	refusals map[string]Quarantined

	answered bool
	// unanswered responses, oldest first; nil: there are none.
	unanswered []*response
	acked      uint64
	responses  uint64
	reject     Rejection
	rejections uint64
}

// response is what one response set, until the client has answered it.
type response struct {
	number  uint64
	items   []item
	removed []string
}

type item struct {
	name string
	held
	// before is what the client had; empty: nothing.
	before string
}

// Step takes a request of delta xDS or, in a session that is Whole, of state of the world:
// there Subscribe are all names. It never blocks. An error (ErrRequest) ends the stream.
func (l *Layered) Step(r Request) error {
	if r.Type == "" {
		return fmt.Errorf("%w: no type", ErrRequest)
	}
	n := l.lane(r.Type)
	if n == nil {
		if len(l.lanes) == maxTypes {
			return fmt.Errorf("%w: more than %d types", ErrRequest, maxTypes)
		}
		l.begin(r)
		return nil
	}
	if r.Nonce != "" {
		l.answer(n, r)
	}
	if l.c.Whole {
		named := make(map[string]struct{}, len(r.Subscribe))
		for _, name := range r.Subscribe {
			named[name] = struct{}{}
		}
		r.Unsubscribe = n.known.names(func(one record) bool { return one.named && !has(named, one.name) })
		r.Subscribe = slices.DeleteFunc(slices.Clone(r.Subscribe), n.known.asked)
	}
	l.change(n, r)
	return nil
}

func (l *Layered) lane(typ string) *lane {
	i := slices.IndexFunc(l.lanes, func(n *lane) bool { return n.typ == typ })
	if i < 0 {
		return nil
	}
	return l.lanes[i]
}

// begin takes the first request of a type.
func (l *Layered) begin(r Request) {
	n := &lane{
		typ: r.Type, rank: slices.Index(l.c.Order, r.Type), everything: true,
		cursors: make([]uint64, len(l.c.Layers)),
	}
	n.known.grow(min(max(len(r.Subscribe), len(r.Versions)), l.c.MaxNames))
	if n.rank < 0 {
		n.rank = len(l.c.Order)
	}
	for name, version := range r.Versions {
		if name != cursorKey && version != "" {
			n.known.tell(name, version)
		}
	}
	n.wildcard = len(r.Subscribe) == 0
	for _, name := range r.Subscribe {
		if name == wildcard {
			n.wildcard = true
		} else {
			l.want(n, name)
		}
	}
	for _, ref := range l.c.Again {
		if ref.Type == n.typ && n.known.asked(ref.Name) {
			n.force(ref.Name)
		}
	}
	for ref := range l.awaited { // of resources that were sent before the client named its types
		if ref.Type == n.typ && n.known.asked(ref.Name) {
			n.force(ref.Name)
		}
	}
	if n.wildcard {
		l.watch(n.typ, wildcard)
	}
	l.lanes = append(l.lanes, n)
	slices.SortStableFunc(l.lanes, func(a, b *lane) int { return a.rank - b.rank })
}

// want adds a name that the client asks for.
func (l *Layered) want(n *lane, name string) bool {
	if name == "" {
		return false
	}
	if !n.known.asked(name) {
		if n.known.named >= l.c.MaxNames {
			n.refused = append(n.refused, name)
			return false
		}
		if l.c.Source != nil {
			l.c.Source.Want(Ref{n.typ, name})
		}
		name = l.shared(Ref{n.typ, name})
		n.known.ask(name)
		l.watch(n.typ, name)
	}
	n.mark(name)
	return true
}

// shared is a name as a layer has it, so that sessions do not keep copies of their own.
func (l *Layered) shared(ref Ref) string {
	for _, s := range l.c.Layers {
		s.mu.Lock()
		e := s.lookup(ref.Type).byName[ref.Name]
		s.mu.Unlock()
		if e != nil {
			return e.name
		}
	}
	return ref.Name
}

func (l *Layered) release(n *lane, name string) {
	if !n.known.asked(name) {
		return
	}
	n.known.unask(name)
	l.unwatch(n.typ, name)
	if l.c.Source != nil {
		l.c.Source.Release(Ref{n.typ, name})
	}
}

// change takes subscriptions after the first request. What a client names it is sent, even if
// it had it.
func (l *Layered) change(n *lane, r Request) {
	for _, name := range r.Unsubscribe {
		if name == wildcard {
			n.wildcard = false
			l.unwatch(n.typ, wildcard)
			for _, name := range n.known.names(func(one record) bool { return one.told && !one.named }) {
				n.forget(name)
				n.release(l, name)
			}
			continue
		}
		l.release(n, name)
		n.forget(name)
		n.release(l, name)
		if n.wildcard {
			n.mark(name)
		}
	}
	for _, name := range r.Subscribe {
		switch {
		case name != wildcard:
			if l.want(n, name) {
				n.force(name)
				if version, _ := n.known.sent(name); version == "" {
					n.known.untell(name) // it is told again that there is none
				}
			}
		case !n.wildcard:
			n.wildcard, n.everything, n.answered = true, true, false
			l.watch(n.typ, wildcard)
		}
	}
}

// mark a name to be looked at.
func (n *lane) mark(name string) {
	if n.dirty == nil {
		n.dirty = map[string]struct{}{}
	}
	n.dirty[name] = struct{}{}
}

// force a name to be sent whatever the client has.
func (n *lane) force(name string) {
	if n.forced == nil {
		n.forced = map[string]struct{}{}
	}
	n.forced[name] = struct{}{}
}

// note a version as refused or withheld.
func (n *lane) note(one Quarantined) {
	if n.refusals == nil {
		n.refusals = map[string]Quarantined{}
	}
	n.refusals[one.Name] = one
}

// rest gives the room of names back that were looked at.
func (n *lane) rest() {
	if len(n.dirty) == 0 {
		n.dirty = nil
	}
	if len(n.forced) == 0 {
		n.forced = nil
	}
	if len(n.due) == 0 {
		n.due = nil
	}
}

// forget a name, as the client has.
func (n *lane) forget(name string) {
	n.known.untell(name)
	delete(n.forced, name)
	delete(n.due, name)
}

// answer takes an ACK or NACK.
func (l *Layered) answer(n *lane, r Request) {
	got, known := n.answeredBy(r.Nonce)
	if r.Rejected != "" {
		n.reject = Rejection{Nonce: r.Nonce, Reason: r.Rejected}
		n.rejections++
	} else if known {
		n.acked++
	}
	if !known {
		return
	}
	if r.Rejected != "" {
		l.isolate(n, got.items, r.Rejected)
		return
	}
	l.accept(n, got)
	for _, i := range got.items {
		ref := Ref{n.typ, i.name}
		l.c.Quarantine.accepted(ref, i.held)
		for _, due := range []*map[Ref]uint64{&l.awaited, &l.late} {
			if before, ok := (*due)[ref]; ok && got.number > before {
				taken(due, ref)
			}
		}
	}
}

// answeredBy takes the response with a nonce out of those that are unanswered.
func (n *lane) answeredBy(nonce string) (*response, bool) {
	i := slices.IndexFunc(n.unanswered, func(r *response) bool { return nonceOf(r.number) == nonce })
	if i < 0 {
		return nil, false
	}
	got := n.unanswered[i]
	if n.unanswered = slices.Delete(n.unanswered, i, i+1); len(n.unanswered) == 0 {
		n.unanswered = nil
	}
	return got, true
}

// nonceOf the response with a number.
func nonceOf(number uint64) string { return strconv.FormatUint(number, 10) }

// await a follower.
func await(due *map[Ref]uint64, ref Ref, before uint64) {
	if *due == nil {
		*due = map[Ref]uint64{}
	}
	(*due)[ref] = before
}

// taken: a follower is not awaited any more. Maps keep the room that they once had.
func taken(due *map[Ref]uint64, ref Ref) {
	if delete(*due, ref); len(*due) == 0 {
		*due = nil
	}
}

// Unfollowed are followers that the client has not taken since the resources that they
// follow. A client that comes back with equal versions of both waits for them nevertheless.
func (l *Layered) Unfollowed() []Ref {
	out := slices.Collect(maps.Keys(l.awaited))
	for ref := range l.late {
		if !has(l.awaited, ref) {
			out = append(out, ref)
		}
	}
	return out
}

// isolate finds which resource of a response was refused: it is sent again in halves, down to
// one. Clients name the culprit only in the answer to that one, if at all.
func (l *Layered) isolate(n *lane, items []item, reason string) {
	for _, i := range items {
		if version, _ := n.known.sent(i.name); version != i.version {
			continue // a newer one is on its way
		}
		switch {
		case len(items) > 1: // it may have been applied
			n.known.tell(i.name, unknownVersion)
		case i.before == "":
			n.known.untell(i.name)
		default:
			n.known.tell(i.name, i.before)
		}
	}
	if l.c.Whole {
		// It has everything in each response. Such clients judge resources one by one.
		named := slices.DeleteFunc(slices.Clone(items), func(i item) bool { return len(items) > 1 && !strings.Contains(reason, i.name) })
		if len(named) > 0 {
			items = named
		}
		l.doubt(n, items, reason)
		for _, i := range named {
			l.refuse(n, i, reason)
		}
		return
	}
	l.doubt(n, items, reason)
	switch half := len(items) / 2; len(items) {
	case 0:
	case 1:
		l.refuse(n, items[0], reason)
	default:
		n.halves = append(n.halves, namesOf(items[:half]), namesOf(items[half:]))
	}
}

// doubt notes that the cause of a refusal is among these.
func (l *Layered) doubt(n *lane, items []item, reason string) {
	for _, i := range items {
		n.note(Quarantined{Ref{n.typ, i.name}, i.version, reason})
	}
	l.c.Report.Nacked(n.typ, namesOf(items), reason)
}

func namesOf(items []item) []string {
	out := make([]string, len(items))
	for i := range items {
		out[i] = items[i].name
	}
	return out
}

// refuse takes a version out of use. What a client could not do on its machine says nothing of
// others.
func (l *Layered) refuse(n *lane, i item, reason string) {
	one := Quarantined{Ref: Ref{n.typ, i.name}, Version: i.version, Reason: reason}
	n.mark(i.name)
	if before, ok := l.awaited[one.Ref]; ok {
		await(&l.late, one.Ref, before)
		taken(&l.awaited, one.Ref)
	}
	alone := ofMachine(reason)
	if alone {
		if n.bad == nil {
			n.bad = map[string]Quarantined{}
		}
		n.bad[i.name] = one
	} else {
		l.c.Quarantine.Add(one)
	}
	l.c.Report.Refused(one, alone)
}

// ofMachine reports whether a reason is of the client's machine: an address that is taken, or
// not there. The texts are Envoy's (source/common/network/listen_socket_impl.cc and
// source/common/listener_manager).
func ofMachine(reason string) bool {
	reason = strings.ToLower(reason)
	for _, text := range []string{"cannot bind", "address already in use", "cannot assign requested address", "permission denied"} {
		if strings.Contains(reason, text) {
			return true
		}
	}
	return false
}

// Close releases what the client asked for. The session is at its end.
func (l *Layered) Close() {
	selected := l.selected
	l.selected = nil
	for _, n := range l.lanes {
		for _, name := range n.known.names(func(one record) bool { return one.named }) {
			l.release(n, name)
		}
		if n.wildcard {
			l.unwatch(n.typ, wildcard)
		}
	}
	l.lanes = nil
	for _, ref := range selected {
		l.unwatch(ref.Type, ref.Name)
	}
	for i, s := range l.c.Layers {
		s.detach(l.seats[i])
	}
	l.c.Selection.detach(l.waker)
}

// LaneStatus describes where a layered session is with one type.
type LaneStatus struct {
	Type string
	// Named counts names that the client asked for, Resources what it has.
	Named, Resources int
	Wildcard         bool
	// Responses, Acked and Rejections count; Unanswered are those without an answer yet.
	Responses, Acked, Rejections uint64
	Unanswered                   int
	// Rejected is the last refusal.
	Rejected Rejection
	// Refused are the versions that the client does not have as it, or one like it, refused them,
	// by name.
	Refused []Quarantined
}

// Status describes every type, in order.
func (l *Layered) Status() []LaneStatus {
	out := make([]LaneStatus, 0, len(l.lanes))
	for _, n := range l.lanes {
		has := 0
		for _, one := range n.known.all {
			if one.version != "" {
				has++
			}
		}
		out = append(out, LaneStatus{
			Type: n.typ, Named: n.known.named, Resources: has, Wildcard: n.wildcard, Responses: n.responses,
			Acked: n.acked, Rejections: n.rejections, Unanswered: len(n.unanswered), Rejected: n.reject,
			Refused: slices.SortedFunc(maps.Values(n.refusals), func(a, b Quarantined) int { return compareRefs(a.Ref, b.Ref) }),
		})
	}
	return out
}

// Sent calls visit for each resource that the client was sent, with its version, and whether
// it was asked for by name.
func (l *Layered) Sent(visit func(ref Ref, version string, named bool)) {
	for _, n := range l.lanes {
		for _, one := range n.known.all {
			if one.version != "" {
				visit(Ref{n.typ, one.name}, one.version, one.named)
			}
		}
	}
}

// Settled reports whether the client has answered everything, and nothing is to be sent to it but
// removals that wait.
func (l *Layered) Settled() bool {
	for _, s := range l.c.Layers {
		if _, filled := s.Position(); !filled {
			return false
		}
	}
	l.absorb()
	return !slices.ContainsFunc(l.lanes, func(n *lane) bool {
		return !n.answered || n.everything || len(n.unanswered)+len(n.dirty)+len(n.halves) > 0
	}) && len(l.lanes) > 0
}

// Pending reports whether Next may have something more, now or later, by what the session knows: of what
// changes in its layers or its Selection it learns when it is woken.
func (l *Layered) Pending() bool {
	return slices.ContainsFunc(l.lanes, func(n *lane) bool {
		return !n.answered || n.everything || len(n.dirty)+len(n.halves)+len(n.refused)+len(n.due) > 0
	})
}

// Refused visits the resources whose present version the client does not have, as it or one like it
// refused them.
func (l *Layered) Refused(visit func(Quarantined)) {
	for _, n := range l.lanes {
		for _, one := range n.refusals {
			visit(one)
		}
	}
}
