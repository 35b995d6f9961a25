package account

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
)

// The file of flows: a header (magic, life, hash key, number of flows), the flows, and a
// checksum. It is worth nothing after the machine was started anew, so it is not synced.
const (
	magic      = "PXFLOWS1"
	headerSize = len(magic) + 8 + 16 + 8
	flowSize   = 8 + 8 + 8 + 1
	maxFlows   = math.MaxInt32 / flowSize
)

var errState = errors.New("the file of flows is damaged")

// Save writes the flows to a file, so that a later process knows what of them was counted.
// life names what the connection tracking table belongs to. A crash leaves the old file or
// the new one. One process at a time may write it.
func (l *Ledger) Save(file string, life uint64) (err error) {
	// A crash leaves this one, and the next call takes it.
	f, err := os.OpenFile(file+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("saving flows: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("saving flows: %w", err), f.Close(), os.Remove(f.Name()))
		}
	}()
	sum := crc32.NewIEEE()
	w := bufio.NewWriterSize(io.MultiWriter(f, sum), 64<<10)
	var b [headerSize]byte
	copy(b[:], magic)
	at := len(magic)
	for _, v := range [...]uint64{life, l.hash[0], l.hash[1], uint64(len(l.flows))} {
		binary.LittleEndian.PutUint64(b[at:], v)
		at += 8
	}
	_, _ = w.Write(b[:]) // Flush returns the error
	for key, fl := range l.flows {
		binary.LittleEndian.PutUint64(b[0:], key)
		binary.LittleEndian.PutUint64(b[8:], fl.in)
		binary.LittleEndian.PutUint64(b[16:], fl.out)
		b[24] = fl.flags
		_, _ = w.Write(b[:flowSize])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(b[:], sum.Sum32())
	if _, err := f.Write(b[:4]); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// Restore takes flows that an earlier process saved in the same life of the table. ok is
// false, and nothing changes, if there are none. It is for an empty ledger.
func (l *Ledger) Restore(file string, life uint64) (ok bool, err error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading saved flows: %w", err)
	}
	defer f.Close() // read only
	ok, err = l.restore(f, life)
	if err != nil {
		return false, fmt.Errorf("reading saved flows from %s: %w", file, err)
	}
	return ok, nil
}

func (l *Ledger) restore(from io.Reader, life uint64) (ok bool, err error) {
	sum := crc32.NewIEEE()
	r := bufio.NewReaderSize(from, 64<<10)
	body := io.TeeReader(r, sum)
	var b [headerSize]byte
	if _, err := io.ReadFull(body, b[:]); err != nil || string(b[:len(magic)]) != magic {
		return false, errState
	}
	var v [4]uint64
	for i := range v {
		v[i] = binary.LittleEndian.Uint64(b[len(magic)+8*i:])
	}
	if v[0] != life {
		return false, nil
	}
	if v[3] > uint64(maxFlows) {
		return false, errState
	}
	flows := make(map[uint64]flow, min(v[3], 1<<16)) // the number may be wrong
	for range v[3] {
		if _, err := io.ReadFull(body, b[:flowSize]); err != nil {
			return false, errState
		}
		flows[binary.LittleEndian.Uint64(b[:])] = flow{
			in: binary.LittleEndian.Uint64(b[8:]), out: binary.LittleEndian.Uint64(b[16:]),
			flags: b[24] & (outside | closed | partly), cell: unplaced,
		}
	}
	want := sum.Sum32()
	if _, err := io.ReadFull(r, b[:4]); err != nil || binary.LittleEndian.Uint32(b[:]) != want {
		return false, errState
	}
	l.flows, l.hash, l.started = flows, [2]uint64{v[1], v[2]}, true
	return true, nil
}
