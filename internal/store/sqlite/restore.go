package sqlite

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/position"
)

var _ store.Restorer = (*Store)(nil)

// Restore implements store.Restorer, in one transaction. Commits wait until it
// is done.
func (s *Store) Restore(ctx context.Context, at store.Revision, records iter.Seq2[store.Record, error]) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	var given, failed error // by the caller's records; by the medium
	missed := s.task(ctx, func() {
		var events []store.Event
		failed = s.writer.transact(func(next *bookkeeping) error {
			if next.revision > 0 {
				given = store.ErrNotEmpty
				return given
			}
			next.revision, next.compacted, next.swept = at, at, at
			for record, err := range store.CheckRestored(at, records) {
				if err == nil {
					err = ctx.Err()
				}
				if err != nil {
					given = err
					return err
				}
				e := store.Event{Kind: store.Put, Record: record}
				if err := s.writer.record(e, record.Modified); err != nil {
					return fmt.Errorf("key %q: %w", record.Key, err)
				}
				next.size += int64(len(record.Value))
				next.digest ^= digest([]byte(record.Key), int64(record.Modified), toColumn(record.Expires))
				if !record.Expires.IsZero() {
					e.Record.Value = nil
					events = append(events, e)
				}
			}
			return nil
		})
		if given != nil {
			return
		}
		if s.noted(failed) != nil {
			return
		}
		s.compacted.Store(int64(at))
		s.size.Store(s.writer.size)
		s.expiry.Observe(events)
		s.hub.Skip(at)
	})
	switch {
	case missed != nil:
		return missed
	case given != nil:
		return given
	case failed != nil:
		return s.failed(ctx, "restore", failed)
	}
	return nil
}

// Replacement selects how Replace treats an existing state.
type Replacement struct {
	// Force replaces a state that is not empty, or that cannot be read. It is kept
	// under another name.
	Force  bool
	Logger *slog.Logger
	// Now names the file that is kept; zero: the present.
	Now time.Time
}

// NotEmptyError reports a state that a restore would have replaced.
type NotEmptyError struct {
	// Revision that it is at; 0 if it could not be read: see Err.
	Revision store.Revision
	Err      error
}

func (e *NotEmptyError) Error() string {
	if e.Err != nil {
		return "there is a state already, which cannot be read: " + e.Err.Error()
	}
	return fmt.Sprintf("there is a state already, at revision %d", e.Revision)
}

func (e *NotEmptyError) Unwrap() error { return e.Err }

// Replace replaces the state in the file at path. fill gets a fresh store and
// the newest revision of the state that is replaced, 0 if none is known. The file
// takes its place only when fill has returned nil and everything is on the disk:
// at every moment path has the old state or the new one. kept is the name
// under which the old state was put aside, if it was not empty.
//
// Errors: *InUseError, *NotEmptyError, those of fill and of the medium.
func Replace(
	ctx context.Context, path string, how Replacement, fill func(ctx context.Context, into *Store, known store.Revision) error,
) (kept string, err error) {
	l, err := acquire(path)
	if err != nil {
		return "", fmt.Errorf("replace state %q: %w", path, err)
	}
	defer l.release() //nolint:errcheck // the system releases it at the latest
	known, exists, err := inspect(ctx, path)
	occupied := exists && (known > 0 || err != nil)
	switch {
	case occupied && !how.Force:
		return "", fmt.Errorf("replace state %q: %w", path, &NotEmptyError{Revision: known, Err: err})
	case err != nil && how.Logger != nil:
		how.Logger.Warn("the state that is replaced cannot be read, it is put aside as it is", "path", path, "error", err)
	}
	if was, err := position.Read(positionPath(path)); err == nil {
		known = max(known, was.Revision)
	}
	next := path + ".restoring"
	defer discard(next)
	discard(next) // left by a restore that was cut short
	if err := build(ctx, next, known, how.Logger, fill); err != nil {
		return "", fmt.Errorf("replace state %q: %w", path, err)
	}
	if occupied {
		if how.Now.IsZero() {
			how.Now = time.Now()
		}
		kept = path + ".replaced-" + how.Now.UTC().Format("20060102T150405.000")
		if err := putAside(path, kept); err != nil {
			return "", fmt.Errorf("put state %q aside: %w", path, err)
		}
	}
	// A log left behind would be taken for the new file's.
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return kept, fmt.Errorf("replace state %q: %w", path, err)
		}
	}
	if err := os.Rename(next, path); err != nil {
		return kept, fmt.Errorf("replace state %q: %w", path, err)
	}
	return kept, atomicfile.SyncDir(filepath.Dir(path))
}

// inspect reads how far a state is. The caller holds its lock. On return the file
// is closed and its log is merged, unless it is broken.
func inspect(ctx context.Context, path string) (at store.Revision, exists bool, err error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err := prepare(ctx, path); err != nil {
		return 0, true, err
	}
	w, err := newWriter(ctx, path)
	if err != nil {
		return 0, true, err
	}
	return w.revision, true, w.close()
}

func build(
	ctx context.Context, path string, known store.Revision, logger *slog.Logger, fill func(context.Context, *Store, store.Revision) error,
) error {
	s, err := Open(ctx, path, Options{Logger: logger})
	if err != nil {
		return err
	}
	err = fill(ctx, s, known)
	return errors.Join(err, s.Close())
}

// putAside gives a state a second name; the first one goes when the new state
// takes it. Its log, which only a broken state still has, moves along.
func putAside(path, kept string) error {
	if err := os.Link(path, kept); err != nil {
		return err
	}
	if err := os.Rename(path+"-wal", kept+"-wal"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// discard removes a state that was not acknowledged.
func discard(path string) {
	for _, suffix := range []string{"", "-wal", "-shm", ".lock", ".position"} {
		_ = os.Remove(path + suffix) // what is in the way makes Open fail
	}
}
