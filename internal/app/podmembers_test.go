package app

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/issue"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	memorystore "github.com/proxima-mesh/proxima/internal/store/memory"
)

func clusterPod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "n1", ServiceAccountName: "seller"},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.244.1.2", PodIPs: []corev1.PodIP{{IP: "10.244.1.2"}, {IP: "fd00::2"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

// TestPodDataplane: which Pods are workloads, and of which mesh and account.
func TestPodDataplane(t *testing.T) {
	red := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{meshv1alpha1.LabelMesh: "red"}}}
	kuma := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"kuma.io/mesh": "blue"}}}
	for name, tt := range map[string]struct {
		change    func(*corev1.Pod)
		namespace *corev1.Namespace
		mesh      string // empty: it is no workload
	}{
		"default":            {nil, nil, "default"},
		"namespace":          {nil, red, "red"},
		"Kuma's label":       {nil, kuma, "blue"},
		"own label":          {func(p *corev1.Pod) { p.Labels[meshv1alpha1.LabelMesh] = "green" }, red, "green"},
		"not scheduled":      {func(p *corev1.Pod) { p.Spec.NodeName = "" }, nil, ""},
		"in the node's":      {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, nil, ""},
		"ended":              {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, nil, ""},
		"no address yet":     {func(p *corev1.Pod) { p.Status.PodIP, p.Status.PodIPs = "", nil }, nil, ""},
		"one address, older": {func(p *corev1.Pod) { p.Status.PodIPs = nil }, nil, "default"},
	} {
		d := podDataplane(clusterPod(tt.change), tt.namespace)
		if (d == nil) != (tt.mesh == "") || d != nil && (d.Spec.Mesh != tt.mesh || d.Spec.ServiceAccount != "seller" || d.Spec.Addresses[0] != "10.244.1.2") {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// podTables are a catalog with Pods, and a client of it.
func podTables(t *testing.T, ctx context.Context, running *sync.WaitGroup) (*resourcetest.Client, *catalog.Catalog) {
	t.Helper()
	kinds := resourcetest.Descriptors()
	client := resourcetest.New(kinds...)
	tables := catalog.New(catalog.Config{Client: client, Descriptors: kinds})
	running.Go(func() { _ = tables.Run(ctx) })
	if _, err := client.Create(ctx, kind.Namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}); err != nil {
		t.Fatal(err)
	}
	return client, tables
}

func createPod(t *testing.T, client resource.Client, p *corev1.Pod) {
	t.Helper()
	p.Spec.Containers = []corev1.Container{{Name: "main", Image: "none"}}
	status := p.Status
	made, err := client.Create(t.Context(), kind.Pod, p)
	if err != nil {
		t.Fatal(err)
	}
	made.(*corev1.Pod).Status = status
	if _, err := client.UpdateStatus(t.Context(), kind.Pod, made); err != nil {
		t.Fatal(err)
	}
}

// TestPodWorkloads: a node gets certificates for its own Pods alone, and of their meshes.
func TestPodWorkloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		client, tables := podTables(t, ctx, &running)
		createPod(t, client, clusterPod(nil))
		createPod(t, client, clusterPod(func(p *corev1.Pod) { p.Name, p.Spec.HostNetwork = "host", true }))
		synctest.Wait()
		table := podWorkloads{workloadTable{tables, "east"}}
		got, ok, err := table.Workload(ctx, "shop", "web")
		want := issue.Workload{Mesh: "default", Namespace: "shop", ServiceAccount: "seller", Node: "n1"}
		if err != nil || !ok || got != want {
			t.Errorf("web: %+v, %t, %v", got, ok, err)
		}
		for _, name := range []string{"host", "none"} {
			if _, ok, err := table.Workload(ctx, "shop", name); ok || err != nil {
				t.Errorf("%s is a workload: %v", name, err)
			}
		}
		for node, mesh := range map[string]string{"n1": "red", "n2": "default"} {
			if in, err := table.NodeInMesh(ctx, node, mesh); in || err != nil {
				t.Errorf("node %s is in mesh %s, %v", node, mesh, err)
			}
		}
		if in, err := table.NodeInMesh(ctx, "n1", "default"); !in || err != nil {
			t.Errorf("node n1 is not in its mesh, %v", err)
		}
		if is, err := table.Gateway(ctx, "n1", mesh.IngressID); is || err != nil {
			t.Errorf("a node is a gateway, %v", err)
		}
	})
}

// TestPodMembersWake: a change wakes the nodes that it concerns, and the first state of the
// tables all of them.
func TestPodMembersWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		client, tables := podTables(t, ctx, &running)
		members := newPodMembers(tables, nil)
		want := func(what string, woken bool, changed <-chan struct{}) {
			t.Helper()
			time.Sleep(2 * memberWindow)
			select {
			case <-changed:
				if !woken {
					t.Errorf("%s: woken for nothing", what)
				}
			default:
				if woken {
					t.Errorf("%s: not woken", what)
				}
			}
		}
		empty := members.wait("n2")
		running.Go(func() { _ = members.follow(ctx) })
		want("the first state, on a node without pods", true, empty)

		own, other := members.wait("n1"), members.wait("n2")
		createPod(t, client, clusterPod(nil))
		want("a pod of this node", true, own)
		want("a pod of another node", false, other)

		obj, err := client.Get(ctx, kind.Namespace, resource.Key{Name: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		obj.SetLabels(map[string]string{"team": "a"})
		if obj, err = client.Update(ctx, kind.Namespace, obj); err != nil {
			t.Fatal(err)
		}
		want("a label that says nothing of meshes", false, other)
		obj.SetLabels(map[string]string{meshv1alpha1.LabelMesh: "red"})
		if _, err := client.Update(ctx, kind.Namespace, obj); err != nil {
			t.Fatal(err)
		}
		want("another mesh of the namespace", true, other)
	})
}

