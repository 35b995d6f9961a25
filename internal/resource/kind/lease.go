package kind

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Lease describes coordination.k8s.io/v1 Lease. Coordinated leader election is
// off, as in Kubernetes by default, and its fields are dropped.
var Lease = &resource.Descriptor{
	GVK:            coordinationv1.SchemeGroupVersion.WithKind("Lease"),
	Resource:       "leases",
	Singular:       "lease",
	Namespaced:     true,
	CreateOnUpdate: true,

	New:     func() resource.Object { return &coordinationv1.Lease{} },
	NewList: func() runtime.Object { return &coordinationv1.LeaseList{} },

	Prepare: change(func(l, _ *coordinationv1.Lease) {
		l.Spec.Strategy, l.Spec.PreferredHolder = nil, nil
	}),
	Validate: compare(validateLease),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Holder", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"]),
		ageColumn(),
	},
	Cells: of(func(l *coordinationv1.Lease) []any {
		holder := ""
		if l.Spec.HolderIdentity != nil {
			holder = *l.Spec.HolderIdentity
		}
		return []any{l.Name, holder, age(l)}
	}),
}

func validateLease(l, old *coordinationv1.Lease) field.ErrorList {
	var errs field.ErrorList
	if old == nil {
		errs = checkMeta(l, nil, true, validation.NameIsDNSSubdomain)
	} else {
		errs = checkMeta(l, old, true, validation.NameIsDNSSubdomain)
	}
	path := field.NewPath("spec")
	if d := l.Spec.LeaseDurationSeconds; d != nil && *d <= 0 {
		errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), *d, "must be greater than 0"))
	}
	if n := l.Spec.LeaseTransitions; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(path.Child("leaseTransitions"), *n, "must be greater than or equal to 0"))
	}
	return errs
}
