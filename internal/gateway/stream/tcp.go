package stream

import (
	"bytes"
	"io"
	"net"
	"sync"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
)

// TCP is a connection without TLS: of a client or an endpoint.
type TCP struct {
	conn   net.Conn // closes whatever wraps the socket
	tcp    *net.TCPConn
	socket *record.Socket
	pool   *record.Pool
	fault  frame.Reason
	once   sync.Once
	first  []byte
}

// NewTCP returns conn as a Stream, and owns it. The connection is a *net.TCPConn, or
// wraps one that its method NetConn returns, as internal/listener does. fault is the
// reason that its failures stand for.
func NewTCP(conn net.Conn, pool *record.Pool, fault frame.Reason) *TCP {
	tcp, _ := Unwrap(conn).(*net.TCPConn)
	t := &TCP{conn: conn, tcp: tcp, pool: pool, fault: fault}
	if tcp != nil {
		t.socket = record.NewSocket(tcp, pool)
	} else {
		t.socket = record.NewSocket(conn, pool)
	}
	return t
}

// Unwrap returns the innermost connection below those with a method NetConn.
func Unwrap(conn net.Conn) net.Conn {
	for {
		inner, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = inner.NetConn()
	}
}

// NetConn returns the connection; it must not be used at the same time.
func (t *TCP) NetConn() net.Conn { return t.conn }

// Prepend makes Receive return p, of which a copy is made, before anything else. To be
// called before the first Receive.
func (t *TCP) Prepend(p []byte) { t.first = bytes.Clone(p) }

// Receive implements Stream.
func (t *TCP) Receive() (Chunk, error) {
	if len(t.first) > 0 {
		b := t.pool.Get(record.Medium)
		n := copy(b.Bytes[Headroom:], t.first)
		t.first = t.first[n:]
		return Chunk{Buffer: b, Begin: Headroom, End: Headroom + n}, nil
	}
	b, n, err := t.socket.Receive(Headroom)
	if err != nil {
		return Chunk{}, err
	}
	return Chunk{Buffer: b, Begin: Headroom, End: Headroom + n}, nil
}

// Send implements Stream.
func (t *TCP) Send(c Chunk) error {
	_, err := t.socket.Write(c.Data())
	return err
}

// CloseWrite implements Stream.
func (t *TCP) CloseWrite() error {
	if t.tcp == nil {
		return t.Close()
	}
	return t.tcp.CloseWrite()
}

// Reset implements Stream. The peer receives RST instead of FIN.
func (t *TCP) Reset(frame.Reason, string) {
	t.once.Do(func() { resetConn(t.conn, t.tcp) })
}

// Close ends the connection. What was sent is delivered.
func (t *TCP) Close() error {
	var err error
	t.once.Do(func() { err = t.conn.Close() })
	return err
}

// Fault implements Stream.
func (t *TCP) Fault(error) frame.Reason { return t.fault }

// resetConn closes conn with RST if it is, or wraps, a TCP connection.
func resetConn(conn net.Conn, tcp *net.TCPConn) {
	if tcp != nil {
		_ = tcp.SetLinger(0) // fails only if it is closed
	}
	_ = conn.Close() // what was lost is lost
}

// Reset closes a connection with RST, so that its peer sees an error.
func Reset(conn net.Conn) {
	tcp, _ := Unwrap(conn).(*net.TCPConn)
	resetConn(conn, tcp)
}

// spliceChunk is the most that is spliced before bytes are counted.
const spliceChunk = 1 << 20

// splice lets the kernel move bytes from src to dst, if both are plain sockets and src
// has filled its largest buffers. It returns what was moved; less than spliceChunk is
// not the end of src, which the next Receive reports.
func splice(dst, src Stream) (int64, error) {
	to, ok := dst.(*TCP)
	if !ok {
		return 0, nil
	}
	from, ok := src.(*TCP)
	if !ok || to.tcp == nil || from.tcp == nil || !from.socket.Bulk() {
		return 0, nil
	}
	return to.tcp.ReadFrom(&io.LimitedReader{R: from.tcp, N: spliceChunk})
}
