//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Mode is the nftables proxy.Mode, and a proxy.Counter.
type Mode struct {
	opts    Options
	log     *slog.Logger
	sys     *system
	metrics *metrics
	watch   *watch

	// mu guards everything below, and the use of the sockets.
	mu     sync.Mutex
	closed bool
	k      kernel
	flows  flowTable

	// started: the first Apply has been; before it, nothing is written.
	started bool
	// prefetched: before the first Apply, the kernel's state is read, and has not changed.
	prefetched bool
	// needsResync: have may not be what the kernel has.
	needsResync bool
	pending     map[proxy.PortName]*proxy.PortState // changes not in the model yet
	families    []*family
	ports       map[proxy.PortName]*port
	byNumber    map[uint16]*port
	next        uint16
	isolation   isolation
	// cgroups: the kernel tells sockets apart by them. It does not change.
	cgroups bool
	// known and reserved are numbers of an earlier process, by comment and by
	// themselves, during the first Apply.
	known    map[string]uint16
	reserved map[uint16]bool
	// stale are UDP addresses whose flows may go to endpoints that are gone.
	stale []map[netip.AddrPort]struct{}
	batch nfnl.Batch
}

var (
	_ proxy.Mode     = (*Mode)(nil)
	_ proxy.Counter  = (*Mode)(nil)
	_ proxy.Isolator = (*Mode)(nil)
)

// New makes a mode in the network namespace of Options.Namespace. It opens its
// sockets, listens to changes and begins to read what an earlier process left,
// but writes nothing: that carries traffic until the first Apply.
func New(opts Options) (*Mode, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	sys, err := opts.open()
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*Mode, error) { return nil, errors.Join(err, sys.closeListeners(), sys.close()) }
	m := &Mode{
		opts: opts, log: opts.Logger, sys: sys, k: sys.kernel, flows: sys.flows,
		ports:    map[proxy.PortName]*port{},
		byNumber: map[uint16]*port{}, next: 1,
	}
	if opts.wrap != nil {
		m.k = opts.wrap(sys.kernel)
	}
	for _, d := range []dims{ipv4, ipv6} {
		f := newFamily(d, opts.Table, opts.writer(d), opts.AffinityClients)
		if err := f.probe(m.k); err != nil {
			return fail(err)
		}
		if f.off {
			m.log.Warn("the kernel has no nf_tables for this family; its addresses are not served", "family", f.String())
		}
		f.balancer = opts.Balancer
		f.hashes = !f.off && f.probeHash(m.k)
		m.families = append(m.families, f)
		m.stale = append(m.stale, map[netip.AddrPort]struct{}{})
	}
	m.cgroups = m.families[0].probeCgroups(m.k)
	m.metrics = newMetrics(m)
	if opts.Registerer != nil {
		if err := opts.Registerer.Register(m.metrics); err != nil {
			return fail(fmt.Errorf("registering metrics of the nftables mode: %w", err))
		}
	}
	m.watch = startWatch(m)
	m.watch.wg.Go(m.prefetch)
	return m, nil
}

// prefetch reads the kernel's state while the caller gathers the first Apply's
// changes. What cannot be read is left to that Apply.
func (m *Mode) prefetch() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed && !m.started {
		m.prefetched = m.readKernel() == nil
	}
}

func (m *Mode) readKernel() error {
	for _, f := range m.families {
		if err := f.read(m.k); err != nil {
			return err
		}
	}
	return nil
}

func (o Options) writer(d dims) writer {
	ours := func(list []netip.Prefix) (out []netip.Prefix) {
		for _, p := range list {
			if p.Addr().Is4() == (d.words == 1) {
				out = append(out, p.Masked())
			}
		}
		return out
	}
	return writer{
		services: ours(o.ServiceCIDRs), workloads: ours(o.WorkloadCIDRs), interfaces: o.WorkloadInterfaces,
		masqueradeAll: o.MasqueradeAll, mark: o.MasqueradeMark, balanced: o.Balancer != nil,
	}
}

// Name implements proxy.Mode.
func (m *Mode) Name() string { return "nftables" }

// ErrClosed is what Apply returns after Close.
var ErrClosed = errors.New("nftables mode is closed")

