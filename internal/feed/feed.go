package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/feed/offload"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Defaults of Config.
const (
	DefaultRetention = 1 << 30

	// syncEvery is how long changes may be in the store's history alone.
	syncEvery = time.Second
	// tendEvery is the interval at which old segments are removed and copies are made again.
	tendEvery = 10 * time.Second
	// holdAtMost is how long the store's compaction waits for changes that cannot be written.
	holdAtMost = time.Hour
	// progressEvery is how often, without changes, the log notes how far it is.
	progressEvery = 30 * time.Second

	// asidePrefix is that of the names of directories in roots, for segments of another store.
	asidePrefix = "other-"
)

// Config of a Feed. Store and Roots are required.
type Config struct {
	// Store whose changes are kept. It is the caller's, who closes it after Run has ended.
	Store store.Store
	// Prefix of the keys whose changes are kept, and Skip, which leaves out some of them; nil: none.
	Prefix string
	Skip   func(key string) bool
	// Actors tells who made a change; nil: it is not known.
	Actors *Actors
	// ResourceOf a key, for metrics; its values must be few. Nil: changes are not counted.
	ResourceOf func(key string) string
	// Roots and Copies as in seglog.Options.
	Roots  []string
	Copies int
	// Retention is how many bytes of segments are kept, counted once for all copies; 0: DefaultRetention. Segments
	// whose changes are all older than MaxAge are removed, too; 0: no bound.
	Retention int64
	MaxAge    time.Duration
	// Offload takes sealed segments; nil: there is none. Those that it has leave the roots when they are older than
	// OffloadAfter; it forgets those older than OffloadRetention, 0: none.
	Offload          *offload.Offloader
	OffloadAfter     time.Duration
	OffloadRetention time.Duration
	Logger           *slog.Logger          // nil: discard
	Metrics          prometheus.Registerer // nil: none

	segmentBytes int64 // tests
	disk         seglog.Disk
	reserve      uint64
}

// Feed is the log of a store's changes. Make it with Open. Safe for concurrent use.
type Feed struct {
	cfg Config
	log *slog.Logger
	// Log has the changes.
	Log *seglog.Log

	mu sync.Mutex
	// problem is why changes cannot be written, since when; nil: they can.
	problem error
	since   time.Time
	holds   map[string]seglog.Position

	asked   chan struct{}   // to note how far the log is
	sealing chan chan error // to seal the open segment

	offloadTurn sync.Mutex // held while segments are offloaded
	offloaded   offloading // guarded by mu

	changes *prometheus.CounterVec
}

// Open opens the log, and blocks while its files are read. What it has of a store that is not this one is put aside.
func Open(ctx context.Context, cfg Config) (*Feed, error) {
	cfg.Retention = cmp.Or(cfg.Retention, DefaultRetention)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Feed{
		cfg: cfg, log: cfg.Logger, holds: map[string]seglog.Position{}, asked: make(chan struct{}, 1), sealing: make(chan chan error), changes: newChanges(),
	}
	now, err := cfg.Store.Revision(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the store's revision: %w", err)
	}
	var tier seglog.Tier
	if cfg.Offload != nil {
		tier = cfg.Offload
	}
	for aside := false; ; aside = true {
		f.Log, err = seglog.Open(seglog.Options{
			Roots: cfg.Roots, Copies: cfg.Copies, Epoch: cfg.Store.Epoch(), Logger: cfg.Logger, Tier: tier,
			SegmentBytes: cmp.Or(cfg.segmentBytes, min(seglog.DefaultSegmentBytes, cfg.Retention/8)), Disk: cfg.disk, Reserve: cfg.reserve,
		})
		if err != nil {
			return nil, err
		}
		_, end := f.Log.End()
		if end <= seglog.Position(now) {
			break
		}
		if aside {
			return nil, errors.Join(fmt.Errorf("what was offloaded of the change feed goes up to position %d, and the store is at %d: "+
				"the store has lost changes; start with another --feed-offload", end, now), f.Log.Close())
		}
		if err := errors.Join(f.Log.Close(), f.putAside(end)); err != nil {
			return nil, err
		}
	}
	if cfg.Metrics != nil {
		if err := errors.Join(cfg.Metrics.Register(newCollector(f)), cfg.Metrics.Register(f.changes)); err != nil {
			return nil, errors.Join(err, f.Log.Close())
		}
	}
	return f, nil
}

