package tagged

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the controller at work on a client, inside a bubble of fake time.
type rig struct {
	t      *testing.T
	client *resourcetest.Client
	stop   func()
}

func newRig(t *testing.T, objects ...resource.Object) *rig {
	r := &rig{t: t, client: resourcetest.New(kind.All()...)}
	r.client.Seed(objects...)
	r.lead()
	return r
}

// lead begins the term of a leader; the one before has ended.
func (r *rig) lead() {
	tables := catalog.New(catalog.Config{Client: r.client, Descriptors: kind.All()})
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{}, 2)
	for _, run := range []func(context.Context) error{tables.Run, New(Config{Client: r.client, Catalog: tables}).Run} {
		go func() { _ = run(ctx); done <- struct{}{} }()
	}
	r.stop = func() { cancel(); <-done; <-done }
	r.settle()
}

func (r *rig) settle() { time.Sleep(3 * time.Second); synctest.Wait() }

func (r *rig) seed(objects ...resource.Object) {
	r.client.Seed(objects...)
	r.settle()
}

func (r *rig) remove(d *resource.Descriptor, key resource.Key) {
	r.t.Helper()
	if err := r.client.Delete(r.t.Context(), d, key, resource.Preconditions{}); err != nil {
		r.t.Fatal(err)
	}
	r.settle()
}

func get[T resource.Object](r *rig, d *resource.Descriptor, key resource.Key) T {
	r.t.Helper()
	var none T
	o, err := r.client.Get(r.t.Context(), d, key)
	if apierrors.IsNotFound(err) {
		return none
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return o.(T)
}

// ports of the Service of a tag, as text; "none" without it.
func (r *rig) ports(mesh, host string) string {
	r.t.Helper()
	s := get[*corev1.Service](r, kind.Service, serviceKey(mesh, host))
	if s == nil {
		return "none"
	}
	if at, ok := servicetag.HostOf(s); !ok || at != host {
		r.t.Errorf("service of tag %s: %v", host, s.Spec.Selector)
	}
	var out []string
	for _, p := range s.Spec.Ports {
		out = append(out, fmt.Sprint(p.Port))
	}
	return strings.Join(out, ",")
}

func serviceKey(mesh, host string) resource.Key {
	return resource.Key{Namespace: servicetag.Namespace(mesh), Name: servicetag.ServiceName(host)}
}

func namespace(name, mesh string) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if mesh != "" {
		n.Labels = map[string]string{meshv1alpha1.LabelMesh: mesh}
	}
	return n
}

func workload(ns, name, mesh, tag string, ports ...int32) *meshv1alpha1.Dataplane {
	d := &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{meshv1alpha1.LabelKumaService: tag}},
		Spec:       meshv1alpha1.DataplaneSpec{Mesh: mesh, Addresses: []string{"192.0.2.1"}},
	}
	for _, p := range ports {
		d.Spec.Ports = append(d.Spec.Ports, meshv1alpha1.DataplanePort{Port: p})
	}
	return d
}

// TestServiceOfATag: workloads of a tag in all namespaces of a mesh have one Service, which
// follows their ports, and those of another mesh another one.
func TestServiceOfATag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, namespace("shop", ""), namespace("office", ""), namespace("lab", "blue"),
			workload("shop", "a", "", "backend", 8080), workload("office", "b", "", "backend", 8081),
			workload("lab", "c", "", "backend", 9000), workload("shop", "d", "blue", "other", 70), workload("shop", "e", "", "Upper", 70))
		defer func() { r.stop() }()
		check := func(when, mesh, host, want string) {
			t.Helper()
			if got := r.ports(mesh, host); got != want {
				t.Errorf("%s: ports of %s in %s: %s, want %s", when, host, mesh, got, want)
			}
		}
		check("at the start", "default", "backend", "80,8080,8081")
		check("another mesh", "blue", "backend", "80,9000")
		check("a mesh that the workload names", "blue", "other", "70,80")
		for mesh, label := range map[string]string{"default": "", "blue": "blue"} {
			if n := get[*corev1.Namespace](r, kind.Namespace, resource.Key{Name: servicetag.Namespace(mesh)}); n.Labels[meshv1alpha1.LabelMesh] != label {
				t.Errorf("namespace of %s: %v", mesh, n.Labels)
			}
		}
		all, _, _ := r.client.List(t.Context(), kind.Service, resource.ListOptions{})
		if len(all) != 3 {
			t.Errorf("%d Services", len(all))
		}
		r.remove(kind.Dataplane, resource.Key{Namespace: "office", Name: "b"})
		check("one has gone", "default", "backend", "80,8080")
		// What users set stays.
		s := get[*corev1.Service](r, kind.Service, serviceKey("default", "backend")).DeepCopy()
		s.Annotations = map[string]string{"a": "b"}
		r.seed(s, workload("shop", "a", "", "backend", 8080, 9090))
		check("another port", "default", "backend", "80,8080,9090")
		if s := get[*corev1.Service](r, kind.Service, serviceKey("default", "backend")); s.Annotations["a"] != "b" {
			t.Errorf("annotations %v", s.Annotations)
		}
		r.seed(namespace("lab", ""))
		check("the namespace is of another mesh", "default", "backend", "80,8080,9000,9090")
	})
}

