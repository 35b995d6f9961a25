//go:build linux

package nfnl

import (
	"errors"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// fakeTransaction is what a batch makes of the tables of a [Fake]. Errors are
// those of net/netfilter/nf_tables_api.c.
type fakeTransaction struct {
	tables map[Table]*fakeTable
	owned  map[Table]bool // tables that are copies already
}

// run applies a batch. Loops are looked for at its end, as a batch may undo one
// that it makes; only then the message that made it is looked for.
func (f *Fake) run(b *Batch) (*fakeTransaction, []Message, error) {
	for _, eachMessage := range []bool{false, true} {
		tx := &fakeTransaction{tables: map[Table]*fakeTable{}, owned: map[Table]bool{}}
		maps.Copy(tx.tables, f.tables)
		var all []Message
		for m := range messages(b.a.b) {
			err := tx.do(m)
			if err == nil && eachMessage {
				err = tx.validate()
			}
			if err != nil {
				errno := unix.EINVAL
				errors.As(err, &errno)
				return nil, nil, b.err(m.Seq, errno)
			}
			m.Body = slices.Clone(m.Body)
			all = append(all, m)
		}
		if tx.validate() == nil {
			return tx, all, nil
		}
	}
	return nil, nil, b.err(0, unix.EMLINK)
}

// validate looks for loops in what the transaction changed.
func (tx *fakeTransaction) validate() error {
	for t := range tx.owned {
		if err := tx.tables[t].validate(); err != nil {
			return err
		}
	}
	return nil
}

// do applies one message.
func (tx *fakeTransaction) do(m Message) error {
	if m.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Body) < familyHeader {
		return unix.EINVAL
	}
	family, body := m.Body[0], m.Body[familyHeader:]
	// Attribute 1 is the table's name in every message (NFTA_*_TABLE, NFTA_TABLE_NAME).
	t := Table{Family: family, Name: text(find(body, unix.NFTA_TABLE_NAME))}
	switch m.Type & 0xff {
	case unix.NFT_MSG_NEWTABLE:
		return tx.newTable(t, body)
	case unix.NFT_MSG_DELTABLE:
		if tx.tables[t] == nil {
			return unix.ENOENT
		}
		delete(tx.tables, t)
		delete(tx.owned, t)
		return nil
	}
	table := tx.table(t)
	if table == nil {
		return unix.ENOENT
	}
	switch m.Type & 0xff {
	case unix.NFT_MSG_NEWCHAIN:
		return table.newChain(body)
	case unix.NFT_MSG_DELCHAIN:
		return table.deleteChain(text(find(body, unix.NFTA_CHAIN_NAME)))
	case unix.NFT_MSG_NEWRULE:
		return table.newRule(text(find(body, unix.NFTA_RULE_CHAIN)), find(body, unix.NFTA_RULE_EXPRESSIONS))
	case unix.NFT_MSG_DELRULE:
		c := table.chains[text(find(body, unix.NFTA_RULE_CHAIN))]
		if c == nil {
			return unix.ENOENT
		}
		c.rules = nil
		return nil
	case unix.NFT_MSG_NEWSET:
		return table.newSet(body)
	case unix.NFT_MSG_DELSET:
		return table.deleteSet(text(find(body, unix.NFTA_SET_NAME)))
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		return table.elems(body, m.Type&0xff == unix.NFT_MSG_NEWSETELEM)
	}
	return unix.EINVAL
}

// table is a table that the transaction may change.
func (tx *fakeTransaction) table(t Table) *fakeTable {
	table := tx.tables[t]
	if table != nil && !tx.owned[t] {
		table = table.clone()
		tx.tables[t], tx.owned[t] = table, true
	}
	return table
}

