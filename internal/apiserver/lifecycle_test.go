package apiserver_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/namespace"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

func TestBootstrap(t *testing.T) {
	cs := shared.clientset(t, "")
	for _, name := range []string{"default", "kube-system"} {
		ns, err := cs.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || ns.Status.Phase != corev1.NamespaceActive {
			t.Errorf("namespace %s: %v, %+v", name, err, ns)
		}
	}
	svc, err := cs.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if svc.Spec.ClusterIP != "10.96.0.1" || svc.Spec.Ports[0].Port != 443 || owner(t, cs, "10.96.0.1") != "default/kubernetes" {
		t.Errorf("service %+v", svc.Spec)
	}
	if _, err := cs.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	cidr, err := cs.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || cidr.Spec.CIDRs[0] != "10.96.0.0/24" || len(cidr.Status.Conditions) != 1 {
		t.Errorf("ServiceCIDR: %v, %+v", err, cidr)
	}
}

func TestStatusIsSeparate(t *testing.T) {
	cs := shared.clientset(t, "")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "separate"}}
	node.Status.NodeInfo.KubeletVersion = "by-create"
	node, err := cs.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.NodeInfo.KubeletVersion = "by-status"
	node.Spec.Unschedulable = true
	node, err = cs.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if node.Spec.Unschedulable || node.Status.NodeInfo.KubeletVersion != "by-status" {
		t.Errorf("after a write of the status: %+v", node)
	}
	node.Status.NodeInfo.KubeletVersion = "by-update"
	node.Spec.Unschedulable = true
	node, err = cs.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !node.Spec.Unschedulable || node.Status.NodeInfo.KubeletVersion != "by-status" {
		t.Errorf("after a write of the object: %+v", node)
	}
}

func TestNamespaceRefusals(t *testing.T) {
	cs := shared.clientset(t, "")
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	_, err := cs.CoreV1().ConfigMaps("missing").Create(t.Context(), cm, metav1.CreateOptions{})
	if !apierrors.IsNotFound(err) || err.Error() != `namespaces "missing" not found` {
		t.Errorf("create in a missing namespace: %v", err)
	}
	err = cs.CoreV1().Namespaces().Delete(t.Context(), "default", metav1.DeleteOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "this namespace may not be deleted") {
		t.Errorf("delete of default: %v", err)
	}
}

