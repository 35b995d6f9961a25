package endpoints

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func webService(edits ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "svc-1", Labels: map[string]string{"team": "blue"}},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Selector: map[string]string{"app": "web"},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func webPod(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("pod-" + name), Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0." + name}, {IP: "fd00::" + name}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func unready(p *corev1.Pod)     { p.Status.Conditions = nil }
func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
func serves(port string, number int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Ports: []corev1.ContainerPort{{Name: port, ContainerPort: number, Protocol: corev1.ProtocolTCP}},
		})
	}
}

func vm(name string) *meshv1alpha1.Dataplane {
	return &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("vm-" + name), Labels: map[string]string{"app": "web"}},
		Spec:       meshv1alpha1.DataplaneSpec{Addresses: []string{"10.0.1." + name}},
		Status: meshv1alpha1.DataplaneStatus{
			Conditions: []metav1.Condition{{Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue}},
		},
	}
}

// show prints a subset in a line: ready addresses, those not ready, ports.
func show(subsets []corev1.EndpointSubset) []string {
	var out []string
	for _, s := range subsets {
		var ready, notReady, ports []string
		for _, a := range s.Addresses {
			ready = append(ready, showAddress(&a))
		}
		for _, a := range s.NotReadyAddresses {
			notReady = append(notReady, showAddress(&a))
		}
		for _, p := range s.Ports {
			ports = append(ports, fmt.Sprintf("%s:%d/%s", p.Name, p.Port, p.Protocol))
		}
		out = append(out, fmt.Sprintf("%v %v %v", ready, notReady, ports))
	}
	return out
}

func showAddress(a *corev1.EndpointAddress) string {
	line := a.IP
	if a.TargetRef != nil {
		line += "=" + a.TargetRef.Name
	}
	if a.Hostname != "" {
		line += " host=" + a.Hostname
	}
	return line
}

func pods(list ...*corev1.Pod) []*corev1.Pod { return list }

func TestSubsets(t *testing.T) {
	headless := func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.Ports = corev1.ClusterIPNone, nil }
	named := func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{
			{Name: "a", Port: 80, TargetPort: intstr.FromString("a")}, {Name: "b", Port: 81, TargetPort: intstr.FromString("b")},
		}
	}
	publish := func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }
	tests := map[string]struct {
		service    *corev1.Service
		pods       []*corev1.Pod
		dataplanes []*meshv1alpha1.Dataplane
		want       []string
	}{
		"no pods": {service: webService()},
		"ready and not ready": {
			service: webService(),
			pods:    pods(webPod("2", unready), webPod("1")),
			want:    []string{"[10.0.0.1=1] [10.0.0.2=2] [http:8080/TCP]"},
		},
		"terminating is left out": {
			service: webService(),
			pods:    pods(webPod("1", terminating), webPod("2")),
			want:    []string{"[10.0.0.2=2] [] [http:8080/TCP]"},
		},
		"publishNotReadyAddresses": {
			service: webService(publish),
			pods:    pods(webPod("1", terminating, unready), webPod("2", unready)),
			want:    []string{"[10.0.0.1=1 10.0.0.2=2] [] [http:8080/TCP]"},
		},
		"ended, or without address": {
			service: webService(),
			pods: pods(webPod("1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
				webPod("2", func(p *corev1.Pod) { p.Status.PodIPs = nil })),
		},
		"a node that is not there": {
			service: webService(),
			pods:    pods(webPod("1", func(p *corev1.Pod) { p.Spec.NodeName = "ghost" })),
			want:    []string{"[10.0.0.1=1] [] [http:8080/TCP]"},
		},
		"first family only": {
			service: webService(func(s *corev1.Service) {
				s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
			}),
			pods: pods(webPod("1")), want: []string{"[fd00::1=1] [] [http:8080/TCP]"},
		},
		"family of the cluster IP": {
			service: webService(func(s *corev1.Service) { s.Spec.IPFamilies, s.Spec.ClusterIP = nil, "fd00:96::1" }),
			pods:    pods(webPod("1")), want: []string{"[fd00::1=1] [] [http:8080/TCP]"},
		},
		"family of a headless Service that names none": {
			service: webService(func(s *corev1.Service) { s.Spec.IPFamilies, s.Spec.ClusterIP = nil, corev1.ClusterIPNone }),
			pods:    pods(webPod("1")), want: []string{"[10.0.0.1=1] [] [http:8080/TCP]"},
		},
		"hostname below the Service": {
			service: webService(), pods: pods(webPod("1", func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "h", "web" })),
			want: []string{"[10.0.0.1=1 host=h] [] [http:8080/TCP]"},
		},
		"hostname below another": {
			service: webService(), pods: pods(webPod("1", func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "h", "db" })),
			want: []string{"[10.0.0.1=1] [] [http:8080/TCP]"},
		},
		"headless without ports": {
			service: webService(headless),
			pods:    pods(webPod("1"), webPod("2", unready)),
			want:    []string{"[10.0.0.1=1] [10.0.0.2=2] []"},
		},
		"cluster IP without ports": {service: webService(func(s *corev1.Service) { s.Spec.Ports = nil }), pods: pods(webPod("1"))},
		"ports that differ by pod": {
			service: webService(named),
			pods:    pods(webPod("1", serves("a", 1), serves("b", 2)), webPod("2", serves("a", 1)), webPod("3")),
			want:    []string{"[10.0.0.1=1 10.0.0.2=2] [] [a:1/TCP]", "[10.0.0.1=1] [] [b:2/TCP]"},
		},
		"ports with the same addresses": {
			service: webService(named),
			pods:    pods(webPod("1", serves("a", 1), serves("b", 2))),
			want:    []string{"[10.0.0.1=1] [] [a:1/TCP b:2/TCP]"},
		},
		"one name, two numbers": {
			service: webService(named),
			pods:    pods(webPod("1", serves("a", 1)), webPod("2", serves("a", 9))),
			want:    []string{"[10.0.0.1=1] [] [a:1/TCP]", "[10.0.0.2=2] [] [a:9/TCP]"},
		},
		"a Dataplane": {
			service:    webService(),
			dataplanes: []*meshv1alpha1.Dataplane{vm("7")},
			want:       []string{"[10.0.1.7=7] [] [http:8080/TCP]"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := Input{Service: test.service, Pods: test.pods, Dataplanes: test.dataplanes}
			got, write := Reconcile(in)
			if !write {
				t.Fatal("nothing to write")
			}
			if diff := cmp.Diff(test.want, show(got.Subsets)); diff != "" {
				t.Error(diff)
			}
			in.Existing = got
			if _, again := Reconcile(in); again {
				t.Error("written again")
			}
		})
	}
}

