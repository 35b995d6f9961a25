package secret

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// Token is a Source: a control plane, by a token in a file that somebody else renews, as the kubelet
// does with that of a Pod's service account. The key is made here.
type Token struct {
	// File has the token. It is read whenever it is shown.
	File string
	// Servers of xDS (HOST:PORT), which issue certificates too, and the authorities (a file, PEM) of
	// their certificates.
	Servers     []string
	Authorities string
	// Mesh, Namespace and Name of the workload, and its service account.
	Mesh, Namespace, Name, Account string
	// Control of sockets; nil: none.
	Control func(network, address string, conn syscall.RawConn) error
	Now     func() time.Time // nil: time.Now
}

const (
	// issueTimeout of one certificate.
	issueTimeout = 20 * time.Second
	// clockCheck bounds how late a renewal is because the machine slept.
	clockCheck = 5 * time.Minute
	// keepAlive of the connection, as that of agents.
	keepAlive = 10 * time.Second
	// maxMessage (bytes) with the roots of all meshes.
	maxMessage = 4 << 20
)

// retryToken spaces attempts: a control plane has a stream of each sidecar.
var retryToken = backoff.Policy{First: 200 * time.Millisecond, Last: 10 * time.Second, Jitter: 0.5}

// Run implements Source.
func (t Token) Run(ctx context.Context, current *Identity, update func(*Identity) error, problem func(error)) {
	if t.Now == nil {
		t.Now = time.Now
	}
	held := &holding{Token: t, current: current, update: update, problem: problem}
	next := 0
	backoff.Retry(ctx, retryToken, func(ctx context.Context) error {
		server := t.Servers[next%len(t.Servers)]
		next++
		if err := held.follow(ctx, server); err != nil {
			return fmt.Errorf("certificate from %s: %w", server, err)
		}
		return nil
	}, func(err error, _ time.Duration) {
		if status.Code(err) == codes.Unauthenticated {
			err = fmt.Errorf("%w: the token is in %s", err, t.File)
		}
		problem(err)
	})
}

// holding is the certificate of a Token.
type holding struct {
	Token
	current *Identity
	update  func(*Identity) error
	problem func(error)
}

// follow what one server trusts and issues. It returns when the stream ends, or a certificate is not
// issued.
func (h *holding) follow(ctx context.Context, server string) error {
	conn, err := h.dial(server)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	with, err := h.authorized(ctx)
	if err != nil {
		return err
	}
	stream, err := conn.NewStream(with, &grpc.StreamDesc{StreamName: "Trust", ServerStreams: true, ClientStreams: true},
		"/proxima.identity.v1.Identity/Trust")
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&wire.Frame{}); err != nil { // it opens the stream at the server
		return errors.Join(err, stream.RecvMsg(&wire.Frame{}))
	}
	received, failed := make(chan []wire.TrustBundle), make(chan error, 1)
	go func() {
		for {
			var frame wire.Frame
			err := stream.RecvMsg(&frame)
			var all []wire.TrustBundle
			if err == nil {
				all, err = wire.ParseTrust(frame)
			}
			if err != nil {
				failed <- err
				return
			}
			select {
			case received <- all:
			case <-ctx.Done():
				return
			}
		}
	}()
	var trusted []wire.TrustBundle
	for {
		timer := time.NewTimer(h.wait(trusted))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case err := <-failed:
			timer.Stop()
			return err
		case trusted = <-received:
		case <-timer.C:
		}
		timer.Stop()
		if err := h.apply(ctx, conn, trusted); err != nil {
			return err
		}
		acks := h.acknowledgements(trusted)
		if err := stream.SendMsg(&acks); err != nil {
			return err
		}
	}
}

// wait until a renewal is due, or the clock is to be looked at.
func (h *holding) wait(trusted []wire.TrustBundle) time.Duration {
	if trusted == nil || h.current == nil {
		return clockCheck
	}
	return min(max(renewAt(h.current.leaf).Sub(h.Now()), 0), clockCheck)
}

// renewAt is when a certificate is replaced: at two thirds of its life, ± 10 % by its serial number.
func renewAt(c *x509.Certificate) time.Time {
	sum := sha256.Sum256(c.SerialNumber.Bytes())
	at := float64(binary.BigEndian.Uint64(sum[:8])) / (1 << 64) // 0 to 1
	return c.NotBefore.Add(time.Duration(2.0 / 3 * (0.9 + 0.2*at) * float64(c.NotAfter.Sub(c.NotBefore))))
}

// errNoAuthority is no failure of the stream: the mesh may get an authority.
var errNoAuthority = errors.New("the mesh has no authority: set spec.mtls of the Mesh")

