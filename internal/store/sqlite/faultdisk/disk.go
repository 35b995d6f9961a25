// Package faultdisk is a layer under SQLite that simulates a disk: it tracks what a
// power cut would leave of every file, and makes syncs fail or lie. It is for
// tests.
//
// It owns a VFS of SQLite that passes everything to the system's and keeps a
// record of writes, truncations, syncs and deletions. Enter at Watch, which gives
// the record of one folder; Disk.Cut makes one of the states that a power cut at
// this moment may leave. It never changes what SQLite reads back: as with a real
// page cache, what is written is seen, whether or not it will survive.
//
// # What may be left
//
// What was written before a successful sync of its file is there. Of what was
// written since, each block of 512 bytes or 4 KiB is at any of the states it went
// through, independent of all others: old, new, or between two writes. A
// truncation happened or not. After a sync that failed, what it should have
// written is in part on the disk, and the rest is gone for good or still waits,
// as with the systems that mark such pages clean. A file that is new may be absent
// until its first sync, and one that is deleted may still be there.
package faultdisk

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Faults that a Disk injects, as shares from 0 (never) to 1 (always).
type Faults struct {
	// FailedSyncs return an I/O error.
	FailedSyncs float64
	// LostSyncs return without an error and have written nothing: a disk that ignores flushes.
	LostSyncs float64
}

// Disk is the record of one folder. Its methods may be called from any goroutine,
// but not from the function given to Each.
type Disk struct {
	folder string

	mu     sync.Mutex
	rng    *rand.Rand
	faults Faults
	files  map[string]*file // by path
	each   func(cut func() Image)
	seen   Seen
}

// Seen counts the operations on a Disk.
type Seen struct {
	Writes, Syncs, FailedSyncs, LostSyncs, Truncations, Deletions int
}

// Image is what a power cut left: the content of files by their base names.
type Image map[string][]byte

// WriteTo makes the files of an image in a folder that has none of them.
func (i Image) WriteTo(folder string) error {
	for name, content := range i {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return fmt.Errorf("image of a power cut: %w", err)
		}
	}
	return nil
}

// file is one file as the disk has it, and what may still become of it.
type file struct {
	synced  []byte
	pending []change
	// named: its name is on the disk. before is what the name stands for until then;
	// nil: nothing.
	named  bool
	before *file
	// gone: it was deleted, which may not have reached the disk.
	gone bool
	// journal: it is one of SQLite's, whose first sync is one of the folder, too.
	journal bool
}

// change is a write, or a truncation to offset if data is nil.
type change struct {
	offset int64
	data   []byte
}

// Watch keeps the record of the files that SQLite opens in a folder from now on,
// until Stop. What is there already counts as synced. The seed fixes the random numbers, not
// the order in which goroutines come to them.
func Watch(folder string, seed uint64) (*Disk, error) {
	if err := install(); err != nil {
		return nil, err
	}
	folder, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return nil, fmt.Errorf("folder of a fault disk: %w", err)
	}
	d := &Disk{folder: folder, rng: rand.New(rand.NewPCG(seed, seed)), files: map[string]*file{}}
	watched.Lock()
	defer watched.Unlock()
	if watched.disks[folder] != nil {
		return nil, fmt.Errorf("folder of a fault disk: %s has one", folder)
	}
	watched.disks[folder] = d
	return d, nil
}

// Stop ends the record. Files that are open must be closed before.
func (d *Disk) Stop() {
	watched.Lock()
	defer watched.Unlock()
	delete(watched.disks, d.folder)
}

// Set changes the faults from now on; the zero value heals.
func (d *Disk) Set(f Faults) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = f
}

// Seen returns what happened so far.
func (d *Disk) Seen() Seen {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen
}

// Each calls f after every operation that changes what a power cut leaves; nil
// ends that. The operation's caller waits for f, which may call cut.
func (d *Disk) Each(f func(cut func() Image)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.each = f
}

// Cut makes one of the states that a power cut would leave now. The disk goes on
// as if nothing had happened; each call draws new random numbers.
func (d *Disk) Cut() Image {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cut()
}

func (d *Disk) changed() {
	if d.each != nil {
		d.each(d.cut)
	}
}

// blocks are what a disk writes at once, and what a system does.
var blocks = []int64{512, 4096}

// cut draws random numbers once for all files, so that there are cuts that leave
// nothing of what waits, all of it, and everything between.
func (d *Disk) cut() Image {
	image := Image{}
	block := blocks[d.rng.IntN(len(blocks))]
	share := []float64{0, 1, d.rng.Float64(), d.rng.Float64()}[d.rng.IntN(4)]
	for _, path := range slices.Sorted(maps.Keys(d.files)) {
		f := d.named(d.files[path], share)
		if f == nil {
			continue
		}
		image[filepath.Base(path)] = f.reached(d.rng, block, share)
	}
	return image
}

