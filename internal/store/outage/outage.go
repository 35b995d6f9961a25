// Package outage is how stores on a server deal with its absence: its beginning is waited
// out, later calls fail at once, and Ready knows whether the last write went well.
//
// Enter at Outage and at Fault. The package does no I/O.
package outage

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
)

const (
	// Timeout is how long an outage is waited out: the restart of a server, or the election
	// of a leader, takes less.
	Timeout = 10 * time.Second
	// LastPause is the longest between two tries.
	LastPause = time.Second
)

// Retry spaces tries.
var Retry = backoff.Policy{First: 20 * time.Millisecond, Last: LastPause}

// Outage is a time in which a server is out of reach. Its beginning is waited out; later,
// calls fail at once, as callers are better off with an error than in a queue. Set Timeout
// before use. Safe for concurrent use.
type Outage struct {
	// Timeout is how long calls are tried again, from the beginning of the outage.
	Timeout time.Duration
	begin   atomic.Pointer[time.Time]
}

// Over notes that a call has reached the server.
func (o *Outage) Over() {
	if o.begin.Load() != nil {
		o.begin.Store(nil)
	}
}

// Began notes that a call which began at a time has not reached the server. An outage counts
// from the first such call, which may have waited long for an answer; without Began it counts
// from the first Again.
func (o *Outage) Began(at time.Time) { o.begin.CompareAndSwap(nil, &at) }

// Again waits before another try; try is the number of those that failed before, from 0. It
// returns false if there should be none.
func (o *Outage) Again(ctx context.Context, try int) bool {
	now := time.Now()
	o.begin.CompareAndSwap(nil, &now)
	if begin := o.begin.Load(); begin != nil && now.Sub(*begin) > o.Timeout {
		return false
	}
	return backoff.Sleep(ctx, Retry.After(try+1))
}

// Fault remembers how the last write went. The zero value: well. Safe for concurrent use.
type Fault struct{ err atomic.Pointer[error] }

// Present reports whether the last write has failed.
func (f *Fault) Present() bool { return f.err.Load() != nil }

// Note remembers the result of a write, and returns it. A change between well and failed is
// logged; explain turns the error into what is logged, store names the store.
func (f *Fault) Note(err error, log *slog.Logger, store string, explain func(error) error) error {
	was := f.err.Load()
	switch {
	case err != nil:
		f.err.Store(&err)
		if was == nil {
			log.Error("state cannot be written", "store", store, "error", explain(err))
		}
	case was != nil:
		f.err.Store(nil)
		log.Info("state can be written again", "store", store)
	}
	return err
}
