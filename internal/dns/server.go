// Package dns answers names on a node: those of Services from the state that the
// agent has, so that they resolve while every control plane is away, all others
// by asking the resolvers that the machine had before.
//
// Enter at New, then ServeUDP and ServeTCP. Records follow the Kubernetes DNS
// specification 1.1. A question for the cluster domain is never sent to anybody
// else, and the package never changes how the machine resolves names.
package dns

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/listener"
)

// Config of a Server.
type Config struct {
	// Zone is the local state. Required.
	Zone *records.Zone
	// Domain of the cluster; empty: cluster.local.
	Domain string
	// ServiceCIDRs: an address in them without a name has none anywhere. They are
	// those at the start; see SetServiceCIDRs.
	ServiceCIDRs []netip.Prefix
	// Mesh of the client at an address: it resolves the names of its mesh below "mesh", no
	// others. It must not block. Nil: every client is of the mesh "default".
	Mesh func(client netip.Addr) string
	// Viewer is the mesh whose Services the client at an address sees in the cluster domain,
	// among imported services and in reverse names; empty: it sees all. It must not block.
	// Nil: all clients see all.
	Viewer func(client netip.Addr) (mesh string)
	// Addresses of this server, for ns.dns.DOMAIN; may be empty.
	Addresses []netip.Addr
	// Upstreams (ADDRESS:PORT) are asked for other names, in this order; none:
	// these fail.
	Upstreams []string
	// Control prepares the sockets by which upstreams are asked, as that of net.Dialer; nil:
	// nothing is to be prepared.
	Control func(network, address string, conn syscall.RawConn) error
	// MaxForwards is how many questions may be under way to upstreams; more fail at
	// once. 0: 1000.
	MaxForwards int
	// MaxConnections of TCP; for more, those that have been idle longest are closed, or else they
	// wait. 0: 256.
	MaxConnections int
	// CacheSize is how many answers of upstreams are kept; 0: 10000, negative: none.
	CacheSize int
	// Logger; nil: silence.
	Logger *slog.Logger
	// Registerer gets the metrics; nil: none.
	Registerer prometheus.Registerer
}

// Server answers questions. Safe for concurrent use.
type Server struct {
	config  Config
	log     *slog.Logger
	origin  string // cluster domain, absolute, lower case
	packed  packedCache
	ranges  atomic.Pointer[ranges]
	forward *forwarder
	metrics *metrics
	// captured questions.
	captured atomic.Uint64
}

// ranges are the service ranges, and how often they have changed.
type ranges struct {
	prefixes []netip.Prefix
	changes  uint64
}

// Limits of the protocol and of timeout.
const (
	// maxUDP is the largest answer by UDP, whatever a client offers: it fits
	// every path unfragmented (DNS Flag Day 2020).
	maxUDP  = 1232
	minUDP  = 512 // RFC 1035, 4.2.1
	maxTCP  = 65535
	tcpIdle = 10 * time.Second // RFC 7766, 6.2.3
	// readBuffer holds some thousand questions.
	readBuffer = 4 << 20
)

// New makes a server. It listens nowhere yet.
func New(config Config) (*Server, error) {
	if config.Domain == "" {
		config.Domain = "cluster.local"
	}
	if _, ok := dns.IsDomainName(config.Domain); !ok {
		return nil, fmt.Errorf("cluster domain %q is not a domain name", config.Domain)
	}
	def := func(n *int, otherwise int) {
		if *n == 0 {
			*n = otherwise
		}
	}
	def(&config.MaxForwards, 1000)
	def(&config.MaxConnections, 256)
	def(&config.CacheSize, 10000)
	if strings.EqualFold(dns.Fqdn(config.Domain), clusterSet) {
		return nil, fmt.Errorf("cluster domain %s is the domain of imported services: choose another one", config.Domain)
	}
	if strings.EqualFold(dns.Fqdn(config.Domain), meshOrigin) {
		return nil, fmt.Errorf("cluster domain %s is the domain of names of meshes: choose another one", config.Domain)
	}
	if config.Mesh == nil {
		config.Mesh = func(netip.Addr) string { return meshv1alpha1.DefaultMesh }
	}
	s := &Server{config: config, log: config.Logger, origin: strings.ToLower(dns.Fqdn(config.Domain))}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.ranges.Store(&ranges{prefixes: config.ServiceCIDRs})
	s.metrics = newMetrics(config.Registerer, func() float64 { return float64(s.captured.Load()) })
	s.forward = newForwarder(config, s.log, s.metrics)
	return s, nil
}

