package view

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

var compareModel = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

func ptr[T any](v T) *T { return &v }

func addrs(in ...string) []netip.Addr { return addresses(in) }

func TestServiceOf(t *testing.T) {
	full := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1", "fd00::1"},
			ExternalIPs:                   []string{"192.0.2.1", "not an address"},
			LoadBalancerSourceRanges:      []string{" 198.51.100.7/24", "nonsense"},
			SessionAffinity:               corev1.ServiceAffinityClientIP,
			InternalTrafficPolicy:         ptr(corev1.ServiceInternalTrafficPolicyLocal),
			ExternalTrafficPolicy:         corev1.ServiceExternalTrafficPolicyLocal,
			HealthCheckNodePort:           30001,
			SessionAffinityConfig:         nil,
			PublishNotReadyAddresses:      true,
			AllocateLoadBalancerNodePorts: ptr(true),
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP, AppProtocol: ptr("http")},
				{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
				{Name: "plain", Port: 7},
				{Name: "broken", Port: 0},
			},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
			{IP: "203.0.113.1"}, {IP: "203.0.113.2", IPMode: ptr(corev1.LoadBalancerIPModeProxy)}, {Hostname: "lb.example"},
		}}},
	}
	want := &proxy.Service{
		Name:       proxy.ServiceName{Namespace: "ns", Name: "web"},
		ClusterIPs: addrs("10.0.0.1", "fd00::1"), ExternalIPs: addrs("192.0.2.1"), LoadBalancerIPs: addrs("203.0.113.1"),
		SourceRanges:  []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("::/128")},
		InternalLocal: true, ExternalLocal: true, HealthCheckNodePort: 30001, AffinityTimeout: 3 * time.Hour,
		Ports: []proxy.Port{
			{Name: "http", Port: 80, NodePort: 30080, Protocol: proxy.TCP, AppProtocol: "http"},
			{Name: "dns", Port: 53, Protocol: proxy.UDP},
			{Name: "plain", Port: 7, Protocol: proxy.TCP},
		},
	}
	got, ok := ServiceOf(full)
	if diff := cmp.Diff(want, got, compareModel); !ok || diff != "" {
		t.Errorf("ok = %v, -want +got:\n%s", ok, diff)
	}

	for name, change := range map[string]func(*corev1.Service){
		"headless":      func(s *corev1.Service) { s.Spec.ClusterIP = "None"; s.Spec.ClusterIPs = []string{"None"} },
		"external name": func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName },
		"other proxy":   func(s *corev1.Service) { s.Labels = map[string]string{labelProxyName: ""} },
		"no address":    func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil },
	} {
		s := full.DeepCopy()
		change(s)
		if got, ok := ServiceOf(s); ok {
			t.Errorf("%s: not skipped: %+v", name, got)
		}
	}
}

