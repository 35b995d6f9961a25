package etcd

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/proxima-mesh/proxima/internal/backoff"
)

// Ready implements store.Store. After a write that failed it writes, so that it
// reports a recovery at once.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	bound, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// A linearizable read needs the same majority as a write.
	known := s.seen.Load()
	m, at, err := s.readMeta(bound)
	if err == nil {
		err = s.accept(at, known)
	}
	if err == nil {
		err = s.acceptMeta(m)
	}
	if err == nil {
		err = s.alarms(bound)
	}
	if err != nil {
		return s.failed(ctx, "check", err)
	}
	if s.fault.Load() == nil {
		return nil
	}
	if missed := s.queue.Task(bound, func() { _, err = s.fence(bound); err = s.noted(err) }); missed != nil {
		return missed
	}
	if err != nil {
		return s.failed(ctx, "write", err)
	}
	return nil
}

// alarms reports etcd's alarms, which no read shows: a full database is read as
// before.
func (s *Store) alarms(ctx context.Context) error {
	resp, err := pb.NewMaintenanceClient(s.client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return fmt.Errorf("read the status of etcd: %w", err)
	}
	return alarmed(resp.GetErrors())
}

// noted remembers the result of a write for Ready.
func (s *Store) noted(err error) error {
	was := s.fault.Load()
	switch {
	case err != nil:
		s.fault.Store(&err)
		if was == nil {
			s.logger.Error("state cannot be written", "store", s.target.label, "error", explain(err))
		}
	case was != nil:
		s.fault.Store(nil)
		s.logger.Info("state can be written again", "store", s.target.label)
	}
	return err
}

// outage is a time in which etcd is out of reach. Its beginning is waited out;
// later, calls fail at once.
type outage struct {
	timeout time.Duration
	begin   atomic.Pointer[time.Time]
}

// outageTimeout is long enough for the election of a leader, and for the restart
// of a member.
const outageTimeout = 10 * time.Second

// retryPolicy spaces retries.
var retryPolicy = backoff.Policy{First: 20 * time.Millisecond, Last: time.Second}

func (o *outage) over() {
	if o.begin.Load() != nil {
		o.begin.Store(nil)
	}
}

// again waits before another try. It returns false if there should be none.
func (o *outage) again(ctx context.Context, try int) bool {
	now := time.Now()
	o.begin.CompareAndSwap(nil, &now)
	if begin := o.begin.Load(); begin != nil && now.Sub(*begin) > o.timeout {
		return false
	}
	return backoff.Sleep(ctx, retryPolicy.After(try+1))
}

// alarmed returns an error if etcd's status reports a full database.
func alarmed(reports []string) error {
	for _, text := range reports {
		if strings.Contains(text, "NOSPACE") {
			return fmt.Errorf("%s: %w", text, rpctypes.ErrNoSpace)
		}
	}
	return nil
}