// SetServiceCIDRs replaces the service ranges while the server answers. One
// goroutine at a time may call it; it does not block.
func (s *Server) SetServiceCIDRs(prefixes []netip.Prefix) {
	s.ranges.Store(&ranges{prefixes: prefixes, changes: s.ranges.Load().changes + 1})
}

// generation changes with everything that local answers depend on.
func (s *Server) generation() uint64 { return s.config.Zone.Generation() + s.ranges.Load().changes }

// Run watches for loops with the upstreams until ctx ends, and returns nil then.
// It is to run together with ServeUDP and ServeTCP.
func (s *Server) Run(ctx context.Context) error { return s.forward.watchLoops(ctx) }

// ServeUDP answers on a socket until ctx ends, and returns nil then. It closes the
// socket. An error of the socket is no reason to end: it passes.
func (s *Server) ServeUDP(ctx context.Context, conn *net.UDPConn) error {
	return s.serveUDP(ctx, conn, direct)
}

// ServeCapturedUDP is ServeUDP for questions to others that are led to the socket.
func (s *Server) ServeCapturedUDP(ctx context.Context, conn *net.UDPConn) error {
	return s.serveUDP(ctx, conn, byCapture)
}

// Captured is how many questions and connections came to the sockets for captured ones.
func (s *Server) Captured() uint64 { return s.captured.Load() }

// way in which questions come.
type way uint8

const (
	direct way = iota
	byCapture
)

func (s *Server) count(by way) {
	if by == byCapture {
		s.captured.Add(1)
	}
}

func (s *Server) serveUDP(ctx context.Context, conn *net.UDPConn, by way) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	// Every machine's clients wake up at once now and then; the kernel grants what
	// it allows.
	_ = conn.SetReadBuffer(readBuffer)
	var readers, forwards sync.WaitGroup
	socket := newUDPSocket(conn)
	for range max(2, runtime.GOMAXPROCS(0)) {
		readers.Go(func() { s.readUDP(ctx, socket, by, &forwards) })
	}
	readers.Wait()
	forwards.Wait()
	return nil
}

// freeReadErrors in a row are passed over at once: on some systems an error is the
// ICMP answer to a reply that was sent earlier. After more of them there is a
// pause, as the system then lacks memory or the network is down.
const freeReadErrors = 100

func (s *Server) readUDP(ctx context.Context, socket udpSocket, by way, forwards *sync.WaitGroup) {
	in, out, info := make([]byte, 4096), make([]byte, 0, minUDP), make([]byte, infoSize)
	retry := listener.Retry()
	for failures := 0; ; {
		n, from, err := socket.read(in, info)
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			if failures++; failures <= freeReadErrors {
				continue
			}
			if failures == freeReadErrors+1 {
				s.log.Warn("reading DNS questions fails, trying again", "error", err)
			}
			if !backoff.Sleep(ctx, retry.Next()) {
				return
			}
			continue
		}
		failures = 0
		retry.Reset()
		s.count(by)
		// A client that does not listen any more has given up: failures to write are ignored.
		if b := s.fast(in[:n], out, from.Addr()); b != nil {
			socket.write(b, from)
			continue
		}
		from.info = bytes.Clone(from.info) // it is used after the next packet has been read
		s.slow(ctx, in[:n], from.Addr(), forwards, func(b []byte) { socket.write(b, from) })
	}
}

// slow answers a packet that needs more than a look at the local state.
func (s *Server) slow(ctx context.Context, packet []byte, from netip.Addr, forwards *sync.WaitGroup, send func([]byte)) {
	later := s.respond(packet, from, minUDP, overUDP, send)
	if later != nil && !s.forward.start(forwards, func() { later(ctx) }) {
		s.refuse(packet, minUDP, overUDP, send)
	}
}

