package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// loops carries TCP in event loops, one for each processor of the Go runtime
// but one. A connection
// stays in the loop that accepted it, so its state needs no lock, and an event
// costs a system call for many of them rather than a goroutine's wakeup each.
type loops struct {
	mode *Mode
	all  []*loop // nil until the first socket is opened; guarded by Mode.mu

	live     atomic.Int64 // connections
	draining atomic.Bool
	idle     chan struct{} // closed when draining and live is 0
	ended    sync.Once

	mu        sync.RWMutex
	frontends map[int32]*loopFrontend
	lastID    int32
}

func newStreams(m *Mode) streams {
	s := &loops{mode: m, idle: make(chan struct{}), frontends: map[int32]*loopFrontend{}}
	m.slots.freed = s.wake
	return s
}

// loopFrontend is a listening socket that all loops watch.
type loopFrontend struct {
	loops *loops
	port  *servicePort
	key   frontendKey
	id    int32

	// mu keeps the descriptor from being closed, and reused, under an accept.
	mu     sync.RWMutex
	fd     int
	closed bool
}

// listen implements streams. The caller holds Mode.mu.
func (s *loops) listen(p *servicePort, key frontendKey) (frontend, error) {
	fd, err := listenFD(p, key)
	if err != nil {
		return nil, err
	}
	f := &loopFrontend{loops: s, port: p, key: key, fd: fd}
	if key.silent {
		return f, nil
	}
	if err := s.start(); err != nil {
		f.close()
		return nil, err
	}
	s.mu.Lock()
	s.lastID++
	f.id = s.lastID
	s.frontends[f.id] = f
	s.mu.Unlock()
	for _, l := range s.all {
		if err := l.watchFront(f); err != nil {
			f.close()
			return nil, err
		}
	}
	return f, nil
}

// listenFD opens a listening socket. Package net does it, for its errors and
// defaults; the descriptor is then taken out of the runtime's poller, which
// would wake up for every client, in addition to our loops.
func listenFD(p *servicePort, key frontendKey) (int, error) {
	lc := net.ListenConfig{Control: control(p.mode, key, true), KeepAlive: -1}
	lc.SetMultipathTCP(false) // slower, and of no use towards a virtual address
	ln, err := lc.Listen(p.mode.life, key.network, key.addr.String())
	if err != nil {
		return -1, err
	}
	defer func() { _ = ln.Close() }()
	raw, err := ln.(*net.TCPListener).SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var dup error
	if err := raw.Control(func(own uintptr) { fd, dup = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	return fd, os.NewSyscallError("fcntl", dup)
}

// close stops accepting. It returns when no loop is about to accept any more.
func (f *loopFrontend) close() {
	f.loops.mu.Lock()
	delete(f.loops.frontends, f.id)
	f.loops.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.closed = true
	_ = unix.Close(f.fd) // leaves the loops' interest lists with it
}

// prune leaves connections alone: they outlive changes of the endpoints.
func (f *loopFrontend) prune(*view) {}

func (s *loops) frontend(id int32) *loopFrontend {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.frontends[id]
}

// start starts the loops with the first socket.
func (s *loops) start() error {
	if s.all != nil {
		return nil
	}
	var all []*loop
	// With a loop in a system call on every processor the runtime would take one
	// away every 20 µs, looking for other work; a spare one keeps it from that.
	for range max(1, runtime.GOMAXPROCS(0)-1) {
		l, err := newLoop(s)
		if err != nil {
			for _, l := range all {
				l.release()
			}
			return fmt.Errorf("starting an event loop: %w", err)
		}
		all = append(all, l)
	}
	s.all = all
	for _, l := range all {
		s.mode.wg.Go(l.run)
	}
	return nil
}

// wake lets loops that ran out of slots look again.
func (s *loops) wake() {
	for _, l := range s.all {
		l.wake()
	}
}

// drain implements streams.
func (s *loops) drain(ctx context.Context) {
	s.draining.Store(true)
	s.left(0)
	select {
	case <-s.idle:
	case <-ctx.Done():
	}
	for _, l := range s.all {
		l.stop.Store(true)
		l.wake()
	}
}

// left counts connections that come (1) and go (-1).
func (s *loops) left(change int64) {
	if s.live.Add(change) == 0 && s.draining.Load() {
		s.ended.Do(func() { close(s.idle) })
	}
}

// errAgain: nothing to accept, or another loop was faster.
var errAgain = errors.New("nothing to accept")
