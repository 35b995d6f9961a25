package multicluster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/controller/multicluster"
	"github.com/proxima-mesh/proxima/internal/resource"
)

var web = resource.Key{Namespace: "shop", Name: "web"}

func at(second int) metav1.Time {
	return metav1.NewTime(time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC))
}

func namespace(mesh string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{meshv1alpha1.LabelMesh: mesh}}}
}

func service(edits ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.1", Selector: map[string]string{"app": "web"}, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("web")}},
		},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

// export of a zone; empty: of this one.
func export(zone string, created int, edits ...func(*mcs.ServiceExport)) *mcs.ServiceExport {
	e := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: at(created)}}
	if zone != "" {
		e.Namespace, e.Name = "proxima-system", "web-"+zone
		e.Labels = map[string]string{
			meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone, meshv1alpha1.LabelZone: zone,
			meshv1alpha1.LabelDisplayName: "web", meshv1alpha1.LabelSourceNamespace: "shop",
		}
		e.Status.Available = offer(created)
	}
	for _, edit := range edits {
		edit(e)
	}
	return e
}

func offer(created int) *mcs.AvailableService {
	return &mcs.AvailableService{
		Mesh: "default", ExportTime: at(created), Type: mcs.ClusterSetIP, SessionAffinity: corev1.ServiceAffinityNone, Instances: 1,
		Ports: []mcs.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
	}
}

func slice(addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-" + strings.Join(addresses, "-"), Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, a := range addresses {
		address, unready := strings.CutSuffix(a, "!")
		if strings.Contains(address, ":") {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: new(!unready)},
		})
	}
	return s
}

func TestInstances(t *testing.T) {
	for _, tc := range []struct {
		name   string
		slices []*discoveryv1.EndpointSlice
		want   int32
	}{
		{"none", nil, 0},
		{"ready ones", []*discoveryv1.EndpointSlice{slice("10.0.0.1", "10.0.0.2", "10.0.0.3!")}, 2},
		{"in two slices", []*discoveryv1.EndpointSlice{slice("10.0.0.1"), slice("10.0.0.1", "10.0.0.2")}, 2},
		{"of both families", []*discoveryv1.EndpointSlice{slice("10.0.0.1", "10.0.0.2"), slice("fd00::1", "fd00::2", "fd00::3")}, 3},
		{"of a machine itself", []*discoveryv1.EndpointSlice{slice("127.0.0.1", "10.0.0.1")}, 1},
	} {
		if got := multicluster.Instances(tc.slices); got != tc.want {
			t.Errorf("%s: got %d, want %d", tc.name, got, tc.want)
		}
	}
}

