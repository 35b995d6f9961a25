package backup

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// WriteOptions select what goes into a backup besides the store. The zero value is
// usable.
type WriteOptions struct {
	Program string
	// Created is the time of the backup; zero: now.
	Created time.Time
	Files   []File
}

const (
	// A page of a list is about pageBytes, whatever the size of the values.
	pageBytes = 16 << 20
	firstPage = 500
	maxPage   = 20000
)

// Write backs a store up as it is at one revision, while others read and write
// it. It blocks until w has everything; an error leaves in w a backup that Open
// refuses. If it takes so long that the store compacts that revision, the error
// is store.ErrCompacted: try again, or write to something faster.
func Write(ctx context.Context, w io.Writer, s store.Store, opts WriteOptions) (Summary, error) {
	sum := sha256.New()
	buffered := bufio.NewWriterSize(w, 256<<10)
	out := io.MultiWriter(buffered, sum)
	if _, err := io.WriteString(out, magic); err != nil {
		return Summary{}, fmt.Errorf("write backup: %w", err)
	}
	summary, err := writeBody(ctx, out, s, opts)
	if err == nil {
		_, err = buffered.Write(sum.Sum(nil))
	}
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		return Summary{}, fmt.Errorf("write backup: %w", err)
	}
	return summary, nil
}

func writeBody(ctx context.Context, out io.Writer, s store.Store, opts WriteOptions) (Summary, error) {
	// Values are small and often encrypted; more effort buys little.
	zip, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return Summary{}, err
	}
	f := &frames{out: zip}
	if opts.Created.IsZero() {
		opts.Created = time.Now()
	}
	page, err := s.List(ctx, store.ListOptions{Limit: firstPage})
	if err != nil {
		return Summary{}, err
	}
	summary := Summary{Header: Header{Epoch: s.Epoch(), Revision: page.Revision, Created: opts.Created.UTC(), Program: opts.Program}}
	if err := f.json(frameHeader, summary.Header); err != nil {
		return Summary{}, err
	}
	for _, file := range opts.Files {
		if err := f.file(file); err != nil {
			return Summary{}, err
		}
		summary.Files++
	}
	for {
		size := 0
		for _, r := range page.Records {
			if err := f.record(r); err != nil {
				return Summary{}, err
			}
			size += len(r.Key) + len(r.Value)
		}
		summary.Records += int64(len(page.Records))
		if !page.More {
			break
		}
		if page, err = s.List(ctx, nextPage(page, size)); err != nil {
			return Summary{}, err
		}
	}
	if err := f.json(frameEnd, end{Records: summary.Records, Files: summary.Files}); err != nil {
		return Summary{}, err
	}
	return summary, zip.Close()
}

// nextPage follows a page with size bytes. The larger pages are, the fewer are
// counted through by stores that count what remains.
func nextPage(page store.Page, size int) store.ListOptions {
	n := len(page.Records)
	each := max(size/n, 1)
	return store.ListOptions{
		From:  page.Records[n-1].Key + "\x00",
		At:    page.Revision,
		Limit: min(max(pageBytes/each, 100), maxPage),
	}
}

// frames writes frames.
type frames struct {
	out io.Writer
	buf []byte
}

func (f *frames) frame(kind byte, payload ...[]byte) error {
	n := 0
	for _, p := range payload {
		n += len(p)
	}
	if n > maxFrame {
		return fmt.Errorf("a frame of %d bytes is larger than the format allows (%d)", n, maxFrame)
	}
	head := binary.AppendUvarint([]byte{kind}, uint64(n))
	for _, p := range append([][]byte{head}, payload...) {
		if _, err := f.out.Write(p); err != nil {
			return err
		}
	}
	return nil
}

func (f *frames) json(kind byte, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return f.frame(kind, data)
}

func (f *frames) record(r store.Record) error {
	f.buf = appendRecord(f.buf[:0], r)
	if err := f.frame(frameRecord, f.buf, r.Value); err != nil {
		return fmt.Errorf("key %q: %w", r.Key, err)
	}
	return nil
}

// appendRecord appends all but the value, which is the rest of its frame.
func appendRecord(b []byte, r store.Record) []byte {
	b = binary.AppendUvarint(b, uint64(r.Created))
	b = binary.AppendUvarint(b, uint64(r.Modified))
	expires := int64(0)
	if !r.Expires.IsZero() {
		expires = r.Expires.UnixNano()
	}
	b = binary.AppendVarint(b, expires)
	b = binary.AppendUvarint(b, uint64(len(r.Key)))
	return append(b, r.Key...)
}

func (f *frames) file(file File) error {
	if !filepath.IsLocal(filepath.FromSlash(file.Name)) {
		return errors.New("file " + file.Name + ": not a relative path")
	}
	b := binary.AppendUvarint(nil, uint64(len(file.Name)))
	return f.frame(frameFile, append(b, file.Name...), file.Data)
}
