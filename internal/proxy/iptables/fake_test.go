package iptables

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
)

// fakeKernel keeps tables as the kernel and the commands do, as far as this mode
// can show: a restore is whole or not at all, chains must exist before rules lead
// to them and must be unused to be removed, and rules can't lead in a circle.
type fakeKernel struct {
	mu      sync.Mutex
	tables  map[family]map[string]*fakeTable
	known   map[string]family // sets
	changes uint64
	// fault is asked before each operation, and after each restore, with its name.
	fault func(op string) error
	// restored are the sizes of the inputs.
	restored []int
	// unprinted: it has no fingerprints, as iptables-legacy.
	unprinted bool
	// saved counts readings of whole tables.
	saved int
}

type fakeTable struct {
	chains map[string][]string
}

var builtIn = map[string][]string{
	tableNAT:    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
	tableFilter: {"INPUT", "FORWARD", "OUTPUT"},
}

func newFake() *fakeKernel {
	k := &fakeKernel{tables: map[family]map[string]*fakeTable{}, known: map[string]family{}, fault: func(string) error { return nil }}
	for _, f := range families {
		k.tables[f] = map[string]*fakeTable{}
		for _, name := range tables {
			t := &fakeTable{chains: map[string][]string{}}
			for _, c := range builtIn[name] {
				t.chains[c] = nil
			}
			k.tables[f][name] = t
		}
	}
	return k
}

func (k *fakeKernel) close() error                                        { return nil }
func (k *fakeKernel) holds(context.Context, family, string) (bool, error) { return true, nil }
func (k *fakeKernel) stamp(family) (stamp, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return stamp{k.changes}, nil
}

func (k *fakeKernel) follows(_ family, before, after stamp, done []transaction) bool {
	return after[0]-before[0] == uint64(len(done))
}

func (k *fakeKernel) fingerprints(f family, table string, names []string) (map[string]fingerprint, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unprinted {
		return nil, errors.ErrUnsupported
	}
	if err := k.fault("prints"); err != nil {
		return nil, err
	}
	out := map[string]fingerprint{}
	for _, name := range names {
		out[name] = 0
	}
	for c, rules := range k.tables[f][table].chains {
		ours := strings.HasPrefix(c, prefix)
		if !ours {
			last := len(rules) // behind it is nothing of ours
			for last > 0 && !leadsToUs(rules[last-1]) {
				last--
			}
			rules = slices.DeleteFunc(slices.Clone(rules[:last]), func(r string) bool {
				return !leadsToUs(r) && (table != tableNAT || !decides(r))
			})
		}
		if _, asked := out[c]; asked || names == nil && (ours || len(rules) > 0) {
			h := fnv.New64a()
			_, _ = io.WriteString(h, strings.Join(rules, "\n"))
			out[c] = fingerprint(h.Sum64())
		}
	}
	return out, nil
}

func (k *fakeKernel) save(_ context.Context, f family, table string, counters bool) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fault("save"); err != nil {
		return nil, err
	}
	k.saved++
	return []byte(k.print(f, table, counters)), nil
}

