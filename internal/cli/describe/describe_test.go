package describe

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world is a Reader of fixed objects.
type world struct {
	objects []resource.Object
	// forbidden resources.
	forbidden map[string]bool
	fails     error
}

func (w *world) check(d *resource.Descriptor) error {
	if w.forbidden[d.Resource] {
		return apierrors.NewForbidden(d.GroupResource(), "", errors.New("not yours"))
	}
	return w.fails
}

func (w *world) Get(_ context.Context, d *resource.Descriptor, key resource.Key) (resource.Object, error) {
	for _, o := range w.objects {
		if sameType(o, d.New()) && resource.KeyOf(o) == key {
			return o, w.check(d)
		}
	}
	return nil, apierrors.NewNotFound(d.GroupResource(), key.Name)
}

func (w *world) List(_ context.Context, d *resource.Descriptor, opts resource.ListOptions) ([]resource.Object, string, error) {
	var out []resource.Object
	for _, o := range w.objects {
		if sameType(o, d.New()) && (opts.Namespace == "" || opts.Namespace == o.GetNamespace()) {
			out = append(out, o)
		}
	}
	return out, "1", w.check(d)
}

func sameType(a, b resource.Object) bool { return reflect.TypeOf(a) == reflect.TypeOf(b) }

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "ns", Labels: map[string]string{"app": "web"}, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}
}

func describe(t *testing.T, w *world, d *resource.Descriptor, key resource.Key) string {
	t.Helper()
	var out bytes.Buffer
	describer := Describer{Reader: w, Now: now, Events: func(context.Context, resource.Object, string) ([]corev1.Event, error) { return nil, nil }}
	if err := describer.Describe(t.Context(), &out, d, key); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func mustContain(t *testing.T, got string, want ...string) {
	t.Helper()
	plain := strings.Join(strings.Fields(got), " ")
	for _, w := range want {
		if !strings.Contains(plain, w) {
			t.Errorf("want %q in\n%s", w, got)
		}
	}
}

func endpointOf(kind, name, address string, ready, serving, terminating bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses:  []string{address},
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(ready), Serving: ptr.To(serving), Terminating: ptr.To(terminating)},
		TargetRef:  &corev1.ObjectReference{Kind: kind, Name: name, Namespace: "ns"},
		NodeName:   ptr.To("n1"),
	}
}

// TestServiceTellsWhy goes through the reasons for which a workload of a Service
// gets no traffic.
func TestServiceTellsWhy(t *testing.T) {
	ready := func(status metav1.ConditionStatus) mesh.DataplaneStatus {
		return mesh.DataplaneStatus{Conditions: []metav1.Condition{{Type: mesh.DataplaneReady, Status: status, Reason: "Probed"}}}
	}
	draining := named("draining")
	draining.DeletionTimestamp = ptr.To(metav1.NewTime(now))
	other := named("other")
	other.Labels = nil
	w := &world{objects: []resource.Object{
		&corev1.Service{ObjectMeta: named("web"), Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"}, Selector: map[string]string{"app": "web"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyLocal),
			SessionAffinity:       corev1.ServiceAffinityClientIP,
			SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(int32(60))}},
			Ports:                 []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("web")}},
		}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}},
		&mesh.Dataplane{ObjectMeta: named("up"), Status: ready(metav1.ConditionTrue)},
		&mesh.Dataplane{ObjectMeta: named("down"), Status: ready(metav1.ConditionFalse)},
		&mesh.Dataplane{ObjectMeta: named("mute")},
		&mesh.Dataplane{ObjectMeta: draining, Status: ready(metav1.ConditionTrue)},
		&mesh.Dataplane{ObjectMeta: named("v6"), Spec: mesh.DataplaneSpec{Addresses: []string{"fd00::1"}}},
		&mesh.Dataplane{ObjectMeta: named("lost"), Spec: mesh.DataplaneSpec{Addresses: []string{"10.1.0.9"}, NodeName: "gone"}},
		&mesh.Dataplane{ObjectMeta: other},
		&corev1.Pod{ObjectMeta: named("done"), Status: corev1.PodStatus{Phase: corev1.PodSucceeded}},
		&corev1.Pod{ObjectMeta: named("new")},
		&corev1.Pod{ObjectMeta: named("starting"), Status: corev1.PodStatus{
			PodIP: "10.1.0.7", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady", Message: "web"}}}},
		&discoveryv1.EndpointSlice{ObjectMeta: named("web-1"), AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{
			endpointOf("Dataplane", "up", "10.1.0.1", true, true, false),
			endpointOf("Dataplane", "down", "10.1.0.2", false, false, false),
			endpointOf("Dataplane", "mute", "10.1.0.3", false, false, false),
			endpointOf("Dataplane", "draining", "10.1.0.4", false, true, true),
			endpointOf("Dataplane", "absent", "10.1.0.5", false, false, true),
			endpointOf("Pod", "starting", "10.1.0.7", false, false, false),
		}},
	}}
	got := describe(t, w, kind.Service, resource.Key{Namespace: "ns", Name: "web"})
	mustContain(t, got,
		"Policies: internal Local", "Affinity: ClientIP for 60s",
		"10.1.0.1 ready - n1 dataplane/up",
		"10.1.0.2 not ready - n1 dataplane/down Probed",
		"dataplane/mute it has not been reported ready yet",
		"10.1.0.4 draining - n1 dataplane/draining it is draining",
		"10.1.0.5 ending - n1 dataplane/absent the Dataplane is gone; the slice follows",
		"pod/starting ContainersNotReady: web",
		"dataplane/v6 it has no address of the Service's families [IPv4]",
		`dataplane/lost its Node "gone" does not exist`,
		"pod/done it has ended: Succeeded",
		"pod/new it has no address yet",
		`port http: no workload has a port named "web" of protocol TCP`,
	)
	if strings.Contains(got, "other") || strings.Contains(got, "no endpoint is ready") {
		t.Errorf("wrong text:\n%s", got)
	}

	w.forbidden = map[string]bool{"pods": true}
	mustContain(t, describe(t, w, kind.Service, resource.Key{Namespace: "ns", Name: "web"}),
		"pods can't be read: pods is forbidden: not yours", "pod/starting the Pod is gone; the slice follows")
}

