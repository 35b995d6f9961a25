package userspace

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/listener"
)

const (
	// What an event's first 32 bits of data say: a connection's index and side
	// (≥ 0), the loop itself, or a frontend (below).
	wakeTag     = -1
	frontendTag = -2

	// eventBatch is how many events are taken at once.
	eventBatch = 128
	// burst is how many buffers one direction may move before others have a turn.
	burst = 32
	// idlePipes is how many pipes a loop keeps for the next bulk transfer.
	idlePipes = 4
)

// loop serves its connections with one goroutine, which alone touches all
// fields but those that say so.
type loop struct {
	loops *loops
	mode  *Mode
	epoll int
	event int         // eventfd that wakes the loop; any goroutine may write
	stop  atomic.Bool // set by drain

	conns []*conn // by index; those that have ended wait in free to be reused
	free  []*conn
	again []turn // directions that used up their burst
	// Attempts to connect, by their two timeouts; each list is sorted by deadline.
	soon, late, own attempts

	buf   []byte // what is being copied; nothing stays in it
	pipes []*pipe

	// paused frontends are not watched: no slot is free, or accepting failed, in
	// which case they wait until resume.
	paused []*loopFrontend
	resume time.Time
	retry  backoff.Backoff

	peer unix.RawSockaddrAny // of the latest accept
}

// turn is a direction of a connection that has more to carry.
type turn struct {
	c          *conn
	generation int32
	side       int
}

func newLoop(s *loops) (*loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, os.NewSyscallError("eventfd", err)
	}
	l := &loop{loops: s, mode: s.mode, epoll: epoll, event: event, buf: make([]byte, bufferSize), retry: listener.Retry()}
	if err := l.control(unix.EPOLL_CTL_ADD, event, unix.EPOLLIN, wakeTag, 0); err != nil {
		l.release()
		return nil, err
	}
	return l, nil
}

func (l *loop) release() {
	_ = unix.Close(l.epoll)
	_ = unix.Close(l.event)
	for _, p := range l.pipes {
		p.close()
	}
}

func (l *loop) control(op, fd int, events uint32, tag, generation int32) error {
	e := unix.EpollEvent{Events: events, Fd: tag, Pad: generation}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.epoll, op, fd, &e))
}

// watchFront may be called by any goroutine. Of the loops that wait, a client
// wakes one (EPOLLEXCLUSIVE, epoll_ctl(2)).
func (l *loop) watchFront(f *loopFrontend) error {
	return l.control(unix.EPOLL_CTL_ADD, f.fd, unix.EPOLLIN|unix.EPOLLEXCLUSIVE, frontendTag-f.id, 0)
}

// wake makes the loop look at stop and at its paused frontends. Any goroutine may
// call it.
func (l *loop) wake() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(l.event, one[:]) // EAGAIN: it is awake already
}

func (l *loop) run() {
	events := make([]unix.EpollEvent, eventBatch)
	for !l.stop.Load() {
		n, err := unix.EpollWait(l.epoll, events, l.timeout())
		if err != nil && !errors.Is(err, unix.EINTR) {
			l.mode.log.Error("waiting for events failed, connections are reset", "error", err)
			break
		}
		for i := range max(n, 0) {
			l.dispatch(&events[i])
		}
		l.takeTurns()
		l.expire()
	}
	for _, c := range l.conns {
		if c.live {
			c.abort()
		}
	}
	l.release()
}

func (l *loop) dispatch(e *unix.EpollEvent) {
	switch {
	case e.Fd >= 0:
		// The connection may have ended, and its place be another's, since the
		// kernel noted the event.
		if c := l.conns[e.Fd>>1]; c.live && c.generation == e.Pad {
			c.handle(int(e.Fd&1), e.Events)
		}
	case e.Fd == wakeTag:
		var count [8]byte
		_, _ = unix.Read(l.event, count[:])
		if l.resume.IsZero() {
			l.unpause()
		}
	default:
		if f := l.loops.frontend(frontendTag - e.Fd); f != nil {
			l.accept(f)
		}
	}
}

// takeTurns goes on with directions that gave way to others.
func (l *loop) takeTurns() {
	turns := l.again
	l.again = nil
	for _, t := range turns {
		if t.c.live && t.c.generation == t.generation {
			t.c.pump(t.side, true)
		}
	}
	if l.again == nil {
		l.again = turns[:0]
	}
}

