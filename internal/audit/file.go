package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// fileSystem is what a log needs of one.
type fileSystem interface {
	// Open for reading and appending, and make the file if it is not there.
	Open(name string) (file, error)
	Rename(from, to string) error
	Remove(name string) error
	// Replace a small file at once.
	Replace(name string, data []byte) error
}

type file interface {
	io.ReaderAt
	io.Writer
	io.Closer
	Stat() (fs.FileInfo, error)
	Sync() error
	Truncate(size int64) error
}

type disk struct{}

func (disk) Open(name string) (file, error) {
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
}
func (disk) Rename(from, to string) error { return os.Rename(from, to) }
func (disk) Remove(name string) error     { return os.Remove(name) }
func (disk) Replace(name string, data []byte) error {
	if err := os.WriteFile(name+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// current is the file that is written.
type current struct {
	file
	size    int64
	records int // written or found
	first   Record
}

func (c *current) isFull(cfg Config, now time.Time) bool {
	return c.records > 0 && (c.size >= cfg.FileBytes || now.Sub(c.first.Time) >= cfg.FileAge)
}

// append a line, or nothing of it: a part that was written is taken back. Where that
// fails too, it is found when the file is opened again.
func (c *current) append(line []byte, r Record) error {
	n, err := c.Write(line)
	if err != nil {
		if n > 0 {
			_ = c.Truncate(c.size)
		}
		return fmt.Errorf("write audit record: %w", err)
	}
	c.size += int64(n)
	if c.records++; c.records == 1 {
		c.first = r
	}
	return nil
}

func (c Config) path(suffix string) string { return filepath.Join(c.Dir, c.Name+suffix) }

// open the file and find where the chain is. The lock is held.
func (l *Log) open() (err error) {
	opened, err := l.cfg.fs.Open(l.cfg.path(".log"))
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	defer func() {
		if err != nil {
			_ = opened.Close() // the error before it counts
			l.file = nil
		}
	}()
	t, err := tailOf(opened)
	if err != nil {
		return fmt.Errorf("read audit log: %w", err)
	}
	if t.foreign {
		// An earlier version's, or another program's: put it aside.
		aside := l.cfg.path(unchained + stamp(time.Now()) + ".log")
		if err := l.cfg.fs.Rename(l.cfg.path(".log"), aside); err != nil {
			return fmt.Errorf("put an audit log without a chain aside: %w", err)
		}
		_ = opened.Close() // nothing was written to it
		if opened, err = l.cfg.fs.Open(l.cfg.path(".log")); err != nil {
			return fmt.Errorf("open audit log: %w", err)
		}
		t = tail{}
	}
	at := t.at
	if at.Seq == 0 {
		if at, err = lastRotated(l.cfg); err != nil {
			return err
		}
	}
	l.file = &current{file: opened, size: t.size, first: t.first}
	if t.at.Seq > 0 {
		l.file.records = 1
	}
	return l.resume(at, t)
}

// resume writes the log's own records about the state in which it continues.
func (l *Log) resume(at position, t tail) error {
	head, headErr := readHead(l.cfg)
	before := l.at
	l.at = at
	if t.unfinished { // only the end of the last line is missing
		if err := l.file.append([]byte("\n"), t.first); err != nil {
			return err
		}
	}
	if len(t.torn) > 0 {
		if t.torn[len(t.torn)-1] != '\n' {
			if err := l.file.append([]byte("\n"), Record{}); err != nil {
				return err
			}
			l.file.records--
		}
		details := map[string]string{"bytes": strconv.Itoa(len(t.torn)), "sha256": hashOf(t.torn)}
		if err := l.put(Record{Event: EventTorn, Details: details}); err != nil {
			return err
		}
	}
	known := head
	if before.Seq > known.Seq {
		known = before // this process wrote it
	}
	switch {
	case known.Seq > at.Seq || known.Seq == at.Seq && known.Hash != at.Hash:
		l.at.Seq = known.Seq // no number is used twice
		details := map[string]string{"last": strconv.FormatUint(at.Seq, 10), "known": strconv.FormatUint(known.Seq, 10), "hash": known.Hash}
		if err := l.put(Record{Event: EventMissing, Details: details}); err != nil {
			return err
		}
	case headErr != nil && at.Seq > 0:
		details := map[string]string{"head": headErr.Error(), "last": strconv.FormatUint(at.Seq, 10)}
		if err := l.put(Record{Event: EventMissing, Details: details}); err != nil {
			return err
		}
	}
	if !l.started {
		if err := l.put(Record{Event: EventStarted}); err != nil {
			return err
		}
		l.started = true
	}
	return nil
}

// tail is the end of a file.
type tail struct {
	size int64
	at   position
	// torn is what follows the last record. unfinished: the last record lacks the end
	// of its line.
	torn       []byte
	unfinished bool
	// first record of the file.
	first Record
	// foreign: it has lines, but none of this package.
	foreign bool
}

// firstWindow at the end of a file; it grows until there is a record in what is read.
const firstWindow = 64 << 10

func tailOf(f file) (t tail, err error) {
	info, err := f.Stat()
	if err != nil {
		return t, err
	}
	if t.size = info.Size(); t.size == 0 {
		return t, nil
	}
	for window := int64(firstWindow); ; window *= 4 {
		start := max(0, t.size-window)
		chunk := make([]byte, t.size-start)
		if _, err := f.ReadAt(chunk, start); err != nil && !errors.Is(err, io.EOF) {
			return t, err
		}
		if t.find(chunk, start == 0) {
			break
		}
		if start == 0 {
			n := min(len(chunk), len(recordStart))
			t.torn, t.foreign = chunk, string(chunk[:n]) != recordStart[:n] && len(bytes.Trim(chunk, "\x00")) > 0
			return t, nil
		}
	}
	if t.first, err = firstRecord(f); t.first.Seq == 0 {
		t.first.Seq = t.at.Seq // its time, zero, makes it old, so that it is rotated
	}
	return t, err
}

// find the last record in the end of a file. A chunk that is not whole begins within
// a line.
func (t *tail) find(chunk []byte, whole bool) bool {
	for end := len(chunk); end > 0; {
		begin := bytes.LastIndexByte(chunk[:end], '\n') + 1
		if begin == 0 && !whole {
			return false
		}
		line := chunk[begin:end]
		if r, err := decode(line); err == nil {
			t.at = position{r.Seq, hashOf(line)}
			t.unfinished = end == len(chunk)
			if !t.unfinished {
				t.torn = chunk[end+1:]
			}
			return true
		}
		end = begin - 1
	}
	return false
}

// firstRecord of a file; zero if there is none in its first lines.
func firstRecord(f io.ReaderAt) (Record, error) {
	chunk := make([]byte, maxLine)
	n, err := f.ReadAt(chunk, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return Record{}, err
	}
	for line := range bytes.SplitSeq(chunk[:n], []byte("\n")) {
		if r, err := decode(line); err == nil {
			return r, nil
		}
	}
	return Record{}, nil
}

// unchained marks files without a chain.
const unchained = "-unchained-"

func stamp(t time.Time) string { return t.UTC().Format("20060102T150405Z") }

// rotated is a file that is no longer written.
type rotated struct {
	path string
	// first is the number of its first record; 0: it has no chain.
	first uint64
	size  int64
	// last was when it was written last.
	last time.Time
}

// listRotated files of a log, oldest first.
func listRotated(dir, name string) ([]rotated, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list audit logs: %w", err)
	}
	var out []rotated
	for _, e := range entries {
		middle, ok := strings.CutPrefix(e.Name(), name+"-")
		middle, isLog := strings.CutSuffix(middle, ".log")
		info, err := e.Info()
		if !ok || !isLog || err != nil || !info.Mode().IsRegular() {
			continue
		}
		r := rotated{path: filepath.Join(dir, e.Name()), size: info.Size(), last: info.ModTime()}
		if _, number, ok := strings.Cut(middle, "-"); ok && !strings.HasPrefix("-"+middle, unchained) {
			if r.first, err = strconv.ParseUint(number, 10, 64); err != nil {
				continue // not ours
			}
		} else if !strings.HasPrefix("-"+middle, unchained) {
			continue
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b rotated) int {
		if a.first != b.first {
			if a.first < b.first {
				return -1
			}
			return 1
		}
		return strings.Compare(a.path, b.path)
	})
	return out, nil
}

// lastRotated is where the chain was when the log was rotated last.
func lastRotated(cfg Config) (position, error) {
	files, err := listRotated(cfg.Dir, cfg.Name)
	if err != nil || len(files) == 0 || files[len(files)-1].first == 0 {
		return position{}, err
	}
	f, err := cfg.fs.Open(files[len(files)-1].path)
	if err != nil {
		return position{}, fmt.Errorf("open rotated audit log: %w", err)
	}
	defer f.Close()
	t, err := tailOf(f)
	return t.at, err
}

// rotate the file that is written. The lock is held.
func (l *Log) rotate() error {
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("rotate audit log: %w", err)
	}
	name := l.cfg.path(fmt.Sprintf("-%s-%020d.log", stamp(time.Now()), l.file.first.Seq))
	if err := l.cfg.fs.Rename(l.cfg.path(".log"), name); err != nil {
		return fmt.Errorf("rotate audit log: %w", err)
	}
	next, err := l.cfg.fs.Open(l.cfg.path(".log"))
	if err != nil {
		return fmt.Errorf("rotate audit log: %w", err)
	}
	_ = l.file.Close() // it was synced
	l.file = &current{file: next}
	return l.retain(time.Now())
}

