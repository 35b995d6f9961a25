package kind

import (
	"fmt"
	"math"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	planner "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// TrafficPlan describes planner.mesh.proxima.dev/v1alpha1 TrafficPlan.
var TrafficPlan = &resource.Descriptor{
	GVK:        planner.SchemeGroupVersion.WithKind("TrafficPlan"),
	Resource:   "trafficplans",
	Singular:   "trafficplan",
	ShortNames: []string{"tp"},
	Categories: []string{"proxima"},
	Namespaced: true,

	New:     func() resource.Object { return &planner.TrafficPlan{} },
	NewList: func() runtime.Object { return &planner.TrafficPlanList{} },

	Prepare:  counted(func(p *planner.TrafficPlan) any { return p.Spec }),
	Validate: compare(validateTrafficPlan),
	Compact:  compactTrafficPlan,

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Mode", "The topology mode of the Service."),
		column("Ports", "The ports that are planned together, by address family."),
		column("In-Zone", "The share of connections that stay in their zone; of several groups of ports, the least."),
		column("Cost", "The mean cost of a connection; of several groups of ports, the highest."),
		column("Busiest", "The load of the busiest endpoint as a multiple of the mean; of several groups of ports, the highest."),
		column("Demand", "Where the demand comes from that the plan was made for."),
		column("Version", "How often a plan of the Service was published."),
		ageColumn(),
		wide("Outcome", "The outcome of planning, for each group of ports."),
		wide("Reason", "Why the plan was published, for each group of ports."),
	},
	Cells: of(trafficPlanCells),
}

// compactTrafficPlan: JSON is decoded into slices with spare capacity, and the names of zones
// are the same in all plans.
func compactTrafficPlan(obj resource.Object, share func(*string)) {
	spec := &obj.(*planner.TrafficPlan).Spec
	share(&spec.Mode)
	share(&spec.Parameters.Costs)
	share(&spec.Parameters.Hints)
	share(&spec.Parameters.Fallback)
	spec.Groups = fitted(spec.Groups)
	for i := range spec.Groups {
		g := &spec.Groups[i]
		share(&g.AddressType)
		share((*string)(&g.Outcome))
		share((*string)(&g.Reason))
		share((*string)(&g.DemandSource))
		g.Ports = fitted(g.Ports)
		for j := range g.Ports {
			share(&g.Ports[j])
		}
		g.Endpoints = fitted(g.Endpoints)
		for j := range g.Endpoints {
			g.Endpoints[j].Weights = fitted(g.Endpoints[j].Weights)
		}
		g.Zones = fitted(g.Zones)
		for j := range g.Zones {
			z := &g.Zones[j]
			share(&z.Name)
			share((*string)(&z.Reason))
			z.To = fitted(z.To)
			for k := range z.To {
				share(&z.To[k].Zone)
			}
		}
	}
}

// fitted is a slice without spare capacity.
func fitted[T any](s []T) []T {
	if len(s) == cap(s) {
		return s
	}
	return append(make([]T, 0, len(s)), s...)
}

func trafficPlanCells(p *planner.TrafficPlan) []any {
	var ports, demand, outcomes, reasons []string
	var worst *planner.Expectation
	add := func(list *[]string, value string) {
		if value != "" && (len(*list) == 0 || (*list)[len(*list)-1] != value) {
			*list = append(*list, value)
		}
	}
	for i := range p.Spec.Groups {
		g := &p.Spec.Groups[i]
		ports = append(ports, strings.Join(g.Ports, ",")+"/"+g.AddressType)
		add(&demand, string(g.DemandSource))
		add(&outcomes, string(g.Outcome))
		add(&reasons, string(g.Reason))
		switch e := g.Expected; {
		case e == nil:
		case worst == nil:
			worst = e.DeepCopy()
		default:
			worst.InZone, worst.Cost, worst.Busiest = min(worst.InZone, e.InZone), max(worst.Cost, e.Cost), max(worst.Busiest, e.Busiest)
		}
	}
	inZone, cost, busiest := none, none, none
	if worst != nil {
		inZone, cost, busiest = fmt.Sprintf("%.1f%%", 100*worst.InZone), fmt.Sprintf("%.2f", worst.Cost), fmt.Sprintf("%.2fx", worst.Busiest)
	}
	return []any{
		p.Name, p.Spec.Mode, list(ports), inZone, cost, busiest, list(demand), p.Spec.Version, age(p), list(outcomes), list(reasons),
	}
}

func list(words []string) string {
	if len(words) == 0 {
		return none
	}
	return strings.Join(words, " ")
}

// validateTrafficPlan holds what readers rely on: numbers they can calculate with, and
// weights for each zone.
func validateTrafficPlan(p, old *planner.TrafficPlan) field.ErrorList {
	var was metav1.Object
	if old != nil {
		was = old
	}
	errs := checkMeta(p, was, true, validation.NameIsDNSSubdomain)
	path := field.NewPath("spec")
	if p.Spec.Service == "" {
		errs = append(errs, field.Required(path.Child("service"), "must name the Service"))
	}
	if p.Spec.Version < 1 {
		errs = append(errs, field.Invalid(path.Child("version"), p.Spec.Version, "must be at least 1"))
	}
	for i := range p.Spec.Groups {
		errs = append(errs, checkPortGroup(path.Child("groups").Index(i), &p.Spec.Groups[i])...)
	}
	return errs
}

func checkPortGroup(path *field.Path, g *planner.PortGroup) field.ErrorList {
	var errs field.ErrorList
	if len(g.Ports) == 0 {
		errs = append(errs, field.Required(path.Child("ports"), "must name at least one port"))
	}
	for i, z := range g.Zones {
		at := path.Child("zones").Index(i)
		if i > 0 && z.Name <= g.Zones[i-1].Name {
			errs = append(errs, field.Invalid(at.Child("name"), z.Name, "must come after the name before it"))
		}
		if math.IsNaN(z.Demand) || z.Demand < 0 || z.Demand > 1 {
			errs = append(errs, field.Invalid(at.Child("demand"), fmt.Sprint(z.Demand), "must be from 0 to 1"))
		}
		for k, s := range z.To {
			if math.IsNaN(s.Share) || s.Share <= 0 || s.Share > 1 {
				errs = append(errs, field.Invalid(at.Child("to").Index(k).Child("share"), fmt.Sprint(s.Share), "must be above 0 and at most 1"))
			}
		}
	}
	for i, e := range g.Endpoints {
		if len(e.Weights) != len(g.Zones) {
			errs = append(errs, field.Invalid(path.Child("endpoints").Index(i).Child("weights"), len(e.Weights), "must be one for each zone"))
		}
	}
	return errs
}
