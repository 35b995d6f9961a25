package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/gatewaytest"
	"github.com/proxima-mesh/proxima/internal/gateway/ingress"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
	"github.com/proxima-mesh/proxima/internal/listener"
)

// serve plays a role until standard input ends. It prints where it listens.
func serve(role, dir, at, target string) error {
	if role == "client" {
		return client(os.Stdin, os.Stdout)
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	stop, ended := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		ended()
	}()
	fmt.Println(l.Addr())
	switch role {
	case "endpoint":
		go acceptAll(l)
		<-stop.Done()
		return l.Close()
	case "node", "ingress":
	default:
		return fmt.Errorf("there is no role %q: node, ingress, endpoint, client", role)
	}
	to, err := netip.ParseAddrPort(target)
	if err != nil {
		return fmt.Errorf("-target: %w", err)
	}
	cert, roots, err := loadCerts(dir, role)
	if err != nil {
		return err
	}
	if role == "node" {
		return serveNode(stop, l, to, cert, roots)
	}
	return serveIngress(stop, l, to, cert, roots)
}

func loadCerts(dir, name string) (*tls.Certificate, *x509.CertPool, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
	if err != nil {
		return nil, nil, err
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return nil, nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, nil, errors.New("ca.pem has no certificate")
	}
	return &cert, roots, nil
}

// staticRouter sends every connection to one ingress.
type staticRouter struct{ route tunnel.Route }

func (r staticRouter) Route(context.Context, netip.AddrPort, netip.AddrPort) (tunnel.Route, error) {
	return r.route, nil
}

func serveNode(ctx context.Context, l net.Listener, to netip.AddrPort, cert *tls.Certificate, roots *x509.CertPool) error {
	creds, err := gatewaytest.CredentialsOf(cert, roots)
	if err != nil {
		return err
	}
	buffers := record.NewPool(0)
	go buffers.Reclaim(ctx)
	client := tunnel.NewClient(tunnel.Config{Site: "east", Buffers: buffers})
	defer client.Close()
	s := tunnel.NewServer(tunnel.ServerConfig{
		Client: client,
		Router: staticRouter{tunnel.Route{Request: tunnel.Request{
			SNI: serverName, Credentials: creds, Stream: frame.Stream{Node: "node-1"},
			Peers: []tunnel.Peer{{Name: "west-1", Address: to, Site: "west", Weight: 1}},
		}}},
		// Nothing is redirected here: the port stands for the service.
		Origin: func(c net.Conn) (client, destination netip.AddrPort, err error) {
			return c.RemoteAddr().(*net.TCPAddr).AddrPort(), c.LocalAddr().(*net.TCPAddr).AddrPort(), nil
		},
	})
	err = s.Serve(ctx, listener.Limit(l, listener.Config{Name: "tunnel"}))
	done, cancel := context.WithCancel(context.Background())
	cancel()
	s.Close(done)
	return err
}

// staticRoutes serve one service by one endpoint.
type staticRoutes struct{ route ingress.Route }

func (r staticRoutes) Route(string) (ingress.Route, bool)                      { return r.route, true }
func (r staticRoutes) PassthroughRoute(string, []string) (ingress.Route, bool) { return r.route, true }

func serveIngress(ctx context.Context, l net.Listener, to netip.AddrPort, cert *tls.Certificate, roots *x509.CertPool) error {
	buffers := record.NewPool(0)
	handler, err := ingress.New(ingress.Config{Routes: staticRoutes{ingress.Route{Endpoints: []netip.AddrPort{to}}}, Buffers: buffers})
	if err != nil {
		return err
	}
	s, err := server.New(server.Config{
		Role: "ingress", Authority: &gatewaytest.Policy{Roots: roots}, Handler: handler, Buffers: buffers,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil },
	})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() {
		done, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(done)
	})
	return s.Serve(listener.Limit(l, listener.Config{Name: "ingress"}))
}

// Requests to the endpoint: a letter and a number of 8 bytes.
const (
	askEcho     = 'e' // whatever follows comes back
	askDownload = 'd' // so many bytes
	askUpload   = 'u' // takes so many bytes, then sends one
	askShort    = 's' // takes and sends so many bytes, then closes
)

func acceptAll(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for answer(c) == nil {
			}
		}()
	}
}

// payload that is sent; its content does not matter, as nothing compresses it.
var payload = make([]byte, 256<<10)

// answer serves one request.
func answer(c net.Conn) error {
	var head [9]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint64(head[1:]))
	switch head[0] {
	case askEcho:
		var b [1]byte
		for range size {
			if _, err := io.ReadFull(c, b[:]); err != nil {
				return err
			}
			if _, err := c.Write(b[:]); err != nil {
				return err
			}
		}
		return nil
	case askDownload:
		return send(c, size)
	case askUpload:
		if err := discard(c, size); err != nil {
			return err
		}
		_, err := c.Write(payload[:1])
		return err
	case askShort:
		if err := discard(c, size); err != nil {
			return err
		}
		if err := send(c, size); err != nil {
			return err
		}
		return io.EOF
	}
	return fmt.Errorf("unknown request %q", head[0])
}

func send(c net.Conn, size int64) error {
	for size > 0 {
		n, err := c.Write(payload[:min(size, int64(len(payload)))])
		if err != nil {
			return err
		}
		size -= int64(n)
	}
	return nil
}

// discard reads without the shortcuts of the kernel, into a buffer of its own.
func discard(c net.Conn, size int64) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{io.LimitReader(c, size)}, make([]byte, min(size, 256<<10)))
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	return err
}
