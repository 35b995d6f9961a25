// Package listener makes listening sockets survive a shortage of file
// descriptors, and bounds the connections that one of them has open.
//
// Enter at Limit; Retry is for servers that call accept themselves, and
// DescriptorShare bounds a limit by what the process may open. The package never
// opens a socket.
package listener

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
)

// Config of Limit.
type Config struct {
	// Name of the listener in the log.
	Name string
	// MaxConnections that are open at a time; further ones wait in the kernel's
	// queue. 0: no limit.
	MaxConnections int
	// Logger; nil: discard.
	Logger *slog.Logger
}

// Limit returns a listener whose Accept tries again after errors that pass, such
// as a lack of file descriptors, with a pause that grows to one second. Other
// errors are returned. Close ends every Accept with net.ErrClosed, and closes l;
// open connections are left alone. Safe for concurrent use.
func Limit(l net.Listener, cfg Config) net.Listener {
	limited := &limitedListener{Listener: l, cfg: cfg, closed: make(chan struct{})}
	if limited.cfg.Logger == nil {
		limited.cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxConnections > 0 {
		limited.slots = make(chan struct{}, cfg.MaxConnections)
	}
	return limited
}

type limitedListener struct {
	net.Listener
	cfg       Config
	slots     chan struct{} // nil: no limit
	closed    chan struct{}
	closeOnce sync.Once
}

// Accept implements net.Listener. It takes a slot first, so that a connection that
// has to wait takes no descriptor.
func (l *limitedListener) Accept() (net.Conn, error) {
	if l.slots != nil {
		select {
		case l.slots <- struct{}{}:
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
	retry := Retry()
	for {
		conn, err := l.Listener.Accept()
		switch {
		case err == nil && l.slots != nil:
			return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.slots })}, nil
		case err == nil:
			return conn, nil
		case !IsTemporary(err):
			if l.slots != nil {
				<-l.slots
			}
			return nil, err
		}
		d := retry.Next()
		l.cfg.Logger.Warn("accepting a connection failed, trying again", "listener", l.cfg.Name, "error", err, "retry_in", d.String())
		timer := time.NewTimer(d)
		select {
		case <-timer.C:
		case <-l.closed:
			timer.Stop()
			if l.slots != nil {
				<-l.slots
			}
			return nil, net.ErrClosed
		}
	}
}

// Close implements net.Listener.
func (l *limitedListener) Close() error {
	l.closeOnce.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	release func()
}

// NetConn returns the connection as it was accepted, for its socket options. It must
// not be closed but by Close of the outer one, which releases the slot.
func (c *limitedConn) NetConn() net.Conn { return c.Conn }

func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// Retry spaces the attempts after accept or a read from a socket failed, as in
// net/http's Server.Serve. Reset the result after a success.
func Retry() backoff.Backoff {
	return backoff.Backoff{Policy: backoff.Policy{First: 5 * time.Millisecond, Last: time.Second}}
}

// temporary are the errors of accept(2) that pass: the process or the system
// lacks descriptors or memory, or it is the error of one new connection.
var temporary = []syscall.Errno{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EINTR, syscall.EAGAIN,
	syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EPERM, syscall.EPROTO, syscall.ENOPROTOOPT,
	syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.EHOSTUNREACH,
}

// IsTemporary reports whether an error of accept passes, so that the listener is
// still of use.
func IsTemporary(err error) bool {
	for _, errno := range temporary {
		if errors.Is(err, errno) {
			return true
		}
	}
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// DescriptorShare is limit, or the given part of the file descriptors that this
// process may open if that is less. It is at least 1.
func DescriptorShare(limit int, part float64) int {
	if descriptors, ok := maxDescriptors(); ok && float64(descriptors)*part < float64(limit) {
		limit = int(float64(descriptors) * part)
	}
	return max(limit, 1)
}
