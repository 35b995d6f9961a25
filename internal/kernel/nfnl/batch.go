//go:build linux

package nfnl

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Table, Chain, Set and Elem are what tables consist of.
type (
	// Table is named within a family (unix.NFPROTO_IPV4 or NFPROTO_IPV6).
	Table struct {
		Family uint8
		Name   string
	}

	// Chain with Hook is called by the kernel, one without by rules.
	Chain struct {
		Name string
		// Type "nat" or "filter", Hook number and Priority of a base chain; Type "" otherwise.
		Type     string
		Hook     uint32
		Priority int32
	}

	// Set describes a set or map.
	Set struct {
		Name    string
		Flags   uint32 // unix.NFT_SET_…
		KeyType uint32
		KeyLen  uint32
		// ValueType and ValueLen of a map; verdict maps: VerdictType, 0.
		ValueType, ValueLen uint32
		// Size bounds a dynamic set; 0: unbounded.
		Size uint32
		// Timeout: elements can have one.
		Timeout bool
		// Counter: every element counts packets and bytes.
		Counter bool
		// UserData is read by nft to print the set.
		UserData string
	}

	// Elem is an element of a set or map.
	Elem struct {
		Key string
		// Value of a map: bytes, or Verdict.Value.
		Value   string
		Comment string
	}
)

// VerdictType is the value type of verdict maps (NFT_DATA_VERDICT).
const VerdictType = 0xffffff00

// Batch is a transaction: all of its messages take effect in one moment, or
// none does. The zero value is empty.
type Batch struct {
	a     Attrs
	marks []mark
	last  int // where the last message begins
	// an open message of elements
	elems struct {
		table  Table
		set    string
		typ    uint16
		at     int // of the message
		list   int // of its list
		values bool
	}
	open bool
}

// mark says what a message does, for errors.
type mark struct{ verb, kind, table, name string }

// Len is the size in bytes; Empty reports whether there is nothing to do.
func (b *Batch) Len() int    { return len(b.a.b) }
func (b *Batch) Empty() bool { return len(b.marks) == 0 }

// Family is the family of the first message; 0 of an empty batch.
func (b *Batch) Family() uint8 {
	if len(b.a.b) <= messageHeader {
		return 0
	}
	return b.a.b[messageHeader]
}

// Reset empties it and keeps the memory.
func (b *Batch) Reset() {
	b.a.Reset()
	b.marks = b.marks[:0]
	b.open = false
}

// Trim gives the memory of an unusually large batch back.
func (b *Batch) Trim() {
	if cap(b.a.b) > 1<<20 {
		*b = Batch{}
	}
}

func (b *Batch) message(t Table, typ, flags uint16, m mark) int {
	b.finish()
	m.table = t.Name
	b.marks = append(b.marks, m)
	b.last = len(b.a.b)
	b.a.b = appendMessage(b.a.b, unix.NFNL_SUBSYS_NFTABLES<<8|typ, unix.NLM_F_REQUEST|flags, uint32(len(b.marks)), t.Family, 0)
	return b.last
}

func appendMessage(b []byte, typ, flags uint16, seq uint32, family uint8, resource uint16) []byte {
	b = binary.NativeEndian.AppendUint32(b, messageHeader+familyHeader)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, family, 0)
	return binary.BigEndian.AppendUint16(b, resource)
}

func (b *Batch) end(at int) {
	binary.NativeEndian.PutUint32(b.a.b[at:], uint32(len(b.a.b)-at))
}

// AddTable adds a table, or wakes the one that is there.
func (b *Batch) AddTable(t Table) {
	at := b.message(t, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, mark{verb: "adding", kind: "table", name: t.Name})
	b.a.String(unix.NFTA_TABLE_NAME, t.Name)
	b.a.U32(unix.NFTA_TABLE_FLAGS, 0)
	b.end(at)
}

// tableOwner is NFT_TABLE_F_OWNER (linux/netfilter/nf_tables.h), which x/sys does not name.
const tableOwner = 1 << 1

// AddOwnedTable adds a table that only this socket can change, and that the kernel deletes
// when the socket is closed, however its process ends (Linux 5.12). A table of that name
// that is there is an error: EPERM if another socket owns it.
func (b *Batch) AddOwnedTable(t Table) {
	at := b.message(t, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, mark{verb: "adding", kind: "table", name: t.Name})
	b.a.String(unix.NFTA_TABLE_NAME, t.Name)
	b.a.U32(unix.NFTA_TABLE_FLAGS, tableOwner)
	b.end(at)
}

// DeleteTable deletes a table with all that is in it.
func (b *Batch) DeleteTable(t Table) {
	at := b.message(t, unix.NFT_MSG_DELTABLE, 0, mark{verb: "deleting", kind: "table", name: t.Name})
	b.a.String(unix.NFTA_TABLE_NAME, t.Name)
	b.end(at)
}

// AddChain adds a chain without rules, unless it is there.
func (b *Batch) AddChain(t Table, c Chain) {
	at := b.message(t, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, mark{verb: "adding", kind: "chain", name: c.Name})
	b.a.String(unix.NFTA_CHAIN_TABLE, t.Name)
	b.a.String(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Type != "" {
		b.a.Nest(unix.NFTA_CHAIN_HOOK, func() {
			b.a.U32(unix.NFTA_HOOK_HOOKNUM, c.Hook)
			b.a.U32(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))
		})
		b.a.U32(unix.NFTA_CHAIN_POLICY, 1) // NF_ACCEPT, linux/netfilter.h
		b.a.String(unix.NFTA_CHAIN_TYPE, c.Type)
	}
	b.end(at)
}

