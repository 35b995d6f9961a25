package authority

import (
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

// Root is the built-in authority of a mesh. It lives at the global control plane (or in
// a standalone one) and signs the intermediates of zones, nothing else: a root that
// signs leaves could not be kept where no workload's request reaches it. Immutable and
// safe for concurrent use.
type Root struct {
	mesh   string
	domain mesh.Domain
	cert   *x509.Certificate
	key    crypto.Signer
}

// NewRoot makes the key and certificate of a mesh's authority.
func NewRoot(meshName string, domain mesh.Domain, now time.Time) (*Root, error) {
	if meshName == "" || domain.IsZero() {
		return nil, errors.New("make a root: mesh or trust domain is missing")
	}
	key, err := NewKey()
	if err != nil {
		return nil, fmt.Errorf("make the root of mesh %s: %w", meshName, err)
	}
	subject := pkix.Name{CommonName: fmt.Sprintf("%s root %s", domain.Name(), now.UTC().Format("2006-01-02"))}
	if len(subject.CommonName) > 64 { // ub-common-name (RFC 5280, appendix A.1)
		subject.CommonName = "root " + now.UTC().Format("2006-01-02")
	}
	template := caTemplate(domain, subject, now.Add(-backdate), now.Add(RootLife), 1)
	cert, err := create(template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the root of mesh %s: %w", meshName, err)
	}
	return &Root{mesh: meshName, domain: domain, cert: cert, key: key}, nil
}

// rootRecord is a Root as it is kept. It has the key in it.
type rootRecord struct {
	Version     int    `json:"version"`
	Mesh        string `json:"mesh"`
	Domain      string `json:"domain"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

const recordVersion = 1

// Record is the root with its key, to be sealed and stored by the control plane that
// owns it, and never to be sent anywhere.
func (r *Root) Record() ([]byte, error) {
	key, err := certpem.EncodeKey(r.key)
	if err != nil {
		return nil, err
	}
	return json.Marshal(rootRecord{recordVersion, r.mesh, r.domain.Name(), string(certpem.EncodeCertificates(r.cert)), string(key)})
}

// LoadRoot reads what Record wrote. Errors never quote it.
func LoadRoot(data []byte) (*Root, error) {
	var rec rootRecord
	if err := json.Unmarshal(data, &rec); err != nil || rec.Mesh == "" {
		return nil, errors.New("load root: not the record of a root")
	}
	fail := func(err error) (*Root, error) {
		return nil, fmt.Errorf("load the root of mesh %.64q: %w", rec.Mesh, err)
	}
	if rec.Version != recordVersion {
		return fail(fmt.Errorf("version %d of the record: use a newer version of proxima", rec.Version))
	}
	domain, err := mesh.ParseDomain(rec.Domain)
	if err != nil {
		return fail(err)
	}
	certs, key, err := parsePair([]byte(rec.Certificate), []byte(rec.Key))
	if err != nil {
		return fail(err)
	}
	if len(certs) != 1 || !isRoot(certs[0]) {
		return fail(errors.New("its certificate is not signed by itself"))
	}
	if err := checkConstraints(certs[0], domain); err != nil {
		return fail(err)
	}
	return &Root{mesh: rec.Mesh, domain: domain, cert: certs[0], key: key}, nil
}

// Certificate of the root. The caller must not change it.
func (r *Root) Certificate() *x509.Certificate { return r.cert }

// Domain is the trust domain.
func (r *Root) Domain() mesh.Domain { return r.domain }

// Mesh name.
func (r *Root) Mesh() string { return r.mesh }

// String leaves the key out.
func (r *Root) String() string { return "root " + ID(r.cert) + " of mesh " + r.mesh }

// GoString leaves the key out of %#v too.
func (r *Root) GoString() string { return r.String() }

// SignIntermediate makes the certificate of a zone's authority. The caller has
// authenticated the zone; of the request only the public key is used. The certificate
// is good for leaves of the trust domain alone, and for no further authority.
func (r *Root) SignIntermediate(zone string, request *x509.CertificateRequest, now time.Time) (*x509.Certificate, error) {
	cert, err := r.signIntermediate(zone, request, now)
	if err != nil {
		return nil, fmt.Errorf("sign the intermediate of zone %s for mesh %s: %w", zone, r.mesh, err)
	}
	return cert, nil
}

func (r *Root) signIntermediate(zone string, request *x509.CertificateRequest, now time.Time) (*x509.Certificate, error) {
	if zone == "" {
		return nil, errors.New("the zone is missing")
	}
	if err := certpem.CheckRequest(request); err != nil {
		return nil, err
	}
	if now.After(r.cert.NotAfter) {
		return nil, fmt.Errorf("%w: the root ran out on %s", ErrCannotSign, r.cert.NotAfter.UTC().Format(time.RFC3339))
	}
	notAfter := earlier(now.Add(IntermediateLife), r.cert.NotAfter)
	subject := pkix.Name{CommonName: "zone " + zone, OrganizationalUnit: []string{mesh.ZoneUnit(zone)}}
	template := caTemplate(r.domain, subject, later(now.Add(-backdate), r.cert.NotBefore), notAfter, 0)
	return create(template, r.cert, request.PublicKey, r.key)
}

// ForZone lets a zone in the same process get intermediates, as in a standalone control
// plane. For a zone elsewhere, the link between the control planes does this.
func (r *Root) ForZone(zone string, now func() time.Time) IntermediateIssuer {
	return localIssuer{r, zone, now}
}

type localIssuer struct {
	root *Root
	zone string
	now  func() time.Time
}

func (l localIssuer) IssueIntermediate(_ context.Context, meshName string, csr []byte) (*Intermediate, error) {
	if meshName != l.root.mesh {
		return nil, fmt.Errorf("sign intermediate: the root is of mesh %s, not %s", l.root.mesh, meshName)
	}
	request, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("sign intermediate: %w", err)
	}
	cert, err := l.root.SignIntermediate(l.zone, request, l.now())
	if err != nil {
		return nil, err
	}
	return &Intermediate{Chain: []*x509.Certificate{cert}, Roots: []*x509.Certificate{l.root.cert}}, nil
}

// parsePair reads a certificate chain of an authority and its key.
func parsePair(certPEM, keyPEM []byte) ([]*x509.Certificate, crypto.Signer, error) {
	certs, err := certpem.ParseCertificates(certPEM)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate: %w", err)
	}
	key, err := certpem.ParseForeignKey(keyPEM)
	if err != nil {
		return nil, nil, fmt.Errorf("key: %w", err)
	}
	cert := certs[0]
	switch {
	case !certpem.SamePublicKey(cert.PublicKey, key.Public()):
		return nil, nil, errors.New("the key does not belong to the first certificate")
	case !cert.IsCA || !cert.BasicConstraintsValid:
		return nil, nil, errors.New("the certificate is not an authority's (basic constraints: CA)")
	case cert.KeyUsage != 0 && cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, nil, errors.New("the certificate is not for signing certificates (key usage)")
	}
	return certs, key, nil
}

// checkConstraints requires an authority of the mesh's trust domain and no other.
func checkConstraints(c *x509.Certificate, domain mesh.Domain) error {
	if len(c.PermittedURIDomains) != 1 || c.PermittedURIDomains[0] != domain.Name() {
		return fmt.Errorf("its certificate is not limited to trust domain %s", domain)
	}
	return nil
}
