package trafficplan

import (
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
)

// Name of a Group: the ports of a Service and address family that share slices. An
// endpoint of a slice has one weight and one set of hints for all of the slice's ports,
// so their traffic is planned together.
type Name struct {
	Family discoveryv1.AddressType
	// Ports by name, ascending, separated by commas.
	Ports string
}

// NameOf a group of a plan.
func NameOf(g *plannerv1alpha1.PortGroup) Name {
	return Name{discoveryv1.AddressType(g.AddressType), strings.Join(g.Ports, ",")}
}

// Compare orders names by family, then by ports.
func (n Name) Compare(other Name) int {
	if c := strings.Compare(string(n.Family), string(other.Family)); c != 0 {
		return c
	}
	return strings.Compare(n.Ports, other.Ports)
}

// Group is the ready endpoints of ports that share slices.
type Group struct {
	Name  Name
	Ports []string
	// Endpoints counts them by zone; plannerv1alpha1.NoZone for those that have none.
	Endpoints map[locality.Zone]int64
	// Weights are the sums of their weights by zone; nil: all are DefaultWeight.
	Weights map[locality.Zone]int64
	// Zones of the endpoints by address.
	Zones map[string]locality.Zone

	counted map[identity]struct{}
}

func (g *Group) add(e *discoveryv1.Endpoint, weight uint32) {
	if len(e.Addresses) == 0 || !Ready(e) {
		return
	}
	id := identityOf(e)
	if _, twice := g.counted[id]; twice {
		return // proxies count it once, too
	}
	g.counted[id] = struct{}{}
	zone := ZoneOf(e)
	g.Zones[e.Addresses[0]] = zone
	g.Endpoints[zone]++
	if g.Weights == nil && weight != DefaultWeight {
		g.Weights = map[locality.Zone]int64{}
		for zone, n := range g.Endpoints {
			g.Weights[zone] = n * int64(DefaultWeight)
		}
		g.Weights[zone] -= int64(DefaultWeight)
	}
	if g.Weights != nil {
		g.Weights[zone] += int64(weight)
	}
}

// Len is the number of endpoints.
func (g *Group) Len() int { return len(g.Zones) }

// Ready says whether an endpoint is, as the API defines conditions: unset is ready.
func Ready(e *discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

// ZoneOf an endpoint, or plannerv1alpha1.NoZone.
func ZoneOf(e *discoveryv1.Endpoint) locality.Zone {
	if e.Zone == nil || *e.Zone == "" {
		return plannerv1alpha1.NoZone
	}
	return locality.Zone(*e.Zone)
}

// Part is the ports and endpoints of one slice.
type Part struct {
	Family    discoveryv1.AddressType
	Ports     []discoveryv1.EndpointPort
	Endpoints []discoveryv1.Endpoint
	// Weights of the endpoints; nil: DefaultWeight each.
	Weights []uint32
}

func (p *Part) weight(i int) uint32 {
	if p.Weights == nil {
		return DefaultWeight
	}
	return p.Weights[i]
}

// PartOf a slice, with the weights that its endpoints have in a snapshot. It shares the
// slice's lists.
func PartOf(snapshot *catalog.Snapshot, s *discoveryv1.EndpointSlice) Part {
	return Part{s.AddressType, s.Ports, s.Endpoints, OwnWeights(snapshot, s)}
}

// Groups joins the slices of a Service that have a port in common, directly or through
// others. Slices without ports, and those of other families than IP, are in none. The
// order is that of names.
func Groups(parts []Part) []*Group {
	byFirst := map[familyPort]*joined{}
	for _, p := range parts {
		if p.Family != discoveryv1.AddressTypeIPv4 && p.Family != discoveryv1.AddressTypeIPv6 {
			continue
		}
		var into *joined
		for _, port := range p.Ports {
			into = join(byFirst, into, familyPort{p.Family, PortName(port)})
		}
		if into != nil {
			into.parts = append(into.parts, p)
		}
	}
	var out []*Group
	seen := map[*joined]bool{}
	for _, j := range byFirst {
		if !seen[j] {
			seen[j] = true
			out = append(out, j.group())
		}
	}
	slices.SortFunc(out, func(a, b *Group) int { return a.Name.Compare(b.Name) })
	return out
}

type familyPort struct {
	family discoveryv1.AddressType
	port   string
}

// joined is a group under construction.
type joined struct {
	ports []familyPort
	parts []Part
}

// join adds a port to a group, with all that it was joined with before.
func join(of map[familyPort]*joined, into *joined, port familyPort) *joined {
	other := of[port]
	switch {
	case other == nil && into == nil:
		into = &joined{}
		fallthrough
	case other == nil:
		into.ports = append(into.ports, port)
	case into == nil || into == other:
		return other
	default:
		into.ports = append(into.ports, other.ports...)
		into.parts = append(into.parts, other.parts...)
	}
	for _, p := range into.ports {
		of[p] = into
	}
	return into
}

func (j *joined) group() *Group {
	g := &Group{Endpoints: map[locality.Zone]int64{}, Zones: map[string]locality.Zone{}, counted: map[identity]struct{}{}}
	for _, p := range j.ports {
		g.Ports = append(g.Ports, p.port)
	}
	slices.Sort(g.Ports)
	g.Name = Name{j.ports[0].family, strings.Join(g.Ports, ",")}
	for _, p := range j.parts {
		for i := range p.Endpoints {
			g.add(&p.Endpoints[i], p.weight(i))
		}
	}
	return g
}

// PortName of a slice's port; empty if it has none.
func PortName(p discoveryv1.EndpointPort) string {
	if p.Name == nil {
		return ""
	}
	return *p.Name
}
