// Package iptables is the mode that has the Linux kernel carry traffic by
// iptables rules: kube-proxy's semantics in a layout whose cost does not grow
// with the number of services.
//
// Enter at [New]; the result is a proxy.Mode. [Check] reports whether it can work
// here, [Cleanup] removes what it left. It owns the chains and sets whose names
// begin with PROXIMA-, and the rules that lead to them; it changes nothing else
// of the system, and never chooses endpoints (package choose does).
//
// DESIGN.md has the layout, its invariants and review notes.
package iptables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// ErrClosed is what Apply returns after Close.
var ErrClosed = errors.New("iptables mode is closed")

// Mode is the iptables proxy.Mode, and a proxy.Counter.
type Mode struct {
	opts    Options
	log     *slog.Logger
	variant Variant
	kernel  kernel
	flows   flowTable
	metrics *metrics

	// life ends with Close; it bounds the watch.
	life context.Context
	kill context.CancelFunc
	done sync.WaitGroup

	// mu is held while the kernel is programmed.
	mu       sync.Mutex
	closed   bool
	started  bool // Apply succeeded once
	rulesets []*ruleset
	ports    map[proxy.PortName]*proxy.PortState
	uneven   map[proxy.PortName]struct{} // ports whose last change failed in part
	prune    conntrack.Keep              // flows to look at after the next success
	watch    watch

	counters counters
}

// flowTable is a *conntrack.Table, or a test's.
type flowTable interface {
	Prune(conntrack.Keep) (int, error)
	Close() error
}

var (
	_ proxy.Mode     = (*Mode)(nil)
	_ proxy.Counter  = (*Mode)(nil)
	_ proxy.Isolator = (*Mode)(nil)
)

// New makes a mode that has not touched the kernel yet.
func New(opts Options) (*Mode, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	variant, k, err := open(context.Background(), opts)
	if err != nil {
		return nil, fmt.Errorf("iptables mode: %w", err)
	}
	var flows *conntrack.Table
	if err := opts.Inside(func() (err error) { flows, err = conntrack.Open(0); return err }); err != nil {
		return nil, errors.Join(fmt.Errorf("iptables mode: %w", err), k.close())
	}
	return start(opts, variant, k, flows)
}

// open the kernel by the variant that is asked for.
func open(ctx context.Context, opts Options) (Variant, kernel, error) {
	if opts.Variant != Auto {
		k, err := openSystem(opts.Variant, opts.Inside)
		return opts.Variant, k, err
	}
	order := []Variant{NFT, Legacy}
	if systemVariant() == Legacy {
		slices.Reverse(order)
	}
	var first kernel
	var variant Variant
	var errs []error
	for _, v := range order {
		k, err := openSystem(v, opts.Inside)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		ours, err := present(ctx, k)
		if err == nil && ours || first == nil {
			if first != nil {
				_ = first.close()
			}
			first, variant = k, v
		} else {
			_ = k.close()
		}
		if ours {
			break
		}
	}
	if first == nil {
		return Auto, nil, errors.Join(errs...)
	}
	return variant, first, nil
}

