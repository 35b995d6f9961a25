package tunnel

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
)

// Failure is the last stream of a service that no peer accepted.
type Failure struct {
	At     time.Time
	Reason frame.Reason
	Err    error
	// Count of failures of the service that are remembered as one.
	Count int
}

// maxFailures bounds the services whose last failure is kept.
const maxFailures = 256

// failures remembers why connections were reset, for people who ask: all that a client
// of a tunnel sees is the reset.
type failures struct {
	mu  sync.Mutex
	all map[string]Failure // by SNI
}

func (f *failures) note(sni string, reason frame.Reason, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[string]Failure{}
	}
	last, ok := f.all[sni]
	if !ok && len(f.all) >= maxFailures {
		f.dropOldest()
	}
	f.all[sni] = Failure{At: time.Now(), Reason: reason, Err: err, Count: last.Count + 1}
}

func (f *failures) dropOldest() {
	oldest := ""
	for sni, failure := range f.all {
		if oldest == "" || failure.At.Before(f.all[oldest].At) {
			oldest = sni
		}
	}
	delete(f.all, oldest)
}

// unrouted notes a connection for which there was no stream to open.
func (f *failures) unrouted(err error) {
	var failure *OpenError
	if errors.As(err, &failure) {
		f.note(failure.SNI, failure.Reason, err)
	}
}

// ServiceFailure is the last failure of a service.
type ServiceFailure struct {
	// SNI of the service, or the address (IP:PORT) at which no other site offers one.
	SNI string
	Failure
}

// Failures are the last failures of services, the newest first. The caller owns them.
func (c *Client) Failures() []ServiceFailure {
	c.failures.mu.Lock()
	defer c.failures.mu.Unlock()
	out := make([]ServiceFailure, 0, len(c.failures.all))
	for sni, f := range c.failures.all {
		out = append(out, ServiceFailure{sni, f})
	}
	slices.SortFunc(out, func(a, b ServiceFailure) int { return b.At.Compare(a.At) })
	return out
}

// LastFailure returns the last failure of a service, for explanations; false: none
// that is remembered. The last 256 services with failures are.
func (c *Client) LastFailure(sni string) (Failure, bool) {
	c.failures.mu.Lock()
	defer c.failures.mu.Unlock()
	f, ok := c.failures.all[sni]
	return f, ok
}
