package cursor

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Cursor is one that is open. What is acknowledged is written within a second or so, and by Flush and Close. Safe for
// concurrent use.
type Cursor struct {
	all  *Cursors
	name string
	// fence are conditions of each write.
	fence []store.Condition

	writing sync.Mutex // held while the row is written

	mu       sync.Mutex
	state    State
	modified store.Revision // of the row that state is based on
	dirty    bool
	err      error // why it cannot be used any more; nil: it can
	lost     chan struct{}
}

// Lost is closed when the cursor cannot be used any more, for the reason that Err returns.
func (c *Cursor) Lost() <-chan struct{} { return c.lost }

// Err is ErrDeleted, ErrMoved, ErrFenced, ErrClosed, or nil.
func (c *Cursor) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// State now, with what is not written yet.
func (c *Cursor) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state
	s.Acked = slices.Clone(s.Acked)
	return s
}

// Acked reports whether a position is acknowledged.
func (c *Cursor) Acked(at seglog.Position) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.acked(at)
}

// Ack acknowledges the positions above after, up to to. Who reads only some of the changes acknowledges with one of them what lies
// between it and the one before. Errors: those of Err; ErrFull.
func (c *Cursor) Ack(after, to seglog.Position) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return c.err
	case to <= c.state.Mark || to <= after:
		return nil
	}
	c.state.Acked = add(c.state.Acked, Range{max(after, c.state.Mark), to})
	c.state.settle()
	if len(c.state.Acked) > MaxRanges {
		c.state.Acked = c.state.Acked[:MaxRanges]
		return ErrFull
	}
	c.state.Active, c.dirty = c.all.now().UTC(), true
	return nil
}

// AckThrough acknowledges all positions up to one. Errors: those of Err.
func (c *Cursor) AckThrough(to seglog.Position) error { return c.Ack(0, to) }

// Seek sets the cursor to a position, at once: what comes after it is not acknowledged then. Errors: those of Err, and of the
// store, which leave it as it was.
func (c *Cursor) Seek(ctx context.Context, to seglog.Position) error {
	return c.update(ctx, func(s *State) { c.all.move(s, to) })
}

// Flush writes what is not written yet. Errors: those of Err, and of the store, after which it is called again.
func (c *Cursor) Flush(ctx context.Context) error { return c.update(ctx, nil) }

// update writes the row, changed by a function if there is one.
func (c *Cursor) update(ctx context.Context, change func(*State)) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		c.mu.Lock()
		if c.err != nil || !c.dirty && change == nil {
			defer c.mu.Unlock()
			return c.err
		}
		s, modified := c.state, c.modified
		s.Acked = slices.Clone(s.Acked)
		c.dirty = false
		c.mu.Unlock()
		if change != nil {
			change(&s)
		}
		at, err := c.all.put(ctx, &s, modified, c.fence...)
		if err == nil {
			c.mu.Lock()
			c.modified = max(c.modified, at)
			if change != nil {
				c.state = s
			}
			c.mu.Unlock()
			return nil
		}
		c.mu.Lock()
		c.dirty = true
		c.mu.Unlock()
		var failed *store.ConflictError
		if !errors.As(err, &failed) {
			return err
		}
		if slices.Contains(c.fence, failed.Condition) {
			c.lose(ErrFenced)
			continue
		}
		// Another instance has written it.
		now, modified, err := c.all.read(ctx, c.name)
		switch {
		case errors.Is(err, ErrNotFound):
			c.lose(ErrDeleted)
		case err != nil:
			return err
		default:
			c.take(now, modified)
		}
	}
}

// take what another instance has written.
func (c *Cursor) take(now *State, modified store.Revision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if modified <= c.modified || c.err != nil {
		return
	}
	if now.Moves != c.state.Moves || !now.Created.Equal(c.state.Created) {
		c.end(ErrMoved)
		return
	}
	c.state.merge(now)
	c.modified = modified
}

// seen is called with what the row was at a revision; nil: it was not there.
func (c *Cursor) seen(now *State, at store.Revision) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	known := c.modified
	c.mu.Unlock()
	switch {
	case known == 0 || at <= known: // it could not be opened, or this is what it knows, or older
	case now == nil:
		c.lose(ErrDeleted)
	default:
		c.take(now, at)
	}
}

func (c *Cursor) lose(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(err)
}

// end is called with the lock.
func (c *Cursor) end(err error) {
	if c.err == nil {
		c.err = err
		close(c.lost)
	}
}

// Close writes what is not written yet, and frees the cursor. Idempotent. Errors: those of the store; what was acknowledged since the
// last write is lost then.
func (c *Cursor) Close(ctx context.Context) error {
	err := c.Flush(ctx)
	c.lose(ErrClosed)
	c.all.forget(c)
	if errors.Is(err, ErrClosed) || errors.Is(err, ErrDeleted) || errors.Is(err, ErrMoved) || errors.Is(err, ErrFenced) {
		return nil
	}
	return err
}