// DeleteChain deletes a chain, which must be empty and unused.
func (b *Batch) DeleteChain(t Table, name string) {
	at := b.message(t, unix.NFT_MSG_DELCHAIN, 0, mark{verb: "deleting", kind: "chain", name: name})
	b.a.String(unix.NFTA_CHAIN_TABLE, t.Name)
	b.a.String(unix.NFTA_CHAIN_NAME, name)
	b.end(at)
}

// FlushChain deletes a chain's rules.
func (b *Batch) FlushChain(t Table, name string) {
	at := b.message(t, unix.NFT_MSG_DELRULE, 0, mark{verb: "deleting", kind: "rules of chain", name: name})
	b.a.String(unix.NFTA_RULE_TABLE, t.Name)
	b.a.String(unix.NFTA_RULE_CHAIN, name)
	b.end(at)
}

// AddRule appends a rule to a chain.
func (b *Batch) AddRule(t Table, chain string, r *Rule) {
	at := b.message(t, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, mark{verb: "adding", kind: "rule to chain", name: chain})
	b.a.String(unix.NFTA_RULE_TABLE, t.Name)
	b.a.String(unix.NFTA_RULE_CHAIN, chain)
	list := b.a.open(unix.NFTA_RULE_EXPRESSIONS)
	b.a.b = append(b.a.b, r.a.b...)
	b.a.close(list)
	if r.Comment != "" {
		b.a.Data(unix.NFTA_RULE_USERDATA, comment(r.Comment))
	}
	b.end(at)
}

// AddSet adds a set, or sets the size of the one that is there.
func (b *Batch) AddSet(t Table, s *Set) {
	at := b.message(t, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, mark{verb: "adding", kind: "set", name: s.Name})
	b.a.String(unix.NFTA_SET_TABLE, t.Name)
	b.a.String(unix.NFTA_SET_NAME, s.Name)
	b.a.U32(unix.NFTA_SET_FLAGS, s.wireFlags())
	b.a.U32(unix.NFTA_SET_KEY_TYPE, s.KeyType)
	b.a.U32(unix.NFTA_SET_KEY_LEN, s.KeyLen)
	if s.IsMap() {
		b.a.U32(unix.NFTA_SET_DATA_TYPE, s.ValueType)
		b.a.U32(unix.NFTA_SET_DATA_LEN, s.ValueLen)
	}
	b.a.U32(unix.NFTA_SET_ID, uint32(len(b.marks)))
	if s.Size != 0 {
		b.a.Nest(unix.NFTA_SET_DESC, func() { b.a.U32(unix.NFTA_SET_DESC_SIZE, s.Size) })
	}
	if s.UserData != "" {
		b.a.Data(unix.NFTA_SET_USERDATA, s.UserData)
	}
	if s.Counter {
		b.a.Nest(setExpr, func() {
			b.a.String(unix.NFTA_EXPR_NAME, "counter")
			b.a.Nest(unix.NFTA_EXPR_DATA, func() {})
		})
	}
	b.end(at)
}

// IsMap distinguishes maps from sets.
func (s *Set) IsMap() bool { return s.ValueType != 0 }

func (s *Set) wireFlags() uint32 {
	flags := s.Flags
	if s.IsMap() {
		flags |= unix.NFT_SET_MAP
	}
	if s.Timeout {
		flags |= unix.NFT_SET_TIMEOUT
	}
	return flags
}

// DeleteSet deletes a set, which no rule may use.
func (b *Batch) DeleteSet(t Table, name string) {
	at := b.message(t, unix.NFT_MSG_DELSET, 0, mark{verb: "deleting", kind: "set", name: name})
	b.a.String(unix.NFTA_SET_TABLE, t.Name)
	b.a.String(unix.NFTA_SET_NAME, name)
	b.end(at)
}

// AddElem adds an element. To replace the value of one, delete it before.
func (b *Batch) AddElem(t Table, s *Set, e Elem) { b.elem(t, s, unix.NFT_MSG_NEWSETELEM, e) }

// DeleteElem deletes the element of a key.
func (b *Batch) DeleteElem(t Table, s *Set, key string) {
	b.elem(t, s, unix.NFT_MSG_DELSETELEM, Elem{Key: key})
}

// maxList keeps a list of elements below the 64 KiB that an attribute can have.
const maxList = 60 << 10

// elem puts elements of one set that follow each other into one message.
func (b *Batch) elem(t Table, s *Set, typ uint16, e Elem) {
	o := &b.elems
	if !b.open || o.table != t || o.set != s.Name || o.typ != typ || len(b.a.b)-o.list > maxList {
		verb, flags := "deleting", uint16(0)
		if typ == unix.NFT_MSG_NEWSETELEM {
			verb, flags = "adding", unix.NLM_F_CREATE
		}
		at := b.message(t, typ, flags, mark{verb: verb, kind: "elements of", name: s.Name})
		b.a.String(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
		b.a.String(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
		list := b.a.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		b.open, o.table, o.set, o.typ, o.at, o.list = true, t, s.Name, typ, at, list
	}
	a := &b.a
	at := a.open(unix.NFTA_LIST_ELEM)
	data(a, unix.NFTA_SET_ELEM_KEY, e.Key)
	if typ == unix.NFT_MSG_NEWSETELEM {
		switch {
		case s.ValueType == VerdictType:
			d := a.open(unix.NFTA_SET_ELEM_DATA)
			ParseVerdict(e.Value).append(a)
			a.close(d)
		case s.IsMap():
			data(a, unix.NFTA_SET_ELEM_DATA, e.Value)
		}
		if e.Comment != "" {
			a.Data(unix.NFTA_SET_ELEM_USERDATA, comment(e.Comment))
		}
	}
	a.close(at)
}

func (b *Batch) finish() {
	if b.open {
		b.a.close(b.elems.list)
		b.end(b.elems.at)
		b.open = false
	}
}
