package feed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/blob"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

const (
	// editRounds is how often all files are looked at for those that came meanwhile.
	editRounds = 5
	// reachTimeout is how long an editing waits for the feed to have what is to be edited, and to seal it.
	reachTimeout = 10 * time.Second
)

// Editing changes values in all files that the feed has of this store and of those before. All fields are required.
type Editing struct {
	// UpTo is the position up to which values are changed, in files of the present epoch.
	UpTo seglog.Position
	// Wanted reports whether a sealed file has to be read; of one at the target the marks are not known.
	Wanted func(f seglog.SealedFile) bool
	// Editor of a file.
	Editor func(f seglog.SealedFile) seglog.Editor
	// Examined is told the SHA-256 of a file in which nothing is left to change.
	Examined func(sha256 string)
}

// Unedited is a file that may still have values that are to be changed.
type Unedited struct {
	// File, if it is known what it is.
	File    *seglog.SealedFile
	Problem string
}

// Edit values in all sealed files at the roots and at the target, after it has sealed what is yet to be. It returns the files that it could
// not edit; none: the values are in no file that the feed can see. The target is listed if relist is set, or that was long ago. It blocks for the
// disks and the target. Errors: that of ctx.
func (f *Feed) Edit(ctx context.Context, e Editing, relist bool) ([]Unedited, error) {
	var problems []Unedited
	if err := f.sealUpTo(ctx, e.UpTo); err != nil {
		problems = append(problems, Unedited{Problem: err.Error()})
	}
	for round := range editRounds {
		local, left := f.editLocal(ctx, e)
		remote, more := f.editRemote(ctx, e, relist || round > 0)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if local+remote == 0 {
			return slices.Concat(problems, left, more), nil
		}
	}
	return append(problems, Unedited{Problem: "files of the change feed come and go"}), nil
}

// sealUpTo seals the open segment if it has changes up to a position.
func (f *Feed) sealUpTo(ctx context.Context, upTo seglog.Position) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	if err := f.Reach(ctx, upTo); err != nil {
		_, at := f.Log.End()
		return fmt.Errorf("the change feed is at position %d, and has to reach %d", at, upTo)
	}
	all := f.Log.Segments()
	if n := len(all); n == 0 || all[n-1].Sealed || all[n-1].After >= upTo {
		return nil
	}
	if err := f.seal(ctx); err != nil {
		return fmt.Errorf("the open segment of the change feed cannot be sealed: %w", err)
	}
	return nil
}

// editLocal edits the files of the roots, and those that were put aside. It returns how many it has changed.
func (f *Feed) editLocal(ctx context.Context, e Editing) (changed int, left []Unedited) {
	paths, err := f.Log.Files()
	if err != nil {
		left = append(left, Unedited{Problem: err.Error()})
	}
	for _, root := range f.cfg.Roots {
		aside, err := filepath.Glob(filepath.Join(root, asidePrefix+"*", "feed-*.seg*"))
		if err != nil {
			left = append(left, Unedited{Problem: err.Error()})
		}
		paths = append(paths, aside...)
	}
	for _, path := range paths {
		if ctx.Err() != nil {
			return changed, left
		}
		file, err := f.Log.Inspect(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // it was removed meanwhile
		case err != nil:
			left = append(left, Unedited{Problem: fmt.Sprintf("%s: %v", path, err)})
			continue
		case !file.Sealed && file.Epoch == f.cfg.Store.Epoch() && file.After >= e.UpTo:
			continue
		case !file.Sealed:
			left = append(left, Unedited{File: &file, Problem: path + ": it is not sealed"})
			continue
		case !e.Wanted(file):
			continue
		}
		out, err := f.Log.Edit(path, e.Editor(file))
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was removed, or another one has its place
			changed++
		case err != nil:
			left = append(left, Unedited{File: &file, Problem: fmt.Sprintf("%s: %v", path, err)})
		case out.Entries == 0:
			e.Examined(out.SHA256)
		default:
			e.Examined(out.Remote.SHA256)
			changed++
		}
	}
	return changed, left
}

// editRemote edits the segments at the target. It returns how many it has changed.
func (f *Feed) editRemote(ctx context.Context, e Editing, relist bool) (changed int, left []Unedited) {
	if f.cfg.Offload == nil {
		return 0, nil
	}
	f.offloadTurn.Lock()
	defer f.offloadTurn.Unlock()
	f.mu.Lock()
	o := f.offloaded
	f.mu.Unlock()
	if relist || time.Since(o.listed) > listEvery {
		list, err := f.cfg.Offload.List(ctx)
		if err != nil {
			return 0, []Unedited{{Problem: fmt.Sprintf("%s cannot be listed: %v", f.cfg.Offload.Target(), err)}}
		}
		o.list, o.listed = list, time.Now()
		f.setOffloaded(o)
	}
	for _, r := range slices.Clone(o.list) {
		file := remoteFile(r)
		if ctx.Err() != nil || !e.Wanted(file) {
			continue
		}
		next, err := f.editOne(ctx, e, o.list, r)
		switch {
		case err != nil && ctx.Err() == nil:
			left = append(left, Unedited{File: &file, Problem: fmt.Sprintf("%s: %s: %v", f.cfg.Offload.Target(), r.Name, err)})
		case err == nil && !slices.Equal(next, o.list):
			changed++
			o.list = next
			f.setOffloaded(o)
		}
	}
	return changed, left
}

func remoteFile(r seglog.Remote) seglog.SealedFile {
	return seglog.SealedFile{Sealed: true, Epoch: r.Epoch, After: r.After, SHA256: r.SHA256}
}

// editOne edits a segment of the target, and returns the list as it is then.
func (f *Feed) editOne(ctx context.Context, e Editing, list []seglog.Remote, r seglog.Remote) ([]seglog.Remote, error) {
	without := slices.DeleteFunc(slices.Clone(list), func(other seglog.Remote) bool { return other.Name == r.Name })
	same := func(other seglog.Remote) bool {
		return other.Epoch == r.Epoch && other.After == r.After && other.Complete == r.Complete && !e.Wanted(remoteFile(other))
	}
	if !slices.ContainsFunc(without, same) { // else another instance has written it anew
		out, err := f.cfg.Offload.Edit(ctx, r, e.Editor(remoteFile(r)))
		switch {
		case errors.Is(err, blob.ErrNotFound):
			return without, nil // removed meanwhile
		case err != nil:
			return nil, err
		case out.Entries == 0:
			e.Examined(r.SHA256)
			return list, nil
		}
		e.Examined(out.Remote.SHA256)
		if !slices.Contains(without, out.Remote) {
			without = append(without, out.Remote)
		}
		f.Log.Offloaded(without) // readers go on in the new one before the old one is gone
	}
	return without, f.cfg.Offload.Delete(ctx, r)
}
