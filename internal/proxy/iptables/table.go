package iptables

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The tables in which rules of ours are.
const (
	tableNAT    = "nat"
	tableFilter = "filter"
)

var tables = [...]string{tableNAT, tableFilter}

// table is one table of one family: what it should hold, what the kernel is known
// to hold, and which chains differ. Texts are as iptables-save prints them.
type table struct {
	family  family
	name    string
	hooks   []hook
	frame   []string // chains that do not depend on services, and those with hooks
	desired map[string]string
	actual  map[string]string
	dirty   map[string]struct{}
	// foreign are rules of other chains that lead to ours, as they were last seen.
	foreign []hook
	// blocked are those of them that packets do not reach, by the rule of another program
	// before them that decides first.
	blocked map[hook]string
}

func newTable(f family, name string, fr frame) *table {
	t := &table{
		family: f, name: name, hooks: fr.hooks,
		desired: fr.chains, actual: map[string]string{}, dirty: map[string]struct{}{},
	}
	for chain := range fr.chains {
		t.dirty[chain] = struct{}{}
		t.frame = append(t.frame, chain)
	}
	for _, h := range fr.hooks {
		t.frame = append(t.frame, h.chain)
	}
	return t
}

// put says what a chain should hold; nil: it should not exist.
func (t *table) put(chain string, text *string) {
	if text == nil {
		delete(t.desired, chain)
	} else {
		t.desired[chain] = *text
	}
	t.mark(chain)
}

func (t *table) mark(chain string) {
	want, wanted := t.desired[chain]
	have, exists := t.actual[chain]
	if wanted == exists && want == have {
		delete(t.dirty, chain)
	} else {
		t.dirty[chain] = struct{}{}
	}
}

// adopt takes over what the kernel was seen to hold.
func (t *table) adopt(s *snapshot) {
	t.actual, t.foreign, t.blocked = s.chains, s.hooks, nil
	if t.name == tableNAT {
		t.blocked = s.blocked
	}
	clear(t.dirty)
	for chain := range t.desired {
		t.mark(chain)
	}
	for chain := range t.actual {
		t.mark(chain)
	}
}

