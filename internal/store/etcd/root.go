package etcd

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/outage"
)

const (
	// progressDelay is how long an event that is on its way may take before the
	// root watch requests progress. Only writes to other keys of the cluster make
	// it wait for so long.
	progressDelay = 2 * time.Millisecond
	// progressLast is the longest pause between two requests.
	progressLast = 250 * time.Millisecond
	// stalled is how long the root watch may be behind before it is opened again.
	stalled = 10 * time.Second
)

// root is the watch on the whole prefix. It alone feeds the hub, the index and
// the expiry queue: own commits and those of other instances come in one order.
type root struct {
	store *Store
	next  int64         // etcd's revision to go on from; of the root's goroutine
	wish  chan struct{} // a caller is ahead of the hub

	mu       sync.Mutex
	waiting  []store.Watcher // for a progress marker
	markerCh chan struct{}
}

func newRoot(s *Store) *root {
	return &root{store: s, wish: make(chan struct{}, 1), markerCh: make(chan struct{}, 1)}
}

// wake does not block.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a wake-up is pending
	}
}

// run feeds the hub until ctx ends.
func (r *root) run(ctx context.Context) {
	s := r.store
	var serving sync.WaitGroup
	serving.Go(func() { r.serveProgress(ctx) })
	defer serving.Wait()
	failures := 0
	for ctx.Err() == nil {
		begin := time.Now()
		err := r.follow(ctx)
		if errors.Is(err, store.ErrCompacted) {
			err = r.skip(ctx, err)
		}
		if ctx.Err() != nil {
			break
		}
		if err == nil || time.Since(begin) > stalled {
			failures = 0
		}
		if err != nil {
			if failures++; failures == 1 {
				s.logger.Warn("the watch on etcd is lost, opening it again", "store", s.target.label, "error", explain(err))
			}
			backoff.Sleep(ctx, outage.Retry.After(failures))
		}
	}
	if s.ended.Load() != nil {
		s.hub.Close() // watchers of a history that is not ours any more
	}
}

// received is an answer of the stream.
type received struct {
	events   []*mvccpb.Event
	progress int64
	err      error
}

// follow reads one stream until it fails.
func (r *root) follow(ctx context.Context) error {
	s := r.store
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	prefix := s.target.prefix
	// One revision earlier than needed: if the first one needed is just compacted,
	// this is an error, and that one would be a part without a word.
	w, err := s.watchKeys(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), max(1, r.next-1))
	if err != nil {
		return err
	}
	var receiving sync.WaitGroup
	defer receiving.Wait()
	defer w.close()
	answers := make(chan received)
	receiving.Go(func() {
		for {
			var a received
			a.events, a.progress, a.err = w.receive()
			select {
			case answers <- a:
			case <-ctx.Done():
				return
			}
			if a.err != nil {
				return
			}
		}
	})
	return r.loop(ctx, w, answers)
}

func (r *root) loop(ctx context.Context, w *stream, answers <-chan received) error {
	s := r.store
	pause := progressDelay
	var timer <-chan time.Time // runs while the hub is behind an answer of etcd
	var since time.Time
	for {
		select {
		case a := <-answers:
			if err := r.take(ctx, a); err != nil {
				return err
			}
		case <-r.wish:
		case <-timer:
			timer = nil
			if time.Since(since) > stalled {
				return errors.New("etcd sends neither events nor progress")
			}
			if err := w.askProgress(); err != nil {
				return err
			}
			pause = min(2*pause, progressLast)
		case <-ctx.Done():
			return ctx.Err()
		}
		switch behind := r.next <= s.seen.Load(); {
		case !behind:
			timer, pause = nil, progressDelay
		case timer == nil:
			if pause == progressDelay {
				since = time.Now()
			}
			timer = time.After(pause)
		}
	}
}