// named is the file that a name stands for after a cut; nil: none. What folders hold
// reaches the disk in order: a deletion not before the creation.
func (d *Disk) named(f *file, share float64) *file {
	for f != nil && !f.named && !d.roll(share) {
		f = f.before
	}
	if f != nil && f.gone && d.roll(share) {
		return nil
	}
	return f
}

func (d *Disk) roll(share float64) bool { return d.rng.Float64() < share }

// reached is the content after some of what waits was written: of each block all
// changes up to one of them. share is how likely it is the last one.
func (f *file) reached(rng *rand.Rand, block int64, share float64) []byte {
	touches := map[int64]int{}
	for _, c := range f.pending {
		c.each(block, func(b, _, _ int64) { touches[b]++ })
	}
	for _, b := range slices.Sorted(maps.Keys(touches)) {
		switch {
		case share == 0:
			touches[b] = 0
		case rng.Float64() >= share:
			touches[b] = rng.IntN(touches[b] + 1)
		}
	}
	out := bytes.Clone(f.synced)
	for _, c := range f.pending {
		if c.data == nil {
			if rng.Float64() < share {
				out = resized(out, c.offset)
			}
			continue
		}
		c.each(block, func(b, from, to int64) {
			if touches[b] == 0 {
				return
			}
			touches[b]--
			if int64(len(out)) < to {
				out = resized(out, to)
			}
			copy(out[from:to], c.data[from-c.offset:])
		})
	}
	return out
}

// each calls f with the parts of a write that lie in one block.
func (c change) each(block int64, f func(b, from, to int64)) {
	end := c.offset + int64(len(c.data))
	for from := c.offset; from < end; {
		b := from / block
		to := min(end, (b+1)*block)
		f(b, from, to)
		from = to
	}
}

func resized(content []byte, size int64) []byte {
	if size <= int64(len(content)) {
		return content[:size]
	}
	return append(content, make([]byte, size-int64(len(content)))...)
}

// all is the content as SQLite reads it.
func (f *file) all() []byte {
	out := f.synced
	for _, c := range f.pending {
		if c.data == nil {
			out = resized(out, c.offset)
			continue
		}
		if end := c.offset + int64(len(c.data)); int64(len(out)) < end {
			out = resized(out, end)
		}
		copy(out[c.offset:], c.data)
	}
	return out
}

// opened begins the record of a file. existed: it was there before. journal: it is a
// journal or a log.
func (d *Disk) opened(path string, existed, journal bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.files[path]
	if known != nil && !known.gone {
		return nil
	}
	f := &file{before: known, named: existed, journal: journal}
	if existed {
		var err error
		if f.synced, err = os.ReadFile(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	d.files[path] = f
	d.changed()
	return nil
}

// wrote takes a write that is seen by readers. It keeps data.
func (d *Disk) wrote(path string, offset int64, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen.Writes++
	f := d.files[path]
	f.pending = append(f.pending, change{offset, data})
	d.changed()
}

func (d *Disk) truncated(path string, size int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen.Truncations++
	f := d.files[path]
	f.pending = append(f.pending, change{offset: size})
	d.changed()
}

// sync makes a file durable, or fails, or only pretends to succeed.
func (d *Disk) sync(path string) (ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.changed()
	d.seen.Syncs++
	f := d.files[path]
	switch {
	case d.roll(d.faults.LostSyncs):
		d.seen.LostSyncs++
		return true
	case d.roll(d.faults.FailedSyncs):
		d.seen.FailedSyncs++
		if d.roll(0.5) {
			f.synced = f.reached(d.rng, blocks[d.rng.IntN(len(blocks))], d.rng.Float64())
			f.pending = nil
		}
		return false
	}
	if f.journal && !f.named {
		d.syncFolder()
	}
	f.synced, f.pending, f.named, f.before = f.all(), nil, true, nil
	return true
}

// syncFolder makes names as durable as they are now.
func (d *Disk) syncFolder() {
	for path, f := range d.files {
		if f.gone {
			delete(d.files, path)
		}
		f.named, f.before = true, nil
	}
}

// deleted takes the deletion of a file; durable: its folder was synced after it.
func (d *Disk) deleted(path string, durable bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[path]
	if f == nil {
		return
	}
	d.seen.Deletions++
	f.gone = true
	if durable {
		delete(d.files, path)
	}
	d.changed()
}
