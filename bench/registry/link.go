package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// link is a connection of gRPC (HTTP/2 without TLS, RFC 9113) that does next to nothing beside sending
// and receiving, as a load generator on the machine of the server must leave it room: a call is two
// frames in one write, headers of responses are not read, and a goroutine for each link reads. Messages
// are bytes. Safe for concurrent use.
type link struct {
	conn   net.Conn
	blocks map[string][]byte // header block of each method

	sending sync.Mutex
	out     *bufio.Writer
	framer  *http2.Framer
	next    uint32
	prefix  []byte

	mu     sync.Mutex
	wider  sync.Cond // a window has grown
	window int64     // of the connection, that the server allows
	calls  map[uint32]*call
	err    error // why the link has ended
	ended  chan struct{}
}

// call is a stream of HTTP/2.
type call struct {
	window  int64
	buffer  []byte
	message []byte
	done    chan error         // of a unary call
	receive func([]byte) error // of a stream: it must not keep the bytes
}

const (
	// initialWindow that both ends begin with (RFC 9113, 6.9.2).
	initialWindow = 65_535
	// ourWindow is so large that servers never wait for it.
	ourWindow = 1 << 30
	grpcHead  = 5 // flag and length before each message
)

func dial(address string, methods ...string) (*link, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	l := &link{
		conn: conn, out: bufio.NewWriterSize(conn, 4<<10), next: 1, window: initialWindow, calls: map[uint32]*call{},
		blocks: map[string][]byte{}, ended: make(chan struct{}),
	}
	l.wider.L = &l.mu
	l.framer = http2.NewFramer(l.out, bufio.NewReaderSize(conn, 4<<10))
	l.framer.SetReuseFrames()
	for _, method := range methods {
		l.blocks[method] = headers(address, method)
	}
	_, err = io.WriteString(l.out, http2.ClientPreface)
	if err == nil {
		err = l.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: ourWindow}, http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	}
	if err == nil {
		err = l.framer.WriteWindowUpdate(0, ourWindow-initialWindow)
	}
	if err == nil {
		err = l.out.Flush()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	go l.read()
	return l, nil
}

// headers of a request, the same each time: nothing goes into the table of the connection.
func headers(authority, path string) []byte {
	var block writer
	e := hpack.NewEncoder(&block)
	e.SetMaxDynamicTableSize(0)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path}, {Name: ":authority", Value: authority},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	} {
		_ = e.WriteField(f) // a writer to memory takes everything
	}
	return block
}

type writer []byte

func (w *writer) Write(p []byte) (int, error) { *w = append(*w, p...); return len(p), nil }

func (l *link) close() {
	l.end(net.ErrClosed)
	<-l.ended
}

// end the link; the first error is that of all calls.
func (l *link) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	l.conn.Close()
	for _, c := range l.calls {
		if c.done != nil {
			c.done <- err
		}
	}
	clear(l.calls)
	l.wider.Broadcast()
}

// invoke a method with a message, and return the message of the response.
func (l *link) invoke(method string, message []byte) ([]byte, error) {
	c := &call{window: initialWindow, done: make(chan error, 1)}
	if _, err := l.send(c, method, message, true); err != nil {
		return nil, err
	}
	if err := <-c.done; err != nil {
		return nil, err
	}
	return c.message, nil
}

// stream opens one whose messages receive is called with, by the goroutine that reads, and returns how
// to send by it.
func (l *link) stream(method string, first []byte, receive func([]byte) error) (send func([]byte) error, err error) {
	c := &call{window: initialWindow, receive: receive}
	id, err := l.send(c, method, first, false)
	if err != nil {
		return nil, err
	}
	return func(message []byte) error { return l.sendOn(id, c, message) }, nil
}

// send the first message of a new stream.
func (l *link) send(c *call, method string, message []byte, last bool) (id uint32, err error) {
	l.sending.Lock()
	defer l.sending.Unlock()
	if err := l.reserve(c, len(message)+grpcHead); err != nil {
		return 0, err
	}
	id = l.next
	l.next += 2
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return 0, l.err
	}
	l.calls[id] = c
	l.mu.Unlock()
	err = l.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: l.blocks[method], EndHeaders: true})
	if err == nil {
		err = l.data(id, message, last)
	}
	if err != nil {
		l.end(err)
	}
	return id, err
}