func TestNotOurs(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Service){
		"no selector":   func(s *corev1.Service) { s.Spec.Selector = nil },
		"external name": func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName },
	} {
		if got, write := Reconcile(Input{Service: webService(edit), Pods: pods(webPod("1"))}); got != nil || write {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestMetadata(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	ours := map[string]string{"team": "blue", LabelManagedBy: ManagedBy}
	with := func(extra map[string]string) map[string]string {
		out := maps.Clone(ours)
		maps.Copy(out, extra)
		return out
	}
	current, _ := Reconcile(Input{Service: webService(), Pods: pods(webPod("1"))})
	tests := map[string]struct {
		service     *corev1.Service
		existing    func(*corev1.Endpoints)
		trigger     time.Time
		write       bool
		labels      map[string]string
		annotations map[string]string
	}{
		"as it must be":          {service: webService(), labels: ours},
		"the trigger time alone": {service: webService(), trigger: at, labels: ours},
		"the leader's annotation moves": {
			service:     webService(),
			existing:    annotate(LeaderAnnotation, "x"),
			labels:      ours,
			annotations: map[string]string{LeaderAnnotation: "x"},
		},
		"a write keeps others' annotations": {
			service:     webService(),
			existing:    func(e *corev1.Endpoints) { annotate(LeaderAnnotation, "x")(e); e.Subsets = nil },
			trigger:     at,
			write:       true,
			labels:      ours,
			annotations: map[string]string{LeaderAnnotation: "x", corev1.EndpointsLastChangeTriggerTime: "2026-01-02T02:04:05.000000006Z"},
		},
		"a write without a time clears the old": {
			service:     webService(),
			existing:    func(e *corev1.Endpoints) { annotate(corev1.EndpointsLastChangeTriggerTime, "x")(e); e.Subsets = nil },
			write:       true,
			labels:      ours,
			annotations: map[string]string{},
		},
		"over-capacity is removed": {
			service:     webService(),
			existing:    annotate(corev1.EndpointsOverCapacity, "truncated"),
			write:       true,
			labels:      ours,
			annotations: map[string]string{},
		},
		"labels follow the Service": {
			service:     webService(func(s *corev1.Service) { s.Labels = map[string]string{"v": "2"} }),
			write:       true,
			labels:      map[string]string{"v": "2", LabelManagedBy: ManagedBy},
			annotations: map[string]string{},
		},
		"a foreign label goes": {
			service:     webService(),
			existing:    func(e *corev1.Endpoints) { e.Labels = with(map[string]string{"x": "y"}) },
			write:       true,
			labels:      ours,
			annotations: map[string]string{},
		},
		"headless": {
			service:     webService(func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }),
			write:       true,
			labels:      with(map[string]string{corev1.IsHeadlessService: ""}),
			annotations: map[string]string{},
		},
		"reserved labels of the Service count not": {service: webService(func(s *corev1.Service) {
			s.Labels = map[string]string{"team": "blue", corev1.IsHeadlessService: "", LabelManagedBy: "me"}
		}), labels: ours},
		"a pod's version in a target": {
			service:  webService(),
			existing: func(e *corev1.Endpoints) { e.Subsets[0].Addresses[0].TargetRef.ResourceVersion = "9" },
			labels:   ours,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			existing := current.DeepCopy()
			existing.Annotations = nil
			if test.existing != nil {
				test.existing(existing)
			}
			before := existing.DeepCopy()
			got, write := Reconcile(Input{Service: test.service, Pods: pods(webPod("1")), Existing: existing, TriggerTime: test.trigger})
			if write != test.write {
				t.Errorf("write is %v", write)
			}
			if diff := cmp.Diff(test.labels, got.Labels); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.annotations, got.Annotations); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(before, existing); diff != "" {
				t.Errorf("the input was changed: %s", diff)
			}
		})
	}
}

