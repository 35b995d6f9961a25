package permit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// A table has the chains "input" and "forward", which the kernel calls for packets to this machine and
// through it, behind the translation of virtual addresses. Map "ports" leads from a guarded port to a chain
// for its rules, which ports with the same rules share; sets have the addresses of callers. Sets "asked" and
// "refused" have the guarded ports, too, with counters of the packets that begin connections, and of those
// that were refused: an element of theirs stays when the rules of its port change.
const (
	chainInput   = "input"
	chainForward = "forward"
	chainRefuse  = "refuse"
	mapPorts     = "ports"
	setAsked     = "asked"
	setRefused   = "refused"
	prefixSet    = "callers-"
	prefixRules  = "rules-"

	// priority is right before that of filters (NF_IP_PRI_FILTER, linux/netfilter_ipv4.h).
	priority = -1
	// stateNew is the bit of ct state (linux/netfilter/nf_conntrack_common.h).
	stateNew = 1 << 3
	// tcpFlags is where a header of TCP has its flags, of which these are two (RFC 9293, section 3.1).
	tcpFlags = 13
	flagSYN  = 1 << 1
	flagACK  = 1 << 4
	// rtnLocal is RTN_LOCAL of linux/rtnetlink.h.
	rtnLocal = 2
)

// family is one of the tables, and what the kernel has of it.
type family struct {
	table             nfnl.Table
	addrType, addrLen uint32
	saddr, daddr      uint32
	words             nfnl.Reg
	unreachable       uint8
	is4, there        bool
	sets              map[string]map[netip.Addr]struct{}
	ports             map[guarded]string // chains
	users             map[string]int     // of chains: ports that lead there
	uses              map[string]int     // of sets: chains that name them
	named             map[string][]string
	// read are the counters as they were read last, by the set and the key.
	read map[string]map[string]uint64
}

type kernel struct {
	conn     *nfnl.Conn
	families []*family
}

func openKernel(namespace int) (*kernel, error) {
	conn, err := nfnl.Open(namespace)
	if err != nil {
		return nil, fmt.Errorf("permissions by address need nftables: %w", err)
	}
	k := &kernel{conn: conn, families: newFamilies()}
	var b nfnl.Batch
	for _, f := range k.families {
		f.create(&b, TableName+"-check")
	}
	if err := conn.Check(&b); err != nil {
		return nil, errors.Join(fmt.Errorf("permissions by address need nftables: %w", err), conn.Close())
	}
	return k, nil
}

func newFamilies() []*family {
	return []*family{
		{
			table: nfnl.Table{Family: unix.NFPROTO_IPV4, Name: TableName}, addrType: nfnl.TypeIPAddr, addrLen: 4, saddr: 12, daddr: 16, words: 1,
			unreachable: 3, is4: true, // ICMP_PORT_UNREACH
		},
		{
			table: nfnl.Table{Family: unix.NFPROTO_IPV6, Name: TableName}, addrType: nfnl.TypeIP6Addr, addrLen: 16, saddr: 8, daddr: 24, words: 4,
			unreachable: 4, // ICMPV6_PORT_UNREACH
		},
	}
}

func (k *kernel) close() error { return k.conn.Close() }

// program both families in one transaction.
func (k *kernel) program(d *desired) error {
	var b nfnl.Batch
	for _, f := range k.families {
		there, _, err := k.conn.HasTable(f.table)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("read table %s: %w", f.table.Name, err)
		}
		f.program(&b, d, there)
	}
	if b.Empty() {
		return nil
	}
	if err := k.conn.Commit(&b); err != nil {
		for _, f := range k.families {
			f.there = false // all is written again
		}
		return fmt.Errorf("write table %s: %w", TableName, err)
	}
	return nil
}

// program what changed, or everything if the table is not there, or is of an earlier process.
func (f *family) program(b *nfnl.Batch, d *desired, there bool) {
	ours := func(g guarded) bool { return g.addr.Is4() == f.is4 }
	any := false
	for g := range d.ports {
		any = any || ours(g)
	}
	if !any {
		if there {
			b.DeleteTable(f.table)
		}
		f.there = false
		return
	}
	if !there || !f.there {
		if there {
			b.DeleteTable(f.table)
		}
		f.create(b, f.table.Name)
		f.there = true
		for g := range d.ports {
			if ours(g) {
				f.setPort(b, d, g)
			}
		}
		return
	}
	for id, addrs := range d.changedSets {
		if f.sets[id] != nil {
			for a := range addrs {
				f.setMember(b, d, id, a)
			}
		}
	}
	for g := range d.changedPorts {
		if ours(g) {
			f.setPort(b, d, g)
		}
	}
	f.prune(b)
}

func (f *family) callers(id string) nfnl.Set {
	return nfnl.Set{
		Name: prefixSet + id, KeyType: f.addrType, KeyLen: f.addrLen, UserData: nfnl.SetUserData(nfnl.NetworkOrder, "", nfnl.NoOrder, ""),
	}
}

