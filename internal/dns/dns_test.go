package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		serveChild()
		return
	}
	goleak.VerifyTestMain(m)
}

func addrs(in ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range in {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func named(name string) proxy.ServiceName { return proxy.ServiceName{Namespace: "default", Name: name} }

// sample is the state of a small cluster.
func sample() records.Update {
	virtual := func(name string, ips []netip.Addr, ports ...proxy.Port) *proxy.Service {
		return &proxy.Service{Name: named(name), ClusterIPs: ips, Ports: ports}
	}
	slice := func(service, name string, ports []proxy.SlicePort, targets ...records.Target) *records.Slice {
		return &records.Slice{Name: proxy.SliceName{Namespace: "default", Name: name}, Service: named(service), Ports: ports, Targets: targets}
	}
	sql := []proxy.SlicePort{{Name: "sql", Port: 5432, Protocol: proxy.TCP}, {Port: 9, Protocol: proxy.UDP}}
	u := records.Update{
		Reset:    true,
		Services: map[proxy.ServiceName]*proxy.Service{},
		Names:    map[proxy.ServiceName]*records.Name{},
		Slices:   map[proxy.SliceName]*records.Slice{},

		Endpoints: map[proxy.SliceName]*proxy.Slice{},
	}
	for _, s := range []*proxy.Service{
		virtual("kubernetes", addrs("10.96.0.1"), proxy.Port{Name: "https", Protocol: proxy.TCP, Port: 443}),
		virtual("web", addrs("10.96.0.10", "fd00:96::10"), proxy.Port{Name: "http", Protocol: proxy.TCP, Port: 80}, proxy.Port{Name: "dns", Protocol: proxy.UDP, Port: 53}),
		virtual(mcs.DerivedServiceName("default", "web"), addrs("10.96.0.77"), proxy.Port{Name: "http", Protocol: proxy.TCP, Port: 80},
			proxy.Port{Name: "http3", Protocol: proxy.UDP, Port: 80}),
		virtual("plain", addrs("10.96.0.11"), proxy.Port{Protocol: proxy.TCP, Port: 80}),
	} {
		u.Services[s.Name] = s
	}
	for _, n := range []*records.Name{
		{Name: named("db")}, {Name: named(mcs.DerivedServiceName("default", "db"))}, {Name: named("empty")}, {Name: named("fqdn")}, {Name: named("six")}, {Name: named("big")},
		{Name: named("outside"), ExternalName: "www.example.com"},
		{Name: named("inside"), ExternalName: "web.default.svc.cluster.local"},
		{Name: named("chain"), ExternalName: "inside.default.svc.cluster.local"},
		{Name: named("circle"), ExternalName: "circle.default.svc.cluster.local"},
		{Name: named("imported"), ExternalName: "web.default.svc.clusterset.local"},
		{Name: named("nowhere"), ExternalName: "none.default.svc.cluster.local"},
		{Name: named("theirs"), ClusterIPs: addrs("10.96.0.99"), Ports: []proxy.Port{{Name: "http", Protocol: proxy.TCP, Port: 80}}},
	} {
		u.Names[n.Name] = n
	}
	big := slice("big", "big-1", nil)
	for i := range 200 {
		big.Targets = append(big.Targets, records.Target{Addr: netip.AddrFrom4([4]byte{10, 3, byte(i), 1})})
	}
	imported := func(cluster, address string) *records.Slice {
		s := slice(mcs.DerivedServiceName("default", "db"), "db-"+cluster, sql, records.Target{Addr: netip.MustParseAddr(address), Hostname: "db-0"})
		s.Cluster = cluster
		return s
	}
	for _, s := range []*records.Slice{
		slice("db", "db-1", sql, records.Target{Addr: netip.MustParseAddr("10.1.0.1"), Hostname: "db-0"}, records.Target{Addr: netip.MustParseAddr("10.1.0.2")}),
		slice("db", "db-2", sql, records.Target{Addr: netip.MustParseAddr("fd00:1::1"), Hostname: "db-0"}),
		slice("six", "six-1", sql, records.Target{Addr: netip.MustParseAddr("fd00:1::")}),
		slice("fqdn", "fqdn-1", sql, records.Target{Domain: "b.example.com"}, records.Target{Domain: "a.example.com"}),
		big,
		imported("east", "10.1.0.1"), imported("west", "10.2.0.1"),
	} {
		u.Slices[s.Name] = s
	}
	endpoints := func(name, service string, ready bool, ips ...string) {
		s := &proxy.Slice{Name: proxy.SliceName{Namespace: "default", Name: name}, Service: named(service)}
		for _, a := range addrs(ips...) {
			s.Endpoints = append(s.Endpoints, proxy.SliceEndpoint{Addr: a, Ready: ready})
		}
		u.Endpoints[s.Name] = s
	}
	endpoints("web-1", "web", true, "10.5.0.1", "10.5.0.2")
	endpoints("web-2", "web", true, "fd00:5::")
	endpoints("web-3", "web", false, "10.5.0.3")
	endpoints("plain-1", "plain", true, "10.5.0.2", "10.1.0.2", "10.96.0.1", "127.0.0.1")
	endpoints("gone-1", "gone", true, "10.5.0.4")
	return u
}

// served is a server on loopback sockets.
type served struct {
	*Server
	zone *records.Zone
	addr string
}

func serve(t *testing.T, edits ...func(*Config)) *served {
	t.Helper()
	z := records.New()
	z.Apply(sample())
	config := Config{
		Zone: z, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/108")},
		Addresses: addrs("127.0.0.1"),
	}
	for _, edit := range edits {
		edit(&config)
	}
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	out := &served{Server: s, zone: config.Zone}
	out.addr = listenAndServe(t, s)
	return out
}

// listenAndServe gives a server the same port for UDP and TCP.
func listenAndServe(t *testing.T, s *Server) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.ServeUDP(ctx, conn); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() {
		if err := s.ServeTCP(ctx, listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return listener.Addr().String()
}

// ask sends a question as a stub resolver does.
func (s *served) ask(t *testing.T, network, name string, qtype uint16, edits ...func(*dns.Msg)) *dns.Msg {
	t.Helper()
	q := new(dns.Msg)
	q.SetQuestion(name, qtype)
	for _, edit := range edits {
		edit(q)
	}
	client := dns.Client{Net: network, UDPSize: 4096}
	r, _, err := client.Exchange(q, s.addr)
	if err != nil {
		t.Fatalf("%s %s by %s: %v", name, dns.TypeToString[qtype], network, err)
	}
	return r
}

// show prints records without the time to live, each section sorted.
func show(section []dns.RR) []string {
	var out []string
	for _, rr := range section {
		if rr.Header().Rrtype != dns.TypeOPT {
			out = append(out, strings.Join(strings.Fields(strings.ReplaceAll(rr.String(), fmt.Sprintf("\t%d\tIN", rr.Header().Ttl), "")), " "))
		}
	}
	slices.Sort(out)
	return out
}
