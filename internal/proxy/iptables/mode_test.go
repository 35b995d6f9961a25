package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testOptions() Options {
	return Options{
		ServiceCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd96::/108")},
		WorkloadCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd44::/48")},
		CheckInterval: -1,
	}.withDefaults()
}

func onFake(t testing.TB, k *fakeKernel, opts Options) (*Mode, *fakeFlows) {
	t.Helper()
	flows := &fakeFlows{}
	m, err := start(opts, Legacy, k, flows)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(context.Background()) })
	return m, flows
}

func apply(t testing.TB, m *Mode, changes ...proxy.Change) {
	t.Helper()
	if err := m.Apply(context.Background(), changes); err != nil {
		t.Fatal(err)
	}
}

func name(svc, port string) proxy.PortName {
	return proxy.PortName{ServiceName: proxy.ServiceName{Namespace: "default", Name: svc}, Port: port}
}

// state of a service port at 10.96.0.0+i and its IPv6 sibling, port 80.
func state(i int, endpoints ...string) *proxy.PortState {
	svc := fmt.Sprintf("s%d", i)
	port := proxy.Port{Name: "p", Protocol: proxy.TCP, Port: 80}
	s := &proxy.PortState{
		Name: name(svc, "p"), Port: port,
		Service: &proxy.Service{
			Name:       proxy.ServiceName{Namespace: "default", Name: svc},
			ClusterIPs: []netip.Addr{nthAddr("10.96.0.0", i), nthAddr("fd96::", i)},
			Ports:      []proxy.Port{port},
		},
		IPv4: proxy.Choice{NoCluster: proxy.Reject}, IPv6: proxy.Choice{NoCluster: proxy.Reject},
	}
	for _, e := range endpoints {
		a := netip.MustParseAddrPort(e)
		c := s.For(a.Addr())
		c.Cluster, c.NoCluster = append(c.Cluster, proxy.Target{Addr: a, Weight: 1}), proxy.Accept
	}
	return s
}

