package userspace

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// udpFrontend carries the datagrams of one virtual address. A client's address and
// port make a flow, which stays with its endpoint while it lasts.
type udpFrontend struct {
	port *servicePort
	key  frontendKey
	conn *net.UDPConn

	mu     sync.Mutex
	closed bool
	flows  map[netip.AddrPort]*flow
}

// flow is one client at one endpoint.
type flow struct {
	frontend *udpFrontend
	client   netip.AddrPort
	to       netip.AddrPort
	exchange *exchange
	conn     *net.UDPConn // connected to the endpoint, so that ICMP errors arrive
	tried    []netip.AddrPort

	// Guarded by frontend.mu. unanswered is the latest datagram while the endpoint
	// has not answered any: should it turn out dead, another gets the datagram.
	unanswered []byte
	answered   bool
	// lasting: the client wrote again after an answer.
	lasting bool

	used atomic.Int64 // Unix nanoseconds
}

// maxDatagram is the most that UDP can carry.
const maxDatagram = 64 << 10

var datagramBuffers = newBuffers(maxDatagram)

func listenUDP(p *servicePort, key frontendKey) (frontend, error) {
	lc := net.ListenConfig{Control: control(p.mode, key, false)}
	c, err := lc.ListenPacket(p.mode.life, key.network, key.addr.String())
	if err != nil {
		return nil, err
	}
	f := &udpFrontend{port: p, key: key, conn: c.(*net.UDPConn), flows: map[netip.AddrPort]*flow{}}
	if !key.silent {
		p.mode.wg.Go(f.serve)
	}
	return f, nil
}

func (f *udpFrontend) close() {
	closeQuietly(f.conn)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, fl := range f.flows {
		f.drop(fl)
	}
}

// prune ends flows whose endpoint is gone, as a client could not notice.
func (f *udpFrontend) prune(v *view) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fl := range f.flows {
		if !v.serves(fl.to) {
			f.drop(fl)
		}
	}
}

func (f *udpFrontend) serve() {
	buf := make([]byte, maxDatagram)
	failures, retry := 0, listener.Retry()
	for {
		n, client, err := f.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Mostly an ICMP error of an earlier answer. Many in a row are a lack of
			// memory, or a network that is down.
			if failures++; failures > freeReadErrors && !backoff.Sleep(f.port.mode.life, retry.Next()) {
				return
			}
			continue
		}
		failures = 0
		retry.Reset()
		f.forward(buf[:n], netip.AddrPortFrom(client.Addr().Unmap(), client.Port()))
	}
}

// freeReadErrors in a row are passed over without a pause.
const freeReadErrors = 100

func (f *udpFrontend) forward(data []byte, client netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.flows[client]
	if fl == nil {
		f.port.counters.at(f.key.family()).connections.Add(1)
		if fl = f.begin(client, nil); fl == nil {
			f.port.counters.at(f.key.family()).lostIn.Add(uint64(len(data)))
			return
		}
	}
	fl.exchange.bytesIn.Add(uint64(len(data)))
	f.send(fl, data)
}

// send passes data on; where the endpoint is known to be dead, to another one.
// The caller holds f.mu.
func (f *udpFrontend) send(fl *flow, data []byte) {
	for fl != nil {
		fl.used.Store(time.Now().UnixNano())
		if fl.answered {
			fl.lasting = true
		} else {
			fl.unanswered = append(fl.unanswered[:0], data...)
		}
		_, err := fl.conn.Write(data)
		if !isRefused(err) {
			return // datagrams may get lost, also by us
		}
		fl = f.another(fl)
	}
}

// another replaces a flow whose endpoint refused. The caller holds f.mu.
func (f *udpFrontend) another(fl *flow) *flow {
	f.port.mode.penalties.failed(fl.to, time.Now())
	f.drop(fl)
	next := f.begin(fl.client, append(fl.tried, fl.to))
	if next != nil {
		f.port.counters.retries.Add(1)
	}
	return next
}

