package diag

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// traced is a node with a Service in every role, one under Local policies, and
// one without endpoints.
func traced() []*proxy.PortState {
	to := func(s string, weight uint32, local bool) proxy.Target {
		return proxy.Target{Addr: netip.MustParseAddrPort(s), Weight: weight, Local: local}
	}
	all := proxy.Choice{
		Cluster:  []proxy.Target{to("10.0.0.1:8080", 1, true), to("10.0.0.2:8080", 3, false)},
		Local:    []proxy.Target{to("10.0.0.1:8080", 1, true)},
		Fallback: []proxy.Target{to("10.0.9.9:8080", 1, false)}, Why: proxy.ZoneHints,
	}
	name := func(s string) proxy.ServiceName { return proxy.ServiceName{Namespace: "shop", Name: s} }
	web := &proxy.Service{
		Name: name("web"), ClusterIPs: []netip.Addr{addr("10.96.0.10")}, ExternalIPs: []netip.Addr{addr("198.51.100.7")},
		LoadBalancerIPs: []netip.Addr{addr("203.0.113.7")}, SourceRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		AffinityTimeout: time.Hour,
	}
	edge := &proxy.Service{Name: name("edge"), ClusterIPs: []netip.Addr{addr("10.96.0.11")}, ExternalIPs: []netip.Addr{addr("198.51.100.8")}, ExternalLocal: true}
	gone := &proxy.Service{Name: name("gone"), ClusterIPs: []netip.Addr{addr("10.96.0.12")}}
	state := func(svc *proxy.Service, port proxy.Port, c proxy.Choice) *proxy.PortState {
		return &proxy.PortState{Name: proxy.PortName{ServiceName: svc.Name, Port: port.Name}, Service: svc, Port: port, IPv4: c}
	}
	return []*proxy.PortState{
		state(edge, proxy.Port{Name: "tls", Protocol: proxy.TCP, Port: 443, NodePort: 30443}, all),
		state(gone, proxy.Port{Name: "dns", Protocol: proxy.UDP, Port: 53}, proxy.Choice{NoCluster: proxy.Reject, Why: proxy.NoEndpoint}),
		state(web, proxy.Port{Name: "http", Protocol: proxy.TCP, Port: 80, NodePort: 30080}, all),
	}
}

