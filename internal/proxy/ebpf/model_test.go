package ebpf

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

var (
	clusterAddr  = netip.MustParseAddr("10.96.0.10")
	cluster6     = netip.MustParseAddr("fd00:96::10")
	externalAddr = netip.MustParseAddr("203.0.113.7")
	balancerAddr = netip.MustParseAddr("203.0.113.8")
	nodeAddr     = netip.MustParseAddr("192.0.2.1")
	nodeAddr6    = netip.MustParseAddr("2001:db8::1")
)

// service port with an address of each kind and one endpoint; edit changes it.
func state(name string, edit func(*proxy.PortState)) *proxy.PortState {
	n := proxy.ServiceName{Namespace: "shop", Name: name}
	s := &proxy.PortState{
		Name: proxy.PortName{ServiceName: n, Port: "http"},
		Port: proxy.Port{Name: "http", Protocol: proxy.TCP, Port: 80, NodePort: 30080},
		Service: &proxy.Service{
			Name: n, ClusterIPs: []netip.Addr{clusterAddr, cluster6},
			ExternalIPs: []netip.Addr{externalAddr}, LoadBalancerIPs: []netip.Addr{balancerAddr},
		},
	}
	s.IPv4.Cluster = targets(1)
	s.IPv6.Cluster = []proxy.Target{{Addr: netip.MustParseAddrPort("[fd00:244::1]:8080"), Weight: 1}}
	if edit != nil {
		edit(s)
	}
	return s
}

// TestWhichAddresses: an address is translated only where the answer does not depend on the client.
func TestWhichAddresses(t *testing.T) {
	c4, c6 := netip.AddrPortFrom(clusterAddr, 80), netip.AddrPortFrom(cluster6, 80)
	ext, lb := netip.AddrPortFrom(externalAddr, 80), netip.AddrPortFrom(balancerAddr, 80)
	np, np6 := netip.AddrPortFrom(nodeAddr, 30080), netip.AddrPortFrom(nodeAddr6, 30080)
	all := func(w Why) map[netip.AddrPort]Why {
		return map[netip.AddrPort]Why{c4: w, c6: w, ext: w, lb: w, np: w, np6: w}
	}
	with := func(base map[netip.AddrPort]Why, w Why, at ...netip.AddrPort) map[netip.AddrPort]Why {
		for _, a := range at {
			base[a] = w
		}
		return base
	}
	v4 := []netip.AddrPort{c4, ext, lb, np}
	for name, c := range map[string]struct {
		edit          func(*proxy.PortState)
		masqueradeAll bool
		isolation     proxy.Isolation
		want          map[netip.AddrPort]Why
	}{
		"plain":                      {want: all(Translated)},
		"UDP":                        {edit: func(s *proxy.PortState) { s.Port.Protocol = proxy.UDP }, want: all(NotVirtual)},
		"SCTP":                       {edit: func(s *proxy.PortState) { s.Port.Protocol = proxy.SCTP }, want: all(NotVirtual)},
		"no endpoint of a family":    {edit: func(s *proxy.PortState) { s.IPv4.Cluster = nil }, want: with(all(Translated), NoEndpoint, v4...)},
		"source ranges":              {edit: func(s *proxy.PortState) { s.Service.SourceRanges = proxy.ParseSourceRanges([]string{"192.0.2.0/24"}) }, want: with(all(Translated), SourceRanges, lb)},
		"all sources":                {edit: func(s *proxy.PortState) { s.Service.SourceRanges = proxy.ParseSourceRanges([]string{"0.0.0.0/0"}) }, want: all(Translated)},
		"hash":                       {edit: func(s *proxy.PortState) { s.SourceHash = true }, want: all(HashedClients)},
		"consumers":                  {edit: func(s *proxy.PortState) { s.Consumers = map[string]*proxy.PortState{"other": {}} }, want: all(ManyConsumers)},
		"masquerade all":             {masqueradeAll: true, want: all(MasqueradeAll)},
		"another site":               {edit: func(s *proxy.PortState) { s.IPv4.Cluster[0].Zone = proxy.OtherSitesZone }, want: with(all(Translated), OtherSite, v4...)},
		"a loopback endpoint":        {edit: func(s *proxy.PortState) { s.IPv4.Cluster[0].Addr = netip.MustParseAddrPort("127.0.0.1:80") }, want: with(all(Translated), OwnLoopback, v4...)},
		"a link-local endpoint":      {edit: func(s *proxy.PortState) { s.IPv6.Cluster[0].Addr = netip.MustParseAddrPort("[fe80::1]:80") }, want: with(all(Translated), OwnLoopback, c6, np6)},
		"internal Local, none here":  {edit: func(s *proxy.PortState) { s.Service.InternalLocal = true }, want: with(all(Translated), NoEndpoint, c4, c6)},
		"external Local":             {edit: func(s *proxy.PortState) { s.Service.ExternalLocal = true }, want: all(Translated)},
		"meshes, everybody's":        {isolation: proxy.Isolation{Active: true}, want: all(Translated)},
		"meshes, of one":             {edit: func(s *proxy.PortState) { s.Service.Scope.Mesh = "a" }, isolation: proxy.Isolation{Active: true}, want: with(all(Translated), MeshesApart, c4, c6)},
		"one mesh":                   {edit: func(s *proxy.PortState) { s.Service.Scope.Mesh = "a" }, want: all(Translated)},
		"a closed mesh":              {isolation: proxy.Isolation{Active: true, Sources: map[netip.Addr]proxy.Source{nodeAddr: {Mesh: "a", Closed: true}}}, want: all(ClosedMeshes)},
		"a closed mesh of a program": {isolation: proxy.Isolation{Active: true, Cgroups: map[proxy.Cgroup]proxy.Source{{ID: 7, Level: 1}: {Mesh: "a", Closed: true}}}, want: all(ClosedMeshes)},
		"no node port":               {edit: func(s *proxy.PortState) { s.Port.NodePort = 0 }, want: with(all(Translated), NotVirtual, np, np6)},
		"one family":                 {edit: func(s *proxy.PortState) { s.Service.ClusterIPs = s.Service.ClusterIPs[:1] }, want: with(all(Translated), NotVirtual, c6, np6)},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(c.masqueradeAll)
			m.nodeAddresses = []netip.Addr{nodeAddr, nodeAddr6}
			m.meshes.take(c.isolation)
			s := state("api", c.edit)
			m.set(s.Name, s, newDelta())
			for at, want := range c.want {
				k, got := m.want(at)
				if got != want {
					t.Errorf("%s: %q, want %q", at, got, want)
				}
				if got == Translated && m.list(k) == nil {
					t.Errorf("%s has no list", at)
				}
			}
		})
	}
}

