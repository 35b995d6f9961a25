package kind

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Validity of workload certificates: below a minute renewal cannot keep up, and
// after a year a leaked key must be useless.
const (
	minCertificateSeconds = 60
	maxCertificateSeconds = 365 * 24 * 60 * 60
)

// Mesh describes mesh.proxima.dev/v1alpha1 Mesh.
var Mesh = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("Mesh"),
	Resource:   "meshes",
	Singular:   "mesh",
	Categories: []string{"proxima"},
	Direction:  resource.GlobalToZone,

	New:     func() resource.Object { return &mesh.Mesh{} },
	NewList: func() runtime.Object { return &mesh.MeshList{} },

	Default:  on(defaultMesh),
	Prepare:  counted(func(m *mesh.Mesh) any { return m.Spec }),
	Validate: compare(validateMesh),
	Warnings: compare(warnMesh),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("mTLS", "The backend that signs certificates and its mode."),
		column("Passthrough", "Whether workloads may call what the mesh does not know."),
		column("Egress", "Whether traffic out of a zone goes through its egress."),
		ageColumn(),
		wide("Locality", "Whether traffic keeps to its zone."),
		wide("Backends", "All backends that can be enabled."),
	},
	Cells: of(meshCells),
}

// MeshOf is the mesh of a namespace, from its labels.
func MeshOf(labels map[string]string) string {
	return orElse(labels[mesh.LabelMesh], mesh.DefaultMesh)
}

// defaultMesh leaves lists alone: a client that applies its manifest again would
// take what was filled in there for a change.
func defaultMesh(m *mesh.Mesh) {
	if n := m.Spec.Networking; n != nil && n.Outbound != nil && n.Outbound.Passthrough == nil {
		n.Outbound.Passthrough = new(true)
	}
	if r := m.Spec.Routing; r != nil {
		if r.LocalityAware == nil {
			r.LocalityAware = new(true)
		}
		if r.ZoneEgress == nil {
			r.ZoneEgress = new(false)
		}
	}
}

// validateMesh: the name is a value of labels and a part of DNS names, so it is
// a DNS label.
func validateMesh(m, old *mesh.Mesh) field.ErrorList {
	var errs field.ErrorList
	if old == nil {
		errs = checkMeta(m, nil, false, validation.NameIsDNSLabel)
	} else {
		errs = checkMeta(m, old, false, validation.NameIsDNSLabel)
	}
	if m.Spec.MTLS != nil {
		errs = append(errs, checkMTLS(field.NewPath("spec", "mtls"), m.Spec.MTLS)...)
	}
	return errs
}

func checkMTLS(path *field.Path, m *mesh.MeshMTLS) field.ErrorList {
	var errs field.ErrorList
	names := set[string]{}
	for i := range m.Backends {
		b, at := &m.Backends[i], path.Child("backends").Index(i)
		if b.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, checkLabel(at.Child("name"), b.Name)...)
		}
		if !names.add(b.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), b.Name))
		}
		errs = append(errs, checkBackend(at, b)...)
	}
	if _, ok := names[m.EnabledBackend]; m.EnabledBackend != "" && !ok {
		errs = append(errs, field.NotFound(path.Child("enabledBackend"), m.EnabledBackend))
	}
	return errs
}

func checkBackend(path *field.Path, b *mesh.MeshCertificateBackend) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, checkChoice(path.Child("mode"), b.Mode, mesh.MTLSPermissive, mesh.MTLSStrict)...)
	provided := path.Child("provided")
	switch orElse(b.Type, mesh.BackendBuiltin) {
	case mesh.BackendBuiltin:
		if b.Provided != nil {
			errs = append(errs, field.Forbidden(provided, "may only be set when `type` is 'Provided'"))
		}
	case mesh.BackendProvided:
		if b.Provided == nil {
			errs = append(errs, field.Required(provided, "must be set when `type` is 'Provided'"))
			break
		}
		errs = append(errs, checkDataSource(provided.Child("certificate"), &b.Provided.Certificate, clusterWide, inlineAllowed)...)
		errs = append(errs, checkDataSource(provided.Child("key"), &b.Provided.Key, clusterWide, inlineRefused)...)
	default:
		errs = append(errs, checkChoice(path.Child("type"), b.Type, mesh.BackendBuiltin, mesh.BackendProvided)...)
	}
	if c := b.WorkloadCertificate; c != nil && c.ValiditySeconds != nil {
		if v := *c.ValiditySeconds; v < minCertificateSeconds || v > maxCertificateSeconds {
			errs = append(errs, field.Invalid(path.Child("workloadCertificate", "validitySeconds"), v,
				utilvalidation.InclusiveRangeError(minCertificateSeconds, maxCertificateSeconds)))
		}
	}
	return errs
}

