package crd

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/proxima-mesh/proxima/internal/apiserver/openapi"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Schema is a structural schema of OpenAPI v3, as far as ours go.
type Schema struct {
	Description          string             `json:"description,omitempty"`
	Type                 string             `json:"type,omitempty"`
	Format               string             `json:"format,omitempty"`
	Nullable             bool               `json:"nullable,omitempty"`
	Default              any                `json:"default,omitempty"`
	Enum                 []string           `json:"enum,omitempty"`
	Pattern              string             `json:"pattern,omitempty"`
	Minimum              *float64           `json:"minimum,omitempty"`
	ExclusiveMinimum     bool               `json:"exclusiveMinimum,omitempty"`
	Maximum              *float64           `json:"maximum,omitempty"`
	MinLength            *int64             `json:"minLength,omitempty"`
	MaxLength            *int64             `json:"maxLength,omitempty"`
	MinItems             *int64             `json:"minItems,omitempty"`
	MaxItems             *int64             `json:"maxItems,omitempty"`
	Required             []string           `json:"required,omitempty"`
	Properties           map[string]*Schema `json:"properties,omitempty"`
	Items                *Schema            `json:"items,omitempty"`
	AdditionalProperties *Schema            `json:"additionalProperties,omitempty"`
	IntOrString          bool               `json:"x-kubernetes-int-or-string,omitempty"`
	ListType             string             `json:"x-kubernetes-list-type,omitempty"`
	ListMapKeys          []string           `json:"x-kubernetes-list-map-keys,omitempty"`
	Rules                []Rule             `json:"x-kubernetes-validations,omitempty"`
}

// Rule is an expression in CEL that must hold.
type Rule struct {
	Rule    string `json:"rule"`
	Message string `json:"message"`
}

// builder makes schemas of the OpenAPI definitions.
type builder struct {
	models map[string]common.OpenAPIDefinition
	limits map[string]Schema
	// used are the keys of limits that were applied.
	used map[string]bool
}

func newBuilder() *builder {
	ref := func(name string) spec.Ref { return spec.MustCreateRef(name) }
	return &builder{models: openapi.GetOpenAPIDefinitions(ref), limits: limits(), used: map[string]bool{}}
}

// unused names limits that no schema took: their names are wrong.
func (b *builder) unused() error {
	for _, key := range slices.Sorted(maps.Keys(b.limits)) {
		if !b.used[key] {
			return fmt.Errorf("limit of %s: there is no such type or field", key)
		}
	}
	return nil
}

// root is the schema of a kind.
func (b *builder) root(d *resource.Descriptor) (*Schema, error) {
	named, ok := d.New().(interface{ OpenAPIModelName() string })
	if !ok {
		return nil, fmt.Errorf("no OpenAPI definition")
	}
	root, err := b.model(named.OpenAPIModelName())
	if err != nil {
		return nil, err
	}
	root.Properties["metadata"] = metadataOf(d)
	if s := root.Properties["spec"]; s != nil {
		switch {
		case len(s.Required) > 0: // what is needed in the spec is needed without one, too
			root.Required = add(root.Required, "spec")
		case hasDefault(s) && !slices.Contains(root.Required, "spec"):
			s.Default = map[string]any{}
		}
	}
	return root, nil
}

func add(list []string, name string) []string {
	if slices.Contains(list, name) {
		return list
	}
	return append(list, name)
}

// hasDefault reports whether a property of an object has a default.
func hasDefault(s *Schema) bool {
	for _, p := range s.Properties {
		if p.Default != nil {
			return true
		}
	}
	return false
}

// short is the last part of a model's name: that of its Go type.
func short(model string) string { return model[strings.LastIndexByte(model, '.')+1:] }

// model is the schema of a type.
func (b *builder) model(name string) (*Schema, error) {
	if name == (intstr.IntOrString{}).OpenAPIModelName() {
		return &Schema{IntOrString: true}, nil
	}
	def, ok := b.models[name]
	if !ok {
		return nil, fmt.Errorf("no OpenAPI definition of %s", name)
	}
	out, err := b.convert(&def.Schema)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for field, p := range out.Properties {
		b.limit(short(name)+"."+field, p)
	}
	b.limit(short(name), out)
	return out, nil
}

