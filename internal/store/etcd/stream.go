package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/proxima-mesh/proxima/internal/store"
)

// stream is one watch on a gRPC stream of its own. etcd's client would share the
// stream, on which one watcher that catches up suppresses the progress of all,
// and would resume a broken one at a revision that may be just compacted, where
// etcd sends what survived without an error.
type stream struct {
	pb.Watch_WatchClient
	cancel context.CancelFunc
	send   sync.Mutex
}

// compactedError reports up to where etcd's history is compacted.
type compactedError struct{ revision int64 }

func (e *compactedError) Error() string { return fmt.Sprintf("etcd is compacted up to %d", e.revision) }
func (e *compactedError) Unwrap() error { return store.ErrCompacted }

// watchKeys opens a stream for the keys from key to end (empty: key alone), from
// etcd's revision first, which must be positive. The stream ends with ctx or
// close.
func (s *Store) watchKeys(ctx context.Context, key, end string, first int64) (*stream, error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	client, err := pb.NewWatchClient(s.client.ActiveConnection()).Watch(ctx, grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		cancel()
		return nil, rpctypes.Error(err)
	}
	w := &stream{Watch_WatchClient: client, cancel: cancel}
	create := &pb.WatchCreateRequest{Key: []byte(key), StartRevision: first, PrevKv: true}
	if end != "" {
		create.RangeEnd = []byte(end)
	}
	if err := w.request(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *stream) close() { w.cancel() }

func (w *stream) request(r *pb.WatchRequest) error {
	w.send.Lock()
	defer w.send.Unlock()
	return rpctypes.Error(w.Send(r))
}

// askProgress requests a response without events. etcd drops the request while
// the watch catches up.
func (w *stream) askProgress() error {
	return w.request(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

// progressInterval is how often a progress request is repeated, as etcd may have
// dropped it.
const progressInterval = 20 * time.Millisecond

// askAgain requests progress until stop is called.
func (w *stream) askAgain() (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(progressInterval)
		defer ticker.Stop()
		for w.askProgress() == nil { // an error reaches the receiver
			select {
			case <-ticker.C:
			case <-done:
				return
			case <-w.Context().Done():
				return
			}
		}
	})
	return func() { close(done); running.Wait() }
}

// receive returns events, or without events the revision up to which there are
// none. Errors: *compactedError.
func (w *stream) receive() (events []*mvccpb.Event, progress int64, err error) {
	for {
		resp, err := w.Recv()
		switch {
		case err != nil:
			return nil, 0, rpctypes.Error(err)
		case resp.GetCompactRevision() != 0:
			return nil, 0, &compactedError{resp.GetCompactRevision()}
		case resp.GetCanceled():
			return nil, 0, errors.New("etcd ended the watch: " + resp.GetCancelReason())
		case resp.GetCreated():
		case len(resp.GetEvents()) > 0:
			return resp.GetEvents(), 0, nil
		default:
			return nil, resp.GetHeader().GetRevision(), nil
		}
	}
}

// findCompacted finds up to where etcd's history is compacted. Only the error of a
// watch contains it.
func (s *Store) findCompacted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	w, err := s.watchKeys(ctx, s.target.prefix+metaFolder, "", 1)
	if err != nil {
		return err
	}
	defer w.close()
	defer w.askAgain()()
	var compacted *compactedError
	switch _, _, err := w.receive(); {
	case errors.As(err, &compacted):
		s.raiseCompacted(s.view.Load().end(compacted.revision))
		return nil
	default:
		return err
	}
}

// raiseCompacted notes a compaction. It never goes back.
func (s *Store) raiseCompacted(to store.Revision) {
	for {
		old := s.compacted.Load()
		if int64(to) <= old || s.compacted.CompareAndSwap(old, int64(to)) {
			return
		}
	}
}

// transaction is what one transaction of etcd changed below the prefix.
type transaction struct {
	mod    int64
	events []*mvccpb.Event
}

// transactions splits the events of a response.
func transactions(events []*mvccpb.Event) (all []transaction) {
	for _, e := range events {
		last := len(all) - 1
		if last < 0 || all[last].mod != e.Kv.ModRevision {
			all = append(all, transaction{mod: e.Kv.ModRevision})
			last++
		}
		all[last].events = append(all[last].events, e)
	}
	return all
}

// errNoPast: an event comes without the state before it, as that is compacted.
var errNoPast = fmt.Errorf("the state before an event is compacted: %w", store.ErrCompacted)

// decode numbers the changes of records in a transaction by their position, which
// is why all watches of etcd are on the whole prefix. Values that cannot be read
// are left out and reported to damaged.
func (v *view) decode(t transaction, damaged func(error)) ([]store.Event, error) {
	var events []store.Event
	for i, e := range t.events {
		name, ok := v.name(e.Kv.Key)
		if !ok {
			continue
		}
		event, err := v.event(name, e, v.revision(t.mod, i))
		switch {
		case errors.Is(err, errNoPast):
			return nil, err
		case err != nil:
			damaged(err)
		default:
			events = append(events, event)
		}
	}
	return events, nil
}

func (v *view) event(name string, e *mvccpb.Event, revision store.Revision) (event store.Event, err error) {
	if e.PrevKv == nil && (e.Type == mvccpb.Event_DELETE || e.Kv.CreateRevision != e.Kv.ModRevision) {
		return event, errNoPast
	}
	if e.PrevKv != nil {
		before, _, err := v.record(name, e.PrevKv)
		if err != nil {
			return event, err
		}
		event.Prev = &before
	}
	if e.Type == mvccpb.Event_DELETE {
		event.Kind = store.Delete
		event.Record = store.Record{Key: name, Created: event.Prev.Created, Modified: revision}
		return event, nil
	}
	event.Kind = store.Put
	if event.Record, _, err = v.record(name, e.Kv); err == nil && event.Record.Modified != revision {
		detail := fmt.Sprintf("its envelope says revision %d, its event is %d", event.Record.Modified, revision)
		err = &DamagedError{Key: string(e.Kv.Key), Detail: detail}
	}
	return event, err
}