// TestDerivedDataplanes: global lists the Pods of a cluster as Dataplanes, which come when they
// have an address, and go when they have ended.
func TestDerivedDataplanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		client, tables := podTables(t, ctx, &running)
		createPod(t, client, clusterPod(nil))
		synctest.Wait()
		derived := derivedDataplanes{client, tables}
		all, version, err := derived.List(ctx, kind.Dataplane, resource.ListOptions{})
		if err != nil || len(all) != 1 {
			t.Fatalf("%d Dataplanes, %v", len(all), err)
		}
		d := all[0].(*meshv1alpha1.Dataplane)
		d.CreationTimestamp = metav1.Time{}
		if len(d.Status.Conditions) != 1 || d.Status.Conditions[0].Status != metav1.ConditionTrue || d.Status.Conditions[0].LastTransitionTime.IsZero() {
			t.Errorf("status %+v", d.Status)
		}
		if errs := kind.Dataplane.Validate(d, nil); len(errs) > 0 {
			t.Errorf("global would refuse it: %v", errs)
		}
		w, err := derived.Watch(ctx, kind.Dataplane, resource.WatchOptions{ResourceVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		obj, err := client.Get(ctx, kind.Pod, resource.Key{Namespace: "shop", Name: "web"})
		if err != nil {
			t.Fatal(err)
		}
		obj.(*corev1.Pod).Status.Phase = corev1.PodSucceeded
		if _, err := client.UpdateStatus(ctx, kind.Pod, obj); err != nil {
			t.Fatal(err)
		}
		event := <-w.ResultChan()
		if _, ok := event.Object.(*meshv1alpha1.Dataplane); !ok || event.Type != watch.Deleted {
			t.Errorf("a Pod that has ended is %s %T", event.Type, event.Object)
		}
	})
}

// TestDerivedAnew: a namespace that gets another mesh has its Pods derived anew, after its label is known.
func TestDerivedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		client, tables := podTables(t, ctx, &running)
		createPod(t, client, clusterPod(nil))
		derived := derivedDataplanes{client, tables}
		var meshes []string
		running.Go(func() {
			derived.follow(ctx, func() {
				all, _, err := derived.List(ctx, kind.Dataplane, resource.ListOptions{})
				if err != nil || len(all) != 1 {
					t.Errorf("%d Dataplanes, %v", len(all), err)
					return
				}
				meshes = append(meshes, all[0].(*meshv1alpha1.Dataplane).Spec.Mesh)
			})
		})
		for _, labels := range []map[string]string{{"team": "a"}, {meshv1alpha1.LabelMesh: "red"}, nil} {
			synctest.Wait()
			obj, err := client.Get(ctx, kind.Namespace, resource.Key{Name: "shop"})
			if err != nil {
				t.Fatal(err)
			}
			obj.SetLabels(labels)
			if _, err := client.Update(ctx, kind.Namespace, obj); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if want := []string{"default", "red", "default"}; !slices.Equal(meshes, want) {
			t.Errorf("derived for the meshes %q, want %q", meshes, want)
		}
	})
}

// TestHolders: which nodes hold certificates is known to all replicas, and written once in a
// period.
func TestHolders(t *testing.T) {
	s := memorystore.New(memorystore.Options{})
	t.Cleanup(func() { _ = s.Close() })
	h := newHolders(s)
	now := time.Now()
	domain, err := mesh.ParseDomain("default.mesh")
	if err != nil {
		t.Fatal(err)
	}
	id, err := mesh.Workload(domain, "shop", "seller")
	if err != nil {
		t.Fatal(err)
	}
	issued := func(node string, after time.Duration) issue.Issued {
		return issue.Issued{Node: node, Namespace: "shop", Workload: "web", Mesh: "default", ID: id, NotAfter: now.Add(after)}
	}
	revision := func() int64 {
		r, err := s.Revision(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return int64(r)
	}
	if err := h.Record(t.Context(), issued("n1", 24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	was := revision()
	other := issued("n1", 24*time.Hour)
	other.Workload = "another of the node"
	if err := h.Record(t.Context(), other); err != nil || revision() != was {
		t.Errorf("a certificate that ends in the same period is a write: %v", err)
	}
	if err := h.Record(t.Context(), issued("n1", 48*time.Hour)); err != nil || revision() == was {
		t.Errorf("a later certificate is no write: %v", err)
	}
	until := map[string]time.Time{}
	if _, err := newHolders(s).All(t.Context(), func(e issue.Entry) { until[e.Node] = e.NotAfter }); err != nil {
		t.Fatal(err)
	}
	if until["n1"].Before(now.Add(48 * time.Hour)) {
		t.Errorf("another replica knows of n1 until %s", until["n1"])
	}
	if err := h.Record(t.Context(), issue.Issued{Mesh: "default"}); err == nil {
		t.Error("a certificate of no node was recorded")
	}
}
