package namespace_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/controller/namespace"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// cluster is a resource.Client on a map. Deletions can be made to fail, or to
// leave the object behind for some looks, as finalizers do.
type cluster struct {
	resource.Client
	namespace *corev1.Namespace
	contents  map[resource.Key]resource.Object
	deleted   []string
	failures  int
	lingering int
	conflicts int
	watcher   *watch.FakeWatcher
}

func (c *cluster) Watch(ctx context.Context, _ *resource.Descriptor, _ resource.WatchOptions) (watch.Interface, error) {
	context.AfterFunc(ctx, c.watcher.Stop)
	return c.watcher, nil
}

func (c *cluster) Get(_ context.Context, _ *resource.Descriptor, key resource.Key) (resource.Object, error) {
	if c.namespace == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, key.Name)
	}
	return c.namespace.DeepCopy(), nil
}

func (c *cluster) List(_ context.Context, k *resource.Descriptor, _ resource.ListOptions) (out []resource.Object, _ string, _ error) {
	for _, obj := range c.contents {
		if obj.GetObjectKind().GroupVersionKind() == k.GVK {
			out = append(out, obj)
		}
	}
	if c.failures == 0 && c.lingering > 0 && len(out) > 0 && out[0].GetDeletionTimestamp() != nil {
		if c.lingering--; c.lingering == 0 {
			clear(c.contents)
		}
	}
	return out, "1", nil
}

func (c *cluster) Delete(_ context.Context, k *resource.Descriptor, key resource.Key, pre resource.Preconditions) error {
	if c.failures > 0 {
		c.failures--
		return errors.New("the store is busy")
	}
	if pre.UID == "" {
		return errors.New("a deletion without the UID could hit another object")
	}
	c.deleted = append(c.deleted, k.Singular+" "+key.String())
	if c.lingering > 0 {
		now := metav1.Now()
		c.contents[key].SetDeletionTimestamp(&now)
	} else {
		delete(c.contents, key)
	}
	return nil
}

func (c *cluster) FinalizeNamespace(_ context.Context, ns *corev1.Namespace) error {
	if c.conflicts > 0 {
		c.conflicts--
		return apierrors.NewConflict(schema.GroupResource{Resource: "namespaces"}, ns.Name, errors.New("changed"))
	}
	if len(c.contents) > 0 {
		return errors.New("finalized with contents left")
	}
	if c.namespace = ns; len(ns.Spec.Finalizers) == 0 {
		c.namespace = nil
	}
	return nil
}

func newCluster(finalizers ...corev1.FinalizerName) *cluster {
	now := metav1.Now()
	c := &cluster{
		contents: map[resource.Key]resource.Object{},
		watcher:  watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 2}),
		namespace: &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: "doomed", DeletionTimestamp: &now},
			Spec:       corev1.NamespaceSpec{Finalizers: finalizers},
		},
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "doomed", Name: "c", UID: "u"}}
	cm.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	c.contents[resource.KeyOf(cm)] = cm
	return c
}

func TestController(t *testing.T) {
	for _, tc := range []struct {
		name       string
		finalizers []corev1.FinalizerName
		change     func(*cluster)
		// What must be left of the namespace's finalizers; nil: it is gone.
		left    []corev1.FinalizerName
		deleted []string
	}{
		{name: "empties and lets go", finalizers: []corev1.FinalizerName{"kubernetes"}, deleted: []string{"configmap doomed/c"}},
		{name: "tries again after failures", finalizers: []corev1.FinalizerName{"kubernetes"},
			change: func(c *cluster) { c.failures = 3 }, deleted: []string{"configmap doomed/c"}},
		{name: "waits for what lingers, asks once", finalizers: []corev1.FinalizerName{"kubernetes"},
			change: func(c *cluster) { c.lingering = 5 }, deleted: []string{"configmap doomed/c"}},
		{name: "tries again after a conflict", finalizers: []corev1.FinalizerName{"kubernetes"},
			change: func(c *cluster) { c.conflicts = 2 }, deleted: []string{"configmap doomed/c"}},
		{name: "leaves others' finalizers", finalizers: []corev1.FinalizerName{"example.com/x", "kubernetes"},
			left: []corev1.FinalizerName{"example.com/x"}, deleted: []string{"configmap doomed/c"}},
		{name: "does nothing once its finalizer is off", finalizers: []corev1.FinalizerName{"example.com/x"},
			left: []corev1.FinalizerName{"example.com/x"}},
		{name: "leaves a living namespace alone", finalizers: []corev1.FinalizerName{"kubernetes"},
			change: func(c *cluster) { c.namespace.DeletionTimestamp = nil }, left: []corev1.FinalizerName{"kubernetes"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(tc.finalizers...)
				if tc.change != nil {
					tc.change(c)
				}
				ctrl, err := namespace.New(c, c, kind.All(), slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				done := make(chan error, 1)
				c.watcher.Add(c.namespace.DeepCopy()) // the channel holds both
				c.watcher.Action(watch.Bookmark, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
					Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
				}})
				go func() { done <- ctrl.Run(ctx) }()
				<-ctx.Done() // time passes only while nothing is left to do
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				var left []corev1.FinalizerName
				if c.namespace != nil {
					left = slices.Clone(c.namespace.Spec.Finalizers)
				}
				if diff := cmp.Diff(tc.left, left); diff != "" {
					t.Errorf("finalizers left (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tc.deleted, c.deleted); diff != "" {
					t.Errorf("deleted (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestNewNeedsNamespaces(t *testing.T) {
	if _, err := namespace.New(nil, nil, nil, nil); err == nil {
		t.Error("a controller without the kind Namespace")
	}
}