func (f *family) portMap() nfnl.Set {
	s := f.counters(mapPorts)
	s.ValueType, s.Counter = nfnl.VerdictType, false
	return s
}

// counters of guarded ports.
func (f *family) counters(name string) nfnl.Set {
	return nfnl.Set{
		Name: name, KeyType: nfnl.TypeOf(f.addrType, nfnl.TypeProto, nfnl.TypePort), KeyLen: f.addrLen + 8, Counter: true,
		UserData: nfnl.SetUserData(nfnl.NoOrder, "", nfnl.NoOrder, ""),
	}
}

// destination loads the key of a guarded port into register 0.
func (f *family) destination(r *nfnl.Rule) *nfnl.Rule {
	return r.Network(f.daddr, f.addrLen, 0).Meta(unix.NFT_META_L4PROTO, f.words).Transport(2, 2, f.words+1)
}

// keyOf a guarded port.
func keyOf(g guarded) string {
	return string(g.addr.AsSlice()) + string([]byte{protocolNumber(g.protocol), 0, 0, 0, byte(g.port >> 8), byte(g.port), 0, 0})
}

// create the table with nothing guarded.
func (f *family) create(b *nfnl.Batch, name string) {
	f.sets, f.ports = map[string]map[netip.Addr]struct{}{}, map[guarded]string{}
	f.users, f.uses, f.named = map[string]int{}, map[string]int{}, map[string][]string{}
	f.read = map[string]map[string]uint64{setAsked: {}, setRefused: {}}
	t := nfnl.Table{Family: f.table.Family, Name: name}
	b.AddTable(t)
	ports := f.portMap()
	b.AddSet(t, &ports)
	for name := range f.read {
		set := f.counters(name)
		b.AddSet(t, &set)
	}
	b.AddChain(t, nfnl.Chain{Name: chainRefuse})
	b.AddRule(t, chainRefuse, f.destination(&nfnl.Rule{Comment: "counts"}).In(setRefused, 0))
	b.AddRule(t, chainRefuse, (&nfnl.Rule{}).Meta(unix.NFT_META_L4PROTO, 0).Equal(0, string([]byte{unix.IPPROTO_TCP})).ResetTCP())
	b.AddRule(t, chainRefuse, (&nfnl.Rule{}).Unreachable(f.unreachable))
	for name, hook := range map[string]uint32{chainInput: unix.NF_INET_LOCAL_IN, chainForward: unix.NF_INET_FORWARD} {
		b.AddChain(t, nfnl.Chain{Name: name, Type: "filter", Hook: hook, Priority: priority})
		b.AddRule(t, name, (&nfnl.Rule{Comment: "connections that are there go on"}).Conntrack(unix.NFT_CT_STATE, 0).
			Mask(0, nfnl.Host(stateNew), nfnl.Host(0)).Equal(0, nfnl.Host(0)).Do(nfnl.Return()))
		// Those that began before the kernel followed connections are new to it.
		b.AddRule(t, name, (&nfnl.Rule{Comment: "and so do those of TCP that began earlier"}).
			Meta(unix.NFT_META_L4PROTO, 0).Equal(0, string([]byte{unix.IPPROTO_TCP})).
			Transport(tcpFlags, 1, 0).Mask(0, string([]byte{flagSYN | flagACK}), "\x00").NotEqual(0, string([]byte{flagSYN})).Do(nfnl.Return()))
		b.AddRule(t, name, (&nfnl.Rule{Comment: "this node asks how its workloads are"}).SourceType(0).Equal(0, nfnl.Host(rtnLocal)).Do(nfnl.Return()))
		b.AddRule(t, name, f.destination(&nfnl.Rule{}).In(setAsked, 0).VerdictOf(mapPorts, 0))
	}
}

// setMember brings an address of a set to what is wanted.
func (f *family) setMember(b *nfnl.Batch, d *desired, id string, a netip.Addr) {
	if a.Is4() != f.is4 {
		return
	}
	set := f.callers(id)
	_, has := f.sets[id][a]
	switch wanted := d.sets[id][a] > 0; {
	case wanted && !has:
		b.AddElem(f.table, &set, nfnl.Elem{Key: string(a.AsSlice())})
		f.sets[id][a] = struct{}{}
	case !wanted && has:
		b.DeleteElem(f.table, &set, string(a.AsSlice()))
		delete(f.sets[id], a)
	}
}

// setPort leads a port to the chain of its rules, or to none.
func (f *family) setPort(b *nfnl.Batch, d *desired, g guarded) {
	ports := f.portMap()
	key := keyOf(g)
	was, next := f.ports[g], ""
	if p, ok := d.port(g); ok {
		next = f.chain(b, d, &p)
	}
	if was == next {
		return
	}
	if was != "" {
		b.DeleteElem(f.table, &ports, key)
		f.users[was]--
		delete(f.ports, g)
	}
	if next != "" {
		b.AddElem(f.table, &ports, nfnl.Elem{Key: key, Value: nfnl.Goto(next).Value()})
		f.users[next]++
		f.ports[g] = next
	}
	if (was == "") == (next == "") {
		return
	}
	for name, read := range f.read {
		set := f.counters(name)
		if next != "" {
			b.AddElem(f.table, &set, nfnl.Elem{Key: key})
		} else {
			b.DeleteElem(f.table, &set, key)
		}
		delete(read, key)
	}
}

