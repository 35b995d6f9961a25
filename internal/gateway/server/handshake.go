package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
)

// errOverloaded is a handshake for which the queue has no place.
var errOverloaded = errors.New("too many handshakes wait for their turn")

// gate bounds the handshakes that compute at a time, and those that wait for it.
type gate struct {
	slots   chan struct{}
	waiting atomic.Int64
	queue   int64
	closed  <-chan struct{}
}

func newGate(slots, queue int, closed <-chan struct{}) *gate {
	return &gate{slots: make(chan struct{}, slots), queue: int64(queue), closed: closed}
}

// turn is the use of a gate by one handshake. It implements record.Gate, so that a
// handshake that waits for its peer holds no slot.
type turn struct {
	gate *gate
	in   bool
}

// Enter implements record.Gate.
func (t *turn) Enter() error {
	select {
	case t.gate.slots <- struct{}{}:
		t.in = true
		return nil
	default:
	}
	if t.gate.waiting.Add(1) > t.gate.queue {
		t.gate.waiting.Add(-1)
		return errOverloaded
	}
	defer t.gate.waiting.Add(-1)
	select {
	case t.gate.slots <- struct{}{}:
		t.in = true
		return nil
	case <-t.gate.closed:
		return net.ErrClosed
	}
}

// Leave implements record.Gate.
func (t *turn) Leave() {
	if t.in {
		t.in = false
		<-t.gate.slots
	}
}

// errPassthrough ends the handshake of a client that offers none of our protocols.
var errPassthrough = errors.New("the client offers none of our protocols")

// tlsConfig returns the configuration that handshakes begin with, and the one for our
// own protocols, which has the ticket keys.
func (s *Server) tlsConfig() (first, own *tls.Config) {
	own = &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: s.cfg.GetCertificate,
		// Which roots count depends on the mesh: VerifyConnection verifies the chain, and
		// is called for resumed sessions too, unlike VerifyPeerCertificate.
		ClientAuth:                  tls.RequireAnyClientCert,
		VerifyConnection:            s.verify,
		NextProtos:                  []string{frame.ProtocolFrames, frame.ProtocolTunnel},
		DynamicRecordSizingDisabled: true, // package stream chooses the size
	}
	first = own.Clone()
	first.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if !slices.Contains(hello.SupportedProtos, frame.ProtocolFrames) && !slices.Contains(hello.SupportedProtos, frame.ProtocolTunnel) {
			return nil, &passthroughError{sni: hello.ServerName, protocols: hello.SupportedProtos}
		}
		if rec, ok := hello.Conn.(*record.Conn); ok {
			rec.EndTap()
		}
		return own, nil
	}
	return first, own
}

type passthroughError struct {
	sni       string
	protocols []string
}

func (e *passthroughError) Error() string { return errPassthrough.Error() }
func (e *passthroughError) Unwrap() error { return errPassthrough }

// verify authenticates the peer of a connection, whether or not its session is
// resumed.
func (s *Server) verify(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the peer sent no certificate")
	}
	if _, err := Identity(state.PeerCertificates[0]); err != nil {
		return err
	}
	// A ticket keeps the chain as it was, even if a part of it has expired since.
	now := time.Now()
	if leaf := state.PeerCertificates[0]; now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
		return fmt.Errorf("the certificate of %q is valid from %s to %s", leaf.Subject, leaf.NotBefore, leaf.NotAfter)
	}
	return s.cfg.Authority.VerifyPeer(state.ServerName, state.PeerCertificates)
}

// followTicketKeys keeps the keys of a configuration up to date until ctx ends.
func (s *Server) followTicketKeys(ctx context.Context) {
	for {
		keys, changed := s.cfg.TicketKeys.Keys(s.cfg.Advertised)
		if len(keys) > 0 {
			s.own.SetSessionTicketKeys(keys[:min(len(keys), keptTicketKeys)])
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
