package registry

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// TLSMode says whether clients of a registry use TLS.
type TLSMode string

// The modes. With TLSOptional the first byte of a client decides.
const (
	TLSOff      TLSMode = "off"
	TLSOptional TLSMode = "optional"
	TLSRequired TLSMode = "required"
)

// ParseTLSMode reads the value of a flag.
func ParseTLSMode(text string) (TLSMode, error) {
	switch m := TLSMode(text); m {
	case TLSOff, TLSOptional, TLSRequired:
		return m, nil
	}
	return "", fmt.Errorf("%q is none of off, optional, required", text)
}

// Listener accepts connections with TLS or without it, on one port. config is not changed; its
// NextProtos are those of the protocol.
func Listener(l net.Listener, mode TLSMode, config *tls.Config) net.Listener {
	switch {
	case mode == TLSOff || config == nil:
		return l
	case mode == TLSRequired:
		return tls.NewListener(l, config)
	}
	return &eitherListener{Listener: l, config: config}
}

type eitherListener struct {
	net.Listener
	config *tls.Config
}

// Accept returns a connection whose first read decides what it is, so it waits for no client.
func (l *eitherListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &eitherConn{Conn: c, config: l.config}, nil
}

// eitherConn is a connection with TLS, if its client begins it.
type eitherConn struct {
	net.Conn
	config *tls.Config

	once sync.Once
	use  atomic.Pointer[net.Conn] // nil: not decided
	err  error
}

// handshake is the first byte of a record of the handshake (RFC 8446, 5.1). The protocols of
// registries begin with others: a length below 2^24, or a letter.
const handshake = 0x16

func (c *eitherConn) decide() (net.Conn, error) {
	c.once.Do(func() {
		var first [1]byte
		n, err := c.Conn.Read(first[:])
		if n == 0 {
			if c.err = err; err == nil {
				c.err = io.ErrNoProgress
			}
			return
		}
		var use net.Conn = &begunConn{Conn: c.Conn, begun: bytes.NewReader(first[:])}
		if first[0] == handshake {
			use = tls.Server(use, c.config)
		}
		c.use.Store(&use)
	})
	if use := c.use.Load(); use != nil {
		return *use, nil
	}
	return nil, c.err
}

// TLSState of a connection that a Listener accepted and that has been read from; nil: it has no TLS.
func TLSState(c net.Conn) *tls.ConnectionState {
	if e, ok := c.(*eitherConn); ok {
		use := e.use.Load()
		if use == nil {
			return nil
		}
		c = *use
	}
	if t, ok := c.(*tls.Conn); ok {
		state := t.ConnectionState()
		return &state
	}
	return nil
}

func (c *eitherConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	use, err := c.decide()
	if err != nil {
		return 0, err
	}
	return use.Read(p)
}

func (c *eitherConn) Write(p []byte) (int, error) {
	use, err := c.decide()
	if err != nil {
		return 0, err
	}
	return use.Write(p)
}

// Close does not wait for the client.
func (c *eitherConn) Close() error {
	if use := c.use.Load(); use != nil {
		return (*use).Close() // crypto/tls waits at most 5 s for its alert
	}
	return c.Conn.Close()
}

// begunConn is a connection whose first bytes have been read.
type begunConn struct {
	net.Conn
	begun *bytes.Reader
}

func (c *begunConn) Read(p []byte) (int, error) {
	if c.begun != nil && c.begun.Len() > 0 {
		return c.begun.Read(p)
	}
	c.begun = nil
	return c.Conn.Read(p)
}
