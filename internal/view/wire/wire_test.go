package wire

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

var compareModel = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

func addrs(in ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range in {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func genAddr() *rapid.Generator[netip.Addr] {
	return rapid.Custom(func(t *rapid.T) netip.Addr {
		n := rapid.SampledFrom([]int{4, 16}).Draw(t, "family")
		a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "address"))
		return a.Unmap()
	})
}

var (
	genName     = rapid.StringMatching(`[a-z][a-z0-9.-]{0,8}`)
	genOptional = rapid.StringMatching(`([a-z]{1,3})?`)
	genProtocol = rapid.SampledFrom([]proxy.Protocol{proxy.TCP, proxy.UDP, proxy.SCTP})
	genPort     = rapid.Uint16Range(1, 65535)
)

func genRouting(t *rapid.T) *proxy.Routing {
	zones := rapid.SliceOfN(rapid.Map(genName, func(s string) locality.Zone { return locality.Zone(s) }), 0, 2)
	r := &proxy.Routing{
		Route: genOptional.Draw(t, "route"), Policy: genOptional.Draw(t, "policy"), SourceHash: rapid.Bool().Draw(t, "hash"),
		ConnectTimeout: time.Duration(rapid.IntRange(0, maxConnectMillis).Draw(t, "connect")) * time.Millisecond,
		TCPAttempts:    rapid.Uint32Range(0, maxTCPAttempts).Draw(t, "attempts"),
		Backends: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) proxy.RouteBackend {
			b := proxy.RouteBackend{Weight: rapid.Uint32Range(1, maxRouteWeight).Draw(t, "weight")}
			if rapid.Bool().Draw(t, "usable") {
				b.Service = proxy.ServiceName{Namespace: genName.Draw(t, "namespace"), Name: genName.Draw(t, "name")}
				b.Port = genPort.Draw(t, "port")
			}
			return b
		}), 0, 3).Draw(t, "backends"),
	}
	if rapid.Bool().Draw(t, "locality") {
		r.Locality = &proxy.Locality{
			Site: locality.Site(genOptional.Draw(t, "site")),
			Mode: rapid.SampledFrom([]proxy.LocalityMode{proxy.LocalityPlan, proxy.LocalityStrict, proxy.LocalityOff}).Draw(t, "mode"),
			Failover: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) proxy.Failover {
				return proxy.Failover{
					From: zones.Draw(t, "from"), Zones: zones.Draw(t, "zones"),
					To: rapid.SampledFrom([]proxy.FailoverTo{proxy.FailoverAny, proxy.FailoverNone, proxy.FailoverOnly, proxy.FailoverAnyExcept}).Draw(t, "to"),
				}
			}), 0, 2).Draw(t, "failover"),
		}
	}
	return r
}

func genService(t *rapid.T) *proxy.Service {
	ips := rapid.SliceOfN(genAddr(), 0, 3)
	s := &proxy.Service{
		Name:            proxy.ServiceName{Namespace: genName.Draw(t, "namespace"), Name: genName.Draw(t, "name")},
		ClusterIPs:      rapid.SliceOfN(genAddr(), 1, 2).Draw(t, "cluster"),
		ExternalIPs:     ips.Draw(t, "external"),
		LoadBalancerIPs: ips.Draw(t, "balancer"),
		SourceRanges: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) netip.Prefix {
			a := genAddr().Draw(t, "a")
			return netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, "bits")).Masked()
		}), 0, 3).Draw(t, "ranges"),
		Ports: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) proxy.Port {
			return proxy.Port{Name: genOptional.Draw(t, "name"), Protocol: genProtocol.Draw(t, "protocol"), Port: genPort.Draw(t, "port"),
				NodePort: rapid.Uint16().Draw(t, "node port"), AppProtocol: genOptional.Draw(t, "app")}
		}), 0, 3).Draw(t, "ports"),
		InternalLocal: rapid.Bool().Draw(t, "internal"), ExternalLocal: rapid.Bool().Draw(t, "external"),
		AffinityTimeout:     time.Duration(rapid.IntRange(0, maxAffinity).Draw(t, "affinity")) * time.Second,
		HealthCheckNodePort: rapid.Uint16().Draw(t, "health"),
		PreserveDestination: rapid.Bool().Draw(t, "preserve"),
		WarmUp:              time.Duration(rapid.IntRange(0, maxWarmUpMillis).Draw(t, "warm-up")) * time.Millisecond,
	}
	for _, p := range s.Ports {
		if rapid.Bool().Draw(t, "routed") {
			if s.Routing == nil {
				s.Routing = map[string]*proxy.Routing{}
			}
			r := genRouting(t)
			for _, namespace := range rapid.SliceOfNDistinct(genName, 0, 2, rapid.ID).Draw(t, "consumers") {
				if r.Consumers == nil {
					r.Consumers = map[string]*proxy.Routing{}
				}
				r.Consumers[namespace] = genRouting(t)
			}
			s.Routing[p.Name] = r
		}
	}
	return s
}