// checkChoice checks a field that is empty or one of a few words.
func checkChoice(path *field.Path, value string, choices ...string) field.ErrorList {
	if value == "" {
		return nil
	}
	for _, c := range choices {
		if value == c {
			return nil
		}
	}
	return field.ErrorList{field.NotSupported(path, value, choices)}
}

// scope reports whether an object can refer to what is in a namespace.
type scope bool

const (
	clusterWide scope = false
	inNamespace scope = true
)

// inline reports whether bytes may be in an object that every user can read.
type inline bool

const (
	inlineRefused inline = false
	inlineAllowed inline = true
)

func checkDataSource(path *field.Path, s *mesh.DataSource, in scope, may inline) field.ErrorList {
	ref := path.Child("secretRef")
	switch {
	case len(s.Inline) == 0 && s.SecretRef == nil:
		if may == inlineRefused {
			return field.ErrorList{field.Required(ref, "")}
		}
		return field.ErrorList{field.Required(path, "must specify one of `inline` and `secretRef`")}
	case len(s.Inline) > 0 && may == inlineRefused:
		return field.ErrorList{field.Forbidden(path.Child("inline"),
			"a key is not for everybody to read: put it into a secret and name it in `secretRef`")}
	case len(s.Inline) > 0 && s.SecretRef != nil:
		return field.ErrorList{field.Forbidden(path, "may not specify more than one of `inline` and `secretRef`")}
	case s.SecretRef == nil:
		return nil
	}
	var errs field.ErrorList
	r := s.SecretRef
	errs = append(errs, checkChoice(ref.Child("kind"), r.Kind, mesh.KindGlobalSecret, mesh.KindSecret)...)
	if r.Kind == mesh.KindSecret && in == clusterWide {
		errs = append(errs, field.Invalid(ref.Child("kind"), r.Kind, "must be 'GlobalSecret': this object is in no namespace"))
	}
	if r.Name == "" {
		errs = append(errs, field.Required(ref.Child("name"), ""))
	} else {
		errs = append(errs, checkSubdomain(ref.Child("name"), r.Name)...)
	}
	if r.Key != "" {
		errs = append(errs, invalid(ref.Child("key"), r.Key, utilvalidation.IsConfigMapKey(r.Key))...)
	}
	return errs
}

// warnMesh: backends that are not enabled encrypt nothing.
func warnMesh(m, _ *mesh.Mesh) []string {
	if t := m.Spec.MTLS; t != nil && len(t.Backends) > 0 && t.EnabledBackend == "" {
		return []string{"spec.mtls.enabledBackend: none is enabled, so there is no mutual TLS in this mesh"}
	}
	return nil
}

func meshCells(m *mesh.Mesh) []any {
	mtls, passthrough, egress, locality := "off", true, false, true
	var backends listed
	if t := m.Spec.MTLS; t != nil {
		for _, b := range t.Backends {
			text := fmt.Sprintf("%s/%s", b.Name, strings.ToLower(orElse(b.Mode, mesh.MTLSStrict)))
			backends.add(text)
			if b.Name == t.EnabledBackend {
				mtls = text
			}
		}
	}
	if n := m.Spec.Networking; n != nil && n.Outbound != nil && n.Outbound.Passthrough != nil {
		passthrough = *n.Outbound.Passthrough
	}
	if r := m.Spec.Routing; r != nil {
		egress = r.ZoneEgress != nil && *r.ZoneEgress
		locality = r.LocalityAware == nil || *r.LocalityAware
	}
	return []any{m.Name, mtls, onOff(passthrough), onOff(egress), age(m), onOff(locality), backends.string(none)}
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}
