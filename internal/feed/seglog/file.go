package seglog

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sort"
	"strconv"
	"strings"
	"time"
)

const (
	magicHeader = "PXSEG 1\n"
	magicSealed = "PXSEAL1\n"
	// trailerBytes: offset and length of the footer, its checksum, magicSealed.
	trailerBytes = 8 + 4 + 4 + len(magicSealed)
	maxHeader    = 4 << 10
	maxFooter    = 64 << 20
	// indexBytes lie between two references of an index.
	indexBytes = 32 << 10

	namePrefix = "feed-"
	nameSuffix = ".seg"
	// newSuffix and editSuffix follow the names of files that are not complete: of copies, and of what Edit makes.
	newSuffix  = ".new"
	editSuffix = ".edit"
)

// header is the beginning of a file.
type header struct {
	// Epoch of the store that positions are revisions of.
	Epoch string `json:"epoch"`
	// After: all entries are above it.
	After Position `json:"after"`
	// Gap: changes are missing between the segment before and After.
	Gap     bool      `json:"gap,omitempty"`
	Created time.Time `json:"created"`
}

// ref leads to a block: its lowest position and its first time (Unix, ms).
type ref struct {
	At     Position `json:"p"`
	Offset int64    `json:"o"`
	Time   int64    `json:"t"`
}

// contents is what is known of the blocks of a file, up to an offset.
type contents struct {
	// Last is the position of the last entry, After if there is none; Complete is at least that.
	Last     Position `json:"last"`
	Complete Position `json:"complete"`
	Entries  int64    `json:"entries"`
	// Oldest and Newest are times of entries (Unix, ms).
	Oldest int64 `json:"oldest"`
	Newest int64 `json:"newest"`
	// Size is the end of the last block.
	Size  int64 `json:"size"`
	Index []ref `json:"index"`
}

// footer is the end of a sealed file.
type footer struct {
	contents
	// SHA256 of the file up to Size, in hexadecimal.
	SHA256 string `json:"sha256"`
	// Marks of what was changed in the file since it was written first (Editor), sorted.
	Marks []string `json:"marks,omitempty"`
}

var errNotSealed = errors.New("it is not sealed")

func fileName(after Position) string { return fmt.Sprintf("%s%020d%s", namePrefix, after, nameSuffix) }

// afterOf the name of a file; ok is false if it is not one of a segment.
func afterOf(name string) (after Position, ok bool) {
	digits, found := strings.CutPrefix(name, namePrefix)
	digits, also := strings.CutSuffix(digits, nameSuffix)
	n, err := strconv.ParseInt(digits, 10, 64)
	return Position(n), found && also && err == nil && n >= 0 && fileName(Position(n)) == name
}

func encodeHeader(h header) ([]byte, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	out := []byte(magicHeader)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(text)))
	out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(text, crc))
	return append(out, text...), nil
}

// readHeader returns the header of a file and where its blocks begin.
func readHeader(f io.ReaderAt) (h header, size int64, err error) {
	fixed := make([]byte, len(magicHeader)+8)
	if _, err := f.ReadAt(fixed, 0); err != nil {
		return h, 0, fmt.Errorf("its header cannot be read: %w", err)
	}
	if string(fixed[:len(magicHeader)]) != magicHeader {
		return h, 0, errors.New("it is no segment of this version")
	}
	n := binary.LittleEndian.Uint32(fixed[len(magicHeader):])
	if n > maxHeader {
		return h, 0, errors.New("its header is malformed")
	}
	text := make([]byte, n)
	if _, err := f.ReadAt(text, int64(len(fixed))); err != nil {
		return h, 0, fmt.Errorf("its header cannot be read: %w", err)
	}
	if crc32.Checksum(text, crc) != binary.LittleEndian.Uint32(fixed[len(magicHeader)+4:]) {
		return h, 0, errors.New("its header is damaged")
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return h, 0, fmt.Errorf("its header is malformed: %w", err)
	}
	if h.After < 0 {
		return h, 0, errors.New("its header is malformed")
	}
	return h, int64(len(fixed)) + int64(n), nil
}

// encodeFooter returns the footer and trailer of a file whose blocks end at c.Size.
func encodeFooter(c contents, sum []byte, marks []string) ([]byte, error) {
	text, err := json.Marshal(footer{c, hex.EncodeToString(sum), marks})
	if err != nil {
		return nil, err
	}
	out := text
	out = binary.LittleEndian.AppendUint64(out, uint64(c.Size))
	out = binary.LittleEndian.AppendUint32(out, uint32(len(text)))
	out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(text, crc))
	return append(out, magicSealed...), nil
}

