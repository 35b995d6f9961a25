package delta

// entry is the newest state of one name: a live resource, or a tombstone that
// remembers its removal.
type entry struct {
	name    string
	version string
	// field is the resource as it stands in a response, tag and length included.
	// It is encoded once and shared; nil in a tombstone.
	field []byte
	// options of layered sessions; nil: the defaults.
	options *entryOptions
	// index orders all entries of a table by their last change.
	index uint64
	// sequence is the position's part at which the entry changed last.
	sequence uint64

	in         *list
	prev, next *entry
}

func (e *entry) live() bool { return e.field != nil }

// entryOptions are the options of a resource, with the fallback encoded.
type entryOptions struct {
	unlisted bool
	follower Ref
	fallback held
}

// held is an encoded version of a resource; the zero value: there is none.
type held struct {
	version string
	field   []byte
	options *entryOptions
}

func (t *table) optionsOf(name string, o *ResourceOptions) *entryOptions {
	if o == nil || !o.Unlisted && o.Follower == (Ref{}) && o.Fallback == nil {
		return nil // the defaults
	}
	out := &entryOptions{unlisted: o.Unlisted, follower: o.Follower}
	if o.Fallback != nil {
		version := VersionOf(o.Fallback)
		out.fallback = held{version, appendResource(nil, t.typ, name, version, o.Fallback), out}
	}
	return out
}

func (o *entryOptions) equal(p *entryOptions) bool {
	if o == nil || p == nil {
		return o == p
	}
	return o.unlisted == p.unlisted && o.follower == p.follower && o.fallback.version == p.fallback.version
}

// list is a doubly linked list of entries, ascending by index.
type list struct {
	first, last *entry
	len         int
}

func (l *list) push(e *entry) {
	e.in, e.prev, e.next = l, l.last, nil
	if l.last == nil {
		l.first = e
	} else {
		l.last.next = e
	}
	l.last = e
	l.len++
}

func (e *entry) unlink() {
	if e.in == nil {
		return
	}
	if e.prev == nil {
		e.in.first = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		e.in.last = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.in.len--
	e.in, e.prev, e.next = nil, nil, nil
}

// after returns the first entry past index. It looks from the newest backwards:
// streams are usually a few changes behind.
func (l *list) after(index uint64) *entry {
	if index == fresh {
		return l.first
	}
	var found *entry
	for e := l.last; e != nil && e.index > index; e = e.prev {
		found = e
	}
	return found
}

const (
	// fresh is the index of a stream that has nothing yet.
	fresh = 0
	// base is the index of an empty table; its first change gets the next one.
	base = 1
)

// table holds all resources of one type. Live entries are never dropped, so a
// stream however far behind finds every change; only tombstones are limited.
type table struct {
	typ        string
	byName     map[string]*entry
	live, gone list
	// index of the newest change.
	index uint64
	// evicted is the index of the newest tombstone that was dropped. A stream
	// behind it would miss a removal.
	evicted uint64
	// floor is the oldest sequence from which a cursor can be served.
	floor uint64
	// frames holds the responses built since the last change, by the index from
	// which they lead.
	frames map[uint64]*Frame
	// digested is the digest of the live resources at index digestOf; empty: there is none yet.
	digested string
	digestOf uint64
	// traces of the newest changes that are followed, by name, oldest first; traced counts them.
	traces map[string][]tracedChange
	traced int
}

// tracedChange is a change that is followed: the index that it got.
type tracedChange struct {
	index   uint64
	context string
}

// maxTraced changes of a type are remembered; those of streams that are further behind are not followed to the end.
const maxTraced = 1024

// trace notes that the newest change, which is of a name, is followed.
func (t *table) trace(name, context string) {
	if t.traced == maxTraced {
		t.traces, t.traced = nil, 0
	}
	if t.traces == nil {
		t.traces = map[string][]tracedChange{}
	}
	t.traces[name] = append(t.traces[name], tracedChange{t.index, context})
	t.traced++
}

func newTable(typ string, floor uint64) *table {
	return &table{typ: typ, byName: map[string]*entry{}, index: base, floor: floor}
}

// set records a new state and reports whether it differs from the one before.
func (t *table) set(r *Resource, sequence uint64) bool {
	name, options := r.Name, t.optionsOf(r.Name, r.Options)
	var version string
	if r.Encoding != nil {
		name, version = r.Encoding.name, r.Encoding.version // the strings that others have
	} else {
		version = VersionOf(r.Body)
	}
	e := t.byName[name]
	switch {
	case e == nil:
		e = &entry{name: name}
		t.byName[name] = e
	case e.live() && e.version == version && e.options.equal(options):
		return false
	}
	e.version, e.options = version, options
	if r.Encoding != nil {
		e.field = r.Encoding.field
	} else {
		e.field = appendResource(nil, t.typ, name, version, r.Body)
	}
	t.move(e, &t.live, sequence)
	return true
}

// remove leaves a tombstone and reports whether there was something to remove.
func (t *table) remove(name string, sequence uint64) bool {
	e := t.byName[name]
	if e == nil || !e.live() {
		return false
	}
	e.version, e.field, e.options = "", nil, nil
	t.move(e, &t.gone, sequence)
	return true
}

func (t *table) move(e *entry, to *list, sequence uint64) {
	t.index++
	t.frames = nil
	e.index, e.sequence = t.index, sequence
	e.unlink()
	to.push(e)
}

// evict drops the oldest tombstones until at most keep are left.
func (t *table) evict(keep int) {
	for t.gone.len > keep {
		e := t.gone.first
		t.evicted = e.index
		t.floor = max(t.floor, e.sequence)
		delete(t.byName, e.name)
		e.unlink()
	}
}

// restamp moves the table to another epoch, in which nothing is older than
// sequence. Streams that are connected keep their index.
func (t *table) restamp(sequence uint64) {
	t.floor, t.frames = sequence, nil
	for _, l := range []*list{&t.live, &t.gone} {
		for e := l.first; e != nil; e = e.next {
			e.sequence = sequence
		}
	}
}

// indexOf returns the index up to which a client at sequence has everything.
func (t *table) indexOf(sequence uint64) uint64 {
	index := max(t.evicted, base)
	for _, l := range []*list{&t.live, &t.gone} {
		e := l.last
		for e != nil && e.sequence > sequence {
			e = e.prev
		}
		if e != nil {
			index = max(index, e.index)
		}
	}
	return index
}

// walk visits the entries past index in the order of their last change, until
// visit says stop. To one who has nothing, removals say nothing: they are left
// out. It reports whether it came to the end.
func (t *table) walk(index uint64, visit func(*entry) bool) bool {
	live, gone := t.live.after(index), (*entry)(nil)
	if index != fresh {
		gone = t.gone.after(index)
	}
	for live != nil || gone != nil {
		var e *entry
		if gone == nil || live != nil && live.index < gone.index {
			e, live = live, live.next
		} else {
			e, gone = gone, gone.next
		}
		if !visit(e) {
			return false
		}
	}
	return true
}
