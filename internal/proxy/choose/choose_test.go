package choose_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

// here is the node that the tests choose for.
var here = choose.Node{Name: "here", Zone: "a"}

var web = proxy.Port{Name: "web", Protocol: proxy.TCP, Port: 80}

// ep parses "ADDR[@NODE] CONDITION… [zones=a,b] [nodes=x,y] [weight=N]" with
// conditions ready, serving and terminating; ready implies serving.
func ep(text string) choose.Endpoint {
	fields := strings.Fields(text)
	addr, node, _ := strings.Cut(fields[0], "@")
	ip := netip.MustParseAddr(addr)
	e := choose.Endpoint{Addr: netip.AddrPortFrom(ip, 8080), Node: node}
	for _, f := range fields[1:] {
		key, value, _ := strings.Cut(f, "=")
		switch key {
		case "ready":
			e.Ready, e.Serving = true, true
		case "serving":
			e.Serving = true
		case "terminating":
			e.Terminating = true
		case "zones":
			e.HintZones = locality.Zones(strings.Split(value, ",")...)
		case "nodes":
			e.HintNodes = strings.Split(value, ",")
		case "weight":
			if _, err := fmt.Sscan(value, &e.Weight); err != nil {
				panic(err)
			}
		default:
			panic("unknown word " + f)
		}
	}
	return e
}

