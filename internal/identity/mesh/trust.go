package mesh

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// Bundle is what is trusted for one mesh.
type Bundle struct {
	Mesh   string
	Domain Domain
	// Roots of the domain, several during a rotation. None: no certificate of the
	// domain is valid.
	Roots []*x509.Certificate
	// ExportedTo names the meshes whose clients may connect to servers of this one: to some of them.
	// Which, is for each server to say.
	ExportedTo []string
}

// Trust is the bundles of all meshes that one place verifies for. Immutable and safe
// for concurrent use.
type Trust struct {
	meshes  map[string]Bundle
	domains map[Domain]string // the mesh of a domain
	bundles *x509bundle.Set
	apart   *Trust // without exports; nil: there are none
}

// NewTrust checks and indexes bundles, which must not change afterwards. Two meshes of
// one name or trust domain are an error, as is a root that is no authority's.
func NewTrust(bundles ...Bundle) (*Trust, error) {
	t := &Trust{meshes: map[string]Bundle{}, domains: map[Domain]string{}, bundles: x509bundle.NewSet()}
	exports := false
	for _, b := range bundles {
		switch other, taken := t.domains[b.Domain]; {
		case b.Mesh == "" || b.Domain.IsZero():
			return nil, errors.New("trust: a bundle without mesh or trust domain")
		case t.meshes[b.Mesh].Mesh != "":
			return nil, fmt.Errorf("trust: two bundles of mesh %s", b.Mesh)
		case taken:
			return nil, fmt.Errorf("trust: meshes %s and %s have the same trust domain %s", other, b.Mesh, b.Domain)
		}
		for _, root := range b.Roots {
			if !root.IsCA || !root.BasicConstraintsValid {
				return nil, fmt.Errorf("trust: mesh %s: certificate %q is not an authority's", b.Mesh, root.Subject)
			}
		}
		t.meshes[b.Mesh] = b
		t.domains[b.Domain] = b.Mesh
		t.bundles.Add(x509bundle.FromX509Authorities(b.Domain, b.Roots))
		exports = exports || len(b.ExportedTo) > 0
	}
	if exports {
		t.apart = &Trust{meshes: map[string]Bundle{}, domains: t.domains, bundles: t.bundles}
		for name, b := range t.meshes {
			b.ExportedTo = nil
			t.apart.meshes[name] = b
		}
	}
	return t, nil
}

// Apart is the same trust without exports: no mesh admits clients of another. It is for servers of
// all services of a mesh that do not know which of them are exported, as gateways.
func (t *Trust) Apart() *Trust {
	if t.apart == nil {
		return t
	}
	return t.apart
}

// Bundle of a mesh.
func (t *Trust) Bundle(mesh string) (Bundle, bool) {
	b, ok := t.meshes[mesh]
	return b, ok
}

// Meshes by name, sorted.
func (t *Trust) Meshes() []string {
	out := make([]string, 0, len(t.meshes))
	for name := range t.meshes {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// MeshOf is the mesh of a trust domain.
func (t *Trust) MeshOf(d Domain) (mesh string, ok bool) {
	mesh, ok = t.domains[d]
	return mesh, ok
}

// ClientDomains are the trust domains whose clients may connect to servers of a mesh:
// its own first, then those that it is exported to, sorted.
func (t *Trust) ClientDomains(mesh string) []Domain {
	b, ok := t.meshes[mesh]
	if !ok {
		return nil
	}
	out := []Domain{b.Domain}
	for _, name := range b.ExportedTo {
		if other, ok := t.meshes[name]; ok && !slices.Contains(out, other.Domain) {
			out = append(out, other.Domain)
		}
	}
	slices.SortFunc(out[1:], Domain.Compare)
	return out
}

// Peer is the verified other end of a connection.
type Peer struct {
	ID ID
	// Mesh of the ID's trust domain.
	Mesh string
	// IssuerZone is the zone whose intermediate signed the certificate. Empty: the
	// authority has none per zone (provided and external ones).
	IssuerZone string
	// Serial of the certificate, as SerialOf writes it.
	Serial              string
	NotBefore, NotAfter time.Time
}

// Verify checks a certificate chain, leaf first, by the roots of the leaf's own trust
// domain alone, as X509-SVID (section 5) demands, and for both TLS usages. It does not
// authorize the peer: see Client and Server.
func (t *Trust) Verify(chain []*x509.Certificate, now time.Time) (Peer, error) {
	if len(chain) == 0 {
		return Peer{}, errors.New("verify peer: it showed no certificate")
	}
	leaf := chain[0]
	spiffe, chains, err := x509svid.Verify(chain, t.bundles, x509svid.WithTime(now))
	if err != nil {
		return Peer{}, fmt.Errorf("verify peer %s: %w", describe(leaf), err)
	}
	id, err := fromSPIFFE(spiffe)
	if err != nil {
		return Peer{}, fmt.Errorf("verify peer: %w", err)
	}
	if leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		return Peer{}, fmt.Errorf("verify peer %s: its certificate is not for signatures", id)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		// An SVID without extended usages is for both (X509-SVID, 4.4).
		if len(leaf.ExtKeyUsage) > 0 && !slices.Contains(leaf.ExtKeyUsage, usage) && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny) {
			return Peer{}, fmt.Errorf("verify peer %s: its certificate is not for TLS clients and servers", id)
		}
	}
	return Peer{
		ID: id, Mesh: t.domains[id.Domain()], IssuerZone: issuerZone(chains[0]), Serial: SerialOf(leaf),
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
	}, nil
}