func TestTrace(t *testing.T) {
	here := []netip.Addr{addr("10.1.0.5"), addr("127.0.0.1")}
	workloads := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
	cluster := []string{"10.0.0.1:8080 25%", "10.0.0.2:8080 75%"}
	type want struct {
		Service, Role, Outcome, List string
		Masquerade                   bool
		Endpoints                    []string
	}
	for _, c := range []struct {
		name, to, from string
		by             string // of interfaces cali*; empty: they are not asked for
		udp, all       bool
		workloads      []netip.Prefix
		want           want
	}{
		{name: "cluster IP", to: "10.96.0.10:80", from: "10.1.0.5", want: want{"shop/web:http", "cluster IP", "endpoint", "cluster", false, cluster}},
		{name: "masquerade all", to: "10.96.0.10:80", from: "10.1.0.5", all: true, want: want{"shop/web:http", "cluster IP", "endpoint", "cluster", true, cluster}},
		{name: "from a workload", to: "10.96.0.10:80", from: "10.0.0.9", workloads: workloads, want: want{"shop/web:http", "cluster IP", "endpoint", "cluster", false, cluster}},
		{name: "from outside of workloads", to: "10.96.0.10:80", from: "10.7.0.9", workloads: workloads, want: want{"shop/web:http", "cluster IP", "endpoint", "cluster", true, cluster}},
		{name: "by a workload's interface", to: "10.96.0.10:80", from: "10.7.0.9", by: "cali1", want: want{"shop/web:http", "cluster IP", "endpoint", "cluster", false, cluster}},
		{name: "by another interface", to: "10.96.0.10:80", from: "10.7.0.9", by: "eth0", want: want{"shop/web:http", "cluster IP", "endpoint", "cluster", true, cluster}},
		{name: "local, by a workload's interface", to: "198.51.100.8:443", from: "10.7.0.9", by: "cali1", want: want{"shop/edge:tls", "external IP", "endpoint", "cluster", false, cluster}},
		{name: "another port", to: "10.96.0.10:81", from: "10.1.0.5", want: want{Outcome: "pass"}},
		{name: "another protocol", to: "10.96.0.10:80", from: "10.1.0.5", udp: true, want: want{Outcome: "pass"}},
		{name: "external IP", to: "198.51.100.7:80", from: "192.0.2.1", want: want{"shop/web:http", "external IP", "endpoint", "cluster", true, cluster}},
		{name: "load balancer, admitted", to: "203.0.113.7:80", from: "192.0.2.1", want: want{"shop/web:http", "load balancer", "endpoint", "cluster", true, cluster}},
		{name: "load balancer, not admitted", to: "203.0.113.7:80", from: "192.0.3.1", want: want{"shop/web:http", "load balancer", "drop", "", false, nil}},
		{name: "node port", to: "10.1.0.5:30080", from: "192.0.2.1", want: want{"shop/web:http", "node port", "endpoint", "cluster", true, cluster}},
		{name: "node port of another address", to: "10.1.0.6:30080", from: "192.0.2.1", want: want{Outcome: "pass"}},
		{name: "local, from outside", to: "198.51.100.8:443", from: "192.0.2.1", want: want{"shop/edge:tls", "external IP", "endpoint", "local", false, []string{"10.0.0.1:8080 100%"}}},
		{name: "local, from this node", to: "10.1.0.5:30443", from: "10.1.0.5", want: want{"shop/edge:tls", "node port", "endpoint", "cluster", true, cluster}},
		{name: "local, from a workload", to: "198.51.100.8:443", from: "10.0.0.9", workloads: workloads, want: want{"shop/edge:tls", "external IP", "endpoint", "cluster", false, cluster}},
		{name: "no endpoints", to: "10.96.0.12:53", from: "10.1.0.5", udp: true, want: want{"shop/gone:dns", "cluster IP", "reject", "", false, nil}},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := Connection{To: netip.MustParseAddrPort(c.to), From: addr(c.from), Protocol: proxy.TCP}
			if c.udp {
				conn.Protocol = proxy.UDP
			}
			var tr Trace
			v := Vantage{Addresses: here, NodePorts: here, Workloads: c.workloads, MasqueradeAll: c.all}
			if c.by != "" {
				conn.By, v.Interfaces = c.by, proxy.Interfaces{"cali*"}
			}
			found := tr.Trace(conn, traced(), v)
			if (found == nil) != (c.want.Service == "") {
				t.Errorf("deciding state %v", found)
			}
			got := want{tr.Service, tr.Role, tr.Outcome, tr.List, tr.Masquerade, nil}
			for _, e := range tr.Endpoints {
				got.Endpoints = append(got.Endpoints, e.Address+" "+percent(e.Share))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func percent(share float64) string {
	return map[float64]string{0.25: "25%", 0.75: "75%", 1: "100%"}[share]
}

// TestTraceReason: a client that the source ranges exclude gets the reason, by the
// ranges of its own family.
func TestTraceReason(t *testing.T) {
	for _, c := range []struct {
		ranges  []string
		from    string
		outcome string
		reason  string
	}{
		{nil, "192.0.3.1", "reject", ""},
		{[]string{" 192.0.2.0/24 ", "198.51.100.7/32", "::/0"}, "192.0.3.1", "drop", "192.0.3.1 is in no range of loadBalancerSourceRanges (192.0.2.0/24, 198.51.100.7/32)"},
		{[]string{"192.0.2.0/24"}, "192.0.2.1", "reject", ""},
		{[]string{"0.0.0.0/0", "fd00:dead::/64"}, "192.0.3.1", "reject", ""},
		{[]string{"0.0.0.0/0", "fd00:dead::/64"}, "fd00:dead::9", "reject", ""},
		{[]string{"0.0.0.0/0", "fd00:dead::/64"}, "fd00::9", "drop", "fd00::9 is in no range of loadBalancerSourceRanges (fd00:dead::/64)"},
		{[]string{"0.0.0.0/0"}, "fd00::9", "drop", "no range of loadBalancerSourceRanges is IPv6"},
		{[]string{"fd00::/8"}, "192.0.2.1", "drop", "no range of loadBalancerSourceRanges is IPv4"},
	} {
		to := map[bool]netip.Addr{true: addr("203.0.113.7"), false: addr("2001:db8::7")}
		none := proxy.Choice{NoCluster: proxy.Reject}
		s := &proxy.PortState{IPv4: none, IPv6: none, Port: proxy.Port{Port: 80, Protocol: proxy.TCP}, Service: &proxy.Service{
			LoadBalancerIPs: []netip.Addr{to[true], to[false]}, SourceRanges: proxy.ParseSourceRanges(c.ranges),
		}}
		var tr Trace
		from := addr(c.from)
		tr.Trace(Connection{To: netip.AddrPortFrom(to[from.Is4()], 80), From: from, Protocol: proxy.TCP}, []*proxy.PortState{s}, Vantage{})
		if tr.Outcome != c.outcome || tr.Reason != c.reason {
			t.Errorf("%q from %s: %s, %q; want %s, %q", c.ranges, c.from, tr.Outcome, tr.Reason, c.outcome, c.reason)
		}
	}
}

// TestLocate: endpoints are where the slices of their own Service have them, and the
// client is this node, a workload, or unknown.
func TestLocate(t *testing.T) {
	at := func(s, node string, zone locality.Zone) proxy.SliceEndpoint {
		return proxy.SliceEndpoint{Addr: addr(s), Node: node, Zone: zone}
	}
	slice := func(service, name string, endpoints ...proxy.SliceEndpoint) *proxy.Slice {
		return &proxy.Slice{
			Name: proxy.SliceName{Namespace: "shop", Name: name}, Service: proxy.ServiceName{Namespace: "shop", Name: service}, Endpoints: endpoints,
		}
	}
	known := []*proxy.Slice{
		slice("api", "api-1", at("10.0.0.2", "elsewhere", "zone-x"), at("10.0.0.7", "b-1", "zone-b"), at("fd00::7", "b-1", "zone-b")),
		slice("web", "web-2", at("10.0.0.2", "a-2", "zone-a"), at("10.0.9.9", "", "")),
		slice("web", "web-3", at("10.0.9.9", "c-1", "zone-c")), // of two, the one with a node
	}
	here := Vantage{Addresses: []netip.Addr{addr("10.1.0.5")}}
	for from, want := range map[string]Source{
		"10.1.0.5": {Here: true, Node: "a-1", Zone: "zone-a"}, "127.0.0.1": {Here: true, Node: "a-1", Zone: "zone-a"}, "::1": {Here: true, Node: "a-1", Zone: "zone-a"},
		"10.0.0.7": {Node: "b-1", Zone: "zone-b"}, "fd00::7": {Node: "b-1", Zone: "zone-b"}, "192.0.2.1": {},
	} {
		tr := Trace{
			From: from, Node: "a-1", Zone: "zone-a", Service: "shop/web:http",
			Endpoints: []TraceEndpoint{{Address: "10.0.0.2:8080"}, {Address: "10.0.0.3:8080"}}, Spare: []TraceEndpoint{{Address: "10.0.9.9:8080"}},
		}
		tr.Locate(known, here)
		if diff := cmp.Diff(want, tr.Source); diff != "" {
			t.Errorf("from %s: %s", from, diff)
		}
		if diff := cmp.Diff([]TraceEndpoint{{Address: "10.0.0.2:8080", Node: "a-2", Zone: "zone-a"}, {Address: "10.0.0.3:8080"}}, tr.Endpoints); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]TraceEndpoint{{Address: "10.0.9.9:8080", Node: "c-1", Zone: "zone-c"}}, tr.Spare); diff != "" {
			t.Error(diff)
		}
	}
}

// TestForwards: what this machine makes or serves itself does not pass chains of forwarding.
func TestForwards(t *testing.T) {
	here := Vantage{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for _, c := range []struct {
		from, outcome string
		endpoints     []string
		want          bool
	}{
		{"198.51.100.1", "endpoint", []string{"10.0.0.1:80"}, true},
		{"198.51.100.1", "endpoint", []string{"192.0.2.1:80", "10.0.0.1:80"}, true},
		{"198.51.100.1", "endpoint", []string{"192.0.2.1:80"}, false},
		{"192.0.2.1", "endpoint", []string{"10.0.0.1:80"}, false},
		{"127.0.0.1", "endpoint", []string{"10.0.0.1:80"}, false},
		{"198.51.100.1", "reject", nil, false},
	} {
		tr := Trace{From: c.from, Outcome: c.outcome}
		for _, e := range c.endpoints {
			tr.Endpoints = append(tr.Endpoints, TraceEndpoint{Address: e})
		}
		if got := tr.Forwards(here); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
