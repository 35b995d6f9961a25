package kind

import (
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	identity "github.com/proxima-mesh/proxima/internal/identity/mesh"
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
	Status:     true,

	New:     func() resource.Object { return &mesh.Mesh{} },
	NewList: func() runtime.Object { return &mesh.MeshList{} },

	Default:  on(defaultMesh),
	Prepare:  meshParts.prepare,
	Validate: compare(validateMesh),
	Warnings: compare(warnMesh),

	PrepareStatus:  meshParts.prepareStatus,
	ValidateStatus: compare(validateMeshStatus),

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

// MeshOf is the mesh of a namespace: the one that it names, else the default.
func MeshOf(namespace metav1.Object) string { return orElse(NamedMesh(namespace), mesh.DefaultMesh) }

// PodMesh is the mesh of a pod: the one that it names, else that of its namespace (nil:
// unknown), else the default.
func PodMesh(pod *corev1.Pod, namespace *corev1.Namespace) string {
	if m := NamedMesh(pod); m != "" || namespace == nil {
		return orElse(m, mesh.DefaultMesh)
	}
	return MeshOf(namespace)
}

// NamedMesh is the mesh that labels or annotations of an object name; empty: none. Ours are
// preferred to Kuma's, then labels to annotations.
func NamedMesh(o metav1.Object) string {
	for _, m := range namedMeshes(o) {
		if m.mesh != "" {
			return m.mesh
		}
	}
	return ""
}

// namedMesh is one way to name a mesh.
type namedMesh struct{ kind, key, mesh string }

// namedMeshes of an object, in the order in which they count.
func namedMeshes(o metav1.Object) [4]namedMesh {
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	return [...]namedMesh{
		{"label", mesh.LabelMesh, labels[mesh.LabelMesh]}, {"annotation", mesh.LabelMesh, annotations[mesh.LabelMesh]},
		{"label", mesh.LabelKumaMesh, labels[mesh.LabelKumaMesh]}, {"annotation", mesh.LabelKumaMesh, annotations[mesh.LabelKumaMesh]},
	}
}

// warnNamedMesh warns of an object that names several meshes: only one counts. An update warns
// of what it changes.
func warnNamedMesh(o, old metav1.Object) []string {
	all := namedMeshes(o)
	if old != nil && namedMeshes(old) == all {
		return nil
	}
	var first namedMesh
	for _, m := range all {
		switch {
		case m.mesh == "":
		case first.mesh == "":
			first = m
		case m.mesh != first.mesh:
			return []string{fmt.Sprintf("metadata.%ss[%s]: mesh %q does not count, as the %s %s names mesh %q: remove one of the two",
				m.kind, m.key, m.mesh, first.kind, first.key, first.mesh)}
		}
	}
	return nil
}

// keepNamedMesh gives an object the mesh that its former version names, as it names it.
func keepNamedMesh(o, old metav1.Object) {
	for _, key := range []string{mesh.LabelMesh, mesh.LabelKumaMesh} {
		o.SetLabels(keepKey(o.GetLabels(), old.GetLabels(), key))
		o.SetAnnotations(keepKey(o.GetAnnotations(), old.GetAnnotations(), key))
	}
}

func keepKey(now, old map[string]string, key string) map[string]string {
	value, ok := old[key]
	switch {
	case !ok:
		delete(now, key)
		return now
	case now == nil:
		now = map[string]string{}
	}
	now[key] = value
	return now
}

// UntouchedMesh reports whether a Mesh is the default one as a control plane makes it at its
// first start, with nothing set.
func UntouchedMesh(m *mesh.Mesh) bool {
	return m.Name == mesh.DefaultMesh && equality.Semantic.DeepEqual(m.Spec, mesh.MeshSpec{}) &&
		len(m.Labels)+len(m.Annotations)+len(m.OwnerReferences)+len(m.Finalizers) == 0
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
		fill(&r.Export, mesh.ExportExported)
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
	path := field.NewPath("spec", "mtls")
	if m.Spec.MTLS != nil {
		errs = append(errs, checkMTLS(path, m.Spec.MTLS)...)
		errs = append(errs, checkChoice(path.Child("outbound"), m.Spec.MTLS.Outbound, mesh.OutboundAuto, mesh.OutboundAlways)...)
	}
	errs = append(errs, checkChoice(field.NewPath("spec", "networking", "outbound", "scope"), MeshScope(m),
		mesh.ScopeOnDemand, mesh.ScopeAll, mesh.ScopeDeclared)...)
	errs = append(errs, checkChoice(field.NewPath("spec", "defaultAccess"), m.Spec.DefaultAccess, mesh.AccessAllow, mesh.AccessDeny)...)
	if r := m.Spec.Routing; r != nil {
		errs = append(errs, checkChoice(field.NewPath("spec", "routing", "export"), r.Export, mesh.ExportAll, mesh.ExportExported)...)
		errs = append(errs, checkTopologyMode(field.NewPath("spec", "routing", "topologyMode"), r.TopologyMode)...)
	}
	return append(errs, checkTrustDomain(path.Child("trustDomain"), m, old)...)
}

// checkTopologyMode checks a default mode of Services: a word of Kubernetes, or DOMAIN/NAME.
func checkTopologyMode(path *field.Path, value string) field.ErrorList {
	if value == "" || value == "Auto" || value == "auto" || mesh.TopologyDisabled(value) {
		return nil
	}
	if domain, name, ok := strings.Cut(value, "/"); !ok || domain == "" || name == "" {
		return field.ErrorList{field.Invalid(path, value, "must be "+mesh.TopologyModes)}
	}
	return nil
}

// checkTrustDomain: the domain is in every certificate, so it never changes.
func checkTrustDomain(path *field.Path, m, old *mesh.Mesh) field.ErrorList {
	domain := trustDomain(m)
	if _, err := identity.DomainOf(m.Name, domain); err != nil && domain != "" {
		return field.ErrorList{field.Invalid(path, domain, err.Error())}
	}
	if old == nil {
		return nil
	}
	if err := identity.CheckDomainUpdate(m.Name, trustDomain(old), domain); err != nil {
		return field.ErrorList{field.Invalid(path, domain, err.Error())}
	}
	return nil
}

func trustDomain(m *mesh.Mesh) string {
	if m.Spec.MTLS == nil {
		return ""
	}
	return m.Spec.MTLS.TrustDomain
}

var meshParts = parts[*mesh.Mesh, mesh.MeshSpec, mesh.MeshStatus](
	func(m *mesh.Mesh) (*mesh.MeshSpec, *mesh.MeshStatus) { return &m.Spec, &m.Status })

func validateMeshStatus(m, old *mesh.Mesh) field.ErrorList {
	errs := checkMeta(m, old, false, validation.NameIsDNSLabel)
	errs = append(errs, metav1validation.ValidateConditions(m.Status.Conditions, field.NewPath("status", "conditions"))...)
	return append(errs, checkZoneStatuses(m.Status.Zones)...)
}

// checkZoneStatuses of a policy at global.
func checkZoneStatuses(all []mesh.PolicyZoneStatus) field.ErrorList {
	var errs field.ErrorList
	path, names := field.NewPath("status", "zones"), set[string]{}
	for i, z := range all {
		errs = append(errs, checkLabel(path.Index(i).Child("zone"), z.Zone)...)
		if !names.add(z.Zone) {
			errs = append(errs, field.Duplicate(path.Index(i).Child("zone"), z.Zone))
		}
		errs = append(errs, metav1validation.ValidateConditions(z.Conditions, path.Index(i).Child("conditions"))...)
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
	kind, provided, external := orElse(b.Type, mesh.BackendBuiltin), path.Child("provided"), path.Child("external")
	errs = append(errs, checkChoice(path.Child("type"), kind, mesh.BackendBuiltin, mesh.BackendExternal, mesh.BackendProvided)...)
	switch {
	case kind != mesh.BackendProvided && b.Provided != nil:
		errs = append(errs, field.Forbidden(provided, "may only be set when `type` is 'Provided'"))
	case kind == mesh.BackendProvided && b.Provided == nil:
		errs = append(errs, field.Required(provided, "must be set when `type` is 'Provided'"))
	case b.Provided != nil:
		errs = append(errs, checkProvided(provided, b.Provided)...)
	}
	switch {
	case kind != mesh.BackendExternal && b.External != nil:
		errs = append(errs, field.Forbidden(external, "may only be set when `type` is 'External'"))
	case kind == mesh.BackendExternal && b.External == nil:
		errs = append(errs, field.Required(external, "must be set when `type` is 'External'"))
	case b.External != nil:
		errs = append(errs, checkExternal(external, b.External)...)
	}
	if c := b.WorkloadCertificate; c != nil && c.ValiditySeconds != nil {
		if v := *c.ValiditySeconds; v < minCertificateSeconds || v > maxCertificateSeconds {
			errs = append(errs, field.Invalid(path.Child("workloadCertificate", "validitySeconds"), v,
				utilvalidation.InclusiveRangeError(minCertificateSeconds, maxCertificateSeconds)))
		}
	}
	return errs
}

// checkProvided: the authority is in data sources, or in files.
func checkProvided(path *field.Path, p *mesh.MeshProvidedAuthority) field.ErrorList {
	if p.Files == nil {
		errs := checkDataSource(path.Child("certificate"), &p.Certificate, clusterWide, inlineAllowed)
		errs = append(errs, checkDataSource(path.Child("key"), &p.Key, clusterWide, inlineRefused)...)
		if p.Roots != nil {
			errs = append(errs, checkDataSource(path.Child("roots"), p.Roots, clusterWide, inlineAllowed)...)
		}
		return errs
	}
	var errs field.ErrorList
	files := path.Child("files")
	if p.Roots != nil || !equality.Semantic.DeepEqual(p.Certificate, mesh.DataSource{}) || !equality.Semantic.DeepEqual(p.Key, mesh.DataSource{}) {
		errs = append(errs, field.Forbidden(files, "may not be set together with `certificate`, `key` or `roots`"))
	}
	for _, f := range []struct {
		name, file string
		required   bool
	}{{"certificate", p.Files.Certificate, true}, {"key", p.Files.Key, true}, {"roots", p.Files.Roots, false}} {
		switch {
		case f.file == "" && f.required:
			errs = append(errs, field.Required(files.Child(f.name), ""))
		case f.file != "" && !filepath.IsAbs(f.file):
			errs = append(errs, field.Invalid(files.Child(f.name), f.file, "must be an absolute path"))
		}
	}
	return errs
}

func checkExternal(path *field.Path, e *mesh.MeshExternalAuthority) field.ErrorList {
	errs := checkDataSource(path.Child("roots"), &e.Roots, clusterWide, inlineAllowed)
	domain, name, ok := strings.Cut(e.SignerName, "/")
	switch {
	case e.SignerName == "":
		errs = append(errs, field.Required(path.Child("signerName"), ""))
	case !ok || name == "" || len(utilvalidation.IsFullyQualifiedDomainName(field.NewPath(""), domain)) > 0:
		errs = append(errs, field.Invalid(path.Child("signerName"), e.SignerName, "must be DOMAIN/NAME, as in 'example.com/mesh'"))
	case domain == "kubernetes.io":
		errs = append(errs, field.Invalid(path.Child("signerName"), e.SignerName, "the signers of kubernetes.io sign for Kubernetes itself"))
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

// warnMesh: backends that are not enabled encrypt nothing, and not everything that a Mesh
// asks for is enforced everywhere.
// An update warns of what it changes.
func warnMesh(m, old *mesh.Mesh) []string {
	var out []string
	switch t := m.Spec.MTLS; {
	case t == nil || old != nil && equality.Semantic.DeepEqual(t, old.Spec.MTLS):
	case t.EnabledBackend != "":
		out = append(out, "spec.mtls.enabledBackend: workloads get certificates; traffic inside a site is encrypted only "+
			"between workloads that have a sidecar, or use them themselves (SPIFFE Workload API), and sidecars alone refuse plain connections: see status")
	case len(t.Backends) > 0:
		out = append(out, "spec.mtls.enabledBackend: none is enabled, so there is no mutual TLS in this mesh")
	case t.Outbound == mesh.OutboundAlways:
		out = append(out, "spec.mtls.outbound: Always has no effect without spec.mtls.enabledBackend: there is no mutual TLS in this mesh")
	}
	if !passthrough(m) && (old == nil || passthrough(old)) {
		out = append(out, "spec.networking.outbound.passthrough: false is enforced by kernel modes, for workloads with an address of their own; "+
			"the status names those for whom it is not")
	}
	return out
}

// MeshScope says which Services proxies of a mesh know; empty: it says nothing, which is
// ScopeOnDemand.
func MeshScope(m *mesh.Mesh) string {
	if n := m.Spec.Networking; n != nil && n.Outbound != nil {
		return n.Outbound.Scope
	}
	return ""
}

// MeshPassthrough reports whether workloads of a mesh may call what it does not know.
func MeshPassthrough(m *mesh.Mesh) bool { return passthrough(m) }

func passthrough(m *mesh.Mesh) bool {
	n := m.Spec.Networking
	return n == nil || n.Outbound == nil || n.Outbound.Passthrough == nil || *n.Outbound.Passthrough
}

func meshCells(m *mesh.Mesh) []any {
	mtls, egress, locality := "off", false, true
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
	if r := m.Spec.Routing; r != nil {
		egress = r.ZoneEgress != nil && *r.ZoneEgress
		locality = r.LocalityAware == nil || *r.LocalityAware
	}
	return []any{m.Name, mtls, onOff(passthrough(m)), onOff(egress), age(m), onOff(locality), backends.string(none)}
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}