func (tx *fakeTransaction) newTable(t Table, body []byte) error {
	if t.Family != unix.NFPROTO_IPV4 && t.Family != unix.NFPROTO_IPV6 {
		return unix.EOPNOTSUPP
	}
	table := tx.table(t)
	if table == nil {
		table = &fakeTable{chains: map[string]*fakeChain{}, sets: map[string]*fakeSet{}}
		tx.tables[t], tx.owned[t] = table, true
	}
	table.dormant = u32(find(body, unix.NFTA_TABLE_FLAGS))&tableDormant != 0
	return nil
}

// conntrackPriority is NF_IP_PRI_CONNTRACK of linux/netfilter_ipv4.h: translation
// comes after it.
const conntrackPriority = -200

func (t *fakeTable) newChain(body []byte) error {
	_, def := decodeChain(body)
	old := t.chains[def.Name]
	switch {
	case old != nil && def.Type != "" && old.def.Type == "":
		return unix.EEXIST
	case def.Type == "nat" && def.Priority <= conntrackPriority, old != nil && def.Type != "" && old.def != def:
		return unix.EOPNOTSUPP
	case old == nil:
		t.chains[def.Name] = &fakeChain{def: def}
	}
	return nil
}

// deleteChain deletes a chain with its rules, unless a rule, also of
// its own, or an element leads to it.
func (t *fakeTable) deleteChain(name string) error {
	if t.chains[name] == nil {
		return unix.ENOENT
	}
	for _, c := range t.chains {
		for _, r := range c.rules {
			if slices.Contains(r.chains, name) {
				return unix.EBUSY
			}
		}
	}
	for _, s := range t.sets {
		for _, e := range s.elems {
			if s.def.ValueType == VerdictType && ParseVerdict(e.Value).Chain == name {
				return unix.EBUSY
			}
		}
	}
	delete(t.chains, name)
	return nil
}

func (t *fakeTable) newRule(chain string, expressions []byte) error {
	c := t.chains[chain]
	if c == nil {
		return unix.ENOENT
	}
	r := fakeRule{canonical: canonical(expressions)}
	for name, data := range (RawRule{expressions: expressions}).each {
		if err := t.expression(&r, string(name), data); err != nil {
			return err
		}
	}
	c.rules = append(slices.Clip(c.rules), r)
	return nil
}

// expression notes what an expression uses and checks that it is there.
func (t *fakeTable) expression(r *fakeRule, name string, data []byte) error {
	switch name {
	case "immediate":
		if chain := string(verdictChain(data)); chain != "" {
			r.chains = append(r.chains, chain)
			return t.target(chain)
		}
	case "lookup":
		set := text(find(data, unix.NFTA_LOOKUP_SET))
		s := t.sets[set]
		// Kernels before 6.16 or so refuse a map where no value is loaded.
		loads := find(data, unix.NFTA_LOOKUP_DREG) != nil
		switch {
		case s == nil:
			return unix.ENOENT
		case loads != s.def.IsMap():
			return unix.EINVAL
		case s.def.ValueType == VerdictType:
			r.maps = append(r.maps, set)
		}
		r.sets = append(r.sets, set)
	case "dynset":
		set := text(find(data, unix.NFTA_DYNSET_SET_NAME))
		s := t.sets[set]
		switch {
		case s == nil:
			return unix.ENOENT
		case s.def.Flags&unix.NFT_SET_EVAL == 0: // the kernel takes some, and gives them a size
			return unix.EOPNOTSUPP
		case u64(find(data, unix.NFTA_DYNSET_TIMEOUT)) != 0 && !s.def.Timeout:
			return unix.EOPNOTSUPP
		case find(data, unix.NFTA_DYNSET_SREG_DATA) == nil && s.def.IsMap():
			return unix.EINVAL
		case find(data, unix.NFTA_DYNSET_SREG_DATA) != nil && !s.def.IsMap(), s.def.ValueType == VerdictType:
			return unix.EOPNOTSUPP
		}
		r.sets = append(r.sets, set)
	}
	return nil
}

