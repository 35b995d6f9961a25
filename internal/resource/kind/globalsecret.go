package kind

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// GlobalSecret describes mesh.proxima.dev/v1alpha1 GlobalSecret: a Secret of no
// namespace, by the same rules.
func GlobalSecret() *resource.Descriptor {
	return &resource.Descriptor{
		Kind:      mesh.SchemeGroupVersion.WithKind("GlobalSecret"),
		Resource:  "globalsecrets",
		Singular:  "globalsecret",
		Direction: resource.GlobalToZone,

		New:     func() resource.Object { return &mesh.GlobalSecret{} },
		NewList: func() runtime.Object { return &mesh.GlobalSecretList{} },

		Default:  on(defaultGlobalSecret),
		Validate: compare(validateGlobalSecret),

		Fields: of(func(s *mesh.GlobalSecret) fields.Set { return fields.Set{"type": s.Type} }),
		Columns: []metav1.TableColumnDefinition{
			nameColumn(), column("Type", "What the secret is for."), column("Data", "How many values it has."), ageColumn(),
		},
		Cells: of(func(s *mesh.GlobalSecret) []any {
			return []any{s.Name, s.Type, int64(len(s.Data)), age(s)}
		}),
	}
}

func defaultGlobalSecret(s *mesh.GlobalSecret) {
	fill(&s.Type, mesh.SecretTypeOpaque)
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = map[string][]byte{}
	}
	for k, v := range s.StringData {
		s.Data[k] = []byte(v)
	}
	s.StringData = nil
}

func validateGlobalSecret(s, old *mesh.GlobalSecret) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("data")
	if old == nil {
		errs = checkMeta(s, nil, false, validation.NameIsDNSSubdomain)
	} else {
		errs = checkMeta(s, old, false, validation.NameIsDNSSubdomain)
		errs = append(errs, validation.ValidateImmutableField(s.Type, old.Type, field.NewPath("type"))...)
		if old.Immutable != nil && *old.Immutable {
			errs = append(errs, checkFrozen(s.Immutable, frozen{path, equality.Semantic.DeepEqual(s.Data, old.Data)})...)
		}
	}
	size := 0
	for _, k := range slices.Sorted(maps.Keys(s.Data)) {
		errs = append(errs, invalid(path.Key(k), k, utilvalidation.IsConfigMapKey(k))...)
		size += len(s.Data[k])
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(path, "", corev1.MaxSecretSize))
	}
	return errs
}
