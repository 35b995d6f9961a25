//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
)

const (
	// calm is the least time between two repairs, so that a fight with another
	// program over the table costs little.
	calm = 50 * time.Millisecond
)

// repairRetry is when a repair that failed is tried again.
var repairRetry = backoff.Policy{First: 100 * time.Millisecond, Last: 10 * time.Second}

// watch notices what others do to our tables and to the node's addresses. Its
// worker is the only writer except Apply.
type watch struct {
	m *Mode

	mu     sync.Mutex
	verify bool
	addrs  bool
	wake   chan struct{} // of size 1
	stop   chan struct{}
	wg     sync.WaitGroup
}

func startWatch(m *Mode) *watch {
	w := &watch{m: m, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	w.wg.Go(func() { w.listen(m.sys.tables, w.table) })
	w.wg.Go(func() { w.listen(m.sys.addresses, func(nfnl.Message) bool { return w.note(false, true) }) })
	w.wg.Go(w.work)
	return w
}

// close ends the listeners and waits for the worker.
func (w *watch) close() error {
	close(w.stop)
	err := w.m.sys.closeListeners()
	w.wg.Wait()
	return err
}

// listen hands every notification to f until the listener is closed. Lost
// notifications are as if everything had changed.
func (w *watch) listen(l listener, f func(nfnl.Message) bool) {
	for {
		err := l.Receive(func(m nfnl.Message) { f(m) })
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case errors.Is(err, nfnl.ErrOverrun):
			w.m.metrics.overruns.Inc()
			w.note(true, true)
		case err != nil:
			w.m.log.Error("changes of the kernel's tables and addresses go unnoticed from now on", "error", err)
			return
		}
	}
}

// table checks whether a change by another program was to a table of ours.
func (w *watch) table(msg nfnl.Message) bool {
	t, ok := msg.Table()
	if !ok || t.Name != w.m.opts.Table || (t.Family != ipv4.proto && t.Family != ipv6.proto) {
		return false
	}
	return w.note(true, false)
}

func (w *watch) note(verify, addrs bool) bool {
	w.mu.Lock()
	w.verify, w.addrs = w.verify || verify, w.addrs || addrs
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return true
}

func (w *watch) take() (verify, addrs bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	verify, addrs = w.verify, w.addrs
	w.verify, w.addrs = false, false
	return verify, addrs
}

func (w *watch) work() {
	retry := backoff.Backoff{Policy: repairRetry}
	for {
		select {
		case <-w.stop:
			return
		case <-w.wake:
		}
		verify, addrs := w.take()
		pause := calm
		if err := w.m.repair(verify, addrs); err != nil {
			pause = retry.Next()
			w.m.log.Warn("repairing nftables failed and will be tried again", "error", err, "in", pause)
			w.note(verify, addrs)
		} else {
			retry.Reset()
		}
		select {
		case <-w.stop:
			return
		case <-time.After(pause):
		}
	}
}

// repair reads back what may have changed and writes what differs.
func (m *Mode) repair(verify, addrs bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || !m.started {
		m.prefetched = m.prefetched && !verify
		return nil // the first Apply reads everything
	}
	if addrs {
		if err := m.readAddresses(); err != nil {
			return err
		}
	}
	if verify {
		if err := m.readBack(); err != nil {
			return err
		}
		if m.different() {
			m.metrics.repairs.Inc()
			m.log.Warn("another program changed the tables of Proxima; repairing them", "table", m.opts.Table)
		}
	}
	if err := m.flush(); err != nil {
		return err
	}
	m.endFlows()
	return nil
}

func (m *Mode) different() bool {
	return slices.ContainsFunc(m.families, (*family).different)
}

// readAddresses finds the addresses of node ports and places the services that
// have one again if they changed.
func (m *Mode) readAddresses() error {
	var lists [2][]netip.Addr
	var primary []netip.Addr
	if m.opts.NodePortAddresses == nil && m.opts.PrimaryAddresses != nil {
		primary = m.opts.PrimaryAddresses()
	}
	if m.opts.NodePortAddresses == nil || len(m.opts.NodePortAddresses) > 0 {
		err := steady(func() error {
			found, err := m.sys.list()
			if err != nil {
				return err
			}
			lists = [2][]netip.Addr{}
			for _, a := range found {
				if addr, i, ok := m.nodePortAddress(a); ok && (len(primary) == 0 || slices.Contains(primary, addr)) {
					lists[i] = append(lists[i], addr)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	var errs []error
	for i, f := range m.families {
		slices.SortFunc(lists[i], netip.Addr.Compare)
		lists[i] = slices.Compact(lists[i])
		if slices.Equal(lists[i], f.nodeIPs) {
			continue
		}
		f.nodeIPs = lists[i]
		for _, p := range m.ports {
			if p.state == nil || p.state.Port.NodePort == 0 {
				continue
			}
			old := p.of(i)
			if err := f.update(p, i, p.state); err != nil {
				errs = append(errs, fmt.Errorf("service port %s: %w", p.name, err))
				continue
			}
			m.noteStale(i, old, p.of(i))
		}
	}
	return errors.Join(errs...)
}

// nodePortAddress reports whether node ports are served on an address, and its
// family.
func (m *Mode) nodePortAddress(addr netip.Addr) (_ netip.Addr, family int, ok bool) {
	if addr.Is6() {
		family = 1
	}
	if m.opts.NodePortAddresses == nil {
		return addr, family, !addr.IsLoopback() && !addr.IsLinkLocalUnicast()
	}
	return addr, family, slices.ContainsFunc(m.opts.NodePortAddresses, func(p netip.Prefix) bool { return p.Contains(addr) })
}
