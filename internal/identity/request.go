package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/certpem"
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

// ParseRequest reads a certificate request: one PEM block, signed by its own key, of
// an accepted key type.
func ParseRequest(data []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != certpem.TypeRequest || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("want one PEM block of type %q", certpem.TypeRequest)
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("damaged certificate request: %w", err)
	}
	if err := certpem.CheckRequest(r); err != nil {
		return nil, err
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
	return key, pem.EncodeToMemory(&pem.Block{Type: certpem.TypeRequest, Bytes: der}), nil
}
