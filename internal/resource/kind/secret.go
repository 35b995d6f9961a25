package kind

import (
	"encoding/json"
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

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Secret describes v1 Secret.
var Secret = &resource.Descriptor{
	GVK:        corev1.SchemeGroupVersion.WithKind("Secret"),
	Resource:   "secrets",
	Singular:   "secret",
	Namespaced: true,
	Direction:  resource.GlobalToZone,

	New:     func() resource.Object { return &corev1.Secret{} },
	NewList: func() runtime.Object { return &corev1.SecretList{} },

	Default:  on(defaultSecret),
	Validate: compare(validateSecret),

	Fields: of(func(s *corev1.Secret) fields.Set { return fields.Set{"type": string(s.Type)} }),
	Columns: []metav1.TableColumnDefinition{
		nameColumn(), column("Type", secretDoc["type"]), column("Data", secretDoc["data"]), ageColumn(),
	},
	Cells: of(func(s *corev1.Secret) []any {
		return []any{s.Name, string(s.Type), int64(len(s.Data)), age(s)}
	}),
}

var secretDoc = corev1.Secret{}.SwaggerDoc()

// defaultSecret also folds the write-only stringData into data, so that it is
// never stored or read back.
func defaultSecret(s *corev1.Secret) {
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
	foldStringData(&s.Data, &s.StringData)
}

// foldStringData moves what was given as text into data.
func foldStringData(data *map[string][]byte, text *map[string]string) {
	if len(*text) > 0 && *data == nil {
		*data = map[string][]byte{}
	}
	for k, v := range *text {
		(*data)[k] = []byte(v)
	}
	*text = nil
}

func validateSecret(s, old *corev1.Secret) field.ErrorList {
	now := secretContent{s, string(s.Type), s.Data, s.Immutable}
	var before *secretContent
	if old != nil {
		before = &secretContent{old, string(old.Type), old.Data, old.Immutable}
	}
	return append(checkSecret(now, before, true), checkSecretType(s, field.NewPath("data"))...)
}

// secretContent is what Secret and GlobalSecret have in common.
type secretContent struct {
	meta      resource.Object
	kind      string
	data      map[string][]byte
	immutable *bool
}

// checkSecret holds the rules that do not depend on the type. old is nil when it is
// created.
func checkSecret(s secretContent, old *secretContent, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("data")
	if old == nil {
		errs = checkMeta(s.meta, nil, namespaced, validation.NameIsDNSSubdomain)
	} else {
		errs = checkMeta(s.meta, old.meta, namespaced, validation.NameIsDNSSubdomain)
		errs = append(errs, validation.ValidateImmutableField(s.kind, old.kind, field.NewPath("type"))...)
		if old.immutable != nil && *old.immutable {
			errs = append(errs, checkFrozen(s.immutable, frozen{path, equality.Semantic.DeepEqual(s.data, old.data)})...)
		}
	}
	size := 0
	for _, k := range slices.Sorted(maps.Keys(s.data)) {
		errs = append(errs, invalid(path.Key(k), k, utilvalidation.IsConfigMapKey(k))...)
		size += len(s.data[k])
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(path, "", corev1.MaxSecretSize))
	}
	return errs
}

// checkSecretType checks that a Secret of a known type has what the type promises.
func checkSecretType(s *corev1.Secret, path *field.Path) field.ErrorList {
	require := func(keys ...string) field.ErrorList {
		var errs field.ErrorList
		for _, k := range keys {
			if _, ok := s.Data[k]; !ok {
				errs = append(errs, field.Required(path.Key(k), ""))
			}
		}
		return errs
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			return field.ErrorList{field.Required(
				field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), "")}
		}
	case corev1.SecretTypeDockercfg:
		return checkJSON(s, path, corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		return checkJSON(s, path, corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		// Either alone is enough.
		if missing := require(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey); len(missing) == 2 {
			return missing
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			return field.ErrorList{field.Required(path.Key(corev1.SSHAuthPrivateKey), "")}
		}
	case corev1.SecretTypeTLS:
		return require(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	return nil
}

func checkJSON(s *corev1.Secret, path *field.Path, key string) field.ErrorList {
	raw, ok := s.Data[key]
	if !ok {
		return field.ErrorList{field.Required(path.Key(key), "")}
	}
	if err := json.Unmarshal(raw, &map[string]any{}); err != nil {
		return field.ErrorList{field.Invalid(path.Key(key), "<secret contents redacted>", err.Error())}
	}
	return nil
}
