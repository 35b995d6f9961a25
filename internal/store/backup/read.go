package backup

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Backup is a backup whose checksum holds. Safe for concurrent use if the reader
// it came from is; it must stay open.
type Backup struct {
	Header
	// Files that are in it. The caller must not change them.
	Files []File

	from io.ReaderAt
	body int64 // bytes of magic and body, without the hash
	// changes since, by key; nil: the key is absent.
	changes map[string]*store.Record
}

// Amend makes a backup that of a later state, at a revision: changes have what each key was then that was changed since, nil if it was
// absent. The caller must not change them afterwards.
func (b *Backup) Amend(revision store.Revision, changes map[string]*store.Record) {
	b.Revision, b.changes = max(b.Revision, revision), changes
}

// Open reads all of a backup once and checks it. Errors: *FormatError, and
// those of the reader.
func Open(from io.ReaderAt, size int64) (*Backup, error) {
	b := &Backup{from: from, body: size - sha256.Size}
	if err := b.check(size); err != nil {
		return nil, err
	}
	r, err := b.begin()
	if err != nil {
		return nil, err
	}
	b.Header, b.Files = r.header, r.files
	return b, nil
}

// check compares version and hash.
func (b *Backup) check(size int64) error {
	head := make([]byte, len(magic))
	n, err := b.from.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read backup: %w", err)
	}
	switch head = head[:n]; {
	case string(head) == magic:
	case strings.HasPrefix(string(head), magicAny):
		return damagedf("it has another version than 1; use the version of proxima that made it, or a newer one")
	default:
		return damagedf("it is not a backup of proxima")
	}
	if b.body < int64(len(magic)) {
		return damagedf("it is cut off")
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(b.from, 0, b.body)); err != nil {
		return fmt.Errorf("read backup: %w", err)
	}
	want := make([]byte, sha256.Size)
	if _, err := b.from.ReadAt(want, b.body); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read backup: %w", err)
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return damagedf("its checksum does not hold: it is cut off or damaged (%d bytes)", size)
	}
	return nil
}

// Records yields all records in ascending order of keys. A body that violates the
// format ends it with a *FormatError. May be called more than once.
func (b *Backup) Records() iter.Seq2[store.Record, error] {
	if b.changes == nil {
		return b.records()
	}
	return func(yield func(store.Record, error) bool) {
		keys := slices.Sorted(maps.Keys(b.changes))
		// until yields the changes of keys below a key.
		until := func(key string, all bool) bool {
			for len(keys) > 0 && (all || keys[0] < key) {
				r := b.changes[keys[0]]
				if keys = keys[1:]; r != nil && !yield(*r, nil) {
					return false
				}
			}
			return true
		}
		for r, err := range b.records() {
			if err != nil {
				yield(r, err)
				return
			}
			if !until(r.Key, false) {
				return
			}
			if _, changed := b.changes[r.Key]; !changed && !yield(r, nil) {
				return
			}
		}
		until("", true)
	}
}

func (b *Backup) records() iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		r, err := b.begin()
		if err != nil {
			yield(store.Record{}, err)
			return
		}
		for {
			record, more, err := r.record()
			if err != nil {
				yield(store.Record{}, err)
				return
			}
			if !more || !yield(record, nil) {
				return
			}
		}
	}
}

// begin reads from the start up to the first record.
func (b *Backup) begin() (*reader, error) {
	body := io.NewSectionReader(b.from, int64(len(magic)), b.body-int64(len(magic)))
	unzip, err := gzip.NewReader(bufio.NewReaderSize(body, 256<<10))
	if err != nil {
		return nil, damagedf("%v", err)
	}
	r := &reader{in: bufio.NewReaderSize(unzip, 256<<10)}
	return r, r.open()
}

// reader reads frames.
type reader struct {
	in      *bufio.Reader
	header  Header
	files   []File
	records int64

	kind    byte // of the frame that was read last
	payload []byte
}

