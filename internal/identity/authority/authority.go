package authority

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

const (
	// LeafLife of a certificate of a workload or node.
	LeafLife = 24 * time.Hour
	// IntermediateLife of a zone's authority.
	IntermediateLife = 90 * 24 * time.Hour
	// RootLife of a mesh's authority.
	RootLife = 10 * 365 * 24 * time.Hour
	// backdate allows for clocks that are behind.
	backdate = 5 * time.Minute
)

// Request is for the certificate of an identity. The caller has checked that the
// key's owner is that identity.
type Request struct {
	ID mesh.ID
	// CSR is signed by the key to be certified. Its only name is the URI of ID: an
	// external signer copies names from it.
	CSR *x509.CertificateRequest
	// Life is the requested lifetime; 0: LeafLife. An authority may shorten it.
	Life time.Duration
}

// Signer signs leaf certificates of one mesh. Safe for concurrent use.
type Signer interface {
	// Sign returns a chain, leaf first, without the root. It blocks for as long as the
	// authority takes: External for a minute at most, others do no I/O.
	Sign(ctx context.Context, r Request) ([]*x509.Certificate, error)
	// Roots that verify what Sign returns. The caller must not change them.
	Roots() []*x509.Certificate
}

// ErrCannotSign is in the error of a Signer that has no usable key or certificate now.
var ErrCannotSign = errors.New("the authority cannot sign")

// check refuses requests whose names are not exactly the identity.
func (r Request) check() error {
	switch {
	case r.ID.IsZero():
		return errors.New("no identity")
	case r.CSR == nil:
		return errors.New("no certificate request")
	case r.Life < 0:
		return fmt.Errorf("a life of %s", r.Life)
	}
	if err := certpem.CheckRequest(r.CSR); err != nil {
		return err
	}
	if len(r.CSR.URIs) != 1 || r.CSR.URIs[0].String() != r.ID.String() {
		return fmt.Errorf("the certificate request has not exactly the URI name %s", r.ID)
	}
	if len(r.CSR.DNSNames)+len(r.CSR.EmailAddresses)+len(r.CSR.IPAddresses) > 0 {
		return errors.New("the certificate request has names besides the SPIFFE ID")
	}
	return nil
}

func (r Request) life() time.Duration {
	if r.Life == 0 {
		return LeafLife
	}
	return r.Life
}

// NewCSR makes the certificate request for an identity, signed by its key.
func NewCSR(id mesh.ID, key crypto.Signer) (der []byte, err error) {
	if id.IsZero() {
		return nil, errors.New("certificate request: no identity")
	}
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{id.URL()}}, key)
}

// NewKey makes a key as all certificates of a mesh have: ECDSA P-256.
func NewKey() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// ID names an authority in states and logs: 16 hexadecimal digits of its key's SHA-256.
func ID(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:8])
}

// IDOf names an authority by its roots, whatever their order; that of one root is ID. It
// is empty without roots.
func IDOf(roots []*x509.Certificate) string {
	if len(roots) == 0 {
		return ""
	}
	ids := make([]string, 0, len(roots))
	for _, r := range roots {
		ids = append(ids, ID(r))
	}
	slices.Sort(ids)
	if ids = slices.Compact(ids); len(ids) == 1 {
		return ids[0]
	}
	sum := sha256.Sum256([]byte(strings.Join(ids, " ")))
	return hex.EncodeToString(sum[:8])
}

// backdateOf a leaf: what allows for clocks that are behind must not be most of a short
// life, as certificates are renewed at two thirds of the whole.
func backdateOf(life time.Duration) time.Duration { return min(backdate, life/4) }

