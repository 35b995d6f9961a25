package userspace

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// The sides of a connection, and its directions by the side they come from.
const (
	clientSide   = 0
	endpointSide = 1
)

// Both sides are watched for these all the time; for space to write only once it
// was missing. Events are edges: the handler of one has to go on until the
// kernel reports that there is no more, or would report more.
const watched = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET

// conn is one connection between a client and an endpoint, as relay is
// elsewhere; the rules are the same. Its loop reuses it.
type conn struct {
	loop       *loop
	index      int32
	generation int32 // of its use, distinguishes events of an earlier one
	live       bool

	port       *servicePort
	exchange   *exchange // with the endpoint; nil: there is none yet
	fd         [2]int    // -1: none
	watches    [2]bool   // is the descriptor watched?
	wantsWrite [2]bool   // is it watched for space to write?
	dir        [2]direction

	dial dialing
	// While the endpoint has not answered:
	deadline      time.Time
	waits         *attempts // nil: not waiting
	before, after *conn
}

// dialing is the search for an endpoint.
type dialing struct {
	view   *view
	family proxy.Family // of the frontend
	from   *pool
	peer   netip.Addr
	begun  time.Time
	tried  []netip.AddrPort
	to     netip.AddrPort
}

// direction is what goes from one side to the other. It holds a buffer or a pipe
// only while the other side does not take what was read.
type direction struct {
	count  *atomic.Uint64
	ended  bool    // end of stream was read and passed on
	buffer *[]byte // of streamBuffers
	rest   []byte  // part of held that is to be written
	pipe   *pipe
	piped  int // bytes in pipe
	full   int // full buffers in a row
}

// connect goes on with the search: until an endpoint answers, is being waited
// for, or none is left.
func (c *conn) connect(now time.Time) {
	p, d := c.port, &c.dial
	for now.Sub(d.begun) < connectBudget && d.view.mayTry(d.tried) {
		to, ok := p.choose(d.view, d.from, d.peer, d.tried, now)
		if !ok {
			break
		}
		if len(d.tried) > 0 {
			p.counters.retries.Add(1)
		}
		d.to = to
		err := c.open(to)
		switch {
		case err == nil:
			c.connected()
			return
		case errors.Is(err, unix.EALREADY):
			c.await(now)
			return
		case !c.next(err):
			return
		}
		now = time.Now()
	}
	p.counters.failures.Add(1)
	c.turnAway(errNoEndpoint)
}

// open makes the endpoint's socket. EALREADY: the answer is still to come. From
// endpoints on this machine the answer is there already.
func (c *conn) open(to netip.AddrPort) error {
	if err := c.loop.mode.mayDial(to, proxy.TCP); err != nil {
		return err
	}
	family := unix.AF_INET6
	if to.Addr().Unmap().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	c.fd[endpointSide] = fd
	if err := setStream(fd); err != nil {
		return err
	}
	if err := connectTo(fd, to); !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	return c.answer()
}

// answer asks how connecting went: connect(2) says it when called once more.
func (c *conn) answer() error {
	fd, to := c.fd[endpointSide], c.dial.to
	err := connectTo(fd, to)
	if errors.Is(err, unix.EISCONN) {
		err = nil
	}
	if err == nil && localAddrPort(fd) == netip.AddrPortFrom(to.Addr().Unmap().WithZone(""), to.Port()) {
		// Without a listener, a port of the range for clients can meet itself
		// (simultaneous open, RFC 9293 section 3.5).
		return unix.ECONNREFUSED
	}
	return err
}

// await waits for the endpoint's answer.
func (c *conn) await(now time.Time) {
	timeout, list := c.loop.mode.opts.ConnectTimeout, &c.loop.soon
	switch own := c.dial.view.state.ConnectTimeout; {
	case own > 0:
		timeout, list = own, &c.loop.own
	case len(c.dial.tried)+1 >= len(c.dial.from.targets):
		timeout, list = 5*timeout, &c.loop.late
	}
	c.deadline = now.Add(timeout)
	list.add(c)
	c.wantsWrite[endpointSide] = true
	if err := c.watch(endpointSide); err != nil {
		c.giveUp(err)
	}
}

// attemptFailed ends the attempt that is being waited for and makes the next.
func (c *conn) attemptFailed(err error) {
	if c.next(err) {
		c.connect(time.Now())
	}
}

// next notes a failed attempt and reports whether to make another.
func (c *conn) next(err error) bool {
	if isOurFault(err) {
		c.giveUp(err)
		return false
	}
	if c.waits != nil {
		c.waits.remove(c)
	}
	c.closeSide(endpointSide)
	c.loop.mode.penalties.failed(c.dial.to, time.Now())
	c.dial.tried = append(c.dial.tried, c.dial.to)
	return true
}

// giveUp: this host is at fault, so another endpoint would not help.
func (c *conn) giveUp(err error) {
	c.port.counters.failures.Add(1)
	c.turnAway(err)
}

func (c *conn) turnAway(why error) {
	c.loop.mode.log.Debug("connection turned away", "service", c.port.name.String(), "error", why)
	c.abort()
}

