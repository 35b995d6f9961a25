package resourcetest_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pods() *resource.Descriptor {
	for _, d := range resourcetest.Descriptors() {
		if d.Resource == "pods" {
			return d
		}
	}
	panic("no pods")
}

func pod(name string, l map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: l}}
}

func TestWrites(t *testing.T) {
	c, ctx := resourcetest.New(), t.Context()
	in := pod("", nil)
	in.GenerateName, in.Status.Phase = "p-", corev1.PodRunning
	made, err := c.Create(ctx, kind.Pod, in)
	if err != nil {
		t.Fatal(err)
	}
	if made.GetName() == "" || made.GetUID() == "" || made.GetResourceVersion() == "" || made.(*corev1.Pod).Status.Phase != "" {
		t.Errorf("created %+v", made)
	}
	if in.Name != "" {
		t.Error("the argument was changed")
	}

	status := made.DeepCopyObject().(*corev1.Pod)
	status.Status.Phase, status.Spec.NodeName = corev1.PodRunning, "n"
	got, err := c.UpdateStatus(ctx, kind.Pod, status)
	if err != nil || got.(*corev1.Pod).Status.Phase != corev1.PodRunning || got.(*corev1.Pod).Spec.NodeName != "" {
		t.Errorf("status update: %v, %v", got, err)
	}
	if _, err := c.Update(ctx, kind.Pod, made); !apierrors.IsConflict(err) {
		t.Errorf("update of an old version: %v, want a conflict", err)
	}
	same, err := c.Update(ctx, kind.Pod, got)
	if err != nil || same.GetResourceVersion() != got.GetResourceVersion() {
		t.Errorf("update without a change: %v, %v", same, err)
	}
	if _, err := c.Create(ctx, kind.Pod, pod(made.GetName(), nil)); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second create: %v", err)
	}
	key := resource.KeyOf(made)
	if err := c.Delete(ctx, pods(), key, resource.Preconditions{UID: "other"}); !apierrors.IsConflict(err) {
		t.Errorf("delete of another: %v, want a conflict", err)
	}
	if err := c.Delete(ctx, pods(), key, resource.Preconditions{UID: made.GetUID()}); err != nil {
		t.Error(err)
	}
	if _, err := c.Get(ctx, pods(), key); !apierrors.IsNotFound(err) {
		t.Errorf("get of the deleted: %v", err)
	}
	if err := c.Delete(ctx, pods(), key, resource.Preconditions{}); !apierrors.IsNotFound(err) {
		t.Errorf("second delete: %v", err)
	}
}

// read takes n events off a watch, as type and name.
func read(t *testing.T, w watch.Interface, n int) []string {
	t.Helper()
	var out []string
	for range n {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return append(out, "closed")
			}
			name := ""
			if o, ok := e.Object.(resource.Object); ok {
				name = " " + o.GetName()
			}
			out = append(out, string(e.Type)+name)
		case <-time.After(time.Minute): // never, unless broken
			return append(out, "nothing")
		}
	}
	return out
}

func TestWatches(t *testing.T) {
	c, ctx := resourcetest.New(), t.Context()
	web := map[string]string{"app": "web"}
	c.Seed(pod("a", web), pod("other", nil))
	only := resource.ListOptions{Labels: labels.SelectorFromSet(web)}
	_, version, err := c.List(ctx, pods(), only)
	if err != nil {
		t.Fatal(err)
	}
	open := func(after string) watch.Interface {
		w, err := c.Watch(ctx, pods(), resource.WatchOptions{ListOptions: only, ResourceVersion: after})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	initial, resumed := open(""), open(version)
	c.Seed(pod("other", web), pod("a", nil), pod("other", web))
	changes := []string{"ADDED other", "DELETED a", "MODIFIED other"}
	if diff := cmp.Diff(append([]string{"ADDED a", "BOOKMARK "}, changes...), read(t, initial, 5)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(changes, read(t, resumed, 3)); diff != "" {
		t.Error(diff)
	}

	initial.Stop()
	initial.Stop()
	c.Disconnect()
	if diff := cmp.Diff([]string{"closed"}, read(t, resumed, 1)); diff != "" {
		t.Error(diff)
	}
	c.Seed(pod("new", web))
	behind := open(version)
	c.Expire()
	for {
		got := read(t, behind, 1)
		if got[0] == "closed" || got[0] == "nothing" {
			t.Fatalf("watch ended with %v, want an error", got)
		}
		if got[0] == "ERROR" {
			break
		}
	}
	if _, err := c.Watch(ctx, pods(), resource.WatchOptions{ResourceVersion: version}); !apierrors.IsResourceExpired(err) {
		t.Errorf("watch from before the history: %v, want expired", err)
	}
}
