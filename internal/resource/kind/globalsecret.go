package kind

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// GlobalSecret describes mesh.proxima.dev/v1alpha1 GlobalSecret: a Secret of no
// namespace, by the same rules.
var GlobalSecret = &resource.Descriptor{
	GVK:       mesh.SchemeGroupVersion.WithKind("GlobalSecret"),
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

func defaultGlobalSecret(s *mesh.GlobalSecret) {
	fill(&s.Type, mesh.SecretTypeOpaque)
	foldStringData(&s.Data, &s.StringData)
}

func validateGlobalSecret(s, old *mesh.GlobalSecret) field.ErrorList {
	now := secretContent{s, s.Type, s.Data, s.Immutable}
	if old == nil {
		return checkSecret(now, nil, false)
	}
	return checkSecret(now, &secretContent{old, old.Type, old.Data, old.Immutable}, false)
}
