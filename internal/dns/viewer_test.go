package dns

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// scopedNames are names of the mesh blue and green, one that is exported, and one of all.
func scopedNames() records.Update {
	in := func(namespace, name string) proxy.ServiceName {
		return proxy.ServiceName{Namespace: namespace, Name: name}
	}
	blue, green := proxy.Scope{Mesh: "blue"}, proxy.Scope{Mesh: "green"}
	u := records.Update{Reset: true, Services: map[proxy.ServiceName]*proxy.Service{}, Names: map[proxy.ServiceName]*records.Name{}}
	for _, s := range []*proxy.Service{
		{Name: in("default", "kubernetes"), ClusterIPs: addrs("10.96.0.1")},
		{Name: in("blues", "web"), Scope: blue, ClusterIPs: addrs("10.96.0.2")},
		{Name: in("greens", "web"), Scope: green, ClusterIPs: addrs("10.96.0.3")},
		{Name: in("greens", "open"), Scope: proxy.Scope{Mesh: "green", Exported: []string{"blue"}}, ClusterIPs: addrs("10.96.0.4")},
		{Name: in("greens2", "web"), Scope: green, ClusterIPs: addrs("10.96.0.5")},
		{Name: in("greens", mcs.DerivedServiceName("greens", "web")), Scope: green, ClusterIPs: addrs("10.96.0.6")},
	} {
		u.Services[s.Name] = s
	}
	for _, n := range []*records.Name{
		{Name: in("blues", "alias"), Scope: blue, ExternalName: "web.greens.svc.cluster.local"},
		{Name: in("greens2", "db"), Scope: green},
		{Name: in("greens2", "hop"), Scope: green, ExternalName: "kubernetes.default.svc.cluster.local"},
	} {
		u.Names[n.Name] = n
	}
	slice := &records.Slice{Name: proxy.SliceName{Namespace: "greens2", Name: "db-1"}, Service: in("greens2", "db"), Targets: []records.Target{{Addr: netip.MustParseAddr("10.1.0.7"), Hostname: "db-0"}}}
	u.Slices = map[proxy.SliceName]*records.Slice{slice.Name: slice}
	return u
}

// TestViewer: names of Services of other meshes do not exist for a client, in no domain, in
// no direction, and not by a packet that was kept for another client.
func TestViewer(t *testing.T) {
	var viewer atomic.Value
	s := serve(t, func(c *Config) {
		c.Viewer = func(client netip.Addr) string {
			if client != netip.MustParseAddr("127.0.0.1") {
				t.Errorf("client %s", client)
			}
			return viewer.Load().(string)
		}
	})
	s.zone.Apply(scopedNames())
	const no = dns.RcodeNameError
	for _, tc := range []struct {
		name             string
		qtype            uint16
		all, blue, green int
		answer           string
	}{
		{"kubernetes.default.svc.cluster.local.", dns.TypeA, 0, 0, 0, "A 10.96.0.1"},
		{"web.blues.svc.cluster.local.", dns.TypeA, 0, 0, no, "A 10.96.0.2"},
		{"Web.Greens.svc.cluster.local.", dns.TypeA, 0, no, 0, "A 10.96.0.3"},
		{"open.greens.svc.cluster.local.", dns.TypeA, 0, 0, 0, "A 10.96.0.4"},
		{"db.greens2.svc.cluster.local.", dns.TypeA, 0, no, 0, "A 10.1.0.7"},
		{"db-0.db.greens2.svc.cluster.local.", dns.TypeA, 0, no, 0, "A 10.1.0.7"},
		{"web.greens.svc.clusterset.local.", dns.TypeA, 0, no, 0, "A 10.96.0.6"},
		{"alias.blues.svc.cluster.local.", dns.TypeA, 0, 0, no, ""}, // where it leads is not for blue: the alias alone
		{"hop.greens2.svc.cluster.local.", dns.TypeA, 0, no, 0, ""},
		{"greens.svc.cluster.local.", dns.TypeA, 0, 0, 0, ""}, // it has one that is exported
		{"greens2.svc.cluster.local.", dns.TypeA, 0, no, 0, ""},
		{"2.0.96.10.in-addr.arpa.", dns.TypePTR, 0, 0, no, "PTR web.blues.svc.cluster.local."},
		{"7.0.1.10.in-addr.arpa.", dns.TypePTR, 0, no, 0, "PTR db-0.db.greens2.svc.cluster.local."},
		{"1.0.96.10.in-addr.arpa.", dns.TypePTR, 0, 0, 0, "PTR kubernetes.default.svc.cluster.local."},
	} {
		for range 2 { // the second time from what was kept
			for who, want := range map[string]int{"": tc.all, "blue": tc.blue, "green": tc.green, proxy.SeveralMeshes: max(tc.blue, tc.green)} {
				viewer.Store(who)
				for _, network := range []string{"udp", "tcp"} {
					r := s.ask(t, network, tc.name, tc.qtype)
					if who == proxy.SeveralMeshes && (tc.name[:4] == "open" || tc.name[:7] == "greens.") {
						want = no // it is exported to blue alone
					}
					if r.Rcode != want {
						t.Errorf("%s: %s for mesh %q: rcode %d, want %d", network, tc.name, who, r.Rcode, want)
					}
					if got := show(r.Answer); want == 0 && tc.answer != "" && !slices.Equal(got, []string{tc.name + " " + tc.answer}) {
						t.Errorf("%s: %s for mesh %q: %q", network, tc.name, who, got)
					}
				}
			}
		}
	}
	u := scopedNames()
	u.Reset = false
	moved := *u.Services[proxy.ServiceName{Namespace: "greens2", Name: "web"}]
	moved.Scope.Mesh = "blue"
	s.zone.Apply(records.Update{Services: map[proxy.ServiceName]*proxy.Service{moved.Name: &moved}})
	viewer.Store("blue")
	for _, name := range []string{"web.greens2.svc.cluster.local.", "greens2.svc.cluster.local."} {
		if r := s.ask(t, "udp", name, dns.TypeA); r.Rcode != 0 {
			t.Errorf("%s, after it moved: rcode %d", name, r.Rcode)
		}
	}
}
