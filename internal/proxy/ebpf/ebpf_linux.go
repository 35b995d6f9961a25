package ebpf

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

const (
	// period in which links, pins, node addresses and some addresses in the maps are looked at.
	period = time.Second
	// lookAt so many addresses of the maps in a period.
	lookAt = 512
	// graceTime in place of a grace period that the kernel does not offer (nohz_full).
	graceTime = 5 * time.Second
)

// retry of what failed: another program may go, a cgroup may come.
var retry = backoff.Policy{First: time.Second, Last: 30 * time.Second}

// Mode is the layer with the mode below it. It is a proxy.Mode, proxy.Counter, proxy.Isolator, proxy.Ranged and
// proxy.Addressed; what is not its own part it leaves to the mode below.
type Mode struct {
	opts    Options
	log     *slog.Logger
	below   proxy.Mode
	metrics *metrics
	stop    chan struct{}
	graces  chan struct{} // of size 1: there is something to give back
	done    sync.WaitGroup

	// mu guards what follows.
	mu      sync.Mutex
	started bool
	closed  bool
	model   *model
	// owed is what the maps do not have yet.
	owed    *delta
	gen     *generation // nil: connections pass
	retired []*generation
	freed   []release // of gen, to be given back after a grace period
	links   *links    // nil: not found yet
	// networks and cgroups whose sockets pass.
	networks map[uint64]struct{}
	cgroups  map[proxy.Cgroup]struct{}
	passing  error // why connections pass; nil: they are translated
	retry    backoff.Backoff
	next     time.Time
	looked   []netip.AddrPort // still to be looked at in this round
}

var (
	_ proxy.Mode      = (*Mode)(nil)
	_ proxy.Counter   = (*Mode)(nil)
	_ proxy.Isolator  = (*Mode)(nil)
	_ proxy.Ranged    = (*Mode)(nil)
	_ proxy.Addressed = (*Mode)(nil)

	_ proxy.Accountant = (*Mode)(nil)
)

// New makes a layer above a mode, which is the layer's from then on: Close closes it. It changes nothing in the
// kernel until the first Apply: what an earlier process left translates until then. It fails where no cgroup is
// given and the network namespace is not that of the host.
func New(opts Options, below proxy.Mode) (*Mode, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	m := &Mode{
		opts: opts, log: opts.Logger, below: below, stop: make(chan struct{}), graces: make(chan struct{}, 1),
		model: newModel(opts.MasqueradeAll), owed: newDelta(),
		passing: errNotYet, retry: backoff.Backoff{Policy: retry},
	}
	m.metrics = newMetrics(m)
	if opts.Registerer != nil {
		if err := opts.Registerer.Register(m.metrics); err != nil {
			return nil, fmt.Errorf("registering metrics of the ebpf mode: %w", err)
		}
	}
	m.done.Go(m.watch)
	m.done.Go(m.giveBack)
	return m, nil
}

var errNotYet = errors.New("the first state was not applied yet")

func (o *Options) complete() error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.BPFFS == "" {
		o.BPFFS = DefaultBPFFS
	}
	if o.NodePortAddresses == nil {
		o.NodePortAddresses = func() []netip.Addr { return nil }
	}
	if o.Cgroup != "" {
		return nil
	}
	host, err := OnHost()
	if err != nil {
		return fmt.Errorf("asking for the network namespace: %w", err)
	}
	if !host {
		return ErrNamespace
	}
	return nil
}

// ErrNamespace is returned by New where a cgroup has to be given.
var ErrNamespace = errors.New("this process is not in the network namespace of the host, and programs at a cgroup see sockets of all: " +
	"give the cgroup of the programs that are of this namespace (--cgroup), or use another mode")

