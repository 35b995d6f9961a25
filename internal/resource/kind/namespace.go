package kind

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Namespace describes v1 Namespace. Its finalize sub-resource has functions of
// its own: PrepareNamespaceFinalize and ValidateNamespaceFinalize.
var Namespace = &resource.Descriptor{
	GVK:        corev1.SchemeGroupVersion.WithKind("Namespace"),
	Resource:   "namespaces",
	Singular:   "namespace",
	ShortNames: []string{"ns"},
	Status:     true,

	New:     func() resource.Object { return &corev1.Namespace{} },
	NewList: func() runtime.Object { return &corev1.NamespaceList{} },

	Default:        on(defaultNamespace),
	Prepare:        change(prepareNamespace),
	PrepareStatus:  change(prepareNamespaceStatus),
	Validate:       compare(validateNamespace),
	ValidateStatus: compare(validateNamespaceStatus),
	Warnings: compare(func(n, old *corev1.Namespace) []string {
		if old == nil {
			return append(warnTopologyMode(n, nil), warnNamedMesh(n, nil)...)
		}
		return append(warnTopologyMode(n, old), warnNamedMesh(n, old)...)
	}),

	Fields: of(func(n *corev1.Namespace) fields.Set {
		return fields.Set{"status.phase": string(n.Status.Phase)}
	}),
	Columns: []metav1.TableColumnDefinition{
		nameColumn(), column("Status", "The status of the namespace"), ageColumn(),
	},
	Cells: of(func(n *corev1.Namespace) []any { return []any{n.Name, string(n.Status.Phase), age(n)} }),
}

// warnTopologyMode: the API takes any value of an annotation, but one that names no mode has no
// effect. An update warns of what it changes.
func warnTopologyMode(n, old *corev1.Namespace) []string {
	value := n.Annotations[corev1.AnnotationTopologyMode]
	if old != nil && old.Annotations[corev1.AnnotationTopologyMode] == value {
		return nil
	}
	path := field.NewPath("metadata", "annotations").Key(corev1.AnnotationTopologyMode)
	if errs := checkTopologyMode(path, value); errs != nil {
		return []string{errs[0].Error() + "; the Services of the namespace take the mode of their mesh or of the control plane"}
	}
	return nil
}

func defaultNamespace(n *corev1.Namespace) {
	if n.Name != "" { // a name may still be generated; Prepare handles that
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[corev1.LabelMetadataName] = n.Name
	}
	if n.Status.Phase == "" {
		n.Status.Phase = corev1.NamespaceActive
	}
}

// prepareNamespace gives a new Namespace the finalizer that makes its deletion
// wait for what is in it. Finalizers change through finalize only.
func prepareNamespace(n, old *corev1.Namespace) {
	if old != nil {
		n.Spec.Finalizers = slices.Clone(old.Spec.Finalizers)
		n.Status = *old.Status.DeepCopy()
	} else {
		n.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
		if !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
			n.Spec.Finalizers = append(n.Spec.Finalizers, corev1.FinalizerKubernetes)
		}
	}
	defaultNamespace(n)
}

// prepareNamespaceStatus keeps the mesh too: only writes of the namespace itself
// check that it exists.
func prepareNamespaceStatus(n, old *corev1.Namespace) {
	n.Spec = *old.Spec.DeepCopy()
	keepNamedMesh(n, old)
}

func validateNamespace(n, old *corev1.Namespace) field.ErrorList {
	if old != nil {
		return checkMeta(n, old, false, validation.NameIsDNSLabel)
	}
	errs := checkMeta(n, nil, false, validation.NameIsDNSLabel)
	return append(errs, checkNamespaceFinalizers(n)...)
}

func validateNamespaceStatus(n, old *corev1.Namespace) field.ErrorList {
	errs := checkMeta(n, old, false, validation.NameIsDNSLabel)
	path, phase := field.NewPath("status", "Phase"), n.Status.Phase // the capital is upstream's
	if n.DeletionTimestamp.IsZero() {
		if phase != corev1.NamespaceActive {
			errs = append(errs, field.Invalid(path, phase, "may only be 'Active' if `deletionTimestamp` is empty"))
		}
	} else if phase != corev1.NamespaceTerminating {
		errs = append(errs, field.Invalid(path, phase, "may only be 'Terminating' if `deletionTimestamp` is not empty"))
	}
	return errs
}

// PrepareNamespaceFinalize prepares a write of the finalize sub-resource.
func PrepareNamespaceFinalize(n, old *corev1.Namespace) { n.Status = *old.Status.DeepCopy() }

// ValidateNamespaceFinalize checks a write of the finalize sub-resource.
func ValidateNamespaceFinalize(n, old *corev1.Namespace) field.ErrorList {
	errs := checkMeta(n, old, false, validation.NameIsDNSLabel)
	return append(errs, checkNamespaceFinalizers(n)...)
}

func checkNamespaceFinalizers(n *corev1.Namespace) field.ErrorList {
	var errs field.ErrorList
	for i, f := range n.Spec.Finalizers {
		path := field.NewPath("spec", "finalizers").Index(i)
		errs = append(errs, validation.ValidateFinalizerName(string(f), path)...)
		errs = append(errs, checkFinalizer(path, string(f))...)
	}
	return errs
}
