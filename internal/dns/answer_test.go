package dns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// The records of the Kubernetes DNS specification 1.1, section by section, asked
// for with a resolver library by UDP and by TCP, and in the way that random
// spelling (DNS 0x20) asks.
func TestSpecification(t *testing.T) {
	const nx, ok, failed = dns.RcodeNameError, dns.RcodeSuccess, dns.RcodeServerFailure
	tests := []struct {
		section, name string
		qtype         uint16
		rcode         int
		answer, extra []string
	}{
		{"2.2", "dns-version.cluster.local.", dns.TypeTXT, ok, []string{`dns-version.cluster.local. TXT "1.1.0"`}, nil},
		{"2.2 no data", "dns-version.cluster.local.", dns.TypeA, ok, nil, nil},

		{"2.3.1 A", "kubernetes.default.svc.cluster.local.", dns.TypeA, ok, []string{"kubernetes.default.svc.cluster.local. A 10.96.0.1"}, nil},
		{"2.3.1 AAAA", "web.default.svc.cluster.local.", dns.TypeAAAA, ok, []string{"web.default.svc.cluster.local. AAAA fd00:96::10"}, nil},
		{"2.3.1 no data", "kubernetes.default.svc.cluster.local.", dns.TypeAAAA, ok, nil, nil},
		{"2.3.1 another type", "web.default.svc.cluster.local.", dns.TypeMX, ok, nil, nil},
		{"2.3.1 any", "web.default.svc.cluster.local.", dns.TypeANY, ok, []string{"web.default.svc.cluster.local. A 10.96.0.10", "web.default.svc.cluster.local. AAAA fd00:96::10"}, nil},
		{"2.3.1 another proxy's", "theirs.default.svc.cluster.local.", dns.TypeA, ok, []string{"theirs.default.svc.cluster.local. A 10.96.0.99"}, nil},
		{"2.3.1 no such Service", "none.default.svc.cluster.local.", dns.TypeA, nx, nil, nil},
		{"2.3.1 no such namespace", "web.none.svc.cluster.local.", dns.TypeA, nx, nil, nil},
		{"2.3.2", "_http._tcp.web.default.svc.cluster.local.", dns.TypeSRV, ok,
			[]string{"_http._tcp.web.default.svc.cluster.local. SRV 0 100 80 web.default.svc.cluster.local."},
			[]string{"web.default.svc.cluster.local. A 10.96.0.10", "web.default.svc.cluster.local. AAAA fd00:96::10"}},
		{"2.3.2 UDP", "_dns._udp.web.default.svc.cluster.local.", dns.TypeSRV, ok,
			[]string{"_dns._udp.web.default.svc.cluster.local. SRV 0 100 53 web.default.svc.cluster.local."},
			[]string{"web.default.svc.cluster.local. A 10.96.0.10", "web.default.svc.cluster.local. AAAA fd00:96::10"}},
		{"2.3.2 all ports", "kubernetes.default.svc.cluster.local.", dns.TypeSRV, ok,
			[]string{"kubernetes.default.svc.cluster.local. SRV 0 100 443 kubernetes.default.svc.cluster.local."}, []string{"kubernetes.default.svc.cluster.local. A 10.96.0.1"}},
		{"2.3.2 another protocol", "_http._udp.web.default.svc.cluster.local.", dns.TypeSRV, nx, nil, nil},
		{"2.3.2 no such port", "_none._tcp.web.default.svc.cluster.local.", dns.TypeSRV, nx, nil, nil},
		{"2.3.2 unnamed ports have none", "plain.default.svc.cluster.local.", dns.TypeSRV, ok, nil, nil},
		{"2.3.2 no data", "_http._tcp.web.default.svc.cluster.local.", dns.TypeA, ok, nil, nil},
		{"2.3.2 between", "_tcp.web.default.svc.cluster.local.", dns.TypeA, ok, nil, nil},
		{"2.3.2 between, another protocol", "_sctp.web.default.svc.cluster.local.", dns.TypeA, nx, nil, nil},
		{"2.3.3", "1.0.96.10.in-addr.arpa.", dns.TypePTR, ok, []string{"1.0.96.10.in-addr.arpa. PTR kubernetes.default.svc.cluster.local."}, nil},
		{"2.3.3 IPv6", mustReverse("fd00:96::10"), dns.TypePTR, ok, []string{mustReverse("fd00:96::10") + " PTR web.default.svc.cluster.local."}, nil},
		{"2.3.3 no data", "1.0.96.10.in-addr.arpa.", dns.TypeA, ok, nil, nil},
		{"2.3.3 a free address", "7.7.96.10.in-addr.arpa.", dns.TypePTR, nx, nil, nil},

		{"2.4.1", "db.default.svc.cluster.local.", dns.TypeA, ok, []string{"db.default.svc.cluster.local. A 10.1.0.1", "db.default.svc.cluster.local. A 10.1.0.2"}, nil},
		{"2.4.1 AAAA", "db.default.svc.cluster.local.", dns.TypeAAAA, ok, []string{"db.default.svc.cluster.local. AAAA fd00:1::1"}, nil},
		{"2.4.1 no ready endpoints", "empty.default.svc.cluster.local.", dns.TypeA, nx, nil, nil},
		{"2.4.1 none of the family", "six.default.svc.cluster.local.", dns.TypeA, ok, nil, nil},
		{"2.4.1 hostname", "db-0.db.default.svc.cluster.local.", dns.TypeA, ok, []string{"db-0.db.default.svc.cluster.local. A 10.1.0.1"}, nil},
		{"2.4.1 hostname, AAAA", "db-0.db.default.svc.cluster.local.", dns.TypeAAAA, ok, []string{"db-0.db.default.svc.cluster.local. AAAA fd00:1::1"}, nil},
		{"2.4.1 generated", "10-1-0-2.db.default.svc.cluster.local.", dns.TypeA, ok, []string{"10-1-0-2.db.default.svc.cluster.local. A 10.1.0.2"}, nil},
		{"2.4.1 generated, IPv6", "fd00-1--0.six.default.svc.cluster.local.", dns.TypeAAAA, ok, []string{"fd00-1--0.six.default.svc.cluster.local. AAAA fd00:1::"}, nil},
		{"2.4.1 generated where a hostname is", "10-1-0-1.db.default.svc.cluster.local.", dns.TypeA, nx, nil, nil},
		{"2.4.1 no such hostname", "db-9.db.default.svc.cluster.local.", dns.TypeA, nx, nil, nil},
		{"2.4.1 hostname of a virtual one", "web-0.web.default.svc.cluster.local.", dns.TypeA, nx, nil, nil},
		{"2.4.2", "_sql._tcp.db.default.svc.cluster.local.", dns.TypeSRV, ok,
			[]string{"_sql._tcp.db.default.svc.cluster.local. SRV 0 100 5432 10-1-0-2.db.default.svc.cluster.local.", "_sql._tcp.db.default.svc.cluster.local. SRV 0 100 5432 db-0.db.default.svc.cluster.local."},
			[]string{"10-1-0-2.db.default.svc.cluster.local. A 10.1.0.2", "db-0.db.default.svc.cluster.local. A 10.1.0.1", "db-0.db.default.svc.cluster.local. AAAA fd00:1::1"}},
		{"2.4.2 no ready endpoints", "_sql._tcp.empty.default.svc.cluster.local.", dns.TypeSRV, nx, nil, nil},
		{"2.4.3", "1.0.1.10.in-addr.arpa.", dns.TypePTR, ok, []string{"1.0.1.10.in-addr.arpa. PTR db-0.db.default.svc.cluster.local."}, nil},

		{"an endpoint of a Service with virtual IPs", "1.0.5.10.in-addr.arpa.", dns.TypePTR, ok, []string{"1.0.5.10.in-addr.arpa. PTR 10-5-0-1.web.default.svc.cluster.local."}, nil},
		{"its IPv6", mustReverse("fd00:5::"), dns.TypePTR, ok, []string{mustReverse("fd00:5::") + " PTR fd00-5--0.web.default.svc.cluster.local."}, nil},
		{"its name", "10-5-0-1.web.default.svc.cluster.local.", dns.TypeA, ok, []string{"10-5-0-1.web.default.svc.cluster.local. A 10.5.0.1"}, nil},
		{"its name, IPv6", "fd00-5--0.web.default.svc.cluster.local.", dns.TypeAAAA, ok, []string{"fd00-5--0.web.default.svc.cluster.local. AAAA fd00:5::"}, nil},
		{"its name, of the other family", "10-5-0-1.web.default.svc.cluster.local.", dns.TypeAAAA, ok, nil, nil},
		{"of two Services", "2.0.5.10.in-addr.arpa.", dns.TypePTR, ok, []string{"2.0.5.10.in-addr.arpa. PTR 10-5-0-2.plain.default.svc.cluster.local.", "2.0.5.10.in-addr.arpa. PTR 10-5-0-2.web.default.svc.cluster.local."}, nil},
		{"of one with and one without", "2.0.1.10.in-addr.arpa.", dns.TypePTR, ok, []string{"2.0.1.10.in-addr.arpa. PTR 10-1-0-2.db.default.svc.cluster.local.", "2.0.1.10.in-addr.arpa. PTR 10-1-0-2.plain.default.svc.cluster.local."}, nil},
		{"another Service's endpoint", "10-5-0-1.plain.default.svc.cluster.local.", dns.TypeA, nx, nil, nil},
		{"an endpoint that is not ready", "10-5-0-3.web.default.svc.cluster.local.", dns.TypeA, nx, nil, nil},

		{"2.5 CNAME", "outside.default.svc.cluster.local.", dns.TypeCNAME, ok, []string{"outside.default.svc.cluster.local. CNAME www.example.com."}, nil},
		{"2.5 to a Service", "inside.default.svc.cluster.local.", dns.TypeA, ok, []string{"inside.default.svc.cluster.local. CNAME web.default.svc.cluster.local.", "web.default.svc.cluster.local. A 10.96.0.10"}, nil},
		{"2.5 in two steps", "chain.default.svc.cluster.local.", dns.TypeAAAA, ok, []string{"chain.default.svc.cluster.local. CNAME inside.default.svc.cluster.local.", "inside.default.svc.cluster.local. CNAME web.default.svc.cluster.local.", "web.default.svc.cluster.local. AAAA fd00:96::10"}, nil},
		{"2.5 to nothing", "nowhere.default.svc.cluster.local.", dns.TypeA, ok, []string{"nowhere.default.svc.cluster.local. CNAME none.default.svc.cluster.local."}, nil},
		{"2.5 in a circle", "circle.default.svc.cluster.local.", dns.TypeA, failed, nil, nil},
		{"import", "web.default.svc.clusterset.local.", dns.TypeA, ok, []string{"web.default.svc.clusterset.local. A 10.96.0.77"}, nil},
		{"import, SRV", "_http._tcp.web.default.svc.clusterset.local.", dns.TypeSRV, ok,
			[]string{"_http._tcp.web.default.svc.clusterset.local. SRV 0 100 80 web.default.svc.clusterset.local."},
			[]string{"web.default.svc.clusterset.local. A 10.96.0.77"}},
		{"import, one number of two protocols", "web.default.svc.clusterset.local.", dns.TypeSRV, ok,
			[]string{"web.default.svc.clusterset.local. SRV 0 100 80 web.default.svc.clusterset.local."},
			[]string{"web.default.svc.clusterset.local. A 10.96.0.77"}},
		{"import, headless", "db.default.svc.clusterset.local.", dns.TypeA, ok,
			[]string{"db.default.svc.clusterset.local. A 10.1.0.1", "db.default.svc.clusterset.local. A 10.2.0.1"}, nil},
		{"import, hostname of a cluster", "db-0.west.db.default.svc.clusterset.local.", dns.TypeA, ok,
			[]string{"db-0.west.db.default.svc.clusterset.local. A 10.2.0.1"}, nil},
		{"import, hostname of another cluster", "db-0.north.db.default.svc.clusterset.local.", dns.TypeA, nx, nil, nil},
		{"import, hostname without a cluster", "db-0.db.default.svc.clusterset.local.", dns.TypeA, nx, nil, nil},
		{"import, a cluster", "west.db.default.svc.clusterset.local.", dns.TypeA, ok, nil, nil},
		{"import, SRV of hostnames", "_sql._tcp.db.default.svc.clusterset.local.", dns.TypeSRV, ok,
			[]string{"_sql._tcp.db.default.svc.clusterset.local. SRV 0 100 5432 db-0.east.db.default.svc.clusterset.local.",
				"_sql._tcp.db.default.svc.clusterset.local. SRV 0 100 5432 db-0.west.db.default.svc.clusterset.local."},
			[]string{"db-0.east.db.default.svc.clusterset.local. A 10.1.0.1", "db-0.west.db.default.svc.clusterset.local. A 10.2.0.1"}},
		{"import, none", "plain.default.svc.clusterset.local.", dns.TypeA, nx, nil, nil},
		{"import, no pods", "10-1-0-1.default.pod.clusterset.local.", dns.TypeA, nx, nil, nil},
		{"import, above", "svc.clusterset.local.", dns.TypeA, ok, nil, nil},
		{"import, apex", "clusterset.local.", dns.TypeNS, ok, []string{"clusterset.local. NS ns.dns.clusterset.local."}, nil},
		{"import of an alias", "imported.default.svc.cluster.local.", dns.TypeA, ok,
			[]string{"imported.default.svc.cluster.local. CNAME web.default.svc.clusterset.local.", "web.default.svc.clusterset.local. A 10.96.0.77"}, nil},

		{"FQDN slice", "fqdn.default.svc.cluster.local.", dns.TypeCNAME, ok, []string{"fqdn.default.svc.cluster.local. CNAME a.example.com."}, nil},

		{"2.6 pods", "10-9-8-7.default.pod.cluster.local.", dns.TypeA, ok, []string{"10-9-8-7.default.pod.cluster.local. A 10.9.8.7"}, nil},
		{"2.6 pods, IPv6", "fd00--7.default.pod.cluster.local.", dns.TypeAAAA, ok, []string{"fd00--7.default.pod.cluster.local. AAAA fd00::7"}, nil},
		{"2.6 no address", "web.default.pod.cluster.local.", dns.TypeA, nx, nil, nil},

		{"the zone", "cluster.local.", dns.TypeNS, ok, []string{"cluster.local. NS ns.dns.cluster.local."}, nil},
		{"the zone, no data", "cluster.local.", dns.TypeA, ok, nil, nil},
		{"the name server", "ns.dns.cluster.local.", dns.TypeA, ok, []string{"ns.dns.cluster.local. A 127.0.0.1"}, nil},
		{"names that only lead on: svc", "svc.cluster.local.", dns.TypeA, ok, nil, nil},
		{"names that only lead on: namespace", "default.svc.cluster.local.", dns.TypeA, ok, nil, nil},
		{"no such namespace", "none.svc.cluster.local.", dns.TypeA, nx, nil, nil},
		{"anything else", "web.default.cluster.local.", dns.TypeA, nx, nil, nil},
		{"too deep", "a._http._tcp.web.default.svc.cluster.local.", dns.TypeA, nx, nil, nil},
		{"not the zone, though it looks so", "evilcluster.local.", dns.TypeA, failed, nil, nil},
	}
	s := serve(t)
	for _, tt := range tests {
		t.Run(tt.section, func(t *testing.T) {
			for _, network := range []string{"udp", "udp", "tcp"} { // the second time from the cache
				for _, name := range []string{tt.name, spellOddly(tt.name)} {
					r := s.ask(t, network, name, tt.qtype)
					if r.Rcode != tt.rcode {
						t.Fatalf("%s %s: %s, want %s", network, name, dns.RcodeToString[r.Rcode], dns.RcodeToString[tt.rcode])
					}
					check(t, tt.qtype, name, r)
					fold := cmp.Transformer("fold", strings.ToLower)
					if diff := cmp.Diff(tt.answer, show(r.Answer), fold); diff != "" {
						t.Errorf("%s %s: answer %s", network, name, diff)
					}
					if diff := cmp.Diff(tt.extra, show(r.Extra), fold); diff != "" {
						t.Errorf("%s %s: extra %s", network, name, diff)
					}
				}
			}
		})
	}
}

