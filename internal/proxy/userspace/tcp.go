package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// tcpFront accepts the connections of one virtual address.
type tcpFront struct {
	port *servicePort
	key  frontendKey
	ln   *net.TCPListener

	relays *relays
}

func (s *relays) listen(p *servicePort, key frontendKey) (frontend, error) {
	lc := net.ListenConfig{Control: control(p.mode, key, true), KeepAlive: -1}
	lc.SetMultipathTCP(false) // slower, and of no use towards a virtual address
	ln, err := lc.Listen(p.mode.life, key.network, key.addr.String())
	if err != nil {
		return nil, err
	}
	f := &tcpFront{port: p, key: key, ln: ln.(*net.TCPListener), relays: s}
	if !key.silent {
		p.mode.wg.Go(f.serve)
	}
	return f, nil
}

func (f *tcpFront) close() { _ = f.ln.Close() }

// prune leaves connections alone: they outlive changes of the endpoints.
func (f *tcpFront) prune(*view) {}

func (f *tcpFront) serve() {
	retry := listener.Retry()
	for {
		client, err := f.ln.AcceptTCP()
		switch {
		case err == nil:
			retry.Reset()
			if !f.port.mode.slots.acquire(f.port.mode.life) {
				reset(client)
				return
			}
			f.port.mode.wg.Go(func() { f.handle(client) })
		case errors.Is(err, net.ErrClosed):
			return
		default:
			// Mostly too many open files: wait until some are closed.
			pause := retry.Next()
			f.port.mode.log.Warn("accepting failed, trying again",
				"service", f.port.name.String(), "address", f.key.String(), "pause", pause, "error", err)
			if !backoff.Sleep(f.port.mode.life, pause) {
				return
			}
		}
	}
}

// handle owns client and a slot.
func (f *tcpFront) handle(client *net.TCPConn) {
	p, m := f.port, f.port.mode
	p.counters.at(f.key.family()).connections.Add(1)
	p.counters.active.Add(1)
	r := &relay{client: client, counters: &p.counters, relays: f.relays}
	if !f.relays.add(r) {
		r.abort()
		r.end()
		return
	}
	backend, with, err := f.route(client)
	if err != nil {
		m.log.Debug("connection turned away", "service", p.name.String(), "error", err)
		r.abort()
		r.end()
		return
	}
	r.start(backend, with)
}

// route connects to an endpoint that is to serve a client.
func (f *tcpFront) route(conn *net.TCPConn) (*net.TCPConn, *exchange, error) {
	p := f.port
	peer := addrOf(conn.RemoteAddr())
	v := p.viewFor(peer)
	from := p.poolFor(v, f.key, peer, func() netip.Addr { return addrOf(conn.LocalAddr()) })
	if from == nil {
		p.counters.rejected.Add(1)
		return nil, nil, errNotServed
	}
	backend, err := p.connect(v, from, peer)
	if err != nil {
		p.counters.failures.Add(1)
		return nil, nil, err
	}
	if t := p.mode.tunnel.Load(); t != nil {
		t.dialed(addrPortOf(backend.RemoteAddr()), addrPortOf(backend.LocalAddr()), func() (client, destination netip.AddrPort) {
			return addrPortOf(conn.RemoteAddr()), addrPortOf(conn.LocalAddr())
		})
	}
	return backend, p.counters.with(f.key.family(), from, addrPortOf(backend.RemoteAddr())), nil
}

var (
	errNoEndpoint = errors.New("no endpoint left to try")
	errNotServed  = errors.New("the Service does not serve this client here")
)

// connectBudget bounds all attempts for one client, however many endpoints
// there are; who waited that long has mostly left.
const connectBudget = 15 * time.Second

// connect opens a connection to an endpoint for a client, trying each at most
// once.
func (p *servicePort) connect(v *view, from *pool, client netip.Addr) (*net.TCPConn, error) {
	m := p.mode
	begin := time.Now()
	var tried []netip.AddrPort
	var errs []error
	for now := begin; now.Sub(begin) < connectBudget && v.mayTry(tried); now = time.Now() {
		to, ok := p.choose(v, from, client, tried, now)
		if !ok {
			break
		}
		if len(tried) > 0 {
			p.counters.retries.Add(1)
		}
		timeout := m.opts.ConnectTimeout
		if own := v.state.ConnectTimeout; own > 0 {
			timeout = own
		} else if len(tried)+1 >= len(from.targets) {
			timeout *= 5
		}
		var c *net.TCPConn
		err := m.mayDial(to, proxy.TCP)
		if err == nil {
			c, err = dialTCP(m.life, to, timeout)
		}
		if err == nil {
			m.penalties.answered(to)
			if t := v.state.Service.AffinityTimeout; t > 0 {
				p.affinity.bind(client, to, t, now)
			}
			return c, nil
		}
		if isOurFault(err) {
			return nil, err
		}
		m.penalties.failed(to, time.Now())
		tried = append(tried, to)
		errs = append(errs, err)
	}
	return nil, errors.Join(append(errs, errNoEndpoint)...)
}

// choose picks the endpoint for a client's next attempt: on the first one, with
// affinity, the endpoint it is bound to, and with a source hash that of its address.
func (p *servicePort) choose(v *view, from *pool, client netip.Addr, tried []netip.AddrPort, now time.Time) (netip.AddrPort, bool) {
	if timeout := v.state.Service.AffinityTimeout; timeout > 0 && len(tried) == 0 {
		t, bound := p.affinity.get(client, from, timeout, now)
		if !bound {
			t = home(client, from)
		}
		if p.mode.penalties.admit(t.Addr, now) {
			return t.Addr, true
		}
	}
	if v.state.SourceHash && v.state.Service.AffinityTimeout == 0 && len(tried) == 0 {
		if t := home(client, from); p.mode.penalties.admit(t.Addr, now) {
			return t.Addr, true
		}
	}
	t, ok := p.next(from, tried, now)
	return t.Addr, ok
}

func dialTCP(ctx context.Context, to netip.AddrPort, timeout time.Duration) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: timeout, KeepAliveConfig: keepAlive}
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// reset ends a connection with RST rather than FIN, so that the peer sees an
// error, not the end of a stream.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	closeQuietly(c)
}

func addrOf(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