// TestWeights: the page of a Service has the weights of its endpoints where they differ, and
// how far those are that warm up.
func TestWeights(t *testing.T) {
	dataplane := func(name string, weight *int32, readyFor time.Duration) *mesh.Dataplane {
		return &mesh.Dataplane{ObjectMeta: named(name), Spec: mesh.DataplaneSpec{Weight: weight}, Status: mesh.DataplaneStatus{Conditions: []metav1.Condition{
			{Type: mesh.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Probed", LastTransitionTime: metav1.NewTime(now.Add(-readyFor))},
		}}}
	}
	service := &corev1.Service{ObjectMeta: named("web"), Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}}}
	w := &world{objects: []resource.Object{
		service, dataplane("old", nil, time.Hour), dataplane("new", nil, 12*time.Second),
		&discoveryv1.EndpointSlice{ObjectMeta: named("web-1"), AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{
			endpointOf("Dataplane", "old", "10.1.0.1", true, true, false), endpointOf("Dataplane", "new", "10.1.0.2", true, true, false),
			endpointOf("Pod", "gone", "10.1.0.3", true, true, false),
		}},
	}}
	page := func() string { return describe(t, w, kind.Service, resource.Key{Namespace: "ns", Name: "web"}) }
	if got := page(); strings.Contains(got, "WEIGHT") || strings.Contains(got, "Warm-up") {
		t.Errorf("all are alike:\n%s", got)
	}
	service.Annotations = map[string]string{kind.AnnotationWarmUp: "30s"}
	mustContain(t, page(), "Warm-up: 30s", "ADDRESS STATE WEIGHT ZONE", "10.1.0.1 ready 100 - n1 dataplane/old",
		"10.1.0.2 ready 100, warming up: 50 % of it - n1 dataplane/new", "10.1.0.3 ready 100 - n1 pod/gone")
	service.Annotations = nil
	w.objects[1] = dataplane("old", ptr.To(int32(5)), time.Hour)
	mustContain(t, page(), "10.1.0.1 ready 5 - n1 dataplane/old", "10.1.0.2 ready 100 - n1 dataplane/new", "proxima explain service ns/web --from-zone ZONE")
}

