package crd_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitionvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/tools/crds/crd"
)

// server is what an API server makes of a definition.
type server struct {
	d          *resource.Descriptor
	definition *apiextensions.CustomResourceDefinition
	structural *structuralschema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

// servers of all definitions, by kind.
func servers(t *testing.T) map[string]*server {
	t.Helper()
	all, err := crd.All()
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	out := map[string]*server{}
	for i, d := range crd.Descriptors() {
		out[d.GVK.Kind] = newServer(t, scheme, d, all[i])
	}
	return out
}

func newServer(t *testing.T, scheme *runtime.Scheme, d *resource.Descriptor, of *crd.Definition) *server {
	t.Helper()
	text, err := yaml.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	var v1 apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &v1); err != nil {
		t.Fatalf("%s: %v", d.GVK.Kind, err)
	}
	scheme.Default(&v1)
	s := &server{d: d, definition: &apiextensions.CustomResourceDefinition{}}
	if err := scheme.Convert(&v1, s.definition, nil); err != nil {
		t.Fatal(err)
	}
	props := s.definition.Spec.Validation
	if props == nil {
		props = s.definition.Spec.Versions[0].Schema
	}
	if s.structural, err = structuralschema.NewStructural(props.OpenAPIV3Schema); err != nil {
		t.Fatalf("%s: %v", d.GVK.Kind, err)
	}
	if s.schema, _, err = validation.NewSchemaValidator(props.OpenAPIV3Schema); err != nil {
		t.Fatalf("%s: %v", d.GVK.Kind, err)
	}
	s.rules = cel.NewValidator(s.structural, true, celconfig.PerCallLimit)
	return s
}

// decode reads YAML as an API server reads JSON.
func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	if err := utiljson.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// admit prunes, defaults and checks an object as an API server does. old is nil for create.
func (s *server) admit(obj, old map[string]any) field.ErrorList {
	obj["apiVersion"], obj["kind"] = s.d.GVK.GroupVersion().String(), s.d.GVK.Kind
	pruning.PruneWithOptions(obj, s.structural, true, structuralschema.UnknownFieldPathOptions{})
	defaulting.PruneNonNullableNullsWithoutDefaults(obj, s.structural)
	defaulting.Default(obj, s.structural)
	var errs field.ErrorList
	if old == nil {
		meta := &unstructured.Unstructured{Object: obj}
		errs = metavalidation.ValidateObjectMetaAccessor(meta, s.d.Namespaced, metavalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
		errs = append(errs, validation.ValidateCustomResource(nil, obj, s.schema)...)
	} else {
		errs = validation.ValidateCustomResourceUpdate(nil, obj, old, s.schema)
	}
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, obj)...)
	var before any
	if old != nil {
		before = old
	}
	more, _ := s.rules.Validate(context.Background(), nil, s.structural, obj, before, celconfig.RuntimeCELCostBudget)
	return append(errs, more...)
}

// TestDefinitions: an API server takes each definition: the schema is structural, the rules
// compile, and their cost is bounded.
func TestDefinitions(t *testing.T) {
	for kind, s := range servers(t) {
		t.Run(kind, func(t *testing.T) {
			for _, err := range definitionvalidation.ValidateCustomResourceDefinition(context.Background(), s.definition) {
				t.Error(err)
			}
		})
	}
}

// TestDescriptions: kubectl explain has a text for each field.
func TestDescriptions(t *testing.T) {
	for kind, s := range servers(t) {
		t.Run(kind, func(t *testing.T) { described(t, "", s.structural) })
	}
}

func described(t *testing.T, path string, s *structuralschema.Structural) {
	t.Helper()
	for name, p := range s.Properties {
		if name == "metadata" && path == "" {
			continue // the server's own
		}
		if strings.TrimSpace(p.Description) == "" {
			t.Errorf("%s has no description", path+name)
		}
		described(t, path+name+".", &p)
		if p.Items != nil {
			described(t, path+name+"[].", p.Items)
		}
	}
}

// copyOf by JSON.
func copyOf(t *testing.T, obj any) map[string]any {
	t.Helper()
	data, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, string(data))
}