func nthAddr(first string, i int) netip.Addr {
	b := netip.MustParseAddr(first).AsSlice()
	for at, rest := len(b)-1, i; rest > 0; at-- {
		rest += int(b[at])
		b[at] = byte(rest)
		rest >>= 8
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func change(s *proxy.PortState) proxy.Change { return proxy.Change{Name: s.Name, State: s} }

func TestRules(t *testing.T) {
	web := name("web", "http")
	tag := portTag(web)
	base := func(edit func(*proxy.PortState)) *proxy.PortState {
		port := proxy.Port{Name: "http", Protocol: proxy.TCP, Port: 80}
		s := &proxy.PortState{
			Name: web, Port: port,
			Service: &proxy.Service{Name: web.ServiceName, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []proxy.Port{port}},
			IPv4: proxy.Choice{Cluster: []proxy.Target{
				{Addr: netip.MustParseAddrPort("10.244.0.1:8080"), Weight: 1, Local: true},
				{Addr: netip.MustParseAddrPort("10.244.1.1:8080"), Weight: 3},
			}},
		}
		edit(s)
		return s
	}
	dnat := []string{
		"-A PROXIMA-SVC-" + tag + " -p tcp -m statistic --mode random --probability 0.25000000000 -j DNAT --to-destination 10.244.0.1:8080",
		"-A PROXIMA-SVC-" + tag + " -p tcp -j DNAT --to-destination 10.244.1.1:8080",
	}
	const frontend, picksChain = "-d 10.96.0.1/32 -p tcp -m tcp --dport 80 ", "-A PROXIMA-P-ROOT -d 10.96.0.1/32 -p tcp "
	many := []proxy.Target{}
	for i := range shortList + 1 {
		many = append(many, proxy.Target{Addr: netip.AddrPortFrom(nthAddr("10.244.1.0", i), 8080), Weight: 1})
	}
	for _, tc := range []struct {
		name string
		edit func(*proxy.PortState)
		want []string // rules of the port's own chains and of those that lead there
	}{
		{"cluster address", func(*proxy.PortState) {}, []string{
			"-A PROXIMA-T-ROOT " + frontend + "-g PROXIMA-P-ROOT",
			"-A PROXIMA-T-ROOT -d 10.96.0.1/32 -g PROXIMA-REJECT",
			"-A PROXIMA-H-ROOT -s 10.244.0.1/32 -d 10.244.0.1/32 -j MASQUERADE --random-fully",
			picksChain + "-m statistic --mode random --probability 0.25000000000 -j DNAT --to-destination 10.244.0.1:8080",
			picksChain + "-j DNAT --to-destination 10.244.1.1:8080",
		}},
		{"many endpoints", func(s *proxy.PortState) { s.IPv4.Cluster = many }, []string{
			"-A PROXIMA-T-ROOT " + frontend + "-g PROXIMA-SVC-" + tag,
			"-A PROXIMA-SVC-" + tag + " -p tcp -m statistic --mode random --probability 0.20000000019 -j DNAT --to-destination 10.244.1.0:8080",
			"-A PROXIMA-SVC-" + tag + " -p tcp -j DNAT --to-destination 10.244.1.4:8080",
		}},
		{"cluster address outside of the known ranges", func(s *proxy.PortState) {
			s.Service.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.97.0.1")}
		}, []string{
			"-A PROXIMA-T-ROOT -d 10.97.0.1/32 -p tcp -m tcp --dport 80 -j PROXIMA-MARK",
			"-A PROXIMA-T-ROOT -d 10.97.0.1/32 -p tcp -m tcp --dport 80 -g PROXIMA-P-ROOT",
			"-A PROXIMA-P-ROOT -d 10.97.0.1/32 -p tcp -j DNAT --to-destination 10.244.1.1:8080",
		}},
		{"no endpoint", func(s *proxy.PortState) { s.IPv4 = proxy.Choice{NoCluster: proxy.Reject} }, []string{
			"-A PROXIMA-T-ROOT " + frontend + "-g PROXIMA-P-ROOT",
			picksChain + "-g PROXIMA-REJECT",
		}},
		{"no endpoint, and a way in from outside", func(s *proxy.PortState) {
			s.IPv4, s.Port.NodePort = proxy.Choice{NoCluster: proxy.Reject}, 30080
		}, []string{
			"-A PROXIMA-T-ROOT " + frontend + "-g PROXIMA-SVC-" + tag,
			"-A PROXIMA-SVC-" + tag + " -g PROXIMA-REJECT",
		}},
		{"none for the policy", func(s *proxy.PortState) {
			s.Service.InternalLocal, s.IPv4 = true, proxy.Choice{NoLocal: proxy.Drop}
		}, []string{
			"-A PROXIMA-T-ROOT " + frontend + "-g PROXIMA-P-ROOT",
			picksChain + "-g PROXIMA-DROP",
		}},
		{"external, Cluster", func(s *proxy.PortState) {
			s.Service.ExternalIPs, s.Port.NodePort = []netip.Addr{netip.MustParseAddr("192.0.2.1")}, 30080
		}, append([]string{
			"-A PROXIMA-T-ROOT -d 192.0.2.1/32 -p tcp -m tcp --dport 80 -g PROXIMA-EXT-" + tag,
			"-A PROXIMA-N-ROOT -p tcp -m tcp --dport 30080 -g PROXIMA-EXT-" + tag,
			"-A PROXIMA-EXT-" + tag + " -j MARK --set-xmark 0x4000/0x4000",
			"-A PROXIMA-EXT-" + tag + " -g PROXIMA-SVC-" + tag,
		}, dnat...)},
		{"external, Local, with ranges", func(s *proxy.PortState) {
			s.Service.LoadBalancerIPs, s.Service.ExternalLocal = []netip.Addr{netip.MustParseAddr("192.0.2.1")}, true
			s.Service.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.7/24"), netip.MustParsePrefix("2001:db8::/32")}
			s.IPv4.Local = s.IPv4.Cluster[:1]
		}, append([]string{
			"-A PROXIMA-T-ROOT -d 192.0.2.1/32 -p tcp -m tcp --dport 80 -g PROXIMA-FW-" + tag,
			"-A PROXIMA-FW-" + tag + " -s 198.51.100.0/24 -g PROXIMA-EXT-" + tag,
			"-A PROXIMA-FW-" + tag + " -g PROXIMA-DROP",
			"-A PROXIMA-EXT-" + tag + " -s 10.244.0.0/16 -g PROXIMA-SVC-" + tag,
			"-A PROXIMA-EXT-" + tag + " -m addrtype --src-type LOCAL -j MARK --set-xmark 0x4000/0x4000",
			"-A PROXIMA-EXT-" + tag + " -m addrtype --src-type LOCAL -g PROXIMA-SVC-" + tag,
			"-A PROXIMA-EXT-" + tag + " -g PROXIMA-LOC-" + tag,
			"-A PROXIMA-LOC-" + tag + " -p tcp -j DNAT --to-destination 10.244.0.1:8080",
		}, dnat...)},
		{"ranges that admit everybody", func(s *proxy.PortState) {
			s.Service.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
			s.Service.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("0.0.0.0/0")}
		}, []string{"-A PROXIMA-T-ROOT -d 192.0.2.1/32 -p tcp -m tcp --dport 80 -g PROXIMA-EXT-" + tag}},
		{"ranges that admit all of the other family", func(s *proxy.PortState) {
			s.Service.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
			s.Service.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("::/0")}
		}, []string{
			"-A PROXIMA-FW-" + tag + " -s 198.51.100.0/24 -g PROXIMA-EXT-" + tag,
			"-A PROXIMA-FW-" + tag + " -g PROXIMA-DROP",
		}},
		{"ranges of the other family admit no client", func(s *proxy.PortState) {
			s.Service.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
			s.Service.SourceRanges = []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}
		}, []string{"-A PROXIMA-FW-" + tag + " -g PROXIMA-DROP"}},
		{"affinity", func(s *proxy.PortState) { s.Service.AffinityTimeout = time.Hour }, func() []string {
			a, b := endpointTag(web, netip.MustParseAddrPort("10.244.0.1:8080")), endpointTag(web, netip.MustParseAddrPort("10.244.1.1:8080"))
			return []string{
				"-A PROXIMA-SVC-" + tag + " -p tcp -m set --match-set PROXIMA-4-" + a + " src -g PROXIMA-SEP-" + a,
				"-A PROXIMA-SVC-" + tag + " -p tcp -m set --match-set PROXIMA-4-" + b + " src -g PROXIMA-SEP-" + b,
				"-A PROXIMA-SVC-" + tag + " -p tcp -m statistic --mode random --probability 0.25000000000 -g PROXIMA-SEP-" + a,
				"-A PROXIMA-SVC-" + tag + " -p tcp -g PROXIMA-SEP-" + b,
				"-A PROXIMA-SEP-" + a + " -j SET --add-set PROXIMA-4-" + a + " src --exist --timeout 3600",
				"-A PROXIMA-SEP-" + a + " -p tcp -j DNAT --to-destination 10.244.0.1:8080",
			}
		}()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := newFake()
			m, _ := onFake(t, k, testOptions())
			apply(t, m, change(base(tc.edit)))
			have := k.everything()
			for _, rule := range tc.want {
				if !strings.Contains(have, rule+"\n") {
					t.Errorf("missing: %s", rule)
				}
			}
			if t.Failed() {
				t.Log(have)
			}
			apply(t, m, proxy.Change{Name: web})
			if left := k.everything(); strings.Contains(left, tag) || strings.Contains(left, "P-ROOT") || strings.Contains(left, "10.96.0.1") {
				t.Errorf("left after removal:\n%s", left)
			}
		})
	}
}

