//go:build linux

package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
)

// family is one address family's table: what it should be (want) and what the
// kernel has, as far as we know (have). Only flush and the reading back change
// what is had; everything else changes what is wanted and never fails half-way.
type family struct {
	dims
	table nfnl.Table
	rules writer

	named  // the sets that are always there
	sets   map[string]*set
	order  []*set // order of writing: what is looked up first comes last
	chains map[string]*chain

	// apart: cluster IPs are kept to their meshes, which have these numbers.
	apart   bool
	numbers func(mesh string) uint32

	// balancer chooses among endpoints; nil: the table does.
	balancer Balancer
	// hashes: the kernel has the expression for a source hash.
	hashes bool
	// off: the kernel does not know this family; nothing is written.
	off      bool
	hasTable bool
	dormant  bool // the table has the flag dormant
	// rebuild: something of the kernel's table cannot be changed in place.
	rebuild bool

	classes   map[classKey]*class
	classOf   map[uint16]*class
	idle      []*class
	nextClass uint16
	adopted   adopted

	claims  map[string][]claim
	shared  map[sharedKey]int // references to elements that services share
	ranges  map[int]int       // elements by prefix length of source ranges
	nodeIPs []netip.Addr      // addresses of node ports
}

// named are sets by what they hold; see the constants set….
type named struct {
	vip, vipCluster, vipLocal    *set
	ep, epID, idCluster, idLocal *set
	demand, clusterIPs, hairpin  *set
	entry, lists                 *set
}

func (f *family) name() named {
	s := f.sets
	return named{
		vip: s[setVIP], vipCluster: s[setVIPCluster], vipLocal: s[setVIPLocal],
		ep: s[setEP], epID: s[setEPID], idCluster: s[setIDCluster], idLocal: s[setIDLocal],
		demand: s[setDemand], clusterIPs: s[setClusterIPs], hairpin: s[setHairpin],
		entry: s[setEntry], lists: s[setLists],
	}
}

// adopted is what an earlier process's kernel state says about numbers, during
// the first Apply.
type adopted struct {
	slots   bool              // those of map ep count
	classes map[string]uint16 // by chain
	taken   map[uint16]bool
	ids     map[idKey]uint16
}

type idKey struct {
	service  uint16
	endpoint netip.AddrPort
}

type sharedKey struct {
	set *set
	key string
}

// chain is a chain with its rules in canonical form.
type chain struct {
	def       nfnl.Chain
	want, has bool
	rules     []*nfnl.Rule
	have      []string
	dirty     bool
}

func newFamily(d dims, name string, w writer, affinityClients uint32) *family {
	w.dims = d
	f := &family{
		dims: d, table: nfnl.Table{Family: d.proto, Name: name}, rules: w,
		sets: map[string]*set{}, chains: map[string]*chain{},
		classes: map[classKey]*class{}, classOf: map[uint16]*class{}, nextClass: firstPick,
		claims: map[string][]claim{}, shared: map[sharedKey]int{}, ranges: map[int]int{},
	}
	for _, def := range d.sets(affinityClients) {
		s := f.wantSet(def)
		s.opaque = def.Name == setAffinity
	}
	f.named = f.name()
	for _, c := range f.rules.baseChains() {
		f.chains[c.Name] = &chain{def: c}
	}
	for name, rules := range f.rules.fixed() {
		def := nfnl.Chain{Name: name}
		if c := f.chains[name]; c != nil {
			def = c.def
		}
		f.wantChain(def, rules)
	}
	f.wantRanges()
	f.addVerdicts()
	return f
}

func (f *family) addVerdicts() {
	to := map[uint16]string{
		classRefuse:      nfnl.Goto(chainNoEndpoint).Value(),
		classDrop:        nfnl.Drop().Value(),
		classExtLocal:    nfnl.Goto(chainExtLocal).Value(),
		classRanges:      nfnl.Goto(chainRanges).Value(),
		classRangesLocal: nfnl.Goto(chainRangesLoc).Value(),
	}
	for number, verdict := range to {
		f.entry.put(mix(0, number), verdict, "")
		if number == classRefuse || number == classDrop {
			f.lists.put(mix(0, number), verdict, "")
		}
	}
}

func (f *family) wantSet(def nfnl.Set) *set {
	s := f.sets[def.Name]
	if s == nil {
		s = &set{}
		f.sets[def.Name] = s
		f.order = append(f.order, s)
	}
	s.def, s.want = def, true
	return s
}

// wantChain sets a chain's rules.
func (f *family) wantChain(def nfnl.Chain, rules []*nfnl.Rule) {
	c := f.chains[def.Name]
	if c == nil {
		c = &chain{}
		f.chains[def.Name] = c
	}
	c.def, c.rules, c.want, c.dirty = def, rules, true, true
}

func (f *family) unwantChain(name string) {
	c := f.chains[name]
	c.want, c.rules, c.dirty = false, nil, true
}

// wantRanges writes the chains that admit by source, for the prefix lengths in use.
func (f *family) wantRanges() {
	bits := slices.Sorted(maps.Keys(f.ranges))
	slices.Reverse(bits)
	f.wantChain(nfnl.Chain{Name: chainRanges}, f.rules.ranges(bits, chainRangesPass))
	f.wantChain(nfnl.Chain{Name: chainRangesLoc}, f.rules.ranges(bits, chainExtLocal))
}

// addRange and dropRange keep count of the source ranges of a length.
func (f *family) addRange(bits int) *set {
	f.ranges[bits]++
	if f.ranges[bits] == 1 {
		f.wantSet(f.source(bits))
		f.wantRanges()
	}
	return f.sets[f.source(bits).Name]
}

func (f *family) dropRange(bits int) *set {
	s := f.sets[f.source(bits).Name]
	f.ranges[bits]--
	if f.ranges[bits] == 0 {
		delete(f.ranges, bits)
		s.want = false
		f.wantRanges()
	}
	return s
}

// ref adds an element that several services may ask for.
func (f *family) ref(s *set, key string) {
	k := sharedKey{s, key}
	f.shared[k]++
	if f.shared[k] == 1 {
		s.put(key, "", "")
	}
}

func (f *family) unref(s *set, key string) {
	k := sharedKey{s, key}
	if f.shared[k]--; f.shared[k] == 0 {
		delete(f.shared, k)
		s.remove(key)
	}
}

// unknown forgets what the kernel has.
func (f *family) unknown() {
	f.hasTable, f.dormant, f.rebuild = false, false, false
	for _, s := range f.order {
		s.has = false
		s.unknown()
	}
	f.dropSets()
	for name, c := range f.chains {
		c.has, c.have = false, nil
		if !c.want {
			delete(f.chains, name)
		}
	}
}

// dropSets removes the sets that no port uses.
func (f *family) dropSets() {
	f.order = slices.DeleteFunc(f.order, func(s *set) bool {
		if !s.want {
			delete(f.sets, s.def.Name)
		}
		return !s.want
	})
}

// compare finds the chains that differ again.
func (f *family) compare() {
	for _, c := range f.chains {
		c.dirty = !c.matches()
	}
}

func (c *chain) matches() bool {
	if c.want != c.has || len(c.rules) != len(c.have) {
		return false
	}
	for i, r := range c.rules {
		if r.Canonical() != c.have[i] {
			return false
		}
	}
	return true
}
