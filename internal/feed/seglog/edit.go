package seglog

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Editor changes values of entries in sealed segments, as when a value must not be kept any more. It has nothing to do with what is
// appended.
type Editor struct {
	// Marks are noted in each file that is changed, beside those that it has.
	Marks []string
	// Edit returns what takes the place of an entry of a file that has marks; the same entry: it stays. It must not change the entry
	// that it is given, and only Value and PrevValue may differ in the one that it returns.
	Edit func(e *Entry, marks []string) (*Entry, error)
}

// Edited is what became of a file.
type Edited struct {
	// SHA256 of the blocks that were read, in hexadecimal, and the marks of the file.
	SHA256 string
	Marks  []string
	// Entries that were changed; 0: the file is as it was, and the new one is not complete.
	Entries int
	// Remote is the segment that was written, without a name.
	Remote Remote
	// Size of the file that was written.
	Size int64
}

// EditFile checks a sealed file of a size, and writes to w what an editor makes of it: a sealed file with the same positions. The same
// file and the same changes give the same bytes. Errors: those of CheckFile, of the editor, and of w.
func EditFile(f io.ReaderAt, size int64, w io.WriterAt, ed Editor) (Edited, error) {
	was, err := CheckFile(f, size)
	if err != nil {
		return Edited{}, err
	}
	h, begin, err := readHeader(f)
	if err != nil {
		return Edited{}, err
	}
	end, err := readFooter(f, size)
	if err != nil {
		return Edited{}, err
	}
	out := Edited{SHA256: was.SHA256, Marks: end.Marks}
	first, err := encodeHeader(h)
	if err != nil {
		return out, err
	}
	sum := sha256.New()
	c := contents{Last: h.After, Complete: h.After}
	put := func(data []byte) error {
		sum.Write(data)
		_, err := w.WriteAt(data, c.Size)
		return err
	}
	if err := put(first); err != nil {
		return out, err
	}
	c.Size = int64(len(first))
	in := &window{}
	var data []byte
	for at := begin; at < end.Size; {
		b, next, err := in.block(f, at, end.Size)
		if err != nil {
			return out, err
		}
		at = next
		for i, e := range b.entries {
			edited, err := ed.Edit(e, end.Marks)
			if err != nil {
				return out, fmt.Errorf("the entry at position %d: %w", e.Position, err)
			}
			if edited != e {
				if len(edited.Value) > MaxValue || len(edited.PrevValue) > MaxValue {
					return out, fmt.Errorf("the entry at position %d becomes too large", e.Position)
				}
				b.entries[i] = edited
				out.Entries++
			}
		}
		data = appendBlock(data[:0], c.Size, b, func(e *Entry) bool { return e.PrevValue != nil })
		if len(data) > maxBody {
			return out, fmt.Errorf("the entries up to position %d become too large", b.complete)
		}
		if err := put(data); err != nil {
			return out, err
		}
		c.note(b, c.Size, c.Size+int64(len(data)))
	}
	if out.Entries == 0 {
		return out, nil
	}
	if c.Complete != end.Complete || c.Entries != end.Entries {
		return out, fmt.Errorf("it has %d entries up to position %d, and its footer tells of %d up to %d", c.Entries, c.Complete, end.Entries, end.Complete)
	}
	marks := slices.Concat(end.Marks, ed.Marks)
	slices.Sort(marks)
	last, err := encodeFooter(c, sum.Sum(nil), slices.Compact(marks))
	if err != nil {
		return out, err
	}
	if _, err := w.WriteAt(last, c.Size); err != nil {
		return out, err
	}
	out.Size = c.Size + int64(len(last))
	out.Remote = Remote{Epoch: h.Epoch, After: h.After, Complete: c.Complete, Newest: c.Newest, SHA256: fmt.Sprintf("%x", sum.Sum(nil))}
	return out, nil
}

// Files are the sealed files of segments at the roots, those too that are no part of the log: copies of a root that was away, and what
// was put aside. Errors are of roots that cannot be read; what others have is returned with them. It reads from the disks.
func (l *Log) Files() (paths []string, err error) {
	for _, r := range l.roots {
		names, listed := l.opts.Disk.List(r.dir)
		err = errors.Join(err, listed)
		for _, name := range names {
			if strings.HasPrefix(name, namePrefix) && strings.Contains(name, nameSuffix) && !unfinished(name) {
				paths = append(paths, filepath.Join(r.dir, name))
			}
		}
	}
	return paths, err
}

// unfinished reports whether a file was being written when it was left.
func unfinished(name string) bool {
	return strings.HasSuffix(name, newSuffix) || strings.HasSuffix(name, editSuffix)
}

// SealedFile describes a file of Files.
type SealedFile struct {
	// Sealed is false for one that is being written, or was left without an end.
	Sealed bool
	// Epoch and After as in Remote.
	Epoch string
	After Position
	// SHA256 and Marks of a sealed one.
	SHA256 string
	Marks  []string
}

// Inspect a file of Files by what its header and footer tell. It reads from a disk.
func (l *Log) Inspect(path string) (SealedFile, error) {
	out, err := l.inspectFile(path)
	if err != nil { // maybe it was being written
		l.writing.Lock()
		defer l.writing.Unlock()
		return l.inspectFile(path)
	}
	return out, nil
}

