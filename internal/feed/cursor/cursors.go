package cursor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Feed keeps changes for subscribers; *feed.Feed is one.
type Feed interface {
	// Hold keeps what comes after a position under a name, within the feed's bounds; Release ends that.
	Hold(name string, after seglog.Position)
	Release(name string)
	// First is the position after which the feed is complete.
	First() seglog.Position
	// Epoch of the history that positions are of.
	Epoch() string
}

// Config of Cursors. Store and Feed are required.
type Config struct {
	// Store has the rows. It is the caller's.
	Store store.Store
	Feed  Feed
	// Max is how many cursors there are at most; 0: DefaultMaxCursors.
	Max int64
	// WriteEvery is the interval of writes of a cursor; 0: one second.
	WriteEvery time.Duration
	// Through returns a time up to which somebody who is at a position knows all changes: State.Through. Nil: it is not kept.
	Through func(seglog.Position) time.Time
	// Elsewhere is where a cursor goes on here whose positions are of another history; 0: at the beginning. Nil: it does so always.
	Elsewhere func(*State) seglog.Position
	Now       func() time.Time // nil: time.Now
	Logger    *slog.Logger     // nil: discard
}

// Cursors are those of a store. Make them with New. Safe for concurrent use.
type Cursors struct {
	cfg Config
	now func() time.Time
	log *slog.Logger

	mu   sync.Mutex
	open map[string]*Cursor
	held map[string]bool
}

