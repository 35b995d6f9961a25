package topology

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func namespaceWith(mode, mesh string) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{}, Labels: map[string]string{}}}
	if mode != "" {
		n.Annotations[corev1.AnnotationTopologyMode] = mode
	}
	if mesh != "" {
		n.Labels[meshv1alpha1.LabelMesh] = mesh
	}
	return n
}

func meshWith(name, mode string) *meshv1alpha1.Mesh {
	return &meshv1alpha1.Mesh{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       meshv1alpha1.MeshSpec{Routing: &meshv1alpha1.MeshRouting{TopologyMode: mode}},
	}
}

func asAPI(s *corev1.Service) { s.Namespace, s.Name = "default", "kubernetes" }

func TestModeOfAService(t *testing.T) {
	distribution := corev1.ServiceTrafficDistributionPreferSameZone
	for _, c := range []struct {
		name            string
		service         *corev1.Service
		edit            func(*corev1.Service)
		namespace, mesh string
		fallback        string
		zones           string
		want            Mode
	}{
		{name: "nothing says anything", want: Mode{}},
		{name: "the control plane's default", fallback: Adaptive, want: Mode{Planned, Adaptive, LevelControlPlane}},
		{name: "the mesh before it", mesh: "Auto", fallback: Adaptive, want: Mode{Auto, "Auto", LevelMesh}},
		{name: "the namespace before the mesh", namespace: "heuristic.proxima.dev/near", mesh: "Auto", fallback: Adaptive,
			want: Mode{Custom, "heuristic.proxima.dev/near", LevelNamespace}},
		{name: "the Service before the namespace", service: web(corev1.AnnotationTopologyMode, "Auto"), namespace: Adaptive,
			want: Mode{Auto, "Auto", LevelService}},
		{name: "its traffic distribution, too", edit: func(s *corev1.Service) { s.Spec.TrafficDistribution = &distribution }, fallback: Adaptive,
			want: Mode{Distribution, distribution, LevelService}},
		{name: "a Service can refuse", service: web(corev1.AnnotationTopologyMode, "Disabled"), fallback: Adaptive,
			want: Mode{Distribution, "", LevelService}},
		{name: "and leave it to its traffic distribution", service: web(corev1.AnnotationTopologyMode, "disabled"),
			edit: func(s *corev1.Service) { s.Spec.TrafficDistribution = &distribution }, fallback: Adaptive,
			want: Mode{Distribution, distribution, LevelService}},
		{name: "a namespace can refuse", namespace: "Disabled", fallback: Adaptive, want: Mode{Distribution, "", LevelNamespace}},
		{name: "a word that names no mode says nothing", service: web(corev1.AnnotationTopologyMode, "Sometimes"), namespace: "Never", fallback: Adaptive,
			want: Mode{Planned, Adaptive, LevelControlPlane}},
		{name: "one zone is nothing to choose from", fallback: Adaptive, zones: "aa", want: Mode{}},
		{name: "asked for, it holds there, too", service: adaptive(), zones: "aa", want: Mode{Planned, Adaptive, LevelService}},
		{name: "nodes without zones", fallback: Adaptive, zones: "  ", want: Mode{}},
		{name: "headless", edit: func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }, fallback: Adaptive, want: Mode{}},
		{name: "that of the API", edit: asAPI, fallback: Adaptive, want: Mode{}},
		{name: "that of the API, asked for", service: adaptive(), edit: asAPI, want: Mode{Planned, Adaptive, LevelService}},
		{name: "a name elsewhere", edit: func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }, fallback: Adaptive, want: Mode{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.service == nil {
				c.service = web()
			}
			if c.edit != nil {
				c.edit(c.service)
			}
			if c.zones == "" {
				c.zones = "ab"
			}
			objects := []resource.Object{c.service, namespaceWith(c.namespace, "blue"), meshWith("blue", c.mesh), meshWith("default", "example.com/Other")}
			for i, z := range c.zones {
				objects = append(objects, node("node-"+string(rune('0'+i)), strings.TrimSpace(string(z))))
			}
			if got := ModesOf(snapshotOf(t, objects...), c.fallback).Of(c.service); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func TestDefaultsAreFollowedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const alike, planned = "a 36.4 b 36.4 c 27.3", "a 2.1 b 2.1 c 95.7"
		r := newRig(t, func(c *Config) { c.DefaultMode = Adaptive },
			all(equalNodes("a"), workloads("aaaabbbbccc"), one(web(), namespaceWith("", "")))...)
		if report, _ := r.c.Explain(webKey); report.Planned || report.Level != LevelNone {
			t.Errorf("one zone: %+v", report)
		}
		r.seed(equalNodes("bc")...)
		r.wantPercents("three zones", "c", planned)
		if report, _ := r.c.Explain(webKey); !report.Planned || !strings.Contains(report.Text(""), "the default of the control plane (--default-topology-mode)") {
			t.Errorf("three zones: %s", report.Text(""))
		}
		r.seed(meshWith("default", "Disabled"))
		r.wantPercents("the mesh refuses", "c", alike)
		r.wantCondition("the mesh refuses", ConditionPlan, "")
		r.wantHints("the mesh refuses", "a1: a2: a3: a4: b1: b2: b3: b4: c1: c2: c3:")

		update := func(n *corev1.Namespace) {
			t.Helper()
			if _, err := r.client.Update(t.Context(), kind.Namespace, n); err != nil {
				t.Fatal(err)
			}
			r.settle()
		}
		named := list[*corev1.Namespace](r, "Namespace")[0]
		named.Annotations[corev1.AnnotationTopologyMode] = Adaptive
		update(named)
		r.wantPercents("the namespace asks", "c", planned)
		r.wantHints("the namespace asks", "a1:a a2:a a3:a a4:a b1:b b2:b b3:b b4:b c1:c c2:c c3:c")

		named = list[*corev1.Namespace](r, "Namespace")[0]
		delete(named.Annotations, corev1.AnnotationTopologyMode)
		named.Labels[meshv1alpha1.LabelMesh] = "blue"
		update(named)
		r.wantPercents("another mesh, which says nothing", "c", planned)

		r.delete("Node", "", "node-b")
		r.delete("Node", "", "node-c")
		if plans := r.c.config.Catalog.Snapshot().Plans.Len(); plans != 0 {
			t.Errorf("%d plans are left", plans)
		}
	})
}

func TestModesAreCounted(t *testing.T) {
	named := func(name string, s *corev1.Service) *corev1.Service { s.Name = name; return s }
	snapshot := snapshotOf(t, node("n1", "a"), node("n2", "b"), namespaceWith("", ""),
		named("one", web()), named("two", web()), named("three", adaptive()), named("four", web(corev1.AnnotationTopologyMode, "auto")),
		named("five", web(corev1.AnnotationTopologyMode, "example.com/Mine")), named("six", web(corev1.AnnotationTopologyMode, "Disabled")))
	want := []ModeCount{
		{"", LevelService, 1}, {"Auto", LevelService, 1}, {"custom", LevelService, 1},
		{Adaptive, LevelControlPlane, 2}, {Adaptive, LevelService, 1},
	}
	if diff := cmp.Diff(want, ModesOf(snapshot, Adaptive).Count()); diff != "" {
		t.Error(diff)
	}
}