func TestReconcileExport(t *testing.T) {
	all := &meshv1alpha1.Mesh{Spec: meshv1alpha1.MeshSpec{Routing: &meshv1alpha1.MeshRouting{Export: meshv1alpha1.ExportAll}}}
	ours := func(e *mcs.ServiceExport) {
		e.Labels = map[string]string{multicluster.LabelManagedBy: "multicluster"}
	}
	in := func(edit func(*multicluster.ExportInput)) multicluster.ExportInput {
		i := multicluster.ExportInput{
			Key: web, Site: "east", Export: export("", 1), Service: service(), Namespace: namespace("default"), Now: at(9),
			Slices: []*discoveryv1.EndpointSlice{slice("10.0.0.1")},
		}
		edit(&i)
		return i
	}
	for _, tc := range []struct {
		name string
		in   multicluster.ExportInput
		want string
	}{
		{"exported", in(func(*multicluster.ExportInput) {}), "Valid=True/Valid Ready=True Conflict=False/NoConflicts default east ClusterSetIP 1"},
		{"headless", in(func(i *multicluster.ExportInput) { i.Service.Spec.ClusterIP = "None" }),
			"Valid=True/Valid Ready=True Conflict=False/NoConflicts default east Headless 1"},
		{"no service", in(func(i *multicluster.ExportInput) { i.Service = nil }), "Valid=False/NoService Ready=False"},
		{"external name", in(func(i *multicluster.ExportInput) { i.Service.Spec.Type = corev1.ServiceTypeExternalName }),
			"Valid=False/InvalidServiceType Ready=False"},
		{"of another mesh", in(func(i *multicluster.ExportInput) { i.Namespace = namespace("blue") }),
			"Valid=True/Valid Ready=True Conflict=False/NoConflicts blue east ClusterSetIP 1"},
		{"limited", in(func(i *multicluster.ExportInput) {
			i.Export.Annotations = map[string]string{meshv1alpha1.AnnotationToZones: "west, north"}
		}), "Valid=True/Valid Ready=True Conflict=False/NoConflicts default east ClusterSetIP 1 [west north]"},
		{"disagrees", in(func(i *multicluster.ExportInput) {
			i.Others = []*mcs.ServiceExport{export("west", 0, func(e *mcs.ServiceExport) { e.Status.Available.Type = mcs.Headless })}
		}), "Valid=True/Valid Ready=True Conflict=True/TypeConflict default east ClusterSetIP 1"},
		{"all, not exported yet", in(func(i *multicluster.ExportInput) { i.Mesh, i.Export = all, nil }), "create shop/web"},
		{"all, the service is gone", in(func(i *multicluster.ExportInput) { i.Mesh, i.Service, i.Export = all, nil, export("", 1, ours) }), "delete"},
		{"all no longer", in(func(i *multicluster.ExportInput) { i.Export = export("", 1, ours) }), "delete"},
		{"all, but the API itself", in(func(i *multicluster.ExportInput) {
			i.Mesh, i.Export, i.Key = all, nil, resource.Key{Namespace: "default", Name: "kubernetes"}
		}), ""},
		{"all, but an import", in(func(i *multicluster.ExportInput) {
			i.Mesh, i.Export = all, nil
			i.Service.Labels = map[string]string{multicluster.LabelManagedBy: "multicluster", mcs.LabelServiceName: "x"}
		}), ""},
	} {
		plan := multicluster.ReconcileExport(tc.in)
		if got := showExport(plan); got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
		if plan.Status != nil {
			tc.in.Export, tc.in.Now = plan.Status, at(10)
			if again := multicluster.ReconcileExport(tc.in); again.Status != nil {
				t.Errorf("%s: written again: %s", tc.name, showExport(again))
			}
		}
	}
}

func showExport(p multicluster.ExportPlan) string {
	switch {
	case p.Create != nil:
		return "create " + resource.KeyOf(p.Create).String()
	case p.Delete:
		return "delete"
	case p.Status == nil:
		return ""
	}
	var out []string
	for _, name := range []string{mcs.ServiceExportValid, mcs.ServiceExportReady, mcs.ServiceExportConflict} {
		if c := meta.FindStatusCondition(p.Status.Status.Conditions, name); c != nil {
			text := name + "=" + string(c.Status)
			if name != mcs.ServiceExportReady {
				text += "/" + c.Reason
			}
			out = append(out, text)
		}
	}
	if a := p.Status.Status.Available; a != nil {
		out = append(out, a.Mesh, a.Zone, string(a.Type), fmt.Sprint(a.Instances))
		if a.ToZones != nil {
			out = append(out, fmt.Sprint(a.ToZones))
		}
	}
	return strings.Join(out, " ")
}

