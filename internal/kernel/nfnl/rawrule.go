//go:build linux

package nfnl

import (
	"bytes"
	"hash/maphash"

	"golang.org/x/sys/unix"
)

// RawRule is a rule of whichever program, as the kernel gives it. Its bytes are
// valid until the function that was handed it returns.
type RawRule struct {
	Chain       []byte
	expressions []byte
}

// EachRule hands the rules of a table to each, chain by chain in their order; of
// one chain alone unless that is empty. A table or chain that does not exist has
// none. [ErrInterrupted] says that the table changed meanwhile.
func (c *Conn) EachRule(t Table, chain string, each func(RawRule)) error {
	var a Attrs
	a.String(unix.NFTA_RULE_TABLE, t.Name)
	if chain != "" {
		a.String(unix.NFTA_RULE_CHAIN, chain)
	}
	return c.dump(unix.NFT_MSG_GETRULE, t.Family, a.b, func(b []byte) {
		// Old kernels do not filter.
		if r, ok := rawRule(b, t.Name); ok && (chain == "" || string(r.Chain) == chain) {
			each(r)
		}
	})
}

func rawRule(b []byte, table string) (r RawRule, ok bool) {
	for typ, v := range ParseAttrs(b) {
		switch typ {
		case unix.NFTA_RULE_TABLE:
			ok = string(untilZero(v)) == table
		case unix.NFTA_RULE_CHAIN:
			r.Chain = untilZero(v)
		case unix.NFTA_RULE_EXPRESSIONS:
			r.expressions = v
		}
	}
	return r, ok
}

// Hash adds what the rule does to h, without what it counted.
func (r RawRule) Hash(h *maphash.Hash) {
	for name, data := range r.each {
		_, _ = h.Write(name) // a hash takes everything
		_ = h.WriteByte(0)
		if string(name) != "counter" {
			_, _ = h.Write(data)
		}
		_ = h.WriteByte(1)
	}
}

// LeadsTo reports whether the rule jumps or goes to a chain whose name begins so.
func (r RawRule) LeadsTo(prefix string) bool {
	for name, data := range r.each {
		if string(name) != "immediate" {
			continue
		}
		if chain := verdictChain(data); len(chain) > 0 && bytes.HasPrefix(chain, []byte(prefix)) {
			return true
		}
	}
	return false
}

// Verdicts of linux/netfilter.h.
const nfDrop, nfAccept = 0, 1

// Decides reports whether the rule ends the way of packets that it matches through its chain, by
// the verdict accept, drop or return.
func (r RawRule) Decides() bool {
	code, ok := r.verdict()
	return ok && (code == nfAccept || code == nfDrop || code == unix.NFT_RETURN)
}

// each yields the names and data of the rule's expressions.
func (r RawRule) each(yield func(name, data []byte) bool) {
	for _, e := range ParseAttrs(r.expressions) {
		var name, data []byte
		for typ, v := range ParseAttrs(e) {
			switch typ {
			case unix.NFTA_EXPR_NAME:
				name = untilZero(v)
			case unix.NFTA_EXPR_DATA:
				data = v
			}
		}
		if !yield(name, data) {
			return
		}
	}
}

// verdictChain is the chain that an immediate expression leads to, if any.
func verdictChain(immediate []byte) []byte {
	for _, step := range [...]uint16{unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN} {
		immediate = find(immediate, step)
	}
	return untilZero(immediate)
}

// find is the value of the first attribute of a type; nil: there is none.
func find(b []byte, want uint16) []byte {
	for typ, v := range ParseAttrs(b) {
		if typ == want {
			return v
		}
	}
	return nil
}

// untilZero is an attribute's string, without a copy.
func untilZero(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}
