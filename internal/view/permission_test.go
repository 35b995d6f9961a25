package view

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

func permitted(namespace, name, address string, labels map[string]string) *meshv1alpha1.Dataplane {
	return &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: meshv1alpha1.DataplaneSpec{
			NodeName: "n1", Addresses: []string{address}, Ports: []meshv1alpha1.DataplanePort{{Name: "http", Port: 8080}},
		},
	}
}

// TestPermissionsInViews: workloads say in which sets they are, and which of their ports are guarded, as long
// as there is a permission; a change is one of the workloads that change.
func TestPermissionsInViews(t *testing.T) {
	client := resourcetest.New(kind.All()...)
	client.Seed(permitted("ns", "web", "10.1.0.1", nil), permitted("front", "a", "10.1.0.2", map[string]string{"app": "x"}), permitted("front", "b", "10.1.0.3", nil))
	c := catalog.New(catalog.Config{Client: client, Descriptors: kind.All()})
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(t.Context()) }()
	t.Cleanup(func() { <-done })
	sub := c.Subscribe(Tables()...)
	t.Cleanup(sub.Close)
	b := NewBuilder(BuilderConfig{})
	next := func() *catalog.Delta {
		d, err := sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return &d
	}
	replace(t, b, next())
	scope, err := b.Scope("")
	if err != nil {
		t.Fatal(err)
	}
	s := delta.NewSession(scope)
	if err := s.Step(delta.Request{Type: wire.WorkloadType}); err != nil {
		t.Fatal(err)
	}
	expect(t, s)
	permission := func(spec meshv1alpha1.TrafficPermissionSpec) *meshv1alpha1.TrafficPermission {
		return &meshv1alpha1.TrafficPermission{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: spec}
	}
	from := func(s meshv1alpha1.PolicySource) []meshv1alpha1.PermissionRule {
		return []meshv1alpha1.PermissionRule{{From: []meshv1alpha1.PolicySource{s}}}
	}
	// shown is what a workload has: its sets, and its guarded ports.
	shown := func(name string) string {
		w, err := wire.DecodeWorkload(name, b.meshes.workloads[name])
		if err != nil {
			return err.Error()
		}
		out := fmt.Sprint("in ", len(w.Sets))
		for _, p := range w.Ports {
			out += fmt.Sprintf("; %d/%s", p.Port, p.Protocol)
			for _, c := range p.Deny {
				out += fmt.Sprintf(" deny %d %v", len(c.Set), c.Ranges)
			}
			for _, c := range p.Allow {
				out += fmt.Sprintf(" allow %d %v", len(c.Set), c.Ranges)
			}
			if p.Refuse {
				out += " refuse"
			}
		}
		return out
	}
	step := func(when string, object resource.Object, changed []string, want map[string]string) {
		t.Helper()
		client.Seed(object)
		apply(t, b, next())
		got := contents(t, s)
		slices.Sort(got)
		if !slices.Equal(got, changed) {
			t.Errorf("%s: sent %v, want %v", when, got, changed)
		}
		for name, text := range want {
			if is := shown(name); is != text {
				t.Errorf("%s: %s is %q, want %q", when, name, is, text)
			}
		}
	}
	all := []string{"front/a", "front/b", "ns/web"}
	step("a namespace", permission(meshv1alpha1.TrafficPermissionSpec{Allow: from(meshv1alpha1.PolicySource{Namespaces: []string{"front"}})}), all,
		map[string]string{"ns/web": "in 0; 8080/TCP allow 16 [] refuse", "front/a": "in 1", "front/b": "in 1"})
	byLabel := meshv1alpha1.PolicySource{Namespaces: []string{"front"}, Labels: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}, Addresses: []string{"10.1.0.0/16"}}
	step("labels and addresses", permission(meshv1alpha1.TrafficPermissionSpec{Deny: from(byLabel)}), all,
		map[string]string{"ns/web": "in 0; 8080/TCP deny 16 [10.1.0.0/16]", "front/a": "in 1", "front/b": "in 0"})
	step("a label", permitted("front", "b", "10.1.0.3", map[string]string{"app": "x"}), []string{"front/b"}, map[string]string{"front/b": "in 1"})
	proxied := permitted("ns", "web", "10.1.0.1", nil)
	proxied.Status.Conditions = []metav1.Condition{{Type: meshv1alpha1.DataplaneProxyConnected, Status: metav1.ConditionTrue, Reason: "Connected"}}
	step("a proxy", proxied, []string{"ns/web"}, map[string]string{"ns/web": "in 0"})
	step("no proxy", permitted("ns", "web", "10.1.0.1", nil), []string{"ns/web"}, map[string]string{"ns/web": "in 0; 8080/TCP deny 16 [10.1.0.0/16]"})
	step("an account, which a node does not know", permission(meshv1alpha1.TrafficPermissionSpec{Allow: from(meshv1alpha1.PolicySource{ServiceAccounts: []string{"front/x"}})}), all,
		map[string]string{"ns/web": "in 0", "front/a": "in 0"})
	step("the mesh denies, and a permission that is not enforced allows", &meshv1alpha1.Mesh{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: meshv1alpha1.MeshSpec{DefaultAccess: meshv1alpha1.AccessDeny},
	}, []string{"front/a", "front/b"}, map[string]string{"ns/web": "in 0", "front/a": "in 0; 8080/TCP refuse"})
	if err := client.Delete(t.Context(), kind.TrafficPermission, catalog.Key{Namespace: "ns", Name: "p"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	apply(t, b, next())
	if got := contents(t, s); !slices.Equal(got, []string{"ns/web"}) || shown("ns/web") != "in 0; 8080/TCP refuse" {
		t.Errorf("without the permission: sent %v, %q", got, shown("ns/web"))
	}
	step("the mesh allows", &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, []string{"-front/a", "-front/b", "-ns/web"}, nil)
	if b.meshes.needed || b.meshes.permissions.index != nil || strings.Contains(shown("ns/web"), "8080") {
		t.Error("without permissions workloads are kept")
	}
}