func TestPrunes(t *testing.T) {
	dns := func(vip string, nodePort uint16, endpoints ...string) *proxy.PortState {
		s := state(1)
		s.Service.ClusterIPs = []netip.Addr{netip.MustParseAddr(vip)}
		s.Port.Protocol, s.Port.NodePort = proxy.UDP, nodePort
		for _, e := range endpoints {
			s.IPv4.Cluster = append(s.IPv4.Cluster, proxy.Target{Addr: netip.MustParseAddrPort(e), Weight: 1})
		}
		return s
	}
	frontend := func(at string) conntrack.Frontend {
		return conntrack.Frontend{Protocol: proxy.UDP, Addr: netip.MustParseAddrPort(at)}
	}
	k := newFake()
	m, flows := onFake(t, k, testOptions())
	steps := []struct {
		name   string
		change proxy.Change
		want   conntrack.Keep
	}{
		{"TCP is none of it", change(state(2, "10.244.0.1:80")), conntrack.Keep{}},
		{"new", change(dns("10.96.0.9", 30053, "10.244.0.1:53")), conntrack.Keep{
			frontend("10.96.0.9:80"): {netip.MustParseAddrPort("10.244.0.1:53")}, frontend("0.0.0.0:30053"): {netip.MustParseAddrPort("10.244.0.1:53")},
		}},
		{"moved", change(dns("10.96.0.10", 30054, "10.244.0.2:53")), conntrack.Keep{
			frontend("10.96.0.9:80"): nil, frontend("0.0.0.0:30053"): nil,
			frontend("10.96.0.10:80"): {netip.MustParseAddrPort("10.244.0.2:53")}, frontend("0.0.0.0:30054"): {netip.MustParseAddrPort("10.244.0.2:53")},
		}},
		{"gone", proxy.Change{Name: name("s1", "p")}, conntrack.Keep{frontend("10.96.0.10:80"): nil, frontend("0.0.0.0:30054"): nil}},
	}
	for _, s := range steps {
		apply(t, m, s.change)
		if diff := cmp.Diff(s.want, flows.asked[len(flows.asked)-1], cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }), cmp.Comparer(func(a, b conntrack.Frontend) bool { return a == b })); diff != "" {
			t.Errorf("%s: %s", s.name, diff)
		}
	}
	// What a predecessor left is found in its rules.
	apply(t, m, change(dns("10.96.0.9", 30053, "10.244.0.1:53")))
	m2, flows2 := onFake(t, k, testOptions())
	apply(t, m2, change(dns("10.96.0.9", 0, "10.244.0.1:53")))
	got := flows2.asked[0]
	if list, asked := got[frontend("0.0.0.0:30053")]; !asked || len(list) != 0 {
		t.Errorf("flows of a former node port are not ended: %v", got)
	}
	if list := got[frontend("10.96.0.9:80")]; len(list) != 1 {
		t.Errorf("flows of a service that stayed may be at %v, want its endpoint", list)
	}
}

