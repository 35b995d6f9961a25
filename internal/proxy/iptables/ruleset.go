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
	"sync"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// ruleset is everything of one family: the service ports' parts, the tries that
// lead to them, the tables that hold both, and the sets that they use. Not safe
// for concurrent use.
type ruleset struct {
	config *config
	kernel kernel
	seed   maphash.Seed // of the counters' keys

	rendered  map[proxy.PortName]*portRules
	frontends claims
	ports     claims
	shared    owners
	hairpins  map[netip.Addr]int // how often each is asked for
	meshes    meshes

	dispatch, nodePorts, hairpin *trie
	nat, filter                  *table

	sets   map[string]struct{} // that exist
	unused map[string]struct{} // of them, to be removed

	// found are the counters that an earlier process left, known after the first
	// reading.
	found []counted
	known bool
	// orphans are UDP frontends of an earlier process that the first flush found.
	orphans []conntrack.Frontend

	// needsResync: what the kernel holds has to be read before the next change.
	needsResync bool
	// done are the transactions since the watch looked, and verified means that the
	// tables were seen since then.
	done     []transaction
	verified bool
	// unblocked are hooks that were moved to the first place, since the last
	// [Mode.report], with the rules of other programs that they stood behind.
	unblocked map[hook]string
}

// claims are the wishes for each place in a trie.
type claims map[key]map[proxy.PortName]claim

