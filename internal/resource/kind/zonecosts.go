package kind

import (
	"fmt"
	"math"
	"regexp"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Defaults of costs by level, and the limit of any: those of package planner, which
// a test compares.
const (
	defaultRegionCost = 1
	defaultWorldCost  = 10
	defaultSiteCost   = 100
	maxZoneCost       = 1e9
	// maxZonePairs: a full matrix of 64 zones, which is as many as hints can name.
	maxZonePairs = 64 * 64
)

// ZoneCosts describes mesh.proxima.dev/v1alpha1 ZoneCosts.
var ZoneCosts = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("ZoneCosts"),
	Resource:   "zonecosts",
	Singular:   "zonecosts",
	Categories: []string{"proxima"},
	Direction:  resource.GlobalToZone,
	Status:     true,

	New:     func() resource.Object { return &mesh.ZoneCosts{} },
	NewList: func() runtime.Object { return &mesh.ZoneCostsList{} },

	Default:  on(defaultZoneCosts),
	Prepare:  zoneCostsParts.prepare,
	Validate: compare(validateZoneCosts),

	PrepareStatus:  zoneCostsParts.prepareStatus,
	ValidateStatus: compare(validateZoneCostsStatus),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Region", "The cost between two zones of one region."),
		column("World", "The cost between zones of different regions."),
		column("Site", "The cost from a zone to another site."),
		column("Pairs", "The number of pairs of zones with costs of their own."),
		policyColumn(),
		ageColumn(),
		servicesColumn(),
	},
	Cells: of(func(c *mesh.ZoneCosts) []any {
		return []any{
			c.Name, costCell(c.Spec.Region), costCell(c.Spec.World), costCell(c.Spec.Site), len(c.Spec.Pairs), policyCell(&c.Status), age(c),
			c.Status.Services,
		}
	}),
}

var zoneCostsParts = parts[*mesh.ZoneCosts, mesh.ZoneCostsSpec, mesh.PolicyStatus](
	func(c *mesh.ZoneCosts) (*mesh.ZoneCostsSpec, *mesh.PolicyStatus) { return &c.Spec, &c.Status })

func validateZoneCostsStatus(c, old *mesh.ZoneCosts) field.ErrorList {
	return append(checkMeta(c, old, false, validation.NameIsDNSSubdomain), checkPolicyStatus(&c.Status)...)
}

func costCell(c *float64) string {
	if c == nil {
		return none
	}
	return fmt.Sprintf("%g", *c)
}

func defaultZoneCosts(c *mesh.ZoneCosts) {
	if c.Spec.Region == nil {
		c.Spec.Region = new(float64(defaultRegionCost))
	}
	if c.Spec.World == nil {
		c.Spec.World = new(max(float64(defaultWorldCost), *c.Spec.Region))
	}
	if c.Spec.Site == nil {
		c.Spec.Site = new(min(max(float64(defaultSiteCost), *c.Spec.World), maxZoneCost))
	}
}

func validateZoneCosts(c, old *mesh.ZoneCosts) field.ErrorList {
	var was metav1.Object
	if old != nil {
		was = old
	}
	errs := checkMeta(c, was, false, validation.NameIsDNSSubdomain)
	path := field.NewPath("spec")
	if c.Spec.Region != nil {
		errs = append(errs, checkCost(path.Child("region"), *c.Spec.Region)...)
	}
	if c.Spec.World != nil {
		errs = append(errs, checkCost(path.Child("world"), *c.Spec.World)...)
	}
	if c.Spec.Region != nil && c.Spec.World != nil && *c.Spec.Region > *c.Spec.World {
		errs = append(errs, field.Invalid(path.Child("region"), *c.Spec.Region, "must not be above the cost of `world`"))
	}
	if c.Spec.Site != nil {
		errs = append(errs, checkCost(path.Child("site"), *c.Spec.Site)...)
	}
	if len(errs) == 0 && c.Spec.World != nil && c.Spec.Site != nil && *c.Spec.World > *c.Spec.Site {
		errs = append(errs, field.Invalid(path.Child("world"), *c.Spec.World, "must not be above the cost of `site`"))
	}
	errs = append(errs, checkZonePrice(path.Child("price"), c.Spec.Price)...)
	return append(errs, checkCostPairs(path.Child("pairs"), c.Spec.Pairs, c.Spec.Price != nil)...)
}

var currencyCode = regexp.MustCompile(`^[A-Z]{3}$`) // ISO 4217

// maxZonePrice of a GB in any currency: package topology has the same.
const maxZonePrice = 1e6

func checkZonePrice(path *field.Path, p *mesh.ZonePrice) (errs field.ErrorList) {
	if p == nil {
		return nil
	}
	if !currencyCode.MatchString(p.Currency) {
		errs = append(errs, field.Invalid(path.Child("currency"), p.Currency, "must be an ISO 4217 code such as EUR"))
	}
	errs = append(errs, checkPrice(path.Child("region"), p.Region)...)
	errs = append(errs, checkPrice(path.Child("world"), p.World)...)
	if p.Site != nil {
		errs = append(errs, checkPrice(path.Child("site"), *p.Site)...)
	}
	return errs
}

func checkPrice(path *field.Path, price float64) field.ErrorList {
	if math.IsNaN(price) || price < 0 || price > maxZonePrice {
		return field.ErrorList{field.Invalid(path, fmt.Sprint(price), fmt.Sprintf("must be from 0 to %d", int64(maxZonePrice)))}
	}
	return nil
}

func checkCostPairs(path *field.Path, pairs []mesh.ZoneCostsPair, priced bool) field.ErrorList {
	if len(pairs) > maxZonePairs {
		return field.ErrorList{field.TooMany(path, len(pairs), maxZonePairs)}
	}
	var errs field.ErrorList
	type way struct{ from, to string }
	seen := set[way]{}
	for i, p := range pairs {
		at := path.Index(i)
		errs = append(errs, checkZoneName(at.Child("from"), p.From)...)
		errs = append(errs, checkZoneName(at.Child("to"), p.To)...)
		errs = append(errs, checkCost(at.Child("cost"), p.Cost)...)
		if p.Price != nil {
			errs = append(errs, checkPrice(at.Child("price"), *p.Price)...)
			if !priced {
				errs = append(errs, field.Forbidden(at.Child("price"), "needs a currency in `spec.price`"))
			}
		}
		fresh := seen.add(way{p.From, p.To})
		if !p.OneWay && p.From != p.To {
			fresh = seen.add(way{p.To, p.From}) && fresh
		}
		if !fresh {
			errs = append(errs, field.Duplicate(at, p.From+" to "+p.To))
		}
	}
	return errs
}

func checkZoneName(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "must name a zone")}
	}
	return invalid(path, name, utilvalidation.IsValidLabelValue(name))
}

// checkCost also refuses what JSON cannot express, as objects come in other ways too.
func checkCost(path *field.Path, cost float64) field.ErrorList {
	if math.IsNaN(cost) || cost < 0 || cost > maxZoneCost {
		return field.ErrorList{field.Invalid(path, fmt.Sprint(cost), fmt.Sprintf("must be from 0 to %d", int64(maxZoneCost)))}
	}
	return nil
}