// TestNamespaceCascade starts the controller only after the test has checked what a
// Terminating namespace refuses.
func TestNamespaceCascade(t *testing.T) {
	cs := shared.clientset(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "doomed"}}
	if _, err := cs.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, k := range kind.All() {
		if k.Namespaced {
			c := crud{client: shared.rest(t, k, runtime.ContentTypeJSON), kind: k}
			obj := object(t, k, "in-"+k.Singular+"-"+strings.ReplaceAll(k.GVK.Group, ".", "-")+"x")
			obj.SetNamespace("doomed")
			if k.GVK.Kind == "Event" {
				setEventNamespace(obj)
			}
			if d, ok := obj.(*meshv1alpha1.Dataplane); ok {
				now := int32(0)
				d.Spec.DrainSeconds = &now
			}
			if err := c.client.Post().Namespace("doomed").Resource(k.Resource).Body(obj).Do(ctx).Error(); err != nil {
				t.Fatalf("create %s: %v", k.GVK, err)
			}
		}
	}
	svc, err := cs.CoreV1().Services("doomed").Get(ctx, "in-service-x", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := cs.CoreV1().Namespaces().Delete(ctx, "doomed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ns, err = cs.CoreV1().Namespaces().Get(ctx, "doomed", metav1.GetOptions{})
	if err != nil || ns.Status.Phase != corev1.NamespaceTerminating || ns.DeletionTimestamp.IsZero() {
		t.Fatalf("after the deletion: %v, %+v", err, ns)
	}
	ns.Status.Conditions = []corev1.NamespaceCondition{{Type: corev1.NamespaceContentRemaining, Status: corev1.ConditionTrue}}
	if _, err := cs.CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cs.CoreV1().Namespaces().Get(ctx, "doomed", metav1.GetOptions{}); err != nil {
		t.Fatalf("a write of the status ended the namespace: %v", err)
	}
	_, err = cs.CoreV1().ConfigMaps("doomed").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}},
		metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("create in a terminating namespace: %v", err)
	}

	client := shared.Client("system:controller:namespace")
	c, err := namespace.New(client, client, kind.All(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	eventually(t, "the namespace is gone", func() bool {
		_, err := cs.CoreV1().Namespaces().Get(ctx, "doomed", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if got := owner(t, cs, svc.Spec.ClusterIP); got != "" {
		t.Errorf("address of the service left with %q", got)
	}
	for _, k := range kind.All() {
		if k.Namespaced {
			objects, _, err := client.List(ctx, k, resource.ListOptions{Namespace: "doomed"})
			if err != nil || len(objects) > 0 {
				t.Errorf("%s: %v, left over %v", k.GVK, err, objects)
			}
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestGracePeriod: a workload is terminating until its time is over.
func TestGracePeriod(t *testing.T) {
	k := descriptor(t, "Dataplane")
	client := shared.Client("system:test")
	obj := object(t, k, "graceful").(*meshv1alpha1.Dataplane)
	second := int32(1)
	obj.Spec.DrainSeconds = &second
	if _, err := client.Create(t.Context(), kind.Dataplane, obj); err != nil {
		t.Fatal(err)
	}
	key := resource.KeyOf(obj)
	if err := client.Delete(t.Context(), k, key, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	got, err := client.Get(t.Context(), k, key)
	if err != nil {
		t.Fatal(err)
	}
	if grace := got.GetDeletionGracePeriodSeconds(); got.GetDeletionTimestamp() == nil || grace == nil || *grace != 1 {
		t.Errorf("not terminating: %+v", got)
	}
	eventually(t, "the workload is gone", func() bool {
		_, err := client.Get(t.Context(), k, key)
		return apierrors.IsNotFound(err)
	})
}

// TestDeletionNow: a workload that is deleted without a grace period is gone with one event.
func TestDeletionNow(t *testing.T) {
	client := shared.Client("system:test")
	obj := object(t, descriptor(t, "Dataplane"), "gone-at-once")
	created, err := client.Create(t.Context(), kind.Dataplane, obj)
	if err != nil {
		t.Fatal(err)
	}
	w, err := client.Watch(t.Context(), kind.Dataplane, resource.WatchOptions{
		ListOptions: resource.ListOptions{Namespace: created.GetNamespace()}, ResourceVersion: created.GetResourceVersion(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := client.Delete(t.Context(), kind.Dataplane, resource.KeyOf(obj), resource.Preconditions{UID: created.GetUID(), Now: true}); err != nil {
		t.Fatal(err)
	}
	for e := range w.ResultChan() {
		o, ok := e.Object.(*meshv1alpha1.Dataplane)
		if !ok || o.Name != created.GetName() {
			continue // a bookmark, or another test's
		}
		if e.Type != watch.Deleted {
			t.Errorf("event %s of %s before its deletion", e.Type, o.Name)
			continue
		}
		return
	}
}

func TestInformers(t *testing.T) {
	for encoding, contentType := range map[string]string{"json": "", "protobuf": runtime.ContentTypeProtobuf} {
		t.Run(encoding, func(t *testing.T) {
			cs := shared.clientset(t, contentType)
			factory := informers.NewSharedInformerFactory(cs, 0)
			watched := map[string]cache.SharedIndexInformer{
				"services":       factory.Core().V1().Services().Informer(),
				"namespaces":     factory.Core().V1().Namespaces().Informer(),
				"nodes":          factory.Core().V1().Nodes().Informer(),
				"pods":           factory.Core().V1().Pods().Informer(),
				"events":         factory.Core().V1().Events().Informer(),
				"endpointslices": factory.Discovery().V1().EndpointSlices().Informer(),
				"leases":         factory.Coordination().V1().Leases().Informer(),
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer factory.Shutdown()
			defer cancel()
			factory.StartWithContext(ctx)
			for name, informer := range watched {
				if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
					t.Fatalf("informer of %s did not sync", name)
				}
			}
			name := "informed-" + encoding
			if _, err := cs.CoreV1().Services("default").Create(ctx, service(name), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the informer saw the service", func() bool {
				_, ok, _ := watched["services"].GetStore().GetByKey("default/" + name)
				return ok
			})
			if err := cs.CoreV1().Services("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the informer saw it go", func() bool {
				_, ok, _ := watched["services"].GetStore().GetByKey("default/" + name)
				return !ok
			})
		})
	}
}

func TestRestartOnTheSameStore(t *testing.T) {
	s := memory.New(memory.Options{})
	defer s.Close()
	var before *corev1.Service
	for round := range 2 {
		srv, err := start(s)
		if err != nil {
			t.Fatal(err)
		}
		cs := srv.clientset(t, "")
		if round == 0 {
			if before, err = cs.CoreV1().Services("default").Create(t.Context(), service("stays"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := cs.CoreV1().Services("default").Create(t.Context(), service("missed"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		} else {
			// A client that was one event behind gets it, and need not list again.
			w, err := cs.CoreV1().Services("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.ResourceVersion})
			if err != nil {
				t.Fatal(err)
			}
			e := <-w.ResultChan()
			w.Stop()
			if missed, ok := e.Object.(*corev1.Service); !ok || missed.Name != "missed" {
				t.Errorf("a watch from before the restart: %s %+v", e.Type, e.Object)
			}
			after, err := cs.CoreV1().Services("default").Get(t.Context(), "stays", metav1.GetOptions{})
			if err != nil || after.UID != before.UID || after.ResourceVersion != before.ResourceVersion ||
				after.Spec.ClusterIP != before.Spec.ClusterIP {
				t.Errorf("after the restart: %v, %+v, want %+v", err, after, before)
			}
			other := service("other")
			other.Spec.ClusterIP = before.Spec.ClusterIP
			if _, err := cs.CoreV1().Services("default").Create(t.Context(), other, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
				t.Errorf("the address of before is given out again: %v", err)
			}
		}
		if err := srv.stop(); err != nil {
			t.Fatal(err)
		}
	}
}
