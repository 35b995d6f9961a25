package iptables

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/conntrack"
)

// ruleset is everything of one family: the service ports' parts, the tries that
// lead to them, the tables that hold both, and the sets that they use. Not safe
// for concurrent use.
type ruleset struct {
	config *config
	kernel kernel
	seed   maphash.Seed // of the counters' keys

	parts    map[proxy.PortName]*part
	fronts   claims
	ports    claims
	hairpins map[netip.Addr]int // how often each is asked for

	dispatch, nodePorts, hairpin *trie
	nat, filter                  *table

	sets   map[string]struct{} // that exist
	unused map[string]struct{} // of them, to be removed

	// found are the counters that an earlier process left, known after the first
	// reading.
	found []counted
	known bool
	// orphans are UDP fronts of an earlier process that the first flush found.
	orphans []conntrack.Front

	// unsure: what the kernel holds has to be read before the next change.
	unsure bool
}

// claims are the wishes for each place in a trie.
type claims map[key]map[proxy.PortName]claim

func newRuleset(c *config, k kernel) *ruleset {
	f := c.family
	r := &ruleset{
		config: c, kernel: k, seed: maphash.MakeSeed(),
		parts: map[proxy.PortName]*part{}, fronts: claims{}, ports: claims{}, hairpins: map[netip.Addr]int{},
		dispatch:  newTrie(chainDispatch, f, "-d", f.nibbles()),
		nodePorts: newTrie(chainNodePorts, f, "", 0),
		hairpin:   newTrie(chainHairpin, f, "-s", f.nibbles()),
		nat:       newTable(f, tableNAT, c.nat()),
		filter:    newTable(f, tableFilter, c.filter()),
		sets:      map[string]struct{}{}, unused: map[string]struct{}{},
		unsure: true,
	}
	empty := ""
	for _, t := range r.tries() {
		r.nat.put(t.root(), &empty)
	}
	return r
}

// tables in the order in which they are programmed: refusal comes first, so that a
// mark that nat sets means something.
func (r *ruleset) tables() [2]*table { return [...]*table{r.filter, r.nat} }

func (r *ruleset) tries() [3]*trie { return [...]*trie{r.dispatch, r.nodePorts, r.hairpin} }

// update brings the desired state of the tables to the changes; nil removes.
// Ports whose sets can't be made keep what they had, and are returned.
func (r *ruleset) update(states map[proxy.PortName]*proxy.PortState) map[proxy.PortName]error {
	failed := map[proxy.PortName]error{}
	var fronts, ports, hairpins = map[key]struct{}{}, map[key]struct{}{}, map[netip.Addr]struct{}{}
	chains := map[string]*string{}
	for name, state := range states {
		next := &part{}
		if state != nil {
			next = r.config.render(state)
		}
		if err := r.makeSets(next.sets); err != nil {
			failed[name] = err
			continue
		}
		had := r.parts[name]
		if had == nil {
			had = &part{}
		}
		r.swap(had, next, chains)
		r.fronts.swap(name, had.fronts, next.fronts, fronts)
		r.ports.swap(name, had.nodePort, next.nodePort, ports)
		for by, addrs := range map[int][]netip.Addr{-1: had.hairpins, 1: next.hairpins} {
			for _, a := range addrs {
				if r.hairpins[a] += by; r.hairpins[a] == 0 {
					delete(r.hairpins, a)
				}
				hairpins[a] = struct{}{}
			}
		}
		if r.parts[name] = next; state == nil {
			delete(r.parts, name)
		}
	}
	r.dispatch.set(r.fronts.rules(fronts), chains)
	r.nodePorts.set(r.ports.rules(ports), chains)
	r.hairpin.set(r.hairpinRules(hairpins), chains)
	for chain, text := range chains {
		r.nat.put(chain, text)
	}
	return failed
}

// swap a port's own chains and sets.
func (r *ruleset) swap(had, next *part, chains map[string]*string) {
	for chain := range had.chains {
		if _, stays := next.chains[chain]; !stays {
			chains[chain] = nil
		}
	}
	for chain, text := range next.chains {
		chains[chain] = &text
	}
	for _, set := range had.sets {
		r.unused[set] = struct{}{}
	}
	for _, set := range next.sets {
		delete(r.unused, set)
	}
}

// makeSets makes those that do not exist yet.
func (r *ruleset) makeSets(sets []string) error {
	for _, set := range sets {
		if _, exists := r.sets[set]; exists {
			continue
		}
		if err := r.kernel.addSet(r.config.family, set); err != nil {
			return fmt.Errorf("client affinity: %w", err)
		}
		r.sets[set] = struct{}{}
		r.unused[set] = struct{}{} // until a part has it
	}
	return nil
}

func (c claims) swap(name proxy.PortName, had, next map[key]claim, changed map[key]struct{}) {
	for k := range had {
		delete(c[k], name)
		changed[k] = struct{}{}
	}
	for k, wish := range next {
		if c[k] == nil {
			c[k] = map[proxy.PortName]claim{}
		}
		c[k][name] = wish
		changed[k] = struct{}{}
	}
}

// rules are those of the winners; empty where nobody is left.
func (c claims) rules(changed map[key]struct{}) map[key]string {
	out := make(map[key]string, len(changed))
	for k := range changed {
		var best claim
		var owner proxy.PortName
		for name, wish := range c[k] {
			if best.rule == "" || wish.rank < best.rank || wish.rank == best.rank && before(name, owner) {
				best, owner = wish, name
			}
		}
		if out[k] = best.rule; best.rule == "" {
			delete(c, k)
		}
	}
	return out
}

func before(a, b proxy.PortName) bool {
	return slices.Compare([]string{a.Namespace, a.Name, a.Port}, []string{b.Namespace, b.Name, b.Port}) < 0
}

