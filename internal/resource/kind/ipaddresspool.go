package kind

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/addresspool"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// What an IPAddressPool may hold at most: it is searched for each Service.
const (
	maxPoolRanges     = 100
	maxPoolNamespaces = 100
)

// IPAddressPool describes mesh.proxima.dev/v1alpha1 IPAddressPool. It stays in its zone:
// addresses are routed to machines of one place.
var IPAddressPool = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("IPAddressPool"),
	Resource:   "ipaddresspools",
	Singular:   "ipaddresspool",
	Categories: []string{"proxima"},
	Status:     true,

	New:     func() resource.Object { return &mesh.IPAddressPool{} },
	NewList: func() runtime.Object { return &mesh.IPAddressPoolList{} },

	Default:       on(defaultIPAddressPool),
	Prepare:       ipAddressPoolParts.prepare,
	PrepareStatus: ipAddressPoolParts.prepareStatus,
	Validate:      compare(validateIPAddressPool),
	ValidateStatus: compare(func(p, old *mesh.IPAddressPool) field.ErrorList {
		return checkMeta(p, old, false, validation.NameIsDNSSubdomain)
	}),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Addresses", "Networks, ranges and addresses of the pool."),
		column("Assigned", "How many addresses Services have."),
		column("Auto-Assign", "Whether Services that name no pool get its addresses."),
		ageColumn(),
		wide("Namespaces", "The namespaces whose Services get its addresses; none: all."),
	},
	Cells: of(func(p *mesh.IPAddressPool) []any {
		namespaces := none
		if len(p.Spec.Namespaces) > 0 {
			namespaces = strings.Join(p.Spec.Namespaces, ",")
		}
		return []any{
			p.Name, strings.Join(p.Spec.Addresses, ","), p.Status.Assigned,
			p.Spec.AutoAssign == nil || *p.Spec.AutoAssign, age(p), namespaces,
		}
	}),
}

var ipAddressPoolParts = parts[*mesh.IPAddressPool, mesh.IPAddressPoolSpec, mesh.IPAddressPoolStatus](
	func(p *mesh.IPAddressPool) (*mesh.IPAddressPoolSpec, *mesh.IPAddressPoolStatus) {
		return &p.Spec, &p.Status
	})

func defaultIPAddressPool(p *mesh.IPAddressPool) {
	if p.Spec.AutoAssign == nil {
		p.Spec.AutoAssign = new(true)
	}
}

func validateIPAddressPool(p, old *mesh.IPAddressPool) field.ErrorList {
	errs := checkMetaOf(p, old, false, validation.NameIsDNSSubdomain)
	path := field.NewPath("spec", "addresses")
	switch n := len(p.Spec.Addresses); {
	case n == 0:
		errs = append(errs, field.Required(path, "at least one address"))
	case n > maxPoolRanges:
		return append(errs, field.TooMany(path, n, maxPoolRanges))
	}
	ranges := map[addresspool.Range]string{}
	for i, text := range p.Spec.Addresses {
		r, err := addresspool.ParseRange(text)
		if err != nil {
			errs = append(errs, field.Invalid(path.Index(i), text, err.Error()))
			continue
		}
		if r.First.IsLoopback() || r.First.IsUnspecified() || r.First.IsMulticast() || r.First.IsLinkLocalUnicast() {
			errs = append(errs, field.Invalid(path.Index(i), text, "must not be unspecified, loopback, link-local or multicast addresses"))
		}
		for other, overlapped := range ranges {
			if r.Overlaps(other) {
				errs = append(errs, field.Invalid(path.Index(i), text, "overlaps "+overlapped))
				break
			}
		}
		ranges[r] = text
	}
	path = field.NewPath("spec", "namespaces")
	if n := len(p.Spec.Namespaces); n > maxPoolNamespaces {
		return append(errs, field.TooMany(path, n, maxPoolNamespaces))
	}
	names := set[string]{}
	for i, n := range p.Spec.Namespaces {
		errs = append(errs, checkLabel(path.Index(i), n)...)
		if !names.add(n) {
			errs = append(errs, field.Duplicate(path.Index(i), n))
		}
	}
	return errs
}