func genSlice(t *rapid.T) *proxy.Slice {
	ns := genName.Draw(t, "namespace")
	hints := rapid.SliceOfN(genName, 0, 3)
	var trigger time.Time
	if at := rapid.Int64().Draw(t, "trigger"); at != 0 {
		trigger = time.Unix(0, at).UTC()
	}
	s := &proxy.Slice{
		Trigger: trigger,
		Name:    proxy.SliceName{Namespace: ns, Name: genName.Draw(t, "name")},
		Service: proxy.ServiceName{Namespace: ns, Name: genName.Draw(t, "service")},
		Ports: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) proxy.SlicePort {
			return proxy.SlicePort{Name: genOptional.Draw(t, "name"), Protocol: genProtocol.Draw(t, "protocol"), Port: genPort.Draw(t, "port")}
		}), 0, 3).Draw(t, "ports"),
		Endpoints: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) proxy.SliceEndpoint {
			return proxy.SliceEndpoint{
				Addr: genAddr().Draw(t, "address"), Node: genOptional.Draw(t, "node"), Zone: locality.Zone(genOptional.Draw(t, "zone")),
				Ready: rapid.Bool().Draw(t, "ready"), Serving: rapid.Bool().Draw(t, "serving"), Terminating: rapid.Bool().Draw(t, "terminating"),
				Hints: proxy.HintsOf(locality.Zones(hints.Draw(t, "zones")...), hints.Draw(t, "nodes")), Weight: rapid.Uint32().Draw(t, "weight"),
			}
		}), 0, 5).Draw(t, "endpoints"),
	}
	for i := range s.Endpoints {
		if since := rapid.Int32Min(0).Draw(t, "since"); since > 0 {
			s.SetReadySince(i, int64(since), len(s.Endpoints))
		}
	}
	return s
}

// TestRoundTrip: what is encoded is decoded as it was.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		service := genService(t)
		body, err := EncodeService(service)
		if err != nil {
			t.Fatal(err)
		}
		gotService, err := DecodeService(service.Name.String(), body)
		if diff := cmp.Diff(service, gotService, compareModel); err != nil || diff != "" {
			t.Fatalf("service: %v, -encoded +decoded:\n%s", err, diff)
		}
		slice := genSlice(t)
		if body, err = EncodeSlice(slice); err != nil {
			t.Fatal(err)
		}
		gotSlice, err := DecodeSlice(ResourceName(slice.Name.Namespace, slice.Name.Name), body)
		if diff := cmp.Diff(slice, gotSlice, compareModel); err != nil || diff != "" {
			t.Fatalf("slice: %v, -encoded +decoded:\n%s", err, diff)
		}
	})
}

func TestDecodeRefuses(t *testing.T) {
	service := func(change func(*nodev1.Service)) []byte {
		m := &nodev1.Service{Namespace: "ns", Name: "web", ClusterIps: [][]byte{{10, 0, 0, 1}},
			Ports: []*nodev1.ServicePort{{Protocol: nodev1.Protocol_PROTOCOL_TCP, Port: 80}}}
		change(m)
		b, _ := proto.Marshal(m)
		return b
	}
	slice := func(change func(*nodev1.EndpointSlice)) []byte {
		m := &nodev1.EndpointSlice{Namespace: "ns", Name: "web", Service: "web", Names: []string{"n"},
			Endpoints: []*nodev1.Endpoint{{Address: []byte{10, 0, 0, 2}, Node: 1}}}
		change(m)
		b, _ := proto.Marshal(m)
		return b
	}
	for _, tt := range []struct {
		typ, want string
		body      []byte
	}{
		{ServiceType, "", service(func(*nodev1.Service) {})},
		{SliceType, "", slice(func(*nodev1.EndpointSlice) {})},
		{ServiceType, "cannot parse", []byte{0xff}},
		{ServiceType, "content is of", service(func(m *nodev1.Service) { m.Name = "other" })},
		{ServiceType, "no cluster address", service(func(m *nodev1.Service) { m.ClusterIps = nil })},
		{ServiceType, "not an address: 3 bytes", service(func(m *nodev1.Service) { m.ClusterIps = [][]byte{{1, 2, 3}} })},
		{ServiceType, "not an address", service(func(m *nodev1.Service) { m.ExternalIps = [][]byte{{15: 1, 10: 255, 11: 255}} })},
		{ServiceType, "port number 0", service(func(m *nodev1.Service) { m.Ports[0].Port = 0 })},
		{ServiceType, "port number 65536", service(func(m *nodev1.Service) { m.Ports[0].NodePort = 65536 })},
		{ServiceType, "unknown protocol 9", service(func(m *nodev1.Service) { m.Ports[0].Protocol = 9 })},
		{ServiceType, "33 bits of 32", service(func(m *nodev1.Service) { m.SourceRanges = []*nodev1.Prefix{{Address: []byte{1, 2, 3, 4}, Bits: 33}} })},
		{SliceType, "no service", slice(func(m *nodev1.EndpointSlice) { m.Service = "" })},
		{SliceType, "name 2 of 1", slice(func(m *nodev1.EndpointSlice) { m.Endpoints[0].Zone = 2 })},
		{SliceType, "hint without a name", slice(func(m *nodev1.EndpointSlice) { m.Endpoints[0].HintZones = []uint32{0} })},
		{SliceType, "9 hints", slice(func(m *nodev1.EndpointSlice) { m.Endpoints[0].HintZones = make([]uint32, 9) })},
	} {
		var err error
		if tt.typ == ServiceType {
			_, err = DecodeService("ns/web", tt.body)
		} else {
			_, err = DecodeSlice("ns/web", tt.body)
		}
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.typ, err, tt.want)
		}
	}
}

