package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/clusterkey"
	"github.com/proxima-mesh/proxima/internal/keyring"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/store"
)

// sharedFiles are what instances share, by their names in the store: the authority and the
// key ring, each a file below pki in the data directory.
var sharedFiles = map[string]string{
	"ca.crt":       filepath.Join("ca", "ca.crt"),
	"ca.key":       filepath.Join("ca", "ca.key"),
	"secrets.keys": keyring.FileName,
}

// clusterWrapper is what opens the shared keys; nil: this control plane has one instance.
func (cfg ControlPlaneConfig) clusterWrapper() (clusterkey.Wrapper, error) {
	switch {
	case cfg.ClusterKeyFile != "" && len(cfg.ClusterKeyCommand) > 0:
		return nil, &problem.Error{
			Code: problem.Usage, Err: errors.New("--cluster-key-file and --cluster-key-command are both given"), Hint: "give one of them",
		}
	case len(cfg.ClusterKeyCommand) > 0:
		return &clusterkey.Command{Argv: cfg.ClusterKeyCommand}, nil
	case cfg.ClusterKeyFile == "":
		return nil, nil
	}
	f, err := clusterkey.OpenFile(cfg.ClusterKeyFile)
	if err != nil {
		return nil, &problem.Error{
			Code: problem.ClusterKey, Err: err,
			Hint: "make one with: openssl rand -base64 32 > FILE; chmod 600 FILE; and copy it to all instances",
		}
	}
	return f, nil
}

// shareKeys takes the keys of the control plane from the store, or puts this instance's there
// if it is the first. Then the files in the data directory are those of all instances.
func (s *storage) shareKeys(ctx context.Context, w clusterkey.Wrapper, storeName string) error {
	if !sharable(storeName) && w == nil {
		return nil // of one process, though its state may be from a backup of several
	}
	local, err := s.localKeys()
	if err != nil {
		return err
	}
	shared, err := clusterkey.Load(ctx, s.store, w)
	if err == nil && shared.Items == nil && w != nil {
		shared, err = s.shareFirst(ctx, w, local)
	}
	switch {
	case errors.Is(err, clusterkey.ErrKeyNeeded):
		return &problem.Error{
			Code: problem.ClusterKey, Err: err,
			Hint: "start it with --cluster-key-file and the key file of the other instances",
		}
	case errors.Is(err, clusterkey.ErrWrongKey):
		return &problem.Error{
			Code: problem.ClusterKey, Err: err, Hint: "copy the key file of another instance to this one",
		}
	case err != nil:
		return err
	case w == nil:
		return nil
	}
	if err := s.adopt(local, shared.Items); err != nil {
		return err
	}
	s.sharing = &ringSharing{ctx: context.WithoutCancel(ctx), store: s.store, wrapper: w}
	return nil
}

