package kind_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind/kindtest"
)

// Reasons that several rules share. A want that ends in … is a prefix.
const (
	required  = "Required value: "
	badPort   = "Invalid value: must be between 1 and 65535, inclusive"
	immutable = "Invalid value: field is immutable"
)

// TestInvalidOnCreate breaks a valid object in one way and expects exactly one error.
func TestInvalidOnCreate(t *testing.T) {
	all := descriptors()
	for _, tt := range kindtest.Mistakes() {
		name := tt.Want
		if len(name) > 80 {
			name = name[:80]
		}
		t.Run(tt.Kind+"/"+name, func(t *testing.T) {
			d := all[tt.Kind]
			wantOnly(t, d, create(t, d, overlay(t, base[tt.Kind], tt.With)), nil, tt.Want)
		})
	}
}

func wantOnly(t *testing.T, d *resource.Descriptor, obj, old resource.Object, want string) {
	t.Helper()
	validate := d.Validate
	if strings.HasPrefix(want, "status.") && old != nil {
		validate = d.ValidateStatus
	}
	var got []string
	for _, err := range validate(obj, old) {
		line := fmt.Sprintf("%s: %s: %s", err.Field, err.Type, err.Detail)
		if prefix, ok := strings.CutSuffix(want, "…"); ok && strings.HasPrefix(line, prefix) {
			line = want
		}
		got = append(got, line)
	}
	if diff := cmp.Diff([]string{want}, got); diff != "" {
		t.Errorf("mistakes (-want +got):\n%s", diff)
	}
}

// TestInvalidOnUpdate changes a stored object in a way that is not allowed.
func TestInvalidOnUpdate(t *testing.T) {
	tests := []struct {
		kind   string
		change func(resource.Object)
		want   string
	}{
		{"Namespace", func(o resource.Object) { o.SetResourceVersion("") },
			"metadata.resourceVersion: Invalid value: must be specified for an update"},
		{"Namespace", func(o resource.Object) { o.SetName("other") }, "metadata.name: " + immutable},
		{"Namespace", func(o resource.Object) { o.SetUID("other") }, "metadata.uid: " + immutable},
		{"Namespace", func(o resource.Object) { o.(*corev1.Namespace).Status.Phase = corev1.NamespaceTerminating },
			"status.Phase: Invalid value: may only be 'Active' if `deletionTimestamp` is empty"},
		{"EndpointSlice", func(o resource.Object) {
			s := o.(*discoveryv1.EndpointSlice)
			s.AddressType, s.Endpoints = discoveryv1.AddressTypeIPv6, nil
		}, "addressType: " + immutable},
		{"Node", func(o resource.Object) { o.(*corev1.Node).Spec.ProviderID = "other" },
			`spec.providerID: Forbidden: node updates may not change providerID except from "" to valid`},
		{"Node", func(o resource.Object) { o.(*corev1.Node).Spec.PodCIDRs = []string{"10.9.0.0/24"} },
			`spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid`},
		{"Mesh", func(o resource.Object) { o.(*mesh.Mesh).Spec.MTLS.TrustDomain = "other.example" },
			"spec.mtls.trustDomain: Invalid value: trust domain of mesh blue is immutable: it is blue.mesh; make another mesh for other.example"},
		{"Pod", func(o resource.Object) { o.(*corev1.Pod).Spec.NodeName = "other" },
			"spec: Forbidden: pod updates may not change fields other than…"},
		{"Pod", func(o resource.Object) { o.(*corev1.Pod).Spec.Containers[0].Ports[0].ContainerPort++ },
			"spec: Forbidden: pod updates may not change fields other than…"},
		{"Pod", func(o resource.Object) {
			p := o.(*corev1.Pod)
			c := p.Spec.Containers[0]
			c.Name = "more"
			p.Spec.Containers = append(p.Spec.Containers, c)
		}, "spec.containers: Forbidden: pod updates may not add or remove containers"},
		{"Pod", func(o resource.Object) { o.(*corev1.Pod).Spec.Tolerations = nil },
			"spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"},
		{"Pod", func(o resource.Object) { o.(*corev1.Pod).Spec.ActiveDeadlineSeconds = new(int64(601)) },
			"spec.activeDeadlineSeconds: Invalid value: must be less than or equal to previous value"},
		{"Pod", func(o resource.Object) { o.(*corev1.Pod).Spec.ActiveDeadlineSeconds = nil },
			"spec.activeDeadlineSeconds: Invalid value: must not update from a positive integer to nil value"},
		{"Pod", func(o resource.Object) { o.(*corev1.Pod).Status.PodIPs = []corev1.PodIP{{IP: "x"}} },
			"status.podIPs[0]: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"},
		{"Pod", func(o resource.Object) {
			o.(*corev1.Pod).Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "10.0.0.2"}}
		}, "status.podIPs: Invalid value: may specify no more than one IP for each IP family"},
		{"ConfigMap", func(o resource.Object) { o.(*corev1.ConfigMap).Data["a"] = "2" },
			"data: Forbidden: field is immutable when `immutable` is set"},
		{"ConfigMap", func(o resource.Object) { o.(*corev1.ConfigMap).Immutable = nil },
			"immutable: Forbidden: field is immutable when `immutable` is set"},
		{"Secret", func(o resource.Object) { o.(*corev1.Secret).Data["a"] = nil }, "data: Forbidden: field is immutable when `immutable` is set"},
		{"Secret", func(o resource.Object) { o.(*corev1.Secret).Type = "other" }, "type: " + immutable},
		{"EventsV1Event", func(o resource.Object) { o.(*eventsv1.Event).Note = "other" }, "message: " + immutable},
		{"EventsV1Event", func(o resource.Object) { o.(*eventsv1.Event).Regarding.Name = "other" }, "involvedObject: " + immutable},
		{"Dataplane", func(o resource.Object) {
			o.(*mesh.Dataplane).Status.Lease = &mesh.DataplaneLease{}
		}, "status.lease.durationSeconds: Invalid value: must be greater than 0"},
		{"Dataplane", func(o resource.Object) {
			o.(*mesh.Dataplane).Spec.Readiness.HTTPGet.Port = intstr.FromInt32(0)
		}, "spec.readiness.httpGet.port: " + badPort},
		{"Mesh", func(o resource.Object) { o.SetName("other") }, "metadata.name: " + immutable},
		{"Mesh", func(o resource.Object) { o.(*mesh.Mesh).Spec.MTLS.EnabledBackend = "gone" }, "spec.mtls.enabledBackend: Not found: "},
		{"ExternalService", func(o resource.Object) { o.(*mesh.ExternalService).Spec.Ports = nil },
			"spec.ports: Required value: must contain at least 1 port"},
		{"GlobalSecret", func(o resource.Object) { o.(*mesh.GlobalSecret).Data["tls.key"] = nil },
			"data: Forbidden: field is immutable when `immutable` is set"},
		{"GlobalSecret", func(o resource.Object) { o.(*mesh.GlobalSecret).Immutable = nil },
			"immutable: Forbidden: field is immutable when `immutable` is set"},
		{"GlobalSecret", func(o resource.Object) { o.(*mesh.GlobalSecret).Type = "other" }, "type: " + immutable},
	}
	all := descriptors()
	for _, tt := range tests {
		name, _, _ := strings.Cut(tt.want, ":")
		t.Run(tt.kind+"/"+name, func(t *testing.T) {
			d := all[tt.kind]
			old := create(t, d, base[tt.kind])
			old.SetResourceVersion("1")
			switch o := old.(type) {
			case *corev1.ConfigMap:
				o.Immutable = new(true)
			case *corev1.Secret:
				o.Immutable = new(true)
			case *mesh.GlobalSecret:
				o.Immutable = new(true)
			case *corev1.Node:
				o.Spec.ProviderID = "one"
				o.Spec.PodCIDR, o.Spec.PodCIDRs = "10.1.0.0/24", []string{"10.1.0.0/24"}
			case *corev1.Pod:
				o.Spec.ActiveDeadlineSeconds = new(int64(600))
				o.Spec.Tolerations = []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}}
			}
			obj := clone(old)
			tt.change(obj)
			wantOnly(t, d, obj, old, tt.want)
		})
	}
}

