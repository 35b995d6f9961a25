package diag_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

// What is never used is named with its reason, by explain and by trace.
func TestUnusedEndpointsHaveReasons(t *testing.T) {
	name := proxy.ServiceName{Namespace: "shop", Name: "web"}
	svc := &proxy.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7")},
		Ports: []proxy.Port{{Name: "http", Port: 80, Protocol: proxy.TCP}},
	}
	slice := &proxy.Slice{Service: name, Ports: []proxy.SlicePort{{Name: "http", Port: 80, Protocol: proxy.TCP}}}
	for _, a := range []string{"10.0.0.1", "10.96.0.7", "127.0.0.1", "127.0.0.2"} {
		slice.Endpoints = append(slice.Endpoints, proxy.SliceEndpoint{Addr: netip.MustParseAddr(a), Ready: true, Serving: true})
	}
	slice.Machines = []string{"", "", "m1", "m2"}
	fronts := choose.NewFrontends()
	fronts.Set(nil, svc)
	node := choose.Node{Name: "n1", Machine: "m1", Frontends: fronts}
	want := map[string]string{"10.96.0.7:80": "virtual IP of service shop/web", "127.0.0.2:80": "loopback address of another machine"}

	e := diag.ExplainService(svc, []*proxy.Slice{slice}, node, nil, nil)
	for _, endpoint := range e.Ports[0].Families[0].Endpoints {
		if why := want[endpoint.Address]; (why == "") != (endpoint.Share > 0) || !strings.Contains(endpoint.Why, why) {
			t.Errorf("explain: %s has a share of %g: %s", endpoint.Address, endpoint.Share, endpoint.Why)
		}
	}
	state := choose.Slices(svc, svc.Ports[0], []*proxy.Slice{slice}, node)
	var trace diag.Trace
	foreign := &proxy.Slice{Service: proxy.ServiceName{Namespace: "shop", Name: "other"}, Ports: slice.Ports, Endpoints: slice.Endpoints}
	trace.FindUnused(state, netip.MustParseAddr("10.96.0.7"), []*proxy.Slice{slice, slice, foreign}, node)
	if len(trace.Unused) != len(want) {
		t.Errorf("trace: %v", trace.Unused)
	}
	for _, u := range trace.Unused {
		if why := want[u.Address]; why == "" || !strings.Contains(u.Why, why) {
			t.Errorf("trace: %s: %s", u.Address, u.Why)
		}
	}
}
