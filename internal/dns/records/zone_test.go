package records

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func serviceName(s string) proxy.ServiceName {
	return proxy.ServiceName{Namespace: "default", Name: s}
}

func sliceName(s string) proxy.SliceName {
	return proxy.SliceName{Namespace: "default", Name: s}
}

var asText = cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty()}

// What a Service's name stands for.
func TestEntries(t *testing.T) {
	web := serviceName("web")
	sql := []proxy.SlicePort{{Name: "sql", Port: 5432, Protocol: proxy.TCP}}
	slice := func(ports []proxy.SlicePort, targets ...Target) *Slice {
		return &Slice{Service: web, Ports: ports, Targets: targets}
	}
	headlessName := map[proxy.ServiceName]*Name{web: {Name: web}}
	for _, tc := range []struct {
		name   string
		update Update
		want   *Entry
	}{
		{"nothing", Update{}, nil},
		{"virtual, two families", Update{Services: map[proxy.ServiceName]*proxy.Service{web: {Name: web,
			ClusterIPs: []netip.Addr{addr("10.96.0.7"), addr("fd00::7")}, Ports: []proxy.Port{{Name: "HTTP", Port: 80, Protocol: proxy.TCP}, {Port: 81, Protocol: proxy.TCP}}}}},
			&Entry{Name: web, Host: Host{V4: []netip.Addr{addr("10.96.0.7")}, V6: []netip.Addr{addr("fd00::7")}},
				Ports: map[string][]Port{"_http._tcp": {{Number: 80}}}}},
		{"external name", Update{Names: map[proxy.ServiceName]*Name{web: {Name: web, ExternalName: "example.com"}}},
			&Entry{Name: web, Alias: "example.com"}},
		{"another proxy's", Update{Names: map[proxy.ServiceName]*Name{web: {Name: web, ClusterIPs: []netip.Addr{addr("10.96.0.8")}}}},
			&Entry{Name: web, Host: Host{V4: []netip.Addr{addr("10.96.0.8")}}}},
		{"headless without endpoints", Update{Names: headlessName}, &Entry{Name: web, Headless: true}},
		{"headless: with and without hostname, two slices of one endpoint", Update{Names: headlessName, Slices: map[proxy.SliceName]*Slice{
			sliceName("a"): slice(sql, Target{Addr: addr("10.1.0.2")}, Target{Addr: addr("10.1.0.1"), Hostname: "db-0"}),
			sliceName("b"): slice(sql, Target{Addr: addr("10.1.0.1"), Hostname: "db-0"}, Target{Addr: addr("fd00:1::"), Hostname: ""}),
		}}, &Entry{Name: web, Headless: true,
			Host: Host{V4: []netip.Addr{addr("10.1.0.1"), addr("10.1.0.2")}, V6: []netip.Addr{addr("fd00:1::")}},
			Hosts: map[string]*Host{"db-0": {V4: []netip.Addr{addr("10.1.0.1")}}, "10-1-0-2": {V4: []netip.Addr{addr("10.1.0.2")}},
				"fd00-1--0": {V6: []netip.Addr{addr("fd00:1::")}}},
			Ports: map[string][]Port{"_sql._tcp": {{5432, "10-1-0-2"}, {5432, "db-0"}, {5432, "fd00-1--0"}}}}},
		{"domain names: the first, on every node", Update{Names: headlessName, Slices: map[proxy.SliceName]*Slice{
			sliceName("a"): slice(nil, Target{Domain: "b.example.com"}, Target{Domain: "a.example.com"}),
		}}, &Entry{Name: web, Alias: "a.example.com"}},
		{"addresses in addition to a domain name count", Update{Names: headlessName, Slices: map[proxy.SliceName]*Slice{
			sliceName("a"): slice(nil, Target{Domain: "a.example.com"}), sliceName("b"): slice(nil, Target{Addr: addr("10.1.0.1")}),
		}}, &Entry{Name: web, Headless: true, Host: Host{V4: []netip.Addr{addr("10.1.0.1")}},
			Hosts: map[string]*Host{"10-1-0-1": {V4: []netip.Addr{addr("10.1.0.1")}}}}},
		{"slices without a service", Update{Slices: map[proxy.SliceName]*Slice{sliceName("a"): slice(nil, Target{Addr: addr("10.1.0.1")})}}, nil},
		{"a virtual address counts before the rest", Update{Names: headlessName,
			Services: map[proxy.ServiceName]*proxy.Service{web: {Name: web, ClusterIPs: []netip.Addr{addr("10.96.0.7")}}}},
			&Entry{Name: web, Host: Host{V4: []netip.Addr{addr("10.96.0.7")}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			z := New()
			z.Apply(tc.update)
			if diff := cmp.Diff(tc.want, z.Service(web), asText); diff != "" {
				t.Error(diff)
			}
			if got := z.HasNamespace("default", ""); got != (tc.want != nil) {
				t.Errorf("the namespace is there: %t", got)
			}
		})
	}
}

func TestReady(t *testing.T) {
	z := New()
	z.Apply(Update{Services: map[proxy.ServiceName]*proxy.Service{}})
	if z.Ready() {
		t.Error("ready by a change alone")
	}
	before := z.Generation()
	z.Apply(Update{Reset: true})
	if !z.Ready() || z.Generation() == before {
		t.Errorf("ready %t, generation %d", z.Ready(), z.Generation())
	}
}

func TestGeneratedHostname(t *testing.T) {
	for in, want := range map[string]string{
		"10.1.0.2": "10-1-0-2", "fd00:1::1": "fd00-1--1", "::1": "0--1", "fd00::": "fd00--0", "::": "0--0", "fe80::1%eth0": "fe80--1",
	} {
		if got := GeneratedHostname(addr(in)); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

// Whatever the history, a zone that followed it says the same as one that was
// given the end of it alone.
func TestHistoryDoesNotMatter(t *testing.T) {
	names := []string{"a", "b", "c"}
	addrs := []string{"10.1.0.1", "10.1.0.2", "fd00::1"}
	rapid.Check(t, func(t *rapid.T) {
		z := New()
		end := Update{Reset: true, Services: map[proxy.ServiceName]*proxy.Service{}, Names: map[proxy.ServiceName]*Name{}, Slices: map[proxy.SliceName]*Slice{}, Endpoints: map[proxy.SliceName]*proxy.Slice{}}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			u := Update{Services: map[proxy.ServiceName]*proxy.Service{}, Names: map[proxy.ServiceName]*Name{}, Slices: map[proxy.SliceName]*Slice{}, Endpoints: map[proxy.SliceName]*proxy.Slice{}}
			name := serviceName(rapid.SampledFrom(names).Draw(t, "name"))
			ip := addr(rapid.SampledFrom(addrs).Draw(t, "address"))
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				u.Services[name] = &proxy.Service{Name: name, ClusterIPs: []netip.Addr{ip}}
			case 1:
				u.Services[name] = nil
			case 2:
				u.Names[name] = &Name{Name: name}
			case 3:
				u.Names[name] = &Name{Name: name, ExternalName: "example.com"}
			case 4:
				u.Names[name] = nil
			case 5:
				u.Slices[sliceName(rapid.SampledFrom(names).Draw(t, "slice"))] = &Slice{Service: name, Targets: []Target{{Addr: ip}, {Addr: addr("10.1.0.9"), Hostname: "h"}}}
			case 6:
				u.Slices[sliceName(rapid.SampledFrom(names).Draw(t, "slice"))] = nil
			case 7:
				u.Endpoints[sliceName(rapid.SampledFrom(names).Draw(t, "slice"))] = &proxy.Slice{Service: name, Endpoints: []proxy.SliceEndpoint{
					{Addr: addr("10.2.0.1"), Ready: rapid.Bool().Draw(t, "ready")}, {Addr: addr("10.2.0.2"), Ready: true}, {Addr: ip, Ready: true},
				}}
			case 8:
				u.Endpoints[sliceName(rapid.SampledFrom(names).Draw(t, "slice"))] = nil
			case 9:
				u.Reset, end = true, Update{
					Reset: true, Services: map[proxy.ServiceName]*proxy.Service{}, Names: map[proxy.ServiceName]*Name{},
					Slices: map[proxy.SliceName]*Slice{}, Endpoints: map[proxy.SliceName]*proxy.Slice{},
				}
			}
			if rapid.Bool().Draw(t, "asked") {
				z.Reverse(addr("10.2.0.1"), "") // makes the index
			}
			z.Apply(u)
			merge(end.Services, u.Services)
			merge(end.Names, u.Names)
			merge(end.Slices, u.Slices)
			merge(end.Endpoints, u.Endpoints)
		}
		fresh := New()
		fresh.Apply(end)
		z.Apply(Update{})
		for _, n := range names {
			if diff := cmp.Diff(fresh.Service(serviceName(n)), z.Service(serviceName(n)), asText); diff != "" {
				t.Fatalf("%s: %s", n, diff)
			}
		}
		for _, a := range append(addrs, "10.1.0.9", "10.2.0.1", "10.2.0.2") {
			got, known := z.Reverse(addr(a), "")
			if want, wantKnown := fresh.Reverse(addr(a), ""); !slices.Equal(got, want) || known != wantKnown {
				t.Fatalf("names of %s: %v (%v), want %v (%v)", a, got, known, want, wantKnown)
			}
			for _, n := range names {
				host := GeneratedHostname(addr(a))
				if diff := cmp.Diff(fresh.Endpoint(serviceName(n), host), z.Endpoint(serviceName(n), host), asText); diff != "" {
					t.Fatalf("%s of %s: %s", host, n, diff)
				}
			}
		}
		if z.HasNamespace("default", "") != fresh.HasNamespace("default", "") {
			t.Fatal("the namespace")
		}
		// A reset forgets what is not in it, reverse names included.
		z.Apply(Update{Reset: true})
		if len(z.entries)+len(z.reverse)+len(z.namespaces)+len(z.slicesOf) != 0 {
			t.Fatalf("after a reset: %d entries, %d reverse names", len(z.entries), len(z.reverse))
		}
	})
}

// TestEndpointIndex: the index of endpoints follows slices that change, go, and come again.
func TestEndpointIndex(t *testing.T) {
	z, name := New(), serviceName("web")
	slice := func(ready bool, addrs ...string) map[proxy.SliceName]*proxy.Slice {
		s := &proxy.Slice{Service: name}
		for _, a := range addrs {
			s.Endpoints = append(s.Endpoints, proxy.SliceEndpoint{Addr: addr(a), Ready: ready})
		}
		return map[proxy.SliceName]*proxy.Slice{sliceName("web-1"): s}
	}
	expect := func(when string, a string, want ...string) {
		t.Helper()
		if got, known := z.Reverse(addr(a), ""); !slices.Equal(got, want) || known != (len(want) > 0) {
			t.Errorf("%s: names of %s: %v (%v), want %v", when, a, got, known, want)
		}
		if h := z.Endpoint(name, GeneratedHostname(addr(a))); (h != nil) != (len(want) > 0) {
			t.Errorf("%s: the name of %s: %v", when, a, h)
		}
	}
	const a, b, nameA, nameB = "10.2.0.1", "10.2.0.2", "10-2-0-1.web.default.svc", "10-2-0-2.web.default.svc"
	z.Apply(Update{Reset: true, Services: map[proxy.ServiceName]*proxy.Service{name: {Name: name}}, Endpoints: slice(true, a)})
	expect("at first", a, nameA)
	z.Apply(Update{Endpoints: slice(true, a, b, b)})
	expect("one more", a, nameA)
	expect("one more", b, nameB)
	z.Apply(Update{Endpoints: slice(true, b)})
	expect("one less", a)
	expect("one less", b, nameB)
	z.Apply(Update{Endpoints: slice(false, b)})
	expect("not ready", b)
	z.Apply(Update{Endpoints: slice(true, a)})
	z.Apply(Update{Endpoints: map[proxy.SliceName]*proxy.Slice{sliceName("web-1"): nil}})
	expect("gone", a)
	if len(z.endpointsAt) > 0 {
		t.Errorf("left in the index: %v", z.endpointsAt)
	}
	z.Apply(Update{Reset: true, Services: map[proxy.ServiceName]*proxy.Service{name: {Name: name}}, Endpoints: slice(true, b)})
	expect("after a reset", a)
	expect("after a reset", b, nameB)
}

func merge[K comparable, V any](to, from map[K]*V) {
	maps.Copy(to, from)
	maps.DeleteFunc(to, func(_ K, v *V) bool { return v == nil })
}