// readFooter of a file of a size. Errors: errNotSealed if there is none that is whole.
func readFooter(f io.ReaderAt, size int64) (*footer, error) {
	if size < int64(trailerBytes) {
		return nil, errNotSealed
	}
	trailer := make([]byte, trailerBytes)
	if _, err := f.ReadAt(trailer, size-int64(trailerBytes)); err != nil {
		return nil, err
	}
	if string(trailer[16:]) != magicSealed {
		return nil, errNotSealed
	}
	at, n := int64(binary.LittleEndian.Uint64(trailer)), int64(binary.LittleEndian.Uint32(trailer[8:]))
	if at < 0 || n > maxFooter || at+n+int64(trailerBytes) != size {
		return nil, errNotSealed
	}
	text := make([]byte, n)
	if _, err := f.ReadAt(text, at); err != nil {
		return nil, err
	}
	out := &footer{}
	if crc32.Checksum(text, crc) != binary.LittleEndian.Uint32(trailer[12:]) || json.Unmarshal(text, out) != nil || out.Size != at {
		return nil, errNotSealed
	}
	return out, nil
}

// note that a block was written, which ends at end.
func (c *contents) note(b *block, offset, end int64) {
	if n := len(b.entries); n > 0 {
		at, when := b.entries[0].Position, b.entries[0].Time.UnixMilli()
		c.Last = b.entries[n-1].Position
		c.Newest = b.entries[n-1].Time.UnixMilli()
		if c.Entries == 0 {
			c.Oldest = when
		}
		c.Entries += int64(n)
		if len(c.Index) == 0 || offset-c.Index[len(c.Index)-1].Offset >= indexBytes {
			c.Index = append(c.Index, ref{at, offset, when})
		}
	}
	c.Complete = b.complete
	c.Size = end
}

// from returns the offset of a block that is not behind the first entry above a position.
func (c *contents) from(after Position, begin int64) int64 {
	i := sort.Search(len(c.Index), func(i int) bool { return c.Index[i].At > after })
	if i == 0 {
		return begin
	}
	return c.Index[i-1].Offset
}

// window reads blocks of a file one after the other, by a part of the file at a time.
type window struct {
	data   []byte
	offset int64 // of data in the file
}

const windowBytes = 256 << 10

// errShort: the file ends before the block does.
var errShort = errors.New("it ends within a block")

// at returns n bytes of f at an offset, of what is below end. They are valid until the next call.
func (w *window) at(f io.ReaderAt, offset, n, end int64) ([]byte, error) {
	if offset+n > end {
		return nil, errShort
	}
	if offset < w.offset || offset+n > w.offset+int64(len(w.data)) {
		size := min(max(n, windowBytes), end-offset)
		data := make([]byte, size) // blocks keep parts of it
		if _, err := f.ReadAt(data, offset); err != nil {
			w.data = nil
			return nil, err
		}
		w.data, w.offset = data, offset
	}
	from := offset - w.offset
	return w.data[from : from+n : from+n], nil
}

// block reads the one at an offset, and returns where it ends.
func (w *window) block(f io.ReaderAt, offset, end int64) (*block, int64, error) {
	head, err := w.at(f, offset, blockHeader, end)
	if err != nil {
		return nil, 0, err
	}
	n, sum := int64(binary.LittleEndian.Uint32(head)), binary.LittleEndian.Uint32(head[4:])
	if n == 0 || n > maxBody {
		return nil, 0, errBlock
	}
	body, err := w.at(f, offset+blockHeader, n, end)
	if err != nil {
		return nil, 0, err
	}
	if checksum(offset, body) != sum {
		return nil, 0, fmt.Errorf("%w: its checksum does not fit", errBlock)
	}
	b, err := decodeBlock(body)
	return b, offset + blockHeader + n, err
}

// scan finds the blocks of a file that was not sealed, up to the first that is not whole, or that goes beyond a position.
func scan(f io.ReaderAt, h header, begin, size int64, limit Position) contents {
	c := contents{Last: h.After, Complete: h.After, Size: begin}
	w := &window{}
	for c.Size < size {
		b, end, err := w.block(f, c.Size, size)
		if err != nil || b.complete < c.Complete || b.complete > limit || len(b.entries) > 0 && b.entries[0].Position <= c.Complete {
			break
		}
		c.note(b, c.Size, end)
	}
	return c
}

// sumOf the first size bytes of a file.
func sumOf(f io.ReaderAt, size int64) ([]byte, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, size)); err != nil {
		return nil, err
	}
	return sum.Sum(nil), nil
}
