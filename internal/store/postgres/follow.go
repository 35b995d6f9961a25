package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/group"
	"github.com/proxima-mesh/proxima/internal/store/outage"
)

const (
	// pollDeaf is the polling interval while no connection listens for notifications;
	// pollListening while one does, as notifications can get lost on the way, for
	// example in a pooler that does not support them.
	pollDeaf      = 500 * time.Millisecond
	pollListening = 10 * time.Second
	// listenerSilence is the time without notifications after which the listening
	// connection is probed.
	listenerSilence = 15 * time.Second
	// followTimeout bounds one poll.
	followTimeout = 10 * time.Second
)

// channel carries the revision of each commit and compaction. Its name has the
// table's object id, so that states in one database do not wake one another.
const channel = `'proxima_' || ` + stateID

// follower brings other instances' commits to this one's watchers.
type follower struct {
	wakeup chan struct{}
	// publishing orders publications: the writer's own and those of what it did
	// not write.
	publishing sync.Mutex

	mu        sync.Mutex
	listening bool
	waiting   []store.Watcher // for a progress marker
}

func newFollower() *follower { return &follower{wakeup: make(chan struct{}, 1)} }

// wake makes the follower poll. Does not block.
func (f *follower) wake() {
	select {
	case f.wakeup <- struct{}{}:
	default: // a wake-up is pending
	}
}

// progress requests a progress marker for a watcher, to be sent after the next poll.
func (f *follower) progress(w store.Watcher) {
	f.mu.Lock()
	f.waiting = append(f.waiting, w)
	f.mu.Unlock()
	f.wake()
}

// served returns the watchers whose requests a poll that begins now will serve.
func (f *follower) served() []store.Watcher {
	f.mu.Lock()
	defer f.mu.Unlock()
	served := f.waiting
	f.waiting = nil
	return served
}

func (f *follower) unserved(wishes []store.Watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = append(wishes, f.waiting...)
}

// hears notes whether a connection listens, and reports whether that is a change.
func (f *follower) hears(listening bool) (change bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change = f.listening != listening
	f.listening = listening
	return change
}

func (f *follower) poll() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listening {
		return pollListening
	}
	return pollDeaf
}

// follow publishes what other instances commit.
func (s *Store) follow(ctx context.Context) {
	for ctx.Err() == nil {
		timer := time.NewTimer(s.follower.poll())
		select {
		case <-s.follower.wakeup:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		wishes := s.follower.served()
		if err := s.catchUp(ctx); err != nil {
			s.follower.unserved(wishes)
			if backoff.Sleep(ctx, pollDeaf) {
				s.follower.wake()
			}
			continue
		}
		for _, w := range wishes {
			w.Progress()
		}
	}
	if s.ended.Load() != nil {
		s.hub.Close() // watchers of a history that is not ours any more
	}
}

// catchUp publishes what is committed and not published yet.
func (s *Store) catchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	s.follower.publishing.Lock()
	defer s.follower.publishing.Unlock()
	for {
		var batches []store.Batch
		var done store.Revision
		now, err := s.ask(ctx, past("", s.hub.Revision(), newest, &batches, &done))
		if errors.Is(err, store.ErrCompacted) {
			return s.skip(ctx, now.revision)
		}
		if err != nil {
			return err
		}
		for _, batch := range batches {
			s.announce(batch)
		}
		if done >= now.revision {
			return nil
		}
	}
}

// skip goes on after a time in which others compacted what this instance had not
// read yet: watchers that need it end with store.ErrCompacted.
func (s *Store) skip(ctx context.Context, revision store.Revision) error {
	s.logger.Warn("history that was not read yet is compacted; watchers that need it end", "store", s.target.label,
		"from", s.hub.Revision(), "to", revision)
	deadlines, err := s.deadlines(ctx)
	if err != nil {
		return err
	}
	s.expiry.Observe(deadlines)
	s.hub.Skip(revision)
	return nil
}

func (s *Store) announce(batch store.Batch) {
	s.expiry.Observe(batch.Events)
	s.hub.Publish(batch)
}

// publish announces the writer's own group, which was built on a revision. If
// others' commits are missing before it, all is read from the database.
func (s *Store) publish(ctx context.Context, before store.Revision, requests []*group.Request) {
	if s.announceGroup(before, requests) {
		return
	}
	if err := s.catchUp(ctx); err != nil {
		s.follower.wake() // it is durable; watchers get it when the database can be read
	}
}

func (s *Store) announceGroup(before store.Revision, requests []*group.Request) bool {
	s.follower.publishing.Lock()
	defer s.follower.publishing.Unlock()
	if s.hub.Revision() < before {
		return false
	}
	for _, r := range requests {
		if len(r.Events) > 0 && r.Revision > s.hub.Revision() { // else the follower was faster
			s.announce(store.Batch{Events: r.Events, Revision: r.Revision})
		}
	}
	return true
}

// listen keeps a connection that is notified of commits.
func (s *Store) listen(ctx context.Context) {
	for try := 0; ctx.Err() == nil; try++ {
		begin := time.Now()
		err := s.hear(ctx)
		if ctx.Err() != nil {
			return
		}
		if s.follower.hears(false) || try == 0 {
			s.logger.Warn("the connection that listens for commits is lost; asking for them instead until it is back",
				"store", s.target.label, "every", pollDeaf, "error", explain(err))
		}
		s.follower.wake()
		if time.Since(begin) > outage.Timeout {
			try = 0
		}
		backoff.Sleep(ctx, outage.Retry.After(try+1))
	}
}

// hear listens until the connection fails.
func (s *Store) hear(ctx context.Context) error {
	conn, err := s.target.dial(ctx)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	var name string
	if err := conn.QueryRow(ctx, `SELECT `+channel).Scan(&name); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, `LISTEN `+pgx.Identifier{name}.Sanitize()); err != nil {
		return err
	}
	if s.follower.hears(true) {
		s.logger.Info("listening for commits", "store", s.target.label)
	}
	s.follower.wake() // what was committed before LISTEN is not announced
	for {
		quiet, cancel := context.WithTimeout(ctx, listenerSilence)
		n, err := conn.WaitForNotification(quiet)
		cancel()
		switch {
		case err == nil:
			// The writer publishes its own, without reading it again.
			if n.PID != s.writer.pid.Load() {
				s.follower.wake()
			}
		case pgconn.Timeout(err) && ctx.Err() == nil:
			alive, cancel := context.WithTimeout(ctx, connectTimeout)
			err := conn.Ping(alive)
			cancel()
			if err != nil {
				return err
			}
		default:
			return err
		}
	}
}