func slice(name string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr(""), Port: ptr(int32(8080)), Protocol: ptr(corev1.ProtocolTCP)}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func TestSliceOf(t *testing.T) {
	full := slice("web-1", "10.1.0.1", "10.1.0.2", "bad")
	full.Endpoints[0].NodeName, full.Endpoints[0].Zone = ptr("n1"), ptr("a")
	full.Endpoints[0].Hints = &discoveryv1.EndpointHints{
		ForZones: []discoveryv1.ForZone{{Name: "a"}}, ForNodes: []discoveryv1.ForNode{{Name: "n1"}},
	}
	full.Endpoints[1].Conditions = discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(true), Terminating: ptr(true)}
	full.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T02:04:05.000000678Z"}
	full.Endpoints = append(full.Endpoints, discoveryv1.Endpoint{})
	full.Ports = append(full.Ports, discoveryv1.EndpointPort{Name: ptr("none")})
	want := &proxy.Slice{
		Name: proxy.SliceName{Namespace: "ns", Name: "web-1"}, Service: proxy.ServiceName{Namespace: "ns", Name: "web"},
		Ports: []proxy.SlicePort{{Port: 8080, Protocol: proxy.TCP}},
		Endpoints: []proxy.SliceEndpoint{
			{Addr: netip.MustParseAddr("10.1.0.1"), Node: "n1", Zone: "a", Ready: true, Serving: true, Hints: proxy.HintsOf([]string{"a"}, []string{"n1"})},
			{Addr: netip.MustParseAddr("10.1.0.2"), Serving: true, Terminating: true},
		},
		Trigger: time.Date(2026, 1, 2, 2, 4, 5, 678, time.UTC),
	}
	got, ok := SliceOf(full)
	if diff := cmp.Diff(want, got, compareModel); !ok || diff != "" {
		t.Errorf("ok = %v, -want +got:\n%s", ok, diff)
	}
	for _, text := range []string{"", "soon", "0001-01-01T00:00:00Z", "9999-01-01T00:00:00Z"} {
		full.Annotations[corev1.EndpointsLastChangeTriggerTime] = text
		if got, ok := SliceOf(full); !ok || !got.Trigger.IsZero() {
			t.Errorf("trigger time %q: %v %v", text, ok, got.Trigger)
		}
	}
	for name, change := range map[string]func(*discoveryv1.EndpointSlice){
		"names":       func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN },
		"headless":    func(s *discoveryv1.EndpointSlice) { s.Labels[corev1.IsHeadlessService] = "" },
		"other proxy": func(s *discoveryv1.EndpointSlice) { s.Labels[labelProxyName] = "x" },
		"no service":  func(s *discoveryv1.EndpointSlice) { s.Labels = nil },
	} {
		s := full.DeepCopy()
		change(s)
		if got, ok := SliceOf(s); ok {
			t.Errorf("%s: not skipped: %+v", name, got)
		}
	}
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

func genService(t *rapid.T) *proxy.Service {
	ips := rapid.SliceOfN(genAddr(), 0, 3)
	return &proxy.Service{
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
	}
}

func genSlice(t *rapid.T) *proxy.Slice {
	ns := genName.Draw(t, "namespace")
	hints := rapid.SliceOfN(genName, 0, 3)
	var trigger time.Time
	if at := rapid.Int64().Draw(t, "trigger"); at != 0 {
		trigger = time.Unix(0, at).UTC()
	}
	return &proxy.Slice{
		Trigger: trigger,
		Name:    proxy.SliceName{Namespace: ns, Name: genName.Draw(t, "name")},
		Service: proxy.ServiceName{Namespace: ns, Name: genName.Draw(t, "service")},
		Ports: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) proxy.SlicePort {
			return proxy.SlicePort{Name: genOptional.Draw(t, "name"), Protocol: genProtocol.Draw(t, "protocol"), Port: genPort.Draw(t, "port")}
		}), 0, 3).Draw(t, "ports"),
		Endpoints: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) proxy.SliceEndpoint {
			return proxy.SliceEndpoint{
				Addr: genAddr().Draw(t, "address"), Node: genOptional.Draw(t, "node"), Zone: genOptional.Draw(t, "zone"),
				Ready: rapid.Bool().Draw(t, "ready"), Serving: rapid.Bool().Draw(t, "serving"), Terminating: rapid.Bool().Draw(t, "terminating"),
				Hints: proxy.HintsOf(hints.Draw(t, "zones"), hints.Draw(t, "nodes")), Weight: rapid.Uint32().Draw(t, "weight"),
			}
		}), 0, 5).Draw(t, "endpoints"),
	}
}

// TestRoundTrip: what is encoded is decoded as it was.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		service := genService(t)
		body, err := encodeService(service)
		if err != nil {
			t.Fatal(err)
		}
		gotService, err := decodeService(service.Name.String(), body)
		if diff := cmp.Diff(service, gotService, compareModel); err != nil || diff != "" {
			t.Fatalf("service: %v, -encoded +decoded:\n%s", err, diff)
		}
		slice := genSlice(t)
		if body, err = encodeSlice(slice); err != nil {
			t.Fatal(err)
		}
		gotSlice, err := decodeSlice(resourceName(slice.Name.Namespace, slice.Name.Name), body)
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
		{"other", "unknown type", nil},
	} {
		u := newUpdate()
		err := decodeInto(&u, tt.typ, "ns/web", tt.body)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.typ, err, tt.want)
		}
	}
}

