package stream

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func tcpPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	for _, c := range []net.Conn{a, b} {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	return a, b
}

// tlsPair returns a client and a server after their handshake.
func tlsPair(t testing.TB, pool *record.Pool) (conns [2]*tls.Conn, recs [2]*record.Conn) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	a, b := tcpPair(t)
	recs[0], recs[1] = record.NewConn(a, pool, nil), record.NewConn(b, pool, nil)
	conns[0] = tls.Client(recs[0], &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true})
	conns[1] = tls.Server(recs[1], &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, DynamicRecordSizingDisabled: true,
	})
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() {
			if err := c.Handshake(); err != nil {
				t.Error(err)
			}
			recs[i].EndHandshake()
			_ = recs[i].Flush()
		})
	}
	wg.Wait()
	return conns, recs
}

func linkPair(t testing.TB, pool *record.Pool) (client, server *Link) {
	conns, recs := tlsPair(t, pool)
	return NewLink(conns[0], recs[0], pool), NewLink(conns[1], recs[1], pool)
}

var opened = frame.Stream{Client: netip.MustParseAddrPort("10.0.0.1:1"), Node: "n", Identity: "i"}

// begin opens a stream with first bytes.
func begin(t testing.TB, client, server *Link, first string) {
	t.Helper()
	if sent, err := client.Open(opened, []byte(first)); err != nil || !sent {
		t.Fatal(err)
	}
	if got, err := server.Accept(); err != nil || got != opened {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := server.Accepted(); err != nil {
		t.Fatal(err)
	}
	if err := client.Await(); err != nil {
		t.Fatal(err)
	}
}

// receive reads to the end of the peer's direction.
func receive(s Stream, pool *record.Pool) (got []byte, err error) {
	for {
		c, err := s.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return got, err
		}
		got = append(got, c.Data()...)
		pool.Put(c.Buffer)
	}
}

func sendAll(t testing.TB, s Stream, pool *record.Pool, data []byte) {
	t.Helper()
	for len(data) > 0 {
		b := pool.Get(record.Large)
		n := copy(b.Bytes[Headroom:b.Class().Size()], data)
		err := s.Send(Chunk{Buffer: b, Begin: Headroom, End: Headroom + n})
		pool.Put(b)
		if err != nil {
			t.Fatal(err)
		}
		data = data[n:]
	}
}

// TestLinkCarriesStreams one after the other, with first bytes of any size, whatever
// buffers the pool has.
func TestLinkCarriesStreams(t *testing.T) {
	for name, limit := range map[string]int64{"plenty": 0, "the limit is reached": 1} {
		t.Run(name, func(t *testing.T) {
			pool := record.NewPool(limit)
			client, server := linkPair(t, pool)
			for _, size := range []int{0, 1, 5000, 16380, 64 << 10, 3 << 20} {
				first := bytes.Repeat([]byte("f"), min(size, 60_000))
				data := bytes.Repeat([]byte("0123456789abcde"), size/15)
				begin(t, client, server, string(first))
				var wg sync.WaitGroup
				wg.Go(func() {
					sendAll(t, client, pool, data)
					if err := client.CloseWrite(); err != nil {
						t.Error(err)
					}
				})
				got, err := receive(server, pool)
				wg.Wait()
				if err != nil || !bytes.Equal(got, append(first, data...)) {
					t.Fatalf("size %d: %d bytes, %v", size, len(got), err)
				}
				if err := server.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				if got, err := receive(client, pool); err != nil || len(got) > 0 {
					t.Fatalf("%q, %v", got, err)
				}
				if !client.Reusable() || !server.Reusable() {
					t.Fatalf("size %d: not of use for another stream", size)
				}
			}
			if pool.InUse() != 0 {
				t.Errorf("%d bytes of buffers are held", pool.InUse())
			}
		})
	}
}

