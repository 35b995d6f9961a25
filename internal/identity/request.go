package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// CertificatesPath is where a control plane issues certificates: POST a PEM
// certificate request, with a node or zone token or with the certificate to be
// renewed; the answer is a CertificateAnswer.
const CertificatesPath = "/proxima/v1/certificates"

// MaxRequest is the largest certificate request that is read, in bytes; one of
// ours has about 400, the largest RSA key less than 4,000.
const MaxRequest = 16 << 10

// CertificateAnswer is what a certificate request is answered with.
type CertificateAnswer struct {
	// Certificate and CA as PEM. CA holds all authorities to trust from now on.
	Certificate string `json:"certificate"`
	CA          string `json:"ca"`
	// NotAfter is when the certificate runs out.
	NotAfter time.Time `json:"notAfter"`
	// GRPCAddress (host:port) of views and federation; empty: it is off.
	GRPCAddress string `json:"grpcAddress,omitempty"`

	date time.Time // the server's clock; zero: unknown
}

// at is the time of the answer: by the server's clock, which dated the certificate.
func (a CertificateAnswer) at() time.Time {
	if a.date.IsZero() {
		return time.Now()
	}
	return a.date
}

// minRSABits is the least that NIST SP 800-57 allows after 2010.
const minRSABits = 2048

// ParseRequest reads a certificate request: one PEM block, signed by its own key, of
// an accepted key type.
func ParseRequest(data []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != pemRequest || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("want one PEM block of type %q", pemRequest)
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("damaged certificate request: %w", err)
	}
	switch key := r.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P224() {
			return nil, errors.New("curve P-224 is too weak: use P-256")
		}
	case ed25519.PublicKey:
	case *rsa.PublicKey:
		if key.N.BitLen() < minRSABits {
			return nil, fmt.Errorf("an RSA key of %d bits is too weak: use ECDSA P-256", key.N.BitLen())
		}
	default:
		return nil, fmt.Errorf("a key of type %T is not understood: use ECDSA P-256", key)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request is not signed by its key: %w", err)
	}
	return r, nil
}

// newRequest makes a key and a request for it. The subject is left to the server.
func newRequest() (key crypto.Signer, requestPEM []byte, err error) {
	key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: pemRequest, Bytes: der}), nil
}