func annotate(key, value string) func(*corev1.Endpoints) {
	return func(e *corev1.Endpoints) { e.Annotations = map[string]string{key: value} }
}

func TestTruncation(t *testing.T) {
	addresses := func(from, n int) []corev1.EndpointAddress {
		var out []corev1.EndpointAddress
		for i := range n {
			out = append(out, corev1.EndpointAddress{IP: fmt.Sprintf("10.%d.%d.%d", from, i/250, i%250)})
		}
		return out
	}
	subset := func(from, ready, notReady int) corev1.EndpointSubset {
		return corev1.EndpointSubset{Addresses: addresses(from, ready), NotReadyAddresses: addresses(from+100, notReady)}
	}
	tests := map[string]struct {
		in   []corev1.EndpointSubset
		want [][2]int // ready and not ready of each subset
		cut  bool
	}{
		"exactly full":            {in: []corev1.EndpointSubset{subset(0, 600, 400)}, want: [][2]int{{600, 400}}},
		"not ready ones go first": {in: []corev1.EndpointSubset{subset(0, 600, 401)}, want: [][2]int{{600, 400}}, cut: true},
		"ready ones are too many": {in: []corev1.EndpointSubset{subset(0, 1001, 5)}, want: [][2]int{{1000, 0}}, cut: true},
		"in proportion": {
			in:   []corev1.EndpointSubset{subset(0, 1500, 0), subset(1, 500, 9)},
			want: [][2]int{{750, 0}, {250, 0}},
			cut:  true,
		},
		"rounded up for the first": {
			in:   []corev1.EndpointSubset{subset(0, 1000, 0), subset(1, 1000, 0), subset(2, 1000, 0)},
			want: [][2]int{{334, 0}, {334, 0}, {332, 0}},
			cut:  true,
		},
		"not ready in proportion": {
			in:   []corev1.EndpointSubset{subset(0, 900, 100), subset(1, 0, 100)},
			want: [][2]int{{900, 50}, {0, 50}},
			cut:  true,
		},
		"an emptied subset goes": {in: []corev1.EndpointSubset{subset(0, 1001, 0), subset(1, 0, 3)}, want: [][2]int{{1000, 0}}, cut: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			out, cut := truncate(test.in, MaxAddresses)
			var got [][2]int
			for _, s := range out {
				got = append(got, [2]int{len(s.Addresses), len(s.NotReadyAddresses)})
			}
			if diff := cmp.Diff(test.want, got); diff != "" || cut != test.cut {
				t.Errorf("cut %v, %s", cut, diff)
			}
		})
	}
}