// timeout is for how many milliseconds the loop may sleep; -1: for ever.
func (l *loop) timeout() int {
	if len(l.again) > 0 {
		return 0
	}
	var next time.Time
	for _, t := range []time.Time{l.soon.deadline(), l.late.deadline(), l.own.deadline(), l.resume} {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if next.IsZero() {
		return -1
	}
	return int(max(0, time.Until(next)+time.Millisecond-1) / time.Millisecond)
}

func (l *loop) expire() {
	if l.soon.first == nil && l.late.first == nil && l.own.first == nil && l.resume.IsZero() {
		return
	}
	now := time.Now()
	for _, a := range []*attempts{&l.soon, &l.late, &l.own} {
		for c := a.first; c != nil && !now.Before(c.deadline); c = a.first {
			c.attemptFailed(unix.ETIMEDOUT)
		}
	}
	if !l.resume.IsZero() && !now.Before(l.resume) {
		l.unpause()
	}
}

// accept takes one client, as then an event costs one system call and other
// loops get their share; the kernel reports what is left again.
func (l *loop) accept(f *loopFrontend) {
	m := l.mode
	if !m.slots.takeOrAwait() {
		l.stopWatching(f)
		return
	}
	fd, err := l.accept4(f)
	if err == nil {
		l.retry.Reset()
		l.begin(f, fd, addrOfRaw(&l.peer).Addr())
		return
	}
	m.slots.give()
	switch {
	case errors.Is(err, errAgain), errors.Is(err, net.ErrClosed):
	case errors.Is(err, unix.ECONNABORTED), errors.Is(err, unix.EINTR):
	default:
		// Mostly too many open files: wait until some are closed.
		pause := l.retry.Next()
		l.resume = time.Now().Add(pause)
		l.stopWatching(f)
		m.log.Warn("accepting failed, trying again",
			"service", f.port.name.String(), "address", f.key.String(), "pause", pause, "error", err)
	}
}

// accept4 leaves the client's address in l.peer. A connection counts as live
// before the frontend can be closed, so that drain misses none.
func (l *loop) accept4(f *loopFrontend) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.closed {
		return -1, net.ErrClosed
	}
	size := uint32(unsafe.Sizeof(l.peer))
	fd, _, errno := unix.Syscall6(unix.SYS_ACCEPT4, uintptr(f.fd), uintptr(unsafe.Pointer(&l.peer)),
		uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	switch errno {
	case 0:
		l.loops.left(1)
		return int(fd), nil
	case unix.EAGAIN:
		return -1, errAgain
	}
	return -1, os.NewSyscallError("accept4", errno)
}

func (l *loop) stopWatching(f *loopFrontend) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if !f.closed && l.control(unix.EPOLL_CTL_DEL, f.fd, 0, 0, 0) == nil {
		l.paused = append(l.paused, f)
	}
}

func (l *loop) unpause() {
	l.resume = time.Time{}
	paused := l.paused
	l.paused = nil
	for _, f := range paused {
		f.mu.RLock()
		if !f.closed {
			if err := l.watchFront(f); err != nil { // memory of the kernel; try again
				l.paused = append(l.paused, f)
				l.resume = time.Now().Add(time.Second)
			}
		}
		f.mu.RUnlock()
	}
}

// begin takes over a client and a slot.
func (l *loop) begin(f *loopFrontend, fd int, peer netip.Addr) {
	p := f.port
	p.counters.at(f.key.family()).connections.Add(1)
	p.counters.active.Add(1)
	c := l.newConn(p, fd)
	v := p.viewFor(peer)
	from := p.poolFor(v, f.key, peer, func() netip.Addr { return localAddr(fd) })
	if from == nil {
		p.counters.rejected.Add(1)
		c.turnAway(errNotServed)
		return
	}
	c.dial = dialing{view: v, family: f.key.family(), from: from, peer: peer, begun: time.Now(), tried: c.dial.tried[:0]}
	c.connect(c.dial.begun)
}

func (l *loop) newConn(p *servicePort, client int) *conn {
	var c *conn
	if n := len(l.free); n > 0 {
		c, l.free = l.free[n-1], l.free[:n-1]
	} else {
		c = &conn{loop: l, index: int32(len(l.conns))}
		l.conns = append(l.conns, c)
	}
	c.live = true
	c.port = p
	c.fd = [2]int{client, -1}
	return c
}

func (l *loop) takePipe() *pipe {
	if n := len(l.pipes); n > 0 {
		p := l.pipes[n-1]
		l.pipes = l.pipes[:n-1]
		return p
	}
	return newPipe()
}

// putPipe takes back an empty pipe.
func (l *loop) putPipe(p *pipe) {
	if len(l.pipes) < idlePipes {
		l.pipes = append(l.pipes, p)
		return
	}
	p.close()
}

// attempts is a list of connections that wait for their endpoint with the same
// timeout, so that the first is the first to give up.
type attempts struct{ first, last *conn }

func (a *attempts) deadline() time.Time {
	if a.first == nil {
		return time.Time{}
	}
	return a.first.deadline
}

// add a connection whose deadline is set. It is looked for its place from the end: among equal
// timeouts that is the last one.
func (a *attempts) add(c *conn) {
	at := a.last
	for at != nil && at.deadline.After(c.deadline) {
		at = at.before
	}
	c.waits, c.before = a, at
	if at == nil {
		c.after, a.first = a.first, c
	} else {
		c.after, at.after = at.after, c
	}
	if c.after == nil {
		a.last = c
	} else {
		c.after.before = c
	}
}

func (a *attempts) remove(c *conn) {
	if c.before == nil {
		a.first = c.after
	} else {
		c.before.after = c.after
	}
	if c.after == nil {
		a.last = c.before
	} else {
		c.after.before = c.before
	}
	c.waits, c.before, c.after = nil, nil, nil
}
