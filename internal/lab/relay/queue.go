package relay

import (
	"encoding/binary"
	"sync"
	"time"
)

// queueBytes of packets that wait, at most. Beyond that packets are dropped, as a router
// does whose buffer is full. Memory is used only as far as packets have waited.
const queueBytes = 64 << 20

// entryHead is the length of a packet and the time at which it is due.
const entryHead = 12

// queue of packets in the order in which they came: all wait equally long. One goroutine
// adds and another takes.
type queue struct {
	mu sync.Mutex
	// some is signalled when there is a packet, or when the queue is closed.
	some   sync.Cond
	closed bool
	// buf is a ring: entries are between read and write; where the next one does not fit,
	// wrap is the end of the last one, and the ring goes on at 0.
	buf               []byte
	read, write, wrap int
	used              int
	dropped           uint64
}

func newQueue(size int) *queue {
	q := &queue{buf: make([]byte, size)}
	q.some.L = &q.mu
	return q
}

// put copies a packet, and reports whether there was room.
func (q *queue) put(raw []byte, due time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := entryHead + len(raw)
	if q.used == 0 {
		q.read, q.write, q.wrap = 0, 0, 0 // memory that is warm
	}
	at := q.write
	switch {
	case q.used > 0 && q.write <= q.read:
		if q.write+n > q.read {
			q.dropped++
			return false
		}
	case q.write+n > len(q.buf):
		if n > q.read {
			q.dropped++
			return false
		}
		q.wrap, at = q.write, 0
	}
	binary.NativeEndian.PutUint32(q.buf[at:], uint32(len(raw)))
	binary.NativeEndian.PutUint64(q.buf[at+4:], uint64(due))
	copy(q.buf[at+entryHead:], raw)
	q.write = at + n
	q.used += n
	if q.used == n {
		q.some.Signal()
	}
	return true
}

// next is the first packet, which stays until done, and when it is due. It waits for one. ok is
// false when the queue is closed.
func (q *queue) next() (raw []byte, due time.Duration, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.used == 0 && !q.closed {
		q.some.Wait()
	}
	if q.closed {
		return nil, 0, false
	}
	if q.wrap > 0 && q.read == q.wrap {
		q.read, q.wrap = 0, 0
	}
	n := int(binary.NativeEndian.Uint32(q.buf[q.read:]))
	due = time.Duration(binary.NativeEndian.Uint64(q.buf[q.read+4:]))
	return q.buf[q.read+entryHead : q.read+entryHead+n], due, true
}

// done with a packet that next returned.
func (q *queue) done(raw []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := entryHead + len(raw)
	q.read += n
	q.used -= n
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.some.Signal()
}
