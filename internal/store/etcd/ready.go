package etcd

import (
	"context"
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
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
	if !s.fault.Present() {
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
func (s *Store) noted(err error) error { return s.fault.Note(err, s.logger, s.target.label, explain) }

// alarmed returns an error if etcd's status reports a full database.
func alarmed(reports []string) error {
	for _, text := range reports {
		if strings.Contains(text, "NOSPACE") {
			return fmt.Errorf("%s: %w", text, rpctypes.ErrNoSpace)
		}
	}
	return nil
}