// check looks at what every answer must have.
func check(t *testing.T, qtype uint16, name string, r *dns.Msg) {
	t.Helper()
	if r.Question[0].Name != name || r.Question[0].Qtype != qtype || !r.Response || !r.RecursionDesired || !r.RecursionAvailable {
		t.Errorf("header %+v, question %+v", r.MsgHdr, r.Question)
	}
	if len(r.Answer) > 0 && r.Answer[0].Header().Name != name {
		t.Errorf("owner %s, asked for %s", r.Answer[0].Header().Name, name)
	}
	for _, rr := range r.Answer {
		if rr.Header().Ttl != ttl {
			t.Errorf("time to live of %v", rr)
		}
	}
	if r.Rcode == dns.RcodeServerFailure {
		return
	}
	negative := len(r.Answer) == 0 || r.Rcode != dns.RcodeSuccess
	switch {
	case !r.Authoritative:
		t.Error("not authoritative")
	case negative && len(r.Ns) == 1:
		origin := "cluster.local."
		if strings.HasSuffix(strings.ToLower(name), clusterSet) {
			origin = clusterSet
		}
		if soa, ok := r.Ns[0].(*dns.SOA); !ok || !strings.EqualFold(soa.Hdr.Name, origin) || soa.Minttl != ttl {
			t.Errorf("authority %v", r.Ns)
		}
	case negative, len(r.Ns) != 0:
		t.Errorf("authority %v", r.Ns)
	}
}

