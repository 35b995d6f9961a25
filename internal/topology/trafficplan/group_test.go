package trafficplan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// slicePart is a slice of ports, with an endpoint in zone a for each address.
func slicePart(family discoveryv1.AddressType, ports string, addresses ...string) Part {
	p := Part{Family: family}
	for _, name := range strings.Fields(ports) {
		p.Ports = append(p.Ports, discoveryv1.EndpointPort{Name: ptr.To(name)})
	}
	for _, a := range addresses {
		p.Endpoints = append(p.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, Zone: ptr.To("a")})
	}
	return p
}

func TestGroups(t *testing.T) {
	const v4, v6, fqdn = discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN
	for name, c := range map[string]struct {
		parts []Part
		want  []string
	}{
		"none":              {nil, nil},
		"a placeholder":     {[]Part{slicePart(v4, "")}, nil},
		"names are no IPs":  {[]Part{slicePart(fqdn, "x", "example.com")}, nil},
		"ports that share":  {[]Part{slicePart(v4, "y x", "1", "2")}, []string{"IPv4 x,y 2"}},
		"ports apart":       {[]Part{slicePart(v4, "x", "1"), slicePart(v4, "y", "2")}, []string{"IPv4 x 1", "IPv4 y 1"}},
		"joined by a third": {[]Part{slicePart(v4, "x", "1"), slicePart(v4, "y", "2"), slicePart(v4, "z"), slicePart(v4, "z y x", "3")}, []string{"IPv4 x,y,z 3"}},
		"families apart":    {[]Part{slicePart(v4, "x", "1"), slicePart(v6, "x", "2", "3")}, []string{"IPv4 x 1", "IPv6 x 2"}},
		"doubled endpoints": {[]Part{slicePart(v4, "x", "1", "2"), slicePart(v4, "x", "2")}, []string{"IPv4 x 2"}},
	} {
		for range 10 { // whatever the order of maps
			var got []string
			for _, g := range Groups(c.parts) {
				got = append(got, fmt.Sprintf("%s %s %d", g.Name.Family, g.Name.Ports, g.Len()))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Fatalf("%s: %s", name, diff)
			}
		}
	}
}
