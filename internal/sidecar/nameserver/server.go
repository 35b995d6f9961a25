package nameserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// maxForwarded questions are with others at the same time, maxConns clients are connected by TCP. More
	// are answered with a failure, and closed.
	maxForwarded = 256
	maxConns     = 128
	// tcpIdle is how long a connection may wait for its next question.
	tcpIdle = 10 * time.Second
	// acceptPause after an error, as when file descriptors are short.
	acceptPause = 50 * time.Millisecond
)

// Config of a Server. Table is required.
type Config struct {
	Table *Table
	// Upstreams are the resolvers for names of others, asked for before each question, in order.
	Upstreams func() []netip.AddrPort
	// Control is for the sockets of questions to them, as of net.Dialer; nil: nothing is set.
	Control func(network, address string, conn syscall.RawConn) error
	Logger  *slog.Logger // nil: silence
}

// Server answers questions.
type Server struct {
	config    Config
	forwarded chan struct{}
	conns     chan struct{}

	local, others, failed atomic.Uint64
}

// New makes a server.
func New(c Config) *Server {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{config: c, forwarded: make(chan struct{}, maxForwarded), conns: make(chan struct{}, maxConns)}
}

// Counters are the questions that were answered by the names that are here, those that others have
// answered, and those that failed.
func (s *Server) Counters() (local, forwarded, failed uint64) {
	return s.local.Load(), s.others.Load(), s.failed.Load()
}

// Sockets of a server at one address, of UDP and TCP.
type Sockets struct {
	Packets *net.UDPConn
	Streams net.Listener
}

// Listen at an address, by both. Port 0 is a free port, the same for both.
func Listen(address string) (Sockets, error) {
	to, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return Sockets{}, err
	}
	tries := 1
	if to.Port == 0 {
		tries = 20 // the port that is free for UDP may be taken for TCP
	}
	for range tries {
		var on Sockets
		if on, err = listen(to); err == nil {
			return on, nil
		}
	}
	return Sockets{}, err
}

func listen(to *net.UDPAddr) (Sockets, error) {
	packets, err := net.ListenUDP("udp", to)
	if err != nil {
		return Sockets{}, err
	}
	streams, err := net.Listen("tcp", packets.LocalAddr().String())
	if err != nil {
		return Sockets{}, errors.Join(err, packets.Close())
	}
	return Sockets{packets, streams}, nil
}

// Serve on sockets, which it closes, until ctx ends. It returns nil then.
func (s *Server) Serve(ctx context.Context, on Sockets) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		_ = on.Packets.Close() // that ends the loops
		_ = on.Streams.Close()
	})
	defer stop()
	var tasks sync.WaitGroup
	var failed error
	tasks.Go(func() {
		failed = s.packets(ctx, on.Packets)
		cancel()
	})
	s.streams(ctx, on.Streams, &tasks)
	tasks.Wait()
	return failed
}

// packets answers questions by UDP. Those for others wait apart.
func (s *Server) packets(ctx context.Context, conn *net.UDPConn) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	buffer := make([]byte, maxTCP)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("questions of DNS: %w", err)
		case err != nil:
			continue // of an earlier packet, as ICMP reports it
		}
		q, err := parse(buffer[:n])
		if err != nil {
			s.failed.Add(1)
			continue
		}
		send := func(message []byte) {
			if message != nil {
				_, _ = conn.WriteToUDPAddrPort(message, from) // a client that has gone does not matter
			}
		}
		r, ours := s.answer(&q)
		if ours && r.alias == "" {
			send(q.encode(&r, q.size))
			continue
		}
		select {
		case s.forwarded <- struct{}{}:
		default:
			s.failed.Add(1)
			send(q.encode(&reply{code: dnsmessage.RCodeServerFailure}, q.size))
			continue
		}
		message := append([]byte(nil), buffer[:n]...)
		tasks.Go(func() {
			defer func() { <-s.forwarded }()
			send(s.ask(ctx, &q, &r, ours, message, "udp"))
		})
	}
}

// answer by the names that are here.
func (s *Server) answer(q *question) (reply, bool) {
	if q.asked.Class != dnsmessage.ClassINET || q.header.OpCode != 0 {
		return reply{}, false
	}
	r, ours := s.config.Table.local(q.name, q.asked.Type)
	if ours && r.alias == "" {
		if r.code == dnsmessage.RCodeServerFailure {
			s.failed.Add(1)
		} else {
			s.local.Add(1)
		}
	}
	return r, ours
}

// ask others, for the whole answer or for the name that a reply (ours) ends at.
func (s *Server) ask(ctx context.Context, q *question, r *reply, ours bool, message []byte, network string) []byte {
	limit := q.size
	if network == "tcp" {
		limit = maxTCP
	}
	if ours {
		var err error
		to := question{header: dnsmessage.Header{RecursionDesired: true}, asked: dnsmessage.Question{Name: fqdn(r.alias), Type: q.asked.Type, Class: q.asked.Class}}
		if message, err = to.encodeQuestion(); err != nil {
			return q.encode(&reply{code: dnsmessage.RCodeServerFailure}, limit)
		}
	}
	answer, err := s.exchange(ctx, message, network)
	if err != nil {
		s.failed.Add(1)
		s.config.Logger.Debug("no resolver answers", "name", q.name, "error", err)
		return q.encode(&reply{code: dnsmessage.RCodeServerFailure}, limit)
	}
	s.others.Add(1)
	if !ours {
		return answer
	}
	r.aliased(answer)
	return q.encode(r, limit)
}

// streams answers questions by TCP, one after the other on each connection (RFC 7766).
func (s *Server) streams(ctx context.Context, l net.Listener, tasks *sync.WaitGroup) {
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close() // it is over
			}
			return
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(acceptPause)
			continue
		}
		select {
		case s.conns <- struct{}{}:
		default:
			_ = conn.Close() // too many
			continue
		}
		tasks.Go(func() {
			defer func() { <-s.conns }()
			s.stream(ctx, conn)
		})
	}
}

func (s *Server) stream(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	for {
		if conn.SetDeadline(time.Now().Add(tcpIdle)) != nil {
			return
		}
		message, err := readMessage(conn)
		if err != nil {
			return
		}
		q, err := parse(message)
		if err != nil {
			s.failed.Add(1)
			return
		}
		r, ours := s.answer(&q)
		var out []byte
		if ours && r.alias == "" {
			out = q.encode(&r, maxTCP)
		} else {
			out = s.ask(ctx, &q, &r, ours, message, "tcp")
		}
		if out == nil || conn.SetDeadline(time.Now().Add(tcpIdle)) != nil || writeMessage(conn, out) != nil {
			return
		}
	}
}

// readMessage with its length in front (RFC 1035, 4.2.2).
func readMessage(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	out := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(r, out)
	return out, err
}

func writeMessage(w io.Writer, message []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)) //nolint:gosec // at most maxTCP
	return err
}