func newRuleset(c *config, k kernel) *ruleset {
	f := c.family
	r := &ruleset{
		config: c, kernel: k, seed: maphash.MakeSeed(),
		rendered: map[proxy.PortName]*portRules{}, frontends: claims{}, ports: claims{}, hairpins: map[netip.Addr]int{},
		dispatch:  newTrie(chainDispatch, f, "-d", f.digits()),
		nodePorts: newTrie(chainNodePorts, f, "", 0),
		hairpin:   newTrie(chainHairpin, f, "-s", f.digits()),
		nat:       newTable(f, tableNAT, c.nat()),
		filter:    newTable(f, tableFilter, c.filter()),
		sets:      map[string]struct{}{}, unused: map[string]struct{}{},
		needsResync: true,
	}
	r.dispatch.pairs = true
	empty := ""
	for _, t := range r.tries() {
		r.nat.put(t.root(), &empty)
		r.nat.frame = append(r.nat.frame, t.root())
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
	var frontends, ports, hairpins = map[key]struct{}{}, map[key]struct{}{}, map[netip.Addr]struct{}{}
	scopes := map[netip.Addr]struct{}{}
	chains := map[string]*string{}
	for name, state := range states {
		next := &portRules{}
		if state != nil {
			next = r.config.render(state)
		}
		if err := r.makeSets(next.sets); err != nil {
			failed[name] = err
			continue
		}
		had := r.rendered[name]
		if had == nil {
			had = &portRules{}
		}
		r.swap(had, next, chains)
		r.swapScopes(had, next, scopes)
		r.frontends.swap(name, had.frontends, next.frontends, frontends)
		r.ports.swap(name, had.nodePort, next.nodePort, ports)
		for by, addrs := range map[int][]netip.Addr{-1: had.hairpins, 1: next.hairpins} {
			for _, a := range addrs {
				if r.hairpins[a] += by; r.hairpins[a] == 0 {
					delete(r.hairpins, a)
				}
				hairpins[a] = struct{}{}
			}
		}
		if r.rendered[name] = next; state == nil {
			delete(r.rendered, name)
		}
	}
	rules, picks := r.frontends.rules(frontends, &r.shared)
	r.dispatch.set(rules, picks, chains)
	rules, _ = r.ports.rules(ports, nil)
	r.nodePorts.set(rules, nil, chains)
	r.hairpin.set(r.hairpinRules(hairpins), nil, chains)
	r.setForeign(scopes, chains)
	for chain, text := range chains {
		r.nat.put(chain, text)
	}
	return failed
}

// swap a port's own chains and sets.
func (r *ruleset) swap(had, next *portRules, chains map[string]*string) {
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

// rules are those of the winners, with their picks; empty where none is left.
// The owners of rules that do not name them are recorded.
func (c claims) rules(changed map[key]struct{}, owners *owners) (rules, picks map[key]string) {
	rules, picks = make(map[key]string, len(changed)), make(map[key]string, len(changed))
	for k := range changed {
		best, owner := c.winner(k)
		if rules[k], picks[k] = best.rule, best.picks; best.rule == "" {
			delete(c, k)
		}
		if owners != nil {
			owners.set(k, best.picks != "", owner)
		}
	}
	return rules, picks
}

// winner of a key; an empty claim: it has none.
func (c claims) winner(k key) (best claim, owner proxy.PortName) {
	for name, wish := range c[k] {
		if best.rule == "" || wish.rank < best.rank || wish.rank == best.rank && before(name, owner) {
			best, owner = wish, name
		}
	}
	return best, owner
}

// owners are the service ports, by tag, of rules that lead to chains of several.
// Safe for concurrent use: counters are read while tables are programmed.
type owners struct {
	mu   sync.Mutex
	tags map[key]string
}

func (o *owners) set(k key, owned bool, name proxy.PortName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !owned {
		delete(o.tags, k)
		return
	}
	if o.tags == nil {
		o.tags = map[key]string{}
	}
	o.tags[k] = portTag(name)
}

func (o *owners) tag(k key) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tags[k]
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

// flush brings the kernel to the desired state. It reports whether anything had to
// be changed. After an error the next call reads the kernel's state first.
func (r *ruleset) flush(ctx context.Context) (changed bool, err error) {
	if r.needsResync {
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
		r.done = append(r.done, t.transaction())
		if err := r.kernel.restore(ctx, r.config.family, input); err != nil {
			r.needsResync = true
			return changed, fmt.Errorf("programming table %s of %s: %w", t.name, r.config.family, err)
		}
		if len(t.blocked) > 0 {
			r.unblocked = t.blocked
		}
		t.committed()
	}
	r.needsResync = false
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
	r.orphans = r.udpFrontends(r.nat.actual)
	r.verified = true
	return r.readSets()
}

// fingerprints of all chains, by table.
func (r *ruleset) fingerprints() (map[string]map[string]fingerprint, error) {
	out := map[string]map[string]fingerprint{}
	for _, t := range r.tables() {
		now, err := r.kernel.fingerprints(r.config.family, t.name, nil)
		if err != nil {
			return nil, fmt.Errorf("looking at the chains of table %s of %s: %w", t.name, r.config.family, err)
		}
		out[t.name] = now
	}
	return out, nil
}

// compare marks chains that are not as they were. If ok is false it is unknown how
// they are, and the tables have to be read.
func (r *ruleset) compare(before, now map[string]map[string]fingerprint) (ok bool) {
	ok = true
	for _, t := range r.tables() {
		was, is := before[t.name], now[t.name]
		for chain, p := range is {
			if old, known := was[chain]; !known || old != p {
				ok = t.suspect(chain, true) && ok
			}
		}
		for chain := range was {
			if _, there := is[chain]; !there {
				ok = t.suspect(chain, false) && ok
			}
		}
	}
	r.verified = ok
	return ok
}

// frameBroken reports, cheaply, whether the chains that all service traffic meets
// differ from what is known of them; no, if nothing is.
func (r *ruleset) frameBroken(known map[string]map[string]fingerprint) bool {
	for _, t := range r.tables() {
		was := known[t.name]
		if was == nil {
			continue
		}
		now, err := r.kernel.fingerprints(r.config.family, t.name, t.frame)
		if err != nil {
			return false // the comparison will show it
		}
		for chain, p := range now {
			if was[chain] != p {
				return true
			}
		}
	}
	return false
}

// reprint brings prints up to date for the chains that were written.
func (r *ruleset) reprint(prints map[string]map[string]fingerprint) error {
	for _, tx := range r.done {
		now, err := r.kernel.fingerprints(r.config.family, tx.table, tx.chains)
		if err != nil {
			return err
		}
		t := r.nat
		if tx.table == r.filter.name {
			t = r.filter
		}
		for chain, p := range now {
			if t.knows(chain) {
				prints[tx.table][chain] = p
			} else {
				delete(prints[tx.table], chain)
			}
		}
	}
	return nil
}

// udpFronts are those that rules of the tries lead on. Text that it does not
// understand is none.
func (r *ruleset) udpFrontends(chains map[string]string) []conntrack.Frontend {
	var out []conntrack.Frontend
	for chain, text := range chains {
		if !strings.HasPrefix(chain, chainDispatch) && !strings.HasPrefix(chain, chainNodePorts) {
			continue
		}
		for line := range strings.Lines(text) {
			_, rule, _ := strings.Cut(line[len("-A "):], " ")
			at, p, ok := r.config.family.parseFront(rule)
			if ok && p == proxy.UDP {
				out = append(out, conntrack.Frontend{Protocol: p, Addr: at})
			}
		}
	}
	return out
}

// parseFront reads what a rule of a trie matches: "-d ADDRESS/BITS -p PROTOCOL -m
// PROTOCOL --dport PORT …", or the same without an address, which is any.
func (f family) parseFront(rule string) (at netip.AddrPort, p proxy.Protocol, ok bool) {
	a := [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[f]
	if to, ok := strings.CutPrefix(rule, "-d "); ok {
		cidr, rest, _ := strings.Cut(to, " ")
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil || !prefix.IsSingleIP() {
			return at, p, false
		}
		a, rule = prefix.Addr(), rest
	}
	words := strings.SplitN(rule, " ", 7)
	if len(words) < 6 || words[0] != "-p" || words[2] != "-m" || words[3] != words[1] || words[4] != "--dport" {
		return at, p, false
	}
	port, err := strconv.ParseUint(words[5], 10, 16)
	return netip.AddrPortFrom(a, uint16(port)), proxy.Protocol(strings.ToUpper(words[1])), err == nil
}

// readSets takes over the sets that exist, and makes those that are missing.
func (r *ruleset) readSets() error {
	names, err := r.kernel.sets()
	if err != nil {
		if len(r.sets) == 0 {
			return nil // a kernel without sets; none is needed
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
	for _, p := range r.rendered {
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
		owners, picked := r.owners()
		for _, chain := range chains {
			if owner, ok := owners[chain]; ok {
				fmt.Fprintf(b, "# %s\n", owner)
			}
			if strings.HasPrefix(chain, chainPicks) {
				dumpPicks(b, t.desired[chain], picked)
			} else {
				b.WriteString(t.desired[chain])
			}
		}
		b.WriteString("COMMIT\n")
	}
}

// dumpPicks writes a chain that several ports share.
func dumpPicks(b *strings.Builder, text string, owners map[string]proxy.PortName) {
	var last proxy.PortName
	for line := range strings.Lines(text) {
		if owner := owners[line]; owner != last {
			fmt.Fprintf(b, "# %s\n", owner)
			last = owner
		}
		b.WriteString(line)
	}
}

// rulesOf a service port: those that lead to it, then its own.
func (r *ruleset) rulesOf(name proxy.PortName) (to, own []string) {
	portRules := r.rendered[name]
	if portRules == nil {
		return nil, nil
	}
	take := func(list *[]string, text string) {
		for line := range strings.Lines(text) {
			*list = append(*list, strings.TrimSuffix(line, "\n"))
		}
	}
	for _, of := range []struct {
		claims claims
		wishes map[key]claim
		trie   *trie
	}{{r.frontends, portRules.frontends, r.dispatch}, {r.ports, portRules.nodePort, r.nodePorts}} {
		for _, k := range slices.Sorted(maps.Keys(of.wishes)) {
			if _, owner := of.claims.winner(k); owner == name {
				leaf, picks := of.trie.linesOf(k)
				take(&to, leaf)
				take(&own, picks)
			}
		}
	}
	for _, chain := range slices.Sorted(maps.Keys(portRules.chains)) {
		take(&own, portRules.chains[chain])
	}
	return to, own
}

// owners of the chains that belong to a service port, and of the rules in chains
// that several share.
func (r *ruleset) owners() (chains, picks map[string]proxy.PortName) {
	chains, picks = map[string]proxy.PortName{}, map[string]proxy.PortName{}
	for name, p := range r.rendered {
		for chain := range p.chains {
			chains[chain] = name
		}
		for k := range p.frontends {
			if _, owner := r.frontends.winner(k); owner == name {
				_, text := r.dispatch.linesOf(k)
				for line := range strings.Lines(text) {
					picks[line] = name
				}
			}
		}
	}
	return chains, picks
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
