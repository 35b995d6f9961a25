// Package userspace is the mode that carries traffic in the agent's own
// process: it listens on the virtual addresses and copies between client and
// endpoint. It works anywhere and needs no privileges, and is the only mode
// that can try another endpoint when the first does not answer.
//
// Enter at [New]; the result is a proxy.Mode. It owns its sockets and, if
// asked, a local route for the range of virtual addresses; it changes nothing
// else of the system. It never chooses endpoints by itself (package choose
// does) and never reads what it carries.
//
// Endpoints see connections from this host: the client's address is lost.
// DESIGN.md of package proxy reports what else differs from a
// kernel mode, and why.
package userspace

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Options of the mode. The zero value of each field is its default.
type Options struct {
	// Logger gets what no caller sees, such as a failing accept. Default: discard.
	Logger *slog.Logger
	// Registerer gets the mode's metrics until Close. Default: none.
	Registerer prometheus.Registerer

	// LocalRanges are ranges of virtual addresses outside 127.0.0.0/8 to route to
	// this host, so that it can listen on them. Linux and CAP_NET_ADMIN only;
	// IPv6 ranges always need it. They are those at the start: see SetRanges.
	LocalRanges []netip.Prefix
	// NodePortAddresses are the addresses on which node ports listen. Nil: all
	// addresses of the host, of the families the Service has, as a Service asks
	// for a node port to be reached from outside. Empty: node ports are off.
	NodePortAddresses []netip.Addr

	// ConnectTimeout bounds one attempt while another endpoint is left to try;
	// the last one gets five times as long. Default 1 s, the first
	// retransmission of a SYN (RFC 6298).
	ConnectTimeout time.Duration
	// Penalty is for how long an endpoint that did not answer is tried last; it
	// doubles with each further failure up to 16 times. Default 1 s.
	Penalty time.Duration
	// UDPIdle ends a UDP flow without packets. A flow of a single exchange, such
	// as a DNS query, ends after a sixth of it. Default 60 s.
	UDPIdle time.Duration
	// MaxConnections bounds connections and flows together. Default: a quarter of
	// the process's limit of open files, as a connection takes two and, while it
	// carries bulk, two pipes of two. At the limit TCP clients wait in the
	// kernel's queue and the most idle UDP flow ends.
	MaxConnections int

	// portable carries TCP as on systems without an event loop of their own.
	portable bool
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = time.Second
	}
	if o.Penalty <= 0 {
		o.Penalty = time.Second
	}
	if o.UDPIdle <= 0 {
		o.UDPIdle = time.Minute
	}
	if o.MaxConnections <= 0 {
		o.MaxConnections = max(64, openFiles()/4)
	}
	return o
}

// ErrClosed is what Apply returns after Close.
var ErrClosed = errors.New("userspace mode is closed")

// Mode is the userspace proxy.Mode, and a proxy.Counter.
type Mode struct {
	opts      Options
	log       *slog.Logger
	begun     time.Time
	penalties *penalties
	slots     slots
	host      host
	routes    routes
	metrics   *metrics
	streams   streams
	sockets   sockets
	tunnel    atomic.Pointer[tunnel]
	isolation atomic.Pointer[isolation] // nil: there is one mesh
	// namespaces of clients, by their addresses; nil: none is known.
	namespaces atomic.Pointer[map[netip.Addr]string]

	// life ends when Close gives up waiting; it bounds dials in flight.
	life context.Context
	kill context.CancelFunc

	// mu guards the fields below and is never held while traffic is carried.
	mu     sync.Mutex
	closed bool
	ports  map[proxy.PortName]*servicePort
	owners map[socketKey]proxy.PortName

	wg sync.WaitGroup // every goroutine of the mode
}

// streams carries TCP: loops on Linux, relays elsewhere.
type streams interface {
	// listen opens a socket. Its frontend accepts at once, unless it is silent.
	listen(*servicePort, frontendKey) (frontend, error)
	// drain waits until all connections have ended and resets the rest when ctx
	// ends. All frontends are closed before. It is called once.
	drain(ctx context.Context)
}

var (
	_ proxy.Mode      = (*Mode)(nil)
	_ proxy.Counter   = (*Mode)(nil)
	_ proxy.Ranged    = (*Mode)(nil)
	_ proxy.Announcer = (*Mode)(nil)
	_ proxy.Isolator  = (*Mode)(nil)
)

