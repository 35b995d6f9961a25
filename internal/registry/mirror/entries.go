package mirror

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/proxima-mesh/proxima/internal/registry"
)

const (
	// entrySettle is how long a registry may take to tell of what was written. An entry is left alone meanwhile: what
	// comes may be older.
	entrySettle = 250 * time.Millisecond
	// entryCalm ends the doubling of that time, by which mirrors that disagree come to rest.
	entryCalm = time.Minute
	// maxSettle is how often it doubles.
	maxSettle = 7
)

// entries keeps the configuration of two registries alike.
type entries struct {
	old, here EntryClient
	winner    Winner
	oneWay    bool
	hold      time.Duration
	log       *slog.Logger
	queue     workqueue.TypedRateLimitingInterface[registry.ConfigKey]
	ready     chan struct{} // closed when both are read
	now       func() time.Time
	saves     Bases         // nil: bases are in memory alone
	unsaved   chan struct{} // has a value when bases were changed

	mu                sync.Mutex
	oldSide, hereSide *entrySide
	// bases are digests of what both had when they were alike last.
	bases    map[registry.ConfigKey]string
	writes   map[registry.ConfigKey]*written
	skipped  map[registry.ConfigKey]string
	waiting  map[registry.ConfigKey]struct{}
	imported uint64
	exported uint64
	removals uint64
	conflict uint64
}

// written is when an entry was written last, and how often in a row.
type written struct {
	at    time.Time
	times int
	until time.Time
}

// entrySide is what a registry has. It is an EntrySink.
type entrySide struct {
	of     *entries
	all    map[registry.ConfigKey]*Entry
	name   string
	gone   map[registry.ConfigKey]time.Time // removed on this connection
	missed map[registry.ConfigKey]time.Time // removed before this mirror started, and when it was noticed
	ill    bool                             // so many that they stay
	listed bool
}

func newEntries(c *Config, log *slog.Logger) *entries {
	e := &entries{
		old: c.OldEntries, here: c.HereEntries, winner: c.Winner, oneWay: !c.Follow, hold: c.Hold, log: log, now: time.Now, ready: make(chan struct{}),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[registry.ConfigKey](entrySettle, 30*time.Second)),
		saves: c.Bases, unsaved: make(chan struct{}, 1), bases: map[registry.ConfigKey]string{}, writes: map[registry.ConfigKey]*written{}, skipped: map[registry.ConfigKey]string{},
		waiting: map[registry.ConfigKey]struct{}{},
	}
	if e.hold == 0 {
		e.hold = DefaultHold
	}
	e.oldSide, e.hereSide = newEntrySide(e, c.OldName), newEntrySide(e, c.HereName)
	return e
}

func newEntrySide(e *entries, name string) *entrySide {
	return &entrySide{
		of: e, name: name, all: map[registry.ConfigKey]*Entry{}, gone: map[registry.ConfigKey]time.Time{}, missed: map[registry.ConfigKey]time.Time{},
	}
}

// Listed implements EntrySink. What is missing may have been removed, or lost: it counts as lost, but for what was removed before
// this mirror started.
func (s *entrySide) Listed(all []*Entry) {
	e := s.of
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(s.all)
	clear(s.gone)
	for _, entry := range all {
		s.all[entry.Key] = entry
		delete(s.missed, entry.Key)
	}
	if first := !s.listed; first {
		s.listed = true
		if e.oldSide.listed && e.hereSide.listed {
			e.missing()
			close(e.ready)
		}
	}
	for _, side := range []*entrySide{e.oldSide, e.hereSide} {
		for key := range side.all {
			e.queue.Add(key)
		}
	}
}

// Set implements EntrySink.
func (s *entrySide) Set(entry *Entry) {
	e := s.of
	e.mu.Lock()
	defer e.mu.Unlock()
	s.all[entry.Key] = entry
	delete(s.gone, entry.Key)
	delete(s.missed, entry.Key)
	e.queue.Add(entry.Key)
}

// Removed implements EntrySink.
func (s *entrySide) Removed(key registry.ConfigKey) {
	e := s.of
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.all[key] == nil {
		return
	}
	delete(s.all, key)
	s.gone[key] = e.now()
	e.queue.Add(key)
}

