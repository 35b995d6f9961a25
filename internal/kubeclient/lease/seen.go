package lease

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// seen is the lock of an election, which notes when the Lease was renewed last, by this
// instance's clock: those of others may be set otherwise. Safe for concurrent use.
type seen struct {
	*resourcelock.LeaseLock
	mu     sync.Mutex
	record resourcelock.LeaderElectionRecord
	at     time.Time
}

// Get implements resourcelock.Interface.
func (s *seen) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := s.LeaseLock.Get(ctx)
	if err == nil {
		s.note(*record)
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (s *seen) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := s.LeaseLock.Create(ctx, record)
	if err == nil {
		s.note(record)
	}
	return err
}

// Update implements resourcelock.Interface.
func (s *seen) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := s.LeaseLock.Update(ctx, record)
	if err == nil {
		s.note(record)
	}
	return err
}

func (s *seen) note(record resourcelock.LeaderElectionRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record.HolderIdentity != record.HolderIdentity || !s.record.RenewTime.Equal(&record.RenewTime) {
		s.record, s.at = record, time.Now()
	}
}

// holder of the Lease, as it was seen last; empty: none.
func (s *seen) holder() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.HolderIdentity
}

// vacant: nobody holds the Lease, or who does has not renewed it for so long.
func (s *seen) vacant(duration time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	given := !s.record.RenewTime.IsZero() && s.record.HolderIdentity == ""
	return given || time.Since(s.at) > duration
}

// Leads reports whether this instance leads.
func (e *Election) Leads() bool { return e.leads.Load() }

// Vacant reports whether no instance leads, as far as this one sees: one that does not reach the
// API for as long as a lease lasts sees none.
func (e *Election) Vacant() bool { return !e.Leads() && e.seen.vacant(e.cfg.LeaseDuration) }
