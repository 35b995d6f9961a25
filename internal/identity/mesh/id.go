package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Domain is a trust domain: the name of one mesh in certificates. Comparable.
type Domain = spiffeid.TrustDomain

// domainSuffix makes the default trust domain of a mesh.
const domainSuffix = ".mesh"

// DomainOf is the trust domain of a mesh: the configured one, or MESH.mesh. A trust
// domain is a DNS name, so that name constraints (RFC 5280, 4.2.1.10) can hold it.
func DomainOf(mesh, configured string) (Domain, error) {
	if configured == "" {
		if errs := validation.IsDNS1123Label(mesh); len(errs) > 0 {
			return Domain{}, fmt.Errorf("mesh %q: %s", mesh, strings.Join(errs, "; "))
		}
		configured = mesh + domainSuffix
	}
	return ParseDomain(configured)
}

// ParseDomain reads a trust domain: a DNS name in lower case of at most 253
// characters, and not an IP address.
func ParseDomain(name string) (Domain, error) {
	if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
		return Domain{}, fmt.Errorf("trust domain %q: %s", name, strings.Join(errs, "; "))
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return Domain{}, fmt.Errorf("trust domain %q is an IP address: use a DNS name", name)
	}
	for label := range strings.SplitSeq(name, ".") {
		if len(label) > validation.DNS1123LabelMaxLength {
			return Domain{}, fmt.Errorf("trust domain %q: label %q has more than %d characters", name, label, validation.DNS1123LabelMaxLength)
		}
	}
	return spiffeid.TrustDomainFromString(name)
}

// CheckDomainUpdate refuses to change the trust domain of a mesh. Every certificate and
// every policy that names an identity has it in it: another domain is another mesh.
func CheckDomainUpdate(mesh, before, after string) error {
	old, err := DomainOf(mesh, before)
	if err != nil {
		return nil // what was invalid may be corrected
	}
	now, err := DomainOf(mesh, after)
	if err != nil {
		return err
	}
	if old != now {
		return fmt.Errorf("trust domain of mesh %s is immutable: it is %s; make another mesh for %s", mesh, old, now)
	}
	return nil
}

// Kind of an ID.
type Kind uint8

// The kinds of ID.
const (
	// WorkloadID is spiffe://DOMAIN/ns/NAMESPACE/sa/SERVICEACCOUNT.
	WorkloadID Kind = iota + 1
	// NodeID is spiffe://DOMAIN/zone/ZONE/node/NODE.
	NodeID
	// IngressID is spiffe://DOMAIN/zone/ZONE/ingress.
	IngressID
	// EgressID is spiffe://DOMAIN/zone/ZONE/egress.
	EgressID
)

// Segments of paths.
const (
	segmentNamespace = "ns"
	segmentAccount   = "sa"
	segmentZone      = "zone"
	segmentNode      = "node"
	segmentIngress   = "ingress"
	segmentEgress    = "egress"
)

// DefaultServiceAccount of a workload that names none.
const DefaultServiceAccount = "default"

// ID is who a part of a mesh is. Comparable: two IDs are the same identity exactly if
// they are equal. No certificate has the zero value.
type ID struct {
	domain Domain
	kind   Kind
	scope  string // namespace or zone
	name   string // service account or node
}

// Workload is the ID of the workloads of a service account; an empty one is "default".
func Workload(domain Domain, namespace, serviceAccount string) (ID, error) {
	if serviceAccount == "" {
		serviceAccount = DefaultServiceAccount
	}
	return ID{domain, WorkloadID, namespace, serviceAccount}.checked()
}

// Node is the ID of the agent of a node, in the zone (the site) of its control plane.
func Node(domain Domain, zone, node string) (ID, error) {
	return ID{domain, NodeID, zone, node}.checked()
}

// Ingress is the ID of the ingresses of a zone.
func Ingress(domain Domain, zone string) (ID, error) {
	return ID{domain, IngressID, zone, ""}.checked()
}

// Egress is the ID of the egresses of a zone.
func Egress(domain Domain, zone string) (ID, error) {
	return ID{domain, EgressID, zone, ""}.checked()
}

// ParseID reads an ID as it is in a certificate. What String did not write is an error.
func ParseID(s string) (ID, error) {
	id, err := spiffeid.FromString(s)
	if err != nil {
		return ID{}, fmt.Errorf("SPIFFE ID %.100q: %w", s, err)
	}
	return fromSPIFFE(id)
}

// IDFromURI is ParseID for the URI name of a certificate.
func IDFromURI(u *url.URL) (ID, error) {
	if u == nil {
		return ID{}, errors.New("SPIFFE ID: there is none")
	}
	return ParseID(u.String())
}