// TestRecordsAreSmallAtFirst: of 4 kB until the stream has carried 1 MiB, then large.
// The next stream begins small again.
func TestRecordsAreSmallAtFirst(t *testing.T) {
	pool := record.NewPool(0)
	conns, recs := tlsPair(t, pool)
	client := NewLink(conns[0], recs[0], pool)
	const size = 2 << 20
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for range 2 {
			_, _ = client.Open(opened, nil)
			sendAll(t, client, pool, make([]byte, size))
		}
	})
	open, err := frame.AppendOpen(nil, opened)
	if err != nil {
		t.Fatal(err)
	}
	frames := (size + record.Large.Size() - Headroom - 1) / (record.Large.Size() - Headroom)
	total := len(open) + size + frames*frame.HeaderSize
	p := make([]byte, 64<<10)
	for stream := range 2 {
		carried, largest := 0, 0
		for carried < total {
			n, err := conns[1].Read(p) // one record at most
			if err != nil {
				t.Fatal(err)
			}
			if carried < 1<<20-256<<10 && n+22 > 4<<10 {
				t.Fatalf("stream %d: a record of %d bytes after %d", stream, n+22, carried)
			}
			carried, largest = carried+n, max(largest, n)
		}
		if largest != 16<<10 {
			t.Errorf("stream %d: the largest record has %d bytes, want 16 kB", stream, largest)
		}
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

// TestChunkIsOneWrite, however many records it takes.
func TestChunkIsOneWrite(t *testing.T) {
	pool := record.NewPool(0)
	conns, recs := tlsPair(t, pool)
	client := NewLink(conns[0], recs[0], pool)
	counted := &countingConn{Conn: recs[0].Conn}
	recs[0].Conn = counted
	const chunk = 200_000
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.CopyN(io.Discard, conns[1], 8*(chunk+frame.HeaderSize)) })
	for range 8 { // with small records, and with large ones
		sendAll(t, client, pool, make([]byte, chunk))
	}
	wg.Wait()
	if n := counted.writes.Load(); n != 8 {
		t.Errorf("%d writes for 8 chunks", n)
	}
}

