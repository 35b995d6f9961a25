package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/certpem"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	// MaxTokenLife of a token that expires at all.
	MaxTokenLife = authorityLife
	// ClientLife is the life of a certificate that a token buys.
	ClientLife = 24 * time.Hour
	// ServerLife is the life of a server certificate; one is issued at every start.
	ServerLife = 365 * 24 * time.Hour
	// backdate allows for clocks that are behind.
	backdate = 5 * time.Minute

	authorityDir  = "ca"
	authorityCert = "ca.crt"
	authorityKey  = "ca.key"
)

// Authority signs the certificates of a control plane. Immutable and safe for
// concurrent use.
type Authority struct {
	cert    *x509.Certificate
	key     crypto.Signer
	trusted []*x509.Certificate // cert first
	pem     []byte
}

// Open loads the authority kept under dir, or creates it if there is none yet.
// Existing files are never changed: a missing, damaged or mismatched file is an
// error, since a new authority would lock out all that trust the old one.
// Several processes may call it at once; all get the same authority.
//
// The certificate file may hold several certificates. The first belongs to the
// key and signs; the others are trusted as well. To change the authority, append
// the new certificate, wait a day until all clients have received it, then put
// the new certificate first and its key in place.
func Open(dir string) (*Authority, error) {
	path := filepath.Join(dir, authorityDir)
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = createAuthority(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("open certificate authority %s: %w", path, err)
	}
	a, err := loadAuthority(path)
	if err != nil {
		return nil, fmt.Errorf("open certificate authority %s: %w; restore the directory from a backup. "+
			"If there is none, remove it and let every node, zone and user join again", path, err)
	}
	return a, nil
}

// createAuthority makes key and certificate appear together, by the rename of
// their directory.
func createAuthority(dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "Proxima CA " + now.UTC().Format("2006-01-02")},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	keyPEM, err := certpem.EncodeKey(key)
	if err != nil {
		return err
	}
	staging, err := os.MkdirTemp(dir, ".ca-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(staging) // nothing to remove once it is renamed
	if err := writeFile(filepath.Join(staging, authorityKey), keyPEM); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(staging, authorityCert), certpem.EncodeDER(der)); err != nil {
		return err
	}
	path := filepath.Join(dir, authorityDir)
	if err := os.Rename(staging, path); err != nil {
		if _, statErr := os.Stat(path); statErr == nil {
			return nil // another process was faster; its files are loaded
		}
		return err
	}
	return atomicfile.SyncDir(dir)
}

func loadAuthority(path string) (*Authority, error) {
	certFile, keyFile := filepath.Join(path, authorityCert), filepath.Join(path, authorityKey)
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	keyPEM, err := readSecret(keyFile)
	if err != nil {
		return nil, err
	}
	trusted, err := certpem.ParseCertificates(certPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	key, err := certpem.ParseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", keyFile, err)
	}
	cert := trusted[0]
	if !certpem.SamePublicKey(cert.PublicKey, key.Public()) {
		return nil, fmt.Errorf("%s does not belong to the first certificate in %s", keyFile, certFile)
	}
	for _, c := range trusted {
		if !c.IsCA {
			return nil, fmt.Errorf("%s: certificate %q is not one of an authority", certFile, c.Subject)
		}
	}
	if time.Now().After(cert.NotAfter) {
		return nil, fmt.Errorf("%s: the certificate ran out on %s", certFile, cert.NotAfter.Format(time.DateOnly))
	}
	a := &Authority{cert: cert, key: key, trusted: trusted}
	for _, c := range trusted {
		a.pem = append(a.pem, certpem.EncodeDER(c.Raw)...)
	}
	return a, nil
}

// Pin identifies an authority by its public key (SHA-256 of the
// SubjectPublicKeyInfo, RFC 7469 section 2.4), so it outlives the certificate.
type Pin [sha256.Size]byte

func pinOf(c *x509.Certificate) Pin { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// Pin of the authority that signs now.
func (a *Authority) Pin() Pin { return pinOf(a.cert) }

// PEM of all trusted certificates, the signing one first. The caller owns it.
func (a *Authority) PEM() []byte { return bytes.Clone(a.pem) }

// Pool of the trusted certificates. The caller owns it.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range a.trusted {
		pool.AddCert(c)
	}
	return pool
}

// Pair is a certificate chain and its key, as PEM.
type Pair struct{ Cert, Key []byte }

// IssueServer makes a key and a certificate for a server. The chain includes the
// authority's certificate: a client that joins by a token has only its pin.
func (a *Authority) IssueServer(name string, dns []string, ips []net.IP) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("issue certificate for server %s: %w", name, err)
	}
	der, err := a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		NotAfter:    time.Now().Add(ServerLife),
		DNSNames:    dns,
		IPAddresses: ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key.Public())
	if err != nil {
		return Pair{}, fmt.Errorf("issue certificate for server %s: %w", name, err)
	}
	keyPEM, err := certpem.EncodeKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: append(certpem.EncodeDER(der), certpem.EncodeDER(a.cert.Raw)...), Key: keyPEM}, nil
}

// IssueClient makes a key and a client certificate, as for the kubeconfig that a
// control plane writes for its owner.
func (a *Authority) IssueClient(s Subject, life time.Duration) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("issue certificate for %s: %w", s.User, err)
	}
	der, err := a.signClient(s, life, key.Public())
	if err != nil {
		return Pair{}, err
	}
	keyPEM, err := certpem.EncodeECKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: certpem.EncodeDER(der), Key: keyPEM}, nil
}

// SignClient makes a client certificate for a key that the client keeps. Of the
// request only the public key is used: who the client is was decided before.
func (a *Authority) SignClient(
	s Subject,
	life time.Duration,
	request *x509.CertificateRequest,
) (certPEM []byte, notAfter time.Time, err error) {
	der, err := a.signClient(s, life, request.PublicKey)
	if err != nil {
		return nil, time.Time{}, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("issue certificate for %s: %w", s.User, err)
	}
	return certpem.EncodeDER(der), cert.NotAfter, nil
}

func (a *Authority) signClient(s Subject, life time.Duration, public crypto.PublicKey) ([]byte, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: s.User, Organization: s.Groups},
		NotAfter:    time.Now().Add(life),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:        s.uris(),
	}
	der, err := a.sign(template, public)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", s.User, err)
	}
	return der, nil
}

// sign adds what every leaf has in common. A leaf never outlives the authority.
func (a *Authority) sign(template *x509.Certificate, public crypto.PublicKey) ([]byte, error) {
	template.NotBefore = time.Now().Add(-backdate)
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	return x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
}