// Check loads the programs, as New's mode would with these options, and closes them: an error says what this kernel lacks. It
// attaches nothing.
func Check(opts Options) error {
	g, err := open(sizes{leastLists, leastEntries, leastEntries, leastEntries, leastEntries, leastEntries}, constants{hostOnly: true, networks: true, peers: opts.PeerIsVIP, levels: 1<<maxLevel | 2}, nil)
	if err != nil {
		return fmt.Errorf("eBPF programs at cgroups do not load (Linux 5.10 or later, CONFIG_CGROUP_BPF): %w", err)
	}
	g.close()
	return nil
}

// Name implements proxy.Mode.
func (m *Mode) Name() string { return Name }

// Below is the mode that serves what passes.
func (m *Mode) Below() proxy.Mode { return m.below }

// Apply implements proxy.Mode. The mode below comes first: whatever passes is served as it should be. What the
// layer cannot hold passes, so its failures are none of Apply.
func (m *Mode) Apply(ctx context.Context, changes []proxy.Change) error {
	err := m.below.Apply(ctx, changes)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return err
	}
	start := time.Now()
	if !m.started {
		m.model.nodeAddresses = m.nodeAddresses()
	}
	for _, c := range changes {
		m.model.set(c.Name, c.State, m.owed)
	}
	m.started = true
	m.write()
	m.metrics.apply.Observe(time.Since(start).Seconds())
	return err
}

// write brings what is owed into the maps: into those that there are, or into the next generation.
func (m *Mode) write() {
	if m.gen != nil && m.passing == nil {
		err := m.change()
		if err == nil {
			return
		}
		if !errors.Is(err, errFull) {
			m.log.Warn("the maps of the layer are not as expected; they are made anew", "error", err)
		}
	} else if time.Now().Before(m.next) {
		return // the next generation has all of it
	}
	m.generate()
}

// generate makes the next generation, and the links run it.
func (m *Mode) generate() {
	if err := m.attach(); err != nil {
		pause := m.retry.Next()
		if m.passing == nil || m.passing.Error() != err.Error() {
			m.log.Warn("the layer translates nothing for now: connections pass, and the mode below serves them", "error", err, "below", m.below.Name())
		}
		m.metrics.failures.Inc()
		m.passing, m.next = err, time.Now().Add(pause)
		if m.links != nil {
			m.links.detach() // what runs there is of another state
		}
		m.retire()
		return
	}
	m.owed, m.passing, m.next = newDelta(), nil, time.Time{}
	m.retry.Reset()
}

func (m *Mode) attach() error {
	if m.links == nil {
		dir := m.opts.Cgroup
		if dir == "" {
			root, err := cgroup.Root()
			if err != nil {
				return err
			}
			dir = root
		}
		l, err := newLinks(dir)
		if err != nil {
			return err
		}
		if !m.opts.noPins {
			l.dir, l.unpinned = pinDir(m.opts.BPFFS)
		}
		m.links = l
		if l.unpinned != nil {
			m.log.Warn("the layer's links are not pinned: connections pass while no agent runs", "error", l.unpinned)
		}
	}
	kept, unpinned := map[string]*ebpf.Map{}, []string{}
	for _, k := range keptMaps {
		if k.peers && !m.opts.PeerIsVIP {
			m.links.unpinMap(k.name)
			continue
		}
		if known := m.links.mapOf(&k); known != nil {
			kept[k.name] = known
			defer func() { _ = known.Close() }()
			continue
		}
		unpinned = append(unpinned, k.name)
		if m.gen != nil {
			kept[k.name] = m.gen.coll.Maps[k.name]
		}
	}
	next, err := open(m.sizes(), m.constants(), kept)
	if err != nil {
		return err
	}
	if err := m.fill(next); err != nil {
		next.close()
		return err
	}
	for _, name := range unpinned {
		m.links.pinMap(name, next.coll.Maps[name])
	}
	if err := m.links.set(next.programs()); err != nil {
		next.close()
		return err
	}
	m.retire()
	m.gen, m.looked = next, nil
	m.metrics.generations.Inc()
	return nil
}

