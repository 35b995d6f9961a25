package dns

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func meshNames() records.Update {
	u := sample()
	u.VirtualIPs = map[proxy.ServiceName]*proxy.VirtualIP{}
	for _, v := range []*proxy.VirtualIP{
		{Name: proxy.ServiceName{Namespace: "default", Name: "web_default_svc_80.mesh"}, Addresses: addrs("240.0.0.1", "fd00:240::1")},
		{Name: proxy.ServiceName{Namespace: "default", Name: "backend.mesh"}, Addresses: addrs("240.0.0.2")},
		{Name: proxy.ServiceName{Namespace: "blue", Name: "backend.mesh"}, Addresses: addrs("240.0.0.3")},
		{Name: proxy.ServiceName{Namespace: "default", Name: "direct.mesh"}, Service: named("web")},
	} {
		u.VirtualIPs[v.Name] = v
	}
	u.Names[named("alias")] = &records.Name{Name: named("alias"), ExternalName: "backend.mesh"}
	return u
}

// TestMeshNames: names of a mesh resolve for its workloads alone, in either form, and never
// from a packet that was kept for another client.
func TestMeshNames(t *testing.T) {
	var mesh atomic.Value
	mesh.Store("default")
	s := serve(t, func(c *Config) {
		c.Mesh = func(client netip.Addr) string {
			if client.Unmap() != netip.MustParseAddr("127.0.0.1") {
				t.Errorf("client %s", client)
			}
			return mesh.Load().(string)
		}
	})
	s.zone.Apply(meshNames())
	for range 2 { // the second time from what may have been kept
		for _, network := range []string{"udp", "tcp"} {
			for _, tc := range []struct {
				mesh, name string
				qtype      uint16
				rcode      int
				want       []string
			}{
				{"default", "web_default_svc_80.mesh.", dns.TypeA, 0, []string{"web_default_svc_80.mesh. A 240.0.0.1"}},
				{"default", "Web.default.svc.80.mesh.", dns.TypeAAAA, 0, []string{"Web.default.svc.80.mesh. AAAA fd00:240::1"}},
				{"default", "backend.mesh.", dns.TypeA, 0, []string{"backend.mesh. A 240.0.0.2"}},
				{"default", "backend.mesh.", dns.TypeAAAA, 0, nil},
				{"blue", "backend.mesh.", dns.TypeA, 0, []string{"backend.mesh. A 240.0.0.3"}},
				{"blue", "web_default_svc_80.mesh.", dns.TypeA, dns.RcodeNameError, nil},
				{"default", "none.mesh.", dns.TypeA, dns.RcodeNameError, nil},
				{"default", "svc.80.mesh.", dns.TypeA, 0, nil},
				{"default", "direct.mesh.", dns.TypeA, 0, []string{"direct.mesh. A 10.96.0.10"}},
				{"default", "ns.dns.mesh.", dns.TypeA, 0, []string{"ns.dns.mesh. A 127.0.0.1"}},
				{"default", "1.0.0.240.in-addr.arpa.", dns.TypePTR, 0, []string{"1.0.0.240.in-addr.arpa. PTR web_default_svc_80.mesh."}},
				{"blue", "1.0.0.240.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError, nil},
				{"default", "alias.default.svc.cluster.local.", dns.TypeA, 0,
					[]string{"alias.default.svc.cluster.local. CNAME backend.mesh.", "backend.mesh. A 240.0.0.2"}},
				{"blue", "alias.default.svc.cluster.local.", dns.TypeA, 0,
					[]string{"alias.default.svc.cluster.local. CNAME backend.mesh.", "backend.mesh. A 240.0.0.3"}},
			} {
				mesh.Store(tc.mesh)
				r := s.ask(t, network, tc.name, tc.qtype)
				if got := show(r.Answer); r.Rcode != tc.rcode || !slices.Equal(got, tc.want) {
					t.Errorf("%s: %s %s in mesh %s: rcode %d, %q; want %d, %q", network, tc.name, dns.TypeToString[tc.qtype], tc.mesh,
						r.Rcode, got, tc.rcode, tc.want)
				}
			}
		}
	}
	u := records.Update{VirtualIPs: map[proxy.ServiceName]*proxy.VirtualIP{{Namespace: "default", Name: "backend.mesh"}: nil}}
	s.zone.Apply(u)
	mesh.Store("default")
	if r := s.ask(t, "udp", "backend.mesh.", dns.TypeA); r.Rcode != dns.RcodeNameError {
		t.Errorf("a name that is gone: %v", r)
	}
	if _, err := New(Config{Zone: records.New(), Domain: "mesh"}); err == nil {
		t.Error("the cluster domain may be mesh")
	}
}