// TestRefusedLinkIsOfUse: what the client sent before it knew is skipped.
func TestRefusedLinkIsOfUse(t *testing.T) {
	pool := record.NewPool(0)
	client, server := linkPair(t, pool)
	if _, err := client.Open(opened, bytes.Repeat([]byte("lost"), 10_000)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Accept(); err != nil {
		t.Fatal(err)
	}
	if err := server.Refuse(frame.Unreachable, "why"); err != nil {
		t.Fatal(err)
	}
	var refused *frame.Error
	if err := client.Await(); !errors.As(err, &refused) || refused.Reason != frame.Unreachable || refused.Text != "why" {
		t.Fatalf("%v", err)
	}
	if !client.Reusable() {
		t.Fatal("not of use for another stream")
	}
	begin(t, client, server, "hello")
	_ = client.CloseWrite()
	if got, err := receive(server, pool); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestGoAwayEndsReuse(t *testing.T) {
	pool := record.NewPool(0)
	client, server := linkPair(t, pool)
	begin(t, client, server, "")
	if err := server.GoAway(frame.Draining, ""); err != nil {
		t.Fatal(err)
	}
	sendAll(t, server, pool, []byte("the stream goes on"))
	_ = server.CloseWrite()
	if got, err := receive(client, pool); err != nil || string(got) != "the stream goes on" {
		t.Errorf("%q, %v", got, err)
	}
	if client.Reusable() {
		t.Error("of use after GOAWAY")
	}
}

// TestEndsThatAreNoEnd: without FIN, no end of a connection looks like one, wherever in
// a frame it comes.
func TestEndsThatAreNoEnd(t *testing.T) {
	for name, end := range map[string]func(*Link){
		"FIN of TCP":           func(l *Link) { l.Close() },
		"close_notify":         func(l *Link) { _ = l.conn.Close() },
		"RST of TCP":           func(l *Link) { Reset(l.rec.Conn) },
		"within a frame":       func(l *Link) { _ = l.write([]byte{byte(frame.Data), 0, 1, 0, 'x'}, record.Small); l.Close() },
		"within a header":      func(l *Link) { _ = l.write([]byte{byte(frame.Data), 0}, record.Small); l.Close() },
		"RST":                  func(l *Link) { l.Reset(frame.EndpointReset, "") },
		"OPEN within a stream": func(l *Link) { _, _ = l.Open(opened, nil) },
		"an unknown type":      func(l *Link) { _ = l.write([]byte{99, 0, 0, 0}, record.Small) },
		"DATA and then an end": func(l *Link) { _ = l.write(frame.AppendData(nil, []byte("x")), record.Small); l.Close() },
		"RST behind DATA in it": func(l *Link) {
			_ = l.write(frame.AppendReason(frame.AppendData(nil, []byte("x")), frame.Reset, 1, ""), record.Small)
		},
		"OK within a stream":      func(l *Link) { _ = l.Accepted() },
		"REFUSED within a stream": func(l *Link) { _ = l.Refuse(frame.NoRoute, "") },
	} {
		t.Run(name, func(t *testing.T) {
			pool := record.NewPool(0)
			client, server := linkPair(t, pool)
			begin(t, client, server, "")
			end(server)
			if got, err := receive(client, pool); err == nil {
				t.Errorf("a clean end after %q", got)
			} else if errors.Is(err, io.EOF) {
				t.Errorf("%v is taken for a clean end", err)
			}
		})
	}
}

// TestPipePassesEndsOn, each as what it is.
func TestPipePassesEndsOn(t *testing.T) {
	type ends struct{ left, right net.Conn }
	for name, c := range map[string]struct {
		act  func(*testing.T, ends)
		want frame.Reason // 0: a clean end
	}{
		"half-close each way": {func(t *testing.T, e ends) {
			_, _ = e.left.Write([]byte("question"))
			_ = e.left.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(e.right); err != nil || string(got) != "question" {
				t.Errorf("%q, %v", got, err)
			}
			_, _ = e.right.Write([]byte("answer"))
			_ = e.right.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(e.left); err != nil || string(got) != "answer" {
				t.Errorf("%q, %v", got, err)
			}
		}, 0},
		"reset from the left": {func(t *testing.T, e ends) {
			Reset(e.left)
			if _, err := io.ReadAll(e.right); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%v, want a reset", err)
			}
		}, frame.ClientReset},
		"reset from the right": {func(t *testing.T, e ends) {
			Reset(e.right)
			if _, err := io.ReadAll(e.left); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%v, want a reset", err)
			}
		}, frame.EndpointReset},
	} {
		t.Run(name, func(t *testing.T) {
			pool := record.NewPool(0)
			left, a := tcpPair(t)
			b, right := tcpPair(t)
			from, to := NewTCP(a, pool, frame.ClientReset), NewTCP(b, pool, frame.EndpointReset)
			piped := make(chan error, 1)
			go func() {
				err := Pipe(from, to, pool, discard{}, discard{})
				_, _ = from.Close(), to.Close()
				piped <- err
			}()
			c.act(t, ends{left, right})
			var failure *Failure
			switch err := <-piped; {
			case c.want == 0 && err != nil, c.want != 0 && (!errors.As(err, &failure) || failure.Reason != c.want):
				t.Errorf("%v, want %s", err, c.want)
			}
			if pool.InUse() != 0 {
				t.Errorf("%d bytes of buffers are held", pool.InUse())
			}
		})
	}
}

type discard struct{}

func (discard) Add(float64) {}

// FuzzLink: whatever a peer sends as frames, a stream ends, and no buffer is lost.
func FuzzLink(f *testing.F) {
	open, err := frame.AppendOpen(nil, opened)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(frame.AppendEmpty(frame.AppendData(open, []byte("data")), frame.Fin))
	f.Add(frame.AppendReason(open, frame.Reset, frame.Broken, "x"))
	f.Add(append(frame.AppendEmpty(frame.AppendData(open, []byte("data")), frame.Fin), open...))
	f.Fuzz(func(t *testing.T, sent []byte) {
		pool := record.NewPool(0)
		conns, recs := tlsPair(t, pool)
		server := NewLink(conns[1], recs[1], pool)
		go func() {
			_, _ = conns[0].Write(sent)
			recs[0].Close()
		}()
		if _, err := server.Accept(); err == nil {
			_, _ = receive(server, pool)
		}
		server.Close()
		server.Free()
		recs[0].Free()
		if pool.InUse() != 0 {
			t.Errorf("%d bytes of buffers are held", pool.InUse())
		}
	})
}
