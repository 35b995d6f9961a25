package ebpf

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

//go:embed program/connect.o
var object []byte

// Least sizes of maps, and the sizes of those that are pinned and so never have another one.
const (
	leastLists   = 1 << 10
	leastEntries = 1 << 10
	clientsSize  = 1 << 16
	peersSize    = 1 << 16 // a power of two
	exemptSize   = 1 << 12
)

// keptMap is a map that outlives its generation, and its process where it is pinned.
type keptMap struct {
	name       string
	kind       ebpf.MapType
	key, value uint32
	entries    uint32
	// peers: it is there for constants.peers alone.
	peers bool
}

var keptMaps = []keptMap{
	{name: "clients", kind: ebpf.LRUHash, key: 16, value: 32, entries: clientsSize},
	{name: "peers4", kind: ebpf.Array, key: 4, value: peer4Size, entries: peersSize, peers: true},
	{name: "peers6", kind: ebpf.Array, key: 4, value: peer6Size, entries: peersSize, peers: true},
}

// fits reports whether a map is such a one.
func (k *keptMap) fits(m *ebpf.Map) bool {
	return m.Type() == k.kind && m.KeySize() == k.key && m.ValueSize() == k.value && m.MaxEntries() == k.entries
}

// sizes of a generation.
type sizes struct{ lists, vip4, vip6, slots4, slots6, members uint32 }

// constants of a generation's programs.
type constants struct {
	hostOnly, networks bool
	// peers: what sockets asked for is noted, for getpeername.
	peers bool
	// levels of exempt cgroups, a bit each.
	levels uint32
}

// exemptCgroup marks a key of map exempt that is a cgroup, not the cookie of a network namespace.
const exemptCgroup = 1 << 63

// maxLevel of an exempt cgroup.
const maxLevel = 31

// generation is a set of maps and the programs on them. Nothing of one is read back: what it cannot hold,
// the next one does.
type generation struct {
	sizes     sizes
	constants constants
	coll      *ebpf.Collection

	lists, counts  memory
	slots4, slots6 memory

	numbers  *spans
	of4, of6 *spans
	at       map[listKey]*placed
	// owner of a list number: whose connections are counted there.
	owner map[uint32]owner
	vips  map[netip.AddrPort]uint32
}

// owner of a counter.
type owner struct {
	port   *tally
	family int
}

// placed is a list in the maps.
type placed struct {
	number  uint32
	base, n uint32
	list    *list
	id      uint64
}

// memory of an array map.
type memory struct {
	raw    []byte
	stride int
}

func mapMemory(m *ebpf.Map, stride int) (memory, error) {
	page := os.Getpagesize()
	n := (int(m.MaxEntries())*stride + page - 1) / page * page
	raw, err := unix.Mmap(m.FD(), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return memory{}, fmt.Errorf("mapping the memory of a map: %w", err)
	}
	return memory{raw, stride}, nil
}

func (m *memory) unmap() {
	if m.raw != nil {
		_ = unix.Munmap(m.raw)
		m.raw = nil
	}
}

func (m *memory) entry(i uint32) []byte {
	return m.raw[int(i)*m.stride : int(i)*m.stride+m.stride]
}

// word at a multiple of 8 bytes: entries are aligned so, and the memory to pages.
func (m *memory) word(i uint32, offset int) *uint64 {
	return (*uint64)(unsafe.Pointer(&m.raw[int(i)*m.stride+offset]))
}

// open makes a generation of these sizes, with empty maps. kept are those of keptMaps that an earlier one had; it
// gets the others of its own.
func open(s sizes, c constants, kept map[string]*ebpf.Map) (g *generation, err error) {
	if err := rlimit.RemoveMemlock(); err != nil { // before 5.11, maps count as locked memory
		return nil, err
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	for name, n := range map[string]uint32{
		"vip4": s.vip4, "vip6": s.vip6, "lists": s.lists, "slots4": s.slots4, "slots6": s.slots6, "counts": shards * s.lists,
		"members": s.members, "exempt": exemptSize,
	} {
		spec.Maps[name].MaxEntries = n
	}
	for _, k := range keptMaps {
		if !k.peers || c.peers {
			spec.Maps[k.name].MaxEntries = k.entries
		}
	}
	peers := uint32(0)
	if c.peers {
		peers = peersSize - 1
	} else {
		for _, name := range peerPrograms {
			delete(spec.Programs, name)
		}
	}
	for name, value := range map[string]uint32{
		"stride": s.lists, "hostonly": number(c.hostOnly), "networks": number(c.networks), "levels": c.levels, "peers": peers,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("constant %s: %w", name, err)
		}
	}
	opts := ebpf.CollectionOptions{MapReplacements: kept}
	g = &generation{
		sizes: s, constants: c, numbers: newSpans(s.lists), of4: newSpans(s.slots4), of6: newSpans(s.slots6),
		at: map[listKey]*placed{}, owner: map[uint32]owner{}, vips: map[netip.AddrPort]uint32{},
	}
	if g.coll, err = ebpf.NewCollectionWithOptions(spec, opts); err != nil {
		return nil, err
	}
	for _, x := range []struct {
		name   string
		to     *memory
		stride int
	}{{"lists", &g.lists, listSize}, {"counts", &g.counts, 8}, {"slots4", &g.slots4, slot4Size}, {"slots6", &g.slots6, slot6Size}} {
		if *x.to, err = mapMemory(g.coll.Maps[x.name], x.stride); err != nil {
			g.close()
			return nil, err
		}
	}
	return g, nil
}

