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
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/servicetag"
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
	at := func(workload string) *discoveryv1.EndpointSlice {
		s := slice("10.0.0.1")
		s.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Dataplane", Name: workload}
		return s
	}
	for _, tc := range []struct {
		name   string
		slices []*discoveryv1.EndpointSlice
		want   int32
	}{
		{"none", nil, 0},
		{"ready ones", []*discoveryv1.EndpointSlice{slice("10.0.0.1", "10.0.0.2", "10.0.0.3!")}, 2},
		{"in two slices", []*discoveryv1.EndpointSlice{slice("10.0.0.1"), slice("10.0.0.1", "10.0.0.2")}, 2},
		{"of one machine", []*discoveryv1.EndpointSlice{at("a"), at("b"), at("a")}, 2},
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

// TestDemandIsExported: rounded, where plans need it, and written again only where it moved.
func TestDemandIsExported(t *testing.T) {
	in := multicluster.ExportInput{
		Key: web, Site: "east", Export: export("", 1), Service: service(), Namespace: namespace("default"), Now: at(9),
		Slices: []*discoveryv1.EndpointSlice{slice("10.0.0.1")},
	}
	for _, step := range []struct {
		what string
		rate float64
		edit func(*multicluster.ExportInput)
		want string
	}{
		{"not wanted", 0, func(i *multicluster.ExportInput) { i.Demand = nil }, "none"},
		{"not known yet", 0, func(i *multicluster.ExportInput) { i.Demand, i.HoldDemand = nil, true }, "none"},
		{"idle", 0, nil, "80:0"},
		{"next to nothing", 0.01, nil, "80:0"},
		{"rounded", 123.4, nil, "80:120"},
		{"near", 143.9, nil, "80:120"},
		{"near, below", 96.1, nil, "80:120"},
		{"moved", 144.1, nil, "80:140"},
		{"not known for a while", 0, func(i *multicluster.ExportInput) { i.Demand, i.HoldDemand = nil, true }, "80:140"},
		{"little", 0.0456, nil, "80:0.046"},
		{"idle again", 0.01, nil, "80:0"},
		{"another port", 1, func(i *multicluster.ExportInput) {
			i.Service.Spec.Ports[0].Port = 81
			i.Demand = map[int32]float64{81: 1}
		}, "81:1"},
		{"not wanted any more", 0, func(i *multicluster.ExportInput) { i.Demand = nil }, "none"},
	} {
		in.Demand, in.HoldDemand = map[int32]float64{80: step.rate}, false
		if step.edit != nil {
			step.edit(&in)
		}
		if plan := multicluster.ReconcileExport(in); plan.Status != nil {
			in.Export = plan.Status
		}
		got := "none"
		for _, d := range in.Export.Status.Available.Demand {
			got = fmt.Sprintf("%d:%v", d.Port, d.ConnectionsPerSecond)
		}
		if got != step.want {
			t.Errorf("%s: got %s, want %s", step.what, got, step.want)
		}
		if again := multicluster.ReconcileExport(in); again.Status != nil {
			t.Errorf("%s: written again", step.what)
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
		{"another port", []*mcs.ServiceExport{export("b", 2, port("metrics", 90)), export("a", 1)}, "ClusterSetIP http:80 metrics:90 [a b] PortConflict"},
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
		{"policies", []*mcs.ServiceExport{
			export("a", 1, func(e *mcs.ServiceExport) { e.Status.Available.TrafficDistribution = new("PreferClose") }),
			export("b", 2, func(e *mcs.ServiceExport) {
				e.Status.Available.TrafficDistribution = new("PreferSameNode")
				e.Status.Available.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
			}),
		}, "ClusterSetIP http:80 [a b] TrafficDistributionConflict"},
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

// TestTagsOfOtherZones: the import of the service of a tag has its name, and the workloads of
// this zone whether it exports them or not. A zone cannot give a name to another service.
func TestTagsOfOtherZones(t *testing.T) {
	in := servicetag.Namespace("default")
	key := resource.Key{Namespace: in, Name: "backend"}
	local := service(func(s *corev1.Service) {
		s.Namespace, s.Name, s.Spec.Selector = in, "backend", servicetag.Selector("backend")
		s.Spec.Ports = servicetag.Ports([][]servicetag.Inbound{{{Number: 8080, Protocol: corev1.ProtocolTCP}}})
	})
	own := multicluster.ReconcileExport(multicluster.ExportInput{
		Key: key, Site: "east", Export: &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: "backend"}}, Service: local, Now: at(9),
	}).Status
	if own == nil || own.Status.Available.ServiceTag != "backend" {
		t.Fatalf("own export: %+v", own)
	}
	elsewhere := export("west", 1, func(e *mcs.ServiceExport) {
		e.Labels[meshv1alpha1.LabelDisplayName], e.Labels[meshv1alpha1.LabelSourceNamespace] = "backend", in
		e.Status.Available.ServiceTag = "backend"
		e.Status.Available.Ports = []mcs.ServicePort{{Name: "tcp-80", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "tcp-9000", Port: 9000, Protocol: corev1.ProtocolTCP}}
	})
	plan := func(local *corev1.Service, tag string) *corev1.Service {
		e := elsewhere.DeepCopy()
		e.Status.Available.ServiceTag = tag
		return multicluster.ReconcileImport(multicluster.ImportInput{
			Key: key, Site: "east", Namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: in}}, Exports: []*mcs.ServiceExport{e}, Local: local,
		}).Derived
	}
	for name, local := range map[string]*corev1.Service{"with workloads here": local, "elsewhere alone": nil} {
		d := plan(local, "backend")
		if host, ok := servicetag.NameOf(d); !ok || host != "backend" {
			t.Errorf("%s: name %q", name, host)
		}
		if _, own := servicetag.HostOf(d); own != (local != nil) {
			t.Errorf("%s: selector %v", name, d.Spec.Selector)
		}
		for _, p := range d.Spec.Ports {
			n, ok := servicetag.Target(&p, []servicetag.Inbound{{Number: 8080, Protocol: corev1.ProtocolTCP}})
			if want := local != nil && p.Port == 80; ok != want || want && n != 8080 {
				t.Errorf("%s: port %d leads to %d here, %v", name, p.Port, n, ok)
			}
		}
	}
	if host, ok := servicetag.NameOf(plan(nil, "payments")); ok {
		t.Errorf("the service backend has the name %s", host)
	}
}