// TestListsOfPolicies: a cluster IP follows internalTrafficPolicy, all others have the cluster's list: a client
// with a socket here is no client from outside.
func TestListsOfPolicies(t *testing.T) {
	m := newModel(false)
	s := state("api", func(s *proxy.PortState) {
		s.Service.InternalLocal, s.Service.ExternalLocal = true, true
		s.IPv4.Cluster, s.IPv4.Local = targets(1, 1, 1), targets(1)
	})
	m.set(s.Name, s, newDelta())
	for at, want := range map[netip.Addr]int{clusterAddr: 1, externalAddr: 3, balancerAddr: 3} {
		k, why := m.want(netip.AddrPortFrom(at, 80))
		if l := m.list(k); why != Translated || l == nil || len(l.targets) != want {
			t.Errorf("%s: %q, %+v", at, why, l)
		}
	}
}

// TestClaims: an address of two service ports passes until one of them is gone.
func TestClaims(t *testing.T) {
	m := newModel(false)
	a, b := state("a", nil), state("b", nil)
	m.set(a.Name, a, newDelta())
	d := newDelta()
	m.set(b.Name, b, d)
	at := netip.AddrPortFrom(clusterAddr, 80)
	if _, touched := d.addresses[at]; !touched {
		t.Error("the change does not name the address")
	}
	if _, why := m.want(at); why != Ambiguous {
		t.Errorf("two claim it: %q", why)
	}
	m.set(a.Name, nil, newDelta())
	if k, why := m.want(at); why != Translated || k.port != b.Name {
		t.Errorf("one is gone: %q, %v", why, k)
	}
	m.set(b.Name, nil, newDelta())
	if len(m.claims)+len(m.ports) != 0 {
		t.Errorf("all are gone: %v, %v", m.claims, m.ports)
	}
}

