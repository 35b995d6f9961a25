package cluster

import (
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// candidate is what an instance knows of the leadership: the newest records, and when it
// saw the lease change. It decides when the instance may take over, and how. It reads no
// clock and does no I/O. Not safe for concurrent use.
type candidate struct {
	self     Term // Leader and Run
	duration time.Duration

	// known: the records were read at least once.
	known    bool
	term     Term
	termRev  store.Revision // 0: absent
	lease    lease
	leaseRev store.Revision
	// changed is when the newest change of the records was seen.
	changed time.Time
}

// observe notes the records as of one revision. Records that are older than what is known
// are ignored, unless they are absent: somebody has deleted them.
func (c *candidate) observe(term Term, termRev store.Revision, l lease, leaseRev store.Revision, now time.Time) {
	if c.known && (termRev != 0 && termRev < c.termRev || leaseRev != 0 && leaseRev < c.leaseRev) {
		return
	}
	if !c.known || termRev != c.termRev || leaseRev != c.leaseRev {
		c.changed = now
	}
	c.known = true
	c.term, c.termRev, c.lease, c.leaseRev = term, termRev, l, leaseRev
}

// Bounds on the period that a leader of another version may ask for.
const (
	minPeriod = time.Second
	maxPeriod = time.Minute
)

// period after which a leader that does not renew is replaced: what it has asked for, within
// bounds.
func (c *candidate) period() time.Duration {
	if p := time.Duration(c.lease.Seconds * float64(time.Second)); p >= minPeriod && p <= maxPeriod {
		return p
	}
	return c.duration
}

// wait is how long the instance must leave the lease alone; 0: it may take over. Negative:
// for as long as nothing is known.
func (c *candidate) wait(now time.Time) time.Duration {
	switch {
	case !c.known:
		return -1
	case c.termRev == 0, c.lease.Released && c.lease.Term == c.term.Number:
		return 0
	case c.term.Run == c.self.Run:
		return 0 // a term of this process that has ended, or that it does not know it has won
	}
	return max(0, c.changed.Add(c.period()).Sub(now))
}

// takeover is the transaction that begins the next term. It fails if anybody has renewed or
// taken over since what is known. The last write is that of the term, so that the revision
// of the commit is the term's.
func (c *candidate) takeover(now time.Time) (Term, store.Txn) {
	next := Term{Number: c.term.Number + 1, Leader: c.self.Leader, Run: c.self.Run, Began: now.UTC()}
	return next, store.Txn{
		Conditions: []store.Condition{{Key: termKey, Modified: c.termRev}, {Key: leaseKey, Modified: c.leaseRev}},
		Ops: []store.Op{
			put(leaseKey, lease{Term: next.Number, Seconds: c.duration.Seconds()}),
			put(termKey, next),
		},
	}
}

// tenure is a term of this instance, while it leads. It reads no clock and does no I/O.
type tenure struct {
	term     Term
	fence    store.Condition
	duration time.Duration
	renewal  uint64
	// until is when the instance must have stopped leading.
	until time.Time
}

// margin is how long before the end of its lease a leader stops: by then, what it runs has
// ended. Others count from a moment that is never earlier, by clocks whose rates may differ.
func margin(duration time.Duration) time.Duration { return duration / 5 }

// newTenure: began is a time before the commit of the takeover.
func newTenure(t Term, rev store.Revision, duration time.Duration, began time.Time) *tenure {
	return &tenure{
		term: t, fence: store.Condition{Key: termKey, Modified: rev}, duration: duration,
		until: began.Add(duration - margin(duration)),
	}
}

// renew is the transaction that renews the lease. It fails if the term has ended.
func (t *tenure) renew() store.Txn {
	t.renewal++
	return t.write(lease{Term: t.term.Number, Renewal: t.renewal, Seconds: t.duration.Seconds()})
}

// renewed notes that a renewal has been committed, which was begun at a time.
func (t *tenure) renewed(began time.Time) { t.until = began.Add(t.duration - margin(t.duration)) }

// release is the transaction that lets another instance take over at once.
func (t *tenure) release() store.Txn {
	t.renewal++
	return t.write(lease{Term: t.term.Number, Renewal: t.renewal, Seconds: t.duration.Seconds(), Released: true})
}

func (t *tenure) write(l lease) store.Txn {
	return store.Txn{Conditions: []store.Condition{t.fence}, Ops: []store.Op{put(leaseKey, l)}}
}