// take publishes an answer of the stream.
func (r *root) take(ctx context.Context, a received) error {
	s := r.store
	if a.err != nil {
		var compacted *compactedError
		if errors.As(a.err, &compacted) {
			s.raiseCompacted(s.view.Load().end(compacted.revision))
		}
		return a.err
	}
	for _, t := range transactions(a.events) {
		if t.mod < r.next {
			continue // before the start, or repeated
		}
		if err := r.publish(ctx, t); err != nil {
			return err
		}
	}
	if a.progress >= r.next {
		r.next = a.progress + 1
		s.saw(a.progress)
		s.hub.Advance(s.view.Load().end(a.progress))
	}
	return nil
}

// publish announces one transaction.
func (r *root) publish(ctx context.Context, t transaction) error {
	s := r.store
	v := s.view.Load()
	events, err := v.decode(t, func(err error) {
		s.logger.Error("a change cannot be read; watchers do not get it", "store", s.target.label, "error", err)
	})
	if err != nil {
		return err
	}
	s.saw(t.mod)
	reload := false
	for _, e := range t.events {
		reload = r.takeMeta(e) || reload
	}
	r.next = t.mod + 1
	if reload {
		return r.reload(ctx)
	}
	if len(events) == 0 {
		s.hub.Advance(v.end(t.mod))
		return nil
	}
	for _, e := range events {
		s.index.observe(e, t.mod)
	}
	s.expiry.Observe(events)
	s.hub.Publish(store.Batch{Events: events, Revision: v.end(t.mod)})
	return nil
}

// takeMeta takes note of a change in meta/. It returns true if everything has to
// be read again, because a backup was restored.
func (r *root) takeMeta(e *mvccpb.Event) (reload bool) {
	s := r.store
	key, ok := strings.CutPrefix(string(e.Kv.Key), s.target.prefix)
	if !ok || !strings.HasPrefix(key, metaFolder) {
		return false
	}
	if e.Type == mvccpb.Event_DELETE {
		if key == epochKey || key == stateKey {
			s.end(&ReplacedError{Detail: "the key " + string(e.Kv.Key) + " was deleted", Hint: hintGone})
		}
		return false
	}
	m, err := decodeMeta(s.target.prefix, []*mvccpb.KeyValue{e.Kv})
	switch key {
	case epochKey:
		if m.epoch != s.epoch {
			s.end(s.otherEpoch(m.epoch))
			return false
		}
		s.raiseEpochMod(m.epochMod)
	case stateKey:
		v := s.view.Load()
		return v.base != m.state.Base || v.layout != newLayout(s.target.prefix, m.state.Generation)
	case compactKey:
		if err == nil || m.compactedMod != 0 {
			s.raiseCompacted(m.compacted)
		}
	}
	return false
}

// skip goes on after a time in which others compacted what this instance had not
// read: watchers that need it end with store.ErrCompacted.
func (r *root) skip(ctx context.Context, cause error) error {
	s := r.store
	s.logger.Warn("history that was not read yet is compacted; watchers that need it end", "store", s.target.label,
		"from", r.next, "error", cause)
	return r.reload(ctx)
}

// reload reads everything again.
func (r *root) reload(ctx context.Context) error {
	at, err := r.store.load(ctx)
	if err != nil {
		return err
	}
	r.next = at + 1
	r.store.hub.Skip(r.store.view.Load().end(at))
	return nil
}

// progress passes on a request for a progress marker once everything that was
// committed before it is published. Does not block.
func (r *root) progress(w store.Watcher) {
	r.mu.Lock()
	r.waiting = append(r.waiting, w)
	r.mu.Unlock()
	wake(r.markerCh)
}

func (r *root) serveProgress(ctx context.Context) {
	for {
		select {
		case <-r.markerCh:
		case <-ctx.Done():
			return
		}
		r.mu.Lock()
		waiting := r.waiting
		r.waiting = nil
		r.mu.Unlock()
		for try := 0; ctx.Err() == nil; try++ {
			if _, err := r.store.Revision(ctx); err == nil {
				break
			}
			backoff.Sleep(ctx, outage.Retry.After(try+1))
		}
		for _, w := range waiting {
			w.Progress()
		}
	}
}
