// Package gatewaytest has what tests and benchmarks of gateways share: an authority
// that issues certificates with SPIFFE IDs, and policies that a test sets.
//
// Enter at NewCA and Policy. The package is not part of the product.
package gatewaytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
)

// CA is a certificate authority in memory.
type CA struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate

	mu     sync.Mutex
	serial int64
}

// NewCA returns an authority with a key of its own.
func NewCA() (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &CA{key: key, cert: cert, serial: 1}, err
}

// Issue returns a certificate for a SPIFFE ID and, for other programs, host names.
func (ca *CA) Issue(id string, life time.Duration, hosts ...string) (*tls.Certificate, error) {
	ca.mu.Lock()
	ca.serial++
	serial := ca.serial
	ca.mu.Unlock()
	uri, err := url.Parse(id)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), URIs: []*url.URL{uri}, DNSNames: hosts,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// Roots has the authority's certificate.
func (ca *CA) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// PEM is the authority's certificate.
func (ca *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// EncodePEM returns the chain and the key of a certificate.
func EncodePEM(c *tls.Certificate) (chain, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return nil, nil, err
	}
	for _, cert := range c.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})...)
	}
	return chain, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// Credentials of a workload with a new certificate. The peer must have one of the
// authority with any of the given identities, or any at all if there are none.
func (ca *CA) Credentials(id string, peers ...string) (*tunnel.Credentials, error) {
	cert, err := ca.Issue(id, time.Hour)
	if err != nil {
		return nil, err
	}
	return CredentialsOf(cert, ca.Roots(), peers...)
}

// CredentialsOf a certificate, as Credentials.
func CredentialsOf(cert *tls.Certificate, roots *x509.CertPool, peers ...string) (*tunnel.Credentials, error) {
	id, err := server.Identity(cert.Leaf)
	if err != nil {
		return nil, err
	}
	return &tunnel.Credentials{
		Identity: id, Serial: cert.Leaf.SerialNumber.String(), Certificate: cert,
		VerifyPeer: func(_ tunnel.Peer, s tls.ConnectionState) error { return verify(s.PeerCertificates, roots, peers) },
	}, nil
}

func verify(chain []*x509.Certificate, roots *x509.CertPool, allowed []string) error {
	if len(chain) == 0 {
		return errors.New("no certificate")
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return err
	}
	id, err := server.Identity(chain[0])
	if err != nil {
		return err
	}
	for _, a := range allowed {
		if a == id {
			return nil
		}
	}
	if len(allowed) > 0 {
		return fmt.Errorf("the peer is %s", id)
	}
	return nil
}

// Policy is a server.Authority that trusts one authority and allows everything that a
// test has not denied.
type Policy struct {
	Roots *x509.CertPool
	// Asserters may open streams for others.
	Asserters map[string]bool

	mu      sync.Mutex
	denied  map[string]bool
	streams []server.Call
}

// VerifyPeer implements server.Authority.
func (p *Policy) VerifyPeer(_ string, chain []*x509.Certificate) error {
	return verify(chain, p.Roots, nil)
}

// AuthorizeStream implements server.Authority.
func (p *Policy) AuthorizeStream(peer server.Peer, s frame.Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.denied[s.Identity] {
		return fmt.Errorf("%s is denied", s.Identity)
	}
	p.streams = append(p.streams, server.Call{Peer: peer, Stream: s})
	return nil
}

// MayAssert implements server.Authority.
func (p *Policy) MayAssert(peer server.Peer, _ string) bool { return p.Asserters[peer.Identity] }

// Deny refuses streams for an identity from now on.
func (p *Policy) Deny(identity string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.denied == nil {
		p.denied = map[string]bool{}
	}
	p.denied[identity] = true
}

// Streams are those that were authorized so far.
func (p *Policy) Streams() []server.Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]server.Call(nil), p.streams...)
}

var _ server.Authority = (*Policy)(nil)