func TestOverCapacityComesAndGoes(t *testing.T) {
	in := Input{Service: webService()}
	for i := range 1001 {
		in.Pods = append(in.Pods, webPod(fmt.Sprint(i), func(p *corev1.Pod) {
			p.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("10.0.%d.%d", i/250, i%250)}}
		}))
	}
	full, _ := Reconcile(in)
	if n := len(full.Subsets[0].Addresses); n != 1000 || full.Annotations[corev1.EndpointsOverCapacity] != "truncated" {
		t.Fatalf("%d addresses, %v", n, full.Annotations)
	}
	in.Existing = full
	if _, write := Reconcile(in); write {
		t.Error("a truncated object is written again")
	}
	in.Pods = in.Pods[1:]
	less, write := Reconcile(in)
	if _, noted := less.Annotations[corev1.EndpointsOverCapacity]; !write || noted || len(less.Subsets[0].Addresses) != 1000 {
		t.Errorf("write %v, %v", write, less.Annotations)
	}
}

// fact is one thing that subsets say.
type fact struct {
	ip    string
	uid   types.UID
	port  string
	ready bool
}

func facts(subsets []corev1.EndpointSubset) map[fact]bool {
	out := make(map[fact]bool)
	for _, s := range subsets {
		ports := s.Ports
		if len(ports) == 0 {
			ports = []corev1.EndpointPort{{Port: -1}}
		}
		for _, p := range ports {
			name := fmt.Sprintf("%s %d %s %s", p.Name, p.Port, p.Protocol, ptr.Deref(p.AppProtocol, ""))
			note := func(all []corev1.EndpointAddress, ready bool) {
				for _, a := range all {
					f := fact{ip: a.IP, port: name, ready: ready}
					if a.TargetRef != nil {
						f.uid = a.TargetRef.UID
					}
					out[f] = true
				}
			}
			note(s.Addresses, true)
			note(s.NotReadyAddresses, false)
		}
	}
	for f := range out { // not ready outdoes ready
		if f.ready {
			f.ready = false
			if out[f] {
				f.ready = true
				delete(out, f)
			}
		}
	}
	return out
}

func TestRepackSaysTheSame(t *testing.T) {
	address := rapid.Custom(func(t *rapid.T) corev1.EndpointAddress {
		a := corev1.EndpointAddress{IP: rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1"}).Draw(t, "ip")}
		if uid := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "uid"); uid != "" {
			a.TargetRef = &corev1.ObjectReference{UID: types.UID(uid)}
		}
		return a
	})
	port := rapid.Custom(func(t *rapid.T) corev1.EndpointPort {
		p := corev1.EndpointPort{
			Name:     rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name"),
			Port:     rapid.SampledFrom([]int32{1, 2}).Draw(t, "port"),
			Protocol: corev1.ProtocolTCP,
		}
		if rapid.Bool().Draw(t, "app") {
			p.AppProtocol = ptr.To("h2")
		}
		return p
	})
	rapid.Check(t, func(t *rapid.T) {
		var in []corev1.EndpointSubset
		for range rapid.IntRange(0, 5).Draw(t, "subsets") {
			in = append(in, corev1.EndpointSubset{
				Addresses:         rapid.SliceOfN(address, 0, 3).Draw(t, "ready"),
				NotReadyAddresses: rapid.SliceOfN(address, 0, 3).Draw(t, "not ready"),
				Ports:             rapid.SliceOfN(port, 0, 3).Draw(t, "ports"),
			})
		}
		out := Repack(in)
		if diff := cmp.Diff(facts(in), facts(out), cmp.AllowUnexported(fact{})); diff != "" {
			t.Fatal(diff)
		}
		if diff := cmp.Diff(out, Repack(out)); diff != "" {
			t.Fatalf("repacked again: %s", diff)
		}
		slices.Reverse(in)
		if diff := cmp.Diff(facts(out), facts(Repack(in)), cmp.AllowUnexported(fact{})); diff != "" {
			t.Fatalf("reversed: %s", diff)
		}
		seen := map[string]bool{}
		for _, s := range out {
			if len(s.Addresses)+len(s.NotReadyAddresses) == 0 {
				t.Fatal("an empty subset")
			}
			for _, p := range s.Ports {
				name := fmt.Sprint(p.Name, p.Port, ptr.Deref(p.AppProtocol, ""))
				if seen[name] {
					t.Fatalf("two subsets of %s", name)
				}
				seen[name] = true
			}
		}
	})
}
