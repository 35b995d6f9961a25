//go:build linux

package nftables

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// port is one service port.
type port struct {
	name   proxy.PortName
	number uint16
	failed bool // state is not in the tables, or in one of them only
	state  *proxy.PortState
	served [2]*served // by family; nil: nothing
	tally  [2]tally
}

// of is what the port has in a family's table.
func (p *port) of(family int) *served {
	if s := p.served[family]; s != nil {
		return s
	}
	return &nothing
}

// nothing is never changed.
var nothing served

// served is what a service port has in one family's table. Its slots are not kept
// in addition to what map ep should be.
type served struct {
	present bool
	proto   proxy.Protocol
	vips    []vip
	listed  [2][]netip.AddrPort       // the endpoints, each once; of UDP and affinity only
	held    []netip.AddrPort          // further ones at which flows stay; of UDP only
	ids     map[netip.AddrPort]uint16 // affinity only
	nextID  uint16
	ranges  []netip.Prefix
	hairpin []netip.Addr
	scope   proxy.Scope
}

// slots are the endpoints of the cluster list and of the local one, by slot.
type slots [2][]netip.AddrPort

// vip is one virtual address and port of it.
type vip struct {
	addr netip.Addr
	port uint16
	role role
	// classes; cluster and local are 0 where entry needs them not
	entry, cluster, local uint16
	uses                  []*class
}

// role is the kind of a virtual address. Of two services that claim the same address
// and port the lower role has it, then the lower name.
type role uint8

const (
	clusterIP role = iota
	loadBalancer
	externalIP
	nodePort
)

func (r role) String() string {
	return [...]string{"cluster IP", "load balancer", "external IP", "node port"}[r]
}

// claim is a wish for an address and port.
type claim struct {
	port *port
	vip  *vip
}