// count adds to each port what was counted since the last call.
func (k *kernel) count(add func(g guarded, asked, refused uint64)) error {
	for _, f := range k.families {
		if !f.there {
			continue
		}
		byKey := map[string]guarded{}
		for g := range f.ports {
			byKey[keyOf(g)] = g
		}
		for name, read := range f.read {
			err := k.conn.Counts(f.table, name, func(key []byte, packets uint64) {
				g, ok := byKey[string(key)]
				more := packets - read[string(key)]
				if !ok || packets < read[string(key)] {
					return // of a table that another process wrote
				}
				read[string(key)] = packets
				if name == setAsked {
					add(g, more, 0)
				} else {
					add(g, 0, more)
				}
			})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("read the counters of table %s: %w", TableName, err)
			}
		}
	}
	return nil
}

// chain for the rules of a port, which is made if it is the first with them.
func (f *family) chain(b *nfnl.Batch, d *desired, p *proxy.GuardedPort) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%v %v %t", p.Deny, p.Allow, p.Refuse))
	name := prefixRules + hex.EncodeToString(sum[:8])
	if _, ok := f.named[name]; ok {
		return name
	}
	named := map[string]struct{}{}
	for _, list := range [][]proxy.Callers{p.Deny, p.Allow} {
		for _, c := range list {
			if c.Set != "" {
				named[c.Set] = struct{}{}
			}
		}
	}
	f.named[name] = slices.Sorted(maps.Keys(named))
	for _, id := range f.named[name] {
		if f.uses[id]++; f.uses[id] == 1 && f.sets[id] == nil {
			f.sets[id] = map[netip.Addr]struct{}{}
			set := f.callers(id)
			b.AddSet(f.table, &set)
			for a := range d.sets[id] {
				f.setMember(b, d, id, a)
			}
		}
	}
	b.AddChain(f.table, nfnl.Chain{Name: name})
	f.rules(b, name, p.Deny, nfnl.Goto(chainRefuse))
	f.rules(b, name, p.Allow, nfnl.Return())
	if p.Refuse {
		b.AddRule(f.table, name, (&nfnl.Rule{}).Do(nfnl.Goto(chainRefuse)))
	}
	return name
}

func (f *family) rules(b *nfnl.Batch, chain string, all []proxy.Callers, then nfnl.Verdict) {
	for _, c := range all {
		rule := func() *nfnl.Rule {
			r := &nfnl.Rule{}
			if c.Set != "" {
				r.Network(f.saddr, f.addrLen, 0).In(prefixSet+c.Set, 0)
			}
			return r
		}
		if c.Ranges == nil {
			b.AddRule(f.table, chain, rule().Do(then))
		}
		for _, p := range c.Ranges {
			if p.Addr().Is4() == f.is4 {
				b.AddRule(f.table, chain, rule().SourceIn(p).Do(then))
			}
		}
	}
}

// prune removes chains that no port leads to, and sets that no chain names.
func (f *family) prune(b *nfnl.Batch) {
	for _, name := range slices.Sorted(maps.Keys(f.named)) {
		if f.users[name] > 0 {
			continue
		}
		b.FlushChain(f.table, name)
		b.DeleteChain(f.table, name)
		for _, id := range f.named[name] {
			if f.uses[id]--; f.uses[id] == 0 {
				b.DeleteSet(f.table, prefixSet+id)
				delete(f.sets, id)
				delete(f.uses, id)
			}
		}
		delete(f.named, name)
		delete(f.users, name)
	}
}

// protocolNumber as IANA has it (linux/in.h).
func protocolNumber(p proxy.Protocol) byte {
	switch p {
	case proxy.UDP:
		return unix.IPPROTO_UDP
	case proxy.SCTP:
		return unix.IPPROTO_SCTP
	}
	return unix.IPPROTO_TCP
}

// Cleanup removes what a keeper left, in the network namespace of the calling thread. Nothing there is no
// error.
func Cleanup(context.Context) error {
	conn, err := nfnl.Open(0)
	if err != nil {
		return nil //nolint:nilerr // without nf_tables there is nothing
	}
	var errs []error
	for _, f := range newFamilies() {
		if there, _, err := conn.HasTable(f.table); err != nil || !there {
			continue
		}
		var b nfnl.Batch
		b.DeleteTable(f.table)
		if err := conn.Commit(&b); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove table %s: %w", TableName, err))
		}
	}
	return errors.Join(append(errs, conn.Close())...)
}
