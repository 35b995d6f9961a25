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

// TestOutside: names of services outside every mesh are virtual IPs for workloads of their
// mesh, the real addresses for everybody else and for the agent itself.
func TestOutside(t *testing.T) {
	real := startResolver(t, func(q *dns.Msg, over string) *dns.Msg {
		switch q.Question[0].Qtype {
		case dns.TypeA:
			return says(q.Question[0].Name+" 60 IN A 203.0.113.7")(q, over)
		case dns.TypeMX:
			return says(q.Question[0].Name+" 60 IN MX 1 mail.example.")(q, over)
		}
		return says()(q, over)
	})
	var mesh atomic.Value
	mesh.Store("retail")
	s := serve(t, upstreams(real), func(c *Config) { c.Mesh = func(netip.Addr) string { return mesh.Load().(string) } })
	pay, four := proxy.ServiceName{Namespace: "shop", Name: "pay"}, proxy.ServiceName{Namespace: "shop", Name: "four"}
	u := records.Update{
		Services: map[proxy.ServiceName]*proxy.Service{
			pay: {Name: pay, ClusterIPs: addrs("10.96.1.1", "fd00:96::101")}, four: {Name: four, ClusterIPs: addrs("10.96.1.2")},
		},
		Names: map[proxy.ServiceName]*records.Name{named("alias"): {Name: named("alias"), ExternalName: "api.pay.example"}},
		Hosts: map[proxy.ServiceName]*records.Outside{
			pay: {Mesh: "retail", Hosts: []string{"api.pay.example", "pay.example"}}, four: {Mesh: "retail", Hosts: []string{"four.example"}},
		},
	}
	s.zone.Apply(u)
	if !s.zone.IsOutside(netip.MustParseAddr("10.96.1.1")) || s.zone.IsOutside(netip.MustParseAddr("10.96.0.10")) {
		t.Error("the virtual IPs of external services are not known as such")
	}
	const alias = "alias.default.svc.cluster.local."
	check := func(when string, cases []outsideCase) {
		t.Helper()
		for range 2 { // the second time from what may have been kept
			for _, network := range []string{"udp", "tcp"} {
				for _, tc := range cases {
					mesh.Store(tc.mesh)
					r := s.ask(t, network, tc.name, tc.qtype)
					if got := show(r.Answer); r.Rcode != 0 || !slices.Equal(got, tc.want) {
						t.Errorf("%s: %s %s of mesh %s by %s: rcode %d, %q; want %q", when, tc.name, dns.TypeToString[tc.qtype], tc.mesh, network, r.Rcode, got, tc.want)
					}
				}
			}
		}
	}
	check("at first", []outsideCase{
		{"retail", "api.pay.example.", dns.TypeA, []string{"api.pay.example. A 10.96.1.1"}},
		{"retail", "Pay.Example.", dns.TypeAAAA, []string{"Pay.Example. AAAA fd00:96::101"}},
		{"retail", "four.example.", dns.TypeAAAA, nil},
		{"retail", "pay.example.", dns.TypeHTTPS, nil},
		{"retail", "pay.example.", dns.TypeMX, []string{"pay.example. MX 1 mail.example."}},
		{"retail", "www.pay.example.", dns.TypeA, []string{"www.pay.example. A 203.0.113.7"}},
		{"retail", alias, dns.TypeA, []string{alias + " CNAME api.pay.example.", "api.pay.example. A 10.96.1.1"}},
		{"other", alias, dns.TypeA, []string{alias + " CNAME api.pay.example.", "api.pay.example. A 203.0.113.7"}},
		{"other", "pay.example.", dns.TypeA, []string{"pay.example. A 203.0.113.7"}},
	})
	mesh.Store("retail")
	if r := s.ask(t, "udp", "four.example.", dns.TypeAAAA); len(r.Ns) != 1 || !r.Authoritative {
		t.Errorf("no record of a family: %v", r)
	}
	got, err := s.Resolver().LookupNetIP(t.Context(), "ip4", "api.pay.example")
	if err != nil || len(got) != 1 || got[0].Unmap().String() != "203.0.113.7" {
		t.Errorf("the agent itself finds %v, %v", got, err)
	}

	s.zone.Apply(records.Update{Hosts: map[proxy.ServiceName]*records.Outside{pay: {Mesh: "retail", Hosts: []string{"pay.example"}}}})
	check("with one host less", []outsideCase{
		{"retail", "api.pay.example.", dns.TypeA, []string{"api.pay.example. A 203.0.113.7"}},
		{"retail", "pay.example.", dns.TypeA, []string{"pay.example. A 10.96.1.1"}},
	})
	s.zone.Apply(records.Update{Hosts: map[proxy.ServiceName]*records.Outside{pay: nil}})
	check("removed", []outsideCase{{"retail", "pay.example.", dns.TypeA, []string{"pay.example. A 203.0.113.7"}}})
}

type outsideCase struct {
	mesh, name string
	qtype      uint16
	want       []string
}