// programs of the generation, in the order of programNames; nil: it does not have it.
func (g *generation) programs() (all [len(programNames)]*ebpf.Program) {
	for i, name := range programNames {
		all[i] = g.coll.Programs[name]
	}
	return all
}

func number(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// close lets go of the generation. What a link runs stays in the kernel.
func (g *generation) close() {
	for _, m := range []*memory{&g.lists, &g.counts, &g.slots4, &g.slots6} {
		m.unmap()
	}
	g.coll.Close()
}

// errFull: the next generation has room.
var errFull = errors.New("the maps are full")

func (g *generation) slotsOf(f proxy.Family) (*spans, *memory) {
	if f == proxy.IPv4 {
		return g.of4, &g.slots4
	}
	return g.of6, &g.slots6
}

// put writes a list: new slots, and then one store of its word, by which all its addresses change at once.
// What it replaces is returned, to be given back when no program reads it any more. nil stands for a list
// that has gone: connections pass.
func (g *generation) put(k listKey, l *list, of *tally) (old release, err error) {
	p := g.at[k]
	if l == nil {
		if p == nil {
			return old, nil
		}
		atomic.StoreUint64(g.lists.word(p.number, 0), 0)
		delete(g.at, k)
		old = release{family: k.family, span: span{p.base, p.n}, number: p.number, whole: true}
		return old, g.dropMembers(p.id, p.list, nil)
	}
	spans, memory := g.slotsOf(k.family)
	n := uint32(len(l.targets))
	base, ok := spans.take(n)
	if !ok {
		return old, errFull
	}
	id := uint64(0)
	if l.sticky > 0 {
		id = k.id()
	}
	fresh := p == nil
	if fresh {
		number, ok := g.numbers.take(1)
		if !ok {
			spans.give(base, n)
			return old, errFull
		}
		p = &placed{number: number}
	} else {
		old = release{family: k.family, span: span{p.base, p.n}}
	}
	for i, s := range aliasTable(l.targets) {
		putSlot(memory.entry(base+uint32(i)), s, l.targets)
	}
	if err := g.addMembers(id, p.list, l); err != nil {
		spans.give(base, n)
		if fresh {
			g.numbers.give(p.number, 1)
		}
		return release{}, err
	}
	flags := uint8(0)
	if l.sticky > 0 {
		// Before the word that says that they count.
		atomic.StoreUint64(g.lists.word(p.number, 8), id)
		atomic.StoreUint64(g.lists.word(p.number, 16), timeoutOf(l.sticky))
		flags = flagSticky
	}
	atomic.StoreUint64(g.lists.word(p.number, 0), word(base, n, flags))
	was, wasID := p.list, p.id
	p.base, p.n, p.list, p.id = base, n, l, id
	g.at[k] = p
	g.owner[p.number] = owner{of, int(k.family) - int(proxy.IPv4)}
	if was != nil && wasID != 0 {
		return old, g.dropMembers(wasID, was, l)
	}
	return old, nil
}

// addMembers of a sticky list that are new.
func (g *generation) addMembers(id uint64, was, l *list) error {
	if l.sticky == 0 {
		return nil
	}
	had := map[netip.AddrPort]bool{}
	if was != nil && was.sticky > 0 {
		for _, t := range was.targets {
			had[t.Addr] = true
		}
	}
	for _, t := range l.targets {
		if had[t.Addr] {
			continue
		}
		if err := g.coll.Maps["members"].Update(memberKey(id, t.Addr), uint32(1), ebpf.UpdateAny); err != nil {
			if errors.Is(err, unix.E2BIG) {
				return errFull
			}
			return fmt.Errorf("endpoint of a list with affinity: %w", err)
		}
	}
	return nil
}

// dropMembers removes endpoints of a sticky list that are not in the next one.
func (g *generation) dropMembers(id uint64, was, l *list) error {
	if was == nil || was.sticky == 0 {
		return nil
	}
	has := map[netip.AddrPort]bool{}
	if l != nil && l.sticky > 0 {
		for _, t := range l.targets {
			has[t.Addr] = true
		}
	}
	var errs []error
	for _, t := range was.targets {
		if has[t.Addr] {
			continue
		}
		if err := g.coll.Maps["members"].Delete(memberKey(id, t.Addr)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("endpoint of a list with affinity: %w", err))
		}
	}
	return errors.Join(errs...)
}

