package kind

import (
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// VirtualIP describes mesh.proxima.dev/v1alpha1 VirtualIP. It stays in its zone: addresses
// of other zones mean nothing there.
var VirtualIP = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("VirtualIP"),
	Resource:   "virtualips",
	Singular:   "virtualip",
	ShortNames: []string{"vip"},
	Categories: []string{"proxima"},

	New:     func() resource.Object { return &mesh.VirtualIP{} },
	NewList: func() runtime.Object { return &mesh.VirtualIPList{} },

	Prepare:  counted(func(v *mesh.VirtualIP) any { return v.Spec }),
	Validate: compare(validateVirtualIP),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Host", "The name that has the addresses."),
		column("Addresses", "The virtual IPs."),
		column("Service", "The Service whose endpoints answer, and its port; without one, all its ports."),
		column("Mesh", "The mesh whose workloads resolve the name."),
		ageColumn(),
		wide("Unused", "How long ago the service went; the addresses are kept for an hour."),
	},
	Cells: of(func(v *mesh.VirtualIP) []any {
		unused := none
		if v.Spec.UnusedSince != nil {
			unused = since(v.Spec.UnusedSince.Time)
		}
		return []any{
			v.Name, v.Spec.Hostname + "." + meshname.Domain, strings.Join(v.Spec.Addresses, ","),
			virtualService(v), v.Spec.Mesh, age(v), unused,
		}
	}),
}

func virtualService(v *mesh.VirtualIP) string {
	if v.Spec.Port == 0 {
		return v.Spec.Namespace + "/" + v.Spec.Service
	}
	return fmt.Sprintf("%s/%s:%d", v.Spec.Namespace, v.Spec.Service, v.Spec.Port)
}

func validateVirtualIP(v, old *mesh.VirtualIP) field.ErrorList {
	errs := checkMetaOf(v, old, false, validation.NameIsDNSSubdomain)
	path := field.NewPath("spec")
	errs = append(errs, checkLabel(path.Child("mesh"), v.Spec.Mesh)...)
	if !meshname.Valid(v.Spec.Hostname) {
		errs = append(errs, field.Invalid(path.Child("hostname"), v.Spec.Hostname,
			"must be DNS labels of lower case letters, digits, '-' and '_'"))
	}
	errs = append(errs, checkVirtualAddresses(path.Child("addresses"), v.Spec.Addresses)...)
	errs = append(errs, checkLabel(path.Child("namespace"), v.Spec.Namespace)...)
	errs = append(errs, checkLabel(path.Child("service"), v.Spec.Service)...)
	if v.Spec.Port == 0 { // all ports
		return errs
	}
	return append(errs, checkPort(path.Child("port"), v.Spec.Port)...)
}

func checkVirtualAddresses(path *field.Path, addresses []string) field.ErrorList {
	if len(addresses) == 0 {
		return field.ErrorList{field.Required(path, "at least one address")}
	}
	var errs field.ErrorList
	families := set[bool]{}
	for i, text := range addresses {
		if bad := utilvalidation.IsValidIP(path.Index(i), text); len(bad) > 0 {
			errs = append(errs, bad...)
			continue
		}
		if a, err := netip.ParseAddr(text); err == nil && !families.add(a.Is4()) {
			errs = append(errs, field.Invalid(path, addresses, "may hold one address of each family"))
		}
	}
	return errs
}