// ServeTCP answers on a listener until ctx ends (nil) or the listener is broken;
// a lack of file descriptors is none of its ends. It closes the listener.
func (s *Server) ServeTCP(ctx context.Context, l net.Listener) error {
	return s.serveTCP(ctx, l, direct)
}

// ServeCapturedTCP is ServeTCP for connections to others that are led to the listener.
func (s *Server) ServeCapturedTCP(ctx context.Context, l net.Listener) error {
	return s.serveTCP(ctx, l, byCapture)
}

func (s *Server) serveTCP(ctx context.Context, l net.Listener, by way) error {
	limited := listener.Limit(l, listener.Config{Name: "DNS over TCP", MaxConnections: s.config.MaxConnections, Logger: s.log})
	stop := context.AfterFunc(ctx, func() { _ = limited.Close() })
	defer stop()
	defer limited.Close()
	all := newConnections(s.config.MaxConnections)
	var open sync.WaitGroup
	defer open.Wait()
	for {
		conn, err := limited.Accept()
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			if err == nil {
				_ = conn.Close()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept DNS connection: %w", err)
		}
		s.count(by)
		all.begin()
		open.Go(func() {
			defer all.end()
			s.serveConn(ctx, conn, all)
		})
	}
}

// serveConn answers one question after the other.
func (s *Server) serveConn(ctx context.Context, conn net.Conn, all *connections) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	var from netip.Addr
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		from = a.AddrPort().Addr()
	}
	for {
		_ = conn.SetDeadline(time.Now().Add(tcpIdle))
		done := all.wait(conn)
		question, err := readFramed(conn)
		done()
		if err != nil {
			return
		}
		var failed error
		send := func(b []byte) {
			framed := append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(b)), uint16(len(b))), b...)
			_, failed = conn.Write(framed)
		}
		if later := s.respond(question, from, maxTCP, overTCP, send); later != nil {
			if !s.forward.acquire() {
				s.refuse(question, maxTCP, overTCP, send)
			} else {
				later(ctx)
				s.forward.release()
			}
		}
		if failed != nil {
			return
		}
	}
}

// readFramed reads a packet behind its length (RFC 1035, 4.2.2).
func readFramed(conn net.Conn) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	packet := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(conn, packet)
	return packet, err
}

// respond answers a packet at once, or returns what answers it by asking others,
// which may take a while. What is no question is not answered at all, so that
// two servers cannot keep each other busy.
func (s *Server) respond(packet []byte, from netip.Addr, size int, over transport, send func([]byte)) (later func(context.Context)) {
	started := time.Now()
	var q dns.Msg
	if len(packet) < 12 || packet[2]&0x80 != 0 {
		s.metrics.dropped.Inc()
		return nil
	}
	if err := q.Unpack(packet); err != nil {
		s.finish(s.failure(packet, dns.RcodeFormatError), size, over, sourceNone, started, send)
		return nil
	}
	r, size := s.reply(&q, size)
	if r.Rcode != dns.RcodeSuccess || len(q.Question) != 1 {
		s.finish(r, size, over, sourceNone, started, send)
		return nil
	}
	question := q.Question[0]
	name := strings.ToLower(question.Name)
	if s.forward.sawOwn(name) {
		r.Rcode = dns.RcodeRefused
		s.finish(r, size, over, sourceNone, started, send)
		return nil
	}
	a, ours := s.local(question, name, s.caller(from))
	if ours && !s.config.Zone.Ready() {
		// What is not known yet is not known not to be.
		a = answer{rcode: dns.RcodeServerFailure}
	}
	if ours && a.alias == "" {
		s.fill(r, a)
		s.finish(r, size, over, sourceCluster, started, send)
		return nil
	}
	return func(ctx context.Context) {
		if ours {
			s.chase(ctx, r, question, a)
		} else {
			s.forward.exchange(ctx, &q, r)
		}
		s.finish(r, size, over, sourceForward, started, send)
	}
}

