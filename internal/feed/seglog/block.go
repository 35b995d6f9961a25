package seglog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/klauspost/compress/zstd"
)

const (
	blockHeader = 8 // length and checksum of the body
	// maxBody bounds what a reader allocates: a block has one entry at least, with two values.
	maxBody = 2*MaxValue + MaxKey + MaxActor + 1<<10
	// blockBytes is the size from which a block is closed.
	blockBytes = 64 << 10
	// packBytes is the size from which a block is compressed.
	packBytes = 512

	flagPacked = 1

	// maxPosition bounds those that are read, wherever they are relative to.
	maxPosition = 1 << 62
)

// Bits of an entry.
const (
	bitDelete = 1 << iota
	bitLast
	bitActor
	bitPrev
	bitPrevValue
	bitCreated // differs from its position
	bitTime    // differs from that of the entry before
	bitsKnown  = 1<<iota - 1
)

var (
	crc = crc32.MakeTable(crc32.Castagnoli)

	packer, _   = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	unpacker, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(maxBody), zstd.WithDecoderLowmem(true))
)

var errBlock = errors.New("malformed block")

// checksum of a block's body at an offset: a block that was copied elsewhere in the file does not fit.
func checksum(offset int64, body []byte) uint32 {
	var at [8]byte
	binary.LittleEndian.PutUint64(at[:], uint64(offset))
	return crc32.Update(crc32.Checksum(at[:], crc), crc, body)
}

// block is what is written at once. Its entries are at positions above those of blocks before; the log is complete up
// to complete, which is their highest at least.
type block struct {
	complete Position
	entries  []*Entry
}

// appendBlock appends the block, as it stands at offset of the file. keep tells of each entry whether its PrevValue is written.
func appendBlock(out []byte, offset int64, b *block, keep func(*Entry) bool) []byte {
	var first Position
	at := b.complete
	if len(b.entries) > 0 {
		first = b.entries[0].Position
		at = first
	}
	body := binary.AppendUvarint(nil, uint64(at))
	body = binary.AppendUvarint(body, uint64(b.complete-at))
	body = binary.AppendUvarint(body, uint64(len(b.entries)))
	last := int64(0)
	for _, e := range b.entries {
		body, last = appendEntry(body, e, first, last, keep(e))
		first = e.Position
	}
	flags := byte(0)
	if len(body) >= packBytes {
		if packed := packer.EncodeAll(body, make([]byte, 0, len(body))); len(packed) < len(body) {
			flags, body = flagPacked, packed
		}
	}
	start := len(out)
	out = append(out, make([]byte, blockHeader)...)
	out = append(out, flags)
	out = append(out, body...)
	written := out[start+blockHeader:]
	binary.LittleEndian.PutUint32(out[start:], uint32(len(written)))
	binary.LittleEndian.PutUint32(out[start+4:], checksum(offset, written))
	return out
}

func appendEntry(out []byte, e *Entry, before Position, lastTime int64, keepPrev bool) (body []byte, timeNow int64) {
	bits := byte(0)
	set := func(on bool, bit byte) {
		if on {
			bits |= bit
		}
	}
	now := e.Time.UnixMilli()
	set(e.Kind == Delete, bitDelete)
	set(e.Last, bitLast)
	set(e.Actor != "", bitActor)
	set(e.Prev != 0, bitPrev)
	set(e.Prev != 0 && keepPrev, bitPrevValue)
	set(e.Created != e.Position, bitCreated)
	set(now != lastTime, bitTime)
	out = append(out, bits)
	out = binary.AppendUvarint(out, uint64(e.Position-before))
	if bits&bitTime != 0 {
		out = binary.AppendVarint(out, now-lastTime)
	}
	out = appendBytes(out, e.Key)
	if bits&bitCreated != 0 {
		out = binary.AppendUvarint(out, uint64(e.Created))
	}
	if bits&bitActor != 0 {
		out = appendBytes(out, e.Actor)
	}
	if bits&bitPrev != 0 {
		out = binary.AppendUvarint(out, uint64(e.Prev))
		out = binary.AppendUvarint(out, uint64(e.PrevCreated))
	}
	if bits&bitPrevValue != 0 {
		out = appendBytes(out, e.PrevValue)
	}
	if e.Kind != Delete {
		out = appendBytes(out, e.Value)
	}
	return out, now
}

func appendBytes[T string | []byte](out []byte, b T) []byte {
	return append(binary.AppendUvarint(out, uint64(len(b))), b...)
}

// decoder of a body. After an error all reads return zero.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", errBlock, what)
	}
	d.rest = nil
}

func (d *decoder) byte() byte {
	if len(d.rest) == 0 {
		d.fail("it ends early")
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.fail("a number is malformed")
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.rest)
	if n <= 0 {
		d.fail("a number is malformed")
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// position reads one that is base at least.
func (d *decoder) position(base Position) Position {
	v := d.uvarint()
	p := base + Position(v)
	if v > maxPosition || p < base || p > maxPosition {
		d.fail("a position is out of range")
		return 0
	}
	return p
}

func (d *decoder) bytes(limit int) []byte {
	n := d.uvarint()
	if n > uint64(limit) || n > uint64(len(d.rest)) {
		d.fail("a length is out of range")
		return nil
	}
	out := d.rest[:n:n]
	d.rest = d.rest[n:]
	return out
}

// decodeBlock of a body that its checksum fits. Values are parts of one buffer.
func decodeBlock(body []byte) (*block, error) {
	d := &decoder{rest: body}
	switch d.byte() {
	case 0:
	case flagPacked:
		plain, err := unpacker.DecodeAll(d.rest, nil)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errBlock, err)
		}
		d.rest = plain
	default:
		d.fail("its flags are of a newer version")
	}
	at := d.position(0)
	out := &block{complete: d.position(at)}
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.fail("a length is out of range")
		n = 0
	}
	if n > 0 {
		out.entries = make([]*Entry, 0, n)
	}
	entries := make([]Entry, n)
	millis := int64(0)
	for i := range entries {
		e := &entries[i]
		bits := d.byte()
		if bits&^bitsKnown != 0 {
			d.fail("an entry is of a newer version")
		}
		e.Position = d.position(at)
		if i > 0 && e.Position == at {
			d.fail("positions do not rise")
		}
		at = e.Position
		if bits&bitTime != 0 {
			millis += d.varint()
		}
		e.Time = time.UnixMilli(millis)
		e.Kind = Put
		e.Last = bits&bitLast != 0
		e.Key = string(d.bytes(MaxKey))
		e.Created = e.Position
		if bits&bitCreated != 0 {
			e.Created = d.position(0)
		}
		if bits&bitActor != 0 {
			e.Actor = string(d.bytes(MaxActor))
		}
		if bits&bitPrev != 0 {
			e.Prev, e.PrevCreated = d.position(0), d.position(0)
		}
		if bits&bitPrevValue != 0 {
			e.PrevValue = d.bytes(MaxValue)
		}
		if bits&bitDelete != 0 {
			e.Kind = Delete
		} else {
			e.Value = d.bytes(MaxValue)
		}
		if d.err != nil {
			return nil, d.err
		}
		out.entries = append(out.entries, e)
	}
	switch {
	case d.err != nil:
		return nil, d.err
	case len(d.rest) != 0:
		return nil, fmt.Errorf("%w: bytes are left over", errBlock)
	case n > 0 && at > out.complete:
		return nil, fmt.Errorf("%w: an entry is at a position above the block's", errBlock)
	}
	return out, nil
}