func (l *Log) inspectFile(path string) (SealedFile, error) {
	f, err := l.opts.Disk.Open(path)
	if err != nil {
		return SealedFile{}, err
	}
	defer f.Close()
	h, _, err := readHeader(f)
	if err != nil {
		return SealedFile{}, err
	}
	size, err := f.Size()
	if err != nil {
		return SealedFile{}, err
	}
	end, err := readFooter(f, size)
	if errors.Is(err, errNotSealed) {
		return SealedFile{Epoch: h.Epoch, After: h.After}, nil
	}
	if err != nil {
		return SealedFile{}, err
	}
	return SealedFile{Sealed: true, Epoch: h.Epoch, After: h.After, SHA256: end.SHA256, Marks: end.Marks}, nil
}

// Edit replaces a sealed file of Files by what an editor makes of it. At any moment, and after a crash, there is the old file or the
// new one. Readers that are in the old one go on in the new one. If a copy of a segment becomes different from the others, it is the
// one that is kept, and the others are made again (Repair) unless they are edited, too. It blocks for the disks; the writer waits
// only while the files change places.
func (l *Log) Edit(path string, ed Editor) (Edited, error) {
	disk := l.opts.Disk
	from, err := disk.Open(path)
	if err != nil {
		return Edited{}, err
	}
	defer from.Close()
	size, err := from.Size()
	if err != nil {
		return Edited{}, err
	}
	temporary := path + editSuffix
	if old, err := disk.Open(temporary); err == nil {
		if err := errors.Join(old.Close(), disk.Remove(temporary)); err != nil {
			return Edited{}, err
		}
	}
	to, err := disk.Create(temporary)
	if err != nil {
		return Edited{}, err
	}
	out, err := EditFile(from, size, to, ed)
	if err == nil && out.Entries > 0 {
		err = to.Sync()
	}
	if err != nil || out.Entries == 0 {
		return out, errors.Join(err, to.Close(), disk.Remove(temporary))
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.place(path, temporary, to, out); err != nil {
		return out, err
	}
	return out, nil
}

// place an edited file under its name. l.writing is held.
func (l *Log) place(path, temporary string, to File, ed Edited) error {
	disk := l.opts.Disk
	now, err := l.Inspect(path)
	if err == nil && (!now.Sealed || now.SHA256 != ed.SHA256) {
		err = fs.ErrNotExist // another one has its name meanwhile
	}
	if err == nil && l.unsealed(path) {
		err = errNotSealed // its end is in the file, but may not be on the disk
	}
	if err != nil {
		return errors.Join(err, to.Close(), disk.Remove(temporary))
	}
	if err := disk.Rename(temporary, path); err != nil {
		return errors.Join(err, to.Close(), disk.Remove(temporary))
	}
	err = disk.SyncDir(filepath.Dir(path))
	if taken, failed := l.takeEdited(path, to, ed); !taken {
		return errors.Join(err, failed, to.Close())
	}
	return err
}

// unsealed reports whether a file is that of a segment which is yet to be sealed.
func (l *Log) unsealed(path string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.segments, func(s *segment) bool {
		return !s.sealed && slices.ContainsFunc(s.copies, func(c *copyOf) bool { return c.path(s) == path })
	})
}

// takeEdited makes a file that was edited a copy of its segment; taken is false if the log has none of that name. Copies that are
// different now leave the log; their files stay until they are edited, too, or made again.
func (l *Log) takeEdited(path string, to File, ed Edited) (taken bool, err error) {
	size, err := to.Size()
	if err != nil {
		return false, err
	}
	end, err := readFooter(to, size)
	if err != nil {
		return false, err
	}
	_, begin, err := readHeader(to)
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.segments, func(s *segment) bool {
		return filepath.Base(path) == fileName(s.After) && s.sealed && len(s.copies) > 0
	})
	at := slices.IndexFunc(l.roots, func(r *root) bool { return r.dir == filepath.Dir(path) })
	if i < 0 || at < 0 {
		return false, nil
	}
	s, mine := l.segments[i], &copyOf{l.roots[at], to}
	here := func(c *copyOf) bool { return c.root == mine.root }
	next := &segment{header: s.header, contents: end.contents, begin: begin, sealed: true, sum: end.SHA256, marks: end.Marks}
	switch {
	case s.sum == end.SHA256: // the others were edited before
		next.copies = append(slices.DeleteFunc(slices.Clone(s.copies), here), mine)
		next.lost, next.remote = slices.DeleteFunc(slices.Clone(s.lost), here), s.remote
	case s.sum == ed.SHA256 && slices.ContainsFunc(s.copies, here):
		next.copies = []*copyOf{mine}
		next.lost = slices.DeleteFunc(slices.Concat(s.copies, s.lost), here)
	default:
		return false, nil
	}
	for _, c := range slices.Concat(s.copies, s.lost) {
		if here(c) {
			err = errors.Join(err, c.file.Close())
		}
	}
	l.segments = slices.Clone(l.segments)
	l.segments[i] = next
	l.wake()
	return true, err
}