func TestNodeAndLeases(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "LeaseExpired", LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))}},
	}}
	dp := &mesh.Dataplane{ObjectMeta: named("a"), Spec: mesh.DataplaneSpec{NodeName: "n1", Addresses: []string{"10.1.0.1"}},
		Status: mesh.DataplaneStatus{Lease: &mesh.DataplaneLease{Holder: "host/1", RenewTime: metav1.NewMicroTime(now.Add(-50 * time.Second)), DurationSeconds: 40}}}
	w := &world{objects: []resource.Object{n, dp, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Namespace: corev1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("n1"), RenewTime: ptr.To(metav1.NewMicroTime(now.Add(-5 * time.Second))), LeaseDurationSeconds: ptr.To(int32(40))},
	}}}
	mustContain(t, describe(t, w, kind.Node, resource.Key{Name: "n1"}),
		"Lease: renewed 5s ago by n1, lasts 40s Conditions", "Ready Unknown 60s LeaseExpired", "ns dataplane/a 10.1.0.1 not ready it has not been reported ready yet")
	mustContain(t, describe(t, w, kind.Dataplane, resource.Key{Namespace: "ns", Name: "a"}),
		"Lease: renewed 50s ago by host/1, lasts 40s: it has run out",
		"no Service in namespace ns selects it", "its node n1 is not ready: LeaseExpired")

	w.forbidden = map[string]bool{"leases": true}
	mustContain(t, describe(t, w, kind.Node, resource.Key{Name: "n1"}), "Lease: none")
	w.forbidden, w.fails = nil, errors.New("store is away")
	d := Describer{Reader: w, Now: now}
	if err := d.Describe(t.Context(), new(bytes.Buffer), kind.Node, resource.Key{Name: "n1"}); err == nil {
		t.Error("a failure to read is reported as an absent object")
	}
}

func TestProbes(t *testing.T) {
	for want, p := range map[string]*mesh.Probe{
		"as reported by its runner":            nil,
		"HTTPS GET /x on port web every 1s":    {HTTPGet: &mesh.HTTPGetAction{Path: "/x", Scheme: "HTTPS", Port: intstr.FromString("web")}, PeriodSeconds: 1},
		"TCP connection to port 80 every 2s":   {TCPSocket: &mesh.TCPSocketAction{Port: intstr.FromInt32(80)}, PeriodSeconds: 2},
		"gRPC health on port 90 every 3s":      {GRPC: &mesh.GRPCAction{Port: 90}, PeriodSeconds: 3},
		"command test -f /ready every 4s, 5 f": {Exec: &mesh.ExecAction{Command: []string{"test", "-f", "/ready"}}, PeriodSeconds: 4, FailureThreshold: 5},
	} {
		if got := probe(p); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestOneLine(t *testing.T) {
	if got := OneLine("a\nb\x1b[31m\u009bc\td"); got != "a b [31m c d" {
		t.Errorf("got %q", got)
	}
}

// TestTags: a workload's page names the services of its tags, and the page of the Service of a
// tag has the workloads of all namespaces of its mesh.
func TestTags(t *testing.T) {
	workload := func(ns, name, tag string) *mesh.Dataplane {
		m := named(name)
		m.Namespace, m.Labels = ns, map[string]string{mesh.LabelKumaService: tag}
		return &mesh.Dataplane{ObjectMeta: m, Spec: mesh.DataplaneSpec{Addresses: []string{"192.0.2.1"}, Ports: []mesh.DataplanePort{{Port: 8080}}}}
	}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: servicetag.Namespace("default"), Name: "backend", Labels: map[string]string{mesh.LabelService: "backend"}}}
	s.Spec.Selector = servicetag.Selector("backend")
	pod := &corev1.Pod{ObjectMeta: named("bare")}
	pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}
	other := workload("ns", "other", "backend")
	other.Spec.Mesh = "blue"
	w := &world{objects: []resource.Object{workload("ns", "a", "backend"), workload("ns2", "b", "backend"), workload("ns", "c", "Upper"), other, s, pod}}
	key := func(name string) resource.Key { return resource.Key{Namespace: "ns", Name: name} }
	mustContain(t, describe(t, w, kind.Dataplane, key("a")), "Service of a tag:", "backend.mesh")
	mustContain(t, describe(t, w, kind.Dataplane, key("c")), `service tag "Upper"`)
	mustContain(t, describe(t, w, kind.Pod, key("bare")), "bare_ns_svc.mesh (generated")
	page := describe(t, w, kind.Service, resource.KeyOf(s))
	mustContain(t, page, "backend.mesh", "dataplane/a", "dataplane/b")
	if strings.Contains(page, "other") {
		t.Errorf("a workload of another mesh:\n%s", page)
	}
	w.objects = append(w.objects, &corev1.Service{ObjectMeta: named("web"), Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}}})
	if page := describe(t, w, kind.Pod, key("bare")); strings.Contains(page, "generated") {
		t.Errorf("a Service selects it:\n%s", page)
	}
}