// TestServiceIsKept: for an hour after its last workload, over a change of leader. Then its
// namespace goes, too.
func TestServiceIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, namespace("shop", ""), workload("shop", "a", "", "backend", 8080))
		defer func() { r.stop() }()
		uid := get[*corev1.Service](r, kind.Service, serviceKey("default", "backend")).UID
		r.remove(kind.Dataplane, resource.Key{Namespace: "shop", Name: "a"})
		time.Sleep(Keep / 2)
		r.stop()
		r.lead()
		if got := r.ports("default", "backend"); got != "80,8080" {
			t.Fatalf("after half an hour: %s", got)
		}
		r.seed(workload("shop", "a", "", "backend", 8080))
		if s := get[*corev1.Service](r, kind.Service, serviceKey("default", "backend")); s.UID != uid || s.Annotations[annotationUnusedSince] != "" {
			t.Errorf("the workload is back: %+v", s.ObjectMeta)
		}
		r.remove(kind.Dataplane, resource.Key{Namespace: "shop", Name: "a"})
		time.Sleep(Keep - time.Minute)
		if r.ports("default", "backend") == "none" {
			t.Error("gone before the hour is over")
		}
		time.Sleep(2 * time.Minute)
		if got := r.ports("default", "backend"); got != "none" {
			t.Errorf("after the hour: %s", got)
		}
		r.settle()
		n := get[*corev1.Namespace](r, kind.Namespace, resource.Key{Name: servicetag.Namespace("default")})
		if n != nil && n.DeletionTimestamp.IsZero() {
			t.Error("the namespace is still there")
		}
	})
}

// TestGeneratedTags: a pod has one while no Service selects it.
func TestGeneratedTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}},
		}
		r := newRig(t, namespace("shop", ""), pod)
		defer func() { r.stop() }()
		if got := r.ports("default", "web_shop_svc"); got != "80,8080" {
			t.Errorf("a bare pod: %s", got)
		}
		r.seed(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}},
		})
		s := get[*corev1.Service](r, kind.Service, serviceKey("default", "web_shop_svc"))
		if s == nil || s.Annotations[annotationUnusedSince] == "" {
			t.Errorf("a Service selects the pod: %+v", s)
		}
	})
}

// TestNamespaceForImports: where other zones export a tag, its namespace is there for the
// import.
func TestNamespaceForImports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer func() { r.stop() }()
		e := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "proxima-system", Name: "e", Labels: map[string]string{
			meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone, meshv1alpha1.LabelZone: "west", meshv1alpha1.LabelDisplayName: "backend",
			meshv1alpha1.LabelSourceNamespace: servicetag.Namespace("default"),
		}}}
		e.Status.Available = &mcs.AvailableService{Mesh: "default", ServiceTag: "backend"}
		r.seed(e)
		name := resource.Key{Name: servicetag.Namespace("default")}
		if get[*corev1.Namespace](r, kind.Namespace, name) == nil {
			t.Error("there is no namespace")
		}
		r.remove(kind.ServiceExport, resource.KeyOf(e))
		if n := get[*corev1.Namespace](r, kind.Namespace, name); n != nil && n.DeletionTimestamp.IsZero() {
			t.Error("the namespace stays without a tag")
		}
	})
}

// TestNamesOfOthers: a namespace or Service of a user is left alone.
func TestNamesOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := serviceKey("default", "backend")
		r := newRig(t, namespace(key.Namespace, ""), workload("shop", "a", "", "backend", 8080), workload("shop", "b", "blue", "backend", 8080),
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: servicetag.Namespace("blue"), Name: key.Name}})
		defer func() { r.stop() }()
		if got := r.ports("default", "backend"); got != "none" {
			t.Errorf("in a user's namespace: %s", got)
		}
		if s := get[*corev1.Service](r, kind.Service, serviceKey("blue", "backend")); len(s.Spec.Ports) > 0 {
			t.Errorf("a user's Service was changed: %+v", s.Spec)
		}
		r.remove(kind.Dataplane, resource.Key{Namespace: "shop", Name: "a"})
		if n := get[*corev1.Namespace](r, kind.Namespace, resource.Key{Name: key.Namespace}); n == nil {
			t.Error("a user's namespace was deleted")
		}
	})
}
