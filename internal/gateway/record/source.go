package record

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// reader is the user of a source.
type reader interface {
	// space returns where to read to.
	space() []byte
	// idle is called if there was nothing to read into space.
	idle()
	// beforeWait and afterWait are called around each time that read waits.
	beforeWait() error
	afterWait() error
}

// source reads from a socket for a reader, which has no buffer while it waits.
type source struct {
	conn net.Conn
	raw  syscall.RawConn // nil: only conn can be read
	user reader

	try    func(fd uintptr) bool // attempt, bound once: a closure per read would be garbage
	n      int
	err    error
	waited bool
}

func newSource(conn net.Conn, user reader) *source {
	s := &source{conn: conn, user: user}
	if sys, ok := conn.(syscall.Conn); ok && canRead {
		if raw, err := sys.SyscallConn(); err == nil {
			s.raw = raw
		}
	}
	s.try = s.attempt
	return s
}

// read blocks until there is data (n > 0), the end of the stream (0, nil), or an
// error.
func (s *source) read() (n int, err error) {
	s.n, s.err, s.waited = 0, nil, false
	if s.raw == nil {
		return s.readConn()
	}
	err = s.raw.Read(s.try)
	if s.waited {
		if after := s.user.afterWait(); err == nil {
			err = after
		}
	}
	if err != nil {
		return 0, err
	}
	return s.n, s.err
}

// readConn reads where sockets can only be read by the runtime: the buffer is held
// while it waits.
func (s *source) readConn() (int, error) {
	if err := s.user.beforeWait(); err != nil {
		return 0, err
	}
	n, err := s.conn.Read(s.user.space())
	if n == 0 {
		s.user.idle()
	}
	if after := s.user.afterWait(); err == nil {
		err = after
	}
	return endOfStream(n, err)
}

// endOfStream is n, err with the end of a stream as no error.
func endOfStream(n int, err error) (int, error) {
	if errors.Is(err, io.EOF) {
		return n, nil
	}
	return n, err
}

// Socket is a TCP connection without TLS whose reader waits without a buffer. One
// goroutine at a time may use Receive.
type Socket struct {
	net.Conn
	pool     *Pool
	source   *source
	sizer    Sizer
	headroom int
	buffer   *Buffer
}

// NewSocket returns conn with Receive.
func NewSocket(conn net.Conn, pool *Pool) *Socket {
	s := &Socket{Conn: conn, pool: pool}
	s.source = newSource(conn, s)
	return s
}

// Receive blocks until data arrives, and returns it in b.Bytes[headroom : headroom+n].
// Headroom and data do not exceed the size of the buffer's class. The caller
// owns b and puts it back. At the end of the stream b is nil and err is io.EOF.
func (s *Socket) Receive(headroom int) (b *Buffer, n int, err error) {
	s.headroom = headroom
	n, err = s.source.read()
	if n == 0 || err != nil {
		s.idle()
		if err == nil {
			err = io.EOF
		}
		return nil, 0, err
	}
	b, s.buffer = s.buffer, nil
	s.sizer.Note(n, b.class.Size()-headroom)
	return b, n, nil
}

// Bulk reports whether reads fill the largest buffers.
func (s *Socket) Bulk() bool { return s.sizer.Class() == Large }

func (s *Socket) space() []byte {
	if s.buffer == nil {
		s.buffer = s.pool.Get(s.sizer.Class())
	}
	return s.buffer.Bytes[s.headroom:s.buffer.class.Size()]
}

func (s *Socket) idle() {
	s.pool.Put(s.buffer)
	s.buffer = nil
}

func (s *Socket) beforeWait() error { return nil }
func (s *Socket) afterWait() error  { return nil }