// TestMerge: the oldest export decides, ports are united.
func TestMerge(t *testing.T) {
	port := func(name string, number int32) func(*mcs.ServiceExport) {
		return func(e *mcs.ServiceExport) {
			e.Status.Available.Ports = append(e.Status.Available.Ports, mcs.ServicePort{Name: name, Port: number, Protocol: corev1.ProtocolTCP})
		}
	}
	for _, tc := range []struct {
		name    string
		exports []*mcs.ServiceExport
		want    string
	}{
		{"alone", []*mcs.ServiceExport{export("a", 1)}, "ClusterSetIP http:80 [a]"},
		{"alike", []*mcs.ServiceExport{export("b", 2), export("a", 1)}, "ClusterSetIP http:80 [a b]"},
		{"another port", []*mcs.ServiceExport{export("b", 2, port("metrics", 90)), export("a", 1)}, "ClusterSetIP http:80 metrics:90 [a b]"},
		{"the same name", []*mcs.ServiceExport{export("b", 2), export("a", 1, func(e *mcs.ServiceExport) { e.Status.Available.Ports[0].Port = 81 })},
			"ClusterSetIP http:81 [a b] PortConflict"},
		{"the same number", []*mcs.ServiceExport{export("b", 2, func(e *mcs.ServiceExport) { e.Status.Available.Ports[0].Name = "x" }), export("a", 1)},
			"ClusterSetIP http:80 [a b] PortConflict"},
		{"types", []*mcs.ServiceExport{export("b", 1, func(e *mcs.ServiceExport) { e.Status.Available.Type = mcs.Headless }), export("a", 2)},
			"Headless http:80 [a b] TypeConflict"},
		{"the same age", []*mcs.ServiceExport{export("b", 1, func(e *mcs.ServiceExport) { e.Status.Available.Type = mcs.Headless }), export("a", 1)},
			"ClusterSetIP http:80 [a b] TypeConflict"},
		{"affinity and labels", []*mcs.ServiceExport{export("a", 1), export("b", 2, func(e *mcs.ServiceExport) {
			e.Status.Available.SessionAffinity = corev1.ServiceAffinityClientIP
			e.Spec.ExportedLabels = map[string]string{"a": "b"}
		})}, "ClusterSetIP http:80 [a b] SessionAffinityConflict LabelsConflict"},
		{"another mesh", []*mcs.ServiceExport{export("a", 1, func(e *mcs.ServiceExport) { e.Status.Available.Mesh = "blue" })}, "none"},
		{"for another zone", []*mcs.ServiceExport{export("a", 1, func(e *mcs.ServiceExport) { e.Status.Available.ToZones = []string{"x"} })}, "none"},
		{"for this zone", []*mcs.ServiceExport{export("a", 1, func(e *mcs.ServiceExport) { e.Status.Available.ToZones = []string{"x", "here"} })},
			"ClusterSetIP http:80 [a]"},
		{"nothing to offer", []*mcs.ServiceExport{export("a", 1, func(e *mcs.ServiceExport) { e.Status.Available = nil })}, "none"},
	} {
		slices.Reverse(tc.exports) // the order is none of the result
		offers := multicluster.OffersOf("here", "default", tc.exports)
		got := "none"
		if len(offers) > 0 {
			got = showMerged(multicluster.Merge(offers))
		}
		if got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
	}
}

func showMerged(m multicluster.Merged) string {
	out := []string{string(m.Spec.Type)}
	for _, p := range m.Spec.Ports {
		out = append(out, fmt.Sprintf("%s:%d", p.Name, p.Port))
	}
	out = append(out, fmt.Sprint(m.Zones))
	for _, c := range m.Conflicts {
		out = append(out, c.Reason)
	}
	return strings.Join(out, " ")
}

