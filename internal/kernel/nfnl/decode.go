//go:build linux

package nfnl

import (
	"encoding/binary"
	"errors"
	"iter"
	"slices"

	"golang.org/x/sys/unix"
)

// messages yields the netlink messages of a datagram. It stops at one that does
// not fit.
func messages(b []byte) iter.Seq[Message] {
	return func(yield func(Message) bool) {
		for len(b) >= messageHeader {
			n := int(binary.NativeEndian.Uint32(b))
			if n < messageHeader || n > len(b) {
				return
			}
			m := Message{
				Type: binary.NativeEndian.Uint16(b[4:]), Flags: binary.NativeEndian.Uint16(b[6:]),
				Seq: binary.NativeEndian.Uint32(b[8:]), Port: binary.NativeEndian.Uint32(b[12:]),
				Body: b[messageHeader:n],
			}
			if !yield(m) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// RuleState is a rule as the kernel has it, in the form that Canonical gives.
type RuleState struct {
	Chain string
	Rule  string
}

// HasTable reports whether there is such a table, and whether it is dormant, which
// means that the kernel calls none of its chains.
func (c *Conn) HasTable(t Table) (there, dormant bool, err error) {
	var a Attrs
	a.String(unix.NFTA_TABLE_NAME, t.Name)
	err = c.request(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, 0, t.Family, a.b, func(b []byte) {
		for typ, v := range ParseAttrs(b) {
			if typ == unix.NFTA_TABLE_FLAGS {
				dormant = u32(v)&tableDormant != 0
			}
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return false, false, nil
	}
	return err == nil, dormant, err
}

// Chains lists the chains of a table.
func (c *Conn) Chains(t Table) ([]Chain, error) {
	var out []Chain
	err := c.dump(unix.NFT_MSG_GETCHAIN, t.Family, nil, func(b []byte) { // the kernel does not filter chains
		if table, ch := decodeChain(b); table == t.Name {
			out = append(out, ch)
		}
	})
	return out, err
}

func decodeChain(b []byte) (table string, c Chain) {
	for typ, v := range ParseAttrs(b) {
		switch typ {
		case unix.NFTA_CHAIN_TABLE:
			table = text(v)
		case unix.NFTA_CHAIN_NAME:
			c.Name = text(v)
		case unix.NFTA_CHAIN_TYPE:
			c.Type = text(v)
		case unix.NFTA_CHAIN_HOOK:
			for typ, v := range ParseAttrs(v) {
				switch typ {
				case unix.NFTA_HOOK_HOOKNUM:
					c.Hook = u32(v)
				case unix.NFTA_HOOK_PRIORITY:
					c.Priority = int32(u32(v))
				}
			}
		}
	}
	return table, c
}

// Rules lists the rules of a table, chain by chain in their order.
func (c *Conn) Rules(t Table) ([]RuleState, error) {
	var a Attrs
	a.String(unix.NFTA_RULE_TABLE, t.Name)
	var out []RuleState
	err := c.dump(unix.NFT_MSG_GETRULE, t.Family, a.b, func(b []byte) {
		if table, r := decodeRule(b); table == t.Name {
			out = append(out, r)
		}
	})
	return out, err
}

func decodeRule(b []byte) (table string, r RuleState) {
	for typ, v := range ParseAttrs(b) {
		switch typ {
		case unix.NFTA_RULE_TABLE:
			table = text(v)
		case unix.NFTA_RULE_CHAIN:
			r.Chain = text(v)
		case unix.NFTA_RULE_EXPRESSIONS:
			r.Rule = canonical(v)
		}
	}
	return table, r
}

// Sets lists the sets and maps of a table.
func (c *Conn) Sets(t Table) ([]Set, error) {
	var a Attrs
	a.String(unix.NFTA_SET_TABLE, t.Name)
	var out []Set
	err := c.dump(unix.NFT_MSG_GETSET, t.Family, a.b, func(b []byte) {
		if table, s := decodeSet(b); table == t.Name {
			out = append(out, s)
		}
	})
	return out, err
}

func decodeSet(b []byte) (table string, s Set) {
	for typ, v := range ParseAttrs(b) {
		switch typ {
		case unix.NFTA_SET_TABLE:
			table = text(v)
		case unix.NFTA_SET_NAME:
			s.Name = text(v)
		case unix.NFTA_SET_FLAGS:
			f := u32(v)
			s.Timeout = f&unix.NFT_SET_TIMEOUT != 0
			s.Flags = f &^ (unix.NFT_SET_TIMEOUT | unix.NFT_SET_MAP)
		case unix.NFTA_SET_KEY_TYPE:
			s.KeyType = u32(v)
		case unix.NFTA_SET_KEY_LEN:
			s.KeyLen = u32(v)
		case unix.NFTA_SET_DATA_TYPE:
			s.ValueType = u32(v)
		case unix.NFTA_SET_DATA_LEN:
			s.ValueLen = u32(v)
		case unix.NFTA_SET_USERDATA:
			s.UserData = string(v)
		case setExpr, setExpressions:
			s.Counter = true
		case unix.NFTA_SET_DESC:
			for typ, v := range ParseAttrs(v) {
				if typ == unix.NFTA_SET_DESC_SIZE {
					s.Size = u32(v)
				}
			}
		}
	}
	if s.ValueType == VerdictType {
		s.ValueLen = 0 // the kernel reports its own size
	}
	return table, s
}

// tableDormant is NFT_TABLE_F_DORMANT of linux/netfilter/nf_tables.h.
const tableDormant = 1

// Attributes of linux/netfilter/nf_tables.h that x/sys does not name.
const (
	setExpr         = 17 // NFTA_SET_EXPR
	setExpressions  = 18 // NFTA_SET_EXPRESSIONS
	elemExpressions = 11 // NFTA_SET_ELEM_EXPRESSIONS
)

// Elems hands the elements of a set to each.
func (c *Conn) Elems(t Table, set string, each func(Elem)) error {
	return c.elems(t, set, func(b []byte) { each(decodeElem(b)) })
}

// Counts hands keys and packet counts of a set with counters to each. Keys are
// valid until each returns.
func (c *Conn) Counts(t Table, set string, each func(key []byte, packets uint64)) error {
	return c.elems(t, set, func(b []byte) {
		if key, packets, ok := decodeCount(b); ok {
			each(key, packets)
		}
	})
}

func (c *Conn) elems(t Table, set string, each func([]byte)) error {
	var a Attrs
	a.String(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	a.String(unix.NFTA_SET_ELEM_LIST_SET, set)
	return c.dump(unix.NFT_MSG_GETSETELEM, t.Family, a.b, func(b []byte) {
		for typ, v := range ParseAttrs(b) {
			if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			for _, e := range ParseAttrs(v) {
				each(e)
			}
		}
	})
}

func decodeElem(b []byte) (e Elem) {
	for typ, v := range ParseAttrs(b) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = decodeData(v)
		case unix.NFTA_SET_ELEM_DATA:
			e.Value = decodeData(v)
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = decodeComment(v)
		}
	}
	return e
}

// decodeData reads a value or a verdict.
func decodeData(b []byte) string {
	for typ, v := range ParseAttrs(b) {
		switch typ {
		case unix.NFTA_DATA_VALUE:
			return string(v)
		case unix.NFTA_DATA_VERDICT:
			var d Verdict
			for typ, v := range ParseAttrs(v) {
				switch typ {
				case unix.NFTA_VERDICT_CODE:
					d.Code = int32(u32(v))
				case unix.NFTA_VERDICT_CHAIN:
					d.Chain = text(v)
				}
			}
			return d.text()
		}
	}
	return ""
}

func decodeCount(b []byte) (key []byte, packets uint64, ok bool) {
	for typ, v := range ParseAttrs(b) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			for typ, v := range ParseAttrs(v) {
				if typ == unix.NFTA_DATA_VALUE {
					key = v
				}
			}
		case unix.NFTA_SET_ELEM_EXPR:
			packets, ok = decodeCounter(v)
		case elemExpressions:
			for _, e := range ParseAttrs(v) {
				packets, ok = decodeCounter(e)
			}
		}
	}
	return key, packets, ok && key != nil
}

func decodeCounter(b []byte) (packets uint64, ok bool) {
	for typ, v := range ParseAttrs(b) {
		if typ != unix.NFTA_EXPR_DATA {
			continue
		}
		for typ, v := range ParseAttrs(v) {
			if typ == unix.NFTA_COUNTER_PACKETS {
				packets, ok = u64(v), true
			}
		}
	}
	return packets, ok
}

// Canonical is a rule's form for comparison: two rules do the same if it is
// equal, whether we wrote them or read them.
func (r *Rule) Canonical() string { return canonical(r.a.b) }

// canonical sorts attributes and leaves out those that are zero, as the kernel
// returns defaults that were not written.
func canonical(expressions []byte) string {
	var out []byte
	for _, elem := range ParseAttrs(expressions) {
		var name string
		var body []byte
		for typ, v := range ParseAttrs(elem) {
			switch typ {
			case unix.NFTA_EXPR_NAME:
				name = text(v)
			case unix.NFTA_EXPR_DATA:
				body = v
			}
		}
		out = append(append(out, name...), '{')
		out = canonicalAttrs(out, body, nestsOf(name))
		out = append(out, '}')
	}
	return string(out)
}

// nestsOf says which attributes of an expression hold data.
func nestsOf(expr string) []uint16 {
	switch expr {
	case "cmp":
		return []uint16{unix.NFTA_CMP_DATA}
	case "bitwise":
		return []uint16{unix.NFTA_BITWISE_MASK, unix.NFTA_BITWISE_XOR, bitwiseData}
	case "immediate":
		return []uint16{unix.NFTA_IMMEDIATE_DATA}
	}
	return nil
}

type attr struct {
	typ   uint16
	value []byte
}

func canonicalAttrs(out, body []byte, nests []uint16) []byte {
	var list []attr
	for typ, v := range ParseAttrs(body) {
		if slices.Contains(nests, typ) {
			v = []byte(decodeData(v))
		}
		if slices.ContainsFunc(v, func(b byte) bool { return b != 0 }) {
			list = append(list, attr{typ, v})
		}
	}
	slices.SortStableFunc(list, func(a, b attr) int { return int(a.typ) - int(b.typ) })
	for _, a := range list {
		out = binary.BigEndian.AppendUint16(out, a.typ)
		out = binary.BigEndian.AppendUint16(out, uint16(len(a.value)))
		out = append(out, a.value...)
	}
	return out
}
