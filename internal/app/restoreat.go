package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/proxima-mesh/proxima/internal/blob"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/backup"
)

const (
	backupFolder = "backups/"
	backupTime   = "20060102T150405Z"
)

var backupNames = regexp.MustCompile(`^` + backupFolder + `(\d{8}T\d{6}Z)-(\d+)\.backup$`)

// backupName of a backup at a target. Of two at the same second and revision one is enough.
func backupName(h backup.Header) string {
	return fmt.Sprintf("%s%s-%d.backup", backupFolder, h.Created.UTC().Format(backupTime), h.Revision)
}

// backupsAt a target, oldest first, by the time at which they were begun.
func backupsAt(ctx context.Context, target blob.Target) (names []string, times []time.Time, err error) {
	list, err := target.List(ctx, backupFolder)
	if err != nil {
		return nil, nil, err
	}
	for _, b := range list {
		m := backupNames.FindStringSubmatch(b.Name)
		if m == nil {
			continue
		}
		t, err := time.Parse(backupTime, m[1])
		if err != nil {
			continue
		}
		names, times = append(names, b.Name), append(times, t)
	}
	return names, times, nil
}

// KeepBackup puts a backup that is in a file to a target, and returns its name there.
func KeepBackup(ctx context.Context, target blob.Target, file string) (name string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	b, err := backup.Open(f, info.Size())
	if err != nil {
		return "", err
	}
	sum, err := blob.Sum(f, info.Size())
	if err != nil {
		return "", err
	}
	name = backupName(b.Header)
	return name, target.Put(ctx, name, f, info.Size(), sum)
}

// PruneBackups deletes the backups of a target that were begun before a time, but for the newest. It returns how many.
func PruneBackups(ctx context.Context, target blob.Target, before time.Time) (deleted int, err error) {
	names, times, err := backupsAt(ctx, target)
	if err != nil {
		return 0, err
	}
	for i := range max(len(names)-1, 0) {
		if !times[i].Before(before) {
			break
		}
		if err := target.Delete(ctx, names[i]); err != nil {
			return deleted, err
		}
		deleted++
	}
	return deleted, nil
}

// fetchBackup brings the newest backup that was begun at a time, or before, into a file in dir.
func fetchBackup(ctx context.Context, target blob.Target, at time.Time, dir string) (file, name string, err error) {
	names, times, err := backupsAt(ctx, target)
	if err != nil {
		return "", "", err
	}
	for i := range names {
		if at.IsZero() || !times[i].After(at) {
			name = names[i]
		}
	}
	if name == "" {
		return "", "", fmt.Errorf(`%s has no backup that is old enough (it has %d): give a later --at, or make backups with "proxima backup --to"`, target, len(names))
	}
	f, err := os.CreateTemp(dir, "backup-*") // mode 0600
	if err != nil {
		return "", "", err
	}
	return f.Name(), name, errors.Join(target.Get(ctx, name, f), f.Close())
}

// readOnly is the machine's file system, without changes: the feed that is read may be another's.
type readOnly struct{ seglog.OS }

type readOnlyFile struct{ *os.File }

var errReadOnly = errors.New("it is only read")

func (readOnly) Create(string) (seglog.File, error) { return nil, errReadOnly }
func (readOnly) Rename(_, _ string) error           { return errReadOnly }
func (readOnly) Remove(string) error                { return errReadOnly }
func (readOnly) SyncDir(string) error               { return errReadOnly }

func (readOnly) Open(name string) (seglog.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return readOnlyFile{f}, nil
}

func (f readOnlyFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (readOnlyFile) WriteAt([]byte, int64) (int, error) { return 0, errReadOnly }
func (readOnlyFile) Truncate(int64) error               { return errReadOnly }
func (readOnlyFile) Sync() error                        { return nil }

// amend brings a backup to the state at a time, by the changes of the feed since. Changes of what is not in the feed are left out. It
// blocks while these are read.
func (r *restorer) amend(ctx context.Context, scratch string) error {
	l, err := r.openSegments(ctx, scratch)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	limit := seglog.Position(0)
	for _, s := range l.Segments() {
		if s.Epoch == r.from.Epoch {
			limit = max(limit, s.Complete)
		}
	}
	changes := map[string]*store.Record{}
	at := seglog.Position(r.from.Revision)
	for reader := l.Read(at); reader.At() < limit; {
		entries, err := reader.Poll()
		var expired *seglog.ExpiredError
		if errors.As(err, &expired) {
			return fmt.Errorf("the backup of %s needs all changes after revision %d, but those that are there begin after revision %d: "+
				"name where segments are with --feed-offload or --feed-root, or restore the backup alone, without --at",
				r.from.Created.Local().Format(time.RFC3339), reader.At(), expired.First)
		}
		if err != nil {
			return fmt.Errorf("read the changes since the backup: %w", err)
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			if e.Position > limit {
				break
			}
			if e.Time.After(r.cfg.At) {
				r.done.Complete = true
				limit = 0
				break
			}
			at, r.done.LastChange = e.Position, e.Time
			r.done.Changes++
			if changes[e.Key] = nil; e.Kind == seglog.Put {
				changes[e.Key] = &store.Record{Key: e.Key, Value: e.Value, Created: store.Revision(e.Created), Modified: store.Revision(e.Position)}
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	r.from.Amend(store.Revision(at), changes)
	return nil
}

// openSegments of the feed that the backup's store had: of its roots, and of where they were offloaded.
func (r *restorer) openSegments(ctx context.Context, scratch string) (*seglog.Log, error) {
	roots := r.cfg.FeedRoots
	if len(roots) == 0 {
		roots = []string{filepath.Join(r.cfg.DataDir, "feed")}
	}
	var there []string
	for _, dir := range roots {
		if _, err := os.Stat(dir); err == nil {
			there = append(there, dir)
		}
	}
	if len(there) == 0 {
		there = []string{scratch}
	}
	offloader, err := openOffload(r.cfg.Offload, scratch, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	opts := seglog.Options{Roots: there, Epoch: r.from.Epoch, Disk: readOnly{}}
	if offloader == nil {
		return seglog.Open(opts)
	}
	opts.Tier = offloader
	list, err := offloader.List(ctx)
	if err != nil {
		return nil, err
	}
	l, err := seglog.Open(opts)
	if err != nil {
		return nil, err
	}
	_, end := l.End()
	for _, s := range list {
		if s.Epoch == r.from.Epoch {
			end = max(end, s.Complete)
		}
	}
	if err := l.Skip(end); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.Offloaded(list)
	return l, nil
}
