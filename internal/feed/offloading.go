package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

const (
	// DefaultOffloadAfter is how old the changes of a segment are, when its files at the roots are removed.
	DefaultOffloadAfter = 4 * time.Hour

	offloadEvery = 10 * time.Second
	// listEvery is how often the target is listed: other instances add to it, and remove what is old.
	listEvery = 10 * time.Minute
	// offloadAge is the age at which a segment is sealed, so that it can be offloaded.
	offloadAge = time.Hour
)

// OffloadStatus describes the segments at a target.
type OffloadStatus struct {
	Target string `json:"target"`
	// Segments at the target, of this store, by its last listing at Listed; nil: it was not listed yet.
	Segments int        `json:"segments"`
	Listed   *time.Time `json:"listed,omitempty"`
	// Pending are sealed segments that are not there yet.
	Pending int `json:"pending"`
	// Problem is why segments are not offloaded, since Since; empty: they are.
	Problem string     `json:"problem,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
}

// offloading is the state of the offload.
type offloading struct {
	list   []seglog.Remote // at the target
	listed time.Time       // zero: not yet
	pruned time.Time
	err    error
	since  time.Time
}

// offload sealed segments until ctx ends.
func (f *Feed) offload(ctx context.Context) {
	retry := backoff.Backoff{Policy: backoff.Policy{First: offloadEvery, Last: 5 * time.Minute}}
	for {
		wait := offloadEvery
		if _, err := f.offloadOnce(ctx, false); err != nil {
			wait = retry.Next()
		} else {
			retry.Reset()
		}
		if !backoff.Sleep(ctx, wait) {
			return
		}
	}
}

// offloadOnce uploads what the target lacks, and returns how many that were. It lists the target where that was long ago, or
// relist is set.
func (f *Feed) offloadOnce(ctx context.Context, relist bool) (uploaded int, err error) {
	f.offloadTurn.Lock()
	defer f.offloadTurn.Unlock()
	f.mu.Lock()
	o := f.offloaded
	f.mu.Unlock()
	if relist || o.err != nil || time.Since(o.listed) > listEvery {
		list, err := f.cfg.Offload.List(ctx)
		if err != nil {
			return 0, f.offloadResult(ctx, o, err)
		}
		o.list, o.listed = list, time.Now()
		f.setOffloaded(o)
	}
	var failed error
	segments := f.Log.Segments()
	for i := range segments {
		s := &segments[i]
		if !s.Sealed || len(s.Copies) == 0 || s.Offloaded != "" {
			continue
		}
		r, err := f.cfg.Offload.Upload(ctx, f.Log, s.SHA256)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed meanwhile
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("the segment after position %d: %w", s.After, err))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		uploaded++
		o.list = append(o.list[:len(o.list):len(o.list)], r)
		f.setOffloaded(o)
	}
	if age := f.cfg.OffloadRetention; age > 0 && failed == nil && time.Since(o.pruned) > time.Hour {
		failed = f.prune(ctx, &o, time.Now().Add(-age).UnixMilli())
		f.setOffloaded(o)
	}
	f.Log.Release(f.cfg.OffloadAfter.Milliseconds())
	return uploaded, f.offloadResult(ctx, o, failed)
}

// prune removes from the target segments whose changes are all older than a time (Unix, ms), those too that were written before the
// store was restored.
func (f *Feed) prune(ctx context.Context, o *offloading, before int64) error {
	var kept []seglog.Remote
	var failed error
	for _, r := range o.list {
		if r.Newest < before {
			if err := f.cfg.Offload.Delete(ctx, r); err == nil {
				continue
			} else {
				failed = cmp.Or(failed, err)
			}
		}
		kept = append(kept, r)
	}
	o.list = kept
	if failed == nil {
		o.pruned = time.Now()
	}
	return failed
}

func (f *Feed) setOffloaded(o offloading) {
	f.mu.Lock()
	f.offloaded = o
	f.mu.Unlock()
	f.Log.Offloaded(o.list)
}

// offloadResult notes what became of a turn.
func (f *Feed) offloadResult(ctx context.Context, o offloading, err error) error {
	if err != nil && ctx.Err() != nil {
		return err
	}
	f.mu.Lock()
	before := f.offloaded.err
	if o.err = err; err != nil && before == nil {
		o.since = time.Now()
	}
	f.offloaded = o
	f.mu.Unlock()
	switch {
	case err != nil && before == nil:
		f.log.Warn("segments of the change feed are not offloaded; they stay at the roots, as long as there is space", "target", f.cfg.Offload.Target(), "error", err)
	case err == nil && before != nil:
		f.log.Info("segments of the change feed are offloaded again", "target", f.cfg.Offload.Target())
	}
	return err
}

// reach says of a position that is not in the log, that the target may have it.
func (f *Feed) reach(err error) error {
	var expired *seglog.ExpiredError
	if !errors.As(err, &expired) || f.cfg.Offload == nil {
		return err
	}
	f.mu.Lock()
	o := f.offloaded
	f.mu.Unlock()
	switch {
	case !o.listed.IsZero():
		return err
	case o.err != nil:
		return fmt.Errorf("%w; what was offloaded cannot be listed: %w", err, o.err)
	}
	return fmt.Errorf("%w; what was offloaded to %s is not listed yet", err, f.cfg.Offload.Target())
}

// sealAged seals the open segment if it is old, so that it can be offloaded. It is called by the writer.
func (f *Feed) sealAged() error {
	if f.cfg.Offload == nil {
		return nil
	}
	all := f.Log.Segments()
	if n := len(all); n == 0 || all[n-1].Sealed || time.Since(all[n-1].Created) < offloadAge {
		return nil
	}
	return f.Log.Seal()
}

// ErrNotOffloaded is returned where there is no target.
var ErrNotOffloaded = errors.New("the change feed is not offloaded: start the control plane with --feed-offload")

// OffloadNow seals the open segment, uploads what the target lacks, and returns how many segments that were. It blocks for the
// target. Errors: ErrNotOffloaded; those of the target; that of ctx.
func (f *Feed) OffloadNow(ctx context.Context) (uploaded int, err error) {
	if f.cfg.Offload == nil {
		return 0, ErrNotOffloaded
	}
	if err := f.seal(ctx); err != nil {
		return 0, err
	}
	return f.offloadOnce(ctx, true)
}

// seal has the writer seal the open segment, and waits for that.
func (f *Feed) seal(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case f.sealing <- done:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Verification is what Verify has found.
type Verification struct {
	// Files that were read, at the roots and at the target.
	Local     int `json:"local"`
	Offloaded int `json:"offloaded"`
	// Problems of them, a text each.
	Problems []string `json:"problems,omitempty"`
}

// Verify reads all sealed segments, each copy, and those of this store at the target, and checks their checksums. It blocks for
// as long as that takes. Errors: that of ctx, and that the target cannot be listed.
func (f *Feed) Verify(ctx context.Context) (Verification, error) {
	var out Verification
	segments := f.Log.Segments()
	for i := range segments {
		if !segments[i].Sealed {
			continue
		}
		for _, path := range segments[i].Copies {
			if ctx.Err() != nil {
				return out, ctx.Err()
			}
			err := f.Log.CheckCopy(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue // it was removed meanwhile
			}
			if out.Local++; err != nil {
				out.Problems = append(out.Problems, fmt.Sprintf("%s: %v", path, err))
			}
		}
	}
	if f.cfg.Offload == nil {
		return out, nil
	}
	list, err := f.cfg.Offload.List(ctx)
	if err != nil {
		return out, err
	}
	for _, r := range list {
		if r.Epoch != f.cfg.Store.Epoch() {
			continue
		}
		err := f.cfg.Offload.Check(ctx, r)
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		if err != nil && f.deleted(ctx, r) {
			continue
		}
		if out.Offloaded++; err != nil {
			out.Problems = append(out.Problems, fmt.Sprintf("%s: %v", f.cfg.Offload.Target(), err))
		}
	}
	return out, nil
}

// deleted reports whether the target does not list a segment any more: its retention is over, or another one with redacted values has its place.
func (f *Feed) deleted(ctx context.Context, r seglog.Remote) bool {
	list, err := f.cfg.Offload.List(ctx)
	return err == nil && !slices.Contains(list, r)
}

// offloadStatus is that of Status; nil: there is no target.
func (f *Feed) offloadStatus(segments []seglog.SegmentInfo) *OffloadStatus {
	if f.cfg.Offload == nil {
		return nil
	}
	out := &OffloadStatus{Target: f.cfg.Offload.Target()}
	for i := range segments {
		if segments[i].Sealed && segments[i].Offloaded == "" {
			out.Pending++
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	o := &f.offloaded
	for _, r := range o.list {
		if r.Epoch == f.cfg.Store.Epoch() {
			out.Segments++
		}
	}
	if listed := o.listed; !listed.IsZero() {
		out.Listed = &listed
	}
	if since := o.since; o.err != nil {
		out.Problem, out.Since = o.err.Error(), &since
	}
	return out
}
