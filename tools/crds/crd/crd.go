package crd

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	planner "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Definition is a CustomResourceDefinition of apiextensions.k8s.io/v1, as far as ours go.
type Definition struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   Metadata       `json:"metadata"`
	Spec       DefinitionSpec `json:"spec"`
}

// Metadata of a Definition.
type Metadata struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
}

// DefinitionSpec is what a Definition defines.
type DefinitionSpec struct {
	Group    string    `json:"group"`
	Names    Names     `json:"names"`
	Scope    string    `json:"scope"`
	Versions []Version `json:"versions"`
}

// Names of a kind.
type Names struct {
	Plural     string   `json:"plural"`
	Singular   string   `json:"singular"`
	Kind       string   `json:"kind"`
	ListKind   string   `json:"listKind"`
	ShortNames []string `json:"shortNames,omitempty"`
	Categories []string `json:"categories,omitempty"`
}

// Version of a kind.
type Version struct {
	Name                     string            `json:"name"`
	Served                   bool              `json:"served"`
	Storage                  bool              `json:"storage"`
	Schema                   Validation        `json:"schema"`
	Subresources             *Subresources     `json:"subresources,omitempty"`
	SelectableFields         []SelectableField `json:"selectableFields,omitempty"`
	AdditionalPrinterColumns []PrinterColumn   `json:"additionalPrinterColumns,omitempty"`
}

// Validation holds a schema.
type Validation struct {
	OpenAPIV3Schema *Schema `json:"openAPIV3Schema"`
}

// Subresources of a kind.
type Subresources struct {
	Status *struct{} `json:"status,omitempty"`
}

// SelectableField is a field by which lists and watches can be narrowed.
type SelectableField struct {
	JSONPath string `json:"jsonPath"`
}

// PrinterColumn of a table.
type PrinterColumn struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Format      string `json:"format,omitempty"`
	Description string `json:"description,omitempty"`
	Priority    int32  `json:"priority,omitempty"`
	JSONPath    string `json:"jsonPath"`
}

// further versions of a kind that are served as well, with the same fields.
var further = map[schema.GroupKind][]string{
	mcs.Kind("ServiceExport"): {"v1alpha1"},
	mcs.Kind("ServiceImport"): {"v1alpha1"},
}

// Descriptors of the kinds that are CustomResourceDefinitions in a cluster. A GlobalSecret is
// none: there it is a Secret of type mesh.proxima.dev/global in namespace proxima-system.
func Descriptors() []*resource.Descriptor {
	groups := []string{mesh.GroupName, planner.GroupName, mcs.GroupName}
	return slices.DeleteFunc(kind.All(), func(d *resource.Descriptor) bool {
		return !slices.Contains(groups, d.GVK.Group) || d == kind.GlobalSecret
	})
}

// All makes the definitions, in the order of the descriptors. An error is a mistake of a
// table of this package: a limit of a field that does not exist, a column without a path.
func All() ([]*Definition, error) {
	b := newBuilder()
	var out []*Definition
	for _, d := range Descriptors() {
		def, err := b.definition(d)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.GVK.Kind, err)
		}
		out = append(out, def)
	}
	return out, b.unused()
}

func (b *builder) definition(d *resource.Descriptor) (*Definition, error) {
	root, err := b.root(d)
	if err != nil {
		return nil, err
	}
	columns, err := columnsOf(d)
	if err != nil {
		return nil, err
	}
	scope := "Cluster"
	if d.Namespaced {
		scope = "Namespaced"
	}
	version := Version{
		Name: d.GVK.Version, Served: true, Storage: true, Schema: Validation{root},
		SelectableFields: selectable(d), AdditionalPrinterColumns: columns,
	}
	if d.Status {
		version.Subresources = &Subresources{Status: &struct{}{}}
	}
	versions := []Version{version}
	for _, name := range further[d.GVK.GroupKind()] {
		other := version
		other.Name, other.Storage = name, false
		versions = append(versions, other)
	}
	return &Definition{
		APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition",
		Metadata: Metadata{
			Name:   d.Resource + "." + d.GVK.Group,
			Labels: map[string]string{"app.kubernetes.io/name": "proxima", "app.kubernetes.io/component": "crds"},
		},
		Spec: DefinitionSpec{
			Group: d.GVK.Group, Scope: scope, Versions: versions,
			Names: Names{
				Plural: d.Resource, Singular: d.Singular, Kind: d.GVK.Kind, ListKind: d.GVK.Kind + "List",
				// "all" is for what runs; an API server shows a kind of ours there as well.
				ShortNames: d.ShortNames, Categories: d.Categories,
			},
		},
	}, nil
}

// selectable fields of a kind but those of the metadata, which every kind has.
func selectable(d *resource.Descriptor) []SelectableField {
	if d.Fields == nil {
		return nil
	}
	var out []SelectableField
	for name := range d.Fields(d.New()) {
		if !strings.HasPrefix(name, "metadata.") {
			out = append(out, SelectableField{"." + name})
		}
	}
	slices.SortFunc(out, func(a, b SelectableField) int { return strings.Compare(a.JSONPath, b.JSONPath) })
	return out
}
