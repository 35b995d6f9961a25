package topology

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/proxima-mesh/proxima/internal/planner"
)

// slicePart is a slice of ports, with an endpoint in zone a for each address.
func slicePart(family discoveryv1.AddressType, ports string, addresses ...string) part {
	p := part{family: family}
	for _, name := range strings.Fields(ports) {
		p.ports = append(p.ports, discoveryv1.EndpointPort{Name: ptr.To(name)})
	}
	for _, a := range addresses {
		p.endpoints = append(p.endpoints, discoveryv1.Endpoint{Addresses: []string{a}, Zone: ptr.To("a")})
	}
	return p
}

func TestGroups(t *testing.T) {
	const v4, v6, fqdn = discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN
	for name, c := range map[string]struct {
		parts []part
		want  []string
	}{
		"none":              {nil, nil},
		"a placeholder":     {[]part{slicePart(v4, "")}, nil},
		"names are no IPs":  {[]part{slicePart(fqdn, "x", "example.com")}, nil},
		"ports that share":  {[]part{slicePart(v4, "y x", "1", "2")}, []string{"IPv4 x,y 2"}},
		"ports apart":       {[]part{slicePart(v4, "x", "1"), slicePart(v4, "y", "2")}, []string{"IPv4 x 1", "IPv4 y 1"}},
		"joined by a third": {[]part{slicePart(v4, "x", "1"), slicePart(v4, "y", "2"), slicePart(v4, "z"), slicePart(v4, "z y x", "3")}, []string{"IPv4 x,y,z 3"}},
		"families apart":    {[]part{slicePart(v4, "x", "1"), slicePart(v6, "x", "2", "3")}, []string{"IPv4 x 1", "IPv6 x 2"}},
		"doubled endpoints": {[]part{slicePart(v4, "x", "1", "2"), slicePart(v4, "x", "2")}, []string{"IPv4 x 2"}},
	} {
		for range 10 { // whatever the order of maps
			var got []string
			for _, g := range groups(c.parts) {
				got = append(got, fmt.Sprintf("%s %s %d", g.name.family, g.name.ports, g.total()))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Fatalf("%s: %s", name, diff)
			}
		}
	}
}

// TestRestartKeepsHintsThatAreNearlyAsGood: only a process that has just begun does.
func TestRestartKeepsHintsThatAreNearlyAsGood(t *testing.T) {
	top, err := planner.NewTopology([]planner.Zone{{Name: "a"}, {Name: "b"}}, planner.Costs{})
	if err != nil {
		t.Fatal(err)
	}
	plan := func(fresh bool, odd []string) []string {
		p := &hintPlan{topology: top, mode: HintsSoft, zones: map[string]string{}, demand: []float64{0.5, 0.5}}
		now := map[string][]string{}
		for i := range 20 {
			for _, zone := range []string{"a", "b"} {
				address := fmt.Sprintf("%s%02d", zone, i)
				p.zones[address], now[address] = zone, []string{zone}
			}
		}
		now["a00"] = odd
		p.find(now, fresh)
		return p.hints["a00"]
	}
	for _, c := range []struct {
		fresh     bool
		odd, want []string
	}{
		{true, []string{"b"}, []string{"b"}},
		{false, []string{"b"}, []string{"a"}},
		{true, nil, []string{"a"}},           // incomplete hints are none
		{true, []string{"x"}, []string{"a"}}, // of a zone that is gone
	} {
		if diff := cmp.Diff(c.want, plan(c.fresh, c.odd)); diff != "" {
			t.Errorf("fresh %v, %v: %s", c.fresh, c.odd, diff)
		}
	}
}
