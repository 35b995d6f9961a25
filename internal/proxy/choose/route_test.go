package choose_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

// origin makes a Service of TCP port 80 with ready endpoints "ADDR[@NODE[/ZONE]][*WEIGHT]".
func origin(name string, endpoints ...string) choose.Origin {
	s := &proxy.Slice{Service: proxy.ServiceName{Namespace: "ns", Name: name}, Ports: []proxy.SlicePort{{Name: "web", Port: 80, Protocol: proxy.TCP}}}
	for _, text := range endpoints {
		e := proxy.SliceEndpoint{Ready: true, Serving: true}
		text, weight, _ := strings.Cut(text, "*")
		if weight != "" {
			if _, err := fmt.Sscan(weight, &e.Weight); err != nil {
				panic(err)
			}
		}
		addr, place, _ := strings.Cut(text, "@")
		node, zone, _ := strings.Cut(place, "/")
		e.Addr, e.Node, e.Zone = netip.MustParseAddr(addr), node, locality.Zone(zone)
		s.Endpoints = append(s.Endpoints, e)
	}
	return choose.Origin{
		Service: &proxy.Service{Name: s.Service, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}},
		Port:    web, Slices: []*proxy.Slice{s},
	}
}

func routed(to choose.Origin) choose.Origin {
	to.Routing = &proxy.Routing{Route: "ns/r", Backends: []proxy.RouteBackend{{}}}
	return to
}

func show(c *proxy.Choice) string {
	out := render(c.Cluster, c.NoCluster)
	if len(c.Fallback) > 0 {
		out += " | " + render(c.Fallback, 0)
	}
	return out
}

func TestRouteDividesConnections(t *testing.T) {
	local := func(o choose.Origin) choose.Origin {
		s := *o.Service
		s.InternalLocal = true
		o.Service = &s
		return o
	}
	backends := func(weights []uint32, all ...choose.Origin) []choose.Backend {
		var out []choose.Backend
		for i, o := range all {
			out = append(out, choose.Backend{Origin: o, Weight: weights[i]})
		}
		return out
	}
	parent := routed(origin("web", "10.0.0.1", "10.0.0.2"))
	for name, tc := range map[string]struct {
		to       choose.Origin
		backends []choose.Backend
		want     string
	}{
		"90 to 10":            {parent, backends([]uint32{90, 10}, origin("a", "10.0.0.1"), origin("b", "10.0.0.2")), "10.0.0.1*9 10.0.0.2"},
		"of several":          {parent, backends([]uint32{90, 10}, origin("a", "10.0.0.1", "10.0.0.2", "10.0.0.3"), origin("b", "10.0.0.4")), "10.0.0.1*3 10.0.0.2*3 10.0.0.3*3 10.0.0.4"},
		"with weights inside": {parent, backends([]uint32{1, 1}, origin("a", "10.0.0.1*3", "10.0.0.2"), origin("b", "10.0.0.3")), "10.0.0.1*3 10.0.0.2 10.0.0.3*4"},
		"all alike":           {parent, backends([]uint32{5, 5}, origin("a", "10.0.0.1"), origin("b", "10.0.0.2")), "10.0.0.1 10.0.0.2"},
		"in both":             {parent, backends([]uint32{3, 1}, origin("a", "10.0.0.1"), origin("b", "10.0.0.1", "10.0.0.2")), "10.0.0.1*7 10.0.0.2"},
		"one has none":        {parent, backends([]uint32{90, 10}, origin("a"), origin("b", "10.0.0.2")), "10.0.0.2"},
		"none has any":        {parent, backends([]uint32{90, 10}, origin("a"), origin("b")), "reject"},
		"a backend on this node alone": {parent, backends([]uint32{1, 1}, local(origin("a", "10.0.0.1@here", "10.0.0.2@there")), origin("b", "10.0.0.3")),
			"10.0.0.1 10.0.0.3"},
	} {
		state, _ := choose.Port(tc.to, tc.backends, nil, here, time.Time{})
		if got := show(&state.IPv4); got != tc.want || !state.Divided {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
	state, _ := choose.Port(routed(local(parent)), backends([]uint32{3, 1}, origin("a", "10.0.0.1@here", "10.0.0.2@there"), origin("b", "10.0.0.3@here")), nil, here, time.Time{})
	if got := render(state.IPv4.Local, 0); got != "10.0.0.1*3 10.0.0.3" || len(state.IPv4.Cluster) != 0 || state.LocalReady != 2 {
		t.Errorf("under policy Local: %s, %d ready here", got, state.LocalReady)
	}
	state, _ = choose.Port(routed(local(parent)), backends([]uint32{1}, origin("a", "10.0.0.2@there")), nil, here, time.Time{})
	if state.IPv4.NoLocal != proxy.Drop {
		t.Errorf("nothing on this node: %s", state.IPv4.NoLocal)
	}
}

// TestRouteOfManyEndpoints: a small share with many endpoints is no larger for that, and each node uses
// others of them.
func TestRouteOfManyEndpoints(t *testing.T) {
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i/256, i%256))
	}
	both := []choose.Backend{{Origin: origin("a", "10.0.0.1"), Weight: 99}, {Origin: origin("b", many...), Weight: 1}}
	used := map[netip.AddrPort]bool{}
	for node := range 40 {
		state, _ := choose.Port(routed(origin("web")), both, nil, choose.Node{Name: fmt.Sprint("n", node)}, time.Time{})
		sum, canary, n := uint64(0), uint64(0), 0
		for _, target := range state.IPv4.Cluster {
			sum += uint64(target.Weight)
			if target.Addr.Addr() != netip.MustParseAddr("10.0.0.1") {
				canary += uint64(target.Weight)
				n++
				used[target.Addr] = true
			}
		}
		if canary*100 != sum || n == 0 || n > 5 {
			t.Fatalf("%d of %d by %d endpoints", canary, sum, n)
		}
	}
	if len(used) < 100 {
		t.Errorf("40 nodes use %d endpoints", len(used))
	}
}

