package mesh

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// SVID is a certificate with its key, as listeners and clients use it. Immutable.
type SVID struct {
	ID ID
	// Mesh that it was issued in.
	Mesh string
	// Chain, leaf first, without the root.
	Chain []*x509.Certificate
	Key   crypto.Signer
}

// NewSVID checks that key and chain belong together and have one identity. It does not
// verify the chain: Trust does.
func NewSVID(mesh string, chain []*x509.Certificate, key crypto.Signer) (*SVID, error) {
	if len(chain) == 0 || key == nil {
		return nil, errors.New("certificate: chain or key is missing")
	}
	leaf := chain[0]
	if len(leaf.URIs) != 1 {
		return nil, fmt.Errorf("certificate: it has %d URI names, not one", len(leaf.URIs))
	}
	id, err := IDFromURI(leaf.URIs[0])
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	public, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("certificate of %s: the key does not belong to it", id)
	}
	return &SVID{ID: id, Mesh: mesh, Chain: chain, Key: key}, nil
}

// Leaf is the certificate itself.
func (s *SVID) Leaf() *x509.Certificate { return s.Chain[0] }

// Serial of the leaf, as SerialOf writes it: keys of connection pools and session
// caches have it, so that a renewed certificate never shares a connection with an old one.
func (s *SVID) Serial() string { return SerialOf(s.Chain[0]) }

// NotAfter is when it runs out.
func (s *SVID) NotAfter() time.Time { return s.Chain[0].NotAfter }

// TLS is the certificate for crypto/tls. The caller owns it.
func (s *SVID) TLS() tls.Certificate {
	c := tls.Certificate{PrivateKey: s.Key, Leaf: s.Chain[0]}
	for _, cert := range s.Chain {
		c.Certificate = append(c.Certificate, cert.Raw)
	}
	return c
}