func TestReconcileImport(t *testing.T) {
	in := multicluster.ImportInput{Key: web, Site: "here", Namespace: namespace("default"), Exports: []*mcs.ServiceExport{export("west", 2)}}
	plan := multicluster.ReconcileImport(in)
	if plan.Derived == nil || len(plan.Derived.Spec.Selector) > 0 || !multicluster.IsDerived(plan.Derived) {
		t.Fatalf("a remote service alone: %+v", plan.Derived)
	}
	if got := plan.Derived.Spec.Ports[0]; got.TargetPort.IntVal != 80 {
		t.Errorf("target port %v", got.TargetPort)
	}

	own := export("", 1)
	own.Status.Available = offer(1)
	in.Exports, in.Local, in.Derived = append(in.Exports, own), service(), plan.Derived
	in.Local.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
	next := multicluster.ReconcileImport(in)
	if diff := cmp.Diff(in.Local.Spec.Selector, next.Derived.Spec.Selector); diff != "" {
		t.Errorf("selector of a service that is exported here: %s", diff)
	}
	if next.Derived.Spec.Ports[0].TargetPort.StrVal != "web" || next.Derived.Annotations[corev1.AnnotationTopologyMode] != "Auto" {
		t.Errorf("not as the local service: %+v", next.Derived)
	}
	if got := next.Import.Status.Clusters; len(got) != 2 || got[0].Cluster != "here" || got[1].Cluster != "west" {
		t.Errorf("zones %v", got)
	}
	in.Derived = next.Derived
	if again := multicluster.ReconcileImport(in); again.Derived != in.Derived {
		t.Error("a derived service without a difference is another object")
	}

	// A Service that is not exported here is none of the import.
	in.Exports, in.Derived = in.Exports[:1], nil
	if got := multicluster.ReconcileImport(in); len(got.Derived.Spec.Selector) > 0 {
		t.Errorf("selects %v, which is not exported", got.Derived.Spec.Selector)
	}
	for name, edit := range map[string]func(*multicluster.ImportInput){
		"no namespace": func(i *multicluster.ImportInput) { i.Namespace = nil },
		"another mesh": func(i *multicluster.ImportInput) { i.Namespace = namespace("blue") },
		"no exports":   func(i *multicluster.ImportInput) { i.Exports = nil },
		"a going away ns": func(i *multicluster.ImportInput) {
			i.Namespace = namespace("default")
			i.Namespace.DeletionTimestamp = new(at(1))
		},
	} {
		without := in
		edit(&without)
		if got := multicluster.ReconcileImport(without); got.Import != nil || got.Derived != nil {
			t.Errorf("%s: imported all the same", name)
		}
	}
}

func TestReconcileSlices(t *testing.T) {
	derived := service(func(s *corev1.Service) { s.Name = "web-x" })
	local := []*discoveryv1.EndpointSlice{slice("10.0.0.1"), slice("10.0.0.2")}
	plan := multicluster.ReconcileSlices(derived, local, nil)
	if len(plan.Create) != 2 || plan.Create[0].Labels[discoveryv1.LabelServiceName] != "web-x" || plan.Create[0].Name == plan.Create[1].Name {
		t.Fatalf("copies: %+v", plan)
	}
	have := plan.Create
	if again := multicluster.ReconcileSlices(derived, local, have); len(again.Create)+len(again.Update)+len(again.Delete) > 0 {
		t.Errorf("written again: %+v", again)
	}
	changed := slice("10.0.0.1", "10.0.0.9")
	changed.Name = local[0].Name
	next := multicluster.ReconcileSlices(derived, []*discoveryv1.EndpointSlice{changed}, have)
	if len(next.Update) != 1 || len(next.Update[0].Endpoints) != 2 || len(next.Delete) != 1 {
		t.Errorf("update and deletion: %+v", next)
	}
}

// TestDerivedName: a DNS label, and different for different imports.
func TestDerivedName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		label := rapid.StringMatching(`[a-z][a-z0-9-]{0,61}[a-z0-9]`)
		a := resource.Key{Namespace: label.Draw(t, "namespace"), Name: label.Draw(t, "name")}
		b := resource.Key{Namespace: label.Draw(t, "namespace"), Name: label.Draw(t, "name")}
		name := multicluster.DerivedName(a)
		if len(name) > 63 || strings.Contains(name, "--"+name[len(name)-13:]) {
			t.Fatalf("bad name %s", name)
		}
		if (multicluster.DerivedName(b) == name) != (a == b) {
			t.Fatalf("%s and %s: %s", a, b, name)
		}
	})
}
