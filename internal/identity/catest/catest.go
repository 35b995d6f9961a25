// Package catest has certificate authorities as operators and external signers have them,
// for tests.
//
// Enter at New. It is for tests alone.
package catest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/certpem"
)

// CA is a certificate authority.
type CA struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// New makes an authority for a year that parent signs; nil: it signs itself. edit, if not
// nil, changes the certificate first.
func New(t testing.TB, name string, parent *CA, edit func(*x509.Certificate)) *CA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(365 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	if edit != nil {
		edit(template)
	}
	if parent == nil {
		parent = &CA{template, key}
	}
	cert, err := parent.Sign(template, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return &CA{cert, key}
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	return n.Add(n, big.NewInt(1))
}

// Sign makes a certificate of a template. One without a serial number gets one.
func (c *CA) Sign(template *x509.Certificate, public crypto.PublicKey) (*x509.Certificate, error) {
	if template.SerialNumber == nil {
		template.SerialNumber = serial()
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.Cert, public, c.Key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// KeyPEM is the key in PKCS #8.
func (c *CA) KeyPEM(t testing.TB) []byte {
	t.Helper()
	data, err := certpem.EncodeKey(c.Key)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// PEM of authorities' certificates.
func PEM(cas ...*CA) []byte {
	var out []byte
	for _, c := range cas {
		out = append(out, certpem.EncodeCertificates(c.Cert)...)
	}
	return out
}
