package mirroring

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/controller/endpoints"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dbService has no selector: a user writes its Endpoints.
func dbService(edits ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "svc-1"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}}},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func selects(s *corev1.Service)  { s.Spec.Selector = map[string]string{"app": "db"} }
func external(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }

func port(name string, number int32) corev1.EndpointPort {
	return corev1.EndpointPort{Name: name, Port: number, Protocol: corev1.ProtocolTCP}
}

func ips(all ...string) []corev1.EndpointAddress {
	var out []corev1.EndpointAddress
	for _, ip := range all {
		out = append(out, corev1.EndpointAddress{IP: ip})
	}
	return out
}

func many(n int) []corev1.EndpointAddress {
	var out []corev1.EndpointAddress
	for i := range n {
		out = append(out, corev1.EndpointAddress{IP: fmt.Sprintf("10.1.%d.%d", i/250, i%250)})
	}
	return out
}

// dbEndpoints have one ready address unless edited.
func dbEndpoints(edits ...func(*corev1.Endpoints)) *corev1.Endpoints {
	e := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "ep-1"},
		Subsets:    []corev1.EndpointSubset{{Addresses: ips("10.0.0.1"), Ports: []corev1.EndpointPort{port("sql", 5432)}}},
	}
	for _, edit := range edits {
		edit(e)
	}
	return e
}

func label(key, value string) func(*corev1.Endpoints) {
	return func(e *corev1.Endpoints) {
		if e.Labels == nil {
			e.Labels = map[string]string{}
		}
		e.Labels[key] = value
	}
}

func annotate(key, value string) func(*corev1.Endpoints) {
	return func(e *corev1.Endpoints) {
		if e.Annotations == nil {
			e.Annotations = map[string]string{}
		}
		e.Annotations[key] = value
	}
}

func subsets(all ...corev1.EndpointSubset) func(*corev1.Endpoints) {
	return func(e *corev1.Endpoints) { e.Subsets = all }
}

