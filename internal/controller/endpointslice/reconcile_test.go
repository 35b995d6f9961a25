package endpointslice

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func TestReconcileEndpoints(t *testing.T) {
	namedPort := func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("http") }
	dual := func(s *corev1.Service) {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
	publish := func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }
	headless := func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }
	distribution := func(d string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.TrafficDistribution = &d }
	}
	on := func(n string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = n } }
	tests := map[string]struct {
		service    *corev1.Service
		pods       []*corev1.Pod
		dataplanes []*meshv1alpha1.Dataplane
		want       []string
		skipped    int
	}{
		"ready pod": {
			service: webService(), pods: []*corev1.Pod{webPod("a", "10.0.0.1")},
			want: []string{"IPv4 http:8080/TCP 10.0.0.1 Pod/a [rs] node=n1 zone=z1"},
		},
		"pod and Dataplane are equals": {
			service: webService(), pods: []*corev1.Pod{webPod("a", "10.0.0.1")}, dataplanes: []*meshv1alpha1.Dataplane{vm("v", "10.0.0.2")},
			want: []string{"IPv4 http:8080/TCP 10.0.0.1 Pod/a [rs] node=n1 zone=z1", "IPv4 http:8080/TCP 10.0.0.2 Dataplane/v [rs]"},
		},
		"external name": {
			service: webService(
				func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }), pods: []*corev1.Pod{webPod("a", "10.0.0.1")},
		},
		"no selector": {
			service: webService(func(s *corev1.Service) { s.Spec.Selector = nil }), pods: []*corev1.Pod{webPod("a", "10.0.0.1")},
		},
		"no endpoints: placeholder": {service: webService(), want: []string{"IPv4 empty"}},
		"placeholder per family":    {service: webService(dual), want: []string{"IPv4 empty", "IPv6 empty"}},
		"conditions": {
			service: webService(),
			pods: []*corev1.Pod{
				webPod("unready", "10.0.0.1", unready), webPod("leaving", "10.0.0.2", terminating), webPod("left", "10.0.0.3", terminating, unready),
			},
			want: []string{
				"IPv4 http:8080/TCP 10.0.0.1 Pod/unready [] node=n1 zone=z1",
				"IPv4 http:8080/TCP 10.0.0.2 Pod/leaving [st] node=n1 zone=z1",
				"IPv4 http:8080/TCP 10.0.0.3 Pod/left [t] node=n1 zone=z1",
			},
		},
		"publishNotReadyAddresses": {
			service: webService(publish),
			pods:    []*corev1.Pod{webPod("unready", "10.0.0.1", unready), webPod("leaving", "10.0.0.2", terminating)},
			want: []string{
				"IPv4 http:8080/TCP 10.0.0.1 Pod/unready [r] node=n1 zone=z1",
				"IPv4 http:8080/TCP 10.0.0.2 Pod/leaving [rst] node=n1 zone=z1",
			},
		},
		"ended or without address": {
			service: webService(),
			pods: []*corev1.Pod{
				webPod("done", "10.0.0.1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
				webPod("failed", "10.0.0.2", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
				webPod("starting", "", func(p *corev1.Pod) { p.Status.PodIPs = nil }),
			},
			want: []string{"IPv4 empty"},
		},
		"missing node": {
			service: webService(), pods: []*corev1.Pod{webPod("a", "10.0.0.1", on("gone")), webPod("b", "10.0.0.2")},
			dataplanes: []*meshv1alpha1.Dataplane{vm("v", "10.0.0.3", func(d *meshv1alpha1.Dataplane) { d.Spec.NodeName = "gone" })},
			want:       []string{"IPv4 http:8080/TCP 10.0.0.2 Pod/b [rs] node=n1 zone=z1"}, skipped: 2,
		},
		"missing node, publishNotReadyAddresses": {
			service: webService(publish), pods: []*corev1.Pod{webPod("a", "10.0.0.1", on("gone"))},
			want: []string{"IPv4 http:8080/TCP 10.0.0.1 Pod/a [rs] node=gone"},
		},
		"Dataplane's own zone wins over its node's": {
			service: webService(),
			dataplanes: []*meshv1alpha1.Dataplane{
				vm("a", "10.0.0.1", func(d *meshv1alpha1.Dataplane) { d.Spec.NodeName = "n1" }),
				vm("b", "10.0.0.2", func(d *meshv1alpha1.Dataplane) {
					d.Spec.NodeName = "n1"
					d.Labels[corev1.LabelTopologyZone] = "mine"
				}),
			},
			want: []string{
				"IPv4 http:8080/TCP 10.0.0.1 Dataplane/a [rs] node=n1 zone=z1",
				"IPv4 http:8080/TCP 10.0.0.2 Dataplane/b [rs] node=n1 zone=mine",
			},
		},
		"hostname only under the Service's subdomain": {
			service: webService(headless),
			pods: []*corev1.Pod{
				webPod("a", "10.0.0.1", func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "h", "web" }),
				webPod("b", "10.0.0.2", func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "h", "other" }),
				webPod("c", "10.0.0.3", func(p *corev1.Pod) { p.Spec.Subdomain = "web" }),
			},
			want: []string{
				"IPv4 http:8080/TCP 10.0.0.1 Pod/a [rs] node=n1 zone=z1 host=h",
				"IPv4 http:8080/TCP 10.0.0.2 Pod/b [rs] node=n1 zone=z1",
				"IPv4 http:8080/TCP 10.0.0.3 Pod/c [rs] node=n1 zone=z1",
			},
		},
		"dual stack": {
			service: webService(dual),
			pods: []*corev1.Pod{
				webPod("both", "10.0.0.1", func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::1"}) }),
				webPod("four", "10.0.0.2"),
			},
			want: []string{
				"IPv4 http:8080/TCP 10.0.0.1 Pod/both [rs] node=n1 zone=z1",
				"IPv4 http:8080/TCP 10.0.0.2 Pod/four [rs] node=n1 zone=z1",
				"IPv6 http:8080/TCP fd00::1 Pod/both [rs] node=n1 zone=z1",
			},
		},
		"named ports resolve per workload": {
			service: webService(namedPort),
			pods: []*corev1.Pod{
				webPod("a", "10.0.0.1"),
				webPod("other", "10.0.0.2", func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort = 8888 }),
				webPod("none", "10.0.0.3", func(p *corev1.Pod) { p.Spec.Containers[0].Ports = nil }),
				webPod("udp", "10.0.0.4", func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].Protocol = corev1.ProtocolUDP }),
				webPod("sidecar", "10.0.0.5", func(p *corev1.Pod) {
					p.Spec.InitContainers = []corev1.Container{
						{RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Ports: p.Spec.Containers[0].Ports}}
					p.Spec.Containers = nil
				}),
				webPod("init", "10.0.0.6", func(p *corev1.Pod) {
					p.Spec.InitContainers = []corev1.Container{{Ports: p.Spec.Containers[0].Ports}}
					p.Spec.Containers = nil
				}),
			},
			dataplanes: []*meshv1alpha1.Dataplane{vm("v", "10.0.0.7")},
			want: []string{
				"IPv4 10.0.0.3 Pod/none [rs] node=n1 zone=z1",
				"IPv4 10.0.0.4 Pod/udp [rs] node=n1 zone=z1",
				"IPv4 10.0.0.6 Pod/init [rs] node=n1 zone=z1",
				"IPv4 http:8080/TCP 10.0.0.1 Pod/a [rs] node=n1 zone=z1",
				"IPv4 http:8080/TCP 10.0.0.5 Pod/sidecar [rs] node=n1 zone=z1",
				"IPv4 http:8888/TCP 10.0.0.2 Pod/other [rs] node=n1 zone=z1",
				"IPv4 http:9090/TCP 10.0.0.7 Dataplane/v [rs]",
			},
		},
		"headless without ports": {
			service: webService(headless, func(s *corev1.Service) { s.Spec.Ports = nil }), pods: []*corev1.Pod{webPod("a", "10.0.0.1")},
			want: []string{"IPv4 10.0.0.1 Pod/a [rs] node=n1 zone=z1"},
		},
		"PreferClose": {
			service: webService(distribution("PreferClose")),
			pods:    []*corev1.Pod{webPod("a", "10.0.0.1"), webPod("b", "10.0.0.2", on("n2")), webPod("u", "10.0.0.3", unready)},
			want: []string{
				"IPv4 http:8080/TCP 10.0.0.1 Pod/a [rs] node=n1 zone=z1 hints=[{z1}][]",
				"IPv4 http:8080/TCP 10.0.0.2 Pod/b [rs] node=n2 zone=z2 hints=[{z2}][]",
				"IPv4 http:8080/TCP 10.0.0.3 Pod/u [] node=n1 zone=z1",
			},
		},
		"PreferSameNode": {
			service: webService(
				distribution("PreferSameNode"),
			), pods: []*corev1.Pod{webPod("a", "10.0.0.1")}, dataplanes: []*meshv1alpha1.Dataplane{vm("v", "10.0.0.2")},
			want: []string{
				"IPv4 http:8080/TCP 10.0.0.1 Pod/a [rs] node=n1 zone=z1 hints=[{z1}][{n1}]",
				"IPv4 http:8080/TCP 10.0.0.2 Dataplane/v [rs]",
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(test.service)
			w.in.Pods, w.in.Dataplanes = test.pods, test.dataplanes
			plan := w.sync()
			if diff := cmp.Diff(test.want, show(w.list())); diff != "" {
				t.Error(diff)
			}
			if len(plan.Skipped) != test.skipped {
				t.Errorf("skipped %v, want %d", plan.Skipped, test.skipped)
			}
			if again := w.plan(); !again.Empty() {
				t.Errorf("a second plan is not empty: %+v", again)
			}
			for _, slice := range w.list() {
				if errs := kind.EndpointSlice.Validate(slice, nil); len(errs) > 0 {
					t.Errorf("the API refuses the slice: %v", errs)
				}
			}
		})
	}
}