func TestReconcileSlices(t *testing.T) {
	derived := service(func(s *corev1.Service) { s.Name = "web-x" })
	in := multicluster.SliceInput{Name: "web", Site: "here", Derived: derived}
	in.Local = []*discoveryv1.EndpointSlice{slice("10.0.0.1"), slice("10.0.0.2")}
	plan := multicluster.ReconcileSlices(in)
	if len(plan.Create) != 2 || plan.Create[0].Labels[discoveryv1.LabelServiceName] != "web-x" || plan.Create[0].Name == plan.Create[1].Name {
		t.Fatalf("copies: %+v", plan)
	}
	in.Have = plan.Create
	if again := multicluster.ReconcileSlices(in); len(again.Create)+len(again.Update)+len(again.Delete) > 0 {
		t.Errorf("written again: %+v", again)
	}
	changed := slice("10.0.0.1", "10.0.0.9")
	changed.Name = in.Local[0].Name
	in.Local = []*discoveryv1.EndpointSlice{changed}
	next := multicluster.ReconcileSlices(in)
	if len(next.Update) != 1 || len(next.Update[0].Endpoints) != 2 || len(next.Delete) != 1 {
		t.Errorf("update and deletion: %+v", next)
	}
}

// TestSlicesOfOtherZones: those of a headless Service are its endpoints, those behind a
// virtual IP are the gateways of the zone, and are no slices of the derived Service.
func TestSlicesOfOtherZones(t *testing.T) {
	derived := service(func(s *corev1.Service) { s.Name = "web-x" })
	headless := offer(1)
	headless.Type, headless.Instances = mcs.Headless, 2
	headless.Endpoints = []mcs.AvailableEndpoints{{
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []mcs.ServicePort{{Name: "http", Port: 8080, Protocol: corev1.ProtocolTCP}},
		Hosts: []mcs.AvailableHost{{Address: "10.1.0.1", Hostname: "web-0"}, {Address: "10.1.0.2"}},
	}}
	ingress := func(address string) *meshv1alpha1.ZoneIngress {
		return &meshv1alpha1.ZoneIngress{Spec: meshv1alpha1.ZoneGatewaySpec{Address: address, Port: 10001}}
	}
	none := offer(1)
	none.Instances = 0
	in := multicluster.SliceInput{
		Name: "web", Site: "here", Derived: derived,
		Offers: []multicluster.Offer{
			{Zone: "north", AvailableService: headless}, {Zone: "west", AvailableService: offer(1)}, {Zone: "south", AvailableService: none},
		},
		Gateways: map[string][]*meshv1alpha1.ZoneIngress{
			"west": {ingress("192.0.2.1"), ingress("192.0.2.2"), ingress("fd00::1"), ingress("west.example"), ingress("192.0.2.1"), ingress("")},
			"east": {ingress("192.0.2.9")}, "south": {ingress("192.0.2.8")},
		},
	}
	plan := multicluster.ReconcileSlices(in)
	var got []string
	for _, s := range plan.Create {
		text := fmt.Sprintf("%s %s service=%q port=%d:", s.Labels[mcs.LabelSourceCluster], s.AddressType, s.Labels[discoveryv1.LabelServiceName], *s.Ports[0].Port)
		for _, e := range s.Endpoints {
			text += " " + e.Addresses[0]
			if e.Hostname != nil {
				text += "=" + *e.Hostname
			}
		}
		if s.Labels[mcs.LabelServiceName] != "web" || len(s.OwnerReferences) != 1 {
			t.Errorf("labels %v, owners %v", s.Labels, s.OwnerReferences)
		}
		got = append(got, text)
	}
	want := []string{
		`north IPv4 service="web-x" port=8080: 10.1.0.1=web-0 10.1.0.2`,
		`west IPv4 service="" port=10001: 192.0.2.1 192.0.2.2`,
		`west IPv6 service="" port=10001: fd00::1`,
		`west FQDN service="" port=10001: west.example`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	in.Have = plan.Create
	if again := multicluster.ReconcileSlices(in); len(again.Create)+len(again.Update)+len(again.Delete) > 0 {
		t.Errorf("written again: %+v", again)
	}
}

// TestHeadlessExport: other zones learn the endpoints of a headless Service that are ready.
func TestHeadlessExport(t *testing.T) {
	local := slice("10.0.0.2", "10.0.0.1", "10.0.0.3!", "127.0.0.1")
	local.Ports = []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}}
	local.Endpoints[0].Hostname = new("web-0")
	plan := multicluster.ReconcileExport(multicluster.ExportInput{
		Key: web, Site: "east", Export: export("", 1), Service: service(func(s *corev1.Service) { s.Spec.ClusterIP = "None" }),
		Namespace: namespace("default"), Now: at(9), Slices: []*discoveryv1.EndpointSlice{local, slice("fd00::1")},
	})
	want := []mcs.AvailableEndpoints{
		{AddressType: "IPv4", Ports: []mcs.ServicePort{{Name: "http", Port: 8080, Protocol: "TCP"}},
			Hosts: []mcs.AvailableHost{{Address: "10.0.0.1"}, {Address: "10.0.0.2", Hostname: "web-0"}}},
		{AddressType: "IPv6", Hosts: []mcs.AvailableHost{{Address: "fd00::1"}}},
	}
	if diff := cmp.Diff(want, plan.Status.Status.Available.Endpoints); diff != "" {
		t.Error(diff)
	}
}

