package planner

import (
	"fmt"
	"math"
	"slices"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// MaxZones is the size at which a topology is refused. Plans are dense matrices;
// the largest deployments known have some dozens of zones.
const MaxZones = 512

// Costs of one connection by level, where home costs nothing. They are relative:
// what one zone boundary costs is the usual unit.
const (
	DefaultRegionCost = 1
	DefaultWorldCost  = 10
	DefaultSiteCost   = 100
	maxCost           = 1e9
)

// FieldError says which input was refused, and why.
type FieldError struct {
	// Field is a path such as costs[1][2] or demand["zone-a"].
	Field, Reason string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

func refuse(reason, field string, args ...any) error {
	return &FieldError{Field: fmt.Sprintf(field, args...), Reason: reason}
}

// Zone is a place where traffic starts and endpoints are. Zones with the same
// region are near to each other; the empty region is a region like any other. Zones of
// different sites are far from each other, whatever their regions; the empty site is a
// site like any other.
type Zone struct {
	Name   locality.Zone
	Region locality.Region
	Site   locality.Site
}

// Costs say what a connection costs from zone to zone. With the zero value that
// is 0 at home, 1 within the region, 10 across, and 100 to another site.
type Costs struct {
	// Region and World replace the costs by level if World is not 0. Region may
	// not exceed World.
	Region, World float64
	// Site replaces the cost to another site if it is not 0. It may not be below World.
	Site float64
	// Matrix, if set, replaces them all: Matrix[i][j] is the cost from zone i to
	// zone j, in the order of the zones. It need be neither symmetric nor zero at home.
	Matrix [][]float64
}

// Topology is a set of zones and what it costs to go from one to another.
// It is immutable and made once for all services.
type Topology struct {
	zones   []Zone
	index   map[locality.Zone]int
	cost    []float64 // n×n, as given
	maxCost float64
	// far is the rule of traffic that goes as far as there is.
	far Rule

	// groups lists zones that are near to each other, for costs by level: those of each
	// region, then, if there are several sites, those of each site. Groups of one zone are
	// left out. arcs holds whole-number costs in which cost comes before staying at home,
	// for a matrix; nil means levels.
	groups []group
	arcs   []int64
}

// group is a set of zones that are equally near to each other.
type group struct {
	zones []int
	rule  Rule
}

// NewTopology checks zones and costs. Zones must be in ascending order of their
// names, each once: the order settles ties. The arguments are not kept.
// An error is a *FieldError.
func NewTopology(zones []Zone, costs Costs) (*Topology, error) {
	n := len(zones)
	if n == 0 || n > MaxZones {
		return nil, refuse(fmt.Sprintf("%d zones, not 1 to %d", n, MaxZones), "zones")
	}
	t := &Topology{zones: slices.Clone(zones), index: make(map[locality.Zone]int, n), cost: make([]float64, n*n)}
	for i, z := range zones {
		if z.Name == "" {
			return nil, refuse("empty", "zones[%d].name", i)
		}
		if i > 0 && z.Name <= zones[i-1].Name {
			return nil, refuse(fmt.Sprintf("%q does not come after %q", z.Name, zones[i-1].Name), "zones[%d].name", i)
		}
		t.index[z.Name] = i
	}
	var err error
	if costs.Matrix != nil {
		err = t.setMatrix(costs.Matrix)
	} else {
		err = t.setLevels(costs)
	}
	if err != nil {
		return nil, err
	}
	for _, c := range t.cost {
		t.maxCost = max(t.maxCost, c)
	}
	if costs.Matrix != nil {
		t.arcs = t.wholeCosts()
	}
	return t, nil
}

// Len is the number of zones.
func (t *Topology) Len() int { return len(t.zones) }

// Zone returns the zone at an index.
func (t *Topology) Zone(i int) Zone { return t.zones[i] }

// Index returns the index of a zone by name.
func (t *Topology) Index(name locality.Zone) (int, bool) {
	i, ok := t.index[name]
	return i, ok
}

// Cost of a connection between two zones, by index.
func (t *Topology) Cost(from, to int) float64 { return t.cost[from*len(t.zones)+to] }

// MaxCost is the highest cost between any two zones.
func (t *Topology) MaxCost() float64 { return t.maxCost }

func checkCost(c float64, field string, args ...any) error {
	switch {
	case math.IsNaN(c):
		return refuse("not a number", field, args...)
	case c < 0:
		return refuse("negative", field, args...)
	case c > maxCost:
		return refuse(fmt.Sprintf("above %g", float64(maxCost)), field, args...)
	}
	return nil
}

func (t *Topology) setMatrix(matrix [][]float64) error {
	n := len(t.zones)
	if len(matrix) != n {
		return refuse(fmt.Sprintf("%d rows for %d zones", len(matrix), n), "costs")
	}
	for i, row := range matrix {
		if len(row) != n {
			return refuse(fmt.Sprintf("%d columns for %d zones", len(row), n), "costs[%d]", i)
		}
		for j, c := range row {
			if err := checkCost(c, "costs[%d][%d]", i, j); err != nil {
				return err
			}
			t.cost[i*n+j] = c
		}
	}
	return nil
}

func (t *Topology) setLevels(costs Costs) error {
	if costs.Region == 0 && costs.World == 0 {
		costs.Region, costs.World = DefaultRegionCost, DefaultWorldCost
	}
	if costs.Site == 0 {
		costs.Site = max(DefaultSiteCost, costs.World)
	}
	if err := checkCost(costs.Region, "costs.region"); err != nil {
		return err
	}
	if err := checkCost(costs.World, "costs.world"); err != nil {
		return err
	}
	if err := checkCost(costs.Site, "costs.site"); err != nil {
		return err
	}
	if costs.Region > costs.World {
		return refuse("above costs.world", "costs.region")
	}
	if costs.World > costs.Site {
		return refuse("above costs.site", "costs.world")
	}
	n := len(t.zones)
	for i, from := range t.zones {
		for j, to := range t.zones {
			switch {
			case i == j:
			case from.Site != to.Site:
				t.cost[i*n+j] = costs.Site
			case from.Region == to.Region:
				t.cost[i*n+j] = costs.Region
			default:
				t.cost[i*n+j] = costs.World
			}
		}
	}
	t.setGroups(costs)
	return nil
}

// setGroups notes which zones are near to each other. Levels of equal cost are one.
func (t *Topology) setGroups(costs Costs) {
	type place struct {
		site   locality.Site
		region locality.Region
	}
	regions := grouped(t.zones, func(z Zone) place { return place{z.Site, z.Region} })
	sites := grouped(t.zones, func(z Zone) place { return place{site: z.Site} })
	t.far = RuleRegion
	if len(regions) > 1 {
		t.far = RuleWorld
	}
	if len(sites) > 1 {
		t.far = RuleSite
	}
	add := func(groups [][]int, rule Rule) {
		for _, zones := range groups {
			if len(zones) > 1 {
				t.groups = append(t.groups, group{zones, rule})
			}
		}
	}
	if costs.Region < costs.World {
		add(regions, RuleRegion)
	}
	if len(sites) > 1 && costs.World < costs.Site {
		add(sites, RuleWorld)
	}
}

// grouped zones by what they have in common, in the order of their first zones.
func grouped[K comparable](zones []Zone, by func(Zone) K) [][]int {
	at := map[K]int{}
	var out [][]int
	for i, z := range zones {
		k, ok := at[by(z)]
		if !ok {
			k = len(out)
			at[by(z)] = k
			out = append(out, nil)
		}
		out[k] = append(out[k], i)
	}
	return out
}

// wholeCosts turns costs into integers that order plans as the objectives do:
// cost first, then the number of connections that leave home. The first is scaled
// by a power of two to 30 bits, so that whole numbers stay exact, and then by more
// than the second can add up to on any path through the zones.
func (t *Topology) wholeCosts() []int64 {
	n := len(t.zones)
	_, exponent := math.Frexp(t.maxCost)
	scale := math.Ldexp(1, min(30-exponent, 1000))
	first := int64(4*n + 4)
	arcs := make([]int64, n*n)
	for k, c := range t.cost {
		arcs[k] = int64(math.RoundToEven(c*scale)) * first
		if k/n != k%n {
			arcs[k]++
		}
	}
	return arcs
}
