package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/blob"
	"github.com/proxima-mesh/proxima/internal/keyring"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/backup"
	"github.com/proxima-mesh/proxima/internal/store/sqlite"
)

// RestoreConfig configures Restore.
type RestoreConfig struct {
	// File is the backup. Store and DataDir are as for a control plane.
	File, Store, DataDir string
	// From is a location of blob.Open with backups, of which the newest is taken that is not younger than At; for a File that is empty.
	From string
	// At: the backup is brought to the state at that time, by the changes in FeedRoots (none: "feed" in DataDir) and in
	// Offload, a location of blob.Open. Zero: it is restored as it is.
	At        time.Time
	FeedRoots []string
	Offload   string
	// Force replaces a store and keys that are there; they are kept under other names.
	Force  bool
	Logger *slog.Logger
}

// Restored is what a restore did.
type Restored struct {
	backup.Header
	Records int64
	// Changes since the backup that were applied, and the time of the last; Complete: later ones are known, so none is missing.
	Changes    int64
	LastChange time.Time
	Complete   bool
	// Base is where the restored store begins; Epoch is the new one.
	Base     store.Revision
	NewEpoch string
	// Kept are files that were put aside.
	Kept []string
	// Keys are the key files that were restored.
	Keys []string
	// MissingKeys encrypt secrets of the backup and are not in KeyFile.
	MissingKeys []string
	KeyFile     string
	// NoAuthority: there is no certificate authority in the data directory; a new
	// one will be created, and all nodes and clients have to join again.
	NoAuthority bool
}