// signLeaf makes a leaf that is within the lives of the chain that signs.
func signLeaf(r Request, issuer *x509.Certificate, key crypto.Signer, now time.Time) (*x509.Certificate, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if now.After(issuer.NotAfter) {
		return nil, fmt.Errorf("%w: its certificate ran out on %s", ErrCannotSign, issuer.NotAfter.UTC().Format(time.RFC3339))
	}
	if now.Before(issuer.NotBefore) {
		return nil, fmt.Errorf("%w: its certificate begins on %s; check the clocks", ErrCannotSign, issuer.NotBefore.UTC().Format(time.RFC3339))
	}
	template := &x509.Certificate{
		NotBefore:             later(now.Add(-backdateOf(r.life())), issuer.NotBefore),
		NotAfter:              earlier(now.Add(r.life()), issuer.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{r.ID.URL()},
	}
	return create(template, issuer, r.CSR.PublicKey, key)
}

// caTemplate is what certificates of authorities have in common. They are good for
// names of their trust domain alone (RFC 5280, 4.2.1.10).
func caTemplate(domain mesh.Domain, subject pkix.Name, notBefore, notAfter time.Time, pathLen int) *x509.Certificate {
	return &x509.Certificate{
		Subject:                     subject,
		NotBefore:                   notBefore,
		NotAfter:                    notAfter,
		KeyUsage:                    x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid:       true,
		IsCA:                        true,
		MaxPathLen:                  pathLen,
		MaxPathLenZero:              pathLen == 0,
		PermittedURIDomains:         []string{domain.Name()},
		PermittedDNSDomainsCritical: true,
		URIs:                        []*url.URL{{Scheme: "spiffe", Host: domain.Name()}},
	}
}

func create(template, issuer *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// checkLeaf verifies that the chain which an authority returned matches the request,
// and that peers which trust the roots accept it.
func checkLeaf(r Request, chain, roots []*x509.Certificate, now time.Time) error {
	if len(chain) == 0 {
		return errors.New("the authority returned no certificate")
	}
	leaf := chain[0]
	if !certpem.SamePublicKey(leaf.PublicKey, r.CSR.PublicKey) {
		return errors.New("the authority returned a certificate of another key")
	}
	if n := len(leaf.DNSNames) + len(leaf.EmailAddresses) + len(leaf.IPAddresses); n > 0 || len(leaf.URIs) != 1 {
		return fmt.Errorf("the authority returned a certificate with %d URI and %d other names, not the SPIFFE ID alone", len(leaf.URIs), n)
	}
	trust, err := mesh.NewTrust(mesh.Bundle{Mesh: "checked", Domain: r.ID.Domain(), Roots: roots})
	if err != nil {
		return err
	}
	// At the middle of its life: the authority's clock may be some minutes ahead.
	at := later(now, leaf.NotBefore)
	peer, err := trust.Verify(chain, at)
	if err != nil {
		return fmt.Errorf("the authority returned a certificate that its own roots do not verify: %w", err)
	}
	if peer.ID != r.ID {
		return fmt.Errorf("the authority returned a certificate of %s", peer.ID)
	}
	return nil
}

// Probe signs a certificate, verifies it and throws it away, to check that the authority
// can sign for a trust domain now. It is called before a mesh's authority is changed.
func Probe(ctx context.Context, s Signer, domain mesh.Domain, now time.Time) error {
	err := probe(ctx, s, domain, now)
	if err != nil {
		return fmt.Errorf("check of the authority of trust domain %s: %w", domain, err)
	}
	return nil
}

func probe(ctx context.Context, s Signer, domain mesh.Domain, now time.Time) error {
	id, err := mesh.Workload(domain, "proxima-system", "authority-check")
	if err != nil {
		return err
	}
	key, err := NewKey()
	if err != nil {
		return err
	}
	der, err := NewCSR(id, key)
	if err != nil {
		return err
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return err
	}
	r := Request{ID: id, CSR: csr, Life: 10 * time.Minute}
	chain, err := s.Sign(ctx, r)
	if err != nil {
		return err
	}
	return checkLeaf(r, chain, s.Roots(), now)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// isRoot reports whether a certificate is signed by its own key.
func isRoot(c *x509.Certificate) bool {
	return slices.Equal(c.RawSubject, c.RawIssuer) && c.CheckSignatureFrom(c) == nil
}
