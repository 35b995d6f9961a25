package policy

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// TestJudge: deny is before allow, rules about requests decide about some, and callers are whom all lists describe.
func TestJudge(t *testing.T) {
	of := func(name string) Source {
		return Source{Kind: "TrafficPermission", Key: resource.Key{Namespace: "shop", Name: name}}
	}
	caller := func(typ, name string, addresses ...string) Caller {
		c := Caller{Names: [][]mesh.ValueMatch{{{Type: typ, Value: name}}}}
		if len(addresses) > 0 {
			c.Addresses = [][]string{addresses}
		}
		return c
	}
	get := []mesh.PermissionRequest{{Methods: []string{"GET"}}}
	web := Call{Identity: "spiffe://default.mesh/ns/shop/sa/web", Address: netip.MustParseAddr("10.0.0.1"), HTTP: true}
	tcp, nobody := web, web
	tcp.HTTP, nobody.Identity = false, ""
	shop := caller(mesh.MatchPrefix, "spiffe://default.mesh/ns/shop/")
	denyWeb := Rule{Source: of("deny"), Callers: []Caller{caller(mesh.MatchExact, web.Identity)}}
	allowShop := Rule{Source: of("allow"), Callers: []Caller{shop}}
	here := Rule{Source: of("here"), Callers: []Caller{caller(mesh.MatchExact, web.Identity, "10.0.0.0/24")}}
	away := Rule{Source: of("away"), Callers: []Caller{caller(mesh.MatchExact, web.Identity, "10.0.1.1", "10.0.2.0/24")}}
	reading := Rule{Source: of("reading"), To: get}
	for name, test := range map[string]struct {
		of   Permission
		call Call
		want Verdict
	}{
		"nothing is said":              {Permission{}, web, Verdict{Allowed: true}},
		"the mesh denies":              {Permission{Refuse: true}, web, Verdict{}},
		"denied":                       {Permission{Deny: []Rule{denyWeb}, Allow: []Rule{allowShop}, Refuse: true}, web, Verdict{Denied: true, By: of("deny"), Allowing: []Source{of("allow")}}},
		"allowed":                      {Permission{Allow: []Rule{allowShop}, Refuse: true}, web, Verdict{Allowed: true, By: of("allow"), Allowing: []Source{of("allow")}}},
		"nobody is not allowed":        {Permission{Allow: []Rule{allowShop, allowShop}, Refuse: true}, nobody, Verdict{Allowing: []Source{of("allow")}}},
		"nobody is not denied":         {Permission{Deny: []Rule{denyWeb}}, nobody, Verdict{Allowed: true}},
		"the address is right":         {Permission{Deny: []Rule{here}}, web, Verdict{Denied: true, By: of("here")}},
		"the address is another":       {Permission{Deny: []Rule{away}}, web, Verdict{Allowed: true}},
		"some requests are denied":     {Permission{Deny: []Rule{reading}}, web, Verdict{Allowed: true, Requests: []Rule{reading}}},
		"connections have no requests": {Permission{Deny: []Rule{reading}}, tcp, Verdict{Allowed: true}},
		"some requests are allowed":    {Permission{Allow: []Rule{reading}, Refuse: true}, web, Verdict{Allowing: []Source{of("reading")}, Requests: []Rule{reading}}},
		"a shadow does not count":      {Permission{ShadowDeny: []Rule{denyWeb}}, web, Verdict{Allowed: true}},
		"for callers of whom is none":  {Permission{Deny: []Rule{{Source: of("deny"), Nobody: true}}}, web, Verdict{Allowed: true}},
	} {
		if diff := cmp.Diff(test.want, test.of.Judge(test.call)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