// Client verifies who connects to a server of a mesh: an identity of the mesh itself,
// or of a mesh that it is exported to.
func (t *Trust) Client(mesh string, chain []*x509.Certificate, now time.Time) (Peer, error) {
	own, ok := t.meshes[mesh]
	if !ok {
		return Peer{}, fmt.Errorf("verify client: there is no mesh %q here", mesh)
	}
	p, err := t.Verify(chain, now)
	if err != nil {
		return Peer{}, err
	}
	if p.Mesh != mesh && !slices.Contains(own.ExportedTo, p.Mesh) {
		return Peer{}, fmt.Errorf("verify client %s: mesh %s is not exported to mesh %s", p.ID, mesh, p.Mesh)
	}
	return p, nil
}

// Server verifies a server that has to be one of want.
func (t *Trust) Server(want Matcher, chain []*x509.Certificate, now time.Time) (Peer, error) {
	p, err := t.Verify(chain, now)
	if err != nil {
		return Peer{}, err
	}
	if !want.Match(p.ID) {
		return Peer{}, fmt.Errorf("verify server: %s is not an identity of the service", p.ID)
	}
	return p, nil
}

// VerifyClient is a tls.Config.VerifyConnection for servers with ClientAuth
// RequireAnyClientCert. It runs for resumed connections too. meshOf finds the mesh from
// the server name; trust is called per connection, so that rotations take effect; now
// nil is time.Now.
func VerifyClient(
	trust func() *Trust, meshOf func(serverName string) (string, bool), now func() time.Time,
) func(tls.ConnectionState) error {
	return func(cs tls.ConnectionState) error {
		mesh, ok := meshOf(cs.ServerName)
		if !ok {
			return fmt.Errorf("verify client: no service has the server name %.260q", cs.ServerName)
		}
		_, err := trust().Client(mesh, cs.PeerCertificates, clock(now))
		return err
	}
}

// VerifyServer is a tls.Config.VerifyConnection for clients, which set
// InsecureSkipVerify: host names are not in these certificates, and this function
// replaces the check of them. It runs for resumed connections too.
func VerifyServer(trust func() *Trust, want Matcher, now func() time.Time) func(tls.ConnectionState) error {
	return func(cs tls.ConnectionState) error {
		_, err := trust().Server(want, cs.PeerCertificates, clock(now))
		return err
	}
}

func clock(now func() time.Time) time.Time {
	if now == nil {
		return time.Now()
	}
	return now()
}

// SerialOf is a certificate's serial number in hexadecimal.
func SerialOf(c *x509.Certificate) string { return c.SerialNumber.Text(16) }

// zonePrefix marks the organizational unit of an intermediate that names its zone.
const zonePrefix = "zone:"

// ZoneUnit is the organizational unit of a zone's intermediate.
func ZoneUnit(zone string) string { return zonePrefix + zone }

// issuerZone reads the zone from the certificate that signed the leaf. The root's
// owner wrote it there: a zone cannot choose it.
func issuerZone(chain []*x509.Certificate) string {
	if len(chain) < 3 {
		return "" // signed by a root
	}
	for _, unit := range chain[1].Subject.OrganizationalUnit {
		if zone, ok := strings.CutPrefix(unit, zonePrefix); ok {
			return zone
		}
	}
	return ""
}

func describe(c *x509.Certificate) string {
	if len(c.URIs) == 1 {
		return c.URIs[0].String()
	}
	return fmt.Sprintf("%q", c.Subject)
}
