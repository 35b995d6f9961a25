package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

// answerWithin is how long an endpoint that is not used any more may take to answer a
// connection that was sent to it just before.
const answerWithin = 250 * time.Millisecond

// unanswered ends, in kernel modes, connections to endpoints that are not used any more and do
// not answer: NAT is decided by the first packet, so the client's next ones would follow it, and
// so would those of another connection from the same port. Nil: the mode is not of the kernel.
type unanswered struct {
	log *slog.Logger
	// open the kernel's table of connections.
	open func() (unansweredTable, error)
	some chan struct{} // holds a token while there are endpoints

	mu   sync.Mutex
	left map[netip.AddrPort]bool
}

// unansweredTable is a *conntrack.Table, or a test's.
type unansweredTable interface {
	EndUnanswered(at map[netip.AddrPort]bool) (int, error)
	Close() error
}

func (a *agent) newUnanswered() *unanswered {
	if _, kernel := modes.RequirementOf(a.mode.Name()); !kernel || a.gateway != nil {
		return nil
	}
	return &unanswered{
		log: a.log.With("component", "connections"), some: make(chan struct{}, 1), left: map[netip.AddrPort]bool{},
		open: func() (unansweredTable, error) { return conntrack.Open(0) },
	}
}

// callback for the agent; nil: it need not tell.
func (u *unanswered) callback() func([]netip.AddrPort) {
	if u == nil {
		return nil
	}
	return u.note
}

// note endpoints that are not used any more. It does not block.
func (u *unanswered) note(endpoints []netip.AddrPort) {
	u.mu.Lock()
	for _, e := range endpoints {
		u.left[e] = true
	}
	u.mu.Unlock()
	select {
	case u.some <- struct{}{}:
	default:
	}
}

func (u *unanswered) take() map[netip.AddrPort]bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := u.left
	u.left = map[netip.AddrPort]bool{}
	return out
}

func (u *unanswered) components() []component {
	if u == nil {
		return nil
	}
	return []component{{Name: "unanswered connections", Run: u.run}}
}

func (u *unanswered) run(ctx context.Context) error {
	table, err := u.open()
	if err != nil {
		return fmt.Errorf("unanswered connections: %w", err)
	}
	defer func() { _ = table.Close() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-u.some:
		}
		timer.Reset(answerWithin)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		n, err := table.EndUnanswered(u.take())
		switch {
		case err != nil:
			u.log.Warn("connections that wait for endpoints out of use go on waiting", "error", err)
		case n > 0:
			u.log.Debug("ended connections that waited for endpoints out of use; their clients try again", "connections", n)
		}
	}
}