// retire the generation: no link runs it any more. What it counted is added to the sums once no program that
// began before runs.
func (m *Mode) retire() {
	if m.gen != nil {
		m.retired = append(m.retired, m.gen)
		m.gen, m.freed = nil, nil
		m.wakeGraces()
	}
}

// sizes of the next generation.
func (m *Mode) sizes() sizes {
	var lists, slots4, slots6, members int
	for _, p := range m.model.ports {
		lists += len(p.lists)
		for k, l := range p.lists {
			if k.family == proxy.IPv4 {
				slots4 += len(l.targets)
			} else {
				slots6 += len(l.targets)
			}
			if l.sticky > 0 {
				members += len(l.targets)
			}
		}
	}
	vip4, vip6 := 0, 0
	for at := range m.model.claims {
		if at.Addr().Is4() {
			vip4++
		} else {
			vip6++
		}
	}
	return sizes{
		lists: room(lists, leastLists), vip4: room(vip4, leastEntries), vip6: room(vip6, leastEntries),
		slots4: room(slots4, leastEntries), slots6: room(slots6, leastEntries), members: room(members, leastEntries),
	}
}

// fill a generation with all that is wanted.
func (m *Mode) fill(g *generation) error {
	if err := g.exempt(nil, m.exempted()); err != nil {
		return fmt.Errorf("exemptions: %w", err)
	}
	for _, p := range m.model.ports {
		for k, l := range p.lists {
			if _, err := g.put(k, l, p.tally); err != nil {
				return err
			}
		}
	}
	put := make(map[netip.AddrPort]uint32, len(m.model.claims))
	for at := range m.model.claims {
		if k, why := m.model.want(at); why == Translated {
			put[at] = g.at[k].number
		}
	}
	return g.setVIPs(put, nil)
}

// change writes what is owed into the maps that the programs run on.
func (m *Mode) change() error {
	var gone []listKey
	for k := range m.owed.lists {
		l := m.model.list(k)
		if l == nil {
			gone = append(gone, k)
			continue
		}
		if err := m.put(k, l); err != nil {
			return err
		}
	}
	put, away := m.addresses()
	if err := m.gen.setVIPs(put, away); err != nil {
		return err
	}
	for _, k := range gone { // no address leads there any more
		if err := m.put(k, nil); err != nil {
			return err
		}
	}
	m.owed = newDelta()
	return nil
}

// put a list, and wait for space once.
func (m *Mode) put(k listKey, l *list) error {
	var of *tally
	if p := m.model.ports[k.port]; p != nil {
		of = p.tally
	}
	old, err := m.gen.put(k, l, of)
	if errors.Is(err, errFull) && len(m.freed) > 0 && grace() {
		m.reclaim()
		old, err = m.gen.put(k, l, of)
	}
	if err != nil {
		return err
	}
	if old.span.n > 0 || old.whole {
		m.freed = append(m.freed, old)
		m.wakeGraces()
	}
	return nil
}

// addresses of what is owed: to be written, and to be removed.
func (m *Mode) addresses() (put map[netip.AddrPort]uint32, gone []netip.AddrPort) {
	put = map[netip.AddrPort]uint32{}
	for at := range m.owed.addresses {
		k, why := m.model.want(at)
		p := m.gen.at[k]
		if why != Translated || p == nil {
			gone = append(gone, at)
			continue
		}
		if have, there := m.gen.vips[at]; !there || have != p.number {
			put[at] = p.number
		}
	}
	return put, gone
}

// reclaim what no program reads any more.
func (m *Mode) reclaim() {
	for _, r := range m.freed {
		m.gen.free(r)
	}
	m.freed = nil
}

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL of linux/membarrier.h.
const membarrierGlobal = 1

// grace waits until no program runs that began before: an RCU grace period, 5 to 75 ms. It is false where the
// kernel has none for this (nohz_full).
func grace() bool {
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
	return errno == 0
}