// TestUnknownFields: an older agent reads what a newer control plane writes.
func TestUnknownFields(t *testing.T) {
	body, err := encodeService(&proxy.Service{Name: proxy.ServiceName{Namespace: "ns", Name: "web"}, ClusterIPs: addrs("10.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	body = append(body, 0x82, 0x7d, 0x01, 'x') // field 2000, one byte
	if _, err := decodeService("ns/web", body); err != nil {
		t.Error(err)
	}
}

// FuzzDecode: whatever comes, it is refused, or it can be encoded again and
// means the same.
func FuzzDecode(f *testing.F) {
	body, _ := encodeSlice(&proxy.Slice{Name: proxy.SliceName{Namespace: "ns", Name: "web"}, Service: proxy.ServiceName{Namespace: "ns", Name: "web"},
		Ports:     []proxy.SlicePort{{Name: "p", Port: 1, Protocol: proxy.TCP}},
		Endpoints: []proxy.SliceEndpoint{{Addr: netip.MustParseAddr("fd00::1"), Node: "n", Zone: "z", Ready: true, Hints: proxy.HintsOf([]string{"z"}, nil)}}})
	f.Add("ns/web", body)
	body, _ = encodeService(&proxy.Service{Name: proxy.ServiceName{Namespace: "ns", Name: "web"}, ClusterIPs: addrs("10.0.0.1"),
		Ports: []proxy.Port{{Port: 1, Protocol: proxy.SCTP}}, SourceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	f.Add("ns/web", body)
	body, _ = encodeName(&records.Name{Name: proxy.ServiceName{Namespace: "ns", Name: "web"}, ExternalName: "x.test"})
	f.Add("ns/web", body)
	body, _ = encodeNameSlice(&records.Slice{Name: proxy.SliceName{Namespace: "ns", Name: "web"}, Service: proxy.ServiceName{Namespace: "ns", Name: "web"},
		Targets: []records.Target{{Addr: netip.MustParseAddr("fd00::1"), Hostname: "h"}, {Domain: "x.test"}}})
	f.Add("ns/web", body)
	f.Add("n1", []byte("\x0a\x02n1"))
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		if node, err := decodeSuspect(name, body); err == nil && node != name {
			t.Fatalf("suspect %q is read as %q", name, node)
		}
		if s, err := decodeService(name, body); err == nil {
			again, err := encodeService(s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := decodeService(name, again)
			if diff := cmp.Diff(s, got, compareModel); err != nil || diff != "" {
				t.Fatalf("service %q: %v\n%s", name, err, diff)
			}
		}
		if n, err := decodeNameOf(name, body); err == nil {
			again, err := encodeName(n)
			if err != nil {
				t.Fatal(err)
			}
			got, err := decodeNameOf(name, again)
			if diff := cmp.Diff(n, got, compareModel); err != nil || diff != "" {
				t.Fatalf("name %q: %v\n%s", name, err, diff)
			}
		}
		if s, err := decodeNameSlice(name, body); err == nil {
			again, err := encodeNameSlice(s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := decodeNameSlice(name, again)
			if diff := cmp.Diff(s, got, compareModel); err != nil || diff != "" {
				t.Fatalf("name slice %q: %v\n%s", name, err, diff)
			}
		}
		if s, err := decodeSlice(name, body); err == nil {
			again, err := encodeSlice(s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := decodeSlice(name, again)
			if diff := cmp.Diff(s, got, compareModel); err != nil || diff != "" {
				t.Fatalf("slice %q: %v\n%s", name, err, diff)
			}
		}
	})
}

func FuzzDecodeState(f *testing.F) {
	b, _ := encodeState(&nodev1.State{Node: "n", Types: []*nodev1.TypeState{{TypeUrl: ServiceType}}})
	f.Add(b)
	f.Add(b[:20])
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = decodeState(b) })
}