func TestSliceMetadata(t *testing.T) {
	w := newWorld(webService(func(s *corev1.Service) {
		s.Labels[discoveryv1.LabelServiceName] = "fake"
		s.Labels[discoveryv1.LabelManagedBy] = "me"
		s.Labels[corev1.IsHeadlessService] = ""
		s.Annotations = map[string]string{"note": "not copied"}
	}))
	w.in.Pods = []*corev1.Pod{webPod("a", "10.0.0.1")}
	w.in.TriggerTime = time.Date(2026, 1, 2, 3, 4, 5, 678, time.FixedZone("", 3600))
	got := w.plan().Create[0].ObjectMeta
	want := metav1.ObjectMeta{
		Namespace: "ns", GenerateName: "web-",
		Labels: map[string]string{
			"team": "blue", discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
		},
		Annotations: map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-02T02:04:05.000000678Z"},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Service", Name: "web", UID: "svc-1", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	w.sync()
	w.in.TriggerTime = time.Time{}
	if !w.plan().Empty() {
		t.Error("a slice is written for its annotation alone")
	}
	w.in.Service.Spec.ClusterIP = "None"
	w.sync()
	after := w.list()[0]
	if _, ok := after.Annotations[corev1.EndpointsLastChangeTriggerTime]; ok {
		t.Error("the old trigger time was left in a slice that was written")
	}
	if _, ok := after.Labels[corev1.IsHeadlessService]; !ok {
		t.Error("no label for a headless Service")
	}
}

func pods(from, n int, edits ...func(*corev1.Pod)) []*corev1.Pod {
	var out []*corev1.Pod
	for i := from; i < from+n; i++ {
		out = append(out, webPod(fmt.Sprintf("p%04d", i), fmt.Sprintf("10.0.%d.%d", i/250, i%250+1), edits...))
	}
	return out
}

func TestPacking(t *testing.T) {
	type step struct {
		change  func(w *world)
		sizes   []int
		c, u, d int // creates, updates, deletes
	}
	add := func(n int, edits ...func(*corev1.Pod)) func(*world) {
		return func(w *world) {
			w.in.Pods = append(w.in.Pods, pods(w.pods, n, edits...)...)
			w.pods += n
		}
	}
	drop := func(from, n int) func(*world) {
		return func(w *world) { w.in.Pods = slices.Delete(slices.Clone(w.in.Pods), from, from+n) }
	}
	replace := func(at int, edits ...func(*corev1.Pod)) func(*world) {
		return func(w *world) { w.in.Pods[at] = pods(at, 1, edits...)[0] }
	}
	both := func(a, b func(*world)) func(*world) { return func(w *world) { a(w); b(w) } }
	tests := map[string][]step{
		"250": {{add(250), []int{100, 100, 50}, 3, 0, 0}},
		"60 more, the last slice changing anyway, as in a rollout": {
			{both(add(249), add(1, unready)), []int{100, 100, 50}, 3, 0, 0},
			{both(replace(249), add(60)), []int{100, 100, 100, 10}, 1, 1, 0},
		},
		"60 more at once, no slice changing: none is opened for a part": {
			{add(250), []int{100, 100, 50}, 3, 0, 0},
			{add(60), []int{100, 100, 60, 50}, 1, 0, 0},
		},
		"fits whole into the fullest": {
			{add(250), []int{100, 100, 50}, 3, 0, 0},
			{drop(0, 30), []int{100, 70, 50}, 0, 1, 0},
			{add(30), []int{100, 100, 50}, 0, 1, 0},
		},
		"emptied slices go": {
			{add(250), []int{100, 100, 50}, 3, 0, 0},
			{drop(0, 100), []int{100, 50}, 0, 0, 1},
			{drop(0, 150), []int{0}, 0, 1, 1},
			{add(1), []int{1}, 0, 1, 0},
		},
		"a changed slice takes new ones first": {
			{add(150), []int{100, 50}, 2, 0, 0},
			{both(drop(0, 1), add(2)), []int{100, 51}, 0, 2, 0},
		},
		"whole slices are new, the rest goes where it fits": {
			{add(150), []int{100, 50}, 2, 0, 0},
			{add(120), []int{100, 100, 70}, 1, 1, 0},
		},
		"one changed endpoint, one write": {
			{add(250), []int{100, 100, 50}, 3, 0, 0},
			{replace(120, unready), []int{100, 100, 50}, 0, 1, 0},
			{func(*world) {}, []int{100, 100, 50}, 0, 0, 0},
		},
		"option": {
			{both(func(w *world) { w.in.Options.MaxEndpoints = 3 }, add(7)), []int{3, 3, 1}, 3, 0, 0},
		},
		"option lowered": {
			{add(7), []int{7}, 1, 0, 0},
			{func(w *world) { w.in.Options.MaxEndpoints = 3 }, []int{3, 3, 1}, 2, 1, 0},
		},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(webService())
			for i, s := range steps {
				s.change(w)
				p := w.sync()
				if diff := cmp.Diff(s.sizes, w.sizes()); diff != "" {
					t.Fatalf("step %d: sizes %s", i, diff)
				}
				if c, u, d := len(p.Create), len(p.Update), len(p.Delete); c != s.c || u != s.u || d != s.d {
					t.Errorf("step %d: %d creates, %d updates, %d deletes; want %d, %d, %d", i, c, u, d, s.c, s.u, s.d)
				}
			}
		})
	}
}