// TestWeightsThatDoNotFit: proportions are kept where exact weights have too many digits.
func TestWeightsThatDoNotFit(t *testing.T) {
	backends := []choose.Backend{
		{Origin: origin("a", "10.0.0.1*4294967291", "10.0.0.2*4294967279"), Weight: 999_983},
		{Origin: origin("b", "10.0.0.3*4294967231", "10.0.0.4*65537"), Weight: 999_979},
		{Origin: origin("c", "10.0.0.5*104729", "10.0.0.6*7919"), Weight: 3},
	}
	state, _ := choose.Port(routed(origin("web")), backends, nil, here, time.Time{})
	w := func(i int) float64 { return float64(state.IPv4.Cluster[i].Weight) }
	if a, b := (w(0)+w(1))/(w(2)+w(3)), 999_983.0/999_979; len(state.IPv4.Cluster) != 5 || a < b*.9999 || a > b*1.0001 {
		t.Errorf("%v: %f to 1, want %f", state.IPv4.Cluster, a, b)
	}
}

func TestLocality(t *testing.T) {
	all := []string{"10.0.0.1@n1/a", "10.0.0.2@n2/b", "10.0.0.3@n3/c"}
	failover := func(to proxy.FailoverTo, zones ...locality.Zone) *proxy.Locality {
		return &proxy.Locality{Failover: []proxy.Failover{{From: locality.Zones("x"), To: proxy.FailoverNone}, {To: to, Zones: zones}}}
	}
	site := func(l *proxy.Locality) *proxy.Locality { l.Site = "s1"; return l }
	strict := &proxy.Locality{Mode: proxy.LocalityStrict}
	suspected := here
	suspected.Suspects = map[string]bool{"n1": true}
	elsewhere := &proxy.Elsewhere{Instances: map[string]uint32{"web": 2}}
	const tunnel = "10.9.9.9"
	for name, tc := range map[string]struct {
		endpoints []string
		hints     []string // zones for which endpoints are, in their order
		locality  *proxy.Locality
		node      choose.Node
		elsewhere *proxy.Elsewhere
		want      string
	}{
		"strict":                   {all, nil, strict, here, nil, "10.0.0.1"},
		"strict, away":             {all[1:], nil, strict, here, nil, "reject"},
		"strict, other sites":      {all[1:], nil, strict, here, elsewhere, "reject"},
		"strict, in no zone":       {all, nil, strict, choose.Node{Name: "here"}, nil, "10.0.0.1 10.0.0.2 10.0.0.3"},
		"strict, planned away":     {all, []string{"b", "a", "a"}, strict, here, nil, "10.0.0.1"},
		"off":                      {all, []string{"a", "b", "c"}, &proxy.Locality{Mode: proxy.LocalityOff}, here, nil, "10.0.0.1 10.0.0.2 10.0.0.3"},
		"off, weights":             {[]string{"10.0.0.1@n1/a*5", "10.0.0.2@n2/b"}, nil, &proxy.Locality{Mode: proxy.LocalityOff}, here, nil, "10.0.0.1 10.0.0.2"},
		"off, a suspect":           {all, nil, &proxy.Locality{Mode: proxy.LocalityOff}, suspected, nil, "10.0.0.2 10.0.0.3 | 10.0.0.1"},
		"none":                     {all, nil, failover(proxy.FailoverNone), here, elsewhere, "10.0.0.1"},
		"none, nothing there":      {all[1:], nil, failover(proxy.FailoverNone), here, elsewhere, "reject"},
		"only c":                   {all, nil, failover(proxy.FailoverOnly, "c"), here, nil, "10.0.0.1 | 10.0.0.3"},
		"only c, nothing here":     {all[1:], nil, failover(proxy.FailoverOnly, "c"), here, elsewhere, "10.0.0.3"},
		"all but b, nothing here":  {all[1:], nil, failover(proxy.FailoverAnyExcept, "b"), here, nil, "10.0.0.3"},
		"any":                      {all, nil, failover(proxy.FailoverAny), here, elsewhere, "10.0.0.1 | 10.0.0.2 10.0.0.3 " + tunnel},
		"any, nothing at all":      {nil, nil, failover(proxy.FailoverAny), here, elsewhere, tunnel},
		"a plan goes before":       {all, []string{"a", "a", "c"}, failover(proxy.FailoverNone), here, nil, "10.0.0.1 10.0.0.2"},
		"only this site":           {all[1:], nil, site(failover(proxy.FailoverOnly, "s1")), here, elsewhere, "10.0.0.2 10.0.0.3"},
		"all but this site":        {all[1:], nil, site(failover(proxy.FailoverAnyExcept, "s1")), here, elsewhere, "reject"},
		"own suspects before none": {all, nil, failover(proxy.FailoverNone), suspected, nil, "10.0.0.1"},
		"others before suspects":   {all, nil, failover(proxy.FailoverAny), suspected, nil, "10.0.0.2 10.0.0.3 | 10.0.0.1"},
	} {
		o := origin("web", tc.endpoints...)
		for i, zone := range tc.hints {
			o.Slices[0].Endpoints[i].Hints = proxy.HintsOf(locality.Zones(zone), nil)
		}
		o.Routing, o.Elsewhere = &proxy.Routing{Locality: tc.locality}, tc.elsewhere
		state, _ := choose.Port(o, nil, []netip.AddrPort{netip.MustParseAddrPort(tunnel + ":10003")}, tc.node, time.Time{})
		if got := show(&state.IPv4); got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
		if !slices.IsSortedFunc(state.IPv4.Cluster, func(a, b proxy.Target) int { return a.Addr.Compare(b.Addr) }) {
			t.Errorf("%s: not sorted", name)
		}
	}
}

