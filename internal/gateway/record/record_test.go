package record

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tcpPair returns two ends of a connection.
func tcpPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	for _, conn := range []net.Conn{c, s} {
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	}
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// eventually polls with a deadline.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// fakeRecord has a header and a body of n bytes.
func fakeRecord(n int, fill byte) []byte {
	return append([]byte{23, 3, 3, byte(n >> 8), byte(n)}, bytes.Repeat([]byte{fill}, n)...)
}

func established(conn net.Conn, pool *Pool) *Conn {
	c := NewConn(conn, pool, nil)
	c.EndHandshake()
	_ = c.Flush()
	return c
}

// TestReadEndsAtRecords however the bytes arrive, so that crypto/tls keeps nothing of
// the next record.
func TestReadEndsAtRecords(t *testing.T) {
	a, b := tcpPair(t)
	c := established(b, NewPool(0))
	first, second := fakeRecord(100, 'x'), fakeRecord(16384+256, 'y')
	if _, err := a.Write(append(append([]byte{}, first...), second...)); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 64<<10)
	for _, want := range [][]byte{first, second} {
		if err := c.Wait(); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(p)
		if err != nil || !bytes.Equal(p[:n], want) {
			t.Fatalf("read %d bytes, %v, want the %d of one record", n, err, len(want))
		}
	}
}

// TestWaitWaitsForWholeRecords, and holds no buffer while nothing has arrived.
func TestWaitWaitsForWholeRecords(t *testing.T) {
	a, b := tcpPair(t)
	pool := NewPool(0)
	c := established(b, pool)
	waited := make(chan error, 1)
	go func() { waited <- c.Wait() }()
	eventually(t, "Wait has looked, and holds nothing", func() bool { return pool.taken.Load() > 0 && pool.InUse() == 0 })
	record := fakeRecord(1000, 'x')
	for _, part := range [][]byte{record[:3], record[3:500]} {
		if _, err := a.Write(part); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the part arrives", func() bool { return pool.InUse() > 0 })
		select {
		case <-waited:
			t.Fatal("Wait returned for a part of a record")
		default:
		}
	}
	if _, err := a.Write(record[500:]); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil || !c.Ready() {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 2000)); n != len(record) || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if pool.InUse() != 0 {
		t.Errorf("%d bytes of buffers are held by an idle connection", pool.InUse())
	}
	a.Close()
	if err := c.Wait(); !errors.Is(err, io.EOF) || !c.Ended() {
		t.Errorf("at the end: %v, ended %v", err, c.Ended())
	}
}

func TestReadDeadlineLeavesTheConnectionAsItWas(t *testing.T) {
	a, b := tcpPair(t)
	c := established(b, NewPool(0))
	_ = c.SetReadDeadline(time.Unix(1, 0))
	var timeout net.Error
	if err := c.Wait(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("%v, want a timeout", err)
	}
	_ = c.SetReadDeadline(time.Time{})
	if _, err := a.Write(fakeRecord(1, 'x')); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}

// countingConn counts calls of Write.
type countingConn struct {
	net.Conn
	writes atomic.Int64
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// TestRecordsAreWrittenInOneCall, by a real tls.Conn, and the handshake in as few as
// there are flights.
func TestRecordsAreWrittenInOneCall(t *testing.T) {
	a, b := tcpPair(t)
	cert := selfSigned(t)
	pool := NewPool(0)
	counted := &countingConn{Conn: a}
	out, in := NewConn(counted, pool, nil), NewConn(b, pool, nil)
	client := tls.Client(out, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true})
	server := tls.Server(in, &tls.Config{Certificates: []tls.Certificate{cert}})
	data := bytes.Repeat([]byte("0123456789abcdef"), 16<<10) // 256 kB, 16 records
	result := make(chan error, 1)
	go func() {
		err := server.Handshake()
		in.EndHandshake()
		_ = in.Flush()
		got := make([]byte, len(data))
		if err == nil {
			_, err = io.ReadFull(server, got)
		}
		if err == nil && !bytes.Equal(got, data) {
			err = errors.New("other bytes")
		}
		result <- err
	}()
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	out.EndHandshake()
	if n := counted.writes.Load(); n != 1 {
		t.Errorf("%d writes in the handshake, want 1: the last flight goes with the first data", n)
	}
	out.Cork(Large)
	if _, err := client.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if n := counted.writes.Load(); n > 3 {
		t.Errorf("%d writes for the handshake and 16 records, want 2 or 3", n)
	}
	out.Free()
	in.Free()
	if pool.InUse() != 0 {
		t.Errorf("%d bytes of buffers were not returned", pool.InUse())
	}
}

