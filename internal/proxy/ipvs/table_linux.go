package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

// routes are the local routes by which packets to virtual addresses are for this machine.
type routes interface {
	// set makes exactly these prefixes local, and reports how many differed.
	set(want []netip.Prefix) (changed int, err error)
	close() error
}

// table is what IPVS should have and, as far as known, has. It is the Balancer of the nftables mode.
type table struct {
	scheduler string
	log       *slog.Logger
	k         Kernel
	routes    routes
	settings  func() (changed []string, err error)

	mu   sync.Mutex
	want map[Key]*wanted
	have map[Key]*had
	// dirty services may differ from what they should be.
	dirty map[Key]bool
	// released services are led to until the next After.
	released map[Key]bool
	// draining services have destinations that end when they are idle.
	draining map[Key]bool
	// unknown: have may not be what the kernel has.
	unknown bool

	ranges    []netip.Prefix
	addresses map[netip.Addr]int
	// lingering addresses have no service port any more, but connections may go on by them while services drain.
	lingering map[netip.Addr]bool
	// routed is what routes were set to last; nil: not known. moved: it may not be what is wanted now.
	routed []netip.Prefix
	moved  bool
	// repairs of what other programs changed, and failures of comparing.
	repairs, failures int
}

// wanted is a list.
type wanted struct {
	scheduler string
	name      proxy.PortName
	protocol  proxy.Protocol
	dests     map[netip.AddrPort]uint32
	local     map[netip.AddrPort]bool
}

// had is a service of the kernel with its destinations' weights.
type had struct {
	scheduler string
	protocol  proxy.Protocol // of the list that it was written for; empty: not known
	dests     map[netip.AddrPort]uint32
}

var _ nftables.Balancer = (*table)(nil)

func newTable(k Kernel, r routes, scheduler string, log *slog.Logger) *table {
	return &table{
		k: k, routes: r, scheduler: scheduler, log: log, settings: func() ([]string, error) { return nil, nil },
		want: map[Key]*wanted{}, have: map[Key]*had{}, dirty: map[Key]bool{}, released: map[Key]bool{}, draining: map[Key]bool{},
		unknown: true, addresses: map[netip.Addr]int{}, lingering: map[netip.Addr]bool{},
	}
}

// Name implements nftables.Balancer.
func (*table) Name() string { return Name }

// Adopt implements nftables.Balancer.
func (t *table) Adopt() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.settings(); err != nil {
		return err
	}
	if err := t.read(); err != nil {
		return err
	}
	for k := range t.have {
		t.released[k] = true // but for those that are wanted from now on
	}
	return nil
}

// read makes have what the kernel has.
func (t *table) read() error {
	t.unknown = true
	services, err := t.k.Services()
	if err != nil {
		return err
	}
	have := map[Key]*had{}
	for _, s := range services {
		if !nftables.IsListMark(s.Mark) {
			continue
		}
		dests, err := t.k.Destinations(s.Key)
		if errors.Is(err, unix.ESRCH) {
			continue // another program deleted it meanwhile
		}
		if err != nil {
			return err
		}
		h := &had{scheduler: s.Scheduler, dests: make(map[netip.AddrPort]uint32, len(dests))}
		if last := t.have[s.Key]; last != nil {
			h.protocol = last.protocol
		}
		for _, d := range dests {
			h.dests[d.Addr] = d.Weight
		}
		have[s.Key] = h
	}
	t.have, t.unknown = have, false
	return nil
}

// Want implements nftables.Balancer.
func (t *table) Want(l nftables.List) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := Key{l.Family, l.Mark}
	if len(l.Targets) == 0 {
		if t.want[k] != nil {
			delete(t.want, k)
			delete(t.dirty, k)
			t.released[k] = true
		}
		return
	}
	w := &wanted{
		scheduler: schedulerOf(t.scheduler, l.Targets), name: l.Name, protocol: l.Protocol,
		dests: make(map[netip.AddrPort]uint32, len(l.Targets)), local: map[netip.AddrPort]bool{},
	}
	for i, weight := range weightsOf(w.scheduler, l.Targets) {
		if weight > 0 {
			w.dests[l.Targets[i].Addr] = weight
			w.local[l.Targets[i].Addr] = l.Targets[i].Local
		}
	}
	for _, a := range l.Held {
		if _, ok := w.dests[a]; !ok {
			w.dests[a] = 0
		}
	}
	delete(t.released, k)
	t.want[k], t.dirty[k] = w, true
}

// Address implements nftables.Balancer.
func (t *table) Address(a netip.Addr, there bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.addresses[a]
	if there {
		t.addresses[a]++
		delete(t.lingering, a)
	} else if t.addresses[a]--; t.addresses[a] == 0 {
		delete(t.addresses, a)
		t.lingering[a] = true
	}
	if (before == 0 || t.addresses[a] == 0) && !t.ranged(a) {
		t.moved = true
	}
}