// TestLocalityKeepsFlows: flows of UDP stay at endpoints that a policy keeps new ones from.
func TestLocalityKeepsFlows(t *testing.T) {
	o := origin("dns", "10.0.0.1@n1/a", "10.0.0.2@n2/b")
	o.Port.Protocol, o.Slices[0].Ports[0].Protocol = proxy.UDP, proxy.UDP
	o.Routing = &proxy.Routing{Locality: &proxy.Locality{Mode: proxy.LocalityStrict}}
	state, _ := choose.Port(o, nil, nil, here, time.Time{})
	if got := show(&state.IPv4); got != "10.0.0.1" || fmt.Sprint(state.IPv4.Held) != "[10.0.0.2:80]" {
		t.Errorf("%s, held %v", got, state.IPv4.Held)
	}
}

func TestRoutingOfAPort(t *testing.T) {
	o := origin("web", "10.0.0.1")
	o.Routing = &proxy.Routing{SourceHash: true, ConnectTimeout: time.Second, TCPAttempts: 2}
	state, _ := choose.Port(o, nil, nil, here, time.Time{})
	if !state.SourceHash || state.ConnectTimeout != time.Second || state.TCPAttempts != 2 || state.Divided {
		t.Errorf("%+v", state)
	}
	other := *state
	other.SourceHash = false
	if state.Equal(&other) {
		t.Error("a hash makes no difference")
	}
}
