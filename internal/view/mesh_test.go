package view

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// TestMeshesAreInViews: workloads are in the views while there is anything to keep apart, and
// Services say who may use them, also when their namespace moves.
func TestMeshesAreInViews(t *testing.T) {
	b := NewBuilder(BuilderConfig{})
	sequence := uint64(0)
	next := func(objects ...any) *catalog.Delta {
		sequence++
		return viewtest.Delta(sequence, objects...)
	}
	mesh := func(d *catalog.Delta, name string, m *meshv1alpha1.Mesh) *catalog.Delta {
		d.Meshes = append(d.Meshes, catalog.Change[*meshv1alpha1.Mesh]{Key: catalog.Key{Name: name}, New: m})
		return d
	}
	dataplane := func(name, of string) catalog.Change[*meshv1alpha1.Dataplane] {
		return catalog.Change[*meshv1alpha1.Dataplane]{Key: catalog.Key{Namespace: "ns", Name: name}, New: &meshv1alpha1.Dataplane{
			Spec: meshv1alpha1.DataplaneSpec{Mesh: of, NodeName: "n1", Addresses: []string{"10.0.0.1"}},
		}}
	}
	first := mesh(next(viewtest.Service("web", "10.96.0.1")), "default", &meshv1alpha1.Mesh{})
	first.Dataplanes = append(first.Dataplanes, dataplane("a", ""))
	replace(t, b, first)
	scope, err := b.Scope("")
	if err != nil {
		t.Fatal(err)
	}
	session := func(typ string) *delta.Session {
		s := delta.NewSession(scope)
		if err := s.Step(delta.Request{Type: typ}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	meshes, workloads, services := session(wire.MeshType), session(wire.WorkloadType), session(wire.ServiceType)
	expect(t, meshes, "default")
	expect(t, workloads)
	expect(t, services, "ns/web")
	allowed := func(want proxy.Scope) {
		t.Helper()
		s, err := wire.DecodeService("ns/web", b.services["ns/web"])
		if err != nil || !s.Scope.Equal(want) {
			t.Errorf("scope %+v, %v; want %+v", s.Scope, err, want)
		}
	}
	allowed(proxy.Scope{Mesh: "default"})

	// A status changes: the view does not, as there is one mesh.
	d := next()
	d.Dataplanes = append(d.Dataplanes, dataplane("a", ""), dataplane("b", "blue"))
	apply(t, b, d)
	expect(t, workloads)

	apply(t, b, mesh(next(), "blue", &meshv1alpha1.Mesh{}))
	expect(t, meshes, "blue")
	expect(t, workloads, "ns/a", "ns/b")

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", Annotations: map[string]string{"kuma.io/mesh": "blue"}}}
	pod.Spec.NodeName, pod.Status.PodIPs = "n1", []corev1.PodIP{{IP: "10.0.0.2"}, {IP: "fd00::2"}}
	d = next()
	d.Pods = append(d.Pods, catalog.Change[*corev1.Pod]{Key: catalog.Key{Namespace: "ns", Name: "a"}, New: pod})
	apply(t, b, d)
	expect(t, workloads, "ns/pod:a")
	if w, err := wire.DecodeWorkload("ns/pod:a", b.meshes.workloads["ns/pod:a"]); err != nil || w.Mesh != "blue" || w.Node != "n1" || len(w.Addrs) != 2 {
		t.Errorf("%+v, %v", w, err)
	}
	ended := pod.DeepCopy()
	ended.Status.Phase = corev1.PodSucceeded
	d = next()
	d.Pods = append(d.Pods, catalog.Change[*corev1.Pod]{Key: catalog.Key{Namespace: "ns", Name: "a"}, Old: pod, New: ended})
	apply(t, b, d)
	expect(t, workloads, "-ns/pod:a")

	annotated := viewtest.Service("web", "10.96.0.1")
	annotated.Annotations = map[string]string{meshv1alpha1.AnnotationToMeshes: "red, blue,default"}
	apply(t, b, next(annotated))
	expect(t, services, "ns/web")
	allowed(proxy.Scope{Mesh: "default", Exported: []string{"blue", "red"}})
	annotated = annotated.DeepCopy()
	annotated.Annotations[meshv1alpha1.AnnotationToMeshes] = "*"
	apply(t, b, next(annotated))
	expect(t, services, "ns/web")
	allowed(proxy.Scope{})
	apply(t, b, next("service/web"))
	expect(t, services, "-ns/web")
	system := viewtest.Service("kubernetes", "10.96.0.9")
	system.Namespace = "default"
	apply(t, b, next(system))
	if s, err := wire.DecodeService("default/kubernetes", b.services["default/kubernetes"]); err != nil || s.Scope.Mesh != "" {
		t.Errorf("%+v, %v", s, err)
	}

	gone := next()
	gone.Meshes = append(gone.Meshes, catalog.Change[*meshv1alpha1.Mesh]{Key: catalog.Key{Name: "blue"}})
	apply(t, b, gone)
	expect(t, meshes, "-blue")
	expect(t, workloads, "-ns/a", "-ns/b")
	closed := &meshv1alpha1.Mesh{Spec: meshv1alpha1.MeshSpec{Networking: &meshv1alpha1.MeshNetworking{Outbound: &meshv1alpha1.MeshOutbound{Passthrough: new(false)}}}}
	apply(t, b, mesh(next(), "default", closed))
	expect(t, meshes, "default")
	expect(t, workloads, "ns/a", "ns/b")
}

// TestNamespacesMove: the Services and workloads of a namespace follow it into another mesh.
func TestNamespacesMove(t *testing.T) {
	b := NewBuilder(BuilderConfig{})
	d := viewtest.Delta(1, viewtest.Service("web", "10.96.0.1"))
	for _, name := range []string{"default", "blue"} {
		d.Meshes = append(d.Meshes, catalog.Change[*meshv1alpha1.Mesh]{Key: catalog.Key{Name: name}, New: &meshv1alpha1.Mesh{}})
	}
	replace(t, b, d)
	move := viewtest.Delta(2, viewtest.Service("web", "10.96.0.1")) // in one delta with the Service
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"kuma.io/mesh": "blue"}}}
	move.Namespaces = append(move.Namespaces, catalog.Change[*corev1.Namespace]{Key: catalog.Key{Name: "ns"}, New: ns})
	apply(t, b, move)
	s, err := wire.DecodeService("ns/web", b.services["ns/web"])
	if err != nil || s.Scope.Mesh != "blue" {
		t.Errorf("%+v, %v", s, err)
	}
}
