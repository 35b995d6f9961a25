package kube

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

var compareModel = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

func ptr[T any](v T) *T { return &v }

func addrs(in ...string) []netip.Addr { return addresses(in) }

func service(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
}

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
			{Addr: netip.MustParseAddr("10.1.0.1"), Node: "n1", Zone: "a", Ready: true, Serving: true, Hints: proxy.HintsOf(locality.Zones("a"), []string{"n1"})},
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

func TestNameOf(t *testing.T) {
	name := proxy.ServiceName{Namespace: "ns", Name: "web"}
	external := service("web", "")
	external.Spec.Type, external.Spec.ExternalName = corev1.ServiceTypeExternalName, "WWW.Example.com."
	theirs := service("web", "10.0.0.1")
	theirs.Labels = map[string]string{labelProxyName: "other"}
	for what, tt := range map[string]struct {
		in   *corev1.Service
		want *records.Name
	}{
		"carried":         {service("web", "10.0.0.1"), nil},
		"without address": {service("web", ""), nil},
		"headless":        {service("web", "None"), &records.Name{Name: name}},
		"external":        {external, &records.Name{Name: name, ExternalName: "www.example.com"}},
		"another proxy's": {theirs, &records.Name{Name: name, ClusterIPs: addrs("10.0.0.1"), Ports: []proxy.Port{{Port: 80, Protocol: proxy.TCP}}}},
	} {
		got, ok := NameOf(tt.in)
		if diff := cmp.Diff(tt.want, got, compareModel); diff != "" || ok != (tt.want != nil) {
			t.Errorf("%s: %v %s", what, ok, diff)
		}
	}
}

func TestPreserveDestination(t *testing.T) {
	for value, want := range map[string]bool{"true": true, "false": false, "": false} {
		svc := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}}
		svc.Annotations = map[string]string{"preserve-destination": value}
		if got, ok := ServiceOf(svc); !ok || got.PreserveDestination != want {
			t.Errorf("annotation %q: %v", value, got)
		}
	}
}