func TestSetFailureIsThePortsOwn(t *testing.T) {
	k := newFake()
	m, _ := onFake(t, k, testOptions())
	sticky, plain := state(1, "10.244.0.1:80"), state(2, "10.244.0.1:80")
	sticky.Service.AffinityTimeout = time.Hour
	broken := errors.New("no sets here")
	k.fault = func(op string) error {
		if op == "add set" {
			return broken
		}
		return nil
	}
	err := m.Apply(t.Context(), []proxy.Change{change(sticky), change(plain)})
	var ports *proxy.PortError
	if !errors.As(err, &ports) || len(ports.Failed) != 1 || !errors.Is(ports.Failed[sticky.Name], broken) {
		t.Fatalf("got %v, want a PortError of one", err)
	}
	if !strings.Contains(k.everything(), "-d 10.96.0.2/32 -p tcp") {
		t.Error("the other port is not in place")
	}
	k.fault = func(string) error { return nil }
	apply(t, m, change(sticky))
	if !strings.Contains(k.everything(), portTag(sticky.Name)) {
		t.Error("the port is not in place when sets work")
	}
}

func TestCounters(t *testing.T) {
	k := newFake()
	opts := testOptions()
	m, _ := onFake(t, k, opts)
	s := state(1, "10.244.0.1:80")
	apply(t, m, change(s))
	read := func() uint64 {
		for n, c := range m.Counts() {
			if n == s.Name {
				if !c.ByFamily || c.IPv6.Connections != c.Connections/2 {
					t.Errorf("counts %+v, half of them is IPv6", c)
				}
				return c.Connections
			}
		}
		return 0
	}
	if got := read(); got != 14 { // the fake's rules are met seven times in either family
		t.Errorf("first reading %d, want 14", got)
	}
	if got := read(); got != 14 {
		t.Errorf("second reading %d, want 14: nothing came since", got)
	}
	for rule := range m.counters.last {
		m.counters.last[rule] = 100 // more than there is: the rules were written again
	}
	if got := read(); got != 28 {
		t.Errorf("after the rules began anew %d, want 28", got)
	}
}

// TestCountedRulesStay: what leads to a service port, and counts, is not written
// when its endpoints change, nor when its neighbours' do.
func TestCountedRulesStay(t *testing.T) {
	k := newFake()
	m, _ := onFake(t, k, testOptions())
	var all []proxy.Change
	for i := range 100 {
		all = append(all, change(state(i, "10.244.0.1:80", "10.244.0.2:80")))
	}
	apply(t, m, all...)
	var written []string
	for n, s := range []*proxy.PortState{state(7, "10.244.0.3:80"), state(7), state(7, "10.244.0.4:80", "10.244.0.5:80", "10.244.0.6:80")} {
		m.rulesets[v4].update(map[proxy.PortName]*proxy.PortState{s.Name: s})
		written = m.rulesets[v4].nat.transaction().chains
		if len(written) != 1 || !strings.HasPrefix(written[0], chainPicks) {
			t.Errorf("change %d writes %v, want the chain of picks alone", n, written)
		}
		apply(t, m)
	}
}