// TestDelta: only lists that differ are written.
func TestDelta(t *testing.T) {
	m := newModel(false)
	s := state("api", nil)
	m.set(s.Name, s, newDelta())
	for name, c := range map[string]struct {
		edit func(*proxy.PortState)
		want int
	}{
		"the same":    {want: 0},
		"a policy":    {edit: func(s *proxy.PortState) { s.Service.ExternalLocal = true }, want: 0},
		"an endpoint": {edit: func(s *proxy.PortState) { s.IPv4.Cluster = targets(1, 1) }, want: 1},
		"a weight":    {edit: func(s *proxy.PortState) { s.IPv4.Cluster = targets(2); s.IPv6.Cluster = nil }, want: 2},
		"affinity":    {edit: func(s *proxy.PortState) { s.Service.AffinityTimeout = time.Hour }, want: 2},
	} {
		d := newDelta()
		next := state("api", c.edit)
		m.set(next.Name, next, d)
		if len(d.lists) != c.want {
			t.Errorf("%s: %d lists change, want %d", name, len(d.lists), c.want)
		}
		m.set(s.Name, s, newDelta())
	}
}

// TestHistory: what is wanted depends on the states alone, not on the way to them.
func TestHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		way := newModel(false)
		last := map[proxy.PortName]*proxy.PortState{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			s := state(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"), func(s *proxy.PortState) {
				s.Service.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, rapid.ByteRange(1, 3).Draw(t, "vip")})}
				s.IPv4.Cluster = targets(slices.Repeat([]uint32{1}, rapid.IntRange(0, 3).Draw(t, "endpoints"))...)
				s.Service.InternalLocal = rapid.Bool().Draw(t, "local")
				s.Port.NodePort = 0
			})
			if rapid.IntRange(0, 4).Draw(t, "gone") == 0 {
				way.set(s.Name, nil, newDelta())
				delete(last, s.Name)
				continue
			}
			way.set(s.Name, s, newDelta())
			last[s.Name] = s
		}
		direct := newModel(false)
		for name, s := range last {
			direct.set(name, s, newDelta())
		}
		if len(way.claims) != len(direct.claims) {
			t.Fatalf("%d addresses, directly %d", len(way.claims), len(direct.claims))
		}
		for at := range direct.claims {
			k1, w1 := way.want(at)
			k2, w2 := direct.want(at)
			if w1 != w2 || w1 == Translated && (k1 != k2 || !way.list(k1).equal(direct.list(k2))) {
				t.Fatalf("%s: %v %q, directly %v %q", at, k1, w1, k2, w2)
			}
		}
	})
}

// TestListID: ids name lists, and stay what they are: clients that are remembered are found by them.
func TestListID(t *testing.T) {
	name := proxy.PortName{ServiceName: proxy.ServiceName{Namespace: "shop", Name: "api"}, Port: "http"}
	if got, want := (listKey{name, proxy.IPv4, false}).id(), uint64(0x6529f7e670a36152); got != want {
		t.Errorf("id %#x, want %#x", got, want)
	}
	seen := map[uint64]listKey{}
	for _, ns := range []string{"", "a", "ab"} {
		for _, svc := range []string{"", "b", "bc", "c"} {
			for _, p := range []string{"", "c", "d"} {
				for _, f := range []proxy.Family{proxy.IPv4, proxy.IPv6} {
					for _, local := range []bool{false, true} {
						k := listKey{proxy.PortName{ServiceName: proxy.ServiceName{Namespace: ns, Name: svc}, Port: p}, f, local}
						if other, taken := seen[k.id()]; taken {
							t.Errorf("%v and %v have one id", k, other)
						}
						seen[k.id()] = k
					}
				}
			}
		}
	}
}

// TestVIPKey: struct vip4 and struct vip6 of program/connect.c.
func TestVIPKey(t *testing.T) {
	for text, want := range map[string]string{
		"10.96.0.1:80":    "0a60000100500600",
		"[fd00::1]:65535": "fd000000000000000000000000000001ffff0600",
	} {
		if got := hex.EncodeToString(vipKey(netip.MustParseAddrPort(text))); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
