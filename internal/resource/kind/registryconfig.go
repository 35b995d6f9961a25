package kind

import (
	"crypto/md5" //nolint:gosec // it is part of the protocols of registries, and protects nothing
	"encoding/hex"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// RegistryConfig describes mesh.proxima.dev/v1alpha1 RegistryConfig.
var RegistryConfig = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("RegistryConfig"),
	Resource:   "registryconfigs",
	Singular:   "registryconfig",
	ShortNames: []string{"rcfg"},
	Categories: []string{"proxima"},
	Namespaced: true,
	Direction:  resource.Stays,

	New:     func() resource.Object { return &mesh.RegistryConfig{} },
	NewList: func() runtime.Object { return &mesh.RegistryConfigList{} },

	Default:  on(func(c *mesh.RegistryConfig) { fill(&c.Spec.Group, mesh.DefaultRegistryGroup) }),
	Prepare:  change(prepareRegistryConfig),
	Validate: compare(validateRegistryConfig),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Group", "The group of the entry."),
		column("Data ID", "The name of the entry in its group."),
		column("Type", "The type of the content."),
		column("Bytes", "The size of the content."),
		ageColumn(),
		wide("MD5", "By which clients compare."),
		wide("Versions", "How many earlier versions are kept."),
	},
	Cells: of(func(c *mesh.RegistryConfig) []any {
		return []any{
			c.Name, c.Spec.Group, c.Spec.DataID, orElse(c.Spec.Type, "text"), int64(len(c.Spec.Content)), age(c),
			orElse(c.Status.MD5, none), int64(len(c.Status.History)),
		}
	}),
}

// ContentMD5 is the MD5 by which clients of registries compare contents.
func ContentMD5(content string) string {
	sum := md5.Sum([]byte(content)) //nolint:gosec // as above
	return hex.EncodeToString(sum[:])
}

// prepareRegistryConfig keeps the earlier content, where it is another. The status is the control
// plane's alone.
func prepareRegistryConfig(c, old *mesh.RegistryConfig) {
	if old == nil {
		c.Generation = 1
		c.Status = mesh.RegistryConfigStatus{MD5: ContentMD5(c.Spec.Content)}
		return
	}
	c.Generation = old.Generation
	c.Status = *old.Status.DeepCopy()
	if sameEntry(&c.Spec, &old.Spec) {
		return
	}
	c.Generation++
	if c.Spec.Content == old.Spec.Content && c.Spec.Type == old.Spec.Type {
		return
	}
	c.Status.MD5 = ContentMD5(c.Spec.Content)
	c.Status.History = withVersion(c.Status.History, mesh.RegistryConfigVersion{
		Generation: old.Generation, Content: old.Spec.Content, Type: old.Spec.Type, MD5: ContentMD5(old.Spec.Content),
	})
}

func sameEntry(a, b *mesh.RegistryConfigSpec) bool {
	return a.Group == b.Group && a.DataID == b.DataID && a.Content == b.Content && a.Type == b.Type &&
		a.Application == b.Application && a.Description == b.Description && strings.Join(a.Tags, ",") == strings.Join(b.Tags, ",")
}

// withVersion adds the newest version at the front, and drops the oldest ones.
func withVersion(history []mesh.RegistryConfigVersion, v mesh.RegistryConfigVersion) []mesh.RegistryConfigVersion {
	out := []mesh.RegistryConfigVersion{}
	size := 0
	for _, version := range append([]mesh.RegistryConfigVersion{v}, history...) {
		if size += len(version.Content); size > mesh.MaxRegistryHistory || len(out) == mesh.MaxRegistryVersions {
			break
		}
		out = append(out, version)
	}
	return out
}

const maxRegistryName = 256

// SecretDataID begins the names of entries that are Secrets, as Nacos names what its clients encrypt.
const SecretDataID = "cipher-"

func validateRegistryConfig(c, old *mesh.RegistryConfig) field.ErrorList {
	var was metav1.Object
	if old != nil {
		was = old
	}
	errs := checkMeta(c, was, true, validation.NameIsDNSSubdomain)
	spec := field.NewPath("spec")
	for _, f := range []struct{ name, value string }{{"group", c.Spec.Group}, {"dataId", c.Spec.DataID}} {
		switch {
		case f.value == "":
			errs = append(errs, field.Required(spec.Child(f.name), ""))
		case len(f.value) > maxRegistryName:
			errs = append(errs, field.TooLong(spec.Child(f.name), "", maxRegistryName))
		}
	}
	if strings.HasPrefix(c.Spec.DataID, SecretDataID) {
		errs = append(errs, field.Invalid(spec.Child("dataId"), c.Spec.DataID, "an entry whose name begins with "+SecretDataID+
			" is a Secret: publish it by a client of the registry"))
	}
	if n := len(c.Spec.Content); n > mesh.MaxRegistryContent {
		errs = append(errs, field.Invalid(spec.Child("content"), fmt.Sprintf("%d bytes", n), fmt.Sprintf("must have at most %d bytes", mesh.MaxRegistryContent)))
	}
	if old != nil {
		errs = append(errs, validation.ValidateImmutableField(c.Spec.Group, old.Spec.Group, spec.Child("group"))...)
		errs = append(errs, validation.ValidateImmutableField(c.Spec.DataID, old.Spec.DataID, spec.Child("dataId"))...)
	}
	return errs
}