// present reports whether there are chains of ours already.
func present(ctx context.Context, k kernel) (bool, error) {
	for _, f := range families {
		if there, err := k.holds(ctx, f, tableFilter); err != nil || !there {
			continue
		}
		saved, err := k.save(ctx, f, tableFilter, false)
		if err != nil {
			return false, err
		}
		if len(parse(saved).chains) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// start a mode on a kernel.
func start(opts Options, variant Variant, k kernel, flows flowTable) (*Mode, error) {
	m := &Mode{
		opts: opts, log: opts.Logger.With("mode", "iptables", "variant", string(variant)), variant: variant,
		kernel: k, flows: flows, ports: map[proxy.PortName]*proxy.PortState{},
		uneven: map[proxy.PortName]struct{}{}, prune: conntrack.Keep{},
	}
	m.life, m.kill = context.WithCancel(context.Background())
	for _, f := range families {
		if hasFamily(f) {
			m.rulesets = append(m.rulesets, newRuleset(newConfig(opts, f), k))
		}
	}
	m.counters.init()
	if opts.Registerer != nil {
		m.metrics = newMetrics(m)
		if err := opts.Registerer.Register(m.metrics); err != nil {
			m.kill()
			return nil, errors.Join(fmt.Errorf("registering metrics of the iptables mode: %w", err), k.close(), flows.Close())
		}
	}
	return m, nil
}

// Name implements proxy.Mode.
func (m *Mode) Name() string { return "iptables" }

// Variant reports which one is in use.
func (m *Mode) Variant() Variant { return m.variant }

// Apply implements proxy.Mode. Each family's change is one transaction of the
// kernel, so every packet meets the state before or the one after. It blocks
// until that is done, for as long as other programs hold the tables' lock, and
// ends UDP flows that are at the wrong endpoint then. The first call also reads
// what an earlier process left and removes what is not part of the state, without
// disturbing the rest.
func (m *Mode) Apply(ctx context.Context, changes []proxy.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	states := make(map[proxy.PortName]*proxy.PortState, len(changes))
	for _, c := range changes { // a port named twice is in the state named last
		states[c.Name] = c.State
	}
	maps.DeleteFunc(states, func(name proxy.PortName, s *proxy.PortState) bool {
		_, uneven := m.uneven[name]
		return !uneven && s.Equal(m.ports[name])
	})
	if !m.started {
		m.readAll()
	}
	failed := map[proxy.PortName]error{}
	for _, r := range m.rulesets {
		maps.Copy(failed, r.update(states))
	}
	m.remember(states, failed)
	if err := m.flush(ctx); err != nil {
		return err
	}
	if len(failed) > 0 {
		return &proxy.PortError{Failed: failed}
	}
	return nil
}

// remember what the rules are for. A port that failed keeps its old state, and
// its next change counts as one whatever it is.
func (m *Mode) remember(states map[proxy.PortName]*proxy.PortState, failed map[proxy.PortName]error) {
	clear(m.uneven)
	for name := range failed {
		m.uneven[name] = struct{}{}
		delete(states, name)
	}
	for name := range states {
		m.pruneOld(m.ports[name])
	}
	for name, s := range states {
		if s == nil {
			delete(m.ports, name)
			m.counters.forget(portTag(name))
			continue
		}
		m.ports[name] = s
		m.counters.know(portTag(name), name)
		m.pruneNew(s)
	}
}

// readAll learns which sets exist, as the first change will ask for some. An
// error comes again, and is returned, when the tables are read.
func (m *Mode) readAll() {
	for _, r := range m.rulesets {
		if err := r.readSets(); err != nil {
			m.log.Debug("reading sets", "error", err)
		}
	}
}

// flushFamilies brings both families to the desired state: at once, or for
// iptables-nft in turn. There a command whose batch was made before another's was
// taken has to make it again, so both at once is no faster, only more work.
func (m *Mode) flushFamilies(ctx context.Context) []error {
	errs := make([]error, len(m.rulesets))
	var wg sync.WaitGroup
	for i, r := range m.rulesets {
		wg.Go(func() {
			begin := time.Now()
			changed, err := r.flush(ctx)
			if changed || err != nil {
				m.metrics.restored(r.config.family, time.Since(begin), err)
			}
			m.report(r)
			errs[i] = err
		})
		if m.variant == NFT {
			wg.Wait()
		}
	}
	wg.Wait()
	return errs
}

// report says that the way to our rules was blocked by another program.
func (m *Mode) report(r *ruleset) {
	for h, by := range r.unblocked {
		m.log.Warn("a rule of another program decided before ours in the nat table, so that Services did not answer; ours is first now",
			"family", r.config.family.String(), "chain", h.chain, "rule", by,
			"hint", "have that program append its rules, or leave out those that accept in the nat table: each time that it puts one first, Services stop for up to a second")
	}
	r.unblocked = nil
}

// flush brings the kernel to the desired state.
func (m *Mode) flush(ctx context.Context) error {
	before := m.watch.readStamps(m)
	errs := m.flushFamilies(ctx)
	m.watch.record(m, before)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, r := range m.rulesets {
		for _, frontend := range r.orphans {
			m.prune.Add(frontend) // an empty list, if no port has it now
		}
		r.orphans = nil
	}
	if n, err := m.flows.Prune(m.prune); err != nil {
		return fmt.Errorf("rules are in place, but not all old flows ended: %w", err)
	} else if n > 0 {
		m.log.Debug("ended flows to gone endpoints", "flows", n)
	}
	clear(m.prune)
	if !m.started {
		m.started = true
		for _, r := range m.rulesets {
			m.counters.begin(r.found)
			r.found = nil
		}
		m.wipeOthers(ctx)
		m.done.Go(m.watchLoop)
	}
	return nil
}

// wipeOthers removes what a predecessor of the other variant left.
func (m *Mode) wipeOthers(ctx context.Context) {
	other := Legacy
	if m.variant == Legacy {
		other = NFT
	}
	if _, real := m.flows.(*conntrack.Table); !real {
		return // not this machine's kernel
	}
	k, err := openSystem(other, m.opts.Inside)
	if err != nil {
		return // not installed, so nothing of it is here
	}
	defer func() { _ = k.close() }()
	for _, r := range m.rulesets {
		if err := wipe(ctx, k, r.config.family); err != nil {
			m.log.Warn("removing rules of the other variant of iptables", "other", string(other), "error", err)
		}
	}
}

// pruneOld notes that UDP flows of a former state have to end.
func (m *Mode) pruneOld(s *proxy.PortState) {
	for frontend := range frontendsOf(s) {
		m.prune[frontend] = nil
	}
}

// pruneNew notes at which endpoints UDP flows may stay.
func (m *Mode) pruneNew(s *proxy.PortState) {
	for frontend, a := range frontendsOf(s) {
		m.prune[frontend] = nil
		c := s.For(a)
		for _, list := range [][]proxy.Target{c.Cluster, c.Local} {
			for _, t := range list {
				m.prune.Add(frontend, netip.AddrPortFrom(t.Addr.Addr().Unmap(), t.Addr.Port()))
			}
		}
		for _, held := range c.Held {
			m.prune.Add(frontend, held)
		}
	}
}

// frontendsOf a UDP service port, each with an address of its family.
func frontendsOf(s *proxy.PortState) map[conntrack.Frontend]netip.Addr {
	out := map[conntrack.Frontend]netip.Addr{}
	if s == nil || s.Port.Protocol != proxy.UDP {
		return out
	}
	for _, addrs := range [][]netip.Addr{s.Service.ClusterIPs, s.Service.ExternalIPs, s.Service.LoadBalancerIPs} {
		for _, a := range addrs {
			a = a.Unmap()
			out[conntrack.Frontend{Protocol: s.Port.Protocol, Addr: netip.AddrPortFrom(a, s.Port.Port)}] = a
			if s.Port.NodePort != 0 {
				out[conntrack.Frontend{Protocol: s.Port.Protocol, Addr: netip.AddrPortFrom(conntrack.Unspecified(a), s.Port.NodePort)}] = a
			}
		}
	}
	return out
}

// Close implements proxy.Mode: the rules stay in the kernel and go on carrying
// traffic. It is idempotent.
func (m *Mode) Close(context.Context) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	m.mu.Unlock()
	m.kill()
	m.done.Wait()
	if m.metrics != nil {
		m.opts.Registerer.Unregister(m.metrics)
	}
	return errors.Join(m.kernel.close(), m.flows.Close())
}

// Dump is the desired state of all tables, for people: what iptables-restore
// takes, with the owners of the chains as comments.
func (m *Mode) Dump() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	for _, r := range m.rulesets {
		r.dump(&b)
	}
	return b.String()
}

// RulesOf a service port are the rules of the desired state that lead to it, and
// then those that are its own, as iptables-save prints them; none if it has none.
func (m *Mode) RulesOf(name proxy.PortName) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var to, own []string
	for _, r := range m.rulesets {
		t, o := r.rulesOf(name)
		to, own = append(to, t...), append(own, o...)
	}
	return append(to, own...)
}

// SetRanges replaces the ranges of cluster addresses, which an agent may
// learn late. It is whole or, after an error, finished by the next Apply.
func (m *Mode) SetRanges(cidrs []netip.Prefix) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	m.opts.ServiceCIDRs = cidrs
	for _, r := range m.rulesets {
		r.config.services = ofFamily(cidrs, r.config.family)
		for chain, text := range r.config.nat().chains {
			r.nat.put(chain, &text)
		}
		// Whether a port marks by itself depends on the ranges. No set is new, so
		// nothing can fail here.
		r.update(m.ports)
	}
	if !m.started {
		return nil // with the first Apply
	}
	return m.flush(m.life)
}
