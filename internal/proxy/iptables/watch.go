package iptables

import (
	"context"
	"errors"
	"time"
)

const (
	// restFactor keeps comparisons, when others change rules all the time, to a
	// tenth of the time at most. Repairs are followed by a rest as long as they
	// took, as a second change should not wait.
	restFactor = 10
	// printMany is from how many chains on it is cheaper to look at all of them.
	printMany = 1000
)

// watch has the state of the tables after our last change. iptables-legacy has
// no notifications, so the kernel is polled; for iptables-nft a request is as
// cheap, and spares the flood of notifications that our own changes are.
type watch struct {
	// stamps of the families whose tables hold what they should since they looked
	// so. A family without one is to be compared.
	stamps map[family]stamp
	// prints, by family and table, of chains that were what they should be. A family
	// without them is compared by reading everything.
	prints   map[family]map[string]map[string]fingerprint
	verified time.Time
	rest     time.Time // no comparison before, unless the time for one has come anyway
}

// look reports how the tables look now. A sign that can't be had is missing.
func (w *watch) readStamps(m *Mode) map[family]stamp {
	out := map[family]stamp{}
	for _, r := range m.rulesets {
		if s, err := m.kernel.stamp(r.config.family); err == nil {
			out[r.config.family] = s
		}
	}
	return out
}

// changed reports whether a family was changed since its tables held
// what they should.
func (w *watch) changed(f family, now map[family]stamp) bool {
	is, stamped := now[f]
	was, known := w.stamps[f]
	return !stamped || !known || is != was
}

// settle takes over how the tables look after changes of ours; before is how they
// did when these began. If another program changed them, since they held what they
// should or between our changes, they are to be compared.
func (w *watch) record(m *Mode, before map[family]stamp) {
	if w.stamps == nil {
		w.stamps, w.prints = map[family]stamp{}, map[family]map[string]map[string]fingerprint{}
	}
	var done []transaction
	for _, r := range m.rulesets {
		done = append(done, r.done...)
	}
	after := w.readStamps(m)
	for _, r := range m.rulesets {
		f := r.config.family
		first, looked := before[f]
		last, stamped := after[f]
		alone := looked && stamped && !r.needsResync && m.kernel.follows(f, first, last, done)
		right := alone && (r.verified || !w.changed(f, before))
		delete(w.stamps, f)
		if !alone {
			delete(w.prints, f) // what was written may be another program's
		} else if err := w.keep(m, r, right, last); err != nil {
			delete(w.prints, f)
			right = false
		}
		if right {
			w.stamps[f] = last
		}
		r.done, r.verified = nil, false
	}
}

// keep takes the prints of the chains that were written; of all, if none are
// known and all is right. An error says that they are not those of the stamp.
func (w *watch) keep(m *Mode, r *ruleset, right bool, at stamp) error {
	f := r.config.family
	prints, written := w.prints[f], 0
	for _, tx := range r.done {
		written += len(tx.chains)
	}
	var err error
	switch {
	case prints != nil && written == 0:
		return nil
	case prints != nil && written < printMany:
		err = r.reprint(prints)
	case right:
		prints, err = r.fingerprints()
	default:
		delete(w.prints, f) // too much to look at one by one
		return nil
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	} else if err != nil {
		return err
	}
	if now, err := m.kernel.stamp(f); err != nil || now != at {
		return errors.Join(errors.New("the tables were changed meanwhile"), err)
	}
	w.prints[f] = prints
	return nil
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
	began := time.Now()
	before := m.watch.readStamps(m)
	var repaired []*ruleset
	verified, took := false, time.Duration(0) // for comparing alone
	for _, r := range m.rulesets {
		if !due && !m.watch.changed(r.config.family, before) {
			continue
		}
		if !due && now.Before(m.watch.rest) && !r.frameBroken(m.watch.prints[r.config.family]) {
			continue
		}
		verified = true
		begin := time.Now()
		err := m.compare(ctx, r)
		took += time.Since(begin)
		var changed bool
		if err == nil {
			changed, err = m.repair(ctx, r)
		}
		if err != nil && ctx.Err() == nil {
			m.log.Error("repairing rules", "error", err, "hint", "the next attempt follows by itself")
		}
		if changed {
			repaired = append(repaired, r)
		}
	}
	if !verified {
		return
	}
	m.watch.record(m, before)
	for _, r := range repaired {
		// The rules may have been changed once more, without a sign.
		delete(m.watch.stamps, r.config.family)
	}
	if due {
		m.watch.verified = now
	}
	end := time.Now()
	m.watch.rest = end.Add(restFactor*took + end.Sub(began) - took)
}

// repair one family; it reports whether anything had to be changed.
func (m *Mode) repair(ctx context.Context, r *ruleset) (changed bool, err error) {
	chains := len(r.nat.dirty) + len(r.filter.dirty)
	begin := time.Now()
	changed, err = r.flush(ctx)
	if changed {
		m.metrics.restored(r.config.family, time.Since(begin), err)
	}
	m.report(r)
	if err != nil || !changed {
		return changed, err
	}
	m.metrics.repaired(r.config.family)
	m.log.Warn("rules had been changed by another program, and are restored", "family", r.config.family.String(), "chains", chains)
	return true, nil
}

// compare finds out what differs: by prints if they are known, else by reading all.
func (m *Mode) compare(ctx context.Context, r *ruleset) error {
	if before := m.watch.prints[r.config.family]; before != nil && !r.needsResync {
		now, err := r.fingerprints()
		if err != nil {
			return err
		}
		if r.compare(before, now) {
			return nil
		}
	}
	err := r.read(ctx)
	r.needsResync = err != nil
	return err
}
