package topology

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// noZone is where endpoints without a zone are in plans: far from everywhere.
const noZone = plannerv1alpha1.NoZone

// atlas makes planner topologies and keeps them: services whose zones and costs are
// the same share one, so plans of the same service can be compared by it.
type atlas struct {
	// site of this control plane; empty: there are no others, so that costs that name
	// unknown zones are a mistake.
	site    locality.Site
	cluster *cluster
	costs   map[string]*meshv1alpha1.ZoneCosts
	made    map[string]*frame
	// unusable ZoneCosts, and why. What costs has of them are the last good ones.
	unusable map[string]string
}

// take a ZoneCosts in; nil: it is gone. The API refuses what cannot be planned with, but
// objects come from elsewhere, too.
func (a *atlas) take(name string, object *meshv1alpha1.ZoneCosts) {
	delete(a.unusable, name)
	if object == nil {
		delete(a.costs, name)
		return
	}
	if problem := unusable(&object.Spec); problem != "" {
		a.unusable[name] = problem
		return
	}
	a.costs[name] = object
}

// unusable says which cost the planner would refuse, if any.
func unusable(spec *meshv1alpha1.ZoneCostsSpec) (problem string) {
	check := func(what string, cost float64) {
		trial := planner.Costs{Matrix: [][]float64{{0, cost}, {0, 0}}}
		if _, err := planner.NewTopology([]planner.Zone{{Name: "a"}, {Name: "b"}}, trial); err != nil && problem == "" {
			problem = fmt.Sprintf("the cost %s is %g", what, cost)
		}
	}
	if spec.Region != nil {
		check("within a region", *spec.Region)
	}
	if spec.World != nil {
		check("beyond", *spec.World)
	}
	if spec.Site != nil {
		check("to another site", *spec.Site)
	}
	for _, p := range spec.Pairs {
		check("from "+p.From+" to "+p.To, p.Cost)
	}
	return problem
}

// forget what was made, as nodes or costs have changed.
func (a *atlas) forget() { a.made = map[string]*frame{} }

// frame for the zones of the cluster and those of some endpoints. problem says
// why other costs hold than those asked for, or what of them does not fit the zones.
func (a *atlas) frame(costs string, endpoints map[locality.Zone]int64) (f *frame, problem string, err error) {
	zones := a.zones(endpoints)
	table, problem := a.table(costs, zones)
	key := costs + "\x00" + names(zones)
	if f := a.made[key]; f != nil {
		return f, problem, nil
	}
	t, err := planner.NewTopology(zones, table.costs(zones))
	if err != nil {
		return nil, problem, err
	}
	f = newFrame(t, a.cluster)
	a.made[key] = f
	return f, problem, nil
}

func names(zones []planner.Zone) string {
	var b strings.Builder
	for _, z := range zones {
		b.WriteString(string(z.Name))
		b.WriteByte(0)
	}
	return b.String()
}

// zones of the cluster and of endpoints, ascending. An endpoint's zone without nodes
// has no region that anybody knows.
func (a *atlas) zones(endpoints map[locality.Zone]int64) []planner.Zone {
	zones := slices.Clip(a.cluster.zones)
	for _, name := range sortedKeys(endpoints) {
		i, ok := slices.BinarySearchFunc(zones, name, func(z planner.Zone, name locality.Zone) int { return cmp.Compare(z.Name, name) })
		if !ok {
			zone := planner.Zone{Name: name, Region: regionOf(name)}
			if site, ok := plannerv1alpha1.SiteOf(string(name)); ok {
				zone.Site = locality.Site(site)
			}
			zones = slices.Insert(zones, i, zone)
		}
	}
	if len(zones) == 0 { // neither a node nor an endpoint names one
		zones = []planner.Zone{{Name: noZone, Region: noZone}}
	}
	return zones
}

// regionOf a zone that no node names: none, or for endpoints without a zone one of
// their own, so that they do not count as near.
func regionOf(zone locality.Zone) locality.Region {
	if zone == noZone {
		return noZone
	}
	return ""
}

// table of costs by name. What is not there is replaced by the default, and said.
func (a *atlas) table(name string, zones []planner.Zone) (t costTable, problem string) {
	object := a.costs[cmp.Or(name, DefaultCosts)]
	if why := a.unusable[cmp.Or(name, DefaultCosts)]; why != "" {
		problem = fmt.Sprintf("ZoneCosts %q cannot be used: %s; ", cmp.Or(name, DefaultCosts), why)
		if object != nil {
			problem += "its last good costs hold"
		} else {
			problem += "the default ones hold"
			object = a.costs[DefaultCosts]
		}
		if object == nil {
			return costTable{}, problem
		}
	}
	if object == nil {
		if name != "" {
			problem = fmt.Sprintf("%s=%q: there is no ZoneCosts of that name, the default ones hold", AnnotationCosts, name)
			object = a.costs[DefaultCosts]
		}
		if object == nil {
			return costTable{}, problem
		}
	}
	var unknown []string
	for _, p := range object.Spec.Pairs {
		for _, zone := range []string{p.From, p.To} {
			if a.site == "" && indexOf(zones, zone) < 0 && !slices.Contains(unknown, zone) {
				unknown = append(unknown, zone)
			}
		}
	}
	if unknown != nil && problem == "" {
		slices.Sort(unknown)
		problem = fmt.Sprintf("ZoneCosts %q names zones that there are not: %s", object.Name, strings.Join(unknown, ", "))
	}
	return costTable{&object.Spec}, problem
}

// costTable is the spec of a ZoneCosts, or none.
type costTable struct{ spec *meshv1alpha1.ZoneCostsSpec }

func (t costTable) costs(zones []planner.Zone) planner.Costs {
	if t.spec == nil {
		return planner.Costs{}
	}
	c := planner.Costs{Region: planner.DefaultRegionCost, World: planner.DefaultWorldCost}
	if t.spec.Region != nil {
		c.Region = *t.spec.Region
	}
	if t.spec.World != nil {
		c.World = *t.spec.World
	}
	c.Site = max(planner.DefaultSiteCost, c.World)
	if t.spec.Site != nil {
		c.Site = *t.spec.Site
	}
	if len(t.spec.Pairs) == 0 && c.World > 0 && c.Site > 0 {
		return c
	}
	// Costs of 0 everywhere are a matrix to the planner, whose levels they would leave
	// at their defaults.
	c.Matrix = make([][]float64, len(zones))
	for i, from := range zones {
		c.Matrix[i] = make([]float64, len(zones))
		for j, to := range zones {
			switch {
			case i == j:
			case from.Site != to.Site:
				c.Matrix[i][j] = c.Site
			case from.Region == to.Region:
				c.Matrix[i][j] = c.Region
			default:
				c.Matrix[i][j] = c.World
			}
		}
	}
	for _, p := range t.spec.Pairs {
		i, j := indexOf(zones, p.From), indexOf(zones, p.To)
		if i < 0 || j < 0 {
			continue
		}
		c.Matrix[i][j] = p.Cost
		if !p.OneWay {
			c.Matrix[j][i] = p.Cost
		}
	}
	return c
}

// indexOf the zone that a pair of costs names: the zone of that name, else the other site; -1:
// there is none.
func indexOf(zones []planner.Zone, name string) int {
	at := func(name locality.Zone) int {
		return slices.IndexFunc(zones, func(z planner.Zone) bool { return z.Name == name })
	}
	if i := at(locality.Zone(name)); i >= 0 {
		return i
	}
	return at(locality.Zone(plannerv1alpha1.SiteZone(name)))
}