// apply what is trusted: with another certificate, where that is due.
func (h *holding) apply(ctx context.Context, conn *grpc.ClientConn, trusted []wire.TrustBundle) error {
	own := h.own(trusted)
	if own == nil || own.Issuer == "" {
		h.problem(fmt.Errorf("mesh %s: %w", h.Mesh, errNoAuthority))
		return nil
	}
	next := &Identity{Roots: rootsOf(own, trusted), Issued: own.Issuer}
	now := h.Now()
	if c := h.current; c != nil && c.Domain() == own.Domain && c.Issued == own.Issuer && now.Before(c.NotAfter()) && now.Before(renewAt(c.leaf)) {
		next.Chain, next.Key = c.Chain, c.Key
	} else if err := h.issue(ctx, conn, own, next); err != nil {
		return err
	}
	if err := h.update(next); err != nil {
		return err
	}
	h.current = next
	h.problem(nil)
	return nil
}

func (h *holding) own(trusted []wire.TrustBundle) *wire.TrustBundle {
	i := slices.IndexFunc(trusted, func(b wire.TrustBundle) bool { return b.Mesh == h.Mesh })
	if i < 0 {
		return nil
	}
	return &trusted[i]
}

// rootsOf the own domain, and of those that it has to do with: whose clients it serves, and which it
// calls.
func rootsOf(own *wire.TrustBundle, trusted []wire.TrustBundle) map[string][][]byte {
	out := map[string][][]byte{own.Domain: own.Roots}
	for i := range trusted {
		b := &trusted[i]
		if slices.Contains(own.ExportedTo, b.Mesh) || slices.Contains(b.ExportedTo, own.Mesh) {
			out[b.Domain] = b.Roots
		}
	}
	return out
}

// issue a certificate for a new key.
func (h *holding) issue(ctx context.Context, conn *grpc.ClientConn, own *wire.TrustBundle, into *Identity) error {
	ctx, cancel := context.WithTimeout(ctx, issueTimeout)
	defer cancel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if into.Key, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		return err
	}
	id := &url.URL{Scheme: "spiffe", Host: own.Domain, Path: "/ns/" + h.Namespace + "/sa/" + h.Account}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{id}}, key)
	if err != nil {
		return err
	}
	with, err := h.authorized(ctx)
	if err != nil {
		return err
	}
	ask, answer := wire.IssueRequest(h.Namespace, h.Name, request), wire.Frame{}
	if err := conn.Invoke(with, "/proxima.identity.v1.Identity/Issue", &ask, &answer); err != nil {
		return err
	}
	if into.Chain, err = wire.ParseIssued(answer); err != nil {
		return err
	}
	if err := into.parse(); err != nil {
		return err
	}
	if into.ID() != id.String() {
		return fmt.Errorf("the certificate is of %q, and %s was asked for", into.ID(), id)
	}
	return into.verify(own.Roots, h.Now())
}

// verify that peers take the certificate. This machine's clock may be behind that of the authority.
func (i *Identity) verify(roots [][]byte, now time.Time) error {
	o := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	if now.Before(i.leaf.NotBefore) {
		o.CurrentTime = i.leaf.NotBefore
	}
	for _, pool := range []struct {
		of  *x509.CertPool
		all [][]byte
	}{{o.Roots, roots}, {o.Intermediates, i.Chain[1:]}} {
		for _, der := range pool.all {
			c, err := x509.ParseCertificate(der)
			if err != nil {
				return err
			}
			pool.of.AddCert(c)
		}
	}
	_, err := i.leaf.Verify(o)
	return err
}

// acknowledgements of all meshes, once the certificate is of the authority that issues: the control
// plane waits for them when it changes authorities.
func (h *holding) acknowledgements(trusted []wire.TrustBundle) wire.Frame {
	var all []wire.Acknowledgement
	for i := range trusted {
		b := &trusted[i]
		a := wire.Acknowledgement{Mesh: b.Mesh, Generation: b.Generation}
		if b.Mesh == h.Mesh && h.current != nil {
			if h.current.Issued != b.Issuer {
				continue
			}
			a.HoldsUntil = h.current.NotAfter().Unix()
		}
		all = append(all, a)
	}
	return wire.Acknowledge(all)
}

func (h *holding) authorized(ctx context.Context) (context.Context, error) {
	token, err := os.ReadFile(h.File)
	if err != nil {
		return nil, fmt.Errorf("token of the workload: %w", err)
	}
	// The token of an account says not which workload of it this is; that of a Pod does.
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+string(bytes.TrimSpace(token)), wire.WorkloadHeader, h.Name), nil
}

func (h *holding) dial(server string) (*grpc.ClientConn, error) {
	roots, err := authorities(h.Authorities)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Control: h.Control}
	return grpc.NewClient("passthrough:///"+server,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: strings.Trim(host, "[]"), Time: h.Now,
		})),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAlive, Timeout: keepAlive}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(wire.Codec{}), grpc.MaxCallRecvMsgSize(maxMessage)),
	)
}