func spellOddly(name string) string {
	b := []byte(name)
	for i := range b {
		if i%2 == 0 {
			b[i] = strings.ToUpper(name)[i]
		}
	}
	return string(b)
}

func mustReverse(ip string) string {
	name, err := dns.ReverseAddr(ip)
	if err != nil {
		panic(err)
	}
	return name
}

func TestNothingIsDeniedBeforeThereIsAState(t *testing.T) {
	empty := records.New()
	s := serve(t, func(c *Config) { c.Zone = empty })
	for range 2 {
		r := s.ask(t, "udp", "web.default.svc.cluster.local.", dns.TypeA)
		if r.Rcode != dns.RcodeServerFailure || len(r.Ns) != 0 {
			t.Fatalf("got %v", r)
		}
	}
	empty.Apply(sample())
	if r := s.ask(t, "udp", "web.default.svc.cluster.local.", dns.TypeA); len(r.Answer) != 1 {
		t.Errorf("got %v", r)
	}
}

func TestChangesShowAtOnce(t *testing.T) {
	s := serve(t)
	ask := func() []string {
		return show(s.ask(t, "udp", "web.default.svc.cluster.local.", dns.TypeA).Answer)
	}
	if got := ask(); len(got) != 1 {
		t.Fatal(got)
	}
	name := named("web")
	s.zone.Apply(records.Update{Services: map[proxy.ServiceName]*proxy.Service{name: {Name: name, ClusterIPs: addrs("10.96.0.77")}}})
	if diff := cmp.Diff([]string{"web.default.svc.cluster.local. A 10.96.0.77"}, ask()); diff != "" {
		t.Error(diff)
	}
	s.zone.Apply(records.Update{Services: map[proxy.ServiceName]*proxy.Service{name: nil}})
	if r := s.ask(t, "udp", "web.default.svc.cluster.local.", dns.TypeA); r.Rcode != dns.RcodeNameError {
		t.Errorf("got %v", r)
	}
	if r := s.ask(t, "udp", "10.0.96.10.in-addr.arpa.", dns.TypePTR); r.Rcode != dns.RcodeNameError {
		t.Errorf("the way back: %v", r)
	}
}

func TestReverseNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bytes")
		a := netip.AddrFrom16([16]byte(b))
		if rapid.Bool().Draw(t, "IPv4") {
			a = netip.AddrFrom4([4]byte(b[:4]))
		}
		got, ok := arpa(mustReverse(a.String()))
		if a.Is4In6() {
			return
		}
		if !ok || got != a {
			t.Fatalf("%s: %v %v", a, got, ok)
		}
	})
	for _, name := range []string{"in-addr.arpa.", "1.2.3.in-addr.arpa.", "01.2.3.4.in-addr.arpa.", "1.2.3.256.in-addr.arpa.", "1.2.3.4.5.in-addr.arpa.", "x.ip6.arpa.", strings.Repeat("g.", 32) + "ip6.arpa.", strings.Repeat("11", 31) + "1.ip6.arpa."} {
		if a, ok := arpa(name); ok {
			t.Errorf("%s is %s", name, a)
		}
	}
}
