//go:build linux

package nfnl

import (
	"maps"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Fake is nf_tables of one network namespace, in memory: what [Conn] writes and
// reads, without a kernel and without privileges. It decodes the same netlink
// messages, keeps tables, chains, rules, sets and elements, and refuses what the
// kernel refuses, with its errno: what is absent, what is still used, what exists
// with another definition, loops of chains. A transaction takes effect as a whole
// or not at all. The zero value is empty and ready; safe for concurrent use.
//
// It does not carry packets. It does not check what a rule's expressions do with
// registers, nor in which hooks they may be.
type Fake struct {
	mu        sync.Mutex
	tables    map[Table]*fakeTable
	listeners map[*FakeListener]*FakeConn // and the connection that each ignores
}

type fakeTable struct {
	dormant bool
	chains  map[string]*fakeChain
	sets    map[string]*fakeSet
}

type fakeChain struct {
	def   Chain
	rules []fakeRule
}

// fakeRule is a rule with the objects that it uses.
type fakeRule struct {
	canonical string
	chains    []string // that it jumps or goes to
	maps      []string // of verdicts that it looks up
	sets      []string // all sets and maps
}

type fakeSet struct {
	def     Set
	elems   map[string]Elem
	packets map[string]uint64
}

// clone copies what a transaction may change. Definitions and rules are never
// changed in place.
func (t *fakeTable) clone() *fakeTable {
	out := &fakeTable{dormant: t.dormant, chains: make(map[string]*fakeChain, len(t.chains)), sets: make(map[string]*fakeSet, len(t.sets))}
	for name, c := range t.chains {
		out.chains[name] = &fakeChain{def: c.def, rules: slices.Clone(c.rules)}
	}
	for name, s := range t.sets {
		out.sets[name] = &fakeSet{def: s.def, elems: maps.Clone(s.elems), packets: maps.Clone(s.packets)}
	}
	return out
}

// Open opens a connection. It takes the place of a [Conn].
func (f *Fake) Open() *FakeConn { return &FakeConn{f: f} }

// Listen listens to changes, without those of one connection (nil: all), as
// [ListenTables] does.
func (f *Fake) Listen(ignore *FakeConn) *FakeListener {
	l := &FakeListener{f: f, queue: make(chan []Message, 1024), closed: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listeners == nil {
		f.listeners = map[*FakeListener]*FakeConn{}
	}
	f.listeners[l] = ignore
	return l
}

// Count adds to the packets that an element has counted. It does nothing for an
// element that does not exist or does not count.
func (f *Fake) Count(t Table, set, key string, packets uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	table := f.tables[t]
	if table == nil || table.sets[set] == nil {
		return
	}
	s := table.sets[set]
	if _, ok := s.elems[key]; ok && s.def.Counter {
		s.packets[key] += packets
	}
}

// Dump describes a table as text; see the function Dump.
func (f *Fake) Dump(t Table) string {
	text, err := Dump(f.Open(), t)
	if err != nil { // a table that goes while it is read
		return err.Error()
	}
	return text
}

// FakeConn is a connection to a [Fake]. Its methods are those of [Conn].
type FakeConn struct{ f *Fake }

// Close does nothing.
func (*FakeConn) Close() error { return nil }

// Commit does what [Conn.Commit] does.
func (c *FakeConn) Commit(b *Batch) error { return c.send(b, true) }

// Check does what [Conn.Check] does.
func (c *FakeConn) Check(b *Batch) error { return c.send(b, false) }

func (c *FakeConn) send(b *Batch, commit bool) error {
	b.finish()
	if b.Empty() {
		return nil
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	tx, all, err := c.f.run(b)
	if err != nil {
		return err
	}
	if commit {
		c.f.tables = tx.tables
		c.f.notify(c, all)
	}
	return nil
}

// notify hands a transaction's messages to the listeners; those that do not keep
// up lose them, as with the kernel.
func (f *Fake) notify(from *FakeConn, all []Message) {
	for l, ignore := range f.listeners {
		if ignore == from {
			continue
		}
		select {
		case l.queue <- all:
		default:
			l.lose()
		}
	}
}

// FakeListener hears of changes of a [Fake]. Its methods are those of [Listener].
type FakeListener struct {
	f      *Fake
	queue  chan []Message
	closed chan struct{}
	once   sync.Once
	mu     sync.Mutex
	lost   bool
}

func (l *FakeListener) lose() {
	l.mu.Lock()
	l.lost = true
	l.mu.Unlock()
}

// Receive does what [Listener.Receive] does.
func (l *FakeListener) Receive(each func(Message)) error {
	l.mu.Lock()
	lost := l.lost
	l.lost = false
	l.mu.Unlock()
	if lost {
		return ErrOverrun
	}
	select {
	case <-l.closed:
		return os.ErrClosed
	case all := <-l.queue:
		for _, m := range all {
			each(m)
		}
		return nil
	}
}

// Close does what [Listener.Close] does.
func (l *FakeListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.f.mu.Lock()
		defer l.f.mu.Unlock()
		delete(l.f.listeners, l)
	})
	return nil
}

// HasTable does what [Conn.HasTable] does.
func (c *FakeConn) HasTable(t Table) (there, dormant bool, err error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	table := c.f.tables[t]
	if table == nil {
		return false, false, nil
	}
	return true, table.dormant, nil
}

// Chains does what [Conn.Chains] does, by name.
func (c *FakeConn) Chains(t Table) (out []Chain, err error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if table := c.f.tables[t]; table != nil {
		for _, name := range slices.Sorted(maps.Keys(table.chains)) {
			out = append(out, table.chains[name].def)
		}
	}
	return out, nil
}

// Rules does what [Conn.Rules] does.
func (c *FakeConn) Rules(t Table) (out []RuleState, err error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if table := c.f.tables[t]; table != nil {
		for _, name := range slices.Sorted(maps.Keys(table.chains)) {
			for _, r := range table.chains[name].rules {
				out = append(out, RuleState{Chain: name, Rule: r.canonical})
			}
		}
	}
	return out, nil
}

// Sets does what [Conn.Sets] does, by name.
func (c *FakeConn) Sets(t Table) (out []Set, err error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	table := c.f.tables[t]
	if table == nil {
		return nil, unix.ENOENT
	}
	for _, name := range slices.Sorted(maps.Keys(table.sets)) {
		out = append(out, table.sets[name].def)
	}
	return out, nil
}

// Elems does what [Conn.Elems] does, by key.
func (c *FakeConn) Elems(t Table, set string, each func(Elem)) error {
	s, err := c.f.set(t, set)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(s.elems)) {
		each(s.elems[key])
	}
	return nil
}

// Counts does what [Conn.Counts] does, by key.
func (c *FakeConn) Counts(t Table, set string, each func(key []byte, packets uint64)) error {
	s, err := c.f.set(t, set)
	if err != nil || !s.def.Counter {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(s.elems)) {
		each([]byte(key), s.packets[key])
	}
	return nil
}

// set is a copy of a set.
func (f *Fake) set(t Table, name string) (*fakeSet, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	table := f.tables[t]
	if table == nil || table.sets[name] == nil {
		return nil, unix.ENOENT
	}
	s := table.sets[name]
	return &fakeSet{def: s.def, elems: maps.Clone(s.elems), packets: maps.Clone(s.packets)}, nil
}