// TestAtTheLimit covers the limits that are too long to write down.
func TestAtTheLimit(t *testing.T) {
	d := descriptors()["EndpointSlice"]
	slice := func() *discoveryv1.EndpointSlice {
		return create(t, d, base["EndpointSlice"]).(*discoveryv1.EndpointSlice)
	}
	addresses := func(n int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)
		}
		return out
	}
	tests := []struct {
		name  string
		fill  func(s *discoveryv1.EndpointSlice, n int)
		limit int
		want  string
	}{
		{"endpoints", func(s *discoveryv1.EndpointSlice, n int) {
			s.Endpoints = nil
			for _, a := range addresses(n) {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
			}
		}, 1000, "endpoints: Too many: must have at most 1000 items"},
		{"addresses", func(s *discoveryv1.EndpointSlice, n int) { s.Endpoints[0].Addresses = addresses(n) },
			100, "endpoints[0].addresses: Too many: must have at most 100 items"},
		{"ports", func(s *discoveryv1.EndpointSlice, n int) {
			s.Ports = nil
			for i := range n {
				s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprintf("p%d", i)), Protocol: new(corev1.ProtocolTCP)})
			}
		}, 100, "ports: Too many: must have at most 100 items"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := slice()
			tt.fill(s, tt.limit)
			if errs := d.Validate(s, nil); len(errs) > 0 {
				t.Errorf("at the limit: %v", errs.ToAggregate())
			}
			tt.fill(s, tt.limit+1)
			wantOnly(t, d, s, nil, tt.want)
		})
	}
}
