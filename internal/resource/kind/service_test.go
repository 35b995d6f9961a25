package kind_test

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestServiceUpdate writes over a stored Service and expects the intended spec, or one
// error.
func TestServiceUpdate(t *testing.T) {
	const v4, v6 = "10.96.0.10", "fd00:96::10"
	dual := func(t *testing.T) *corev1.Service { return service(t, v4, v6) }
	single := func(t *testing.T) *corev1.Service { return service(t, v4) }
	balancer := func(t *testing.T) *corev1.Service {
		s := service(t, v4)
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.AllocateLoadBalancerNodePorts = new(true)
		s.Spec.HealthCheckNodePort = 31000
		s.Spec.Ports[0].NodePort = 30080
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: new(corev1.LoadBalancerIPModeVIP)}}
		return s
	}
	tests := []struct {
		name   string
		stored func(*testing.T) *corev1.Service
		change func(s *corev1.Service)
		check  func(s *corev1.Service) any
		want   any
		err    string
	}{
		{
			name: "a plain put keeps addresses and families", stored: dual,
			change: func(s *corev1.Service) {
				s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = "", nil, nil, nil
			},
			check: func(s *corev1.Service) any {
				return []any{s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies, *s.Spec.IPFamilyPolicy}
			},
			want: []any{v4, []string{v4, v6}, []corev1.IPFamily{"IPv4", "IPv6"}, corev1.IPFamilyPolicyRequireDualStack},
		},
		{
			name: "single stack releases the second address", stored: dual,
			change: func(s *corev1.Service) { s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack) },
			check:  func(s *corev1.Service) any { return []any{s.Spec.ClusterIPs, s.Spec.IPFamilies} },
			want:   []any{[]string{v4}, []corev1.IPFamily{"IPv4"}},
		},
		{
			name: "an ExternalName owns no addresses", stored: dual,
			change: func(s *corev1.Service) {
				s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
			},
			check: func(s *corev1.Service) any {
				return []any{s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies, s.Spec.IPFamilyPolicy}
			},
			want: []any{"", []string(nil), []corev1.IPFamily(nil), (*corev1.IPFamilyPolicy)(nil)},
		},
		{
			name: "a load balancer that becomes a ClusterIP leaves all behind", stored: balancer,
			change: func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP },
			check: func(s *corev1.Service) any {
				return []any{s.Spec.Ports[0].NodePort, s.Spec.HealthCheckNodePort, s.Spec.ExternalTrafficPolicy,
					s.Spec.AllocateLoadBalancerNodePorts, len(s.Status.LoadBalancer.Ingress)}
			},
			want: []any{int32(0), int32(0), corev1.ServiceExternalTrafficPolicy(""), (*bool)(nil), 0},
		},
		{
			name: "ports keep their node ports through a plain put", stored: balancer,
			change: func(s *corev1.Service) {
				s.Spec.HealthCheckNodePort = 0
				s.Spec.Ports = []corev1.ServicePort{
					{Name: "new", Port: 81, Protocol: "TCP", TargetPort: s.Spec.Ports[0].TargetPort},
					{Name: "old", Port: 80, Protocol: "TCP", TargetPort: s.Spec.Ports[0].TargetPort},
				}
			},
			check: func(s *corev1.Service) any {
				return []any{s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort, s.Spec.HealthCheckNodePort}
			},
			want: []any{int32(0), int32(30080), int32(31000)},
		},
		{
			name: "status is not the user's", stored: balancer,
			change: func(s *corev1.Service) { s.Status = corev1.ServiceStatus{} },
			check:  func(s *corev1.Service) any { return s.Status.LoadBalancer.Ingress[0].IP },
			want:   "192.0.2.1",
		},
		{
			name: "an owned node port outlives the range", stored: func(t *testing.T) *corev1.Service {
				s := balancer(t)
				s.Spec.Ports[0].NodePort = 40000
				return s
			},
			change: func(s *corev1.Service) { s.Labels = map[string]string{"a": "b"} },
		},
		{
			name: "the address is fixed", stored: single,
			change: func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0.11", []string{"10.96.0.11"} },
			err:    "spec.clusterIPs[0]: Invalid value: may not change once set",
		},
		{
			name: "clusterIP alone changes both", stored: single,
			change: func(s *corev1.Service) { s.Spec.ClusterIP = "10.96.0.11" },
			err:    "spec.clusterIPs[0]: Invalid value: may not change once set",
		},
		{
			name: "a Service cannot become headless", stored: single,
			change: func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} },
			err:    "spec.clusterIPs[0]: Invalid value: may not change once set",
		},
		{
			name: "families are fixed", stored: func(t *testing.T) *corev1.Service {
				s := service(t)
				s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
				return s
			},
			change: func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} },
			err:    "spec.ipFamilies[0]: Invalid value: may not change once set",
		},
		{
			name: "release without saying so", stored: dual,
			change: func(s *corev1.Service) { s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1] },
			err:    "spec.ipFamilyPolicy: Invalid value: must be set to 'SingleStack' when releasing the secondary clusterIP",
		},
		{
			name: "release of a family without saying so", stored: func(t *testing.T) *corev1.Service {
				s := service(t)
				s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
				return s
			},
			change: func(s *corev1.Service) { s.Spec.IPFamilies = s.Spec.IPFamilies[:1] },
			err:    "spec.ipFamilyPolicy: Invalid value: must be set to 'SingleStack' when releasing the secondary ipFamily",
		},
		{
			name: "the class of a load balancer is fixed", stored: balancer,
			change: func(s *corev1.Service) { s.Spec.LoadBalancerClass = new("example.com/other") },
			err:    "spec.loadBalancerClass: Invalid value: may not change once set",
		},
		{
			name: "the health check port is fixed", stored: balancer,
			change: func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 31001 },
			err:    "spec.healthCheckNodePort: Forbidden: field is immutable",
		},
	}
	d := kind.Service
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			old := tt.stored(t)
			obj, was := clone(old), clone(old)
			defer func() {
				scribble(reflect.ValueOf(obj))
				if diff := cmp.Diff(was, old); diff != "" {
					t.Errorf("the old object changed, or shares parts with the new one:\n%s", diff)
				}
			}()
			tt.change(obj)
			d.Default(obj)
			d.Prepare(obj, old)
			if tt.err != "" {
				wantOnly(t, d, obj, old, tt.err)
				return
			}
			if errs := d.Validate(obj, old); len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			if tt.check == nil {
				return
			}
			if diff := cmp.Diff(tt.want, tt.check(obj)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestServiceDefaults(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"plain", `{spec: {ports: [{port: 80}]}}`, `
spec: {type: ClusterIP, sessionAffinity: None, internalTrafficPolicy: Cluster, ports: [{port: 80, protocol: TCP, targetPort: 80}]}`},
		{"affinity", `{spec: {sessionAffinity: ClientIP}}`, `
spec: {type: ClusterIP, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}, internalTrafficPolicy: Cluster}`},
		{"external address", `{spec: {externalIPs: [192.0.2.1]}}`, `
spec: {type: ClusterIP, sessionAffinity: None, internalTrafficPolicy: Cluster, externalTrafficPolicy: Cluster, externalIPs: [192.0.2.1]}`},
		{"load balancer", `{spec: {type: LoadBalancer}, status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {hostname: h}]}}}`, `
spec: {type: LoadBalancer, sessionAffinity: None, internalTrafficPolicy: Cluster, externalTrafficPolicy: Cluster, allocateLoadBalancerNodePorts: true}
status: {loadBalancer: {ingress: [{ip: 192.0.2.1, ipMode: VIP}, {hostname: h}]}}`},
		{"external name", `{spec: {type: ExternalName, externalName: a.b, internalTrafficPolicy: Local}}`, `
spec: {type: ExternalName, sessionAffinity: None, externalName: a.b}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantDefaults(t, "Service", tt.in, tt.want)
		})
	}
}

func TestServiceStatus(t *testing.T) {
	d := kind.Service
	old := service(t, "10.96.0.10")
	obj := clone(old)
	obj.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "a.example.com"}}
	wantOnly(t, d, obj, old, "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'")

	old.Spec.Type, obj.Spec.Type = corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer
	vip := new(corev1.LoadBalancerIPModeVIP)
	for want, in := range map[string]corev1.LoadBalancerIngress{
		"ip: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)": {IP: "x", IPMode: vip},
		"ipMode: Required value: must be specified when `ip` is set":                       {IP: "192.0.2.1"},
		"ipMode: Forbidden: may not be specified when `ip` is not set":                     {IPMode: vip},
		`ipMode: Unsupported value: supported values: "Proxy", "VIP"`: {IP: "192.0.2.1",
			IPMode: new(corev1.LoadBalancerIPMode("x"))},
		"hostname: Invalid value: must be a DNS name, not an IP address": {Hostname: "192.0.2.1"},
	} {
		obj.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{in}
		if errs := d.ValidateStatus(obj, old); len(errs) != 1 {
			t.Fatalf("%s: %v", want, errs.ToAggregate())
		} else if got := errs[0]; got.Field+": "+got.Type.String()+": "+got.Detail != "status.loadBalancer.ingress[0]."+want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
}

func TestWarnings(t *testing.T) {
	tests := []struct {
		kind, with string
		want       []string
	}{
		{"Service", `{metadata: {annotations: {service.kubernetes.io/topology-aware-hints: auto}}}`,
			[]string{"annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead"}},
		{"Service", `{spec: {trafficDistribution: PreferClose}}`,
			[]string{`spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"`}},
		{"Service", `{spec: {externalName: a.b}}`, []string{`spec.externalName is ignored when spec.type is not "ExternalName"`}},
		{"Service", `{spec: {externalIPs: ["2001:DB8::1"]}}`, []string{
			"spec.externalIPs is deprecated and may no longer be implemented in some clusters",
			`spec.externalIPs[0]: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format ("2001:db8::1")`}},
		{"Service", `{spec: {clusterIP: None, sessionAffinity: ClientIP}}`, []string{"spec.SessionAffinity is ignored for headless services"}},
		{"Service", `{spec: {externalIPs: [nonsense], type: ExternalName}}`,
			[]string{`spec.externalIPs is ignored when spec.type is "ExternalName"`}},
		{"Mesh", `{spec: {networking: null}}`, []string{"spec.mtls.enabledBackend: workloads get certificates; traffic inside a site is encrypted only " +
			"between workloads that have a sidecar, or use them themselves (SPIFFE Workload API), and sidecars alone refuse plain connections: see status"}},
		{"Mesh", `{spec: {mtls: null}}`, []string{
			"spec.networking.outbound.passthrough: false is enforced by kernel modes, for workloads with an address of their own; the status names those for whom it is not"}},
		{"Mesh", `{spec: {mtls: {enabledBackend: null, backends: null, outbound: Always}, networking: null}}`, []string{
			"spec.mtls.outbound: Always has no effect without spec.mtls.enabledBackend: there is no mutual TLS in this mesh"}},
		{"EndpointSlice", `{addressType: FQDN, endpoints: [{addresses: [a.b]}]}`, []string{"addressType: FQDN endpoints are deprecated"}},
		{"Endpoints", `{subsets: [{addresses: [{ip: "2001:DB8::1"}]}]}`, []string{
			`subsets[0].addresses[0].ip: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format ("2001:db8::1")`}},
	}
	all := descriptors()
	for _, tt := range tests {
		t.Run(tt.want[0], func(t *testing.T) {
			d := all[tt.kind]
			got := d.Warnings(create(t, d, overlay(t, base[tt.kind], tt.with)), nil)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