// reply prepares the answer to a question that could be read. Its rcode says
// whether it is one that we answer.
func (s *Server) reply(q *dns.Msg, size int) (*dns.Msg, int) {
	r := new(dns.Msg)
	r.SetReply(q)
	r.CheckingDisabled = q.CheckingDisabled
	r.RecursionAvailable = true
	r.Compress = true
	if opt := q.IsEdns0(); opt != nil {
		r.SetEdns0(maxUDP, opt.Do())
		if size < maxTCP {
			size = min(max(minUDP, int(opt.UDPSize())), maxUDP)
		}
		if opt.Version() != 0 {
			r.Rcode = dns.RcodeBadVers
			return r, size
		}
	}
	switch {
	case q.Opcode != dns.OpcodeQuery:
		r.Rcode = dns.RcodeNotImplemented
	case len(q.Question) != 1:
		r.Rcode = dns.RcodeFormatError
	case q.Question[0].Qclass != dns.ClassINET,
		q.Question[0].Qtype == dns.TypeAXFR, q.Question[0].Qtype == dns.TypeIXFR:
		r.Rcode = dns.RcodeRefused
	}
	return r, size
}

// failure is the answer to what could not be read, as far as it could.
func (s *Server) failure(packet []byte, rcode int) *dns.Msg {
	r := new(dns.Msg)
	r.Id = binary.BigEndian.Uint16(packet)
	r.Response, r.RecursionAvailable, r.Rcode = true, true, rcode
	r.Opcode = int(packet[2]>>3) & 0xf
	r.RecursionDesired = packet[2]&1 != 0
	return r
}

// refuse answers a question beyond the limit.
func (s *Server) refuse(packet []byte, size int, over transport, send func([]byte)) {
	s.metrics.overload.Inc()
	var q dns.Msg
	r := s.failure(packet, dns.RcodeServerFailure)
	if q.Unpack(packet) == nil {
		r.Question = q.Question
	}
	s.finish(r, size, over, sourceForward, time.Now(), send)
}

// fill writes a local answer into a reply.
func (s *Server) fill(r *dns.Msg, a answer) {
	r.Authoritative = true
	r.Rcode, r.Answer = a.rcode, a.answer
	opt := r.IsEdns0()
	r.Extra = a.extra
	if opt != nil {
		r.Extra = append(r.Extra, opt)
	}
	if a.rcode != dns.RcodeServerFailure && (len(a.answer) == 0 || a.rcode != dns.RcodeSuccess) {
		r.Ns = []dns.RR{s.soa(cmp.Or(a.origin, s.origin))}
	}
}

// chase follows an alias out of the zone and appends what it stands for.
func (s *Server) chase(ctx context.Context, r *dns.Msg, q dns.Question, a answer) {
	s.fill(r, a)
	var target dns.Msg
	target.SetQuestion(a.alias, q.Qtype)
	got := new(dns.Msg)
	s.forward.exchange(ctx, &target, got)
	if r.Rcode = got.Rcode; r.Rcode == dns.RcodeNameError {
		r.Rcode = dns.RcodeSuccess // as answer.then
	}
	r.Answer = append(r.Answer, got.Answer...)
	r.Ns = got.Ns
}

// finish sends an answer, cut to the size that the client takes.
func (s *Server) finish(r *dns.Msg, size int, over transport, from source, started time.Time, send func([]byte)) {
	if size < maxTCP {
		r.Truncate(size)
	}
	b, err := r.Pack()
	if err != nil || len(b) > maxTCP {
		s.log.Warn("answer cannot be written", "question", r.Question, "error", err)
		short := new(dns.Msg)
		short.MsgHdr, short.Question = r.MsgHdr, r.Question
		short.Rcode = dns.RcodeServerFailure
		if b, err = short.Pack(); err != nil {
			return
		}
		r = short
	}
	s.metrics.count(over, from, r.Rcode)
	if from == sourceForward {
		s.metrics.forwardSeconds.Observe(time.Since(started).Seconds())
	}
	send(b)
}
