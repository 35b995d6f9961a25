package issue

import (
	"golang.org/x/time/rate"

	"github.com/proxima-mesh/proxima/internal/ratelimit"
)

// Limits of the requests of one node. The zero value is the default.
type Limits struct {
	// Rate of requests per second; 0: 20.
	Rate rate.Limit
	// Burst that is possible at once; 0: 500, as a node that starts has that many
	// workloads at most.
	Burst int
}

const (
	defaultRate  = 20
	defaultBurst = 500
)

func newLimiter(l Limits) *ratelimit.Limiter {
	if l.Rate <= 0 {
		l.Rate = defaultRate
	}
	if l.Burst <= 0 {
		l.Burst = defaultBurst
	}
	return ratelimit.New(l.Rate, l.Burst)
}