// target checks that a verdict may lead to a chain.
func (t *fakeTable) target(chain string) error {
	switch c := t.chains[chain]; {
	case c == nil:
		return unix.ENOENT
	case c.def.Type != "":
		return unix.EOPNOTSUPP
	}
	return nil
}

// maxDepth of chains that lead to each other is NFT_JUMP_STACK_SIZE of
// net/netfilter/nf_tables.h.
const maxDepth = 16

// validate fails if chains that hooks call form a loop, or go too deep.
func (t *fakeTable) validate() error {
	for name, c := range t.chains {
		if c.def.Type != "" && !t.bounded(name, 0) {
			return unix.EMLINK
		}
	}
	return nil
}

func (t *fakeTable) bounded(chain string, depth int) bool {
	if depth == maxDepth {
		return false
	}
	for _, next := range t.next(chain) {
		if !t.bounded(next, depth+1) {
			return false
		}
	}
	return true
}

// next are the chains that a chain leads to, each once.
func (t *fakeTable) next(chain string) []string {
	out := map[string]bool{}
	for _, r := range t.chains[chain].rules {
		for _, to := range r.chains {
			out[to] = true
		}
		for _, set := range r.maps {
			for _, e := range t.sets[set].elems {
				if to := ParseVerdict(e.Value).Chain; to != "" {
					out[to] = true
				}
			}
		}
	}
	return slices.Collect(maps.Keys(out))
}

func (t *fakeTable) newSet(body []byte) error {
	_, def := decodeSet(body)
	s := t.sets[def.Name]
	if s == nil {
		t.sets[def.Name] = &fakeSet{def: def, elems: map[string]Elem{}, packets: map[string]uint64{}}
		return nil
	}
	same := def
	same.Size, same.UserData = s.def.Size, s.def.UserData
	if same != s.def {
		return unix.EEXIST
	}
	if def.Size != 0 {
		s.def.Size = def.Size
	}
	return nil
}

func (t *fakeTable) deleteSet(name string) error {
	if t.sets[name] == nil {
		return unix.ENOENT
	}
	for _, c := range t.chains {
		for _, r := range c.rules {
			if slices.Contains(r.sets, name) {
				return unix.EBUSY
			}
		}
	}
	delete(t.sets, name)
	return nil
}

func (t *fakeTable) elems(body []byte, add bool) error {
	s := t.sets[text(find(body, unix.NFTA_SET_ELEM_LIST_SET))]
	if s == nil {
		return unix.ENOENT
	}
	for _, b := range ParseAttrs(find(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
		e := decodeElem(b)
		if len(e.Key) != int(s.def.KeyLen) {
			return unix.EINVAL
		}
		do := t.addElem
		if !add {
			do = t.deleteElem
		}
		if err := do(s, e); err != nil {
			return err
		}
	}
	return nil
}

func (t *fakeTable) addElem(s *fakeSet, e Elem) error {
	verdict := s.def.ValueType == VerdictType
	switch {
	case s.def.IsMap() != (e.Value != ""), s.def.IsMap() && !verdict && len(e.Value) != int(s.def.ValueLen):
		return unix.EINVAL
	case verdict && ParseVerdict(e.Value).Chain != "":
		if err := t.target(ParseVerdict(e.Value).Chain); err != nil {
			return err
		}
	}
	if old, ok := s.elems[e.Key]; ok {
		if old.Value != e.Value {
			return unix.EEXIST
		}
		return nil // what it has else stays
	}
	if s.def.Size != 0 && len(s.elems) >= int(s.def.Size) {
		return unix.ENFILE
	}
	s.elems[e.Key] = e
	return nil
}

func (t *fakeTable) deleteElem(s *fakeSet, e Elem) error {
	if _, ok := s.elems[e.Key]; !ok {
		return unix.ENOENT
	}
	delete(s.elems, e.Key)
	delete(s.packets, e.Key)
	return nil
}
