package zookeeper

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
)

// link is a connection of a client to a server.
type link struct {
	conn    net.Conn
	timeout time.Duration
	// event is called with the path of a watch that was called, by the reader: it must not block.
	event func(path string)

	mu      sync.Mutex
	xid     int32
	pending map[int32]chan<- reply
	err     error // it has ended
	write   sync.Mutex
}

type reply struct {
	d      decoder
	result code
	err    error
}

// clientSession is what a client shows to come back.
type clientSession struct {
	id       int64
	password []byte
	zxid     int64
	timeout  time.Duration // that is asked for, and then that the server gives
}

const (
	// dialWithin is how long a server may take to be connected.
	dialWithin = 5 * time.Second
	// sessionTimeout that is asked for, as Dubbo and Curator do.
	sessionTimeout = 15 * time.Second
	// xids of ZooKeeper's protocol for messages that are not counted.
	xidPing = -2
	xidAuth = -4
)

// errExpired: the session has ended, with all that it kept alive.
var errExpired = errors.New("the session has expired")

// codeError is the refusal of a request.
type codeError struct {
	op   opcode
	code code
}

func (e *codeError) Error() string {
	text := map[code]string{
		codeNoNode: "there is no such node", codeNoAuth: "not authorized", codeNodeExists: "the node exists", codeBadVersion: "the node was changed meanwhile",
		codeAuthFailed: "authentication failed", codeBadArguments: "bad arguments", codeNotEmpty: "the node has children",
	}[e.code]
	return fmt.Sprintf("ZooKeeper refuses the request (operation %d): error %d %s", e.op, e.code, text)
}

func refused(err error, c code) bool {
	var e *codeError
	return errors.As(err, &e) && e.code == c
}

// dialServer connects to a server, as the session that s is; its id is 0 for a new one. It returns errExpired if
// that has ended.
func dialServer(ctx context.Context, server string, config *tls.Config, s *clientSession, event func(string)) (*link, error) {
	within, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(within, "tcp", server)
	if err != nil {
		return nil, err
	}
	if config != nil {
		named := config.Clone()
		if host, _, err := net.SplitHostPort(server); err == nil && named.ServerName == "" {
			named.ServerName = host
		}
		secure := tls.Client(conn, named)
		if err := secure.HandshakeContext(within); err != nil {
			_ = conn.Close()
			return nil, err
		}
		conn = secure
	}
	l := &link{conn: conn, event: event, pending: map[int32]chan<- reply{}}
	_ = conn.SetDeadline(time.Now().Add(dialWithin))
	if err := l.handshake(s); err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return l, nil
}

func (l *link) handshake(s *clientSession) error {
	e := encoder{b: make([]byte, 4)}
	e.int(0)
	e.long(s.zxid)
	e.int(int32(s.timeout / time.Millisecond))
	e.long(s.id)
	password := s.password
	if password == nil {
		password = make([]byte, passwordSize)
	}
	e.buffer(password)
	e.bool(false)
	if _, err := l.conn.Write(framed(e.b)); err != nil {
		return err
	}
	b, err := readFrame(l.conn)
	if err != nil {
		return err
	}
	d := decoder{b: b}
	d.int()
	timeout, id := d.int(), d.long()
	password = d.buffer()
	if d.err != nil {
		return d.err
	}
	if timeout <= 0 || id == 0 {
		return errExpired
	}
	s.id, s.password, s.timeout = id, password, time.Duration(timeout)*time.Millisecond
	l.timeout = s.timeout
	return nil
}

// maxRead of a server, in bytes: a list of many children.
const maxRead = 64 << 20

func readFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxRead {
		return nil, fmt.Errorf("%w: an answer of %d bytes", errJute, n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

// run reads answers and keeps the session alive, until ctx ends or the connection does. It returns why. seen is called with
// the newest transaction.
func (l *link) run(ctx context.Context, seen func(int64)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var pings sync.WaitGroup
	defer pings.Wait()
	defer cancel()
	pings.Go(func() {
		for backoff.Sleep(ctx, l.timeout/3) {
			e := encoder{b: make([]byte, 4)}
			e.int(xidPing)
			e.int(int32(opPing))
			if l.send(e.b) != nil {
				return
			}
		}
	})
	end := context.AfterFunc(ctx, func() { _ = l.conn.Close() })
	defer end()
	err := l.receive(seen)
	_ = l.conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = fmt.Errorf("the connection has ended: %w", err)
	for xid, answer := range l.pending {
		answer <- reply{err: l.err}
		delete(l.pending, xid)
	}
	return l.err
}

func (l *link) receive(seen func(int64)) error {
	for {
		_ = l.conn.SetReadDeadline(time.Now().Add(l.timeout))
		b, err := readFrame(l.conn)
		if err != nil {
			return err
		}
		d := decoder{b: b}
		xid, zxid, result := d.int(), d.long(), code(d.int())
		if d.err != nil {
			return d.err
		}
		if zxid > 0 {
			seen(zxid)
		}
		if xid == xidEvent {
			d.int()
			d.int()
			if path := d.string(); d.err == nil && path != "" {
				l.event(path)
			}
			continue
		}
		l.mu.Lock()
		answer := l.pending[xid]
		delete(l.pending, xid)
		l.mu.Unlock()
		if answer != nil {
			answer <- reply{d: d, result: result}
		}
	}
}

func (l *link) send(b []byte) error {
	l.write.Lock()
	defer l.write.Unlock()
	_ = l.conn.SetWriteDeadline(time.Now().Add(l.timeout))
	_, err := l.conn.Write(framed(b))
	return err
}

// ask a request. Errors: *codeError, those of ctx, and that the connection has ended.
func (l *link) ask(ctx context.Context, op opcode, body func(*encoder)) (decoder, error) {
	answer := make(chan reply, 1)
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return decoder{}, l.err
	}
	xid := int32(xidAuth)
	if op != opAuth {
		l.xid++
		xid = l.xid
	}
	l.pending[xid] = answer
	l.mu.Unlock()
	e := encoder{b: make([]byte, 4)}
	e.int(xid)
	e.int(int32(op))
	if body != nil {
		body(&e)
	}
	if err := l.send(e.b); err != nil {
		_ = l.conn.Close() // half of a message may be sent
		return decoder{}, err
	}
	select {
	case r := <-answer:
		if r.err == nil && r.result != codeOK {
			r.err = &codeError{op, r.result}
		}
		return r.d, r.err
	case <-ctx.Done():
		return decoder{}, ctx.Err()
	}
}

// children of a node, whose change calls a watch.
func (l *link) children(ctx context.Context, path string) ([]string, error) {
	d, err := l.ask(ctx, opGetChildren, func(e *encoder) { e.string(path); e.bool(true) })
	if err != nil {
		return nil, err
	}
	out := d.strings()
	return out, d.err
}

// data of a node; with watch, their change calls it.
func (l *link) data(ctx context.Context, path string, watch bool) ([]byte, stat, error) {
	d, err := l.ask(ctx, opGetData, func(e *encoder) { e.string(path); e.bool(watch) })
	if err != nil {
		return nil, stat{}, err
	}
	b := d.buffer()
	s := d.stat()
	return b, s, d.err
}

// exists reports whether there is a node; with the watch that is called when there is.
func (l *link) exists(ctx context.Context, path string) (bool, error) {
	_, err := l.ask(ctx, opExists, func(e *encoder) { e.string(path); e.bool(true) })
	if refused(err, codeNoNode) {
		return false, nil
	}
	return err == nil, err
}

// clientOp is one operation of a transaction.
type clientOp struct {
	op      opcode
	path    string
	data    []byte
	mode    int32
	version int32
}

func (o *clientOp) encode(e *encoder) {
	e.string(o.path)
	switch o.op {
	case opCreate:
		e.buffer(o.data)
		e.openACL()
		e.int(o.mode)
	case opSetData:
		e.buffer(o.data)
		e.int(o.version)
	case opDelete:
		e.int(o.version)
	}
}

// do one operation.
func (l *link) do(ctx context.Context, o clientOp) error {
	_, err := l.ask(ctx, o.op, o.encode)
	return err
}

// multi does all operations, or none. The error is that of the one that failed.
func (l *link) multi(ctx context.Context, list ...clientOp) error {
	d, err := l.ask(ctx, opMulti, func(e *encoder) {
		for i := range list {
			e.int(int32(list[i].op))
			e.bool(false)
			e.int(-1)
			list[i].encode(e)
		}
		e.int(-1)
		e.bool(true)
		e.int(-1)
	})
	if err != nil {
		return err
	}
	for d.err == nil {
		kind, done, _ := opcode(d.int()), d.bool(), d.int()
		if done {
			break
		}
		switch kind {
		case opError:
			if c := code(d.int()); c != codeOK && c != codeRuntime {
				return &codeError{opMulti, c}
			}
		case opCreate:
			_ = d.string()
		case opSetData:
			_ = d.stat()
		}
	}
	return d.err
}

func (d *decoder) stat() stat {
	return stat{
		czxid: d.long(), mzxid: d.long(), ctime: d.long(), mtime: d.long(), version: d.int(), cversion: d.int(), aversion: d.int(),
		owner: d.long(), length: d.int(), children: d.int(), pzxid: d.long(),
	}
}
