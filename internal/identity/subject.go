package identity

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Kind of a token: what its owner is.
type Kind string

// The kinds of token.
const (
	Admin    Kind = "admin"
	ReadOnly Kind = "read-only"
	Node     Kind = "node"
	Zone     Kind = "zone"
)

// Kinds in the order in which they are documented.
var kinds = []Kind{Admin, ReadOnly, Node, Zone}

// ParseKind checks a kind that a user typed.
func ParseKind(s string) (Kind, error) {
	if k := Kind(s); slices.Contains(kinds, k) {
		return k, nil
	}
	return "", fmt.Errorf("unknown kind of token %q: use admin, read-only, node or zone", s)
}

// Names of groups and prefixes of user names. The two that start with "system:"
// are Kubernetes' own.
const (
	GroupAdmins   = "system:masters"
	GroupReadOnly = "proxima:read-only"
	GroupNodes    = "system:nodes"
	GroupZones    = "proxima:zones"

	nodeUserPrefix     = "system:node:"
	zoneUserPrefix     = "proxima:zone:"
	adminUserPrefix    = "proxima:admin:"
	readOnlyUserPrefix = "proxima:read-only:"
)

// tokenURIPrefix marks the URI name in a certificate that says which token
// bought it.
const tokenURIPrefix = "proxima:token:"

// Subject is somebody who was recognised.
type Subject struct {
	User   string
	Groups []string
	// TokenID of the token that was shown, or that bought the certificate; may
	// be empty.
	TokenID string
}

// SubjectFor is the subject that a kind and a name stand for.
func SubjectFor(kind Kind, name string) (Subject, error) {
	// A zone's name becomes a DNS label of .mesh names, the others are object names.
	check := validation.IsDNS1123Subdomain
	if kind == Zone {
		check = validation.IsDNS1123Label
	}
	if errs := check(name); len(errs) > 0 {
		return Subject{}, fmt.Errorf("name %q of a token of kind %s: %s", name, kind, strings.Join(errs, "; "))
	}
	switch kind {
	case Admin:
		return Subject{User: adminUserPrefix + name, Groups: []string{GroupAdmins}}, nil
	case ReadOnly:
		return Subject{User: readOnlyUserPrefix + name, Groups: []string{GroupReadOnly}}, nil
	case Node:
		return Subject{User: nodeUserPrefix + name, Groups: []string{GroupNodes}}, nil
	case Zone:
		return Subject{User: zoneUserPrefix + name, Groups: []string{GroupZones}}, nil
	}
	return Subject{}, fmt.Errorf("unknown kind of token %q", kind)
}

// SubjectOf reads the subject out of a client certificate, which the caller has
// verified: common name is the user, organizations are the groups.
func SubjectOf(cert *x509.Certificate) Subject {
	s := Subject{User: cert.Subject.CommonName, Groups: slices.Clone(cert.Subject.Organization)}
	for _, u := range cert.URIs {
		if id, ok := strings.CutPrefix(u.String(), tokenURIPrefix); ok {
			s.TokenID = id
		}
	}
	return s
}

// NodeName is the node that a user of group GroupNodes is.
func NodeName(user string, groups []string) (string, bool) {
	name, ok := strings.CutPrefix(user, nodeUserPrefix)
	return name, ok && name != "" && slices.Contains(groups, GroupNodes)
}

// ZoneName is the zone that a user of group GroupZones is.
func ZoneName(user string, groups []string) (string, bool) {
	name, ok := strings.CutPrefix(user, zoneUserPrefix)
	return name, ok && name != "" && slices.Contains(groups, GroupZones)
}