// connected begins to carry traffic.
func (c *conn) connected() {
	if c.waits != nil {
		c.waits.remove(c)
	}
	d := &c.dial
	c.exchange = c.port.counters.with(d.family, d.from, d.to).begin()
	c.dir[0].count, c.dir[1].count = &c.exchange.bytesIn, &c.exchange.bytesOut
	c.loop.mode.penalties.answered(d.to)
	if t := d.view.state.Service.AffinityTimeout; t > 0 {
		c.port.affinity.bind(d.peer, d.to, t, time.Now())
	}
	if t := c.loop.mode.tunnel.Load(); t != nil {
		t.dialed(d.to, localAddrPort(c.fd[endpointSide]), func() (client, destination netip.AddrPort) {
			return remoteAddrPort(c.fd[clientSide]), localAddrPort(c.fd[clientSide])
		})
	}
	d.view, d.from = nil, nil
	if err := c.watch(clientSide); err != nil {
		c.giveUp(err)
		return
	}
	if c.watches[endpointSide] { // it may have spoken together with its answer
		c.pump(endpointSide, true)
	} else if err := c.watch(endpointSide); err != nil {
		c.giveUp(err)
	}
}

// watch registers for events. The kernel reports what is the case
// already.
func (c *conn) watch(side int) error {
	events, op := uint32(watched), unix.EPOLL_CTL_ADD
	if c.wantsWrite[side] {
		events |= unix.EPOLLOUT
	}
	if c.watches[side] {
		op = unix.EPOLL_CTL_MOD
	}
	c.watches[side] = true
	return c.loop.control(op, c.fd[side], events, c.index<<1|int32(side), c.generation)
}

// handle is called for each event of a side.
func (c *conn) handle(side int, events uint32) {
	if c.waits != nil {
		switch err := c.answer(); {
		case err == nil:
			c.connected()
		case !errors.Is(err, unix.EALREADY):
			c.attemptFailed(err)
		}
		return
	}
	const final = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
	if events&(unix.EPOLLIN|final) != 0 && !c.dir[side].ended && !c.pump(side, events&final != 0) {
		return
	}
	if other := 1 - side; events&unix.EPOLLOUT != 0 && c.dir[other].blocked() && !c.pump(other, true) {
		return
	}
	if events&unix.EPOLLERR == 0 {
		return
	}
	if code, err := unix.GetsockoptInt(c.fd[side], unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
		c.abort()
	}
}

func (d *direction) blocked() bool { return len(d.rest) > 0 || d.piped > 0 }

// pump carries what came from a side to the other. It reports whether the
// connection lives on. If toEnd is not set, the end of the stream is known not to
// be there, so that a buffer that was not filled shows that all is read.
func (c *conn) pump(side int, toEnd bool) bool {
	d := &c.dir[side]
	if d.ended {
		return true
	}
	for range burst {
		if d.blocked() {
			if done, alive := c.flush(side); !done {
				return alive
			}
		}
		n, err := c.move(side)
		switch {
		case errors.Is(err, unix.EAGAIN):
			c.unpipe(d)
			return true
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			c.abort()
			return false
		case n == 0:
			return c.end(side)
		case n < bufferSize:
			d.full = 0
			if !toEnd && !d.blocked() {
				c.unpipe(d)
				return true
			}
		default:
			d.full++
		}
	}
	c.loop.again = append(c.loop.again, turn{c, c.generation, side})
	return true
}

// move reads once and writes as much of it as the other side takes; the rest is
// left blocked.
func (c *conn) move(side int) (int, error) {
	d := &c.dir[side]
	if d.full >= fullBuffersToBulk && (d.pipe != nil || c.pipe(d)) {
		n, err := d.pipe.fill(c.fd[side])
		d.piped = max(n, 0)
		return n, err
	}
	n, err := unix.Read(c.fd[side], c.loop.buf)
	if err != nil || n == 0 {
		return 0, err
	}
	w, err := c.write(side, c.loop.buf[:n])
	if err != nil {
		return 0, err
	}
	if w < n {
		d.buffer = streamBuffers.get()
		d.rest = (*d.buffer)[:copy(*d.buffer, c.loop.buf[w:n])]
	}
	return n, nil
}

// write writes what the other side takes at once.
func (c *conn) write(side int, data []byte) (int, error) {
	for {
		n, err := unix.Write(c.fd[1-side], data)
		switch {
		case err == nil:
			c.dir[side].count.Add(uint64(n))
			return n, nil
		case errors.Is(err, unix.EAGAIN):
			return 0, nil
		case !errors.Is(err, unix.EINTR):
			return 0, err
		}
	}
}

// flush writes what is blocked. Done: nothing is any more.
func (c *conn) flush(side int) (done, alive bool) {
	d := &c.dir[side]
	for d.blocked() {
		var n int
		var err error
		if d.piped > 0 {
			n, err = d.pipe.drain(c.fd[1-side], d.piped)
			d.piped -= n
			d.count.Add(uint64(n))
		} else {
			n, err = c.write(side, d.rest)
			d.rest = d.rest[n:]
		}
		if err == nil && n == 0 {
			err = c.awaitRoom(1 - side)
			if err == nil {
				return false, true
			}
		}
		if err != nil {
			c.abort()
			return false, false
		}
	}
	d.unhold()
	return true, true
}