func TestReconcileRepairs(t *testing.T) {
	edit := func(f func(s *discoveryv1.EndpointSlice)) func(*world) {
		return func(w *world) {
			s := w.list()[0].DeepCopy()
			f(s)
			w.slices[s.Name] = s
		}
	}
	tests := map[string]func(*world){
		"deleted":            func(w *world) { delete(w.slices, w.list()[0].Name) },
		"label added":        edit(func(s *discoveryv1.EndpointSlice) { s.Labels["x"] = "y" }),
		"label removed":      edit(func(s *discoveryv1.EndpointSlice) { delete(s.Labels, "team") }),
		"endpoint removed":   edit(func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[1:] }),
		"endpoint doubled":   edit(func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, s.Endpoints[0]) }),
		"endpoint invented":  edit(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"10.9.9.9"} }),
		"condition changed":  edit(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = ptr.To(false) }),
		"condition removed":  edit(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Serving = nil }),
		"zone changed":       edit(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Zone = ptr.To("zz") }),
		"reference changed":  edit(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef.UID = "other" }),
		"hints added":        edit(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Hints = &discoveryv1.EndpointHints{} }),
		"port changed":       edit(func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = ptr.To[int32](1) }),
		"owner removed":      edit(func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil }),
		"slice of old owner": edit(func(s *discoveryv1.EndpointSlice) { s.OwnerReferences[0].UID = "old" }),
	}
	for name, damage := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(webService())
			w.in.Pods = pods(0, 3)
			w.sync()
			want := show(w.list())
			damage(w)
			if w.plan().Empty() {
				t.Fatal("the damage was not noticed")
			}
			w.sync()
			if diff := cmp.Diff(want, show(w.list())); diff != "" {
				t.Error(diff)
			}
			for _, s := range w.slices {
				if !ownedBy(s, w.in.Service) || !maps.Equal(s.Labels, sliceLabels(w.in.Service, ManagedBy)) {
					t.Errorf("metadata of %s: %v %v", s.Name, s.Labels, s.OwnerReferences)
				}
			}
			if again := w.plan(); !again.Empty() {
				t.Errorf("a second plan is not empty: %+v", again)
			}
		})
	}
}