// TestRulesOf: what a service port has, in chains that it shares too.
func TestRulesOf(t *testing.T) {
	k := newFake()
	m, _ := onFake(t, k, testOptions())
	s := state(2, "10.244.0.2:80")
	sticky := state(3, "10.244.0.3:80")
	sticky.Service.ClusterIPs, sticky.Service.AffinityTimeout = sticky.Service.ClusterIPs[:1], time.Hour
	apply(t, m, change(state(1, "10.244.0.1:80")), change(s), change(sticky))
	tag := portTag(sticky.Name)
	e := endpointTag(sticky.Name, netip.MustParseAddrPort("10.244.0.3:80"))
	for _, tc := range []struct {
		name proxy.PortName
		want []string
	}{
		{s.Name, []string{
			"-A PROXIMA-T-ROOT -d 10.96.0.2/32 -p tcp -m tcp --dport 80 -g PROXIMA-P-ROOT",
			"-A PROXIMA-T-ROOT -d 10.96.0.2/32 -g PROXIMA-REJECT",
			"-A PROXIMA-T-ROOT -d fd96::2/128 -p tcp -m tcp --dport 80 -g PROXIMA-P-ROOT",
			"-A PROXIMA-T-ROOT -d fd96::2/128 -g PROXIMA-REJECT",
			"-A PROXIMA-P-ROOT -d 10.96.0.2/32 -p tcp -j DNAT --to-destination 10.244.0.2:80",
			"-A PROXIMA-P-ROOT -d fd96::2/128 -p tcp -g PROXIMA-REJECT",
		}},
		{sticky.Name, []string{
			"-A PROXIMA-T-ROOT -d 10.96.0.3/32 -p tcp -m tcp --dport 80 -g PROXIMA-SVC-" + tag,
			"-A PROXIMA-T-ROOT -d 10.96.0.3/32 -g PROXIMA-REJECT",
			"-A PROXIMA-SEP-" + e + " -j SET --add-set PROXIMA-4-" + e + " src --exist --timeout 3600",
			"-A PROXIMA-SEP-" + e + " -p tcp -j DNAT --to-destination 10.244.0.3:80",
			"-A PROXIMA-SVC-" + tag + " -p tcp -m set --match-set PROXIMA-4-" + e + " src -g PROXIMA-SEP-" + e,
			"-A PROXIMA-SVC-" + tag + " -p tcp -g PROXIMA-SEP-" + e,
		}},
		{name("unknown", "p"), nil},
	} {
		if diff := cmp.Diff(tc.want, m.RulesOf(tc.name)); diff != "" {
			t.Errorf("%s: %s", tc.name, diff)
		}
	}
	if dump := m.Dump(); !strings.Contains(dump, "# default/s2:p\n-A PROXIMA-P-ROOT -d 10.96.0.2/32") {
		t.Errorf("a shared chain does not say whose its rules are:\n%s", dump)
	}
}

// TestPortsOfOneAddress: what picks for one port must not take another's
// connections, and looks at the port only if there is another.
func TestPortsOfOneAddress(t *testing.T) {
	k := newFake()
	m, _ := onFake(t, k, testOptions())
	web, tls := state(1, "10.244.0.1:80"), state(1, "10.244.0.1:443")
	tls.Name.Port, tls.Port.Name, tls.Port.Port = "tls", "tls", 443
	dns := state(1, "10.244.0.1:53")
	dns.Name.Port, dns.Port.Name, dns.Port.Port, dns.Port.Protocol = "dns", "dns", 53, proxy.UDP
	picksChain := func() string { return m.rulesets[v4].nat.desired[chainPicks+"ROOT"] }
	const match, to = "-A PROXIMA-P-ROOT -d 10.96.0.1/32 -p ", "-j DNAT --to-destination 10.244.0.1:"
	apply(t, m, change(web), change(dns))
	alone := match + "tcp " + to + "80\n" + match + "udp " + to + "53\n"
	if diff := cmp.Diff(alone, picksChain()); diff != "" {
		t.Error(diff)
	}
	apply(t, m, change(tls))
	want := match + "tcp -m tcp --dport 80 " + to + "80\n" + match + "tcp -m tcp --dport 443 " + to + "443\n" + match + "udp " + to + "53\n"
	if diff := cmp.Diff(want, picksChain()); diff != "" {
		t.Errorf("with another port of the protocol: %s", diff)
	}
	apply(t, m, proxy.Change{Name: tls.Name})
	if diff := cmp.Diff(alone, picksChain()); diff != "" {
		t.Errorf("when it is gone: %s", diff)
	}
}

func TestClose(t *testing.T) {
	k := newFake()
	m, _ := onFake(t, k, testOptions())
	apply(t, m, change(state(1, "10.244.0.1:80")))
	before := k.everything()
	for range 2 {
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(before, k.everything()); diff != "" {
		t.Errorf("Close changed the kernel: %s", diff)
	}
	if err := m.Apply(t.Context(), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Apply after Close: %v", err)
	}
	if err := cleanup(t.Context(), k); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(newFake().everything(), k.everything()); diff != "" {
		t.Errorf("left after Cleanup: %s", diff)
	}
}