func (c *conn) awaitRoom(side int) error {
	if c.wantsWrite[side] {
		return nil // there will be an edge
	}
	c.wantsWrite[side] = true
	return c.watch(side)
}

func (d *direction) unhold() {
	if d.buffer != nil {
		streamBuffers.put(d.buffer)
		d.buffer, d.rest = nil, nil
	}
}

func (c *conn) pipe(d *direction) bool {
	d.pipe = c.loop.takePipe()
	if d.pipe == nil { // no descriptors; copying needs none
		d.full = 0
	}
	return d.pipe != nil
}

func (c *conn) unpipe(d *direction) {
	if d.pipe != nil && d.piped == 0 {
		c.loop.putPipe(d.pipe)
		d.pipe = nil
	}
}

// end passes the end of a stream on. The second closes the connection, for which
// no half-close is needed then.
func (c *conn) end(side int) bool {
	c.dir[side].ended = true
	c.unpipe(&c.dir[side])
	if c.dir[1-side].ended {
		c.finish()
		return false
	}
	if unix.Shutdown(c.fd[1-side], unix.SHUT_WR) != nil {
		c.abort()
		return false
	}
	return true
}

// abort resets both sides, so that peers see an error, not the end of a stream.
func (c *conn) abort() {
	for _, fd := range c.fd {
		if fd >= 0 {
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}
	}
	c.finish()
}

// finish closes what is open and gives back what the connection held.
func (c *conn) finish() {
	c.closeSide(clientSide)
	c.closeSide(endpointSide)
	if c.waits != nil {
		c.waits.remove(c)
	}
	for i := range c.dir {
		d := &c.dir[i]
		d.unhold()
		if d.piped > 0 { // not empty, so it cannot be used again
			d.pipe.close()
			d.pipe = nil
		}
		c.unpipe(d)
		*d = direction{}
	}
	l, p := c.loop, c.port
	c.dial = dialing{tried: c.dial.tried[:0]}
	c.port = nil
	c.live = false
	c.generation++
	l.free = append(l.free, c)
	c.exchange.end()
	c.exchange = nil
	p.counters.active.Add(-1)
	l.mode.slots.give()
	l.loops.left(-1)
}

// closeSide closes a descriptor, which also ends its being watched.
func (c *conn) closeSide(side int) {
	if c.fd[side] >= 0 {
		_ = unix.Close(c.fd[side])
	}
	c.fd[side], c.watches[side], c.wantsWrite[side] = -1, false, false
}

// setStream prepares a socket towards an endpoint. What is read is written at
// once, so there is nothing that waiting could gather.
func setStream(fd int) error {
	for _, o := range streamOptions {
		if err := unix.SetsockoptInt(fd, o.level, o.option, o.value); err != nil {
			return err
		}
	}
	return nil
}

type socketOption struct{ level, option, value int }

var streamOptions = []socketOption{
	{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAlive.Idle / time.Second)},
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAlive.Interval / time.Second)},
	{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAlive.Count},
}

func connectTo(fd int, to netip.AddrPort) error {
	addr := to.Addr().Unmap()
	if addr.Is4() {
		return unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: addr.As4()})
	}
	sa := &unix.SockaddrInet6{Port: int(to.Port()), Addr: addr.As16()}
	if zone := addr.Zone(); zone != "" {
		link, err := net.InterfaceByName(zone)
		if err != nil {
			return err
		}
		sa.ZoneId = uint32(link.Index)
	}
	return unix.Connect(fd, sa)
}

func localAddr(fd int) netip.Addr { return localAddrPort(fd).Addr() }

// localAddrPort does without package unix's wrapper, which asks for the socket's
// protocol first.
func localAddrPort(fd int) netip.AddrPort { return socketName(unix.SYS_GETSOCKNAME, fd) }

func remoteAddrPort(fd int) netip.AddrPort { return socketName(unix.SYS_GETPEERNAME, fd) }

func socketName(call uintptr, fd int) netip.AddrPort {
	var raw unix.RawSockaddrAny
	size := uint32(unsafe.Sizeof(raw))
	_, _, errno := unix.Syscall(call, uintptr(fd), uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return netip.AddrPort{}
	}
	return addrOfRaw(&raw)
}

// addrOfRaw reads an address as the kernel writes it (ip(7), ipv6(7)), without
// its zone.
func addrOfRaw(raw *unix.RawSockaddrAny) netip.AddrPort {
	// The port comes second in both families, in network order.
	port := (*[4]byte)(unsafe.Pointer(raw))[2:]
	var addr netip.Addr
	switch raw.Addr.Family {
	case unix.AF_INET:
		addr = netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(raw)).Addr)
	case unix.AF_INET6:
		addr = netip.AddrFrom16((*unix.RawSockaddrInet6)(unsafe.Pointer(raw)).Addr).Unmap()
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port))
}