// TestUnknownFields: an older agent reads what a newer control plane writes.
func TestUnknownFields(t *testing.T) {
	body, err := EncodeService(&proxy.Service{Name: proxy.ServiceName{Namespace: "ns", Name: "web"}, ClusterIPs: addrs("10.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	body = append(body, 0x82, 0x7d, 0x01, 'x') // field 2000, one byte
	if _, err := DecodeService("ns/web", body); err != nil {
		t.Error(err)
	}
}

// FuzzDecode: whatever comes, it is refused, or it can be encoded again and
// means the same.
func FuzzDecode(f *testing.F) {
	body, _ := EncodeSlice(&proxy.Slice{Name: proxy.SliceName{Namespace: "ns", Name: "web"}, Service: proxy.ServiceName{Namespace: "ns", Name: "web"},
		Ports:     []proxy.SlicePort{{Name: "p", Port: 1, Protocol: proxy.TCP}},
		Endpoints: []proxy.SliceEndpoint{{Addr: netip.MustParseAddr("fd00::1"), Node: "n", Zone: "z", Ready: true, Hints: proxy.HintsOf(locality.Zones("z"), nil)}}})
	f.Add("ns/web", body)
	body, _ = EncodeService(&proxy.Service{Name: proxy.ServiceName{Namespace: "ns", Name: "web"}, ClusterIPs: addrs("10.0.0.1"),
		Ports: []proxy.Port{{Port: 1, Protocol: proxy.SCTP}}, SourceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	f.Add("ns/web", body)
	body, _ = EncodeName(&records.Name{Name: proxy.ServiceName{Namespace: "ns", Name: "web"}, ExternalName: "x.test"})
	f.Add("ns/web", body)
	body, _ = EncodeNameSlice(&records.Slice{Name: proxy.SliceName{Namespace: "ns", Name: "web"}, Service: proxy.ServiceName{Namespace: "ns", Name: "web"},
		Targets: []records.Target{{Addr: netip.MustParseAddr("fd00::1"), Hostname: "h"}, {Domain: "x.test"}}})
	f.Add("ns/web", body)
	f.Add("n1", []byte("\x0a\x02n1"))
	body, _ = EncodeRemote(remote)
	f.Add("ns/web", body)
	body, _ = EncodeOffer(offer)
	f.Add("ns/web", body)
	body, _ = EncodeVirtualIP(&proxy.VirtualIP{Name: VirtualIPName("default", "web_ns_svc_80"), Addresses: addrs("240.0.0.1", "fd00:240::1"),
		Service: proxy.ServiceName{Namespace: "ns", Name: "web"}, Port: 80})
	f.Add("default/web_ns_svc_80.mesh", body)
	body, _ = EncodeWorkload(&proxy.Workload{Name: proxy.ServiceName{Namespace: "ns", Name: "web"}, Mesh: "blue", Node: "n", Addrs: addrs("10.0.0.1", "fd00::1")})
	f.Add("ns/web", body)
	body, _ = EncodeMesh(&proxy.Mesh{Name: "blue", Closed: true})
	f.Add("blue", body)
	body, _ = EncodeService(&proxy.Service{
		Name: proxy.ServiceName{Namespace: "ns", Name: "web"}, ClusterIPs: addrs("10.0.0.1"), Scope: proxy.Scope{Mesh: "blue", Exported: []string{"a", "b"}},
	})
	f.Add("ns/web", body)
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		fuzzMeshes(t, name, body)
		if v, err := DecodeVirtualIP(name, body); err == nil {
			again, err := EncodeVirtualIP(v)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeVirtualIP(name, again)
			if diff := cmp.Diff(v, got, compareModel); err != nil || diff != "" {
				t.Fatalf("virtual IP %q: %v\n%s", name, err, diff)
			}
		}
		if node, err := DecodeSuspect(name, body); err == nil && node != name {
			t.Fatalf("suspect %q is read as %q", name, node)
		}
		if node, err := DecodeLeaving(name, body); err == nil && node != name {
			t.Fatalf("leaving node %q is read as %q", name, node)
		}
		if r, err := DecodeRemote(name, body); err == nil {
			again, err := EncodeRemote(r)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeRemote(name, again)
			if diff := cmp.Diff(r, got, compareModel); err != nil || diff != "" {
				t.Fatalf("remote %q: %v\n%s", name, err, diff)
			}
		}
		if o, err := DecodeOffer(name, body); err == nil {
			again, err := EncodeOffer(o)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeOffer(name, again)
			if diff := cmp.Diff(o, got, compareModel); err != nil || diff != "" {
				t.Fatalf("offer %q: %v\n%s", name, err, diff)
			}
		}
		if s, err := DecodeService(name, body); err == nil {
			again, err := EncodeService(s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeService(name, again)
			if diff := cmp.Diff(s, got, compareModel); err != nil || diff != "" {
				t.Fatalf("service %q: %v\n%s", name, err, diff)
			}
		}
		if n, err := DecodeName(name, body); err == nil {
			again, err := EncodeName(n)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeName(name, again)
			if diff := cmp.Diff(n, got, compareModel); err != nil || diff != "" {
				t.Fatalf("name %q: %v\n%s", name, err, diff)
			}
		}
		if s, err := DecodeNameSlice(name, body); err == nil {
			again, err := EncodeNameSlice(s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeNameSlice(name, again)
			if diff := cmp.Diff(s, got, compareModel); err != nil || diff != "" {
				t.Fatalf("name slice %q: %v\n%s", name, err, diff)
			}
		}
		if s, err := DecodeSlice(name, body); err == nil {
			again, err := EncodeSlice(s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeSlice(name, again)
			if diff := cmp.Diff(s, got, compareModel); err != nil || diff != "" {
				t.Fatalf("slice %q: %v\n%s", name, err, diff)
			}
		}
	})
}

// A machine that the message does not name is refused, as other names are.
func TestMachineIndexOutOfRange(t *testing.T) {
	body, err := EncodeSlice(&proxy.Slice{
		Name: proxy.SliceName{Namespace: "ns", Name: "a"}, Service: proxy.ServiceName{Namespace: "ns", Name: "web"},
		Endpoints: []proxy.SliceEndpoint{{Addr: netip.MustParseAddr("127.0.0.1"), Ready: true, Serving: true}}, Machines: []string{"m1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.Index(body, 0x50); i < 0 || body[i+1] != 1 { // field 10, varint
		t.Fatalf("no machine in %x", body)
	} else {
		body[i+1] = 2
	}
	if _, err := DecodeSlice("ns/a", body); err == nil {
		t.Error("it was accepted")
	}
}

func TestDecodeNodes(t *testing.T) {
	for kind, decode := range map[string]func(string, []byte) (string, error){"suspect": DecodeSuspect, "leaving": DecodeLeaving} {
		for name, body := range map[string]string{"n1": "\x0a\x02n2", "": "", "n2": "\x0a\x7f"} {
			if got, err := decode(name, []byte(body)); err == nil {
				t.Errorf("%s: %q is read as %q", kind, name, got)
			}
		}
		if got, err := decode("n2", []byte("\x0a\x02n2")); err != nil || got != "n2" {
			t.Errorf("%s: %q, %v", kind, got, err)
		}
	}
}

// TestNamesRoundTrip: what is encoded is decoded as it was.
func TestNamesRoundTrip(t *testing.T) {
	name := proxy.ServiceName{Namespace: "ns", Name: "web"}
	for what, want := range map[string]*records.Name{
		"headless": {Name: name},
		"external": {Name: name, ExternalName: "www.example.com"},
		"another proxy's": {
			Name:       name,
			ClusterIPs: addrs("10.0.0.1"),
			Ports:      []proxy.Port{{Port: 80, Protocol: proxy.TCP}},
		},
	} {
		body, err := EncodeName(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeName("ns/web", body)
		if diff := cmp.Diff(want, got, compareModel); err != nil || diff != "" {
			t.Errorf("%s: %v %s", what, err, diff)
		}
	}
}
