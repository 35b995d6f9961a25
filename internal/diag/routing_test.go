package diag_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

// TestExplainRoute: the route, its backends and the shares of their endpoints; own endpoints are out.
func TestExplainRoute(t *testing.T) {
	port := proxy.Port{Name: "http", Protocol: proxy.TCP, Port: 80}
	made := func(name, address string) choose.Origin {
		svc := &proxy.Service{Name: proxy.ServiceName{Namespace: "ns", Name: name}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []proxy.Port{port}}
		return choose.Origin{Service: svc, Port: port, Slices: []*proxy.Slice{{
			Service: svc.Name, Ports: []proxy.SlicePort{{Name: "http", Protocol: proxy.TCP, Port: 80}},
			Endpoints: []proxy.SliceEndpoint{{Addr: netip.MustParseAddr(address), Ready: true, Serving: true, Zone: "b"}},
		}}}
	}
	web, v1, v2 := made("web", "10.0.0.9"), made("v1", "10.0.0.1"), made("v2", "10.0.0.2")
	web.Service.Routing = map[string]*proxy.Routing{"http": {Route: "ns/split", Backends: []proxy.RouteBackend{
		{Service: v1.Service.Name, Port: 80, Weight: 9}, {Service: v2.Service.Name, Port: 80, Weight: 1}, {Weight: 3},
	}}}
	backends := func(choose.Origin) []choose.Backend {
		return []choose.Backend{{Origin: v1, Weight: 9}, {Origin: v2, Weight: 1}}
	}
	e := diag.ExplainService(web.Service, web.Slices, choose.Node{Name: "n"}, nil, backends).Ports[0]
	want := []diag.RouteBackend{{Service: "ns/v1:80", Weight: 9, Endpoints: 1}, {Service: "ns/v2:80", Weight: 1, Endpoints: 1}, {Weight: 3}}
	if diff := cmp.Diff(want, e.Backends); diff != "" || e.Route != "ns/split" {
		t.Errorf("route %s, -want +got:\n%s", e.Route, diff)
	}
	shares := map[string]float64{"10.0.0.1:80": .9, "10.0.0.2:80": .1, "10.0.0.9:80": 0}
	for _, line := range e.Families[0].Endpoints {
		if share, ok := shares[line.Address]; !ok || share != line.Share || (share == 0) != (line.Reason == diag.NotRouted) {
			t.Errorf("%+v", line)
		}
	}
	web.Service.Routing["http"] = &proxy.Routing{Policy: "ns/p", Locality: &proxy.Locality{Mode: proxy.LocalityStrict}}
	e = diag.ExplainService(web.Service, web.Slices, choose.Node{Name: "n", Zone: locality.Zone("a")}, nil, backends).Ports[0]
	if e.Policy != "ns/p" || e.Families[0].Endpoints[0].Reason != diag.NotPreferred {
		t.Errorf("%+v", e)
	}
}
