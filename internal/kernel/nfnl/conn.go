//go:build linux

package nfnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrInterrupted is a dump during which the table changed: what it gave is not
// one state. Dump again.
var ErrInterrupted = errors.New("table changed while it was read")

// Conn is a netlink socket for transactions and dumps. It is bound to the
// network namespace in which it was opened. Not safe for concurrent use.
type Conn struct {
	fd         int
	port       uint32
	seq        uint32
	buf        []byte
	out        []byte
	sendBuffer int // bytes that the send buffer holds
}

// Open opens a socket in the network namespace of the file descriptor, or of
// the calling thread if it is 0.
func Open(namespace int) (*Conn, error) {
	var c *Conn
	err := Inside(namespace, func() (err error) {
		c, err = open(unix.NETLINK_NETFILTER)
		return err
	})
	return c, err
}

func open(protocol int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	c := &Conn{fd: fd, buf: make([]byte, 256<<10)}
	if err := c.prepare(); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return c, nil
}

func (c *Conn) prepare() error {
	if err := unix.Bind(c.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("binding a netlink socket: %w", err)
	}
	name, err := unix.Getsockname(c.fd)
	if err != nil {
		return fmt.Errorf("reading the address of a netlink socket: %w", err)
	}
	c.port = name.(*unix.SockaddrNetlink).Pid
	// Errors need not carry the message that caused them; both are refinements.
	_ = unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	// Dumps and answers to a failed batch.
	_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	return nil
}

// Inside calls f on a thread that is in the network namespace of a file
// descriptor; 0 is the calling thread's own.
func Inside(namespace int, f func() error) error {
	if namespace == 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked if it cannot go back: the thread then ends with this goroutine.
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("opening this thread's network namespace: %w", err)
			return
		}
		defer func() { _ = home.Close() }()
		if err := unix.Setns(namespace, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("entering a network namespace: %w", err)
			return
		}
		err = f()
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// Port is the socket's netlink port: the sender of its transactions, by which
// listeners can recognize them.
func (c *Conn) Port() uint32 { return c.port }

// Close closes the socket.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Error is what the kernel says of one message of a batch.
type Error struct {
	Op  string // such as "adding rule to chain post of table proxima"
	Err error
}