// putAside what the roots have: its positions are above all of the store, so it is of another one.
func (f *Feed) putAside(end seglog.Position) error {
	for _, root := range f.cfg.Roots {
		to := filepath.Join(root, fmt.Sprintf("%s%d", asidePrefix, time.Now().Unix()))
		names, err := filepath.Glob(filepath.Join(root, "feed-*.seg"))
		if err != nil || len(names) == 0 {
			continue
		}
		if err := os.MkdirAll(to, 0o700); err != nil {
			return err
		}
		for _, name := range names {
			if err := os.Rename(name, filepath.Join(to, filepath.Base(name))); err != nil {
				return err
			}
		}
		f.log.Warn("the change feed goes beyond the store, so it is of another one; it is put aside, and a new one begins", "end", end, "moved-to", to)
	}
	return nil
}

// Run follows the store until ctx ends, and returns nil then. It must be called once.
func (f *Feed) Run(ctx context.Context) error {
	var offloads sync.WaitGroup
	if f.cfg.Offload != nil {
		offloads.Go(func() { f.offload(ctx) })
		defer f.cfg.Offload.Close()
	}
	defer offloads.Wait()
	retry := backoff.Backoff{Policy: backoff.Policy{First: 50 * time.Millisecond, Last: 5 * time.Second}}
	for ctx.Err() == nil {
		before, _ := f.Log.End()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		if after, _ := f.Log.End(); after > before {
			retry.Reset()
		}
		f.report(err)
		backoff.Sleep(ctx, retry.Next())
	}
	if err := f.Log.Close(); err != nil {
		f.log.Warn("the change feed did not close cleanly; what is missing is read from the store's history again", "error", err)
	}
	return nil
}

// follow the store from the end of the log on.
func (f *Feed) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, after := f.Log.End()
	if compacted := f.cfg.Store.Compacted(); after < seglog.Position(compacted) {
		if _, empty := f.Log.First(); !empty {
			f.log.Warn("the change feed has a gap: the store forgot changes before they were written to it", "after", after, "to", compacted)
		}
		if err := f.Log.Skip(seglog.Position(compacted)); err != nil {
			return err
		}
		after = seglog.Position(compacted)
	}
	w, err := f.cfg.Store.Watch(ctx, f.cfg.Prefix, store.Revision(after))
	if err != nil {
		return err
	}
	defer w.Close()
	return f.pump(ctx, w)
}