// New reads the cursors of the store, and has the feed keep what they need.
func New(ctx context.Context, cfg Config) (*Cursors, error) {
	cfg.Max, cfg.WriteEvery = cmp.Or(cfg.Max, DefaultMaxCursors), cmp.Or(cfg.WriteEvery, writeEvery)
	c := &Cursors{cfg: cfg, now: cfg.Now, log: cfg.Logger, open: map[string]*Cursor{}, held: map[string]bool{}}
	if c.now == nil {
		c.now = time.Now
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if _, err := c.hold(ctx); err != nil {
		return nil, fmt.Errorf("read the cursors of the change feed: %w", err)
	}
	return c, nil
}

// Run writes what is acknowledged, and follows what other instances do, until ctx ends. It must be called once.
func (c *Cursors) Run(ctx context.Context) error {
	written := make(chan struct{})
	go func() { defer close(written); c.write(ctx) }()
	defer func() { <-written }()
	retry := backoff.Backoff{Policy: backoff.Policy{First: 100 * time.Millisecond, Last: 10 * time.Second, Jitter: 0.2}}
	for ctx.Err() == nil {
		start := time.Now()
		err := c.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		if time.Since(start) > time.Minute {
			retry.Reset()
		}
		c.log.Debug("the cursors of the change feed are read again", "error", err)
		backoff.Sleep(ctx, retry.Next())
	}
	return nil
}

// write what is acknowledged, once in a while.
func (c *Cursors) write(ctx context.Context) {
	tick := time.NewTicker(c.cfg.WriteEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		c.mu.Lock()
		open := make([]*Cursor, 0, len(c.open))
		for _, cur := range c.open {
			open = append(open, cur)
		}
		c.mu.Unlock()
		for _, cur := range open {
			if err := cur.Flush(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
				c.log.Warn("what a subscriber of the change feed has acknowledged is not written; it is tried again", "cursor", cur.name, "error", err)
			}
		}
	}
}

// hold reads all rows, and returns the revision that they were read at.
func (c *Cursors) hold(ctx context.Context) (store.Revision, error) {
	page, err := c.cfg.Store.List(ctx, store.ListOptions{Prefix: Prefix})
	if err != nil {
		return 0, err
	}
	here := make(map[string]bool, len(page.Records))
	for i := range page.Records {
		rec := &page.Records[i]
		here[rec.Key] = true
		c.seen(rec.Key, rec.Value, rec.Modified)
	}
	c.mu.Lock()
	var gone []string
	for name := range c.held {
		if key := keyOf(name); !here[key] {
			gone = append(gone, key)
		}
	}
	c.mu.Unlock()
	for _, key := range gone {
		c.seen(key, nil, page.Revision)
	}
	return page.Revision, nil
}

func (c *Cursors) follow(ctx context.Context) error {
	at, err := c.hold(ctx)
	if err != nil {
		return err
	}
	w, err := c.cfg.Store.Watch(ctx, Prefix, at)
	if err != nil {
		return err
	}
	defer w.Close()
	for b := range w.Batches() {
		for i := range b.Events {
			rec := &b.Events[i].Record
			c.seen(rec.Key, rec.Value, rec.Modified) // a deletion has no value
		}
	}
	return w.Err()
}

// seen is called with what the row of a cursor was at a revision; nil: it was not there.
func (c *Cursors) seen(key string, value []byte, at store.Revision) {
	name, err := nameOf(key)
	if err != nil {
		return
	}
	var now *State
	if value != nil {
		if now, err = decode(key, value); err != nil {
			c.log.Warn("a cursor of the change feed cannot be read", "cursor", name, "error", err)
			return
		}
	}
	c.keep(name, now)
	c.mu.Lock()
	cur := c.open[name]
	c.mu.Unlock()
	if cur != nil {
		cur.seen(now, at)
	}
}

// keep has the feed keep what a cursor needs; nil: there is no such cursor.
func (c *Cursors) keep(name string, now *State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now != nil && now.Epoch == c.cfg.Feed.Epoch() {
		c.held[name] = true
		c.cfg.Feed.Hold(holdName(name), now.Mark)
		return
	}
	delete(c.held, name)
	c.cfg.Feed.Release(holdName(name))
}

func holdName(name string) string { return "cursor/" + name }

// List returns all cursors, in order of names.
func (c *Cursors) List(ctx context.Context) ([]State, error) {
	page, err := c.cfg.Store.List(ctx, store.ListOptions{Prefix: Prefix})
	if err != nil {
		return nil, err
	}
	out := make([]State, 0, len(page.Records))
	for i := range page.Records {
		s, err := decode(page.Records[i].Key, page.Records[i].Value)
		if err != nil {
			return nil, err
		}
		out = append(out, *s)
	}
	return out, nil
}

// Get returns a cursor as it was written last. Errors: ErrNotFound.
func (c *Cursors) Get(ctx context.Context, name string) (State, error) {
	s, _, err := c.read(ctx, name)
	if err != nil {
		return State{}, err
	}
	return *s, nil
}

func (c *Cursors) read(ctx context.Context, name string) (*State, store.Revision, error) {
	rec, ok, _, err := c.cfg.Store.Get(ctx, keyOf(name), 0)
	if err != nil {
		return nil, 0, err
	}
	if !ok {
		return nil, 0, fmt.Errorf("%q: %w", name, ErrNotFound)
	}
	s, err := decode(rec.Key, rec.Value)
	return s, rec.Modified, err
}

// Expired returns an *seglog.ExpiredError if changes after the mark of a cursor are gone, or if its positions are of another store's
// history; else nil. What a subscriber has then missed is in the live state of the store alone.
func (c *Cursors) Expired(s *State) error {
	if first := c.cfg.Feed.First(); s.Mark < first || s.Epoch != c.cfg.Feed.Epoch() {
		return &seglog.ExpiredError{First: first}
	}
	return nil
}

// Create makes a cursor after a position. Errors: ErrExists; others name what is wrong with the arguments.
func (c *Cursors) Create(ctx context.Context, name string, t Type, at seglog.Position, properties map[string]string) (State, error) {
	if err := check(name, t, at, properties); err != nil {
		return State{}, err
	}
	n, err := c.cfg.Store.Count(ctx, Prefix)
	if err != nil {
		return State{}, err
	}
	if n >= c.cfg.Max {
		return State{}, fmt.Errorf("there are %d cursors, as many as there may be: delete those that nobody needs", n)
	}
	now := c.now().UTC()
	s := &State{Name: name, Type: t, Mark: at, Epoch: c.cfg.Feed.Epoch(), Created: now, Active: now, Properties: properties}
	_, err = c.put(ctx, s, 0)
	if conflict(err) {
		return State{}, fmt.Errorf("%q: %w", name, ErrExists)
	}
	if err != nil {
		return State{}, err
	}
	return *s, nil
}

// Delete removes a cursor; who has it open loses it. Errors: ErrNotFound.
func (c *Cursors) Delete(ctx context.Context, name string) error {
	for {
		_, modified, err := c.read(ctx, name)
		if err != nil {
			return err
		}
		key := keyOf(name)
		at, err := c.cfg.Store.Commit(ctx, store.Txn{Conditions: []store.Condition{{Key: key, Modified: modified}}, Ops: []store.Op{{Kind: store.Delete, Key: key}}})
		if conflict(err) {
			continue
		}
		if err == nil {
			c.seen(key, nil, at)
		}
		return err
	}
}

// Seek sets a cursor to a position: what comes after it is not acknowledged then. Who has it open, in any instance, loses it.
// Errors: ErrNotFound.
func (c *Cursors) Seek(ctx context.Context, name string, to seglog.Position) (State, error) {
	if to < 0 {
		return State{}, fmt.Errorf("position %d: must not be negative", to)
	}
	for {
		s, modified, err := c.read(ctx, name)
		if err != nil {
			return State{}, err
		}
		c.move(s, to)
		at, err := c.put(ctx, s, modified)
		if conflict(err) {
			continue
		}
		if err != nil {
			return State{}, err
		}
		c.mu.Lock()
		cur := c.open[name]
		c.mu.Unlock()
		if cur != nil {
			cur.seen(s, at)
		}
		return *s, nil
	}
}

func (c *Cursors) move(s *State, to seglog.Position) {
	s.Mark, s.Acked, s.Epoch, s.Active = to, nil, c.cfg.Feed.Epoch(), c.now().UTC()
	s.Moves++
}

// Open opens a cursor for acknowledging; the caller closes it. Errors: ErrNotFound, ErrInUse, *seglog.ExpiredError, after which
// Seek makes it usable.
func (c *Cursors) Open(ctx context.Context, name string) (*Cursor, error) {
	return c.opened(ctx, name, false)
}

// OpenExpired is Open for who can go on from the live state of the store: an expired cursor is no error, and one with positions of
// another history is set to the beginning, or to where Config.Elsewhere says. The fence are conditions of all that is written: when one of
// them does not hold any more, the cursor is lost (ErrFenced).
func (c *Cursors) OpenExpired(ctx context.Context, name string, fence ...store.Condition) (*Cursor, error) {
	return c.opened(ctx, name, true, fence...)
}

func (c *Cursors) opened(ctx context.Context, name string, expired bool, fence ...store.Condition) (*Cursor, error) {
	cur := &Cursor{all: c, name: name, fence: fence, lost: make(chan struct{})}
	cur.writing.Lock() // nobody writes it before it is read
	defer cur.writing.Unlock()
	c.mu.Lock()
	if c.open[name] != nil {
		c.mu.Unlock()
		return nil, fmt.Errorf("%q: %w", name, ErrInUse)
	}
	c.open[name] = cur
	c.mu.Unlock()
	s, modified, err := c.read(ctx, name)
	switch {
	case err != nil:
	case !expired:
		err = c.Expired(s)
	case s.Epoch != c.cfg.Feed.Epoch():
		to := seglog.Position(0)
		if c.cfg.Elsewhere != nil {
			to = c.cfg.Elsewhere(s)
		}
		c.move(s, to)
	}
	if err != nil {
		c.forget(cur)
		return nil, err
	}
	s.Active = c.now().UTC()
	cur.mu.Lock()
	cur.state, cur.modified, cur.dirty = *s, modified, true
	cur.mu.Unlock()
	return cur, nil
}

func (c *Cursors) forget(cur *Cursor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[cur.name] == cur {
		delete(c.open, cur.name)
	}
}

// put writes a row that was modified last at a revision, if all of a fence holds, and has the feed keep what it needs.
func (c *Cursors) put(ctx context.Context, s *State, modified store.Revision, fence ...store.Condition) (store.Revision, error) {
	row := *s
	if len(row.Acked) > maxStored {
		row.Acked = row.Acked[:maxStored]
	}
	if c.cfg.Through != nil {
		row.Through = c.cfg.Through(row.Mark).UTC()
	}
	value, err := json.Marshal(&row)
	if err != nil {
		return 0, err
	}
	key := keyOf(s.Name)
	at, err := c.cfg.Store.Commit(ctx, store.Txn{
		Conditions: slices.Concat(fence, []store.Condition{{Key: key, Modified: modified}}), Ops: []store.Op{{Kind: store.Put, Key: key, Value: value}},
	})
	if err == nil {
		c.keep(s.Name, s)
	}
	return at, err
}

func conflict(err error) bool {
	var c *store.ConflictError
	return errors.As(err, &c)
}

func keyOf(name string) string { return Prefix + url.PathEscape(name) }

func nameOf(key string) (string, error) { return url.PathUnescape(strings.TrimPrefix(key, Prefix)) }

func decode(key string, value []byte) (*State, error) {
	s := &State{}
	if err := json.Unmarshal(value, s); err != nil {
		return nil, fmt.Errorf("%s is not a cursor: %w", key, err)
	}
	return s, nil
}

func check(name string, t Type, at seglog.Position, properties map[string]string) error {
	switch {
	case name == "" || len(name) > MaxName:
		return fmt.Errorf("the name of a cursor has %d bytes: 1 to %d are allowed", len(name), MaxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("the name of a cursor, %q, must be UTF-8 without control characters", name)
	case !t.valid():
		return fmt.Errorf("the type %q of a cursor is none of exclusive, failover, shared, key_shared", t)
	case at < 0:
		return fmt.Errorf("position %d: must not be negative", at)
	}
	size := 0
	for k, v := range properties {
		size += len(k) + len(v)
	}
	if size > MaxProperties {
		return fmt.Errorf("the properties of a cursor have %d bytes: %d are allowed", size, MaxProperties)
	}
	return nil
}