func TestPoolLimit(t *testing.T) {
	p := NewPool(1 << 20)
	var all []*Buffer
	classes := map[Class]int{}
	for range 100 {
		b := p.Get(Large)
		classes[b.Class()]++
		all = append(all, b)
	}
	if classes[Large] != 3 || classes[Tiny] == 0 {
		t.Errorf("classes %v: want 3 large ones within 1 MiB, and always one", classes)
	}
	if used := p.InUse(); used > 1<<20+int64(classes[Tiny])*(4<<10) {
		t.Errorf("%d bytes in use", used)
	}
	for _, b := range all {
		p.Put(b)
	}
	if p.InUse() != 0 {
		t.Errorf("%d bytes in use after all were returned", p.InUse())
	}
}

// TestNothingStopsAtTheLimit: with tiny buffers only, records are still read whole.
func TestNothingStopsAtTheLimit(t *testing.T) {
	a, b := tcpPair(t)
	c := established(b, NewPool(1))
	record := fakeRecord(16384, 'x')
	go func() { _, _ = a.Write(record) }()
	got := 0
	for p := make([]byte, 32<<10); got < len(record); {
		if err := c.Wait(); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(p)
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
	if got != len(record) {
		t.Errorf("%d bytes, want %d", got, len(record))
	}
}

func TestSizer(t *testing.T) {
	var s Sizer
	if s.Class() != Small {
		t.Fatal("it does not begin small")
	}
	for range 5 {
		s.Note(s.Class().Size(), s.Class().Size())
	}
	if s.Class() != Large {
		t.Fatalf("class %d after full reads", s.Class())
	}
	for range 2 * shortReads {
		s.Note(100, s.Class().Size())
	}
	if s.Class() != Small {
		t.Errorf("class %d after short reads", s.Class())
	}
	s.Note(1000, s.Class().Size())
	if s.Class() != Small {
		t.Error("it grew without a full read")
	}
}

// TestDetach gives back every byte, and sends none.
func TestDetach(t *testing.T) {
	a, b := tcpPair(t)
	c := NewConn(b, NewPool(0), nil)
	c.Tap()
	sent := append(fakeRecord(300, 'x'), "and more"...)
	if _, err := a.Write(sent); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("alert")); err != nil {
		t.Fatal(err)
	}
	if got := c.Detach(); !bytes.Equal(got, sent) {
		t.Errorf("got back %q, want %q", got, sent)
	}
	_ = c.Flush()
	b.Close()
	if rest, err := io.ReadAll(a); len(rest) > 0 {
		t.Errorf("%q was sent, %v", rest, err)
	}
}

// TestGate is left while the handshake waits for the peer.
func TestGate(t *testing.T) {
	a, b := tcpPair(t)
	g := &countingGate{}
	c := NewConn(b, NewPool(0), g)
	go func() {
		for g.left.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		_, _ = a.Write(fakeRecord(1, 'x'))
	}()
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	if g.left.Load() != 1 || g.entered.Load() != 1 {
		t.Errorf("left %d times, entered %d, want 1 and 1", g.left.Load(), g.entered.Load())
	}
}

type countingGate struct{ entered, left atomic.Int64 }

func (g *countingGate) Enter() error { g.entered.Add(1); return nil }
func (g *countingGate) Leave()       { g.left.Add(1) }

// TestSocket waits without a buffer, and leaves the headroom.
func TestSocket(t *testing.T) {
	a, b := tcpPair(t)
	pool := NewPool(0)
	s := NewSocket(b, pool)
	go func() { _, _ = a.Write([]byte("data")); _ = a.CloseWrite() }()
	buffer, n, err := s.Receive(4)
	if err != nil || string(buffer.Bytes[4:4+n]) != "data" {
		t.Fatalf("%d, %v", n, err)
	}
	pool.Put(buffer)
	for range 2 {
		if _, _, err := s.Receive(4); !errors.Is(err, io.EOF) {
			t.Errorf("at the end: %v", err)
		}
	}
	if pool.InUse() != 0 {
		t.Errorf("%d bytes are held", pool.InUse())
	}
}

// FuzzRead: whatever a peer sends, Read returns just that, and ends.
func FuzzRead(f *testing.F) {
	f.Add(append(fakeRecord(20, 'x'), fakeRecord(3, 'y')...), uint8(7))
	f.Add([]byte{22, 3, 1}, uint8(1))
	f.Add([]byte{22, 3, 1, 0xff, 0xff, 1}, uint8(1))
	f.Fuzz(func(t *testing.T, sent []byte, piece uint8) {
		here, there := net.Pipe()
		go func() {
			for p := sent; len(p) > 0; {
				n, err := there.Write(p[:min(len(p), int(piece)+1)])
				if err != nil {
					break
				}
				p = p[n:]
			}
			there.Close()
		}()
		pool := NewPool(0)
		c := established(here, pool)
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("read %d of %d bytes, %v", len(got), len(sent), err)
		}
		here.Close()
		c.Free()
		if pool.InUse() != 0 {
			t.Errorf("%d bytes of buffers are held", pool.InUse())
		}
	})
}
