package apiserver

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// maxEventBurst: a user may write so many seconds' worth of Events at once, as when many
	// workloads of a node end together.
	maxEventBurst = 30
	// maxEventUsers are remembered at least; more are forgotten once they may write a whole burst.
	maxEventUsers = 1000
)

// eventRates bound the Events that users write. Safe for concurrent use.
type eventRates struct {
	perSecond int

	mu    sync.Mutex
	users map[string]*rate.Limiter
	sweep int // number of users at which the next sweep is due
}

func newEventRates(perSecond int) *eventRates {
	return &eventRates{perSecond: perSecond, users: map[string]*rate.Limiter{}, sweep: maxEventUsers}
}

// allow one more Event of a user. It never blocks.
func (e *eventRates) allow(user string, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.users[user]
	if l == nil {
		if len(e.users) >= e.sweep {
			for name, one := range e.users {
				if one.TokensAt(now) >= float64(one.Burst()) {
					delete(e.users, name)
				}
			}
			e.sweep = max(maxEventUsers, 2*len(e.users))
		}
		l = rate.NewLimiter(rate.Limit(e.perSecond), maxEventBurst*e.perSecond)
		e.users[user] = l
	}
	return l.AllowN(now, 1)
}