func fromSPIFFE(id spiffeid.ID) (ID, error) {
	domain, err := ParseDomain(id.TrustDomain().Name())
	if err != nil {
		return ID{}, fmt.Errorf("SPIFFE ID %s: %w", id, err)
	}
	var out ID
	path := strings.Split(strings.TrimPrefix(id.Path(), "/"), "/")
	switch {
	case len(path) == 4 && path[0] == segmentNamespace && path[2] == segmentAccount:
		out = ID{domain, WorkloadID, path[1], path[3]}
	case len(path) == 4 && path[0] == segmentZone && path[2] == segmentNode:
		out = ID{domain, NodeID, path[1], path[3]}
	case len(path) == 3 && path[0] == segmentZone && path[2] == segmentIngress:
		out = ID{domain, IngressID, path[1], ""}
	case len(path) == 3 && path[0] == segmentZone && path[2] == segmentEgress:
		out = ID{domain, EgressID, path[1], ""}
	default:
		return ID{}, fmt.Errorf("SPIFFE ID %s: want /ns/NAMESPACE/sa/SERVICEACCOUNT, /zone/ZONE/node/NODE, "+
			"/zone/ZONE/ingress or /zone/ZONE/egress behind the trust domain", id)
	}
	return out.checked()
}

// maxID of a SPIFFE ID in bytes (SPIFFE-ID, 2.3).
const maxID = 2048

// checked returns the ID if all its parts are names.
func (id ID) checked() (ID, error) {
	if id.domain.IsZero() {
		return ID{}, errors.New("identity: the trust domain is missing")
	}
	what := segmentZone
	if id.kind == WorkloadID {
		what = "namespace"
	}
	if errs := validation.IsDNS1123Label(id.scope); len(errs) > 0 {
		return ID{}, fmt.Errorf("identity: %s %.100q: %s", what, id.scope, strings.Join(errs, "; "))
	}
	if id.kind == WorkloadID || id.kind == NodeID {
		what = segmentNode
		if id.kind == WorkloadID {
			what = "service account"
		}
		if errs := validation.IsDNS1123Subdomain(id.name); len(errs) > 0 {
			return ID{}, fmt.Errorf("identity: %s %.100q: %s", what, id.name, strings.Join(errs, "; "))
		}
	}
	if n := len(id.String()); n > maxID {
		return ID{}, fmt.Errorf("identity of %d bytes: at most %d are possible", n, maxID)
	}
	return id, nil
}

// String is the SPIFFE ID; of the zero value it is empty.
func (id ID) String() string {
	base := id.domain.IDString()
	switch id.kind {
	case WorkloadID:
		return base + "/ns/" + id.scope + "/sa/" + id.name
	case NodeID:
		return base + "/zone/" + id.scope + "/node/" + id.name
	case IngressID:
		return base + "/zone/" + id.scope + "/ingress"
	case EgressID:
		return base + "/zone/" + id.scope + "/egress"
	}
	return ""
}

// URL is the SPIFFE ID as the URI name of a certificate. The caller owns it.
func (id ID) URL() *url.URL {
	path := strings.TrimPrefix(id.String(), id.domain.IDString())
	return &url.URL{Scheme: "spiffe", Host: id.domain.Name(), Path: path}
}

// Domain is the trust domain.
func (id ID) Domain() Domain { return id.domain }

// Kind is what the ID stands for; 0 of the zero value.
func (id ID) Kind() Kind { return id.kind }

// Namespace of a workload; else empty.
func (id ID) Namespace() string { return id.of(WorkloadID, id.scope) }

// ServiceAccount of a workload; else empty.
func (id ID) ServiceAccount() string { return id.of(WorkloadID, id.name) }

// Node name; empty if the ID is not a node's.
func (id ID) Node() string { return id.of(NodeID, id.name) }

// Zone of a node or gateway; empty for a workload: its ID is the same in all zones.
func (id ID) Zone() string {
	if id.kind == WorkloadID {
		return ""
	}
	return id.scope
}

func (id ID) of(k Kind, part string) string {
	if id.kind != k {
		return ""
	}
	return part
}

// IsZero reports whether the ID is the zero value.
func (id ID) IsZero() bool { return id.kind == 0 }

// MarshalText is String. It fails for the zero value.
func (id ID) MarshalText() ([]byte, error) {
	if id.IsZero() {
		return nil, errors.New("identity: the zero value has no text")
	}
	return []byte(id.String()), nil
}

// UnmarshalText is ParseID.
func (id *ID) UnmarshalText(text []byte) error {
	parsed, err := ParseID(string(text))
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}