// vipMap of an address.
func (g *generation) vipMap(a netip.Addr) *ebpf.Map {
	if a.Is4() {
		return g.coll.Maps["vip4"]
	}
	return g.coll.Maps["vip6"]
}

// setVIPs writes and deletes addresses, in batches where the kernel has these. An address that cannot be
// written passes.
func (g *generation) setVIPs(put map[netip.AddrPort]uint32, gone []netip.AddrPort) error {
	var errs []error
	for _, at := range gone {
		if _, there := g.vips[at]; !there {
			continue
		}
		if err := g.vipMap(at.Addr()).Delete(vipKey(at)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("removing address %s: %w", at, err))
			continue // it is tried again with the next look at the maps
		}
		delete(g.vips, at)
	}
	const few = 4
	if len(put) <= few {
		for at, n := range put {
			if err := g.vipMap(at.Addr()).Update(vipKey(at), n, ebpf.UpdateAny); err != nil {
				errs = append(errs, full(fmt.Errorf("address %s: %w", at, err)))
				continue
			}
			g.vips[at] = n
		}
		return errors.Join(errs...)
	}
	for _, v4 := range []bool{true, false} {
		var keys []byte
		var values []uint32
		var which []netip.AddrPort
		for at, n := range put {
			if at.Addr().Is4() == v4 {
				keys, values, which = append(keys, vipKey(at)...), append(values, n), append(which, at)
			}
		}
		if len(which) == 0 {
			continue
		}
		if err := batchUpdate(g.vipMap(which[0].Addr()), keys, values); err != nil {
			errs = append(errs, full(err))
			continue
		}
		for i, at := range which {
			g.vips[at] = values[i]
		}
	}
	return errors.Join(errs...)
}

func full(err error) error {
	if errors.Is(err, unix.E2BIG) {
		return errors.Join(errFull, err)
	}
	return err
}

// batchUpdate writes all keys, which follow one another, with one system call.
func batchUpdate(m *ebpf.Map, keys []byte, values []uint32) error {
	var err error
	if m.KeySize() == vip4Size {
		_, err = m.BatchUpdate(chunked[[vip4Size]byte](keys), values, nil)
	} else {
		_, err = m.BatchUpdate(chunked[[vip6Size]byte](keys), values, nil)
	}
	return err
}

// chunked is the same memory as arrays of bytes.
func chunked[T [vip4Size]byte | [vip6Size]byte](b []byte) []T {
	var one T
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/len(one))
}

// look reads one address back, and writes it where it is not as it should be.
func (g *generation) look(at netip.AddrPort, want uint32) (repaired bool, err error) {
	var got uint32
	if err := g.vipMap(at.Addr()).Lookup(vipKey(at), &got); err == nil && got == want {
		return false, nil
	}
	return true, g.vipMap(at.Addr()).Update(vipKey(at), want, ebpf.UpdateAny)
}

// count of a list since its number was taken.
func (g *generation) count(number uint32) uint64 {
	sum := uint64(0)
	for shard := range uint32(shards) {
		sum += atomic.LoadUint64(g.counts.word(shard*g.sizes.lists+number, 0))
	}
	return sum
}

// release is what no new reader finds any more.
type release struct {
	family proxy.Family
	span   span
	number uint32
	// whole: the number of the list, too.
	whole bool
}

// free gives numbers back, and adds what was counted to the sums of the service port.
func (g *generation) free(r release) {
	spans, _ := g.slotsOf(r.family)
	spans.give(r.span.base, r.span.n)
	if !r.whole {
		return
	}
	g.fold(r.number)
	for shard := range uint32(shards) {
		atomic.StoreUint64(g.counts.word(shard*g.sizes.lists+r.number, 0), 0)
	}
	g.numbers.give(r.number, 1)
}

func (g *generation) fold(number uint32) {
	if o, ok := g.owner[number]; ok {
		o.port.sums[o.family] += g.count(number)
		delete(g.owner, number)
	}
}

// exempt these instead of those of before: keys of the map.
func (g *generation) exempt(before, now map[uint64]struct{}) error {
	m := g.coll.Maps["exempt"]
	var errs []error
	for id := range now {
		if _, has := before[id]; !has {
			errs = append(errs, m.Update(id, uint32(1), ebpf.UpdateAny))
		}
	}
	for id := range before {
		if _, stays := now[id]; !stays {
			if err := m.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
