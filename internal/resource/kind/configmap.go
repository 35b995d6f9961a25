package kind

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// ConfigMap describes v1 ConfigMap.
var ConfigMap = &resource.Descriptor{
	GVK:        corev1.SchemeGroupVersion.WithKind("ConfigMap"),
	Resource:   "configmaps",
	Singular:   "configmap",
	ShortNames: []string{"cm"},
	Namespaced: true,

	New:     func() resource.Object { return &corev1.ConfigMap{} },
	NewList: func() runtime.Object { return &corev1.ConfigMapList{} },

	Default: on(func(c *corev1.ConfigMap) {
		if c.Data == nil {
			c.Data = map[string]string{}
		}
	}),
	Validate: compare(validateConfigMap),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(), column("Data", corev1.ConfigMap{}.SwaggerDoc()["data"]), ageColumn(),
	},
	Cells: of(func(c *corev1.ConfigMap) []any {
		return []any{c.Name, int64(len(c.Data) + len(c.BinaryData)), age(c)}
	}),
}

func validateConfigMap(c, old *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	data, binary := field.NewPath("data"), field.NewPath("binaryData")
	if old == nil {
		errs = checkMeta(c, nil, true, validation.NameIsDNSSubdomain)
	} else {
		errs = checkMeta(c, old, true, validation.NameIsDNSSubdomain)
		if old.Immutable != nil && *old.Immutable {
			errs = append(errs, checkFrozen(c.Immutable,
				frozen{data, equality.Semantic.DeepEqual(c.Data, old.Data)},
				frozen{binary, equality.Semantic.DeepEqual(c.BinaryData, old.BinaryData)})...)
		}
	}
	size := 0
	for _, k := range slices.Sorted(maps.Keys(c.Data)) {
		errs = append(errs, invalid(data.Key(k), k, utilvalidation.IsConfigMapKey(k))...)
		if _, ok := c.BinaryData[k]; ok {
			errs = append(errs, field.Invalid(data.Key(k), k, "duplicate of key present in binaryData"))
		}
		size += len(c.Data[k])
	}
	for _, k := range slices.Sorted(maps.Keys(c.BinaryData)) {
		errs = append(errs, invalid(binary.Key(k), k, utilvalidation.IsConfigMapKey(k))...)
		size += len(c.BinaryData[k])
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	return errs
}

// frozen is a field of an immutable object, and whether a write leaves it alone.
type frozen struct {
	path *field.Path
	same bool
}

// checkFrozen refuses changes of an object that was made immutable: neither its
// content nor the promise itself can be taken back.
func checkFrozen(immutable *bool, content ...frozen) field.ErrorList {
	const message = "field is immutable when `immutable` is set"
	var errs field.ErrorList
	if immutable == nil || !*immutable {
		errs = append(errs, field.Forbidden(field.NewPath("immutable"), message))
	}
	for _, c := range content {
		if !c.same {
			errs = append(errs, field.Forbidden(c.path, message))
		}
	}
	return errs
}