// begin opens a flow to an endpoint that was not tried yet; nil if there is
// none. The caller holds f.mu.
func (f *udpFrontend) begin(client netip.AddrPort, tried []netip.AddrPort) *flow {
	p, m := f.port, f.port.mode
	v := p.viewFor(client.Addr())
	from := p.poolFor(v, f.key, client.Addr(), func() netip.Addr { return addrOf(f.conn.LocalAddr()) })
	if from == nil || f.closed {
		p.counters.rejected.Add(1)
		return nil
	}
	now := time.Now()
	to, ok := p.choose(v, from, client.Addr(), tried, now)
	for ok && m.mayDial(to, proxy.UDP) != nil {
		m.penalties.failed(to, now)
		tried = append(slices.Clip(tried), to)
		to, ok = p.choose(v, from, client.Addr(), tried, now)
	}
	if !ok || !f.makeRoom() {
		p.counters.failures.Add(1)
		return nil
	}
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		m.slots.give()
		p.counters.failures.Add(1)
		m.log.Debug("opening a flow failed", "service", p.name.String(), "endpoint", to.String(), "error", err)
		return nil
	}
	if t := v.state.Service.AffinityTimeout; t > 0 {
		p.affinity.bind(client.Addr(), to, t, now)
	}
	fl := &flow{frontend: f, client: client, to: to, conn: conn, tried: slices.Clone(tried), exchange: p.counters.with(f.key.family(), from, to).begin()}
	fl.used.Store(now.UnixNano())
	f.flows[client] = fl
	p.counters.active.Add(1)
	m.wg.Go(fl.answers)
	return fl
}

// makeRoom takes a slot; with none free, that of the most idle of some flows.
func (f *udpFrontend) makeRoom() bool {
	if f.port.mode.slots.tryTake() {
		return true
	}
	var victim *flow
	looked := 0
	for _, fl := range f.flows { // in random order
		if victim == nil || fl.used.Load() < victim.used.Load() {
			victim = fl
		}
		if looked++; looked == 32 {
			break
		}
	}
	if victim == nil {
		return false
	}
	f.drop(victim)
	return f.port.mode.slots.tryTake()
}

// drop ends a flow. The caller holds f.mu. It is idempotent.
func (f *udpFrontend) drop(fl *flow) {
	if f.flows[fl.client] != fl {
		return
	}
	delete(f.flows, fl.client)
	closeQuietly(fl.conn)
	fl.exchange.end()
	f.port.counters.active.Add(-1)
	f.port.mode.slots.give()
}

// answers carries what the endpoint sends, until the flow is idle, refused or
// dropped.
func (fl *flow) answers() {
	f := fl.frontend
	for {
		_ = fl.conn.SetReadDeadline(fl.expiry())
		err := receive(fl.conn, datagramBuffers, func(data []byte) (bool, error) {
			fl.used.Store(time.Now().UnixNano())
			fl.confirm()
			fl.exchange.bytesOut.Add(uint64(len(data)))
			_, err := f.conn.WriteToUDPAddrPort(data, fl.client)
			return !errors.Is(err, net.ErrClosed), nil
		})
		switch {
		case isRefused(err):
			fl.refused()
			return
		case isTimeout(err) && time.Now().Before(fl.expiry()):
			continue
		}
		f.mu.Lock()
		f.drop(fl)
		f.mu.Unlock()
		return
	}
}

func (fl *flow) confirm() {
	fl.frontend.mu.Lock()
	defer fl.frontend.mu.Unlock()
	if !fl.answered {
		fl.answered, fl.unanswered = true, nil
		fl.frontend.port.mode.penalties.answered(fl.to)
	}
}

func (fl *flow) expiry() time.Time {
	fl.frontend.mu.Lock()
	defer fl.frontend.mu.Unlock()
	idle := fl.frontend.port.mode.opts.UDPIdle
	if !fl.lasting && fl.answered {
		idle /= 6
	}
	return time.Unix(0, fl.used.Load()).Add(idle)
}

// refused moves a client whose endpoint answered with ICMP port unreachable.
func (fl *flow) refused() {
	f := fl.frontend
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.flows[fl.client] != fl { // replaced already
		return
	}
	next := f.another(fl)
	if next != nil && fl.unanswered != nil {
		f.send(next, fl.unanswered)
	}
}

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