// convert a schema: references are replaced by what they refer to, and what structural
// schemas cannot have is left out.
func (b *builder) convert(in *spec.Schema) (*Schema, error) {
	if ref := in.Ref.String(); ref != "" {
		out, err := b.model(ref)
		if err == nil && in.Description != "" {
			out.Description = in.Description
		}
		return out, err
	}
	out := &Schema{Description: in.Description, Format: in.Format, Required: slices.Clone(in.Required)}
	if len(in.Type) == 1 {
		out.Type = in.Type[0]
	}
	// Zero values are not defaults: they are what Go reads where a field is missing.
	if v := reflect.ValueOf(in.Default); in.Default != nil && !v.IsZero() && (v.Kind() != reflect.Map || v.Len() > 0) {
		out.Default = in.Default
	}
	for _, v := range in.Enum {
		out.Enum = append(out.Enum, fmt.Sprint(v))
	}
	if t, ok := in.Extensions["x-kubernetes-list-type"].(string); ok {
		out.ListType = t
	}
	if keys, ok := in.Extensions["x-kubernetes-list-map-keys"].([]any); ok {
		for _, k := range keys {
			out.ListMapKeys = append(out.ListMapKeys, fmt.Sprint(k))
		}
	}
	return out, b.children(in, out)
}

func (b *builder) children(in *spec.Schema, out *Schema) (err error) {
	for name := range in.Properties {
		p := in.Properties[name]
		if len(p.AllOf) == 1 { // a reference with a description of its own
			p = p.AllOf[0]
			p.Description = in.Properties[name].Description
		}
		if out.Properties == nil {
			out.Properties = map[string]*Schema{}
		}
		if out.Properties[name], err = b.convert(&p); err != nil {
			return err
		}
		if slices.Contains(in.Required, name) {
			nullable(out.Properties[name])
		}
	}
	if in.Items != nil && in.Items.Schema != nil {
		if out.Items, err = b.convert(in.Items.Schema); err != nil {
			return err
		}
		out.Items.Default = nil
	}
	if in.AdditionalProperties != nil && in.AdditionalProperties.Schema != nil {
		out.AdditionalProperties, err = b.convert(in.AdditionalProperties.Schema)
	}
	return err
}

// nullable accepts null for a field that Go writes always, as null where it is empty: a
// list, and a time. Limits take that back where Validate refuses it.
func nullable(s *Schema) {
	s.Nullable = s.Type == "array" || s.Format == "date-time"
}

// limit applies what the tables say of a type or field.
func (b *builder) limit(key string, to *Schema) {
	if slices.Contains(neverNull, key) {
		to.Nullable = false
	}
	l, ok := b.limits[key]
	if !ok {
		return
	}
	b.used[key] = true
	overlay(&l, to)
	if to.MinItems != nil {
		to.Nullable = false
	}
}

// neverNull are times that Validate requires.
var neverNull = []string{"Condition.lastTransitionTime", "ZoneShiftSpec.until"}

// overlay sets what is set in from.
func overlay(from, to *Schema) {
	src, dst := reflect.ValueOf(from).Elem(), reflect.ValueOf(to).Elem()
	for i := range src.NumField() {
		switch f := src.Field(i); {
		case f.IsZero():
		case f.Type() == reflect.TypeFor[*Schema]():
			if dst.Field(i).IsNil() {
				dst.Field(i).Set(reflect.ValueOf(&Schema{}))
			}
			overlay(f.Interface().(*Schema), dst.Field(i).Interface().(*Schema))
		default:
			dst.Field(i).Set(f)
		}
	}
}

// metadataOf restricts names where they are more than DNS subdomains, which the API server
// checks by itself.
func metadataOf(d *resource.Descriptor) *Schema {
	s := &Schema{Type: "object"}
	if name, ok := names[d.GVK.Kind]; ok {
		s.Properties = map[string]*Schema{"name": {Type: "string", Pattern: name.pattern, MaxLength: ptr[int64](maxLabel)}}
	}
	return s
}

func ptr[T any](v T) *T { return &v }
