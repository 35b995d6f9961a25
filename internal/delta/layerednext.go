package delta

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Next returns the next response to send, or nil if the client has all that it is to have now:
// wait then for a change of a layer or of the selection, for a request, and, if wake is not
// zero, until then. What it returns counts as sent. The frame is of this stream alone.
func (l *Layered) Next(now time.Time) (f *Frame, wake time.Time) {
	for _, s := range l.c.Layers {
		if _, filled := s.Position(); !filled {
			return nil, time.Time{}
		}
	}
	l.absorb()
	for _, n := range l.lanes {
		if f := l.apart(n); f != nil {
			return f, time.Time{}
		}
	}
	settled, gated := true, false
	for _, n := range l.lanes {
		switch {
		case len(n.unanswered) >= maxUnanswered:
			settled = false
			continue
		case !l.c.Whole && slices.Contains(l.c.Gated, n.typ) && l.pendingSets(n) && l.blocked(n):
			gated = true
			if l.held.IsZero() {
				l.held = now
			}
			if until := l.held.Add(maxHold); now.Before(until) {
				wake, settled = earliest(wake, until), false
				continue
			}
			for ref, before := range l.awaited {
				await(&l.late, ref, before)
			}
			l.awaited = nil
		}
		if f := l.sets(n, now); f != nil {
			return f, time.Time{}
		}
	}
	if !gated {
		l.held = time.Time{}
	}
	if !settled {
		return nil, wake
	}
	return l.removals(now, wake)
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// absorb notes which names may have changed since it was called last.
func (l *Layered) absorb() {
	if names, generation := l.c.Selection.load(); generation != l.generation {
		was := l.selected
		l.selected, l.generation = names, generation
		for _, ref := range names {
			if !selects(was, *ref) {
				l.markListed(*ref)
				l.watch(ref.Type, ref.Name)
			}
		}
		for _, ref := range was {
			if !selects(names, *ref) {
				l.markListed(*ref)
				l.unwatch(ref.Type, ref.Name)
			}
		}
	}
	for i, s := range l.c.Layers {
		s.mu.Lock()
		for _, n := range l.lanes {
			l.absorbTable(n, i, s.lookup(n.typ))
		}
		s.mu.Unlock()
	}
	for _, n := range l.lanes {
		if !n.everything {
			continue
		}
		n.everything = false
		for _, one := range n.known.all {
			n.mark(one.name)
		}
		for name := range n.refusals {
			n.mark(name)
		}
		for _, ref := range l.selected {
			if n.wildcard && ref.Type == n.typ {
				n.mark(ref.Name)
			}
		}
	}
}

// markListed marks a name for those who have the wildcard of its type.
func (l *Layered) markListed(ref Ref) {
	if n := l.lane(ref.Type); n != nil && n.wildcard {
		n.mark(ref.Name)
	}
}

func has[K comparable, V any](set map[K]V, key K) bool { _, ok := set[key]; return ok }

func (l *Layered) absorbTable(n *lane, layer int, t *table) {
	from := n.cursors[layer]
	n.cursors[layer] = t.index
	if n.everything || from < t.evicted {
		n.everything = true
		if n.wildcard {
			for e := t.live.first; e != nil; e = e.next {
				if e.options == nil || !e.options.unlisted {
					n.mark(e.name)
				}
			}
		}
		return
	}
	if from == t.index {
		return
	}
	t.walk(max(from, base), func(e *entry) bool {
		_, known := n.known.find(e.name)
		listed := n.wildcard && e.live() && (e.options == nil || !e.options.unlisted || selects(l.selected, Ref{n.typ, e.name}))
		if known || listed || has(n.refusals, e.name) {
			n.mark(e.name)
		}
		return true
	})
}

// verdict is what becomes of a name.
type verdict uint8

const (
	// gone: the client is not to have it.
	gone verdict = iota
	// kept: the client keeps what it has.
	kept
	// current: the client is to have a version.
	current
)

// wanted is what the client is to have of a name.
func (l *Layered) wanted(n *lane, name string) (held, verdict) {
	ref := Ref{n.typ, name}
	named := n.known.asked(name)
	h := l.look(ref)
	listed := n.wildcard && (h.version != "" && (h.options == nil || !h.options.unlisted) || selects(l.selected, ref))
	switch {
	case !named && !listed:
		return held{}, gone
	case h.version != "":
		var fallback held
		if h.options != nil {
			fallback = h.options.fallback
		}
		h = l.c.Quarantine.choose(ref, h, fallback)
		if h.version == "" || n.bad[name].Version == h.version {
			return held{}, kept
		}
		return h, current
	case named && l.c.Source != nil:
		if body := l.c.Source.Absent(ref); body != nil {
			version := VersionOf(body)
			return held{version, appendResource(nil, n.typ, name, version, body), nil}, current
		}
	}
	return held{}, gone
}

// look for a name in the layers.
func (l *Layered) look(ref Ref) held {
	for _, s := range l.c.Layers {
		s.mu.Lock()
		e := s.lookup(ref.Type).byName[ref.Name]
		if e != nil && e.live() {
			h := held{e.version, e.field, e.options}
			s.mu.Unlock()
			return h
		}
		s.mu.Unlock()
	}
	return held{}
}

// pendingSets reports whether there may be something to set.
func (l *Layered) pendingSets(n *lane) bool { return !n.answered || len(n.dirty) > 0 }

// blocked reports whether types before one have something that the client has not answered.
func (l *Layered) blocked(n *lane) bool {
	if len(l.awaited) > 0 {
		return true
	}
	for _, before := range l.lanes {
		if before.rank >= n.rank {
			break
		}
		if !slices.Contains(l.c.Gated, before.typ) && len(before.unanswered) > 0 {
			return true
		}
	}
	return false
}

// apart sends a part of a response that was refused.
func (l *Layered) apart(n *lane) *Frame {
	for len(n.halves) > 0 && len(n.unanswered) < maxUnanswered {
		b := l.build(n)
		for _, name := range n.halves[0] {
			delete(n.dirty, name)
			if h, v := l.wanted(n, name); v == current {
				b.set(name, h)
			} else {
				n.mark(name)
			}
		}
		n.halves = n.halves[1:]
		if len(b.got.items) > 0 {
			return b.frame()
		}
	}
	return nil
}

// sets sends what is new or different, and which of the names that were asked for do not
// exist. What is gone is noted, for removals.
func (l *Layered) sets(n *lane, now time.Time) *Frame {
	if len(n.dirty) == 0 && len(n.refused) == 0 && n.answered {
		return nil
	}
	defer n.rest()
	b := l.build(n)
	different := !n.answered
	n.known.grow(len(n.dirty))
	b.expect(len(n.dirty))
	for _, name := range slices.Sorted(maps.Keys(n.dirty)) {
		h, v := l.wanted(n, name)
		version, known := n.known.sent(name)
		l.judge(n, name, v == current && (!known || version != h.version || has(n.forced, name)))
		switch {
		case v == kept:
		case v == gone && version != "":
			if _, waiting := n.due[name]; !waiting {
				if n.due == nil {
					n.due = map[string]time.Time{}
				}
				n.due[name] = now.Add(l.c.Drain)
			}
		case v == gone && !known && n.known.asked(name):
			n.known.tell(name, "")
			b.removed = append(b.removed, name)
			taken(&l.awaited, Ref{n.typ, name}) // once it is there, it is news
		case v == current:
			delete(n.due, name)
			if known && version == h.version && !has(n.forced, name) {
				break
			}
			different = true
			if l.c.Whole {
				break
			}
			if !b.set(name, h) {
				return b.frame() // full; the rest stays dirty
			}
		}
		delete(n.dirty, name)
		if v != kept { // what is forced is forced once it can be sent
			delete(n.forced, name)
		}
	}
	b.removed = append(b.removed, n.refused...)
	n.refused = nil
	if l.c.Whole {
		return l.whole(n, b, different)
	}
	if len(b.got.items) == 0 && len(b.removed) == 0 && n.answered {
		return nil
	}
	return b.frame()
}

// whole makes a response of state of the world, of everything that the client wants.
func (l *Layered) whole(n *lane, b *builder, different bool) *Frame {
	for name := range n.due { // not in the response is removed, for the types that have removals
		delete(n.due, name)
		n.known.untell(name)
		different = true
	}
	if !different && len(b.removed) == 0 {
		return nil
	}
	b.removed = nil
	all := map[string]struct{}{}
	for _, name := range n.known.names(func(one record) bool { return one.named }) {
		all[name] = struct{}{}
	}
	if n.wildcard {
		l.listed(n, all)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if h, v := l.wanted(n, name); v == current {
			b.set(name, h)
		} else if good, ok := n.known.sent(name); v == kept && ok && good != "" {
			b.keep(name, good)
		}
	}
	return b.frame()
}

// listed adds the names that the wildcard has.
func (l *Layered) listed(n *lane, to map[string]struct{}) {
	for _, s := range l.c.Layers {
		s.mu.Lock()
		for e := s.lookup(n.typ).live.first; e != nil; e = e.next {
			if e.options == nil || !e.options.unlisted {
				to[e.name] = struct{}{}
			}
		}
		s.mu.Unlock()
	}
	for _, ref := range l.selected {
		if ref.Type == n.typ {
			to[ref.Name] = struct{}{}
		}
	}
}

// removals sends what is gone: first what refers to others, at once; then the others, in the
// reverse order, once nothing can refer to them any more.
func (l *Layered) removals(now, wake time.Time) (*Frame, time.Time) {
	if !slices.ContainsFunc(l.lanes, func(n *lane) bool { return len(n.due) > 0 }) {
		return nil, wake
	}
	order := slices.Clone(l.lanes)
	slices.SortStableFunc(order, func(a, b *lane) int {
		first := func(n *lane) int {
			if n.typ == l.c.Prompt {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(b.rank, a.rank))
	})
	for _, n := range order {
		b := l.build(n)
		for _, name := range slices.Sorted(maps.Keys(n.due)) {
			if at := n.due[name]; n.typ != l.c.Prompt && now.Before(at) {
				wake = earliest(wake, at)
				continue
			}
			delete(n.due, name)
			if h := l.look(Ref{n.typ, name}); h.version == "" {
				l.c.Quarantine.forget(Ref{n.typ, name})
			}
			b.removed = append(b.removed, name)
			if n.known.asked(name) {
				n.known.tell(name, "")
			} else {
				n.known.untell(name)
			}
		}
		n.rest()
		if len(b.removed) > 0 {
			return b.frame(), time.Time{}
		}
	}
	return nil, wake
}

// builder makes one frame.
type builder struct {
	l       *Layered
	n       *lane
	got     response
	size    int
	fields  [][]byte
	removed []string
}

func (l *Layered) build(n *lane) *builder { return &builder{l: l, n: n} }

// maxExpected bounds the room for what may not be sent, as the client has it.
const maxExpected = 256

// expect up to n resources.
func (b *builder) expect(n int) {
	n = min(n, maxExpected)
	b.fields, b.got.items = make([][]byte, 0, n), make([]item, 0, n)
}

// set adds a resource, unless the frame is full, and notes that the client has it.
func (b *builder) set(name string, h held) bool {
	if b.size > 0 && b.size+len(h.field) > defaultFrameSize && !b.l.c.Whole {
		return false
	}
	b.size += len(h.field)
	b.fields = append(b.fields, h.field)
	before, _ := b.n.known.sent(name)
	b.got.items = append(b.got.items, item{name, h, before})
	b.n.known.tell(name, h.version)
	b.l.follow(h.options)
	return true
}

// keep adds the version that the client has, which is not the present one, to a response of
// state of the world.
func (b *builder) keep(name, version string) {
	b.l.c.Quarantine.mu.Lock()
	good := b.l.c.Quarantine.good[Ref{b.n.typ, name}]
	b.l.c.Quarantine.mu.Unlock()
	if good.version == version {
		b.fields = append(b.fields, good.field)
	}
}

// follow sees to it that the follower of a resource is sent after it.
func (l *Layered) follow(options *entryOptions) {
	if options == nil || options.follower == (Ref{}) || l.c.Whole {
		return
	}
	await(&l.awaited, options.follower, l.nonce+1)
	if n := l.lane(options.follower.Type); n != nil && n.known.asked(options.follower.Name) {
		n.mark(options.follower.Name)
		n.force(options.follower.Name)
	}
}

// Fields of envoy.service.discovery.v3.DiscoveryResponse that are not as in
// DeltaDiscoveryResponse.
const wholeResources = 2

func (b *builder) frame() *Frame {
	l, n := b.l, b.n
	l.nonce++
	nonce := nonceOf(l.nonce)
	n.answered = true
	b.got.number, b.got.removed = l.nonce, b.removed
	n.unanswered = append(n.unanswered, &b.got)
	n.responses++
	f := &Frame{Type: n.typ, Complete: true, Resources: len(b.fields), Removed: len(b.removed)}
	data := make([]byte, 0, b.size+len(n.typ)+len(nonce)+64)
	if l.c.Whole {
		data = appendString(data, responseVersion, nonce)
		for _, field := range b.fields {
			data = protowire.AppendTag(data, wholeResources, protowire.BytesType)
			data = protowire.AppendBytes(data, anyOf(field))
		}
	} else {
		for _, field := range b.fields {
			data = append(data, field...)
		}
	}
	data = appendString(data, responseType, n.typ)
	data = appendString(data, responseNonce, nonce)
	for _, name := range b.removed {
		data = appendString(data, responseRemoved, name)
	}
	f.Data = data
	return f
}

// anyOf cuts the google.protobuf.Any out of what appendResource made.
func anyOf(field []byte) []byte {
	_, _, n := protowire.ConsumeTag(field)
	inner, _ := protowire.ConsumeBytes(field[n:])
	for len(inner) > 0 {
		number, _, n := protowire.ConsumeTag(inner)
		value, m := protowire.ConsumeBytes(inner[n:])
		if number == resourceBody {
			return value
		}
		inner = inner[n+m:]
	}
	return nil
}

// compareRefs orders by type, then by name.
func compareRefs(a, b Ref) int {
	return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
}