func (m *Mode) wakeGraces() {
	select {
	case m.graces <- struct{}{}:
	default:
	}
}

// giveBack numbers and generations, a grace period after they were let go of.
func (m *Mode) giveBack() {
	for {
		select {
		case <-m.stop:
			return
		case <-m.graces:
		}
		m.mu.Lock()
		of, n, old := m.gen, len(m.freed), len(m.retired)
		m.mu.Unlock()
		if !grace() {
			select {
			case <-m.stop:
				return
			case <-time.After(graceTime):
			}
		}
		m.mu.Lock()
		if m.closed {
			m.mu.Unlock()
			return
		}
		if of != nil && of == m.gen && n <= len(m.freed) {
			for _, r := range m.freed[:n] {
				of.free(r)
			}
			m.freed = slices.Clone(m.freed[n:])
		}
		for _, g := range m.retired[:old] {
			for number := range maps.Clone(g.owner) {
				g.fold(number)
			}
			g.close()
		}
		m.retired = slices.Clone(m.retired[old:])
		m.mu.Unlock()
	}
}

// watch looks after links, pins and maps.
func (m *Mode) watch() {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-tick.C:
			m.look()
		}
	}
}

// look at everything once, and repair it.
func (m *Mode) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.started || m.closed {
		return
	}
	if now := m.nodeAddresses(); !slices.Equal(now, m.model.nodeAddresses) {
		m.model.nodeAddresses = now
		m.model.again(func(s *proxy.PortState) bool { return s.Port.NodePort != 0 }, m.owed)
		m.write()
	}
	if m.passing != nil {
		m.write()
		return
	}
	m.lookAtLinks()
	m.lookAtMaps()
}

