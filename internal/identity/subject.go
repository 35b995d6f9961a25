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
	Workload Kind = "workload"
)

// Kinds in the order in which they are documented.
var kinds = []Kind{Admin, ReadOnly, Node, Zone, Workload}

// ParseKind checks a kind that a user typed.
func ParseKind(s string) (Kind, error) {
	if k := Kind(s); slices.Contains(kinds, k) {
		return k, nil
	}
	return "", fmt.Errorf("unknown kind of token %q: use admin, read-only, node, zone or workload", s)
}

// Names of groups and prefixes of user names. The two that start with "system:"
// are Kubernetes' own.
const (
	GroupAdmins    = "system:masters"
	GroupReadOnly  = "proxima:read-only"
	GroupNodes     = "system:nodes"
	GroupZones     = "proxima:zones"
	GroupWorkloads = "proxima:workloads"

	nodeUserPrefix     = "system:node:"
	zoneUserPrefix     = "proxima:zone:"
	workloadUserPrefix = "proxima:workload:"
	adminUserPrefix    = "proxima:admin:"
	readOnlyUserPrefix = "proxima:read-only:"
)

// InstanceName is the name of the administrator as whom the instances of a control plane call
// each other.
const InstanceName = "instance"

// Subject is an authenticated user.
type Subject struct {
	User   string
	Groups []string
	// TokenID of the token that was shown, or that bought the certificate; may
	// be empty.
	TokenID string
	// Bounds of what a node or a workload registers.
	Bounds Bounds
}

// SubjectFor is the subject that a kind and a name stand for.
func SubjectFor(kind Kind, name string) (Subject, error) {
	// A zone's name becomes a DNS label of .mesh names, the others are object names.
	check := validation.IsDNS1123Subdomain
	switch kind {
	case Zone:
		check = validation.IsDNS1123Label
	case Workload:
		check = checkAccount
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
	case Workload:
		return Subject{User: workloadUserPrefix + name, Groups: []string{GroupWorkloads}}, nil
	}
	return Subject{}, fmt.Errorf("unknown kind of token %q", kind)
}

// checkAccount requires the form NAMESPACE/SERVICEACCOUNT.
func checkAccount(name string) []string {
	namespace, account, ok := strings.Cut(name, "/")
	if !ok {
		return []string{"want NAMESPACE/SERVICEACCOUNT, as in shop/web"}
	}
	return append(validation.IsDNS1123Label(namespace), validation.IsDNS1123Subdomain(account)...)
}

// SubjectOf reads the subject out of a client certificate, which the caller has
// verified: common name is the user, organizations are the groups, and URI names
// carry the token and the bounds.
func SubjectOf(cert *x509.Certificate) Subject {
	s := Subject{User: cert.Subject.CommonName, Groups: slices.Clone(cert.Subject.Organization)}
	s.readURIs(cert.URIs)
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

// WorkloadName is the namespace and service account that a user of group
// GroupWorkloads is.
func WorkloadName(user string, groups []string) (namespace, account string, ok bool) {
	name, ok := strings.CutPrefix(user, workloadUserPrefix)
	if !ok || !slices.Contains(groups, GroupWorkloads) {
		return "", "", false
	}
	namespace, account, ok = strings.Cut(name, "/")
	return namespace, account, ok && namespace != "" && account != ""
}