// retain removes files that are too many or too old, after recording their removal. The
// lock is held.
func (l *Log) retain(now time.Time) error {
	l.kept = now
	files, err := listRotated(l.cfg.Dir, l.cfg.Name)
	if err != nil {
		return err
	}
	total := l.file.size
	for _, f := range files {
		total += f.size
	}
	n := 0
	for n < len(files) && (total > l.cfg.MaxBytes || now.Sub(files[n].last) > l.cfg.MaxAge) {
		total -= files[n].size
		n++
	}
	if n == 0 {
		return nil
	}
	through := l.at.Seq
	switch {
	case n < len(files):
		through = max(files[n].first, 1) - 1
	case l.file.records > 0:
		through = l.file.first.Seq - 1
	}
	if through > 0 {
		details := map[string]string{"through": strconv.FormatUint(through, 10), "files": strconv.Itoa(n)}
		if err := l.put(Record{Event: EventRemoved, Details: details}); err != nil {
			return err
		}
		if err := l.file.Sync(); err != nil {
			return fmt.Errorf("bring the audit log to the disk: %w", err)
		}
	}
	for _, f := range files[:n] {
		if err := l.cfg.fs.Remove(f.path); err != nil {
			return fmt.Errorf("remove an old audit log: %w", err)
		}
	}
	return nil
}

func writeHead(cfg Config, at position) error {
	data, err := json.Marshal(at)
	if err != nil {
		return err
	}
	return cfg.fs.Replace(cfg.path(".head"), append(data, '\n'))
}

func readHead(cfg Config) (position, error) {
	var at position
	data, err := os.ReadFile(cfg.path(".head"))
	if errors.Is(err, os.ErrNotExist) {
		return at, errors.New("not there")
	}
	if err == nil {
		err = json.Unmarshal(data, &at)
	}
	return at, err
}