func (l *link) sendOn(id uint32, c *call, message []byte) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	if err := l.reserve(c, len(message)+grpcHead); err != nil {
		return err
	}
	return l.data(id, message, false)
}

// maxFrame is what any server takes in one frame (RFC 9113, 4.2).
const maxFrame = 16 << 10

func (l *link) data(id uint32, message []byte, last bool) error {
	l.prefix = append(l.prefix[:0], 0, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(l.prefix[1:], uint32(len(message)))
	l.prefix = append(l.prefix, message...)
	for rest := l.prefix; ; {
		part := rest[:min(len(rest), maxFrame)]
		rest = rest[len(part):]
		if err := l.framer.WriteData(id, last && len(rest) == 0, part); err != nil {
			return err
		}
		if len(rest) == 0 {
			return l.out.Flush()
		}
	}
}

// reserve room for bytes in both windows.
func (l *link) reserve(c *call, n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.err == nil && (l.window < int64(n) || c.window < int64(n)) {
		l.wider.Wait()
	}
	l.window -= int64(n)
	c.window -= int64(n)
	return l.err
}

// read until the connection ends.
func (l *link) read() {
	defer close(l.ended)
	received := 0
	for {
		frame, err := l.framer.ReadFrame()
		if err == nil {
			received, err = l.handle(frame, received)
		}
		if err != nil {
			l.end(err)
			return
		}
	}
}

func (l *link) handle(frame http2.Frame, received int) (int, error) {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return received, l.control(l.framer.WriteSettingsAck)
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return received, l.control(func() error { return l.framer.WritePing(true, f.Data) })
		}
	case *http2.WindowUpdateFrame:
		l.mu.Lock()
		defer l.mu.Unlock()
		if c := l.calls[f.StreamID]; c != nil {
			c.window += int64(f.Increment)
		} else if f.StreamID == 0 {
			l.window += int64(f.Increment)
		}
		l.wider.Broadcast()
	case *http2.DataFrame:
		if received += len(f.Data()); received > ourWindow/2 {
			n := uint32(received)
			if err := l.control(func() error { return l.framer.WriteWindowUpdate(0, n) }); err != nil {
				return 0, err
			}
			received = 0
		}
		return received, l.take(f)
	case *http2.HeadersFrame:
		if f.StreamEnded() {
			l.finish(f.StreamID, nil)
		}
	case *http2.RSTStreamFrame:
		l.finish(f.StreamID, fmt.Errorf("the server reset the stream: %v", f.ErrCode))
	case *http2.GoAwayFrame:
		return received, fmt.Errorf("the server ended the connection: %v %s", f.ErrCode, f.DebugData())
	}
	return received, nil
}

func (l *link) control(write func() error) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	if err := write(); err != nil {
		return err
	}
	return l.out.Flush()
}

// take the data of a stream.
func (l *link) take(f *http2.DataFrame) error {
	l.mu.Lock()
	c := l.calls[f.StreamID]
	l.mu.Unlock()
	if c == nil {
		return nil
	}
	c.buffer = append(c.buffer, f.Data()...)
	for len(c.buffer) >= grpcHead {
		n := int(binary.BigEndian.Uint32(c.buffer[1:])) + grpcHead
		if len(c.buffer) < n {
			break
		}
		if c.receive == nil {
			c.message = c.buffer[grpcHead:n]
			break
		}
		if err := c.receive(c.buffer[grpcHead:n]); err != nil {
			return err
		}
		c.buffer = append(c.buffer[:0], c.buffer[n:]...)
	}
	if f.StreamEnded() {
		l.finish(f.StreamID, nil)
	}
	return nil
}

var errNoMessage = errors.New("the server ended the call without a message")

func (l *link) finish(id uint32, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.calls[id]
	if c == nil {
		return
	}
	delete(l.calls, id)
	if err == nil && c.message == nil {
		err = errNoMessage
	}
	if c.done != nil {
		c.done <- err
	}
}
