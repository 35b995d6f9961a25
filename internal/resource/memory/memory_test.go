package memory

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOtherKindsAreRefused(t *testing.T) {
	c := New(kind.ConfigMap)
	if _, err := c.Create(t.Context(), kind.Service, &corev1.Service{}); !apierrors.IsBadRequest(err) {
		t.Errorf("create: %v", err)
	}
	if _, _, err := c.List(t.Context(), kind.Service, resource.ListOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("list: %v", err)
	}
}

// TestHistoryIsBounded: a watch that begins, or is, too far behind ends with 410; one that
// keeps up sees every change.
func TestHistoryIsBounded(t *testing.T) {
	c := New(kind.ConfigMap)
	c.limit = 100
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}}
	made, err := c.Create(t.Context(), kind.ConfigMap, m)
	if err != nil {
		t.Fatal(err)
	}
	first := made.GetResourceVersion()
	slow, err := c.Watch(t.Context(), kind.ConfigMap, resource.WatchOptions{ResourceVersion: first})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Stop()
	for i := range 3 * c.limit {
		m.Data = map[string]string{"n": fmt.Sprint(i)}
		if made, err = c.Update(t.Context(), kind.ConfigMap, m); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.history) > 2*c.limit {
		t.Errorf("%d changes are kept", len(c.history))
	}
	if _, err := c.Watch(t.Context(), kind.ConfigMap, resource.WatchOptions{ResourceVersion: first}); !apierrors.IsResourceExpired(err) {
		t.Errorf("watch from the beginning: %v", err)
	}
	expired := false
	for event := range slow.ResultChan() {
		expired = event.Type == watch.Error
	}
	if !expired {
		t.Error("a watch that is too far behind ended without 410")
	}
	w, err := c.Watch(t.Context(), kind.ConfigMap, resource.WatchOptions{ResourceVersion: made.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	m.Data = map[string]string{"last": "one"}
	if _, err := c.Update(t.Context(), kind.ConfigMap, m); err != nil {
		t.Fatal(err)
	}
	if event := <-w.ResultChan(); event.Object.(*corev1.ConfigMap).Data["last"] != "one" {
		t.Errorf("the watch shows %v", event)
	}
}