// setRanges replaces the ranges that are routed as a whole.
func (t *table) setRanges(ranges []netip.Prefix) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ranges, t.moved = slices.Clone(ranges), true
}

// ranged reports whether an address is routed with a range.
func (t *table) ranged(a netip.Addr) bool {
	return slices.ContainsFunc(t.ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Before implements nftables.Balancer.
func (t *table) Before() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.writeDirty()
	if err != nil { // another program may have changed something: read it, and try once more
		err = t.writeDirty()
	}
	if err != nil {
		return err
	}
	return t.route()
}

func (t *table) writeDirty() error {
	if t.unknown {
		if err := t.read(); err != nil {
			return err
		}
		for k := range t.want {
			t.dirty[k] = true
		}
	}
	for k := range t.dirty {
		if err := t.write(k); err != nil {
			t.unknown = true
			return fmt.Errorf("service port %s: %w", t.want[k].name, err)
		}
		delete(t.dirty, k)
	}
	return nil
}

func (t *table) route() error {
	if t.routed != nil && !t.moved {
		return nil
	}
	want := t.prefixes()
	if t.routed != nil && slices.Equal(want, t.routed) {
		t.moved = false
		return nil
	}
	t.routed = nil
	if _, err := t.routes.set(want); err != nil {
		return err
	}
	t.routed, t.moved = want, false
	return nil
}

// settle takes the routes of lingering addresses away, once nothing drains.
func (t *table) settle() error {
	if len(t.draining) > 0 || len(t.lingering) == 0 {
		return nil
	}
	clear(t.lingering)
	t.moved = true
	return t.route()
}

// prefixes are what has to be local: the ranges, and what is in none of them.
func (t *table) prefixes() []netip.Prefix {
	out := append([]netip.Prefix{}, t.ranges...)
	all := slices.AppendSeq(slices.Collect(maps.Keys(t.addresses)), maps.Keys(t.lingering))
	for _, a := range all {
		if !t.ranged(a) {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return slices.Compact(out)
}

// different reports whether the kernel's service is not what is wanted. Destinations that end do not count.
func (t *table) different(k Key) bool {
	w, h := t.want[k], t.have[k]
	if h == nil || h.scheduler != w.scheduler {
		return true
	}
	for a, weight := range w.dests {
		if have, ok := h.dests[a]; !ok || have != weight {
			return true
		}
	}
	for a, weight := range h.dests {
		if _, ok := w.dests[a]; !ok && weight != 0 {
			return true
		}
	}
	return false
}

// write brings a service from have to want: first what is new, so that there always is a destination.
func (t *table) write(k Key) error {
	w, h := t.want[k], t.have[k]
	if h == nil {
		if err := t.k.AddService(Service{k, w.scheduler}); err != nil {
			return fmt.Errorf("scheduler %s: %w", w.scheduler, err)
		}
		h = &had{scheduler: w.scheduler, dests: map[netip.AddrPort]uint32{}}
		t.have[k] = h
	}
	h.protocol = w.protocol
	for a, weight := range w.dests {
		have, ok := h.dests[a]
		d := Destination{Addr: a, Weight: weight}
		switch {
		case !ok:
			if err := t.k.AddDestination(k, d); err != nil {
				return err
			}
		case have == foreignWeight: // the way of forwarding is changed with the weight
			fallthrough
		case have != weight:
			if err := t.k.SetDestination(k, d); err != nil {
				return err
			}
		}
		h.dests[a] = weight
	}
	if h.scheduler != w.scheduler {
		if err := t.k.SetService(Service{k, w.scheduler}); err != nil {
			return fmt.Errorf("scheduler %s: %w", w.scheduler, err)
		}
		h.scheduler = w.scheduler
	}
	for _, a := range slices.Collect(maps.Keys(h.dests)) {
		if _, ok := w.dests[a]; ok {
			continue
		}
		if err := t.end(k, h, a, w.protocol); err != nil {
			return err
		}
	}
	return nil
}

// end lets a destination get no new connections. TCP connections go on, and the destination is deleted when it has none; others
// end with it.
func (t *table) end(k Key, h *had, a netip.AddrPort, protocol proxy.Protocol) error {
	if protocol == proxy.UDP || protocol == proxy.SCTP {
		if err := t.k.DeleteDestination(k, a); err != nil {
			return err
		}
		delete(h.dests, a)
		return nil
	}
	t.draining[k] = true
	if h.dests[a] == 0 {
		return nil
	}
	if err := t.k.SetDestination(k, Destination{Addr: a}); err != nil {
		return err
	}
	h.dests[a] = 0
	return nil
}

// After implements nftables.Balancer.
func (t *table) After() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.released {
		if err := t.release(k); err != nil {
			t.unknown = true
			return err
		}
		delete(t.released, k)
	}
	return t.settle()
}

func (t *table) release(k Key) error {
	h := t.have[k]
	if h == nil {
		return nil
	}
	for _, a := range slices.Collect(maps.Keys(h.dests)) {
		if err := t.end(k, h, a, h.protocol); err != nil {
			return err
		}
	}
	t.draining[k] = true
	return t.drain(k)
}

// drain deletes what is idle of destinations that end, and a service that nothing is left of.
func (t *table) drain(k Key) error {
	h, w := t.have[k], t.want[k]
	if h == nil {
		delete(t.draining, k)
		return nil
	}
	dests, err := t.k.Destinations(k)
	if err != nil {
		return err
	}
	left := false
	for _, d := range dests {
		if w != nil {
			if _, ok := w.dests[d.Addr]; ok {
				continue
			}
		}
		if d.Active+d.Inactive > 0 {
			left = true
			continue
		}
		if err := t.k.DeleteDestination(k, d.Addr); err != nil {
			return err
		}
		delete(h.dests, d.Addr)
	}
	if left {
		return nil
	}
	delete(t.draining, k)
	if w == nil {
		if err := t.k.DeleteService(k); err != nil {
			return err
		}
		delete(t.have, k)
	}
	return nil
}

// compare reads the kernel's state and writes what differs; it ends destinations that are idle. It returns how much another
// program had changed.
func (t *table) compare() (repaired int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer func() {
		if err != nil {
			t.failures++
		}
	}()
	if t.unknown && len(t.want) == 0 && len(t.have) == 0 {
		return 0, nil // before the first Apply
	}
	pending := len(t.dirty) > 0 || len(t.released) > 0 || t.unknown
	if err := t.read(); err != nil {
		return 0, err
	}
	for k := range t.want {
		if !t.different(k) {
			continue
		}
		if err := t.write(k); err != nil {
			t.unknown = true
			return repaired, fmt.Errorf("service port %s: %w", t.want[k].name, err)
		}
		delete(t.dirty, k)
		if !pending {
			repaired++
		}
	}
	for k := range t.have {
		if t.want[k] == nil && !t.released[k] {
			t.draining[k] = true
		}
	}
	for k := range t.draining {
		if err := t.drain(k); err != nil {
			t.unknown = true
			return repaired, err
		}
	}
	if err := t.settle(); err != nil {
		return repaired, err
	}
	if t.routed != nil {
		n, err := t.routes.set(t.routed)
		repaired += n
		if err != nil {
			return repaired, err
		}
	}
	changed, err := t.settings()
	repaired += len(changed)
	t.repairs += repaired
	return repaired, err
}

// idle is how long after a comparison that took so much of a processor the next one is: at most one part in a hundred is for
// it, unless that would leave changes alone for too long.
func idle(used time.Duration) time.Duration {
	return min(max(500*time.Millisecond, 100*used), 20*time.Second)
}

// Explain implements nftables.Balancer.
func (t *table) Explain(family proxy.Family, mark uint32) (does string, shares []nftables.Share) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := Key{family, mark}
	w := t.want[k]
	if w == nil {
		return fmt.Sprintf("has no service of mark %#x", mark), nil
	}
	does = fmt.Sprintf("service of mark %#x (%s), scheduler %s, one of %d destinations", mark, w.name, w.scheduler, len(w.dests))
	if t.have[k] == nil {
		does += ", not in the kernel yet"
	}
	if why := WithoutPlan(w.scheduler); why != "" {
		does += "; " + why
	}
	sum := 0
	for _, weight := range w.dests {
		sum += int(weight)
	}
	for a, weight := range w.dests {
		if weight > 0 {
			shares = append(shares, nftables.Share{Endpoint: a, Slots: int(weight), Of: sum, Local: w.local[a]})
		}
	}
	slices.SortFunc(shares, func(a, b nftables.Share) int { return a.Endpoint.Compare(b.Endpoint) })
	return does, shares
}

// dump compares the kernel's services with those that are wanted, one destination a line.
func (t *table) dump() (objects, missing, foreign []string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.read(); err != nil {
		return nil, nil, nil, err
	}
	line := func(k Key, scheduler string, a netip.AddrPort, weight uint32) string {
		return fmt.Sprintf("ipvs %s mark %#x %s -> %s weight %d", k.Family, k.Mark, scheduler, a, weight)
	}
	for k, h := range t.have {
		for a, weight := range h.dests {
			objects = append(objects, line(k, h.scheduler, a, weight))
		}
	}
	for k, w := range t.want {
		h := t.have[k]
		for a, weight := range w.dests {
			if h != nil && h.scheduler == w.scheduler {
				if have, ok := h.dests[a]; ok && have == weight {
					continue
				}
			}
			missing = append(missing, line(k, w.scheduler, a, weight))
		}
	}
	for k, h := range t.have {
		for a, weight := range h.dests {
			if w := t.want[k]; weight != 0 && (w == nil || w.dests[a] != weight) {
				foreign = append(foreign, line(k, h.scheduler, a, weight))
			}
		}
	}
	for _, list := range [][]string{objects, missing, foreign} {
		slices.Sort(list)
	}
	return objects, missing, foreign, nil
}