// hairpinRules let an endpoint reach itself by its service: the answer has to come
// back this way.
func (r *ruleset) hairpinRules(changed map[netip.Addr]struct{}) map[key]string {
	out := make(map[key]string, len(changed))
	for a := range changed {
		rule := ""
		if r.hairpins[a] > 0 {
			rule = "-s " + host(a) + " -d " + host(a) + " -j MASQUERADE --random-fully"
		}
		out[key(addrKey(a))] = rule
	}
	return out
}

// flush brings the kernel to the desired state. It tells whether anything had to
// be changed. After an error the next call reads the kernel's state first.
func (r *ruleset) flush(ctx context.Context) (changed bool, err error) {
	if r.unsure {
		if err := r.read(ctx); err != nil {
			return false, err
		}
	}
	for _, t := range r.tables() {
		input := t.input()
		if input == nil {
			continue
		}
		changed = true
		if err := r.kernel.restore(ctx, r.config.family, input); err != nil {
			r.unsure = true
			return changed, fmt.Errorf("programming table %s of %s: %w", t.name, r.config.family, err)
		}
		t.committed()
	}
	r.unsure = false
	r.dropSets()
	return changed, nil
}

// read takes over what the kernel holds.
func (r *ruleset) read(ctx context.Context) error {
	for _, t := range r.tables() {
		saved, err := r.kernel.save(ctx, r.config.family, t.name, t == r.nat)
		if err != nil {
			return fmt.Errorf("reading table %s of %s: %w", t.name, r.config.family, err)
		}
		t.adopt(parse(saved))
		if t == r.nat && !r.known {
			r.found, r.known = r.countedRules(saved), true
		}
	}
	r.orphans = r.udpFronts(r.nat.actual)
	return r.readSets()
}

// udpFronts are those that rules of the tries lead on. Text that it does not
// understand is none.
func (r *ruleset) udpFronts(chains map[string]string) []conntrack.Front {
	var out []conntrack.Front
	for chain, text := range chains {
		if !strings.HasPrefix(chain, chainDispatch) && !strings.HasPrefix(chain, chainNodePorts) {
			continue
		}
		for line := range strings.Lines(text) {
			_, rule, _ := strings.Cut(line[len("-A "):], " ")
			a := [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[r.config.family]
			if at, ok := strings.CutPrefix(rule, "-d "); ok {
				cidr, rest, _ := strings.Cut(at, " ")
				p, err := netip.ParsePrefix(cidr)
				if err != nil || !p.IsSingleIP() {
					continue
				}
				a, rule = p.Addr(), rest
			}
			number, ok := strings.CutPrefix(rule, "-p udp -m udp --dport ")
			if !ok {
				continue
			}
			number, _, _ = strings.Cut(number, " ")
			if port, err := strconv.ParseUint(number, 10, 16); err == nil {
				out = append(out, conntrack.Front{Protocol: proxy.UDP, Addr: netip.AddrPortFrom(a, uint16(port))})
			}
		}
	}
	return out
}

// readSets takes over the sets that exist, and makes those that are missing.
func (r *ruleset) readSets() error {
	names, err := r.kernel.sets()
	if err != nil {
		if len(r.sets) == 0 {
			return nil // a kernel without sets; nobody needs one
		}
		return err
	}
	clear(r.sets)
	ours := prefix + r.config.family.digit() + "-"
	for _, name := range names {
		if strings.HasPrefix(name, ours) {
			r.sets[name] = struct{}{}
			r.unused[name] = struct{}{}
		}
	}
	for _, p := range r.parts {
		if err := r.makeSets(p.sets); err != nil {
			return err
		}
		for _, set := range p.sets {
			delete(r.unused, set)
		}
	}
	return nil
}

// dropSets removes sets that no rule uses. The kernel may still be letting go of
// the rules; what is left is tried again with the next change.
func (r *ruleset) dropSets() {
	for set := range r.unused {
		if _, exists := r.sets[set]; !exists || r.kernel.removeSet(set) == nil {
			delete(r.unused, set)
			delete(r.sets, set)
		}
	}
}

// dump is the desired state, readable, and in the form that iptables-restore
// takes.
func (r *ruleset) dump(b *strings.Builder) {
	for _, t := range r.tables() {
		fmt.Fprintf(b, "# %s\n*%s\n", r.config.family, t.name)
		chains := slices.Sorted(maps.Keys(t.desired))
		for _, chain := range chains {
			fmt.Fprintf(b, ":%s - [0:0]\n", chain)
		}
		for _, h := range t.hooks {
			fmt.Fprintf(b, "-A %s %s\n", h.chain, h.rule)
		}
		owners := r.owners()
		for _, chain := range chains {
			if owner, ok := owners[chain]; ok {
				fmt.Fprintf(b, "# %s\n", owner)
			}
			b.WriteString(t.desired[chain])
		}
		b.WriteString("COMMIT\n")
	}
}

// owners of the chains that belong to a service port.
func (r *ruleset) owners() map[string]proxy.PortName {
	out := map[string]proxy.PortName{}
	for name, p := range r.parts {
		for chain := range p.chains {
			out[chain] = name
		}
	}
	return out
}

// wipe removes everything that is ours from one family, sets excepted.
func wipe(ctx context.Context, k kernel, f family) error {
	var errs []error
	for _, name := range tables {
		there, err := k.holds(ctx, f, name)
		if err != nil || !there {
			errs = append(errs, err)
			continue
		}
		saved, err := k.save(ctx, f, name, false)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if input := parse(saved).removal(name); input != nil {
			errs = append(errs, k.restore(ctx, f, input))
		}
	}
	return errors.Join(errs...)
}
