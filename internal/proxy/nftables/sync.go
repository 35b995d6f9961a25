//go:build linux

package nftables

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
)

// kernel is nf_tables as the mode uses it: an nfnl.Conn, or in tests a connection to an
// nfnl.Fake, with faults between.
type kernel interface {
	Commit(*nfnl.Batch) error
	Check(*nfnl.Batch) error
	HasTable(nfnl.Table) (there, dormant bool, err error)
	Chains(nfnl.Table) ([]nfnl.Chain, error)
	Rules(nfnl.Table) ([]nfnl.RuleState, error)
	Sets(nfnl.Table) ([]nfnl.Set, error)
	Elems(t nfnl.Table, set string, each func(nfnl.Elem)) error
	Counts(t nfnl.Table, set string, each func(key []byte, packets uint64)) error
}

// dumpAttempts bounds how often a dump is repeated because another program changed
// tables at the same time.
const dumpAttempts = 20

// steady repeats f while the tables change under it.
func steady(f func() error) error {
	var err error
	for range dumpAttempts {
		if err = f(); !errors.Is(err, nfnl.ErrInterrupted) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return err
}

// read makes have what the kernel has, and the lists of differences. It is the
// one place that relies on no earlier state.
func (f *family) read(k kernel) error {
	if f.off {
		return nil
	}
	return steady(func() error {
		f.unknown()
		if err := f.readAll(k); err != nil {
			return fmt.Errorf("reading table %s (%s): %w", f.table.Name, f, err)
		}
		f.compare()
		return nil
	})
}

func (f *family) String() string {
	if f.words == 1 {
		return "ip"
	}
	return "ip6"
}

func (f *family) readAll(k kernel) (err error) {
	if f.hasTable, f.dormant, err = k.HasTable(f.table); err != nil || !f.hasTable {
		return err
	}
	sets, err := k.Sets(f.table)
	if err != nil {
		return err
	}
	for _, def := range sets {
		if err := f.readSet(k, def); err != nil {
			return err
		}
	}
	chains, err := k.Chains(f.table)
	if err != nil {
		return err
	}
	for _, def := range chains {
		c := f.chains[def.Name]
		if c == nil {
			c = &chain{def: def}
			f.chains[def.Name] = c
		}
		c.has = true
		f.rebuild = f.rebuild || c.def != def
	}
	rules, err := k.Rules(f.table)
	if err != nil {
		return err
	}
	for _, r := range rules {
		if c := f.chains[r.Chain]; c != nil {
			c.have = append(c.have, r.Rule)
		}
	}
	return nil
}

func (f *family) readSet(k kernel, def nfnl.Set) error {
	s := f.sets[def.Name]
	if s == nil {
		s = &set{def: def}
		if bits, ok := sourceBits(def.Name); ok {
			s.def = f.source(bits)
		} else if own, ok := f.meshSet(def.Name); ok {
			s.def = own
		} else {
			s.opaque = true // another program's; it is deleted with its content
		}
		f.sets[def.Name] = s
		f.order = append(f.order, s)
	}
	sized := def
	sized.Size = s.def.Size // see resize
	if s.want && sized != s.def {
		f.rebuild = true
	}
	s.has, s.size = true, def.Size
	if s.opaque {
		return nil
	}
	return k.Elems(f.table, def.Name, func(e nfnl.Elem) { s.haveElem(e.Key, pack(e.Value, e.Comment)) })
}

// chunk is how much a cold start commits at once: the kernel keeps a
// transaction in memory until it ends.
const chunk = 512 << 10

// transaction collects what brings the kernel from have to want.
type transaction struct {
	k       kernel
	b       *nfnl.Batch
	chunked bool
	commits int
}

// more commits what there is if the transaction may be cut here.
func (t *transaction) more() error {
	if t.chunked && t.b.Len() >= chunk {
		return t.commit()
	}
	return nil
}

func (t *transaction) commit() error {
	if t.b.Empty() {
		return nil
	}
	t.commits++
	err := t.k.Commit(t.b)
	t.b.Reset()
	return err
}

// write adds the family's differences. Order matters to the kernel only within
// the transaction: an element's chain must be there before it, a rule's sets
// before it, and nothing that is still used can be deleted. In a cold start,
// which is cut into pieces, the hooks come last and so make all of it visible
// in one moment.
func (f *family) write(t *transaction) error {
	if f.rebuild {
		t.b.DeleteTable(f.table)
		f.unknown()
		f.compare()
	}
	if !f.hasTable || f.dormant {
		t.b.AddTable(f.table)
	}
	for _, s := range f.order {
		if s.want && !s.has {
			t.b.AddSet(f.table, &s.def)
		}
	}
	for _, c := range f.chains {
		if c.want && !c.has && c.def.Type == "" {
			t.b.AddChain(f.table, c.def)
		}
	}
	if err := f.writeElems(t); err != nil {
		return err
	}
	var hooks []*chain
	for _, c := range f.chains {
		if c.def.Type != "" {
			hooks = append(hooks, c)
		} else if c.dirty {
			f.writeRules(t, c)
		}
	}
	for _, c := range hooks {
		if c.want && !c.has {
			t.b.AddChain(f.table, c.def)
		}
		if c.dirty {
			f.writeRules(t, c)
		}
	}
	for _, s := range f.order {
		if !s.want && s.has {
			t.b.DeleteSet(f.table, s.def.Name)
		}
	}
	for _, c := range f.chains {
		if !c.want && c.has {
			t.b.DeleteChain(f.table, c.def.Name)
		}
	}
	return nil
}

func (f *family) writeElems(t *transaction) error {
	for _, s := range f.order {
		for key := range s.had {
			t.b.DeleteElem(f.table, &s.def, key)
		}
		for key := range s.differ {
			t.b.DeleteElem(f.table, &s.def, key)
		}
	}
	add := func(s *set, key, packed string) error {
		value, comment := unpack(packed)
		t.b.AddElem(f.table, &s.def, nfnl.Elem{Key: key, Value: value, Comment: comment})
		return t.more()
	}
	for _, s := range f.order {
		for key, d := range s.differ {
			if err := add(s, key, d.want); err != nil {
				return err
			}
		}
		for key, want := range s.wanted {
			if err := add(s, key, want); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *family) writeRules(t *transaction, c *chain) {
	if c.matches() {
		return
	}
	if len(c.have) > 0 {
		t.b.FlushChain(f.table, c.def.Name)
	}
	for _, r := range c.rules {
		t.b.AddRule(f.table, c.def.Name, r)
	}
}

// written notes that the kernel has what was wanted.
func (f *family) written() {
	f.hasTable, f.dormant = true, false
	for _, s := range f.order {
		s.written()
		s.has = s.want
	}
	f.dropSets()
	for name, c := range f.chains {
		if !c.want {
			delete(f.chains, name)
			continue
		}
		if c.dirty || !c.has {
			c.have = c.have[:0]
			for _, r := range c.rules {
				c.have = append(c.have, r.Canonical())
			}
		}
		c.has, c.dirty = true, false
	}
}

// resize gives the affinity map that an earlier process left the size that is
// asked for now, in place: what it remembers stays. Older kernels cannot; the
// size is then the old one.
func (f *family) resize(k kernel) error {
	s := f.sets[setAffinity]
	if f.off || f.rebuild || !s.has || s.size == s.def.Size {
		return nil
	}
	var b nfnl.Batch
	b.AddSet(f.table, &s.def)
	return k.Commit(&b)
}

// different reports whether there is anything to write.
func (f *family) different() bool {
	if f.off {
		return false
	}
	if !f.hasTable || f.dormant || f.rebuild {
		return true
	}
	for _, s := range f.order {
		if s.want != s.has || s.different() {
			return true
		}
	}
	for _, c := range f.chains {
		if c.want != c.has || c.dirty {
			return true
		}
	}
	return false
}

// adopt takes the numbers that an earlier process gave, so that its kernel
// state needs no change where nothing changed. services is by comment.
func (f *family) adopt(services map[string]uint16) {
	a := adopted{slots: true, classes: map[string]uint16{}, taken: map[uint16]bool{}, ids: map[idKey]uint16{}}
	f.entry.each(func(key, _, have string) {
		if have == "" {
			return
		}
		_, number := unmix(key)
		value, _ := unpack(have)
		a.taken[number] = true
		if v := nfnl.ParseVerdict(value); isPick(v.Chain) && number >= firstPick {
			a.classes[v.Chain] = number
		}
	})
	f.demand.each(func(key, _, have string) {
		if have == "" {
			return
		}
		number, _ := unmix(key)
		if _, name := unpack(have); name != "" && services[name] == 0 {
			services[name] = number
		}
	})
	for _, s := range []*set{f.idCluster, f.idLocal} {
		s.each(func(key, _, have string) {
			if have == "" {
				return
			}
			number, id := unmix(key)
			value, _ := unpack(have)
			a.ids[idKey{number, readEndpoint(value)}] = id
		})
	}
	f.adopted = a
}