// Apply implements proxy.Mode. All changes are one kernel transaction, but for a
// cold start; its cost is that of the changed ports alone. The first call takes
// over what an earlier process left and writes the difference.
func (m *Mode) Apply(_ context.Context, changes []proxy.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	start := time.Now()
	if len(m.pending) == 0 {
		m.pending = make(map[proxy.PortName]*proxy.PortState, len(changes))
	}
	for _, c := range changes {
		m.pending[c.Name] = c.State
	}
	if !m.started {
		if err := m.adopt(); err != nil {
			m.metrics.failures.Inc()
			return err
		}
	}
	failed := m.accept()
	if err := m.flush(); err != nil {
		return err
	}
	m.metrics.applied(time.Since(start))
	m.endFlows()
	if len(failed) > 0 {
		return &proxy.PortError{Failed: failed}
	}
	return nil
}

// adopt reads the kernel's state and addresses before the first write.
func (m *Mode) adopt() error {
	if !m.prefetched || m.needsResync {
		if err := m.readKernel(); err != nil {
			return err
		}
	}
	m.known = map[string]uint16{}
	for _, f := range m.families {
		f.adopt(m.known)
		if err := f.resize(m.k); err != nil {
			m.log.Warn("the number of clients that affinity remembers stays as it was", "family", f.String(), "clients", f.sets[setAffinity].size, "error", err)
		}
	}
	m.reserved = map[uint16]bool{}
	for _, n := range m.known {
		m.reserved[n] = true
	}
	if err := m.readAddresses(); err != nil {
		return err
	}
	if m.opts.Balancer != nil {
		if err := m.opts.Balancer.Adopt(); err != nil {
			return err
		}
	}
	m.started, m.prefetched, m.needsResync = true, false, false
	for i, f := range m.families { // an earlier process may have missed the end of endpoints
		f.vip.each(func(key, _, _ string) { m.staleKey(i, key) })
	}
	return nil
}

