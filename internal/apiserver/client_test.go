package apiserver_test

import (
	"context"
	"fmt"
	goreflect "reflect" // a helper of these tests is named reflect
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestClientEveryKind takes every kind through the in-process client.
func TestClientEveryKind(t *testing.T) {
	client := shared.Client("system:test")
	for i, k := range kind.All() {
		t.Run(k.GVK.Group+"/"+k.GVK.Kind, func(t *testing.T) {
			ctx := t.Context()
			in := object(t, k, nameFor(k, fmt.Sprintf("inproc-%s-%d", k.Singular, i), fmt.Sprint("10.79.0.", i+1)))
			key := resource.KeyOf(in)
			created, err := client.Create(ctx, k, in)
			if err != nil {
				t.Fatalf("create: %v", err)
			}
			if in.GetUID() != "" {
				t.Error("create changed what it was given")
			}
			if _, err := client.Create(ctx, k, in); !apierrors.IsAlreadyExists(err) {
				t.Errorf("create twice: %v", err)
			}
			selector := labels.SelectorFromSet(labels.Set{"test": in.GetName()})
			list, version, err := client.List(ctx, k, resource.ListOptions{Labels: selector})
			if err != nil || len(list) != 1 || version == "" {
				t.Fatalf("list: %v, %v, version %q", err, list, version)
			}
			list[0].GetLabels()["test"] = "scribbled" // ours to change
			got, err := client.Get(ctx, k, key)
			if err != nil || got.GetLabels()["test"] != in.GetName() {
				t.Errorf("get: %v, %v", err, got)
			}
			stale := got.DeepCopyObject().(resource.Object)
			got.SetAnnotations(map[string]string{"step": "update"})
			if _, err := client.Update(ctx, k, got); err != nil {
				t.Fatalf("update: %v", err)
			}
			stale.SetAnnotations(map[string]string{"step": "stale"})
			if _, err := client.Update(ctx, k, stale); !apierrors.IsConflict(err) {
				t.Errorf("update of an old version: %v", err)
			}
			stale.SetResourceVersion("")
			if _, err := client.Update(ctx, k, stale); err != nil {
				t.Errorf("update of any version: %v", err)
			}
			err = client.Delete(ctx, k, key, resource.Preconditions{UID: "other"})
			if !apierrors.IsConflict(err) {
				t.Errorf("delete with another's UID: %v", err)
			}
			if err := client.Delete(ctx, k, key, resource.Preconditions{UID: created.GetUID(), Now: true}); err != nil {
				t.Errorf("delete: %v", err)
			}
		})
	}
}

func TestClientWatch(t *testing.T) {
	client := shared.Client("system:test")
	k := descriptor(t, "ConfigMap")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	obj := object(t, k, "watched-in-process")
	if _, err := client.Create(ctx, k, obj); err != nil {
		t.Fatal(err)
	}
	w, err := client.Watch(ctx, k, resource.WatchOptions{ListOptions: resource.ListOptions{
		Namespace: "default", Labels: labels.SelectorFromSet(labels.Set{"test": "watched-in-process"}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	next := func(want watch.EventType) resource.Object {
		t.Helper()
		for event := range w.ResultChan() {
			if event.Type == watch.Bookmark && want != watch.Bookmark {
				continue
			}
			if event.Type != want {
				t.Fatalf("event %s %v, want %s", event.Type, event.Object, want)
			}
			return event.Object.(resource.Object)
		}
		t.Fatal("watch ended")
		return nil
	}
	next(watch.Added)
	if mark := next(watch.Bookmark); mark.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("bookmark %v", mark)
	}
	if err := client.Delete(ctx, k, resource.KeyOf(obj), resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	if gone := next(watch.Deleted); gone.GetName() != obj.GetName() {
		t.Errorf("deleted %v", gone)
	}
}

// TestClientWatchStoppedUnread: a watch that is stopped while events wait leaks no
// goroutine. TestMain checks for leaks.
func TestClientWatchStoppedUnread(t *testing.T) {
	client := shared.Client("system:test")
	k := descriptor(t, "ConfigMap")
	for i := range 3 {
		if _, err := client.Create(t.Context(), k, object(t, k, fmt.Sprintf("never-read-%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		w, err := client.Watch(t.Context(), k, resource.WatchOptions{ListOptions: resource.ListOptions{Namespace: "default"}})
		if err != nil {
			t.Fatal(err)
		}
		<-w.ResultChan() // the next one waits
		w.Stop()
	}
}

func TestClientValidatesAndDefaults(t *testing.T) {
	client := shared.Client("system:test")
	bad := service("bad")
	bad.Namespace = "default"
	bad.Spec.Ports[0].Port = 0
	if _, err := client.Create(t.Context(), kind.Service, bad); !apierrors.IsInvalid(err) {
		t.Errorf("an invalid service: %v", err)
	}
	good := service("inproc-good")
	good.Namespace = "default"
	out, err := client.Create(t.Context(), kind.Service, good)
	if err != nil {
		t.Fatal(err)
	}
	svc := out.(*corev1.Service)
	if svc.Spec.Type != corev1.ServiceTypeClusterIP || svc.Spec.ClusterIP == "" || svc.Spec.Ports[0].Protocol != corev1.ProtocolTCP {
		t.Errorf("not defaulted: %+v", svc.Spec)
	}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	if out, err = client.Update(t.Context(), kind.Service, svc); err != nil {
		t.Fatal(err)
	}
	if len(out.(*corev1.Service).Status.LoadBalancer.Ingress) != 0 {
		t.Error("an update wrote the status")
	}
	svc = out.(*corev1.Service)
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	if out, err = client.UpdateStatus(t.Context(), kind.Service, svc); err != nil {
		t.Fatal(err)
	}
	if len(out.(*corev1.Service).Status.LoadBalancer.Ingress) != 1 {
		t.Error("a status update did not write the status")
	}
	if err := client.Delete(t.Context(), descriptor(t, "Service"), resource.KeyOf(svc), resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	if got := owner(t, shared.clientset(t, ""), svc.Spec.ClusterIP); got != "" {
		t.Errorf("address left with %q", got)
	}
}

// TestClientWritesStatusToo: a copy is written with its status in one transaction, by the
// rules of both.
func TestClientWritesStatusToo(t *testing.T) {
	client := shared.Client("system:test")
	whole := resource.WithStatus(t.Context())
	_, from, err := client.List(t.Context(), kind.ServiceExport, resource.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	offer := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "whole"}}
	offer.Status.Available = &mcs.AvailableService{Mesh: "default", Zone: "a", Type: mcs.ClusterSetIP, Instances: -1}
	if _, err := client.Create(whole, kind.ServiceExport, offer); !apierrors.IsInvalid(err) {
		t.Errorf("a status that its rules refuse: %v", err)
	}
	offer.Status.Available.Instances = 2
	out, err := client.Create(whole, kind.ServiceExport, offer)
	if err != nil {
		t.Fatal(err)
	}
	made := out.(*mcs.ServiceExport)
	if a := made.Status.Available; a == nil || a.Instances != 2 || made.Generation != 1 {
		t.Fatalf("created: generation %d, %+v", made.Generation, made.Status)
	}
	made.Status.Available.Instances, made.Annotations = 3, map[string]string{"version": "2"}
	if out, err = client.Update(whole, kind.ServiceExport, made); err != nil {
		t.Fatal(err)
	}
	if got := out.(*mcs.ServiceExport); got.Status.Available.Instances != 3 || got.Annotations["version"] != "2" {
		t.Errorf("updated: %v, %+v", got.Annotations, got.Status)
	}
	if _, err := client.Update(whole, kind.ServiceExport, made); !apierrors.IsConflict(err) {
		t.Errorf("an older resource version: %v", err)
	}
	// Nobody sees one without the other.
	w, err := client.Watch(t.Context(), kind.ServiceExport, resource.WatchOptions{ResourceVersion: from})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, want := range []int32{2, 3} {
		e := <-w.ResultChan()
		if got := e.Object.(*mcs.ServiceExport); got.Status.Available == nil || got.Status.Available.Instances != want {
			t.Errorf("event %s: %+v", e.Type, got.Status)
		}
	}
	if err := client.Delete(t.Context(), kind.ServiceExport, resource.KeyOf(made), resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
}

// TestClientKeepsManagedFields: a controller that writes an object from scratch
// does not erase what server-side apply has noted.
func TestClientKeepsManagedFields(t *testing.T) {
	cs := shared.clientset(t, "")
	_, err := cs.CoreV1().ConfigMaps("default").Patch(t.Context(), "managed", types.ApplyPatchType,
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"managed"},"data":{"a":"1"}}`),
		metav1.PatchOptions{FieldManager: "applier"})
	if err != nil {
		t.Fatal(err)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "managed"}, Data: map[string]string{"a": "1", "b": "2"}}
	out, err := shared.Client("system:test").Update(t.Context(), kind.ConfigMap, cm)
	if err != nil {
		t.Fatal(err)
	}
	if f := out.GetManagedFields(); len(f) != 1 || f[0].Manager != "applier" {
		t.Errorf("managed fields %+v", f)
	}
}

// TestClientShares: where the caller asks for it, lists and watches hold what the watch cache
// holds, once; otherwise nobody's memory is the caller's.
func TestClientShares(t *testing.T) {
	client := shared.Client("system:test")
	k := descriptor(t, "ConfigMap")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	name := "shared-in-process"
	selector := labels.SelectorFromSet(labels.Set{"test": name})
	options := func(shared bool) resource.ListOptions { return resource.ListOptions{Labels: selector, Shared: shared} }
	data := func(o runtime.Object) uintptr { return goreflect.ValueOf(o.(*corev1.ConfigMap).Labels).Pointer() }
	_, version, err := client.List(ctx, k, options(true))
	if err != nil {
		t.Fatal(err)
	}
	w, err := client.Watch(ctx, k, resource.WatchOptions{ListOptions: options(true), ResourceVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	created, err := client.Create(ctx, k, object(t, k, name))
	if err != nil {
		t.Fatal(err)
	}
	var event watch.Event
	for event = range w.ResultChan() {
		if event.Type == watch.Added {
			break
		}
	}
	get := func(shared bool) runtime.Object {
		t.Helper()
		list, _, err := client.List(ctx, k, options(shared))
		if err != nil || len(list) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
		return list[0]
	}
	a, b := get(true), get(true)
	if a != b || a != event.Object {
		t.Error("lists and watches that share hold copies")
	}
	if own := get(false); data(own) == data(a) || data(own) == data(created) || len(own.(*corev1.ConfigMap).Labels) == 0 {
		t.Error("a list that does not share is not the caller's")
	}
	if of := a.GetObjectKind().GroupVersionKind(); !of.Empty() { // as that of an object that was read from the store
		t.Errorf("the watch cache has an object with kind %q", of)
	}
	before := a.DeepCopyObject()
	changed := a.DeepCopyObject().(*corev1.ConfigMap)
	changed.Data = map[string]string{"k": "changed"}
	if _, err := client.Update(ctx, k, changed); err != nil {
		t.Fatal(err)
	}
	if now := get(true); now == a || now.(*corev1.ConfigMap).Data["k"] != "changed" || !goreflect.DeepEqual(a, before) {
		t.Error("a list that shares has an old version, or changed it")
	}
}