func (m *Mode) nodeAddresses() []netip.Addr {
	out := slices.Clone(m.opts.NodePortAddresses())
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

func (m *Mode) lookAtLinks() {
	attached, pinned := m.links.whole(m.gen.programs())
	switch {
	case !attached:
		m.metrics.repairs.Inc()
		m.log.Warn("the layer was detached from its cgroup; attaching it again", "cgroup", m.links.cgroup)
		m.links.detach()
		m.links = nil // another cgroup may have the path
		m.generate()
	case !pinned:
		m.metrics.repairs.Inc()
		m.log.Warn("pins of the layer are gone; pinning it again", "directory", m.links.dir)
		dir, err := pinDir(m.opts.BPFFS)
		m.links.dir, m.links.unpinned = dir, err
		for i := range m.links.of {
			m.links.repin(i)
		}
	}
}

// lookAtMaps looks at some addresses; all have their turn.
func (m *Mode) lookAtMaps() {
	if len(m.looked) == 0 {
		m.looked = slices.Collect(maps.Keys(m.gen.vips))
	}
	n := min(lookAt, len(m.looked))
	repairs := 0
	for _, at := range m.looked[:n] {
		want, there := m.gen.vips[at]
		if !there {
			continue
		}
		repaired, err := m.gen.look(at, want)
		if err != nil {
			m.log.Warn("an address of the layer could not be written; it passes", "address", at, "error", err)
		}
		if repaired {
			repairs++
		}
	}
	m.looked = m.looked[n:]
	if repairs > 0 {
		m.metrics.repairs.Add(float64(repairs))
		m.log.Warn("another program changed the maps of the layer; repaired", "addresses", repairs)
		m.looked = nil // from the beginning
	}
}

// Isolate implements proxy.Isolator. What is not for everybody any more passes before the mode below tells
// clients apart.
func (m *Mode) Isolate(change proxy.Isolation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	below, ok := m.below.(proxy.Isolator)
	if !ok {
		return fmt.Errorf("mode %s does not keep meshes apart", m.below.Name())
	}
	active, closed := m.model.meshes.active, m.model.meshes.closed()
	m.model.meshes.take(change)
	if active != m.model.meshes.active || closed != m.model.meshes.closed() {
		m.model.again(func(*proxy.PortState) bool { return true }, m.owed)
	}
	if m.gen != nil {
		if _, away := m.addresses(); len(away) > 0 {
			if err := m.gen.setVIPs(nil, away); err != nil {
				m.generate()
			}
		}
	}
	if err := below.Isolate(change); err != nil {
		return err
	}
	if m.started && !m.closed {
		m.write()
	}
	return nil
}

// Isolates implements proxy.Isolator.
func (m *Mode) Isolates() proxy.Isolates {
	if below, ok := m.below.(proxy.Isolator); ok {
		return below.Isolates()
	}
	return proxy.Isolates{}
}

// SetRanges implements proxy.Ranged, for the mode below.
func (m *Mode) SetRanges(ranges []netip.Prefix) error {
	if below, ok := m.below.(proxy.Ranged); ok {
		return below.SetRanges(ranges)
	}
	return nil
}

// AddressesChanged implements proxy.Addressed, for the mode below; the layer asks each second.
func (m *Mode) AddressesChanged() {
	if below, ok := m.below.(proxy.Addressed); ok {
		below.AddressesChanged()
	}
}

// ExemptNetworks replaces the network namespaces, by cookie (see netns.Cookie), whose sockets pass: of workloads
// whose connections a sidecar takes by the address that was asked for.
func (m *Mode) ExemptNetworks(cookies map[uint64]struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.exempt(cookies, m.cgroups)
}

// ExemptCgroups replaces the cgroups whose sockets pass, with those of all cgroups below them. A cgroup that is
// more than 31 levels deep is left out.
func (m *Mode) ExemptCgroups(all map[proxy.Cgroup]struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.exempt(m.networks, all)
}

func (m *Mode) exempt(networks map[uint64]struct{}, cgroups map[proxy.Cgroup]struct{}) {
	before, was := m.exempted(), m.constants()
	m.networks, m.cgroups = maps.Clone(networks), maps.Clone(cgroups)
	now := m.exempted()
	same := maps.Equal(before, now) && m.constants() == was
	if same || m.gen == nil || m.closed {
		return
	}
	// The programs have their constants; what they look at may change under them.
	if m.constants() != was || m.gen.exempt(before, now) != nil {
		m.generate()
	}
}

// exempted are the keys of map exempt.
func (m *Mode) exempted() map[uint64]struct{} {
	out := make(map[uint64]struct{}, len(m.networks)+len(m.cgroups))
	for cookie := range m.networks {
		out[cookie] = struct{}{}
	}
	for g := range m.cgroups {
		if g.Level > 0 && g.Level <= maxLevel {
			out[g.ID|exemptCgroup] = struct{}{}
		}
	}
	return out
}

func (m *Mode) constants() constants {
	c := constants{hostOnly: m.opts.HostOnly, networks: len(m.networks) > 0, peers: m.opts.PeerIsVIP}
	for g := range m.cgroups {
		if g.Level > 0 && g.Level <= maxLevel {
			c.levels |= 1 << g.Level
		}
	}
	return c
}

// Counts implements proxy.Counter: connections that were translated, and those that the mode below counted.
// None is in both.
func (m *Mode) Counts() iter.Seq2[proxy.PortName, proxy.Counts] {
	own := m.counts()
	return func(yield func(proxy.PortName, proxy.Counts) bool) {
		if below, ok := m.below.(proxy.Counter); ok {
			for name, c := range below.Counts() {
				if n, ok := own[name]; ok {
					c.Connections += n[0] + n[1]
					if c.ByFamily {
						c.IPv6.Connections += n[1]
					}
					delete(own, name)
				}
				if !yield(name, c) {
					return
				}
			}
		}
		for name, n := range own {
			c := proxy.Counts{Connections: n[0] + n[1], ByFamily: true, IPv6: proxy.FamilyCounts{Connections: n[1]}}
			if !yield(name, c) {
				return
			}
		}
	}
}

// counts of connections that were translated, IPv4 and IPv6.
func (m *Mode) counts() map[proxy.PortName][2]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	running := map[*tally][2]uint64{}
	for _, g := range append(slices.Clone(m.retired), m.gen) {
		if g == nil || m.closed {
			continue
		}
		for number, o := range g.owner {
			if n := g.count(number); n > 0 {
				sums := running[o.port]
				sums[o.family] += n
				running[o.port] = sums
			}
		}
	}
	out := make(map[proxy.PortName][2]uint64, len(m.model.ports))
	for name, p := range m.model.ports {
		r := running[p.tally]
		if sum := [2]uint64{p.tally.sums[0] + r[0], p.tally.sums[1] + r[1]}; sum != [2]uint64{} {
			out[name] = sum
		}
	}
	return out
}

