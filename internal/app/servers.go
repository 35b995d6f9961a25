package app

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"time"
)

// handshakeTimeout bounds the handshake with an instance of a control plane.
const handshakeTimeout = 10 * time.Second

// DialServers returns what connects to any of several instances of a control plane, whichever
// address it is asked for: for http.Transport.DialTLSContext. It tries them in turn, beginning
// with the one after that which was connected to last: that one has ended, or did not answer.
// config makes the TLS configuration for a host. The result is safe for concurrent use.
func DialServers(
	servers []string, config func(host string) *tls.Config,
) func(context.Context, string, string) (net.Conn, error) {
	var mu sync.Mutex
	last := ""
	order := func() []string {
		mu.Lock()
		defer mu.Unlock()
		i := slices.Index(servers, last)
		return slices.Concat(servers[i+1:], servers[:i+1])
	}
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		raw, err := dialFirst(ctx, order())
		if err != nil {
			return nil, err
		}
		mu.Lock()
		last = raw.address
		mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		c := config(HostOf(raw.address))
		c.NextProtos = []string{"h2", "http/1.1"}
		conn := tls.Client(raw, c)
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return conn, nil
	}
}