func TestDeleteAndCreateBecomeUpdate(t *testing.T) {
	w := newWorld(webService())
	w.in.Pods = pods(0, 3)
	w.sync()
	name := w.list()[0].Name
	w.in.Service.Spec.Ports[0].TargetPort = intstr.FromInt32(9000)
	p := w.sync()
	if len(p.Create) != 0 || len(p.Delete) != 0 || len(p.Update) != 1 || p.Update[0].Name != name {
		t.Errorf("got %d creates, %d deletes, updates %v; want one update of %s", len(p.Create), len(p.Delete), p.Update, name)
	}

	w.in.Service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	p = w.sync()
	if len(p.Create) != 1 || len(p.Delete) != 1 || len(p.Update) != 0 {
		t.Errorf("another family: %d creates, %d updates, %d deletes; want 1, 0, 1", len(p.Create), len(p.Update), len(p.Delete))
	}
}

func TestNothingIsCreatedForADeletedService(t *testing.T) {
	w := newWorld(webService())
	w.in.Options.MaxEndpoints = 2
	w.in.Pods = pods(0, 2)
	w.sync()
	w.in.Service.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	w.in.Pods = append(pods(0, 1, unready), pods(1, 4)...)
	p := w.plan()
	if len(p.Create) != 0 || len(p.Update) != 1 {
		t.Errorf("%d creates and %d updates, want 0 and 1", len(p.Create), len(p.Update))
	}
}

func TestHintsFollowTrafficDistribution(t *testing.T) {
	w := newWorld(webService())
	w.in.Pods = append(pods(0, 2), pods(2, 1, unready)...)
	w.sync()
	for _, distribution := range []*string{ptr.To("PreferSameZone"), ptr.To("PreferSameNode"), ptr.To("PreferClose"), ptr.To("unknown"), nil} {
		w.in.Service.Spec.TrafficDistribution = distribution
		w.sync()
		if again := w.plan(); !again.Empty() {
			t.Fatalf("%s: a second plan is not empty", ptr.Deref(distribution, "none"))
		}
		zones, nodes := 0, 0
		for _, e := range w.list()[0].Endpoints {
			if e.Hints != nil {
				zones += len(e.Hints.ForZones)
				nodes += len(e.Hints.ForNodes)
			}
		}
		want := map[string][2]int{"PreferSameZone": {2, 0}, "PreferSameNode": {2, 2}, "PreferClose": {2, 0}}[ptr.Deref(distribution, "")]
		if got := [2]int{zones, nodes}; got != want {
			t.Errorf("%s: %v zone and node hints, want %v", ptr.Deref(distribution, "none"), got, want)
		}
	}
}
