// Package quota divides something scarce among users: request slots, or memory. A
// Pool has a total, and no user holds more than a share of it. Enter at New.
package quota

import "sync"

// Pool of units. Safe for concurrent use; it never blocks.
type Pool struct {
	total, share int64

	mu    sync.Mutex
	used  int64
	users map[string]int64
}

// New makes a pool of which one user may hold share. A share below 1 is 1.
func New(total, share int64) *Pool {
	return &Pool{total: total, share: max(1, share), users: map[string]int64{}}
}

// Quarter makes a pool of which one user may hold a quarter, but at least one unit.
func Quarter(total int64) *Pool { return New(total, total/4) }

// Result of Take.
type Result int

const (
	// Taken: the units are the user's until they are given back.
	Taken Result = iota
	// ShareUsed: the user holds as much as one user may.
	ShareUsed
	// TotalUsed: all users together hold too much.
	TotalUsed
)

// Take n units for a user, all or none. With beyond, the total does not count, only
// the share.
func (p *Pool) Take(user string, n int64, beyond bool) Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.users[user]+n > p.share:
		return ShareUsed
	case p.used+n > p.total && !beyond:
		return TotalUsed
	}
	p.used += n
	p.users[user] += n
	return Taken
}

// Give n units back that Take has given.
func (p *Pool) Give(user string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= n
	if p.users[user] -= n; p.users[user] == 0 {
		delete(p.users, user)
	}
}

// Share is how much one user may hold.
func (p *Pool) Share() int64 { return p.share }

// Used is how much all users hold.
func (p *Pool) Used() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}
