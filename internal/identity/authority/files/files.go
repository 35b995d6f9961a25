// Package files reads the material of a provided authority from files, and notices when
// they change.
//
// Enter at New; Files is an authority.Source. It never writes.
package files

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/secretfile"
)

const (
	// maxFile in bytes: a key and some certificates have less than a tenth.
	maxFile = 256 << 10
	// recheck is for file systems that report no changes, such as NFS.
	recheck = time.Minute
)

// Files are the files of one authority. Safe for concurrent use.
type Files struct {
	cert, key, roots string

	mu      sync.Mutex
	changed chan struct{}
}

// New names the files; roots may be empty. It does no I/O.
func New(cert, key, roots string) *Files { return &Files{cert: cert, key: key, roots: roots} }

// Load implements authority.Source.
func (f *Files) Load(context.Context) (authority.Material, error) {
	var m authority.Material
	var err error
	if m.Certificate, err = read(f.cert, secretfile.Anyone); err != nil {
		return authority.Material{}, err
	}
	if m.Key, err = read(f.key, secretfile.OwnersGroup); err != nil {
		return authority.Material{}, err
	}
	if f.roots != "" {
		if m.Roots, err = read(f.roots, secretfile.Anyone); err != nil {
			return authority.Material{}, err
		}
	}
	return m, nil
}

func read(path string, readers secretfile.Readers) ([]byte, error) {
	return secretfile.Read(path, secretfile.Rule{
		Readers: readers, Max: maxFile,
		Advice: "chmod 600 it, and replace the key if they may have", Kind: "it is no key or certificate",
	})
}

// Changed implements authority.Source. Only Run closes the channel.
func (f *Files) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.changed
}

func (f *Files) notify() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// Run watches the folders of the files until ctx ends, and returns nil then. Files are
// replaced by renames, in Kubernetes by that of a link, so that the folder is what to
// watch.
func (f *Files) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the files of an authority: %w", err)
	}
	defer w.Close()
	for _, path := range []string{f.cert, f.key, f.roots} {
		if path == "" {
			continue
		}
		if err := w.Add(filepath.Dir(path)); err != nil {
			return fmt.Errorf("watch %s: %w", filepath.Dir(path), err)
		}
	}
	f.notify() // what changed before the watch began
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-w.Events:
			if !ok {
				return errors.New("watch the files of an authority: the watch ended")
			}
			if event.Op != fsnotify.Chmod {
				f.notify()
			}
		case _, ok := <-w.Errors:
			if !ok {
				return errors.New("watch the files of an authority: the watch ended")
			}
			f.notify() // events may be lost
		case <-ticker.C:
			f.notify()
		}
	}
}