// absent says why a side has no entry, and for how long that is not to be acted upon. It is called with the lock.
func (s *entrySide) absent(key registry.ConfigKey) (absence, time.Duration) {
	since, ok := s.gone[key]
	if at, before := s.missed[key]; before {
		if since, ok = at, true; s.ill {
			return fading, 0
		}
	}
	switch left := s.of.hold - s.of.now().Sub(since); {
	case !ok:
		return unknown, 0
	case left > 0:
		return fading, left
	case len(s.gone) >= collapseFrom && len(s.gone) > len(s.all):
		return fading, 0 // more than half of all: it is more likely ill
	}
	return removed, 0
}

// run until ctx ends. The error is of a client who may not read what was saved.
func (e *entries) run(ctx context.Context) error {
	if err := e.load(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	var running sync.WaitGroup
	running.Go(func() { _ = e.old.RunEntries(ctx, e.oldSide) })   // they end with ctx
	running.Go(func() { _ = e.here.RunEntries(ctx, e.hereSide) }) // as above
	for range publishers {
		running.Go(func() {
			for {
				key, ended := e.queue.Get()
				if ended {
					return
				}
				if ctx.Err() == nil {
					e.handle(ctx, key)
				}
				e.queue.Done(key)
			}
		})
	}
	var saving sync.WaitGroup
	done, stop := context.WithCancel(context.WithoutCancel(ctx))
	saving.Go(func() { e.save(done) })
	<-ctx.Done()
	e.queue.ShutDown()
	running.Wait()
	stop() // after the last change
	saving.Wait()
	return nil
}

func (e *entries) handle(ctx context.Context, key registry.ConfigKey) {
	v, p, wait := e.look(key)
	if wait > 0 {
		e.queue.AddAfter(key, wait+time.Millisecond)
	}
	err := e.act(ctx, key, &v, &p)
	if ctx.Err() != nil {
		return
	}
	e.mu.Lock()
	if refused := (*RefusedError)(nil); errors.As(err, &refused) { // until it is another one
		e.skip(key, refused.Reason)
		err = nil
	}
	_, before := e.waiting[key]
	if delete(e.waiting, key); err != nil {
		e.waiting[key] = struct{}{}
	}
	e.mu.Unlock()
	switch {
	case err == nil:
		e.queue.Forget(key)
		return
	case !before && !errors.Is(err, ErrChanged) && !errors.Is(err, ErrAway):
		e.log.Warn("an entry of the configuration is not mirrored yet; it is tried again", "entry", key.String(), "error", err)
	}
	e.queue.AddRateLimited(key)
}

// look at an entry: what is to be done, and when it is to be looked at again; 0: when it has changed.
func (e *entries) look(key registry.ConfigKey) (v verdict, p pair, again time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.oldSide.listed || !e.hereSide.listed {
		return verdict{}, pair{}, 0 // all are queued when both are
	}
	if w := e.writes[key]; w != nil {
		if left := w.until.Sub(e.now()); left > 0 {
			return verdict{}, pair{}, left
		}
	}
	var oldFor, hereFor time.Duration
	p = e.pair(key)
	p.noOld, oldFor = e.oldSide.absent(key)
	p.noHere, hereFor = e.hereSide.absent(key)
	switch {
	case p.old == nil && p.here == nil:
		e.setBase(key, "")
		for _, side := range []*entrySide{e.oldSide, e.hereSide} {
			delete(side.gone, key)
			delete(side.missed, key)
		}
	case p.old.same(p.here):
		e.setBase(key, p.old.digest())
	}
	v = p.decide()
	if v.skipped == "" {
		delete(e.skipped, key)
	} else {
		e.skip(key, v.skipped)
	}
	return v, p, max(oldFor, hereFor)
}

// skip an entry that a registry cannot have. It is called with the lock.
func (e *entries) skip(key registry.ConfigKey, reason string) {
	if e.skipped[key] != reason {
		e.log.Warn("an entry of the configuration cannot be copied", "entry", key.String(), "reason", reason)
	}
	e.skipped[key] = reason
}

func (e *entries) pair(key registry.ConfigKey) pair {
	return pair{
		old: e.oldSide.all[key], here: e.hereSide.all[key], base: e.bases[key], winner: e.winner, oneWay: e.oneWay,
		unfitOld: e.old.Unfit, unfitHere: e.here.Unfit,
	}
}

// act on a verdict.
func (e *entries) act(ctx context.Context, key registry.ConfigKey, v *verdict, p *pair) error {
	within, cancel := context.WithTimeout(ctx, publishWithin)
	defer cancel()
	var errs [2]error
	if v.here != nil || v.removeHere {
		errs[0] = e.write(within, key, e.here, e.hereSide, v.here, p.here, &e.imported)
	}
	if v.old != nil || v.removeOld {
		errs[1] = e.write(within, key, e.old, e.oldSide, v.old, p.old, &e.exported)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if v.conflict {
		e.mu.Lock()
		e.conflict++
		e.mu.Unlock()
		e.log.Warn("both registries had another entry of the configuration", "entry", key.String(), "decision", v.why)
	} else if v.why == whyChanged {
		e.log.Info("an entry of the configuration is written again", "entry", key.String(), "decision", v.why)
	}
	return nil
}

// write an entry of a side, or remove it.
func (e *entries) write(ctx context.Context, key registry.ConfigKey, to EntryClient, side *entrySide, next, before *Entry, count *uint64) error {
	var err error
	if next != nil {
		err = to.PutEntry(ctx, next, before)
	} else {
		err = to.RemoveEntry(ctx, before)
	}
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.note(key)
	delete(side.missed, key)
	if delete(side.gone, key); next == nil {
		e.removals++
		delete(side.all, key)
		e.setBase(key, "")
		e.log.Info("an entry of the configuration is removed, as it was in the other registry", "entry", key.String(), "registry", side.name)
		return nil
	}
	*count++
	side.all[key] = next
	e.setBase(key, next.digest())
	return nil
}

// note that an entry was written. It is left alone for a while, which is longer for one that is written again and
// again, and differs between mirrors.
func (e *entries) note(key registry.ConfigKey) {
	now := e.now()
	w := e.writes[key]
	if w == nil || now.Sub(w.at) > entryCalm {
		w = &written{}
		e.writes[key] = w
	}
	wait := entrySettle
	if w.times > 0 {
		wait = wait << min(w.times, maxSettle)
		wait += time.Duration(rand.Int64N(int64(wait)))
	}
	w.at, w.until = now, now.Add(wait)
	w.times++
	e.queue.AddAfter(key, wait+time.Millisecond)
	if len(e.writes) > 2*(len(e.oldSide.all)+len(e.hereSide.all)+collapseFrom) {
		for key, w := range e.writes {
			if now.Sub(w.at) > entryCalm {
				delete(e.writes, key)
			}
		}
	}
}

// status of the configuration.
func (e *entries) status(out *Status) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, entry := range e.oldSide.all {
		if entry.same(e.hereSide.all[key]) {
			out.Entries++
		}
	}
	out.EntriesImported, out.EntriesExported, out.EntriesRemoved, out.EntryConflicts = e.imported, e.exported, e.removals, e.conflict
	out.EntriesWaiting, out.EntriesSkipped = len(e.waiting), len(e.skipped)
	for _, side := range []*entrySide{e.oldSide, e.hereSide} {
		if side.ill {
			out.EntriesWaiting += len(side.missed)
		}
	}
}

// plan is what run would do.
func (e *entries) plan() []EntryStep {
	e.queue.ShutDown()
	e.mu.Lock()
	defer e.mu.Unlock()
	keys := map[registry.ConfigKey]struct{}{}
	for _, side := range []*entrySide{e.oldSide, e.hereSide} {
		for key := range side.all {
			keys[key] = struct{}{}
		}
	}
	var out []EntryStep
	for _, key := range sortedKeys(keys) {
		p := e.pair(key)
		for side, why := range map[*entrySide]*absence{e.oldSide: &p.noOld, e.hereSide: &p.noHere} {
			if _, ok := side.missed[key]; ok && side.ill {
				*why = fading
			} else if ok {
				*why = removed
			}
		}
		v := p.decide()
		step := EntryStep{Key: key, Here: v.here != nil, Old: v.old != nil, RemoveHere: v.removeHere, RemoveOld: v.removeOld, Why: v.why, Skipped: v.skipped}
		if step.Here || step.Old || step.RemoveHere || step.RemoveOld || step.Skipped != "" {
			out = append(out, step)
		}
	}
	return out
}