// New makes a mode that carries nothing yet. If it was asked to route local
// ranges and cannot, it fails and leaves no route behind.
func New(opts Options) (*Mode, error) {
	opts = opts.withDefaults()
	m := &Mode{
		begun:     time.Now(),
		opts:      opts,
		log:       opts.Logger,
		penalties: newPenalties(opts.Penalty, 6*opts.ConnectTimeout),
		slots:     slots{c: make(chan struct{}, opts.MaxConnections)},
		ports:     map[proxy.PortName]*servicePort{},
		owners:    map[socketKey]proxy.PortName{},
	}
	m.streams = newStreams(m)
	if opts.portable {
		m.streams = newRelays(m)
	}
	m.life, m.kill = context.WithCancel(context.Background())
	if err := m.routes.add(opts.LocalRanges); err != nil {
		m.kill()
		return nil, fmt.Errorf("routing virtual addresses to this host: %w", err)
	}
	if opts.Registerer != nil {
		m.metrics = &metrics{mode: m}
		if err := opts.Registerer.Register(m.metrics); err != nil {
			m.kill()
			return nil, errors.Join(fmt.Errorf("registering metrics of the userspace mode: %w", err), m.routes.remove())
		}
	}
	return m, nil
}

// Name implements proxy.Mode.
func (m *Mode) Name() string { return "userspace" }

// Apply implements proxy.Mode. Its cost is that of the changed ports alone.
// Sockets are released before any is opened, so an address may move from one
// service port to another within one call.
func (m *Mode) Apply(_ context.Context, changes []proxy.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	for _, c := range changes {
		p := m.ports[c.Name]
		if p == nil {
			if c.State == nil {
				continue
			}
			p = newServicePort(m, c.Name)
			m.ports[c.Name] = p
		}
		p.release(c.State)
		if c.State == nil {
			delete(m.ports, c.Name)
		}
	}
	failed := map[proxy.PortName]error{}
	for _, c := range changes {
		// A port named twice is in the state named last.
		if p := m.ports[c.Name]; p != nil && c.State != nil {
			if err := p.open(); err != nil {
				failed[c.Name] = err
			}
		}
	}
	if len(failed) > 0 {
		return &proxy.PortError{Failed: failed}
	}
	return nil
}

// SetRanges implements proxy.Ranged. Ranges of loopback addresses need nothing
// and are left out. Ports that could not be opened before are tried again, as
// their addresses may be local now; connections are not touched.
func (m *Mode) SetRanges(ranges []netip.Prefix) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	want := slices.DeleteFunc(slices.Clone(ranges), func(p netip.Prefix) bool { return p.Addr().IsLoopback() })
	if slices.Equal(want, m.opts.LocalRanges) {
		return nil
	}
	if err := m.routes.change(m.opts.LocalRanges, want); err != nil {
		return fmt.Errorf("routing virtual addresses to this host: %w", err)
	}
	m.opts.LocalRanges = want
	for _, p := range m.ports {
		if len(p.frontends) < len(p.wanted) {
			_ = p.open() // the caller of Apply got the error, and calls it again
		}
	}
	return nil
}

// Close implements proxy.Mode: nothing new is accepted, connections may finish
// until ctx ends, and what is left then is reset. UDP flows end at once. It is
// idempotent.
func (m *Mode) Close(ctx context.Context) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	for name, p := range m.ports {
		p.release(nil)
		delete(m.ports, name)
	}
	m.mu.Unlock()

	m.streams.drain(ctx)
	m.kill()
	m.wg.Wait()
	if m.metrics != nil {
		m.opts.Registerer.Unregister(m.metrics)
	}
	return m.routes.remove()
}

// Counts implements proxy.Counter.
func (m *Mode) Counts() iter.Seq2[proxy.PortName, proxy.Counts] {
	all := m.servicePorts()
	return func(yield func(proxy.PortName, proxy.Counts) bool) {
		for _, p := range all {
			if !yield(p.name, p.counters.snapshot()) {
				return
			}
		}
	}
}

// slots bounds connections and flows: one element each.
type slots struct {
	c chan struct{}
	// short is set while a caller waits for a slot to be released.
	short atomic.Bool
	freed func()
}

// take waits for a slot; false: ctx ended first.
func (s *slots) acquire(ctx context.Context) bool {
	select {
	case s.c <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *slots) tryTake() bool {
	select {
	case s.c <- struct{}{}:
		return true
	default:
		return false
	}
}

// takeOrAwait takes a slot, or has freed called when there may be one. The
// second look is for a slot that was given back before the request was seen.
func (s *slots) takeOrAwait() bool {
	if s.tryTake() {
		return true
	}
	s.short.Store(true)
	return s.tryTake()
}

func (s *slots) give() {
	<-s.c
	if s.short.Load() && s.short.Swap(false) && s.freed != nil {
		s.freed()
	}
}

func closeQuietly(c net.Conn) { _ = c.Close() }