// pump writes what a watcher delivers.
func (f *Feed) pump(ctx context.Context, w store.Watcher) error {
	sync := time.NewTimer(0)
	defer sync.Stop()
	dirty := true // sync is running
	tend := time.NewTicker(tendEvery)
	defer tend.Stop()
	progress := time.NewTicker(progressEvery)
	defer progress.Stop()
	marked := false
	for {
		select {
		case b, ok := <-w.Batches():
			if !ok {
				return cmp.Or(w.Err(), ctx.Err())
			}
			entries := f.entries(b)
			if len(entries) == 0 && !marked {
				continue // noted with the next change, or from time to time
			}
			if err := f.Log.Append(entries, seglog.Position(b.Revision)); err != nil {
				return err
			}
			f.count(entries)
			f.report(nil)
			if marked = false; !dirty {
				dirty = true
				sync.Reset(syncEvery)
			}
		case <-sync.C:
			dirty = false
			if err := f.Log.Sync(); err != nil {
				return err
			}
		case <-f.asked:
			marked = true
			w.Progress()
		case done := <-f.sealing:
			err := f.Log.Seal()
			done <- err
			if err != nil {
				return err
			}
		case <-tend.C:
			f.tend()
			if err := f.sealAged(); err != nil {
				return err
			}
		case <-progress.C:
			marked = true
			w.Progress()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// entries are the changes of a batch that are kept.
func (f *Feed) entries(b store.Batch) []*seglog.Entry {
	now := time.Now()
	var out []*seglog.Entry
	for i := range b.Events {
		if f.cfg.Skip != nil && f.cfg.Skip(b.Events[i].Record.Key) {
			continue
		}
		out = append(out, f.entry(&b.Events[i], now))
	}
	if len(out) > 0 {
		out[len(out)-1].Last = true
	}
	return out
}

func (f *Feed) entry(event *store.Event, now time.Time) *seglog.Entry {
	rec := &event.Record
	e := &seglog.Entry{Position: seglog.Position(rec.Modified), Time: now, Kind: seglog.Put, Key: rec.Key, Created: seglog.Position(rec.Created), Value: rec.Value}
	if event.Kind == store.Delete {
		e.Kind, e.Created, e.Value = seglog.Delete, e.Position, nil
	}
	if p := event.Prev; p != nil {
		e.Prev, e.PrevCreated, e.PrevValue = seglog.Position(p.Modified), seglog.Position(p.Created), p.Value
	}
	e.Actor = f.cfg.Actors.take(rec.Key, rec.Value, event.Kind == store.Delete)
	return e
}

// report a failure to write, or nil that it works.
func (f *Feed) report(err error) {
	f.mu.Lock()
	before := f.problem
	f.problem = err
	if err != nil && before == nil {
		f.since = time.Now()
	}
	f.mu.Unlock()
	switch {
	case err != nil && before == nil:
		f.log.Warn("changes are not written to the change feed; the store has them, and they are written when that works again", "error", err)
	case err == nil && before != nil:
		f.log.Info("changes are written to the change feed again")
	}
}

// tend removes old segments, and makes copies that are missing.
func (f *Feed) tend() {
	keep, quota := f.kept()
	f.Log.Trim(f.cfg.Retention, f.cfg.MaxAge.Milliseconds(), keep)
	f.Log.Trim(quota, 0, seglog.Position(1)<<62) // what subscribers still need is kept up to this size
	f.Log.Repair()
}

// kept is the position above which subscribers need all, and how many bytes are kept for them at most.
func (f *Feed) kept() (keep seglog.Position, quota int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	keep = seglog.Position(1) << 62
	for _, at := range f.holds {
		keep = min(keep, at)
	}
	return keep, 2 * f.cfg.Retention
}

// First is the position after which the feed is complete, up to its end.
func (f *Feed) First() seglog.Position {
	first, _ := f.Log.First()
	return first
}

// Hold keeps what comes after a position for a subscriber, within bounds: of twice the retention the oldest is removed all
// the same. It replaces what the name held before.
func (f *Feed) Hold(name string, after seglog.Position) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holds[name] = after
}

// Release ends a Hold.
func (f *Feed) Release(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.holds, name)
}

// Store that the feed follows.
func (f *Feed) Store() store.Store { return f.cfg.Store }

// Roots are the directories that segments are in.
func (f *Feed) Roots() []string { return slices.Clone(f.cfg.Roots) }

// Epoch of the store that positions are revisions of.
func (f *Feed) Epoch() string { return f.cfg.Store.Epoch() }

// Compactable is the revision up to which the store may forget its history: what is above is not yet on the disks of the
// log. It does not wait for a log that cannot be written for longer than an hour; the log has a gap then.
func (f *Feed) Compactable() store.Revision {
	f.mu.Lock()
	stuck := f.problem != nil && time.Since(f.since) > holdAtMost
	f.mu.Unlock()
	if stuck {
		return 1 << 62
	}
	return store.Revision(f.Log.Durable())
}

// Status of a feed.
type Status struct {
	// First is the position after which the feed is complete, Last that of its newest change, Complete how far it has
	// looked at the store, Revision where that is.
	First    seglog.Position `json:"first"`
	Last     seglog.Position `json:"last"`
	Complete seglog.Position `json:"complete"`
	Revision seglog.Position `json:"revision"`
	// Oldest is the time of the oldest change; nil: there is none.
	Oldest *time.Time `json:"oldest,omitempty"`
	// Problem is why changes are not written, since Since; empty: they are.
	Problem  string            `json:"problem,omitempty"`
	Since    *time.Time        `json:"since,omitempty"`
	Entries  int64             `json:"entries"`
	Bytes    int64             `json:"bytes"`
	Segments int               `json:"segments"`
	Roots    []seglog.RootInfo `json:"roots"`
	// Offload of segments; nil: there is none.
	Offload *OffloadStatus `json:"offload,omitempty"`
}

// Status now. It asks the store for its revision.
func (f *Feed) Status(ctx context.Context) Status {
	var s Status
	s.First, _ = f.Log.First()
	s.Last, s.Complete = f.Log.End()
	if now, err := f.cfg.Store.Revision(ctx); err == nil {
		s.Revision = seglog.Position(now)
	}
	segments := f.Log.Segments()
	s.Segments = len(segments)
	for i := range segments {
		s.Entries += segments[i].Entries
		s.Bytes += segments[i].Bytes
		if segments[i].After == s.First && segments[i].Entries > 0 {
			s.Oldest = &segments[i].Oldest
		}
	}
	s.Roots = f.Log.Roots()
	s.Offload = f.offloadStatus(segments)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.problem != nil {
		since := f.since
		s.Problem, s.Since = f.problem.Error(), &since
	}
	return s
}

// Reach waits until the feed has all changes up to a revision. Errors: that of ctx.
func (f *Feed) Reach(ctx context.Context, revision seglog.Position) error {
	for {
		changed := f.Log.Changed()
		if _, at := f.Log.End(); at >= revision {
			return nil
		}
		select {
		case f.asked <- struct{}{}:
		default:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