// TestPortsOfOtherZones: a port that only another zone has is not served by the workloads of
// this one.
func TestPortsOfOtherZones(t *testing.T) {
	own := export("", 2)
	own.Status.Available = offer(2)
	west := export("west", 1, func(e *mcs.ServiceExport) {
		e.Status.Available.Ports = append(e.Status.Available.Ports, mcs.ServicePort{Name: "metrics", Port: 90, Protocol: corev1.ProtocolTCP})
	})
	plan := multicluster.ReconcileImport(multicluster.ImportInput{
		Key: web, Site: "here", Namespace: namespace("default"), Exports: []*mcs.ServiceExport{own, west}, Local: service(),
	})
	targets := map[int32]string{}
	for _, p := range plan.Derived.Spec.Ports {
		targets[p.Port] = p.TargetPort.String()
	}
	if diff := cmp.Diff(map[int32]string{80: "web", 90: "not-offered"}, targets); diff != "" {
		t.Error(diff)
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

// TestProxied: an export says that all of its endpoints that serve have proxies, and of whom.
func TestProxied(t *testing.T) {
	dataplane := func(account string, proxy bool) *meshv1alpha1.Dataplane {
		d := &meshv1alpha1.Dataplane{Spec: meshv1alpha1.DataplaneSpec{ServiceAccount: account}}
		if proxy { // also one that has lost its stream
			d.Status.Conditions = []metav1.Condition{{Type: meshv1alpha1.DataplaneProxyConnected, Status: metav1.ConditionFalse}}
		}
		return d
	}
	program := dataplane("", true)
	program.Status.Conditions[0].Reason = meshv1alpha1.ReasonProgram
	for name, tc := range map[string]struct {
		dataplanes map[string]*meshv1alpha1.Dataplane
		header     bool
		want       string
	}{
		"all":                 {map[string]*meshv1alpha1.Dataplane{"a": dataplane("", true), "b": dataplane("web", true)}, false, "true [default web]"},
		"not all":             {map[string]*meshv1alpha1.Dataplane{"a": dataplane("", true), "b": dataplane("web", false)}, false, "false []"},
		"a gRPC program":      {map[string]*meshv1alpha1.Dataplane{"a": dataplane("", true), "b": program}, false, "false []"},
		"not a Dataplane":     {map[string]*meshv1alpha1.Dataplane{"a": dataplane("", true)}, false, "false []"},
		"with PROXY's header": {map[string]*meshv1alpha1.Dataplane{"a": dataplane("", true), "b": dataplane("", true)}, true, "false []"},
	} {
		s := slice("10.0.0.1", "10.0.0.2", "10.0.0.3!")
		for i, to := range []string{"a", "b", "c"} { // the last one does not serve
			s.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Dataplane", Name: to}
		}
		in := multicluster.ExportInput{
			Key: web, Site: "east", Export: export("", 1), Service: service(), Namespace: namespace("default"), Now: at(9),
			Slices: []*discoveryv1.EndpointSlice{s}, Dataplanes: tc.dataplanes,
		}
		if tc.header {
			in.Service.Annotations = map[string]string{meshv1alpha1.AnnotationProxyProtocol: "v2"}
		}
		a := multicluster.ReconcileExport(in).Status.Status.Available
		if got := fmt.Sprint(a.Proxied, a.ServiceAccounts); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// TestRegistered: an export says what clients of registries registered of the endpoints that are ready, and the
// import has the name that they know.
func TestRegistered(t *testing.T) {
	registered := func(metadata string) *meshv1alpha1.Dataplane {
		return &meshv1alpha1.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				registry.AnnotationInstance: `{"service":"blue@@Web","weight":100,"enabled":true,"metadata":{"team":"shop",` + metadata + `}}`,
			}},
			Spec: meshv1alpha1.DataplaneSpec{Addresses: []string{"10.0.0.1"}, Ports: []meshv1alpha1.DataplanePort{{Port: 8080}}},
		}
	}
	s := slice("10.0.0.1", "10.0.0.2", "10.0.0.3!")
	for i, to := range []string{"a", "b", "c"} { // the last one is not ready
		s.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Dataplane", Name: to}
	}
	in := multicluster.ExportInput{
		Key: web, Site: "east", Export: export("", 1), Service: service(), Namespace: namespace("default"), Now: at(9),
		Slices: []*discoveryv1.EndpointSlice{s}, Configs: func(registry.ConfigKey) *meshv1alpha1.RegistryConfig { return nil },
		Dataplanes: map[string]*meshv1alpha1.Dataplane{"a": registered(`"v":"1"`), "b": registered(`"v":"2"`), "c": registered(`"team":"other"`)},
	}
	in.Service.Annotations = map[string]string{registry.AnnotationService: "blue@@Web"}
	e := in.Export.DeepCopy()
	e.Status = multicluster.ReconcileExport(in).Status.Status
	want := &mcs.AvailableRegistry{Service: "blue@@Web", Metadata: map[string]string{"team": "shop"}}
	if diff := cmp.Diff(want, e.Status.Available.Registry); diff != "" {
		t.Error(diff)
	}
	e.Labels = map[string]string{meshv1alpha1.LabelZone: "east"}
	plan := multicluster.ReconcileImport(multicluster.ImportInput{Key: web, Site: "here", Namespace: namespace("default"), Exports: []*mcs.ServiceExport{e}})
	if name, ok := registry.NameOf(plan.Derived); !ok || name.Grouped() != "blue@@Web" {
		t.Errorf("the import is %s to clients of registries", name)
	}
}
