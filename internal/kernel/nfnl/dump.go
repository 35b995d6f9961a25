//go:build linux

package nfnl

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Reader is what [Dump] reads: a [Conn] or a [FakeConn].
type Reader interface {
	HasTable(Table) (there, dormant bool, err error)
	Chains(Table) ([]Chain, error)
	Rules(Table) ([]RuleState, error)
	Sets(Table) ([]Set, error)
	Elems(t Table, set string, each func(Elem)) error
}

// Dump describes a table as text, one object a line, sorted; rules stay in their
// order. It is for people and for comparisons: the text has everything that a
// [Reader] gives. A table that is not there is "".
func Dump(r Reader, t Table) (string, error) {
	there, dormant, err := r.HasTable(t)
	if err != nil || !there {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "table %s family %d", t.Name, t.Family)
	if dormant {
		b.WriteString(" dormant")
	}
	b.WriteByte('\n')
	sets, err := r.Sets(t)
	if err != nil {
		return "", err
	}
	slices.SortFunc(sets, func(a, b Set) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range sets {
		if err := dumpSet(&b, r, t, s); err != nil {
			return "", err
		}
	}
	if err := dumpChains(&b, r, t); err != nil {
		return "", err
	}
	return b.String(), nil
}

func dumpSet(b *strings.Builder, r Reader, t Table, s Set) error {
	kind := "set"
	if s.IsMap() {
		kind = "map"
	}
	fmt.Fprintf(b, "%s %s key %x/%d value %x/%d flags %x size %d timeout %t counter %t userdata %x\n",
		kind, s.Name, s.KeyType, s.KeyLen, s.ValueType, s.ValueLen, s.Flags, s.Size, s.Timeout, s.Counter, s.UserData)
	var lines []string
	err := r.Elems(t, s.Name, func(e Elem) {
		line := fmt.Sprintf("%s %x", s.Name, e.Key)
		if s.ValueType == VerdictType {
			v := ParseVerdict(e.Value)
			line += fmt.Sprintf(" : verdict %d %s", v.Code, v.Chain)
		} else if s.IsMap() {
			line += fmt.Sprintf(" : %x", e.Value)
		}
		if e.Comment != "" {
			line += fmt.Sprintf(" %q", e.Comment)
		}
		lines = append(lines, line+"\n")
	})
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
	return err
}

func dumpChains(b *strings.Builder, r Reader, t Table) error {
	chains, err := r.Chains(t)
	if err != nil {
		return err
	}
	rules, err := r.Rules(t)
	if err != nil {
		return err
	}
	slices.SortFunc(chains, func(a, b Chain) int { return cmp.Compare(a.Name, b.Name) })
	for _, c := range chains {
		fmt.Fprintf(b, "chain %s", c.Name)
		if c.Type != "" {
			fmt.Fprintf(b, " type %s hook %d priority %d", c.Type, c.Hook, c.Priority)
		}
		b.WriteByte('\n')
		for _, rule := range rules {
			if rule.Chain == c.Name {
				fmt.Fprintf(b, "%s %s\n", c.Name, ruleText(rule.Rule))
			}
		}
	}
	return nil
}

// ruleText prints a canonical rule: its expressions with the numbers of their
// attributes (NFTA_…) and the values, as text where they are.
func ruleText(canonical string) string {
	var out []string
	for canonical != "" {
		name, rest, ok := strings.Cut(canonical, "{")
		if !ok {
			return fmt.Sprintf("%q", canonical)
		}
		text := name
		for len(rest) >= attrHeader && rest[0] != '}' { // types are below 256
			typ, n := binary.BigEndian.Uint16([]byte(rest)), int(binary.BigEndian.Uint16([]byte(rest[2:])))
			n = min(n, len(rest)-attrHeader)
			text += fmt.Sprintf(" %d=%s", typ, attrText(rest[attrHeader:attrHeader+n]))
			rest = rest[attrHeader+n:]
		}
		out = append(out, text)
		canonical = strings.TrimPrefix(rest, "}")
	}
	return strings.Join(out, "; ")
}

func attrText(v string) string {
	name := strings.TrimRight(v, "\x00")
	if len(name) > 1 && strings.IndexFunc(name, func(r rune) bool { return r < 'a' || r > 'z' }) == -1 {
		return name
	}
	return fmt.Sprintf("%x", v)
}
