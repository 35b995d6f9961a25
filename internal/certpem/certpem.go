// Package certpem reads and writes certificates and private keys as PEM, and decides
// which keys are strong enough.
//
// Enter at ParseCertificates and ParseKey. It never verifies a chain, and its errors never
// quote a key.
package certpem

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// Types of PEM blocks (RFC 7468).
const (
	TypeCertificate = "CERTIFICATE"
	TypeRequest     = "CERTIFICATE REQUEST"
	TypeKey         = "PRIVATE KEY"
	TypeECKey       = "EC PRIVATE KEY"
)

const (
	// maxPEM bounds what is decoded, in bytes: 100 certificates of authorities.
	maxPEM = 256 << 10
	// minRSABits is the least that NIST SP 800-57 allows after 2010.
	minRSABits = 2048
	maxRSABits = 8192
)

// EncodeCertificates writes certificates as PEM.
func EncodeCertificates(certs ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, EncodeDER(c.Raw)...)
	}
	return out
}

// EncodeDER writes one certificate as PEM.
func EncodeDER(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: TypeCertificate, Bytes: der})
}

// ParseCertificates reads one PEM certificate or more, and nothing else but whitespace.
func ParseCertificates(data []byte) ([]*x509.Certificate, error) {
	if len(data) > maxPEM {
		return nil, fmt.Errorf("%d bytes are too many for certificates", len(data))
	}
	var out []*x509.Certificate
	for rest := bytes.TrimSpace(data); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != TypeCertificate {
			return nil, errors.New("not a sequence of PEM certificates")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("damaged certificate: %w", err)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("no certificate in it")
	}
	return out, nil
}

// EncodeKey writes a private key as PEM (PKCS #8).
func EncodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: TypeKey, Bytes: der}), nil
}

// EncodeECKey writes a private key as PEM in the form of SEC 1, section C.4 (RFC 5915), for
// readers that know no other for elliptic curves, as the Kubernetes client of fabric8.
func EncodeECKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: TypeECKey, Bytes: der}), nil
}

// ParseKey reads what EncodeKey and EncodeECKey write: one PEM private key in PKCS #8 or
// SEC 1. It does not judge the key: see CheckPublic.
func ParseKey(data []byte) (crypto.Signer, error) {
	block, err := decodeKey(data)
	if err != nil {
		return nil, err
	}
	switch block.Type {
	case TypeKey:
		return signer(x509.ParsePKCS8PrivateKey(block.Bytes))
	case TypeECKey:
		return signer(x509.ParseECPrivateKey(block.Bytes))
	}
	return nil, fmt.Errorf("not one PEM block of type %q or %q", TypeKey, TypeECKey)
}

// ParseForeignKey reads one PEM private key of other tools: PKCS #8, or the older forms
// "EC PRIVATE KEY" (SEC 1) and "RSA PRIVATE KEY" (PKCS #1). A weak key is an error.
func ParseForeignKey(data []byte) (crypto.Signer, error) {
	block, err := decodeKey(data)
	if err != nil {
		return nil, err
	}
	var key crypto.Signer
	switch block.Type {
	case TypeKey:
		key, err = signer(x509.ParsePKCS8PrivateKey(block.Bytes))
	case TypeECKey:
		key, err = signer(x509.ParseECPrivateKey(block.Bytes))
	case "RSA PRIVATE KEY":
		key, err = signer(x509.ParsePKCS1PrivateKey(block.Bytes))
	default:
		return nil, fmt.Errorf("a PEM block %.40q is no private key that can be used without a password", block.Type)
	}
	if err != nil {
		return nil, err
	}
	return key, CheckPublic(key.Public())
}

func decodeKey(data []byte) (*pem.Block, error) {
	block, rest := pem.Decode(data)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 || len(data) > maxPEM {
		return nil, errors.New("not one PEM block with a private key")
	}
	return block, nil
}

func signer[K any](key K, err error) (crypto.Signer, error) {
	if err != nil {
		return nil, errors.New("damaged private key")
	}
	s, ok := any(key).(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", key)
	}
	return s, nil
}

// SamePublicKey reports whether two public keys are equal.
func SamePublicKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// CheckPublic refuses keys that are too weak, and those that peers do not verify.
func CheckPublic(public crypto.PublicKey) error {
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P224() {
			return errors.New("curve P-224 is too weak: use P-256")
		}
	case ed25519.PublicKey:
	case *rsa.PublicKey:
		switch bits := key.N.BitLen(); {
		case bits < minRSABits:
			return fmt.Errorf("an RSA key of %d bits is too weak: use ECDSA P-256", bits)
		case bits > maxRSABits:
			return fmt.Errorf("an RSA key of %d bits is larger than %d: use ECDSA P-256", bits, maxRSABits)
		}
	default:
		return fmt.Errorf("a key of type %T is not supported: use ECDSA P-256", public)
	}
	return nil
}

// CheckRequest refuses certificate requests with weak keys, and those that their own key
// did not sign.
func CheckRequest(csr *x509.CertificateRequest) error {
	if err := CheckPublic(csr.PublicKey); err != nil {
		return err
	}
	if err := csr.CheckSignature(); err != nil {
		return fmt.Errorf("certificate request is not signed by its key: %w", err)
	}
	return nil
}
