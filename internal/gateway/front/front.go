// Package front connects to services outside every mesh by the Envoy at the port of a gateway, so that its
// clusters, and with them policies, are about such connections.
//
// Envoy has a listener at a Unix socket that takes CONNECT of HTTP/2 (RFC 9113, 8.5) and connects to the cluster
// that a header names. It answers 200 once the connection is made and its TLS has begun, so that a failure is
// known before any byte has been passed on. Enter at New and Dialer.Connect. The package knows of no services,
// and decides nothing about who may connect.
package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
	"github.com/proxima-mesh/proxima/internal/gateway/stream"
)

// ErrAbsent: Envoy does not run, or does not have the cluster (yet): nothing was connected to.
var ErrAbsent = errors.New("the Envoy of the gateway does not have the cluster")

// RefusedError: Envoy has the cluster, and has made no connection.
type RefusedError struct {
	Cluster string
	// Overloaded: a limit of the cluster is reached.
	Overloaded bool
	// Text of Envoy.
	Text string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("Envoy does not connect to %s: %s", e.Cluster, e.Text)
}

const (
	// openTimeout bounds a connection, with the time that it waits for one of a limit to end.
	openTimeout = 10 * time.Second
	// maxText of Envoy in bytes.
	maxText = 512
	// pingAfter so long without a frame the socket is asked whether Envoy is there.
	pingAfter, pingTimeout = 15 * time.Second, 5 * time.Second
)

// Dialer connects by an Envoy. Safe for concurrent use.
type Dialer struct {
	transport *http2.Transport //nolint:staticcheck // a tunnel by CONNECT over HTTP/2 (RFC 9113, 8.5), which http.Transport is not known to do
	pool      *record.Pool

	mu      sync.Mutex
	sockets map[*socket]struct{}
}

// socket is a connection to Envoy, which carries many others.
type socket struct {
	net.Conn
	of *Dialer
}

// Close implements net.Conn.
func (s *socket) Close() error {
	s.of.mu.Lock()
	delete(s.of.sockets, s)
	s.of.mu.Unlock()
	return s.Conn.Close()
}

// New returns a dialer for the socket at a path. Envoy need not be there yet. Close it.
func New(path string, pool *record.Pool) *Dialer {
	d := &Dialer{pool: pool, sockets: map[*socket]struct{}{}}
	d.transport = &http2.Transport{ //nolint:staticcheck // a tunnel by CONNECT over HTTP/2 (RFC 9113, 8.5), which http.Transport is not known to do
		AllowHTTP: true, DisableCompression: true, ReadIdleTimeout: pingAfter, PingTimeout: pingTimeout, //nolint:staticcheck // a tunnel by CONNECT over HTTP/2 (RFC 9113, 8.5), which http.Transport is not known to do
		DialTLSContext: func(ctx context.Context, _, _ string, _ *tls.Config) (net.Conn, error) { return d.dial(ctx, path) }, //nolint:staticcheck // a tunnel by CONNECT over HTTP/2 (RFC 9113, 8.5), which http.Transport is not known to do
	}
	return d
}

func (d *Dialer) dial(ctx context.Context, path string) (net.Conn, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	s := &socket{c, d}
	d.mu.Lock()
	d.sockets[s] = struct{}{}
	d.mu.Unlock()
	return s, nil
}

// Close cuts all connections.
func (d *Dialer) Close() {
	d.mu.Lock()
	all := slices.Collect(maps.Keys(d.sockets))
	d.mu.Unlock()
	for _, s := range all {
		_ = s.Close()
	}
}

// Connect by a cluster. It blocks until the connection is made and its TLS, if the cluster has any, has begun.
// The error is ErrAbsent, a *RefusedError, or that of ctx.
func (d *Dialer) Connect(ctx context.Context, cluster string) (*Conn, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	opening, opened := context.WithTimeout(ctx, openTimeout)
	defer opened()
	stop := context.AfterFunc(opening, end)
	body, write := io.Pipe()
	request := (&http.Request{
		Method: http.MethodConnect, URL: &url.URL{Scheme: "http", Host: "outside"}, Host: "outside",
		Header: http.Header{frame.ClusterHeader: {cluster}}, Body: body, ContentLength: -1,
	}).WithContext(life)
	response, err := d.transport.RoundTrip(request) //nolint:staticcheck // a tunnel by CONNECT over HTTP/2 (RFC 9113, 8.5), which http.Transport is not known to do
	failed := func(err error) (*Conn, error) {
		end()
		_ = write.Close()
		return nil, err
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return failed(ctx.Err())
	case err != nil && opening.Err() != nil:
		return failed(&RefusedError{Cluster: cluster, Text: fmt.Sprintf("no answer within %s", openTimeout)})
	case err != nil:
		return failed(fmt.Errorf("%w: %w", ErrAbsent, err))
	case response.StatusCode == http.StatusNotFound:
		_ = response.Body.Close()
		return failed(ErrAbsent)
	case response.StatusCode != http.StatusOK:
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxText))
		_ = response.Body.Close()
		return failed(&RefusedError{
			Cluster: cluster, Overloaded: response.Header.Get("x-envoy-overloaded") != "",
			Text: strings.TrimSpace(fmt.Sprintf("%d %s", response.StatusCode, text)),
		})
	case !stop():
		_ = response.Body.Close()
		return failed(opening.Err())
	}
	return &Conn{read: response.Body, write: write, end: end, pool: d.pool}, nil
}

// Conn is a connection that Envoy has made. It implements stream.Stream, and is ready for bytes.
type Conn struct {
	read  io.ReadCloser
	write *io.PipeWriter
	end   context.CancelFunc
	pool  *record.Pool
	once  sync.Once
}

// Receive implements stream.Stream.
func (c *Conn) Receive() (stream.Chunk, error) {
	b := c.pool.Get(record.Medium)
	for {
		n, err := c.read.Read(b.Bytes[stream.Headroom:])
		if n > 0 {
			return stream.Chunk{Buffer: b, Begin: stream.Headroom, End: stream.Headroom + n}, nil
		}
		if err != nil {
			c.pool.Put(b)
			return stream.Chunk{}, err
		}
	}
}

// Send implements stream.Stream.
func (c *Conn) Send(chunk stream.Chunk) error {
	_, err := c.write.Write(chunk.Data())
	return err
}

// CloseWrite implements stream.Stream.
func (c *Conn) CloseWrite() error { return c.write.Close() }

// Reset implements stream.Stream: Envoy resets the connection to the service.
func (c *Conn) Reset(frame.Reason, string) {
	c.once.Do(func() {
		c.end()
		_ = c.write.CloseWithError(errReset)
		_ = c.read.Close()
	})
}

var errReset = errors.New("the connection was reset")

// Fault implements stream.Stream.
func (*Conn) Fault(error) frame.Reason { return frame.EndpointReset }

// Begin does nothing: the service is ready for bytes.
func (*Conn) Begin() error { return nil }

// Finish ends the use. clean: both directions have ended.
func (c *Conn) Finish(clean bool) {
	if !clean {
		c.Reset(frame.Unspecified, "")
		return
	}
	c.once.Do(func() {
		_ = c.write.Close()
		_ = c.read.Close()
		c.end()
	})
}