func (k *fakeKernel) print(f family, table string, counters bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Generated\n*%s\n", table)
	t := k.tables[f][table]
	for _, c := range slices.Sorted(maps.Keys(t.chains)) {
		fmt.Fprintf(&b, ":%s - [0:0]\n", c)
	}
	for _, c := range slices.Sorted(maps.Keys(t.chains)) {
		for _, r := range t.chains[c] {
			if counters {
				b.WriteString("[7:420] ")
			}
			fmt.Fprintf(&b, "-A %s %s\n", c, r)
		}
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

func (k *fakeKernel) restore(ctx context.Context, f family, input []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fault("restore"); err != nil {
		return err
	}
	k.restored = append(k.restored, len(input))
	rows := strings.Split(strings.TrimSuffix(string(input), "\n"), "\n")
	name := strings.TrimPrefix(rows[0], "*")
	old := k.tables[f][name]
	if old == nil || rows[len(rows)-1] != "COMMIT" {
		return fmt.Errorf("line 1: table %q, or no COMMIT", name)
	}
	t := &fakeTable{chains: map[string][]string{}}
	for c, rules := range old.chains {
		t.chains[c] = slices.Clone(rules)
	}
	for i, row := range rows[1 : len(rows)-1] {
		if err := k.line(t, f, name, row); err != nil {
			return fmt.Errorf("line %d %q: %w", i+2, row, err)
		}
	}
	for c := range t.chains {
		if err := t.circle(c, nil); err != nil {
			return err
		}
	}
	k.tables[f][name] = t
	k.changes++
	return k.fault("restored")
}

var (
	jumpTo  = regexp.MustCompile(`-[jg] (\S+)`)
	setUsed = regexp.MustCompile(`--(?:match|add)-set (\S+)`)
)

func (k *fakeKernel) line(t *fakeTable, f family, table, row string) error {
	verb, rest, _ := strings.Cut(row, " ")
	chain, rule, _ := strings.Cut(rest, " ")
	if strings.HasPrefix(verb, ":") {
		if len(verb) > 1+28 {
			return errors.New("name is too long")
		}
		if slices.Contains(builtIn[table], verb[1:]) {
			return errors.New("this would empty a built-in chain")
		}
		t.chains[verb[1:]] = nil
		return nil
	}
	if _, exists := t.chains[chain]; !exists {
		return errors.New("no chain by that name")
	}
	switch verb {
	case "-A", "-I":
		if verb == "-I" {
			rule = strings.TrimPrefix(rule, "1 ")
		}
		if m := jumpTo.FindStringSubmatch(rule); m == nil {
			return errors.New("no target")
		} else if _, exists := t.chains[m[1]]; !exists && strings.HasPrefix(m[1], prefix) {
			return errors.New("no target by that name")
		}
		if m := setUsed.FindStringSubmatch(rule); m != nil {
			if owner, exists := k.known[m[1]]; !exists || owner != f {
				return errors.New("no set by that name")
			}
		}
		if verb == "-I" {
			t.chains[chain] = slices.Insert(t.chains[chain], 0, rule)
		} else {
			t.chains[chain] = append(t.chains[chain], rule)
		}
	case "-D":
		i := slices.Index(t.chains[chain], rule)
		if i < 0 {
			return errors.New("no such rule")
		}
		t.chains[chain] = slices.Delete(t.chains[chain], i, i+1)
	case "-X":
		if len(t.chains[chain]) > 0 {
			return errors.New("chain is not empty")
		}
		for _, rules := range t.chains {
			if slices.ContainsFunc(rules, func(r string) bool { m := jumpTo.FindStringSubmatch(r); return m[1] == chain }) {
				return errors.New("chain is in use")
			}
		}
		delete(t.chains, chain)
	default:
		return errors.New("unknown command")
	}
	return nil
}

// circle finds a way from a chain back to itself.
func (t *fakeTable) circle(c string, way []string) error {
	if slices.Contains(way, c) {
		return fmt.Errorf("loop: %v", append(way, c))
	}
	for _, r := range t.chains[c] {
		to := jumpTo.FindStringSubmatch(r)[1]
		if _, chain := t.chains[to]; chain {
			if err := t.circle(to, append(way, c)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *fakeKernel) sets() ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fault("sets"); err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(k.known)), nil
}

func (k *fakeKernel) addSet(f family, name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fault("add set"); err != nil {
		return err
	}
	if len(name) > 31 {
		return errors.New("name is too long")
	}
	k.known[name] = f
	return nil
}

func (k *fakeKernel) removeSet(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fault("remove set"); err != nil {
		return err
	}
	for _, byName := range k.tables {
		for _, t := range byName {
			for _, rules := range t.chains {
				if slices.ContainsFunc(rules, func(r string) bool { return strings.Contains(r, "-set "+name+" ") }) {
					return errors.New("set is in use")
				}
			}
		}
	}
	delete(k.known, name)
	return nil
}

// everything is the whole state, for comparisons.
func (k *fakeKernel) everything() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var b strings.Builder
	for _, f := range families {
		for _, name := range tables {
			b.WriteString(k.print(f, name, false))
		}
	}
	fmt.Fprintln(&b, slices.Sorted(maps.Keys(k.known)))
	return b.String()
}

// fakeFlows remembers what it was asked to keep.
type fakeFlows struct{ asked []conntrack.Keep }

func (f *fakeFlows) Prune(k conntrack.Keep) (int, error) {
	f.asked = append(f.asked, maps.Clone(k))
	return 0, nil
}
func (f *fakeFlows) Close() error { return nil }