// comment names a service port in the kernel. It must be unique per port, as a
// restarted agent finds its numbers by it.
func comment(n proxy.PortName) string {
	s := n.String()
	if len(s) <= nfnl.MaxComment {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	tail := "~" + hex.EncodeToString(sum[:8])
	return s[:nfnl.MaxComment-len(tail)] + tail
}

// update makes p what state says in this family; nil: nothing.
func (f *family) update(p *port, i int, state *proxy.PortState) error {
	old := p.of(i)
	had := f.slotsOf(p, old, state)
	next, has, err := f.plan(p, old, had, state)
	if err != nil {
		return err
	}
	f.withdraw(p, old, &next, had, has)
	f.publish(p, old, &next, had, has)
	f.balance(p, &next, state)
	for _, v := range old.vips {
		for _, c := range v.uses {
			f.release(c)
		}
	}
	p.served[i] = nil
	if next.present {
		kept := next
		p.served[i] = &kept
	}
	return nil
}

// slotsOf reads the slots that p has: as they should be, or, of what an earlier
// process left for a port that state is about to make, as they are.
func (f *family) slotsOf(p *port, s *served, state *proxy.PortState) (out slots) {
	proto := s.proto
	if !s.present {
		if state == nil || !f.adopted.slots {
			return out
		}
		proto = state.Port.Protocol
	}
	prefix := mix(p.number, 0) + protoKey(proto)
	for list, base := range slotBases {
		if !s.present && list == 1 && len(f.choice(state).Local) == 0 {
			break // they are not used
		}
		for slot := base; ; slot++ {
			packed, have := f.ep.elem(prefix + nfnl.Host(slot))
			if !s.present {
				packed = have
			}
			if packed == "" {
				break
			}
			value, _ := unpack(packed)
			out[list] = append(out[list], readEndpoint(value))
		}
	}
	return out
}

func (f *family) choice(state *proxy.PortState) *proxy.Choice {
	if f.words > 1 {
		return &state.IPv6
	}
	return &state.IPv4
}

// slotBases are the numbers of the first slot of both lists.
var slotBases = [2]uint32{0, localSlots}

// plan works out what state asks for. It takes references to classes.
func (f *family) plan(p *port, old *served, had slots, state *proxy.PortState) (s served, has slots, err error) {
	if state == nil {
		return served{}, slots{}, nil
	}
	choice := f.choice(state)
	s = served{proto: state.Port.Protocol, nextID: old.nextID, scope: state.Service.Scope}
	if !f.balances(state) {
		has = slots{f.assign(had[0], choice.Cluster, state), f.assign(had[1], choice.Local, state)}
	}
	if s.vips, err = f.vips(state, choice, &s, &has); err != nil || len(s.vips) == 0 {
		return served{}, slots{}, err
	}
	s.present = true
	affinity := state.Service.AffinityTimeout > 0
	if affinity || s.proto == proxy.UDP {
		s.listed = [2][]netip.AddrPort{listed(choice.Cluster, has[0]), listed(choice.Local, has[1])}
		s.held = choice.Held
	}
	if affinity {
		f.planIDs(p.number, old, &s)
	}
	for _, list := range [][]proxy.Target{choice.Cluster, choice.Local} {
		for _, t := range list {
			if t.Local && !slices.Contains(s.hairpin, t.Addr.Addr()) {
				s.hairpin = append(s.hairpin, t.Addr.Addr())
			}
		}
	}
	return s, has, nil
}

// assign slots to a list, as the port divides its connections.
func (f *family) assign(had []netip.AddrPort, list []proxy.Target, state *proxy.PortState) []netip.AddrPort {
	switch {
	case f.hashes && state.SourceHash:
		return hashed(had, list)
	case state.Divided:
		return assign(had, list, maxSlots)
	}
	return assign(had, list, minSlots)
}

// listed are the addresses of a list; where its slots are just these, they are
// one and the same. Neither is ever changed.
func listed(list []proxy.Target, slots []netip.AddrPort) []netip.AddrPort {
	if slices.EqualFunc(list, slots, func(t proxy.Target, a netip.AddrPort) bool { return t.Addr == a }) {
		return slots
	}
	return addrs(list)
}

func addrs(list []proxy.Target) []netip.AddrPort {
	out := make([]netip.AddrPort, len(list))
	for i, t := range list {
		out[i] = t.Addr
	}
	return out
}

// planIDs gives every endpoint a number that clients are remembered by. Numbers
// of endpoints that went are used again only after all others.
func (f *family) planIDs(service uint16, old *served, s *served) {
	s.ids = map[netip.AddrPort]uint16{}
	used := map[uint16]bool{}
	for _, list := range s.listed {
		for _, a := range list {
			id, ok := old.ids[a]
			if !old.present {
				id, ok = f.adopted.ids[idKey{service, a}]
			}
			if ok && !used[id] {
				s.ids[a] = id
				used[id] = true
				s.nextID = max(s.nextID, id&^idBit+1)
			}
		}
	}
	for _, list := range s.listed {
		for _, a := range list {
			if _, ok := s.ids[a]; ok || len(used) == int(idBit) {
				continue // beyond that, clients are not remembered
			}
			for used[s.nextID|idBit] {
				s.nextID = (s.nextID + 1) &^ idBit
			}
			s.ids[a] = s.nextID | idBit
			used[s.nextID|idBit] = true
			s.nextID = (s.nextID + 1) &^ idBit
		}
	}
}

// vips lists the virtual addresses of a service port, and what each does.
func (f *family) vips(state *proxy.PortState, choice *proxy.Choice, s *served, has *slots) ([]vip, error) {
	svc := state.Service
	ours := func(a netip.Addr) bool { return a.IsValid() && a.Unmap().Is4() == (f.words == 1) }
	ranges, all := svc.SourcesOf(f.words == 1)
	restricted := !all
	var out []vip
	seen := map[netip.AddrPort]bool{}
	var errs []error
	add := func(a netip.Addr, number uint16, r role) {
		at := netip.AddrPortFrom(a.Unmap(), number)
		if !ours(a) || number == 0 || seen[at] {
			return
		}
		seen[at] = true
		v := vip{addr: a.Unmap(), port: number, role: r}
		errs = append(errs, f.route(&v, state, choice, has, restricted && r == loadBalancer))
		out = append(out, v)
	}
	asked := false
	for _, a := range svc.ClusterIPs {
		add(a, state.Port.Port, clusterIP)
		asked = asked || ours(a)
	}
	for _, a := range svc.LoadBalancerIPs {
		add(a, state.Port.Port, loadBalancer)
	}
	for _, a := range svc.ExternalIPs {
		add(a, state.Port.Port, externalIP)
	}
	if asked && state.Port.NodePort != 0 {
		for _, a := range f.nodeIPs {
			add(a, state.Port.NodePort, nodePort)
		}
	}
	if err := errors.Join(errs...); err != nil {
		for _, v := range out {
			for _, c := range v.uses {
				f.release(c)
			}
		}
		return nil, err
	}
	if slices.ContainsFunc(out, func(v vip) bool { return v.role == loadBalancer }) {
		s.ranges = ranges
	}
	return out, nil
}

// route finds the classes of a virtual address.
func (f *family) route(v *vip, state *proxy.PortState, choice *proxy.Choice, has *slots, restricted bool) (err error) {
	target := func(local bool, m marking) (number uint16) {
		list, verdict := choice.List(local)
		switch {
		case len(list) == 0 && verdict == proxy.Drop:
			return classDrop
		case len(list) == 0:
			return classRefuse
		}
		if m == markOutside {
			m = f.rules.marksClusterIP()
		}
		k := classKey{
			mark: m, local: local, slots: len(has[0]), affinitySeconds: seconds(state.Service.AffinityTimeout), hash: f.hashes && state.SourceHash,
		}
		if local {
			k.slots = len(has[1])
		}
		if f.balances(state) {
			k = classKey{mark: m, local: local, balanced: true}
		}
		c, e := f.acquire(k)
		if e != nil {
			err = e
			return classDrop
		}
		v.uses = append(v.uses, c)
		return c.number
	}
	switch svc := state.Service; {
	case v.role == clusterIP:
		v.entry = target(svc.InternalLocal, markOutside)
	case svc.ExternalLocal:
		v.cluster, v.local = target(false, markNever), target(true, markNever)
		v.entry = classExtLocal
		if restricted {
			v.entry = classRangesLocal
		}
	case restricted:
		v.cluster, v.entry = target(false, markAlways), classRanges
	default:
		v.entry = target(false, markAlways)
	}
	refuses := func(class uint16) bool { return class == 0 || class == classRefuse }
	// Every client is refused alike. With source ranges only those in them are: the
	// others are dropped first.
	if !restricted && v.cluster != 0 && refuses(v.cluster) && refuses(v.local) {
		v.entry, v.cluster, v.local = classRefuse, 0, 0
	}
	return err
}

// seconds of an affinity timeout; the chains' names have them.
func seconds(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	return int((d + time.Second - 1) / time.Second)
}

// withdraw wants gone what the service port had and next has not.
func (f *family) withdraw(p *port, old, next *served, had, has slots) {
	if !old.present {
		return
	}
	same := next.present && next.proto == old.proto
	f.eachSlot(p, old, had, func(i int, list int, s *set, key, _ string) {
		if !same || i >= len(has[list]) || (s == f.epID && next.ids == nil) {
			s.remove(key)
		}
	})
	f.eachID(p, old, func(s *set, key, _ string) { s.remove(key) })
	for i := range old.vips {
		f.unclaim(p, old.proto, &old.vips[i])
	}
	for _, v := range old.vips {
		if v.role == clusterIP {
			f.unref(f.clusterIPs, addrKey(v.addr))
		}
	}
	f.refScope(old, -1)
	for _, a := range old.hairpin {
		f.unref(f.hairpin, addrKey(a)+addrKey(a))
	}
	for _, r := range old.ranges {
		f.dropRange(r.Bits()).remove(mix(p.number, 0) + addrKey(r.Addr()))
	}
	if !next.present {
		f.demand.remove(mix(p.number, 0))
	}
}

// publish wants what next has. What is wanted already costs nothing.
func (f *family) publish(p *port, old, next *served, had, has slots) {
	if !next.present {
		return
	}
	same := old.present && next.proto == old.proto && (old.ids == nil) == (next.ids == nil)
	f.eachSlot(p, next, has, func(i int, list int, s *set, key, value string) {
		if same && i < len(had[list]) && had[list][i] == has[list][i] {
			return
		}
		s.put(key, value, "")
	})
	f.eachID(p, next, func(s *set, key, value string) { s.put(key, value, "") })
	for i := range next.vips {
		f.claim(p, next.proto, &next.vips[i])
	}
	for _, v := range next.vips {
		if v.role == clusterIP {
			f.ref(f.clusterIPs, addrKey(v.addr))
		}
	}
	f.refScope(next, +1)
	for _, a := range next.hairpin {
		f.ref(f.hairpin, addrKey(a)+addrKey(a))
	}
	for _, r := range next.ranges {
		f.addRange(r.Bits()).put(mix(p.number, 0)+addrKey(r.Addr()), "", "")
	}
	f.demand.put(mix(p.number, 0), "", comment(p.name))
}

// eachSlot yields the elements that hold slots: of map ep, and with affinity of
// ep-id.
func (f *family) eachSlot(p *port, s *served, of slots, yield func(i, list int, set *set, key, value string)) {
	proto := protoKey(s.proto)
	service := mix(p.number, 0)
	for list, base := range slotBases {
		for i, a := range of[list] {
			slot := nfnl.Host(base + uint32(i))
			yield(i, list, f.ep, service+proto+slot, endpointValue(a))
			if s.ids != nil {
				yield(i, list, f.epID, service+slot, mix(p.number, s.ids[a]))
			}
		}
	}
}

// eachID yields the elements by which a remembered client finds its endpoint.
func (f *family) eachID(p *port, s *served, yield func(set *set, key, value string)) {
	if s.ids == nil {
		return
	}
	for i, set := range []*set{f.idCluster, f.idLocal} {
		for _, a := range s.listed[i] {
			if id, ok := s.ids[a]; ok {
				yield(set, mix(p.number, id)+protoKey(s.proto), endpointValue(a))
			}
		}
	}
}

func (f *family) claim(p *port, proto proxy.Protocol, v *vip) {
	key := vipKey(v.addr, proto, v.port)
	f.claims[key] = append(f.claims[key], claim{p, v})
	if f.balancer != nil && v.role != nodePort {
		f.balancer.Address(v.addr, true)
	}
	f.settle(key)
}

func (f *family) unclaim(p *port, proto proxy.Protocol, v *vip) {
	key := vipKey(v.addr, proto, v.port)
	list := slices.DeleteFunc(f.claims[key], func(c claim) bool { return c.port == p })
	if f.balancer != nil && v.role != nodePort {
		f.balancer.Address(v.addr, false)
	}
	if len(list) == 0 {
		delete(f.claims, key)
	} else {
		f.claims[key] = list
	}
	f.settle(key)
}

// settle gives an address to the one of those who claim it that is first.
func (f *family) settle(key string) {
	list := f.claims[key]
	var entry, cluster, local uint16
	var service uint16
	if len(list) > 0 {
		c := slices.MinFunc(list, compareClaims)
		service, entry, cluster, local = c.port.number, c.vip.entry, c.vip.cluster, c.vip.local
	}
	for _, x := range []struct {
		set   *set
		class uint16
	}{{f.vipCluster, cluster}, {f.vipLocal, local}, {f.vip, entry}} {
		if x.class == 0 {
			x.set.remove(key)
		} else {
			x.set.put(key, mix(service, x.class), "")
		}
	}
}

func compareClaims(a, b claim) int {
	return cmp.Or(cmp.Compare(a.vip.role, b.vip.role), compareNames(a.port.name, b.port.name))
}

func compareNames(a, b proxy.PortName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port))
}

// conflict reports whether another service has an address of p's.
func (f *family) conflict(p *port, s *served) error {
	for _, v := range s.vips {
		list := f.claims[vipKey(v.addr, s.proto, v.port)]
		if len(list) < 2 {
			continue
		}
		if winner := slices.MinFunc(list, compareClaims); winner.port != p {
			return fmt.Errorf("%s %s is also claimed by %s as %s, which has it: change or delete one of the two",
				v.role, netip.AddrPortFrom(v.addr, v.port), winner.port.name, winner.vip.role)
		}
	}
	return nil
}
