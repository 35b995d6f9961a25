package topology

import (
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// unitName names what is planned together: the ports of a Service and address family
// that share slices. An endpoint of a slice has one weight and one set of hints for all
// of the slice's ports, so their traffic is planned as one.
type unitName struct {
	family discoveryv1.AddressType
	// ports by name, ascending, separated by commas.
	ports string
}

// group is the ready endpoints of a unit.
type group struct {
	name  unitName
	ports []string
	// endpoints counts them by zone; noZone for those that have none.
	endpoints map[string]int64
	// zones of the endpoints by address.
	zones map[string]string
}

func (g *group) add(e *discoveryv1.Endpoint) {
	if len(e.Addresses) == 0 || !usable(e) {
		return
	}
	if _, twice := g.zones[e.Addresses[0]]; twice {
		return // consumers count it once, too
	}
	zone := zoneOf(e)
	g.zones[e.Addresses[0]] = zone
	g.endpoints[zone]++
}

func (g *group) total() int { return len(g.zones) }

// usable: conditions as the API defines them, where unset is ready.
func usable(e *discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

func zoneOf(e *discoveryv1.Endpoint) string {
	if e.Zone == nil || *e.Zone == "" {
		return noZone
	}
	return *e.Zone
}

// part is what groups are made of: the ports and endpoints of a slice.
type part struct {
	family    discoveryv1.AddressType
	ports     []discoveryv1.EndpointPort
	endpoints []discoveryv1.Endpoint
}

// groups joins the slices of a Service that have a port in common, directly or through
// others. Slices without ports, and those that no proxy carries, are in none. The order
// is that of names.
func groups(parts []part) []*group {
	byFirst := map[familyPort]*joined{}
	for _, p := range parts {
		if p.family != discoveryv1.AddressTypeIPv4 && p.family != discoveryv1.AddressTypeIPv6 {
			continue
		}
		var into *joined
		for _, port := range p.ports {
			into = join(byFirst, into, familyPort{p.family, portName(port)})
		}
		if into != nil {
			into.parts = append(into.parts, p.endpoints)
		}
	}
	var out []*group
	seen := map[*joined]bool{}
	for _, j := range byFirst {
		if !seen[j] {
			seen[j] = true
			out = append(out, j.group())
		}
	}
	slices.SortFunc(out, func(a, b *group) int {
		if c := strings.Compare(string(a.name.family), string(b.name.family)); c != 0 {
			return c
		}
		return strings.Compare(a.name.ports, b.name.ports)
	})
	return out
}

type familyPort struct {
	family discoveryv1.AddressType
	port   string
}

// joined is a group in the making.
type joined struct {
	ports []familyPort
	parts [][]discoveryv1.Endpoint
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

func (j *joined) group() *group {
	g := &group{endpoints: map[string]int64{}, zones: map[string]string{}}
	for _, p := range j.ports {
		g.ports = append(g.ports, p.port)
	}
	slices.Sort(g.ports)
	g.name = unitName{j.ports[0].family, strings.Join(g.ports, ",")}
	for _, endpoints := range j.parts {
		for i := range endpoints {
			g.add(&endpoints[i])
		}
	}
	return g
}

func portName(p discoveryv1.EndpointPort) string {
	if p.Name == nil {
		return ""
	}
	return *p.Name
}

func partOf(s *discoveryv1.EndpointSlice) part { return part{s.AddressType, s.Ports, s.Endpoints} }
