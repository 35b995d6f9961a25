package witness

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// Responder answers probes of a node's agent, on all addresses of the machine.
type Responder struct {
	name  [nameSize]byte
	conns []socket
	port  int

	answered atomic.Uint64
}

// socket of one family. Answers leave from the address that was asked: a machine may have
// several, and the asking side takes an answer from no other.
type socket interface {
	// read a packet; reply sends one where it came from.
	read(b []byte) (n int, reply func([]byte) error, err error)
	Close() error
}

// Listen on a UDP port, or on any free one if that is taken. Of the two families it takes
// what the machine has. Run answers; Close ends it.
func Listen(node string, port int) (*Responder, error) {
	r, err := listen(node, port)
	if err != nil && port != 0 {
		r, err = listen(node, 0)
	}
	return r, err
}

func listen(node string, port int) (*Responder, error) {
	r := &Responder{name: nameOf(node), port: port}
	var failed []error
	for _, network := range []string{"udp4", "udp6"} {
		conn, err := net.ListenPacket(network, ":"+strconv.Itoa(r.port))
		if err != nil {
			failed = append(failed, err)
			continue
		}
		r.port = conn.LocalAddr().(*net.UDPAddr).Port
		if network == "udp4" {
			r.conns = append(r.conns, newSocket4(conn))
		} else {
			r.conns = append(r.conns, newSocket6(conn))
		}
	}
	if len(r.conns) == 0 {
		return nil, errors.Join(failed...)
	}
	return r, nil
}

// Port that it listens on.
func (r *Responder) Port() int { return r.port }

// Answered counts probes that were answered.
func (r *Responder) Answered() uint64 { return r.answered.Load() }

// Run answers until ctx ends, and returns nil then. The Responder is closed. Call it once.
func (r *Responder) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { r.Close() })
	defer stop()
	defer r.Close()
	var serving sync.WaitGroup
	for _, c := range r.conns {
		serving.Go(func() { r.serve(c) })
	}
	serving.Wait()
	if ctx.Err() == nil {
		return errors.New("the sockets of probes were closed")
	}
	return nil
}

// serve until the socket is closed. Other errors are of single packets (a question whose
// sender is gone).
func (r *Responder) serve(c socket) {
	b := make([]byte, packetSize+1)
	for {
		n, reply, err := c.read(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p, err := decodePacket(b[:n])
		if err != nil || p.kind != question || p.name != r.name {
			continue
		}
		p.kind = answer
		if reply(p.encode()) == nil {
			r.answered.Add(1)
		}
	}
}

// Close is idempotent.
func (r *Responder) Close() {
	for _, c := range r.conns {
		_ = c.Close()
	}
}

type socket4 struct{ *ipv4.PacketConn }

func newSocket4(c net.PacketConn) socket4 {
	s := socket4{ipv4.NewPacketConn(c)}
	_ = s.SetControlMessage(ipv4.FlagDst, true) // not everywhere; the kernel chooses then
	return s
}

func (s socket4) read(b []byte) (int, func([]byte) error, error) {
	n, cm, from, err := s.ReadFrom(b)
	return n, func(out []byte) error {
		var with *ipv4.ControlMessage
		if cm != nil {
			with = &ipv4.ControlMessage{Src: cm.Dst}
		}
		_, err := s.WriteTo(out, with, from)
		return err
	}, err
}

type socket6 struct{ *ipv6.PacketConn }

func newSocket6(c net.PacketConn) socket6 {
	s := socket6{ipv6.NewPacketConn(c)}
	_ = s.SetControlMessage(ipv6.FlagDst, true)
	return s
}

func (s socket6) read(b []byte) (int, func([]byte) error, error) {
	n, cm, from, err := s.ReadFrom(b)
	return n, func(out []byte) error {
		var with *ipv6.ControlMessage
		if cm != nil {
			with = &ipv6.ControlMessage{Src: cm.Dst}
		}
		_, err := s.WriteTo(out, with, from)
		return err
	}, err
}