// show prints a slice in a line, sorted.
func show(all []*discoveryv1.EndpointSlice) []string {
	var out []string
	for _, s := range all {
		line := string(s.AddressType)
		for _, p := range s.Ports {
			line += fmt.Sprintf(" %s:%d/%s", *p.Name, *p.Port, *p.Protocol)
		}
		for _, e := range s.Endpoints {
			line += fmt.Sprintf(" %s", e.Addresses[0])
			if !*e.Conditions.Ready {
				line += "(not ready)"
			}
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

func TestConditions(t *testing.T) {
	tests := map[string]struct {
		endpoints *corev1.Endpoints
		service   *corev1.Service
		want      bool
	}{
		"a Service without a selector":             {dbEndpoints(), dbService(), true},
		"an external name is no selector":          {dbEndpoints(), dbService(external), true},
		"skip-mirror is true":                      {dbEndpoints(label(discoveryv1.LabelSkipMirror, "true")), dbService(), false},
		"skip-mirror is something else":            {dbEndpoints(label(discoveryv1.LabelSkipMirror, "True")), dbService(), true},
		"a leader election":                        {dbEndpoints(annotate("control-plane.alpha.kubernetes.io/leader", "")), dbService(), false},
		"no Service":                               {dbEndpoints(), nil, false},
		"a selector":                               {dbEndpoints(), dbService(selects), false},
		"no Endpoints":                             {nil, dbService(), false},
		"Endpoints without addresses are mirrored": {dbEndpoints(subsets()), dbService(), true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Applies(test.endpoints, test.service); got != test.want {
				t.Fatalf("applies: %v", got)
			}
			// What was mirrored while the conditions held goes when they do not.
			before := Reconcile(Input{Endpoints: dbEndpoints(), Service: dbService()}).Create
			before[0].Name = "db-x"
			plan := Reconcile(Input{Endpoints: test.endpoints, Service: test.service, Slices: before})
			if gone := len(plan.Delete) == 1; gone == test.want && name != "Endpoints without addresses are mirrored" {
				t.Errorf("deleted: %v", gone)
			}
			if len(plan.Create) > 0 {
				t.Error("something was created")
			}
		})
	}
}

func TestSlices(t *testing.T) {
	a, b := port("a", 1), port("b", 2)
	tests := map[string]struct {
		endpoints *corev1.Endpoints
		max       int
		want      []string
		warnings  []Warning
	}{
		"ready and not ready": {
			endpoints: dbEndpoints(
				subsets(corev1.EndpointSubset{Addresses: ips("10.0.0.2"), NotReadyAddresses: ips("10.0.0.1"), Ports: []corev1.EndpointPort{a}})),
			want: []string{"IPv4 a:1/TCP 10.0.0.2 10.0.0.1(not ready)"},
		},
		"none": {endpoints: dbEndpoints(subsets())},
		"one slice per family": {
			endpoints: dbEndpoints(
				subsets(
					corev1.EndpointSubset{Addresses: ips("fd00::1", "10.0.0.1"), NotReadyAddresses: ips("fd00::2"), Ports: []corev1.EndpointPort{a}}),
			),
			want: []string{"IPv4 a:1/TCP 10.0.0.1", "IPv6 a:1/TCP fd00::1 fd00::2(not ready)"},
		},
		"one slice per ports": {
			endpoints: dbEndpoints(
				subsets(corev1.EndpointSubset{Addresses: ips("10.0.0.1"), Ports: []corev1.EndpointPort{a}},
					corev1.EndpointSubset{Addresses: ips("10.0.0.2"), Ports: []corev1.EndpointPort{b}}),
			),
			want: []string{"IPv4 a:1/TCP 10.0.0.1", "IPv4 b:2/TCP 10.0.0.2"},
		},
		"subsets are repacked: same ports": {
			endpoints: dbEndpoints(
				subsets(corev1.EndpointSubset{Addresses: ips("10.0.0.2"), Ports: []corev1.EndpointPort{a}},
					corev1.EndpointSubset{Addresses: ips("10.0.0.1"), Ports: []corev1.EndpointPort{a}}),
			),
			want: []string{"IPv4 a:1/TCP 10.0.0.1 10.0.0.2"},
		},
		"subsets are repacked: same addresses": {
			endpoints: dbEndpoints(
				subsets(corev1.EndpointSubset{Addresses: ips("10.0.0.1"), Ports: []corev1.EndpointPort{a}},
					corev1.EndpointSubset{Addresses: ips("10.0.0.1"), Ports: []corev1.EndpointPort{b}}),
			),
			want: []string{"IPv4 a:1/TCP b:2/TCP 10.0.0.1"},
		},
		"subsets are repacked: not ready wins": {
			endpoints: dbEndpoints(
				subsets(corev1.EndpointSubset{Addresses: ips("10.0.0.1"), Ports: []corev1.EndpointPort{a}},
					corev1.EndpointSubset{NotReadyAddresses: ips("10.0.0.1"), Ports: []corev1.EndpointPort{a}}),
			),
			want: []string{"IPv4 a:1/TCP 10.0.0.1(not ready)"},
		},
		"without ports": {endpoints: dbEndpoints(subsets(corev1.EndpointSubset{Addresses: ips("10.0.0.1")})), want: []string{"IPv4 10.0.0.1"}},
		"irregular addresses are written as everywhere": {
			endpoints: dbEndpoints(subsets(corev1.EndpointSubset{Addresses: ips("010.0.0.001", "FD00:0::1"), Ports: []corev1.EndpointPort{a}})),
			want:      []string{"IPv4 a:1/TCP 10.0.0.1", "IPv6 a:1/TCP fd00::1"},
		},
		"invalid addresses": {
			endpoints: dbEndpoints(subsets(corev1.EndpointSubset{Addresses: ips("10.0.0.1", "x", "y"), Ports: []corev1.EndpointPort{a}})),
			want:      []string{"IPv4 a:1/TCP 10.0.0.1"},
			warnings:  []Warning{{"InvalidIPAddress", "Skipped 2 invalid IP addresses when mirroring to EndpointSlices"}},
		},
		"ready ones first, up to the limit": {
			max: 3,
			endpoints: dbEndpoints(
				subsets(
					corev1.EndpointSubset{
						Addresses:         ips("10.0.0.7", "10.0.0.8"),
						NotReadyAddresses: ips("10.0.0.1", "10.0.0.2", "10.0.0.3"),
						Ports:             []corev1.EndpointPort{a},
					},
				),
			),
			want: []string{"IPv4 a:1/TCP 10.0.0.7 10.0.0.8 10.0.0.1(not ready)"},
			warnings: []Warning{
				{"TooManyAddressesToMirror", "A max of 3 addresses can be mirrored to EndpointSlices per Endpoints subset. 2 addresses were skipped"}},
		},
		"the limit is shared by the families": {
			max: 2,
			endpoints: dbEndpoints(
				subsets(corev1.EndpointSubset{Addresses: ips("10.0.0.1", "10.0.0.2", "fd00::1"), Ports: []corev1.EndpointPort{a}})),
			want: []string{"IPv4 a:1/TCP 10.0.0.1 10.0.0.2"},
			warnings: []Warning{
				{"TooManyAddressesToMirror", "A max of 2 addresses can be mirrored to EndpointSlices per Endpoints subset. 1 addresses were skipped"}},
		},
		"each subset has its own limit": {
			max: 1,
			endpoints: dbEndpoints(
				subsets(corev1.EndpointSubset{Addresses: ips("10.0.0.1"), Ports: []corev1.EndpointPort{a}},
					corev1.EndpointSubset{Addresses: ips("10.0.0.2"), Ports: []corev1.EndpointPort{b}}),
			),
			want: []string{"IPv4 a:1/TCP 10.0.0.1", "IPv4 b:2/TCP 10.0.0.2"},
		},
		"skipped for both reasons": {
			max:       1,
			endpoints: dbEndpoints(subsets(corev1.EndpointSubset{Addresses: ips("!", "10.0.0.1", "10.0.0.2"), Ports: []corev1.EndpointPort{a}})),
			want:      []string{"IPv4 a:1/TCP 10.0.0.1"},
			warnings: []Warning{{"InvalidIPAddress", "Skipped 1 invalid IP addresses when mirroring to EndpointSlices"},
				{"TooManyAddressesToMirror", "A max of 1 addresses can be mirrored to EndpointSlices per Endpoints subset. 2 addresses were skipped"}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan := Reconcile(Input{Endpoints: test.endpoints, Service: dbService(), MaxAddresses: test.max})
			if diff := cmp.Diff(test.want, show(plan.Create)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.warnings, plan.Warnings); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDefaultLimit(t *testing.T) {
	plan := Reconcile(
		Input{
			Service:   dbService(),
			Endpoints: dbEndpoints(subsets(corev1.EndpointSubset{Addresses: many(1003), Ports: []corev1.EndpointPort{port("a", 1)}})),
		},
	)
	if n := len(plan.Create[0].Endpoints); n != 1000 {
		t.Errorf("%d endpoints", n)
	}
	want := []Warning{
		{"TooManyAddressesToMirror", "A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints subset. 3 addresses were skipped"}}
	if diff := cmp.Diff(want, plan.Warnings); diff != "" {
		t.Error(diff)
	}
	if errs := kind.EndpointSlice.Validate(plan.Create[0], nil); len(errs) != 1 { // the name is made by the server
		t.Error(errs)
	}
}

func TestWhatASliceSays(t *testing.T) {
	address := corev1.EndpointAddress{
		IP: "10.0.0.1", Hostname: "h", NodeName: ptr.To("n1"),
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p", UID: "pod-1"},
	}
	e := dbEndpoints(
		subsets(
			corev1.EndpointSubset{
				Addresses: []corev1.EndpointAddress{address},
				Ports:     []corev1.EndpointPort{{Name: "sql", Port: 5432, Protocol: corev1.ProtocolUDP, AppProtocol: ptr.To("x")}},
			},
		),
		label("team", "blue"),
		label(discoveryv1.LabelServiceName, "other"),
		label(discoveryv1.LabelManagedBy, "me"),
		annotate("note", "1"),
		annotate(corev1.EndpointsLastChangeTriggerTime, "t"),
		annotate(corev1.LastAppliedConfigAnnotation, "{}"),
	)
	before := e.DeepCopy()
	plan := Reconcile(Input{Endpoints: e, Service: dbService()})
	want := []*discoveryv1.EndpointSlice{{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", GenerateName: "db-",
			Labels: map[string]string{
				"team": "blue", "kubernetes.io/service-name": "db",
				"endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io",
			},
			Annotations: map[string]string{"note": "1"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Endpoints", Name: "db", UID: "ep-1", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("sql"), Port: ptr.To[int32](5432), Protocol: ptr.To(corev1.ProtocolUDP), AppProtocol: ptr.To("x")}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			Hostname: ptr.To("h"), NodeName: ptr.To("n1"), TargetRef: address.TargetRef,
		}},
	}}
	if diff := cmp.Diff(want, plan.Create); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before, e); diff != "" {
		t.Errorf("the input was changed: %s", diff)
	}
}

// writes counts creates, updates and deletes of a plan.
type writes struct{ C, U, D int }

func TestChanges(t *testing.T) {
	a, b := []corev1.EndpointPort{port("a", 1)}, []corev1.EndpointPort{port("b", 2)}
	v4a := corev1.EndpointSubset{Addresses: ips("10.0.0.1"), Ports: a}
	v4b := corev1.EndpointSubset{Addresses: ips("10.0.0.2"), Ports: b}
	v6a := corev1.EndpointSubset{Addresses: ips("fd00::1"), Ports: a}
	tests := map[string]struct {
		before, after *corev1.Endpoints
		damage        func([]*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice
		want          writes
	}{
		"nothing": {dbEndpoints(), dbEndpoints(), nil, writes{}},
		"an address more": {
			dbEndpoints(),
			dbEndpoints(func(e *corev1.Endpoints) { e.Subsets[0].Addresses = ips("10.0.0.1", "10.0.0.2") }),
			nil,
			writes{U: 1},
		},
		"ready no more": {
			dbEndpoints(subsets(v4a)),
			dbEndpoints(subsets(corev1.EndpointSubset{NotReadyAddresses: v4a.Addresses, Ports: a})),
			nil,
			writes{U: 1},
		},
		"a label":                     {dbEndpoints(), dbEndpoints(label("x", "y")), nil, writes{U: 1}},
		"a label gone":                {dbEndpoints(label("x", "y")), dbEndpoints(), nil, writes{U: 1}},
		"an annotation":               {dbEndpoints(), dbEndpoints(annotate("x", "y")), nil, writes{U: 1}},
		"the trigger time":            {dbEndpoints(), dbEndpoints(annotate(corev1.EndpointsLastChangeTriggerTime, "y")), nil, writes{}},
		"other ports reuse the slice": {dbEndpoints(subsets(v4a)), dbEndpoints(subsets(v4b)), nil, writes{U: 1}},
		"another family does not":     {dbEndpoints(subsets(v4a)), dbEndpoints(subsets(v6a)), nil, writes{C: 1, D: 1}},
		"a subset more":               {dbEndpoints(subsets(v4a)), dbEndpoints(subsets(v4a, v4b)), nil, writes{C: 1}},
		"a subset less":               {dbEndpoints(subsets(v4a, v4b)), dbEndpoints(subsets(v4b)), nil, writes{D: 1}},
		"all gone":                    {dbEndpoints(subsets(v4a, v4b)), dbEndpoints(subsets()), nil, writes{D: 2}},
		"going themselves": {
			dbEndpoints(subsets(v4a)),
			dbEndpoints(subsets(v4a, v4b), func(e *corev1.Endpoints) { e.DeletionTimestamp = &metav1.Time{} }),
			nil,
			writes{},
		},
		"made again: the owner is another": {dbEndpoints(), dbEndpoints(func(e *corev1.Endpoints) { e.UID = "ep-2" }), nil, writes{U: 1}},
		"order of subsets and addresses":   {dbEndpoints(subsets(v4a, v4b)), dbEndpoints(subsets(v4b, v4a)), nil, writes{}},
		"a slice was deleted": {
			dbEndpoints(),
			dbEndpoints(),
			func([]*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice { return nil },
			writes{C: 1},
		},
		"a slice was copied": {dbEndpoints(), dbEndpoints(), duplicate, writes{D: 1}},
		"a slice was edited: its endpoints": {
			dbEndpoints(),
			dbEndpoints(),
			func(s []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice { s[0].Endpoints = nil; return s },
			writes{U: 1},
		},
		"a slice was edited: an owner is gone": {dbEndpoints(), dbEndpoints(), func(s []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
			s[0].OwnerReferences = nil
			return s
		}, writes{U: 1}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := world{}
			w.apply(Reconcile(Input{Endpoints: test.before, Service: dbService()}))
			if test.damage != nil {
				w.slices = test.damage(w.slices)
			}
			plan := Reconcile(Input{Endpoints: test.after, Service: dbService(), Slices: w.slices})
			if diff := cmp.Diff(test.want, writes{len(plan.Create), len(plan.Update), len(plan.Delete)}); diff != "" {
				t.Error(diff)
			}
			w.apply(plan)
			if again := Reconcile(Input{Endpoints: test.after, Service: dbService(), Slices: w.slices}); !again.Empty() {
				t.Errorf("a second plan: %+v", again)
			}
		})
	}
}

func duplicate(s []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	twin := s[0].DeepCopy()
	twin.Name, twin.UID = "twin", "twin"
	return append(s, twin)
}

// world carries plans out, as the API would.
type world struct {
	slices []*discoveryv1.EndpointSlice
	made   int
}

func (w *world) apply(p Plan) {
	for _, s := range p.Create {
		w.made++
		made := s.DeepCopy()
		made.Name = fmt.Sprintf("%s%d", s.GenerateName, w.made)
		made.UID = types.UID(made.Name)
		w.slices = append(w.slices, made)
	}
	for _, s := range p.Update {
		at := slices.IndexFunc(w.slices, func(have *discoveryv1.EndpointSlice) bool { return have.Name == s.Name })
		w.slices[at] = s.DeepCopy()
	}
	for _, s := range p.Delete {
		w.slices = slices.DeleteFunc(w.slices, func(have *discoveryv1.EndpointSlice) bool { return have.Name == s.Name })
	}
}

// After any history, the slices say what the repacked Endpoints say, one slice
// for each subset and family, and nothing is left to do.
func TestReconcileHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := world{}
		for range rapid.IntRange(1, 8).Draw(t, "rounds") {
			var all []corev1.EndpointSubset
			for range rapid.IntRange(0, 3).Draw(t, "subsets") {
				draw := func(name string) []corev1.EndpointAddress {
					return ips(rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "fd00::1"}), 0, 2, rapid.ID).Draw(t, name)...)
				}
				all = append(all, corev1.EndpointSubset{
					Addresses: draw("ready"), NotReadyAddresses: draw("not ready"),
					Ports: []corev1.EndpointPort{port(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "port"), 1)},
				})
			}
			if len(w.slices) > 0 && rapid.IntRange(0, 2).Draw(t, "damage") == 0 {
				w.slices[0] = w.slices[0].DeepCopy()
				w.slices[0].Ports, w.slices[0].Labels["x"] = nil, "y"
			}
			in := Input{Endpoints: dbEndpoints(subsets(all...)), Service: dbService(), Slices: w.slices}
			w.apply(Reconcile(in))
			var want []string
			for _, s := range endpoints.Repack(all) {
				for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
					if line := expect(family, s); line != "" {
						want = append(want, line)
					}
				}
			}
			slices.Sort(want)
			if diff := cmp.Diff(want, show(w.slices)); diff != "" {
				t.Fatal(diff)
			}
			in.Slices = w.slices
			if again := Reconcile(in); !again.Empty() {
				t.Fatalf("a second plan: %+v", again)
			}
		}
	})
}

func expect(family discoveryv1.AddressType, s corev1.EndpointSubset) string {
	line := ""
	add := func(all []corev1.EndpointAddress, suffix string) {
		for _, a := range all {
			if (len(a.IP) > 4 && a.IP[:4] == "fd00") == (family == discoveryv1.AddressTypeIPv6) {
				line += " " + a.IP + suffix
			}
		}
	}
	add(s.Addresses, "")
	add(s.NotReadyAddresses, "(not ready)")
	if line == "" {
		return ""
	}
	head := string(family)
	for _, p := range s.Ports {
		head += fmt.Sprintf(" %s:%d/%s", p.Name, p.Port, p.Protocol)
	}
	return head + line
}