// input is the input of iptables-restore --noflush, one transaction;
// nil: nothing. Every rule that leads to a chain is written after it exists, and
// chains are removed when nothing leads to them any more.
func (t *table) input() []byte {
	hooks := t.hookChanges()
	if len(t.dirty) == 0 && len(hooks) == 0 {
		return nil
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%s\n", t.name)
	// Backwards: iptables-nft keeps a sorted list and looks for each chain's place
	// from the frontend.
	chains := slices.Sorted(maps.Keys(t.dirty))
	slices.Reverse(chains)
	for _, chain := range chains {
		fmt.Fprintf(&b, ":%s - [0:0]\n", chain) // makes or empties it
	}
	for _, chain := range chains {
		b.WriteString(t.desired[chain])
	}
	for _, h := range hooks {
		b.WriteString(h)
	}
	for _, chain := range chains {
		if _, wanted := t.desired[chain]; !wanted {
			fmt.Fprintf(&b, "-X %s\n", chain)
		}
	}
	b.WriteString("COMMIT\n")
	return b.Bytes()
}

// hookChanges puts the hooks at the head of their chains, once each, and removes
// others that lead to chains of ours. One that stands behind jumps of other programs
// stays there: these may want the first place as well. It moves if it is blocked.
func (t *table) hookChanges() []string {
	if len(t.blocked) == 0 && slices.EqualFunc(sortHooks(t.foreign), sortHooks(t.hooks), func(a, b hook) bool { return a == b }) {
		return nil
	}
	var out []string
	moved := map[hook]bool{}
	for _, h := range t.foreign {
		if t.blocked[h] != "" && slices.Contains(t.hooks, h) && !moved[h] {
			// All of them, and then one: -D takes the first that matches.
			for _, same := range t.foreign {
				if same == h {
					out = append(out, "-D "+h.chain+" "+h.rule+"\n")
				}
			}
			out = append(out, "-I "+h.chain+" 1 "+h.rule+"\n")
			moved[h] = true
		}
	}
	// The new one first: -D takes the first that matches, and all are equal.
	for _, h := range slices.Backward(t.hooks) {
		if !slices.Contains(t.foreign, h) {
			out = append(out, "-I "+h.chain+" 1 "+h.rule+"\n")
		}
	}
	seen := map[hook]bool{}
	for _, h := range t.foreign {
		if !moved[h] && (seen[h] || !slices.Contains(t.hooks, h)) {
			out = append(out, "-D "+h.chain+" "+h.rule+"\n")
		}
		seen[h] = true
	}
	return out
}

func sortHooks(h []hook) []hook {
	return slices.SortedFunc(slices.Values(h), func(a, b hook) int {
		return strings.Compare(a.chain+" "+a.rule, b.chain+" "+b.rule)
	})
}

// transaction is what input does.
func (t *table) transaction() transaction {
	// A chain begins and ends with an entry of its own (struct ipt_error and the
	// standard target at the end, in iptables' libiptc.c).
	const perChain = 2
	tx := transaction{family: t.family, table: t.name}
	for chain := range t.dirty {
		tx.chains = append(tx.chains, chain)
		if want, wanted := t.desired[chain]; wanted {
			tx.entries += perChain + strings.Count(want, "\n")
		}
		if have, exists := t.actual[chain]; exists {
			tx.entries -= perChain + strings.Count(have, "\n")
		}
	}
	hooks := t.hookChanges()
	for _, line := range hooks {
		if strings.HasPrefix(line, "-I ") {
			tx.entries++
		} else {
			tx.entries--
		}
	}
	if len(hooks) > 0 {
		for _, h := range slices.Concat(t.hooks, t.foreign) {
			tx.chains = append(tx.chains, h.chain)
		}
	}
	return tx
}

// knows reports whether a chain is, or leads to, one of ours by desire.
func (t *table) knows(chain string) bool {
	_, ours := t.desired[chain]
	return ours || slices.ContainsFunc(t.hooks, func(h hook) bool { return h.chain == chain })
}

// suspect says that a chain is not what it was; it is there or not. Repair needs
// no reading, unless it is one of others with some rules that lead to ours: which,
// the state is unknown then, and the result is false.
func (t *table) suspect(chain string, there bool) bool {
	switch {
	case !strings.HasPrefix(chain, prefix):
		t.foreign = slices.DeleteFunc(slices.Clone(t.foreign), func(h hook) bool { return h.chain == chain })
		return !there
	case there:
		t.actual[chain] = unknownText
	default:
		delete(t.actual, chain)
	}
	t.mark(chain)
	return true
}

// unknownText is that of no chain.
const unknownText = "?"

// committed records that the kernel took input.
func (t *table) committed() {
	for chain := range t.dirty {
		if text, wanted := t.desired[chain]; wanted {
			t.actual[chain] = text
		} else {
			delete(t.actual, chain)
		}
	}
	clear(t.dirty)
	t.foreign, t.blocked = t.hooks, nil
}

// snapshot is what of a table is ours.
type snapshot struct {
	chains map[string]string
	hooks  []hook
	// blocked are the hooks that stand behind a rule of another program that decides about
	// packets, by that rule, as iptables-save prints it.
	blocked map[hook]string
}

// parse reads one table as iptables-save prints it, with counters or without. What is not ours is skipped;
// it never fails, as a rule that it does not know is a rule that differs.
func parse(saved []byte) *snapshot {
	s := &snapshot{chains: map[string]string{}, blocked: map[hook]string{}}
	texts := map[string]*strings.Builder{}
	decided := map[string]string{} // the first rule that decides, by chain
	for line := range strings.Lines(string(saved)) {
		if strings.HasPrefix(line, "[") {
			_, line, _ = strings.Cut(line, " ")
		}
		switch {
		case strings.HasPrefix(line, ":"+prefix):
			name, _, _ := strings.Cut(line[1:], " ")
			texts[strings.TrimSpace(name)] = &strings.Builder{}
		case strings.HasPrefix(line, "-A "):
			chain, rule, _ := strings.Cut(strings.TrimSuffix(line[len("-A "):], "\n"), " ")
			if b := texts[chain]; b != nil {
				b.WriteString(strings.TrimSuffix(line, "\n"))
				b.WriteByte('\n')
			} else if leadsToUs(rule) {
				s.hooks = append(s.hooks, hook{chain, rule})
				if by := decided[chain]; by != "" {
					s.blocked[hook{chain, rule}] = by
				}
			} else if decided[chain] == "" && decides(rule) {
				decided[chain] = strings.TrimSuffix(line, "\n")
			}
		}
	}
	for chain, b := range texts {
		s.chains[chain] = b.String()
	}
	return s
}

func leadsToUs(rule string) bool {
	return strings.Contains(rule, "-j "+prefix) || strings.Contains(rule, "-g "+prefix)
}

// decides reports whether what a rule matches meets no later rule of the chain. Targets that
// translate are no such rules here: who redirects certain packets means these alone, and a
// jump to a chain of another program may come back.
func decides(rule string) bool {
	_, target, _ := strings.Cut(" "+rule, " -j ")
	target, _, _ = strings.Cut(target, " ")
	return target == "ACCEPT" || target == "RETURN" || target == "DROP"
}

// removal is the input that removes all of a snapshot; nil: there is nothing.
func (s *snapshot) removal(name string) []byte {
	t := &table{name: name, actual: map[string]string{}, desired: map[string]string{}, dirty: map[string]struct{}{}}
	t.adopt(s)
	return t.input()
}