// accept brings the changes into the model. In a first call, in the order of
// names, so that a table is made the same way each time.
func (m *Mode) accept() map[proxy.PortName]error {
	names := make([]proxy.PortName, 0, len(m.pending))
	for name := range m.pending {
		names = append(names, name)
	}
	slices.SortFunc(names, compareNames)
	if len(m.ports) == 0 {
		m.makeRoom(len(names))
	}
	failed := map[proxy.PortName]error{}
	for _, withState := range []bool{false, true} { // removals first: numbers and addresses get free
		for _, name := range names {
			state := m.pending[name]
			if (state != nil) != withState {
				continue
			}
			if err := m.update(name, state); err != nil {
				failed[name] = err
			}
		}
	}
	for _, name := range names {
		if p := m.ports[name]; p != nil && failed[name] == nil && m.pending[name] != nil {
			if err := m.conflict(p); err != nil {
				failed[name] = err
			}
		}
	}
	m.pending = nil // it may have been large
	m.known, m.reserved = nil, nil
	for _, f := range m.families {
		f.adopted = adopted{}
		for _, s := range f.order {
			s.trim()
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return failed
}

// makeRoom for the first service ports, so that maps need not grow.
func (m *Mode) makeRoom(n int) {
	m.ports, m.byNumber = make(map[proxy.PortName]*port, n), make(map[uint16]*port, n)
	for _, f := range m.families {
		if n := len(f.vip.had); n > 0 && len(f.claims)+len(f.shared) == 0 {
			f.claims, f.shared = make(map[string][]claim, n), make(map[sharedKey]int, n)
		}
	}
}

func (m *Mode) conflict(p *port) error {
	var errs []error
	for i, f := range m.families {
		errs = append(errs, f.conflict(p, p.of(i)))
	}
	return errors.Join(errs...)
}

// update changes the model of one service port.
func (m *Mode) update(name proxy.PortName, state *proxy.PortState) error {
	p := m.ports[name]
	switch {
	case p == nil && state == nil:
		return nil
	case p == nil:
		number, err := m.number(comment(name))
		if err != nil {
			return err
		}
		p = &port{name: name, number: number}
		m.ports[name], m.byNumber[number] = p, p
	case state != nil && !p.failed && p.state.Equal(state):
		p.state = state
		return nil
	}
	if err := m.assign(p, state); err != nil {
		return err
	}
	if state == nil {
		delete(m.ports, name)
		delete(m.byNumber, p.number)
	}
	return nil
}

// place makes the tables want what state says.
func (m *Mode) assign(p *port, state *proxy.PortState) error {
	var errs []error
	for i, f := range m.families {
		old := p.of(i)
		if err := f.update(p, i, state); err != nil {
			errs = append(errs, err)
			continue
		}
		m.noteStale(i, old, p.of(i))
	}
	err := errors.Join(errs...)
	p.state, p.failed = state, err != nil
	return err
}

// number is the number that a service port had before, or the next free one:
// one that was given back is used again as late as possible.
func (m *Mode) number(comment string) (uint16, error) {
	if n, ok := m.known[comment]; ok {
		if m.byNumber[n] == nil {
			return n, nil
		}
	}
	for range 1<<16 - 1 {
		n := m.next
		if m.next++; m.next == 0 {
			m.next = 1
		}
		if m.opts.Balancer != nil && uint32(n)&m.opts.MasqueradeMark != 0 { // see ListMark
			continue
		}
		if m.byNumber[n] == nil && !m.reserved[n] {
			return n, nil
		}
	}
	if m.opts.Balancer != nil {
		return 0, errors.New("more than 32,767 service ports: spread services over clusters, or use another mode")
	}
	return 0, errors.New("more than 65,535 service ports: spread services over clusters, or use another mode")
}

// flush writes what differs. If the kernel disagrees, its state is read and the
// difference written once more.
func (m *Mode) flush() error {
	if m.opts.Balancer == nil {
		return m.flushTables()
	}
	if err := m.opts.Balancer.Before(); err != nil {
		m.metrics.failures.Inc()
		return err
	}
	if err := m.flushTables(); err != nil {
		return err
	}
	return m.opts.Balancer.After()
}

func (m *Mode) flushTables() error {
	if m.needsResync {
		if err := m.readBack(); err != nil {
			m.metrics.failures.Inc()
			return err
		}
	}
	err := m.write()
	if err == nil || fatal(err) {
		return err
	}
	m.log.Warn("the kernel's tables are not as expected; reading them back", "error", err)
	if err2 := m.readBack(); err2 != nil {
		m.metrics.failures.Inc()
		return err2
	}
	return m.write()
}

// fatal errors are not worth a second attempt at once.
func fatal(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMFILE)
}

func (m *Mode) write() error {
	t := transaction{k: m.k, b: &m.batch, chunked: true}
	t.b.Reset()
	var todo []*family
	for _, f := range m.families {
		t.chunked = t.chunked && !f.hasTable && !f.rebuild
		if f.different() {
			todo = append(todo, f)
		}
	}
	err := func() error {
		for _, f := range todo {
			if err := f.write(&t); err != nil {
				return err
			}
		}
		return t.commit()
	}()
	m.batch.Trim()
	if err != nil {
		m.needsResync = true
		m.metrics.failures.Inc()
		return fmt.Errorf("writing nftables: %w", err)
	}
	for _, f := range todo {
		f.written()
	}
	return nil
}

// readBack clears needsResync.
func (m *Mode) readBack() error {
	m.needsResync = true
	if err := m.readKernel(); err != nil {
		return err
	}
	m.lostCounters()
	m.needsResync = false
	return nil
}

// SetRanges replaces Options.ServiceCIDRs.
func (m *Mode) SetRanges(cidrs []netip.Prefix) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	m.opts.ServiceCIDRs = slices.Clone(cidrs)
	for _, f := range m.families {
		f.rules.services = m.opts.writer(f.dims).services
		f.wantChain(nfnl.Chain{Name: chainDispatch}, f.rules.dispatch())
	}
	if !m.started {
		return nil
	}
	return m.flush()
}

// AddressesChanged implements proxy.Addressed.
func (m *Mode) AddressesChanged() { m.watch.note(false, true) }

// Close implements proxy.Mode: the kernel's state stays, so that traffic flows
// while the agent restarts. [Cleanup] removes it.
func (m *Mode) Close(context.Context) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	m.mu.Unlock()
	err := m.watch.close() // waits for a repair in progress, so without the lock
	if m.opts.Registerer != nil {
		m.opts.Registerer.Unregister(m.metrics)
	}
	return errors.Join(err, m.sys.close())
}

// Cleanup removes everything that a mode with these options wrote, also a
// process's of long ago. Nothing there is no error. Close the mode before: while it
// runs, it repairs what is removed.
func Cleanup(_ context.Context, opts Options) error {
	if err := opts.complete(); err != nil {
		return err
	}
	conn, err := nfnl.Open(opts.Namespace)
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range []dims{ipv4, ipv6} {
		t := nfnl.Table{Family: d.proto, Name: opts.Table}
		there, _, err := conn.HasTable(t)
		if err == nil && there {
			var b nfnl.Batch
			b.DeleteTable(t)
			err = conn.Commit(&b)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("removing nftables: %w", err))
		}
	}
	return errors.Join(append(errs, conn.Close())...)
}