// localKeys are the files that are there.
func (s *storage) localKeys() (clusterkey.Items, error) {
	items := clusterkey.Items{}
	for name, file := range sharedFiles {
		data, err := os.ReadFile(filepath.Join(s.dataDir, "pki", file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		items[name] = data
	}
	return items, nil
}

// shareFirst shares the keys of this instance, the first with a cluster key. A control plane
// that had one instance so far goes on with its authority and its keys.
func (s *storage) shareFirst(ctx context.Context, w clusterkey.Wrapper, local clusterkey.Items) (*clusterkey.Shared, error) {
	used, err := keyring.AnySealed(ctx, s.store, sealedPrefixes())
	if err != nil {
		return nil, err
	}
	if _, has := local["secrets.keys"]; used && !has {
		return nil, &problem.Error{
			Code: problem.ClusterKey,
			Err:  fmt.Errorf("the store has secrets, and their keys are not in %s: they cannot be shared", keyFile(s.dataDir)),
			Hint: "start the first instance with the data directory that this control plane had so far, or put the file back",
		}
	}
	dir := s.dataDir
	if len(local) == 0 {
		// Of several instances that are first at the same time one wins; the others throw
		// what they made away.
		if dir, err = os.MkdirTemp(s.dataDir, ".keys-*"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
	}
	if _, err := identity.Open(filepath.Join(dir, "pki")); err != nil {
		return nil, err
	}
	if _, err := keyring.Open(filepath.Join(dir, "pki", keyring.FileName), used); err != nil {
		return nil, err
	}
	items, err := (&storage{dataDir: dir}).localKeys()
	if err != nil {
		return nil, err
	}
	fresh := func() (clusterkey.Items, error) { return items, nil }
	if len(local) == 0 {
		return clusterkey.Join(ctx, s.store, w, nil, fresh)
	}
	return clusterkey.Join(ctx, s.store, w, items, fresh)
}

// adopt writes the shared keys where packages expect them. A file that is there must have
// been shared: it may be needed by what this instance has issued or encrypted.
func (s *storage) adopt(local, shared clusterkey.Items) error {
	for name, data := range local {
		// Another instance may have changed the key ring since this one ran last.
		if name != "secrets.keys" && !bytes.Equal(data, shared[name]) {
			return &problem.Error{
				Code: problem.ClusterKey,
				Err: fmt.Errorf("%s is not that of the other instances: this data directory is of another control plane",
					filepath.Join(s.dataDir, "pki", sharedFiles[name])),
				Hint: "start it with an empty data directory; it takes what it needs from the store",
			}
		}
	}
	if _, has := local["ca.key"]; has {
		// The key ring is of this control plane, too, and may be an older one.
	} else if err := keyring.Covers(shared["secrets.keys"], local["secrets.keys"]); err != nil {
		return &problem.Error{
			Code: problem.ClusterKey, Err: fmt.Errorf("%s: %w", keyFile(s.dataDir), err),
			Hint: "if no secret needs these keys, remove the file; it comes back with the keys of the other instances",
		}
	}
	for _, name := range []string{"secrets.keys", "ca.crt", "ca.key"} {
		if bytes.Equal(local[name], shared[name]) {
			continue
		}
		file := filepath.Join(s.dataDir, "pki", sharedFiles[name])
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		if err := atomicfile.Write(file, shared[name], 0o600); err != nil {
			return err
		}
	}
	return nil
}

// ringSharing is a keyring.Sharing by the shared keys in the store.
type ringSharing struct {
	ctx     context.Context
	store   store.Store
	wrapper clusterkey.Wrapper
	last    *clusterkey.Shared
}

// sharingTimeout bounds an access to the shared keys.
const sharingTimeout = 30 * time.Second

// Fetch implements keyring.Sharing.
func (r *ringSharing) Fetch() ([]byte, error) {
	ctx, cancel := context.WithTimeout(r.ctx, sharingTimeout)
	defer cancel()
	shared, err := clusterkey.Load(ctx, r.store, r.wrapper)
	if err != nil {
		return nil, err
	}
	if shared.Items == nil {
		return nil, errors.New("the keys that the instances share are not in the store any more")
	}
	r.last = shared
	return shared.Items["secrets.keys"], nil
}

// Publish implements keyring.Sharing.
func (r *ringSharing) Publish(content []byte) error {
	ctx, cancel := context.WithTimeout(r.ctx, sharingTimeout)
	defer cancel()
	items := clusterkey.Items{}
	for name, data := range r.last.Items {
		items[name] = data
	}
	items["secrets.keys"] = content
	return r.last.Update(ctx, r.store, r.wrapper, items)
}

// followKeys takes the keys that other instances share from now on, until ctx ends.
func (s *storage) followKeys(ctx context.Context) error {
	log := s.log.With("component", "secrets")
	backoff.Retry(ctx, backoff.Policy{First: time.Second, Last: 10 * time.Second, Jitter: 0.2}, func(ctx context.Context) error {
		return s.watchKeys(ctx, log)
	}, func(err error, delay time.Duration) {
		log.Warn("the keys that the instances share are not followed", "error", err, "retry_in", delay)
	})
	return nil
}

func (s *storage) watchKeys(ctx context.Context, log *slog.Logger) error {
	at, err := s.store.Revision(ctx)
	if err != nil {
		return err
	}
	w, err := s.store.Watch(ctx, clusterkey.Key, at)
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		if err := s.keys.Refresh(); err != nil {
			log.Error("the keys that another instance has shared are not used", "error", err)
		}
		batch, open := <-w.Batches()
		for open && len(batch.Events) == 0 {
			batch, open = <-w.Batches()
		}
		if !open {
			return errors.Join(errors.New("the watch ended"), w.Err())
		}
	}
}
