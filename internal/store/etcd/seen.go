package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/backoff"
)

// sighting is the newest point of a history that an instance has seen. It is
// kept in a file of the instance, outside of etcd: a restore of etcd sets back
// everything that is in etcd, cluster ID and epoch included.
type sighting struct {
	Epoch    string `json:"epoch"`
	Prefix   string `json:"prefix"`
	Revision int64  `json:"revision"` // etcd's
}

// readSighting returns the zero value if there is no file.
func readSighting(path string) (s sighting, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return sighting{}, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return sighting{}, fmt.Errorf("read the newest revision that was seen: %s: %w "+
			"(delete the file if the state in etcd is the right one)", path, err)
	}
	return s, nil
}

func (s sighting) write(path string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(data, '\n'), 0o600)
}

// check compares the state in etcd with the newest point that was seen.
func (s sighting) check(prefix, epoch string, revision int64) error {
	if s.Epoch != epoch || s.Prefix != prefix || revision >= s.Revision {
		return nil
	}
	return wentBack(prefix, revision, s.Revision)
}

// wentBack is the error for a revision that is behind one that was seen.
func wentBack(prefix string, now, seen int64) *ReplacedError {
	return &ReplacedError{
		Detail: fmt.Sprintf("etcd is at revision %d, this instance has seen %d", now, seen),
		Hint: fmt.Sprintf("if etcd was restored from a snapshot on purpose, give the history a new epoch: "+
			"etcdctl put %s%s $(openssl rand -hex 16)", prefix, epochKey),
	}
}

// sightingInterval is how often the newest revision is written to its file. What
// is missing from it after a crash is too little for any restore to hide in.
const sightingInterval = 5 * time.Second

// keepSighting writes the newest revision to its file, and finds compactions by
// others, until ctx ends.
func (s *Store) keepSighting(ctx context.Context) {
	failed := false
	for round := 1; backoff.Sleep(ctx, sightingInterval); round++ {
		err := s.writeSighting()
		if err != nil && !failed {
			s.logger.Warn("the newest revision cannot be kept; a restore of etcd is not noticed after a restart of this instance", "error", err)
		}
		failed = err != nil
		// A history that was set back is noticed by a read. The root watch does not
		// notice it: etcd accepts a watch from the future.
		_, _ = s.Revision(ctx) // what is wrong ends the store, or is in the log
		if round%12 == 0 {
			_ = s.findCompacted(ctx) // an outage is in the log already
		}
	}
	_ = s.writeSighting() // reported before, if it fails always
}

func (s *Store) writeSighting() error {
	if s.opts.SeenFile == "" {
		return nil
	}
	now := sighting{Epoch: s.epoch, Prefix: s.target.prefix, Revision: s.seen.Load()}
	if last, err := readSighting(s.opts.SeenFile); err == nil && last == now {
		return nil
	}
	if err := now.write(s.opts.SeenFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("keep the newest revision in %s: %w", s.opts.SeenFile, err)
	} else if err != nil {
		return fmt.Errorf("keep the newest revision: the folder of %s does not exist: %w", s.opts.SeenFile, err)
	}
	return nil
}
