package authority

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

const (
	pemCertificate = "CERTIFICATE"
	pemRequest     = "CERTIFICATE REQUEST"
	pemKey         = "PRIVATE KEY"
	// maxPEM bounds what is decoded, in bytes: 100 certificates of authorities.
	maxPEM = 256 << 10
	// minRSABits is the least that NIST SP 800-57 allows after 2010.
	minRSABits = 2048
)

func keyID(spki []byte) [sha256.Size]byte { return sha256.Sum256(spki) }

// EncodeCertificates writes certificates as PEM.
func EncodeCertificates(certs ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: c.Raw})...)
	}
	return out
}

// ParseCertificates reads one PEM certificate or more, and nothing else but whitespace.
func ParseCertificates(data []byte) ([]*x509.Certificate, error) {
	if len(data) > maxPEM {
		return nil, fmt.Errorf("%d bytes are too many for certificates", len(data))
	}
	var out []*x509.Certificate
	for rest := bytes.TrimSpace(data); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != pemCertificate {
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
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// ParseKey reads one PEM private key: PKCS #8, or the older forms "EC PRIVATE KEY" (SEC
// 1) and "RSA PRIVATE KEY" (PKCS #1) that tools write. Errors never quote it.
func ParseKey(data []byte) (crypto.Signer, error) {
	block, rest := pem.Decode(data)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 || len(data) > maxPEM {
		return nil, errors.New("not one PEM private key")
	}
	var key any
	var err error
	switch block.Type {
	case pemKey:
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		return nil, fmt.Errorf("a PEM block %.40q is no private key that can be used without a password", block.Type)
	}
	if err != nil {
		return nil, errors.New("damaged private key")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", key)
	}
	return signer, checkPublic(signer.Public())
}

// checkPublic refuses keys that are too weak, or that peers do not verify.
func checkPublic(public crypto.PublicKey) error {
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P224() {
			return errors.New("curve P-224 is too weak: use P-256")
		}
	case ed25519.PublicKey:
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSABits || bits > 8192 {
			return fmt.Errorf("an RSA key of %d bits is not between %d and 8192: use ECDSA P-256", bits, minRSABits)
		}
	default:
		return fmt.Errorf("a key of type %T is not supported: use ECDSA P-256", public)
	}
	return nil
}

// CheckCSR refuses certificate requests with weak keys, and those that their own key
// did not sign.
func CheckCSR(csr *x509.CertificateRequest) error {
	if err := checkPublic(csr.PublicKey); err != nil {
		return err
	}
	if err := csr.CheckSignature(); err != nil {
		return fmt.Errorf("certificate request is not signed by its key: %w", err)
	}
	return nil
}