// next reads a frame. The payload is new each time.
func (r *reader) next() error {
	kind, err := r.in.ReadByte()
	if err != nil {
		return damagedf("it ends before its end frame: %v", err)
	}
	n, err := binary.ReadUvarint(r.in)
	if err != nil {
		return damagedf("length of a frame: %v", err)
	}
	if n > maxFrame {
		return damagedf("a frame of %d bytes", n)
	}
	// A length is a claim; memory grows with what is really there.
	var payload bytes.Buffer
	if got, err := io.CopyN(&payload, r.in, int64(n)); err != nil {
		return damagedf("a frame of %d bytes ends after %d: %v", n, got, err)
	}
	r.kind, r.payload = kind, payload.Bytes()
	return nil
}

func (r *reader) open() error {
	if err := r.next(); err != nil {
		return err
	}
	if r.kind != frameHeader {
		return damagedf("it begins with a frame of kind %q", r.kind)
	}
	if err := json.Unmarshal(r.payload, &r.header); err != nil {
		return damagedf("header: %v", err)
	}
	if r.header.Revision < 0 || r.header.Revision > maxRevision || r.header.Epoch == "" {
		return damagedf("header without epoch, or with a revision that none can be: %d", r.header.Revision)
	}
	for {
		if err := r.next(); err != nil {
			return err
		}
		if r.kind != frameFile {
			return nil
		}
		file, err := parseFile(r.payload)
		if err != nil {
			return err
		}
		if r.files = append(r.files, file); len(r.files) > maxFiles {
			return damagedf("more than %d files", maxFiles)
		}
	}
}

// record returns the record in the frame that is at hand and reads on; more is
// false at the end of the backup.
func (r *reader) record() (record store.Record, more bool, err error) {
	switch r.kind {
	case frameRecord:
		if record, err = parseRecord(r.payload); err != nil {
			return record, false, err
		}
		r.records++
		return record, true, r.next()
	case frameEnd:
		return record, false, r.end()
	}
	return record, false, damagedf("a frame of kind %q among the records", r.kind)
}

func (r *reader) end() error {
	var want end
	if err := json.Unmarshal(r.payload, &want); err != nil {
		return damagedf("end: %v", err)
	}
	if got := (end{Records: r.records, Files: len(r.files)}); got != want {
		return damagedf("it has %d records and %d files, but its end frame counts %d and %d", got.Records, got.Files, want.Records, want.Files)
	}
	if _, err := r.in.ReadByte(); !errors.Is(err, io.EOF) {
		return damagedf("something follows its end")
	}
	return nil
}

// fields cuts a payload; the first failure sticks.
type fields struct {
	rest []byte
	err  error
}

func (f *fields) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(f.rest)
	return f.took(v, n, v <= most)
}

func (f *fields) took(v uint64, n int, ok bool) uint64 {
	if f.err != nil {
		return 0
	}
	if n <= 0 || !ok {
		f.err = damagedf("a number in a frame is out of bounds")
		return 0
	}
	f.rest = f.rest[n:]
	return v
}

func (f *fields) varint() int64 {
	v, n := binary.Varint(f.rest)
	return int64(f.took(uint64(v), n, true))
}

func (f *fields) text() string {
	n := f.uvarint(uint64(len(f.rest)))
	if f.err == nil && n > uint64(len(f.rest)) {
		f.err = damagedf("a text is longer than its frame")
	}
	if f.err != nil {
		return ""
	}
	s := string(f.rest[:n])
	f.rest = f.rest[n:]
	return s
}

func parseRecord(payload []byte) (store.Record, error) {
	const most = 1<<63 - 1
	f := fields{rest: payload}
	r := store.Record{Created: store.Revision(f.uvarint(most)), Modified: store.Revision(f.uvarint(most))}
	if expires := f.varint(); expires != 0 {
		r.Expires = time.Unix(0, expires).UTC()
	}
	r.Key = f.text()
	r.Value = f.rest
	return r, f.err
}

func parseFile(payload []byte) (File, error) {
	f := fields{rest: payload}
	file := File{Name: f.text()}
	file.Data = f.rest
	if f.err == nil && !filepath.IsLocal(filepath.FromSlash(file.Name)) {
		return file, damagedf("file %q: not a relative path", file.Name)
	}
	return file, f.err
}
