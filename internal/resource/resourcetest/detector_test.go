package resourcetest_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// failures counts errors in place of a test.
type failures struct {
	testing.TB
	n int
}

func (f *failures) Helper()               {}
func (f *failures) Errorf(string, ...any) { f.n++ }

// TestDetector: objects of lists and watches that were changed are found, others are not.
func TestDetector(t *testing.T) {
	named := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	}
	inner := resourcetest.New(kind.ConfigMap)
	inner.Seed(named("listed"))
	var d resourcetest.Detector
	client, f := d.Wrap(inner), &failures{TB: t}
	shared := resource.ListOptions{Shared: true}
	list, version, err := client.List(t.Context(), kind.ConfigMap, shared)
	if err != nil {
		t.Fatal(err)
	}
	own, _, err := client.List(t.Context(), kind.ConfigMap, resource.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := client.Watch(t.Context(), kind.ConfigMap, resource.WatchOptions{ListOptions: shared, ResourceVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	inner.Seed(named("watched"))
	watched := (<-w.ResultChan()).Object.(resource.Object)
	own[0].SetLabels(map[string]string{"a": "b"})
	if n := d.Check(f); n != 2 || f.n != 0 {
		t.Errorf("%d objects, of which %d are found changed", n, f.n)
	}
	list[0].SetLabels(map[string]string{"a": "b"})
	watched.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "x"}})
	if d.Check(f); f.n != 2 {
		t.Errorf("%d objects are found changed, want 2", f.n)
	}
}