// Exchanges implements proxy.Accountant: they are not known.
func (m *Mode) Exchanges() (proxy.Accounting, iter.Seq2[proxy.PortName, proxy.Exchange]) {
	return proxy.Accounting{Quality: proxy.Unavailable, Reason: notCounted}, func(func(proxy.PortName, proxy.Exchange) bool) {}
}

const notCounted = "in mode ebpf the kernel's table of connections does not have the virtual addresses that connections were for"

// Status says what the layer does.
func (m *Mode) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Status{Below: m.below.Name(), Cgroup: m.opts.Cgroup}
	if m.links != nil {
		s.Cgroup = m.links.cgroup
		if m.links.unpinned != nil {
			s.Unpinned = m.links.unpinned.Error()
		}
	}
	if m.passing != nil {
		s.Passing = m.passing.Error()
	}
	if m.gen != nil {
		s.Translated = len(m.gen.vips)
	}
	s.Passes = len(m.model.claims) - s.Translated
	return s
}

// WayOf a connection to an address from a socket of the cgroup, by what the layer has in the kernel as far as
// it knows.
func (m *Mode) WayOf(to netip.AddrPort) Way {
	m.mu.Lock()
	defer m.mu.Unlock()
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	k, why := m.model.want(to)
	if why == Translated && m.passing != nil {
		why = Why(m.passing.Error())
	}
	w := Way{Why: why, Port: k.port, Local: k.local}
	if l := m.model.list(k); l != nil && why == Translated {
		w.Endpoints, w.Sticky = l.targets, l.sticky
	}
	return w
}

// Dump lists the addresses and lists of the layer, sorted: those that are translated, and to what.
func (m *Mode) Dump() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	if m.gen == nil {
		return []string{"ebpf passes all connections: " + m.passing.Error()}
	}
	for at, n := range m.gen.vips {
		k, _ := m.model.want(at)
		out = append(out, fmt.Sprintf("ebpf vip %s: list %d (%s, %s)", at, n, k.port, policyName(k.local)))
	}
	for k, p := range m.gen.at {
		for _, t := range p.list.targets {
			out = append(out, fmt.Sprintf("ebpf list %d (%s, %s): %s weight %d", p.number, k.port, k.family, t.Addr, weight(t)))
		}
	}
	slices.Sort(out)
	return out
}

func policyName(local bool) string {
	if local {
		return "local"
	}
	return "cluster"
}

// Close implements proxy.Mode: links that are pinned stay, and translate while no agent runs. [Cleanup] removes
// them.
func (m *Mode) Close(ctx context.Context) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	m.mu.Unlock()
	close(m.stop)
	m.done.Wait()
	m.mu.Lock()
	if m.links != nil {
		m.links.close()
	}
	for _, g := range append(m.retired, m.gen) {
		if g != nil {
			g.close()
		}
	}
	m.gen, m.retired = nil, nil
	m.mu.Unlock()
	if m.opts.Registerer != nil {
		m.opts.Registerer.Unregister(m.metrics)
	}
	return m.below.Close(ctx)
}
