package sealed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Records are all sealed records of a store.
type Records struct {
	store store.Store
	ring  Sealer
}

// NewRecords does no I/O.
func NewRecords(s store.Store, ring Sealer) *Records { return &Records{store: s, ring: ring} }

// Record of a name.
func (r *Records) Record(name string) *Record { return New(r.store, r.ring, name) }

// Names of the records that begin with a prefix, sorted.
func (r *Records) Names(ctx context.Context, prefix string) ([]string, error) {
	page, err := r.store.List(ctx, store.ListOptions{Prefix: Prefix + prefix, KeysOnly: true})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, rec := range page.Records {
		out = append(out, strings.TrimPrefix(rec.Key, Prefix))
	}
	return out, nil
}

// retryWatch spaces attempts to watch the store.
var retryWatch = backoff.Policy{First: 200 * time.Millisecond, Last: 10 * time.Second, Jitter: 0.5}

// Watch calls changed after each change of a record, and once whenever a watch begins. It
// blocks until ctx ends, and returns nil then.
func (r *Records) Watch(ctx context.Context, changed func()) error {
	pause := backoff.Backoff{Policy: retryWatch}
	for ctx.Err() == nil {
		if r.watch(ctx, changed) {
			pause.Reset()
		}
		backoff.Sleep(ctx, pause.Next())
	}
	return nil
}

// watch once; began: there was a watch.
func (r *Records) watch(ctx context.Context, changed func()) (began bool) {
	at, err := r.store.Revision(ctx)
	if err != nil {
		return false
	}
	w, err := r.store.Watch(ctx, Prefix, at)
	if err != nil {
		return false
	}
	defer w.Close()
	changed()
	for batch := range w.Batches() {
		if len(batch.Events) > 0 {
			changed()
		}
	}
	return true
}

// Reseal encrypts a record (KEY of the store) with the newest key. That it is gone, or was
// written meanwhile, is no error.
func (r *Records) Reseal(ctx context.Context, key string) error {
	name, ok := strings.CutPrefix(key, Prefix)
	if !ok {
		return fmt.Errorf("key %q is no sealed record", key)
	}
	record := r.Record(name)
	data, version, err := record.Load(ctx)
	if err != nil || data == nil {
		return err
	}
	if _, err = record.Save(ctx, data, version); errors.Is(err, rotation.ErrConflict) {
		return nil
	}
	return err
}
