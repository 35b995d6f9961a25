package iptables

import (
	"context"
	"time"
)

// restFactor keeps full comparisons, when others change rules all the time, to a
// tenth of the time at most.
const restFactor = 10

// watch knows how the tables looked after our last change. iptables-legacy tells
// nobody of changes, so the kernel is asked; for iptables-nft a request is as
// cheap, and spares the flood of notifications that our own changes are.
type watch struct {
	stamps   map[family]stamp
	verified time.Time
	rest     time.Time // no comparison before, unless the time for one has come anyway
}

// look remembers how the tables look now. A sign that can't be had is one that
// differs next time.
func (w *watch) look(m *Mode) {
	w.stamps = map[family]stamp{}
	for _, r := range m.rulesets {
		if s, err := m.kernel.stamp(r.config.family); err == nil {
			w.stamps[r.config.family] = s
		}
	}
}

// changed tells whether somebody changed the tables since look.
func (w *watch) changed(m *Mode) bool {
	for _, r := range m.rulesets {
		s, err := m.kernel.stamp(r.config.family)
		if before, known := w.stamps[r.config.family]; err != nil || !known || s != before {
			return true
		}
	}
	return false
}

func (m *Mode) watchLoop() {
	if m.opts.CheckInterval < 0 {
		return
	}
	tick := time.NewTicker(m.opts.CheckInterval)
	defer tick.Stop()
	m.mu.Lock()
	m.watch.verified = time.Now()
	m.mu.Unlock()
	for {
		select {
		case <-m.life.Done():
			return
		case <-tick.C:
			if m.mu.TryLock() { // else it is being programmed, and looked at after
				m.check(m.life, time.Now())
				m.mu.Unlock()
			}
		}
	}
}

// check compares the kernel with what it should hold, if there is reason to, and
// repairs what differs.
func (m *Mode) check(ctx context.Context, now time.Time) {
	every := m.opts.verifyInterval(m.variant)
	due := every > 0 && now.Sub(m.watch.verified) >= every
	if !due && (now.Before(m.watch.rest) || !m.watch.changed(m)) {
		return
	}
	// A change after this moment is seen next time, even if it is in what is read.
	m.watch.look(m)
	for _, r := range m.rulesets {
		if err := m.verify(ctx, r); err != nil && ctx.Err() == nil {
			m.watch.stamps = nil
			m.log.Error("repairing rules", "err", err, "hint", "the next attempt follows by itself")
		}
	}
	m.watch.verified = now
	m.watch.rest = time.Now().Add(restFactor * time.Since(now))
}

// verify one family and repair it.
func (m *Mode) verify(ctx context.Context, r *ruleset) error {
	if err := r.read(ctx); err != nil {
		r.unsure = true
		return err
	}
	r.unsure = false
	chains := len(r.nat.dirty) + len(r.filter.dirty)
	begin := time.Now()
	changed, err := r.flush(ctx)
	if changed {
		m.metrics.restored(r.config.family, time.Since(begin), err)
	}
	if err != nil || !changed {
		return err
	}
	m.metrics.repaired(r.config.family)
	m.log.Warn("rules had been changed by somebody else, and are restored", "family", r.config.family.String(), "chains", chains)
	// The signs stay those from before: what somebody else changed meanwhile, in a
	// family that was restored already, is found by comparing once more.
	return nil
}
