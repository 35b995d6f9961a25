// Package secrets decides which secrets of a global control plane travel to zones.
//
// It owns the references of objects to secrets (References), what follows from all of them
// (Uses), and the controller that notes it on each secret, in annotations that Zones and
// Prune read when the secret is sent. Only values that a synchronised object refers to
// travel, only to zones that use that object, and never a secret with the private key of an
// authority. Enter at New and References. It sends nothing: package federation/local does.
package secrets

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Annotations of a secret at global, which the controller alone writes. They do not travel.
const (
	// AnnotationZones lists the zones that a secret is sent to; AnyZone: all.
	AnnotationZones = v1alpha1.GroupName + "/secret-zones"
	// AnnotationValues lists the keys of the values that are sent; those with "=public"
	// behind them only while there is no private key in them.
	AnnotationValues = v1alpha1.GroupName + "/secret-values"
)

// AnyZone among the zones of a secret stands for all.
const AnyZone = "*"

const publicMark = "=public"

// Role of a value in the object that refers to it.
type Role int

// The roles.
const (
	// Credential: whoever has the object needs the value.
	Credential Role = iota
	// Public: certificates, which are no secret.
	Public
	// AuthorityKey: the private key by which certificates of workloads are signed.
	AuthorityKey
)

// Reference of an object to a value of a secret.
type Reference struct {
	// Secret; one without a namespace is a GlobalSecret.
	Secret resource.Key
	// Value is the key of the value in the secret's data.
	Value string
	Role  Role
	// Zones that use the object; nil: all.
	Zones []string
	// Field of the object that has the reference.
	Field string
}

// References of an object; of a kind that has none: nil.
func References(obj resource.Object) []Reference {
	switch o := obj.(type) {
	case *v1alpha1.Mesh:
		return ofMesh(o)
	case *v1alpha1.ExternalService:
		return ofExternal(o)
	}
	return nil
}

func ofMesh(m *v1alpha1.Mesh) []Reference {
	if m.Spec.MTLS == nil {
		return nil
	}
	var c collector
	for _, b := range m.Spec.MTLS.Backends {
		at := "spec.mtls.backends[" + b.Name + "]."
		if p := b.Provided; p != nil {
			c.add(&p.Certificate, Public, at+"provided.certificate")
			c.add(&p.Key, AuthorityKey, at+"provided.key")
			c.add(p.Roots, Public, at+"provided.roots")
		}
		if b.External != nil {
			c.add(&b.External.Roots, Public, at+"external.roots")
		}
	}
	return c.found
}

func ofExternal(e *v1alpha1.ExternalService) []Reference {
	t := e.Spec.TLS
	if t == nil {
		return nil
	}
	c := collector{namespace: e.Namespace, zones: e.Spec.Zones}
	c.add(t.CACertificates, Public, "spec.tls.caCertificates")
	c.add(t.ClientCertificate, Credential, "spec.tls.clientCertificate")
	c.add(t.ClientKey, Credential, "spec.tls.clientKey")
	return c.found
}

// collector of the references of one object.
type collector struct {
	namespace string
	zones     []string
	found     []Reference
}

func (c *collector) add(d *v1alpha1.DataSource, role Role, field string) {
	if d == nil || d.SecretRef == nil {
		return
	}
	r := d.SecretRef
	key := resource.Key{Namespace: c.namespace, Name: r.Name}
	if r.Kind == v1alpha1.KindGlobalSecret {
		key.Namespace = ""
	}
	c.found = append(c.found, Reference{
		Secret: key, Value: cmp.Or(r.Key, v1alpha1.DefaultSecretKey), Role: role, Zones: c.zones, Field: field + ".secretRef",
	})
}

// Use is what travels of one secret.
type Use struct {
	zones  map[string]bool
	values map[string]Role
	// withheld: it has the private key of an authority.
	withheld bool
}

// Uses are what follows from references, by secret.
func Uses(all []Reference) map[resource.Key]*Use {
	out := map[resource.Key]*Use{}
	for _, r := range all {
		u := out[r.Secret]
		if u == nil {
			u = &Use{zones: map[string]bool{}, values: map[string]Role{}}
			out[r.Secret] = u
		}
		u.withheld = u.withheld || r.Role == AuthorityKey
		if old, ok := u.values[r.Value]; !ok || old == Public {
			u.values[r.Value] = r.Role
		}
		if r.Zones == nil {
			u.zones[AnyZone] = true
		}
		for _, z := range r.Zones {
			u.zones[z] = true
		}
	}
	return out
}

// Annotations that say so; both are empty for a secret that does not travel, and for a nil
// Use.
func (u *Use) Annotations() (zones, values string) {
	if u == nil || u.withheld {
		return "", ""
	}
	var marked []string
	for _, v := range slices.Sorted(maps.Keys(u.values)) {
		if u.values[v] == Public {
			v += publicMark
		}
		marked = append(marked, v)
	}
	if u.zones[AnyZone] {
		return AnyZone, strings.Join(marked, ",")
	}
	return strings.Join(slices.Sorted(maps.Keys(u.zones)), ","), strings.Join(marked, ",")
}

// Zones that a secret is sent to, as its annotation says.
func Zones(secret resource.Object) []string {
	list := secret.GetAnnotations()[AnnotationZones]
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// privateKey is in the PEM of every kind of private key (RFC 7468).
var privateKey = []byte("PRIVATE KEY-----")

// Prune leaves of a secret what travels: the values that its annotation names, as a secret
// without rules of its own.
func Prune(secret resource.Object) {
	notes := secret.GetAnnotations()
	values := notes[AnnotationValues]
	delete(notes, AnnotationZones)
	delete(notes, AnnotationValues)
	switch s := secret.(type) {
	case *corev1.Secret:
		s.Data, s.Type, s.Immutable, s.StringData = prune(s.Data, values), corev1.SecretTypeOpaque, nil, nil
	case *v1alpha1.GlobalSecret:
		s.Data, s.Type, s.Immutable, s.StringData = prune(s.Data, values), v1alpha1.SecretTypeOpaque, nil, nil
	}
}

func prune(data map[string][]byte, values string) map[string][]byte {
	out := map[string][]byte{}
	for v := range strings.SplitSeq(values, ",") {
		name, public := strings.CutSuffix(v, publicMark)
		value, ok := data[name]
		if !ok || public && bytes.Contains(value, privateKey) {
			continue
		}
		out[name] = value
	}
	return out
}