func (e *Error) Error() string { return e.Op + ": " + e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Commit sends a batch and waits for its end. After an error nothing of it is
// in effect, except after [ErrUncertain].
func (c *Conn) Commit(b *Batch) error { return c.send(b, true) }

// Check lets the kernel check a batch without committing it.
func (c *Conn) Check(b *Batch) error { return c.send(b, false) }

// ErrUncertain: it is unknown whether the batch took effect.
var ErrUncertain = errors.New("no answer to a netlink transaction")

func (c *Conn) send(b *Batch, commit bool) error {
	b.finish()
	if b.Empty() {
		return nil
	}
	// The last message asks for an acknowledgement: it is the answer to a batch
	// that is fine. Errors are reported for any message.
	flags := b.a.b[b.last+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	c.out = appendMessage(c.out[:0], unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	begin := len(c.out)
	if commit {
		c.out = appendMessage(c.out, unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, uint32(len(b.marks)+1), unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	}
	if err := c.growSendBuffer(len(c.out) + len(b.a.b)); err != nil {
		return err
	}
	parts := [][]byte{c.out[:begin], b.a.b, c.out[begin:]}
	if !commit {
		parts = parts[:2]
	}
	if _, err := unix.SendmsgBuffers(c.fd, parts, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0); err != nil {
		return fmt.Errorf("sending a netlink transaction of %d bytes: %w", b.Len(), err)
	}
	return c.answers(b, commit)
}

// growSendBuffer lets the send buffer hold n bytes: a batch must be one datagram.
// The kernel doubles the value; its own overhead per datagram is below that.
func (c *Conn) growSendBuffer(n int) error {
	if n <= c.sendBuffer {
		return nil
	}
	size := max(256<<10, n+n/4)
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size); err != nil {
		return fmt.Errorf("growing the send buffer for a netlink transaction of %d bytes: %w", n, err)
	}
	c.sendBuffer = size
	return nil
}

// answers reads what the kernel had to say, which it did within send.
func (c *Conn) answers(b *Batch, commit bool) error {
	var first error
	var acked bool
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if first == nil && !acked && commit {
				return ErrUncertain
			}
			return first
		case errors.Is(err, unix.ENOBUFS):
			return errors.Join(ErrUncertain, err)
		case err != nil:
			return errors.Join(ErrUncertain, fmt.Errorf("receiving from netlink: %w", err))
		}
		for m := range messages(c.buf[:n]) {
			if m.Type != unix.NLMSG_ERROR || len(m.Body) < 4 {
				continue
			}
			code := int32(binary.NativeEndian.Uint32(m.Body))
			if code == 0 {
				acked = true
			} else if first == nil {
				first = b.err(m.Seq, unix.Errno(-code))
			}
		}
	}
}

func (b *Batch) err(seq uint32, errno unix.Errno) error {
	if seq == 0 || int(seq) > len(b.marks) {
		return &Error{Op: "committing a netlink transaction", Err: errno}
	}
	m := b.marks[seq-1]
	op := m.verb + " " + m.kind + " " + m.name
	if m.kind != "table" {
		op += " of table " + m.table
	}
	return &Error{Op: op, Err: errno}
}

// dump sends a request for many messages and hands their bodies to each.
func (c *Conn) dump(typ uint16, family uint8, request []byte, each func(body []byte)) error {
	return c.request(unix.NFNL_SUBSYS_NFTABLES<<8|typ, unix.NLM_F_DUMP, family, request, each)
}

// Dump reads a table of another subsystem of nfnetlink. typ is the subsystem and the
// message type, request the attributes of the message. The attributes of each entry are
// passed to each, and are valid until it returns. [ErrInterrupted]: the table changed
// meanwhile, and entries may be missing or repeated.
func (c *Conn) Dump(typ uint16, family uint8, request []byte, each func(attributes []byte)) error {
	return c.request(typ, unix.NLM_F_DUMP, family, request, each)
}

// requestsPerCall bounds the messages of one system call of RequestEach: their
// acknowledgements must fit into the receive buffer.
const requestsPerCall = 256

// RequestEach sends messages of one type, many with one system call, which is not a
// transaction: each may fail for itself. n is their number, request appends the
// attributes of one, and done gets its result: nil, or the kernel's error. An error of
// RequestEach itself means that the results of the rest are unknown.
func (c *Conn) RequestEach(typ uint16, family uint8, n int, request func(i int, a *Attrs), done func(i int, err error)) error {
	for first := 0; first < n; first += requestsPerCall {
		if err := c.requestSome(typ, family, first, min(first+requestsPerCall, n), request, done); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) requestSome(typ uint16, family uint8, from, to int, request func(int, *Attrs), done func(int, error)) error {
	var a Attrs
	first := c.seq + 1
	for i := from; i < to; i++ {
		c.seq++
		at := len(a.b)
		a.b = appendMessage(a.b, typ, unix.NLM_F_REQUEST|unix.NLM_F_ACK, c.seq, family, 0)
		request(i, &a)
		binary.NativeEndian.PutUint32(a.b[at:], uint32(len(a.b)-at))
	}
	if err := c.growSendBuffer(len(a.b)); err != nil {
		return err
	}
	if err := unix.Sendto(c.fd, a.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("sending %d netlink requests: %w", to-from, err)
	}
	for left := to - from; left > 0; {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return fmt.Errorf("receiving from netlink: %w", err)
		}
		for m := range messages(c.buf[:n]) {
			if i := m.Seq - first; m.Type == unix.NLMSG_ERROR && i < uint32(to-from) {
				left--
				done(from+int(i), errno(m.Body))
			}
		}
	}
	return nil
}

// request sends one message and passes the answers' bodies, which follow struct
// nfgenmsg, to each. Bodies are valid until each returns.
func (c *Conn) request(typ, flags uint16, family uint8, request []byte, each func(body []byte)) error {
	c.seq++
	c.out = appendMessage(c.out[:0], typ, unix.NLM_F_REQUEST|flags, c.seq, family, 0)
	c.out = append(c.out, request...)
	binary.NativeEndian.PutUint32(c.out, uint32(len(c.out)))
	if err := c.growSendBuffer(len(c.out)); err != nil {
		return err
	}
	if err := unix.Sendto(c.fd, c.out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("asking netlink: %w", err)
	}
	interrupted := false
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return fmt.Errorf("receiving from netlink: %w", err)
		}
		for m := range messages(c.buf[:n]) {
			switch {
			case m.Seq != c.seq:
				continue // the rest of an earlier answer
			case m.Flags&unix.NLM_F_DUMP_INTR != 0:
				interrupted = true
			}
			switch m.Type {
			case unix.NLMSG_DONE:
				if interrupted {
					return ErrInterrupted
				}
				return errno(m.Body)
			case unix.NLMSG_ERROR:
				return errno(m.Body)
			}
			if each != nil && len(m.Body) >= familyHeader {
				each(m.Body[familyHeader:])
			}
			if flags&(unix.NLM_F_DUMP|unix.NLM_F_ACK) == 0 {
				return nil
			}
		}
	}
}

func errno(body []byte) error {
	if len(body) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
		return unix.Errno(-code)
	}
	return nil
}

// Message is a netlink message.
type Message struct {
	Type, Flags uint16
	Seq, Port   uint32
	Body        []byte
}
