package diag_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// TestElsewhere: what leaves a site, why, and on which way.
func TestElsewhere(t *testing.T) {
	svc := &proxy.Service{Name: proxy.ServiceName{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7")},
		Ports: []proxy.Port{{Name: "http", Port: 80, Protocol: proxy.TCP}}}
	own := []*proxy.Slice{{Name: proxy.SliceName{Namespace: "shop", Name: "s"}, Service: svc.Name,
		Ports: []proxy.SlicePort{{Name: "http", Port: 8080, Protocol: proxy.TCP}},
		Endpoints: []proxy.SliceEndpoint{
			{Addr: netip.MustParseAddr("10.0.0.1"), Ready: true, Serving: true}, {Addr: netip.MustParseAddr("10.0.0.2"), Ready: true, Serving: true},
		}}}
	gateway := sites.Gateway{Name: "i1", Host: "203.0.113.7", Port: 10001}
	remote := func(edit func(*sites.Remote)) *sites.Remote {
		r := &sites.Remote{Service: svc.Name, Mesh: "default", Ports: []sites.RemotePort{{Name: "http", Number: 80, SNI: "sni"}},
			Sites: []sites.Site{
				{Name: "b", Instances: 2, Ports: []uint16{80}, Ingresses: []sites.Gateway{gateway}},
				{Name: "c", Instances: 1, Ports: []uint16{80}, Ingresses: []sites.Gateway{gateway}},
				{Name: "d", Instances: 9, Ports: []uint16{81}, Ingresses: []sites.Gateway{gateway}},
			}}
		if edit != nil {
			edit(r)
		}
		return r
	}
	for what, tc := range map[string]struct {
		slices            []*proxy.Slice
		remote            *sites.Remote
		share             float64
		outcome, why, way string
		sites             int
	}{
		"none here": {nil, remote(nil), 1, "through the tunnel", "no endpoint of this site", "> ingress of the other zone", 2},
		"some here": {own, remote(nil), 0, "shared by 2; if none of them answers, the userspace mode tries the tunnel", "come first", "> ingress of the other zone", 2},
		"all sites": {own, remote(func(r *sites.Remote) { r.Spread = true }), 0.6, "shared by 2 and the tunnel", "localityAware", "> ingress", 2},
		"an egress": {nil, remote(func(r *sites.Remote) {
			r.EgressOnly, r.Egresses = true, []sites.Gateway{{Name: "e", Host: "10.0.0.9", Port: 10002}}
		}), 1, "through the tunnel", "no endpoint", "> egress e (10.0.0.9:10002) > ingress", 2},
		"no egress":  {nil, remote(func(r *sites.Remote) { r.EgressOnly = true }), 1, "through the tunnel", "no endpoint", "there is none", 2},
		"not by TCP": {own, nil, 0, "shared by 2", "", "", 0},
		"outside": {nil, remote(func(r *sites.Remote) {
			r.Sites, r.External = nil, &sites.External{Places: []sites.Place{{Host: "pay.example"}, {Host: "192.0.2.1", Port: 8443}}}
			r.Ports[0].Target = 443
		}), 1, "through the tunnel", "outside every mesh", "> pay.example:443 or 192.0.2.1:8443", 0},
	} {
		p := diag.ExplainService(svc, tc.slices, choose.Node{}, tc.remote, nil).Ports[0]
		f, e := p.Families[0], p.Elsewhere
		if f.Elsewhere != tc.share || f.Outcome != tc.outcome {
			t.Errorf("%s: %v %q, want %v %q", what, f.Elsewhere, f.Outcome, tc.share, tc.outcome)
		}
		if external := strings.Contains(f.Rule, "ExternalService"); external != (what == "outside") {
			t.Errorf("%s: decided by %s", what, f.Rule)
		}
		if tc.remote == nil {
			if e != nil {
				t.Errorf("%s: %+v", what, e)
			}
			continue
		}
		if e == nil || !strings.Contains(e.Why, tc.why) || !strings.Contains(e.Way(), tc.way) || len(e.Sites) != tc.sites {
			t.Errorf("%s: %+v, way %q", what, e, e.Way())
			continue
		}
		if tc.sites > 0 && (e.Sites[0].Share != 2./3 || e.Sites[0].Ingresses[0].Address != "203.0.113.7:10001") {
			t.Errorf("%s: %+v", what, e.Sites)
		}
	}
}