// render writes a choice as "ADDR ADDR*2 …" or as its verdict.
func render(targets []proxy.Target, verdict proxy.Verdict) string {
	if len(targets) == 0 {
		return verdict.String()
	}
	var out []string
	for _, t := range targets {
		s := t.Addr.Addr().String()
		if t.Weight != 1 {
			s += fmt.Sprint("*", t.Weight)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func TestRules(t *testing.T) {
	type policies struct{ internalLocal, externalLocal, reachable bool }
	var (
		cluster       = policies{}
		internalLocal = policies{internalLocal: true}
		externalLocal = policies{externalLocal: true, reachable: true}
		bothLocal     = policies{internalLocal: true, externalLocal: true, reachable: true}
	)
	const unused = "accept"
	for _, tc := range []struct {
		name           string
		policies       policies
		endpoints      []string
		node           *choose.Node
		cluster, local string
		ready          int
	}{
		{"nothing", cluster, nil, nil, "reject", unused, 0},
		{"all ready", cluster, []string{"10.0.0.2 ready", "10.0.0.1 ready"}, nil, "10.0.0.1 10.0.0.2", unused, 0},
		{"not ready", cluster, []string{"10.0.0.1 serving", "10.0.0.2"}, nil, "reject", unused, 0},
		{"ready although terminating (publishNotReadyAddresses)", cluster, []string{"10.0.0.1 ready terminating"}, nil, "10.0.0.1", unused, 0},
		{"weights", cluster, []string{"10.0.0.1 ready weight=7", "10.0.0.2 ready"}, nil, "10.0.0.1*7 10.0.0.2", unused, 0},

		// Rule 1: topology.
		{"zone hints", cluster, []string{"10.0.0.1 ready zones=a", "10.0.0.2 ready zones=b", "10.0.0.3 ready zones=b,a"}, nil, "10.0.0.1 10.0.0.3", unused, 0},
		{"zone hints, none for this zone", cluster, []string{"10.0.0.1 ready zones=c", "10.0.0.2 ready zones=b"}, nil, "10.0.0.1 10.0.0.2", unused, 0},
		{"zone hints incomplete", cluster, []string{"10.0.0.1 ready zones=a", "10.0.0.2 ready"}, nil, "10.0.0.1 10.0.0.2", unused, 0},
		{"zone hints incomplete on unready only", cluster, []string{"10.0.0.1 ready zones=a", "10.0.0.2 ready zones=b", "10.0.0.3 serving terminating", "10.0.0.4"}, nil, "10.0.0.1", unused, 0},
		{"zone hint for this zone on an unready only", cluster, []string{"10.0.0.1 zones=a", "10.0.0.2 ready zones=b"}, nil, "10.0.0.2", unused, 0},
		{"zone hints, node without zone", cluster, []string{"10.0.0.1 ready zones=a", "10.0.0.2 ready zones=b"}, &choose.Node{Name: "here"}, "10.0.0.1 10.0.0.2", unused, 0},
		{"node hints", cluster, []string{"10.0.0.1 ready nodes=here", "10.0.0.2 ready nodes=there"}, nil, "10.0.0.1", unused, 0},
		{"node hints go before zone hints", cluster, []string{"10.0.0.1 ready nodes=here zones=b", "10.0.0.2 ready nodes=there zones=a"}, nil, "10.0.0.1", unused, 0},
		{"node hints incomplete, zone hints complete", cluster, []string{"10.0.0.1 ready nodes=here zones=b", "10.0.0.2 ready zones=a"}, nil, "10.0.0.2", unused, 0},
		{"node hints elsewhere, zone hints complete", cluster, []string{"10.0.0.1 ready nodes=x zones=b", "10.0.0.2 ready nodes=y zones=a"}, nil, "10.0.0.2", unused, 0},
		{"node hints elsewhere, no zone hints", cluster, []string{"10.0.0.1 ready nodes=x", "10.0.0.2 ready nodes=y"}, nil, "10.0.0.1 10.0.0.2", unused, 0},
		{"some node hints, some zone hints", cluster, []string{"10.0.0.1 ready nodes=here", "10.0.0.2 ready zones=a"}, nil, "10.0.0.1 10.0.0.2", unused, 0},

		// Rule 2: terminating fallback of the cluster list.
		{"fallback to terminating", cluster, []string{"10.0.0.1 serving terminating", "10.0.0.2 terminating", "10.0.0.3 serving"}, nil, "10.0.0.1", unused, 0},
		{"fallback ignores hints", cluster, []string{"10.0.0.1 serving terminating zones=a", "10.0.0.2 serving terminating zones=b"}, nil, "10.0.0.1 10.0.0.2", unused, 0},
		{"no fallback while one is ready", cluster, []string{"10.0.0.1 serving terminating", "10.0.0.2 ready"}, nil, "10.0.0.2", unused, 0},
		{"no fallback though the ready one is hinted away", cluster, []string{"10.0.0.1@here serving terminating zones=a", "10.0.0.2 ready zones=b"}, nil, "10.0.0.2", unused, 0},

		// Rule 3: the local list.
		{"local", internalLocal, []string{"10.0.0.1@here ready", "10.0.0.2@there ready"}, nil, unused, "10.0.0.1", 1},
		{"local ignores hints", internalLocal, []string{"10.0.0.1@here ready zones=b", "10.0.0.2@there ready zones=a"}, nil, unused, "10.0.0.1", 1},
		{"local fallback to terminating", internalLocal, []string{"10.0.0.1@here serving terminating", "10.0.0.2@there ready"}, nil, unused, "10.0.0.1", 0},
		{"local ready goes before local terminating", internalLocal, []string{"10.0.0.1@here serving terminating", "10.0.0.2@here ready"}, nil, unused, "10.0.0.2", 1},
		{"external Local has both lists, hints in the cluster's", externalLocal, []string{"10.0.0.1@here ready zones=b", "10.0.0.2@there ready zones=a"}, nil, "10.0.0.2", "10.0.0.1", 1},
		{"both Local and reachable", bothLocal, []string{"10.0.0.1@here ready", "10.0.0.2@there ready"}, nil, "10.0.0.1 10.0.0.2", "10.0.0.1", 1},
		{"external Local but not reachable", policies{externalLocal: true}, []string{"10.0.0.1@here ready"}, nil, "10.0.0.1", unused, 1},
		{"node without name has nothing local", internalLocal, []string{"10.0.0.1 ready"}, &choose.Node{Zone: "a"}, unused, "drop", 0},

		// The four terminating cases of a Local policy with both lists.
		{"terminating here and there", externalLocal, []string{"10.0.0.1@here serving terminating", "10.0.0.2@there serving terminating"}, nil, "10.0.0.1 10.0.0.2", "10.0.0.1", 0},
		{"terminating here, ready there", externalLocal, []string{"10.0.0.1@here serving terminating", "10.0.0.2@there ready"}, nil, "10.0.0.2", "10.0.0.1", 0},
		{"ready here, terminating there", externalLocal, []string{"10.0.0.1@here ready", "10.0.0.2@there serving terminating"}, nil, "10.0.0.1", "10.0.0.1", 1},
		{"terminating there only", externalLocal, []string{"10.0.0.2@there serving terminating"}, nil, "10.0.0.2", "drop", 0},

		// Rule 4: verdicts.
		{"local nothing, ready there", internalLocal, []string{"10.0.0.2@there ready"}, nil, unused, "drop", 0},
		{"local nothing, terminating there", internalLocal, []string{"10.0.0.2@there serving terminating"}, nil, unused, "drop", 0},
		{"local nothing, unready there", internalLocal, []string{"10.0.0.2@there serving"}, nil, unused, "reject", 0},
		{"local nothing, nothing anywhere", externalLocal, nil, nil, "reject", "reject", 0},
		{"local unready, nothing else", externalLocal, []string{"10.0.0.1@here"}, nil, "reject", "reject", 0},

		// Duplicates.
		{"non-terminating wins", cluster, []string{"10.0.0.1 serving terminating", "10.0.0.1 ready", "10.0.0.1 serving terminating"}, nil, "10.0.0.1", unused, 0},
		{"non-terminating wins though it is unready", cluster, []string{"10.0.0.1 serving terminating", "10.0.0.1"}, nil, "reject", unused, 0},
		{"duplicates count once", internalLocal, []string{"10.0.0.1@here ready", "10.0.0.1@here ready"}, nil, unused, "10.0.0.1", 1},
		{"IPv4 in IPv6 is IPv4", cluster, []string{"::ffff:10.0.0.1 ready", "10.0.0.1 ready"}, nil, "10.0.0.1", unused, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			svc := &proxy.Service{
				Name:          proxy.ServiceName{Namespace: "ns", Name: "svc"},
				InternalLocal: tc.policies.internalLocal, ExternalLocal: tc.policies.externalLocal,
			}
			port := web
			if tc.policies.reachable {
				port.NodePort = 30080
			}
			node := here
			if tc.node != nil {
				node = *tc.node
			}
			var all []choose.Endpoint
			for _, e := range tc.endpoints {
				all = append(all, ep(e))
			}
			got := choose.Endpoints(svc, port, all, node)
			type lists struct {
				Cluster, Local string
				Ready          int
			}
			want := lists{tc.cluster, tc.local, tc.ready}
			is := lists{
				render(got.IPv4.Cluster, got.IPv4.NoCluster),
				render(got.IPv4.Local, got.IPv4.NoLocal),
				got.LocalReady,
			}
			if diff := cmp.Diff(want, is); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatMakesAServiceReachable(t *testing.T) {
	ip := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	nodePort := web
	nodePort.NodePort = 30080
	for name, tc := range map[string]struct {
		svc  proxy.Service
		port proxy.Port
		want string
	}{
		"cluster address only": {proxy.Service{}, web, "accept"},
		"node port":            {proxy.Service{}, nodePort, "10.0.0.2"},
		"external address":     {proxy.Service{ExternalIPs: ip}, web, "10.0.0.2"},
		"load balancer":        {proxy.Service{LoadBalancerIPs: ip}, web, "10.0.0.2"},
	} {
		tc.svc.InternalLocal = true
		got := choose.Endpoints(&tc.svc, tc.port, []choose.Endpoint{ep("10.0.0.2@there ready")}, here)
		if is := render(got.IPv4.Cluster, got.IPv4.NoCluster); is != tc.want {
			t.Errorf("%s: cluster list under internal policy Local is %q, want %q", name, is, tc.want)
		}
	}
}

func TestFamiliesAreApart(t *testing.T) {
	svc := &proxy.Service{InternalLocal: true, ExternalLocal: true}
	port := web
	port.NodePort = 30080
	got := choose.Endpoints(svc, port, []choose.Endpoint{
		ep("10.0.0.1@here ready zones=a"), ep("10.0.0.2@there ready zones=b"), // complete hints
		ep("fd00::1@there ready zones=a"), ep("fd00::2@there ready"), // incomplete hints
	}, here)
	for _, tc := range []struct{ what, is, want string }{
		{"IPv4 cluster", render(got.IPv4.Cluster, got.IPv4.NoCluster), "10.0.0.1"},
		{"IPv6 cluster", render(got.IPv6.Cluster, got.IPv6.NoCluster), "fd00::1 fd00::2"},
		{"IPv4 local", render(got.IPv4.Local, got.IPv4.NoLocal), "10.0.0.1"},
		{"IPv6 local", render(got.IPv6.Local, got.IPv6.NoLocal), "drop"},
	} {
		if tc.is != tc.want {
			t.Errorf("%s list is %q, want %q", tc.what, tc.is, tc.want)
		}
	}
	if got.For(netip.MustParseAddr("::ffff:10.0.0.1")) != &got.IPv4 || got.For(netip.MustParseAddr("fd00::1")) != &got.IPv6 {
		t.Error("For mixes the families up")
	}
}

func TestSlices(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	slice := func(ports ...proxy.SlicePort) *proxy.Slice {
		return &proxy.Slice{Ports: ports, Endpoints: []proxy.SliceEndpoint{{Addr: addr, Ready: true, Serving: true}, {}}}
	}
	got := choose.Slices(&proxy.Service{}, web, []*proxy.Slice{
		slice(proxy.SlicePort{Name: "web", Port: 8080, Protocol: proxy.TCP}, proxy.SlicePort{Name: "admin", Port: 9, Protocol: proxy.TCP}),
		slice(proxy.SlicePort{Name: "web", Port: 8080, Protocol: proxy.TCP}), // the same again
		slice(proxy.SlicePort{Name: "web", Port: 8081, Protocol: proxy.TCP}), // another container port
		slice(proxy.SlicePort{Name: "web", Port: 7, Protocol: proxy.UDP}),
		slice(proxy.SlicePort{Name: "web", Port: 0, Protocol: proxy.TCP}),
		slice(),
	}, here)
	want := []proxy.Target{
		{Addr: netip.AddrPortFrom(addr, 8080), Weight: 1},
		{Addr: netip.AddrPortFrom(addr, 8081), Weight: 1},
	}
	if !slices.Equal(got.IPv4.Cluster, want) {
		t.Errorf("got %v, want %v", got.IPv4.Cluster, want)
	}
}

func BenchmarkSlices(b *testing.B) {
	for _, n := range []int{3, 100, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var from []*proxy.Slice
			for i := range n {
				if i%100 == 0 {
					from = append(from, &proxy.Slice{Ports: []proxy.SlicePort{{Name: "web", Port: 8080, Protocol: proxy.TCP}}})
				}
				s := from[len(from)-1]
				s.Endpoints = append(s.Endpoints, proxy.SliceEndpoint{
					Addr: netip.AddrFrom4([4]byte{10, byte(i * 7 >> 16), byte(i * 7 >> 8), byte(i * 7)}),
					Node: fmt.Sprint("n", i%50), Hints: proxy.HintsOf(locality.Zones(string(rune('a'+i%3))), nil), Ready: true, Serving: true,
				})
			}
			slices.Reverse(from)
			svc := &proxy.Service{ExternalLocal: true}
			port := web
			port.NodePort = 30080
			b.ReportAllocs()
			for b.Loop() {
				choose.Slices(svc, port, from, choose.Node{Name: "n7", Zone: "a"})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/endpoint")
		})
	}
}

// TestSpare: what hints keep out of the list is spare, and nothing else is.
func TestSpare(t *testing.T) {
	for _, tc := range []struct {
		name      string
		endpoints []string
		want      string
	}{
		{"zone hints", []string{"10.0.0.1 ready zones=a", "10.0.0.2 ready zones=b weight=3", "10.0.0.3 zones=b"}, "10.0.0.2*3"},
		{"node hints", []string{"10.0.0.1 ready nodes=here", "10.0.0.2 ready nodes=there"}, "10.0.0.2"},
		{"no hints", []string{"10.0.0.1 ready", "10.0.0.2 ready"}, "none"},
		{"hints that do not count", []string{"10.0.0.1 ready zones=c", "10.0.0.2 ready zones=b"}, "none"},
		{"terminating fallback", []string{"10.0.0.1 serving terminating zones=a", "10.0.0.2 serving terminating zones=b"}, "none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var endpoints []choose.Endpoint
			for _, e := range tc.endpoints {
				endpoints = append(endpoints, ep(e))
			}
			got := "none"
			spare := choose.Endpoints(&proxy.Service{}, proxy.Port{}, endpoints, choose.Node{Name: "here", Zone: "a"}).IPv4.Fallback
			if len(spare) > 0 {
				got = render(spare, 0)
			}
			if got != tc.want {
				t.Errorf("spare %s, want %s", got, tc.want)
			}
		})
	}
}

// TestHeld: flows of UDP stay at endpoints that serve and get no new ones, but not at those of
// suspects; other protocols have no such list.
func TestHeld(t *testing.T) {
	for _, tc := range []struct {
		name      string
		endpoints []string
		want      string
	}{
		{"all are used", []string{"10.0.0.1 ready", "10.0.0.2 ready"}, "[]"},
		{"one terminates", []string{"10.0.0.1 ready", "10.0.0.2 serving terminating"}, "[10.0.0.2:8080]"},
		{"one has finished", []string{"10.0.0.1 ready", "10.0.0.2 terminating"}, "[]"},
		{"in maintenance", []string{"10.0.0.1 ready", "10.0.0.2 serving"}, "[10.0.0.2:8080]"},
		{"for another zone", []string{"10.0.0.1 ready zones=a", "10.0.0.2 ready zones=b"}, "[10.0.0.2:8080]"},
		{"of a suspect", []string{"10.0.0.1 ready", "10.0.0.2@x ready"}, "[]"},
		{"the last ones terminate", []string{"10.0.0.1 serving terminating", "10.0.0.2 serving terminating"}, "[]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, proto := range []proxy.Protocol{proxy.UDP, proxy.TCP} {
				var endpoints []choose.Endpoint
				for _, e := range tc.endpoints {
					endpoints = append(endpoints, ep(e))
				}
				node := choose.Node{Name: "here", Zone: "a", Suspects: map[string]bool{"x": true}}
				got, want := choose.Endpoints(&proxy.Service{}, proxy.Port{Protocol: proto}, endpoints, node).IPv4.Held, tc.want
				if proto == proxy.TCP {
					want = "[]"
				}
				if fmt.Sprint(got) != want {
					t.Errorf("%s: held %v, want %s", proto, got, want)
				}
			}
		})
	}
}

func TestSuspects(t *testing.T) {
	suspicious := func(names ...string) choose.Node {
		n := here
		n.Suspects = map[string]bool{}
		for _, name := range names {
			n.Suspects[name] = true
		}
		return n
	}
	for _, tc := range []struct {
		name           string
		endpoints      []string
		suspects       []string
		cluster, spare string
		rule           proxy.Rule
	}{
		{"used last", []string{"10.0.0.1@x ready", "10.0.0.2@y ready"}, []string{"x"}, "10.0.0.2", "10.0.0.1", proxy.AllReady},
		{"never itself", []string{"10.0.0.1@here ready", "10.0.0.2@y ready"}, []string{"here"}, "10.0.0.1 10.0.0.2", "accept", proxy.AllReady},
		{"no node", []string{"10.0.0.1 ready", "10.0.0.2@y ready"}, []string{""}, "10.0.0.1 10.0.0.2", "accept", proxy.AllReady},
		{"the only ones", []string{"10.0.0.1@x ready", "10.0.0.2@y ready"}, []string{"x", "y"}, "10.0.0.1 10.0.0.2", "accept", proxy.Suspected},
		{"after those that are draining", []string{"10.0.0.1@x ready", "10.0.0.2@y serving terminating"}, []string{"x"}, "10.0.0.2", "10.0.0.1", proxy.TerminatingFallback},
		{"only draining ones", []string{"10.0.0.1@x serving terminating"}, []string{"x"}, "10.0.0.1", "accept", proxy.Suspected},
		{"not ready", []string{"10.0.0.1@x", "10.0.0.2@y ready"}, []string{"x"}, "10.0.0.2", "accept", proxy.AllReady},
		{"not serving", []string{"10.0.0.1@x"}, []string{"x"}, "reject", "accept", proxy.NoEndpoint},
		{
			"the zone has others", []string{"10.0.0.1@x ready zones=a", "10.0.0.2@y ready zones=a", "10.0.0.3@z ready zones=b"},
			[]string{"x"}, "10.0.0.2", "10.0.0.3 10.0.0.1", proxy.ZoneHints,
		},
		{
			"the zone has no other", []string{"10.0.0.1@x ready zones=a", "10.0.0.3@z ready zones=b"},
			[]string{"x"}, "10.0.0.3", "10.0.0.1", proxy.AllReady,
		},
		{
			"the last ones by hints, too", []string{"10.0.0.1@x ready zones=a", "10.0.0.3@z ready zones=b"},
			[]string{"x", "z"}, "10.0.0.1", "10.0.0.3", proxy.Suspected,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var all []choose.Endpoint
			for _, e := range tc.endpoints {
				all = append(all, ep(e))
			}
			c := choose.Endpoints(&proxy.Service{}, web, all, suspicious(tc.suspects...)).IPv4
			got := []any{render(c.Cluster, c.NoCluster), render(c.Fallback, proxy.Accept), c.Why}
			if diff := cmp.Diff([]any{tc.cluster, tc.spare, tc.rule}, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