// Restore makes a store from a backup, for a control plane that is not running.
// The backup is checked as a whole before anything is written; then keys, then
// the store take their places. Blocks until everything is on the disk.
func Restore(ctx context.Context, cfg RestoreConfig) (Restored, error) {
	if !cfg.At.IsZero() && cfg.At.After(time.Now()) {
		return Restored{}, fmt.Errorf("restore: %s is in the future", cfg.At.Local().Format(time.RFC3339))
	}
	scratch, err := os.MkdirTemp("", "proxima-restore-")
	if err != nil {
		return Restored{}, fmt.Errorf("restore: %w", err)
	}
	defer os.RemoveAll(scratch)
	if cfg.File == "" {
		target, err := blob.Open(cfg.From)
		if err != nil {
			return Restored{}, fmt.Errorf("restore: %w", err)
		}
		if cfg.File, _, err = fetchBackup(ctx, target, cfg.At, scratch); err != nil {
			return Restored{}, fmt.Errorf("restore: %w", err)
		}
	}
	file, err := os.Open(cfg.File)
	if err != nil {
		return Restored{}, fmt.Errorf("restore: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return Restored{}, fmt.Errorf("restore: %w", err)
	}
	from, err := backup.Open(file, info.Size())
	if err != nil {
		return Restored{}, fmt.Errorf("restore %s: %w", cfg.File, err)
	}
	r := &restorer{cfg: cfg, from: from, now: time.Now(), done: Restored{Header: from.Header, KeyFile: keyFile(cfg.DataDir)}}
	if !cfg.At.IsZero() {
		if from.Created.After(cfg.At) {
			return Restored{}, fmt.Errorf("restore: the backup is of %s, which is after --at", from.Created.Local().Format(time.RFC3339))
		}
		if err := r.amend(ctx, scratch); err != nil {
			return Restored{}, fmt.Errorf("restore: %w", err)
		}
	}
	if err := makeDataDir(cfg.DataDir, orDiscard(cfg.Logger)); err != nil {
		return Restored{}, err
	}
	if err := r.run(ctx); err != nil {
		return Restored{}, err
	}
	_, err = os.Stat(filepath.Join(cfg.DataDir, "pki", "ca", "ca.crt"))
	r.done.NoAuthority = errors.Is(err, os.ErrNotExist)
	return r.done, nil
}

type restorer struct {
	cfg  RestoreConfig
	from *backup.Backup
	now  time.Time
	done Restored
}

func (r *restorer) run(ctx context.Context) error {
	engine, location, _ := strings.Cut(r.cfg.Store, ":")
	switch engine {
	case "memory":
		return &problem.Error{
			Code: problem.StoreUnsupported,
			Err:  errors.New("--store memory ends with this command: nothing could use what is restored"),
			Hint: "use sqlite:FILE",
		}
	case "sqlite":
		return r.intoSQLite(ctx, sqliteFile(location, r.cfg.DataDir))
	}
	s, err := openStore(ctx, r.cfg.Store, r.cfg.DataDir, orDiscard(r.cfg.Logger))
	if err != nil {
		return err
	}
	into, ok := s.(store.Restorer)
	if !ok {
		return errors.Join(fmt.Errorf("--store %s: this store cannot be restored", engine), s.Close())
	}
	err = r.fill(ctx, into, 0)
	if errors.Is(err, store.ErrNotEmpty) {
		err = &problem.Error{
			Code: problem.StoreNotEmpty,
			Err:  fmt.Errorf("--store %s: there is a state already: %w", engine, err),
			Hint: "restore into an empty database, or into a state of its own by search_path=NAME (postgres) or prefix=NAME (etcd) " +
				"in the URL; --force replaces files only",
		}
	}
	return errors.Join(err, s.Close())
}

func (r *restorer) intoSQLite(ctx context.Context, file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	how := sqlite.Replacement{Force: r.cfg.Force, Logger: r.cfg.Logger, Now: r.now}
	kept, err := sqlite.Replace(ctx, file, how, func(ctx context.Context, into *sqlite.Store, known store.Revision) error {
		return r.fill(ctx, into, known)
	})
	if kept != "" {
		r.done.Kept = append(r.done.Kept, kept)
	}
	var occupied *sqlite.NotEmptyError
	var used *sqlite.InUseError
	switch {
	case errors.As(err, &occupied):
		return &problem.Error{
			Code: problem.StoreNotEmpty,
			Err:  err,
			Hint: "restore into another data directory, or replace it with --force: the old state is kept under another name",
		}
	case errors.As(err, &used):
		return &problem.Error{Code: problem.StoreInUse, Err: err, Hint: "a restore needs the control plane to be stopped"}
	}
	return err
}

// fill restores the records and then, as nothing can go wrong with them any more,
// the keys.
func (r *restorer) fill(ctx context.Context, into store.Restorer, known store.Revision) error {
	if err := r.checkFiles(); err != nil {
		return err
	}
	var err error
	if r.done.Base, err = backup.Restore(ctx, into, r.from, known, r.now); err != nil {
		return err
	}
	r.done.NewEpoch = into.Epoch()
	if r.done.Records, err = into.Count(ctx, ""); err != nil {
		return err
	}
	if err := r.restoreFiles(); err != nil {
		return err
	}
	return r.checkKeys()
}

// checkFiles refuses files that would replace others.
func (r *restorer) checkFiles() error {
	for _, f := range r.from.Files {
		if !strings.HasPrefix(path.Clean(f.Name), "pki/") {
			return fmt.Errorf("the backup has a file %q, which has no place here", f.Name)
		}
		file := filepath.Join(r.cfg.DataDir, filepath.FromSlash(f.Name))
		have, err := os.ReadFile(file)
		switch {
		case errors.Is(err, os.ErrNotExist) || err == nil && bytes.Equal(have, f.Data):
		case err != nil:
			return err
		case !r.cfg.Force:
			return &problem.Error{
				Code: problem.FileExists,
				Err:  fmt.Errorf("there is another %s already", file),
				Hint: "restore into another data directory, or replace it with --force: the old file is kept under another name",
			}
		}
	}
	return nil
}

func (r *restorer) restoreFiles() error {
	for _, f := range r.from.Files {
		target := filepath.Join(r.cfg.DataDir, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return err
		}
		have, err := os.ReadFile(target)
		if err == nil && bytes.Equal(have, f.Data) {
			continue
		}
		if err == nil {
			kept := target + ".replaced-" + r.now.UTC().Format("20060102T150405")
			if err := os.Link(target, kept); err != nil {
				return fmt.Errorf("put %s aside: %w", target, err)
			}
			r.done.Kept = append(r.done.Kept, kept)
		}
		if err := atomicfile.Write(target, f.Data, 0o600); err != nil {
			return err
		}
		r.done.Keys = append(r.done.Keys, target)
	}
	return nil
}

// checkKeys finds the keys that secrets need and that are not there.
func (r *restorer) checkKeys() error {
	ring, err := keyring.Open(r.done.KeyFile, true) // makes no file
	if err != nil {
		return err
	}
	have := ring.Keys()
	for record, err := range r.from.Records() {
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(sealedPrefixes(), func(p string) bool { return strings.HasPrefix(record.Key, p) }) {
			continue
		}
		id, err := keyring.KeyID(record.Value)
		known := slices.ContainsFunc(have, func(k keyring.Key) bool { return k.ID == id })
		if err != nil || known || slices.Contains(r.done.MissingKeys, id) {
			continue
		}
		r.done.MissingKeys = append(r.done.MissingKeys, id)
	}
	return nil
}

// ReceiveBackup writes a backup to a private file and checks it. The file gets
// its name when it is whole; an existing one is never replaced.
func ReceiveBackup(from io.Reader, name string) (backup.Summary, error) {
	if _, err := os.Lstat(name); err == nil {
		return backup.Summary{}, fmt.Errorf("%s exists already; a backup replaces no file", name)
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*") // mode 0600
	if err != nil {
		return backup.Summary{}, err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	size, err := io.Copy(tmp, from)
	if err == nil {
		err = tmp.Sync()
	}
	if err != nil {
		return backup.Summary{}, fmt.Errorf("receive backup: %w", err)
	}
	b, err := backup.Open(tmp, size)
	if err != nil {
		return backup.Summary{}, &problem.Error{
			Code: problem.BackupIncomplete,
			Err:  err,
			Hint: "the control plane did not finish it; see its log for the reason",
		}
	}
	summary := backup.Summary{Header: b.Header, Files: len(b.Files)}
	for _, err := range b.Records() {
		if err != nil {
			return backup.Summary{}, err
		}
		summary.Records++
	}
	// Link fails where Rename would replace.
	if err := os.Link(tmp.Name(), name); err != nil {
		return backup.Summary{}, err
	}
	return summary, atomicfile.SyncDir(filepath.Dir(name))
}
