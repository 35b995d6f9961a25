package multicluster_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/multicluster"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is both controllers at work on a client, inside a bubble of fake time.
type rig struct {
	t      *testing.T
	client *resourcetest.Client
}

func newRig(t *testing.T, objects ...resource.Object) *rig { return newRigWith(t, nil, objects...) }

func newRigWith(t *testing.T, demand multicluster.Demand, objects ...resource.Object) *rig {
	r := &rig{t: t, client: resourcetest.New(kind.All()...)}
	r.client.Seed(objects...)
	tables := catalog.New(catalog.Config{Client: r.client, Descriptors: kind.All()})
	cfg := multicluster.Config{Client: r.client, Catalog: tables, Site: "here", Demand: demand}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 3)
	for _, run := range []func(context.Context) error{
		tables.Run, multicluster.NewExports(cfg).Run, multicluster.NewImports(cfg).Run,
	} {
		go func() { _ = run(ctx); done <- struct{}{} }()
	}
	t.Cleanup(func() { cancel(); <-done; <-done; <-done })
	r.settle()
	return r
}

func (r *rig) settle() { time.Sleep(time.Second); synctest.Wait() }

func get[T resource.Object](r *rig, d *resource.Descriptor, key resource.Key) (out T) {
	r.t.Helper()
	object, err := r.client.Get(r.t.Context(), d, key)
	if apierrors.IsNotFound(err) {
		return out
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return object.(T)
}

func (r *rig) derived() *corev1.Service {
	return get[*corev1.Service](r, kind.Service, resource.Key{Namespace: "shop", Name: multicluster.DerivedName(web)})
}

func (r *rig) imported() *mcs.ServiceImport {
	return get[*mcs.ServiceImport](r, kind.ServiceImport, web)
}

func (r *rig) delete(d *resource.Descriptor, key resource.Key) {
	r.t.Helper()
	if err := r.client.Delete(r.t.Context(), d, key, resource.Preconditions{}); err != nil {
		r.t.Fatal(err)
	}
	r.settle()
}

// TestExportIsImported: what is exported here or elsewhere has an import and a Service with
// its virtual IP, for as long as anybody exports it.
func TestExportIsImported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, namespace("default"), service(), slice("10.0.0.1"), export("", 1))
		own := get[*mcs.ServiceExport](r, kind.ServiceExport, web)
		if own.Status.Available == nil || own.Status.Available.Instances != 1 || own.Status.Available.Zone != "here" {
			t.Fatalf("export: %+v", own.Status)
		}
		derived := r.derived()
		if derived == nil || r.imported() == nil {
			t.Fatal("nothing is imported")
		}
		derived.Spec.ClusterIP, derived.Spec.ClusterIPs = "10.96.0.9", []string{"10.96.0.9", "fd00::9"}
		r.client.Seed(derived) // the API would have allocated them
		r.settle()
		if diff := cmp.Diff([]string{"10.96.0.9", "fd00::9"}, r.imported().Spec.IPs); diff != "" {
			t.Errorf("virtual IPs: %s", diff)
		}

		r.client.Seed(slice("10.0.0.1", "10.0.0.2"))
		r.client.Seed(export("west", 2))
		r.settle()
		if got := r.imported().Status.Clusters; len(got) != 2 {
			t.Errorf("zones: %v", got)
		}
		r.delete(kind.ServiceExport, web)
		if got := r.imported().Status.Clusters; len(got) != 1 || got[0].Cluster != "west" {
			t.Errorf("zones without this one: %v", got)
		}
		if got := r.derived().Spec.Selector; len(got) > 0 {
			t.Errorf("still selects %v", got)
		}
		r.delete(kind.ServiceExport, resource.Key{Namespace: "proxima-system", Name: "web-west"})
		if r.imported() != nil || r.derived() != nil {
			t.Error("imported without an export")
		}
	})
}

// TestExportDoesNotWaitForSlices: a workload counts once it is ready, and no more once it is
// not, whether or not the slices of its Service have been written: no controller writes them
// here.
func TestExportDoesNotWaitForSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		selecting := service()
		selecting.Spec.Selector = map[string]string{"app": "web"}
		r := newRig(t, namespace("default"), selecting, export("", 1))
		instances := func(want int32) {
			t.Helper()
			own := get[*mcs.ServiceExport](r, kind.ServiceExport, web)
			if own.Status.Available == nil || own.Status.Available.Instances != want {
				t.Fatalf("the export has %+v, want %d instances", own.Status.Available, want)
			}
		}
		instances(0)
		ready := &meshv1alpha1.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: web.Namespace, Name: "web-1", UID: "web-1", Labels: map[string]string{"app": "web"}},
			Spec:       meshv1alpha1.DataplaneSpec{Addresses: []string{"10.0.0.1"}, Ports: []meshv1alpha1.DataplanePort{{Port: 8080}}},
			Status:     meshv1alpha1.DataplaneStatus{Conditions: []metav1.Condition{{Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue}}},
		}
		r.client.Seed(ready)
		r.settle()
		instances(1)
		gone := ready.DeepCopy()
		gone.Status.Conditions[0].Status = metav1.ConditionFalse
		r.client.Seed(gone)
		r.settle()
		instances(0)
	})
}

// fakeDemand is 10 connections/s for the Service, and 5 for its import, once it is warm.
type fakeDemand struct {
	mu   sync.Mutex
	warm bool
}

func (d *fakeDemand) Wanted(s *corev1.Service) bool { return s.Annotations["wanted"] != "" }

func (d *fakeDemand) Rate(name proxy.PortName) float64 {
	switch {
	case name.Port != "http":
	case name.Name == "web":
		return 10
	case name.Name == multicluster.DerivedName(web):
		return 5
	}
	return 0
}

func (d *fakeDemand) Warm() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.warm
}

// TestDemandOfAnExport is looked at every 10 s.
func TestDemandOfAnExport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDemand{}
		wanted := service(func(s *corev1.Service) { s.Annotations = map[string]string{"wanted": "yes"} })
		r := newRigWith(t, d, namespace("default"), wanted, slice("10.0.0.1"), export("", 1))
		demand := func() []mcs.PortDemand {
			return get[*mcs.ServiceExport](r, kind.ServiceExport, web).Status.Available.Demand
		}
		if got := demand(); got != nil {
			t.Errorf("before it is known: %v", got)
		}
		d.mu.Lock()
		d.warm = true
		d.mu.Unlock()
		time.Sleep(10 * time.Second)
		r.settle()
		if diff := cmp.Diff([]mcs.PortDemand{{Port: 80, ConnectionsPerSecond: 15}}, demand()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestOrphansGo: what nobody exports any more goes when a leader begins.
func TestOrphansGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orphan := service(func(s *corev1.Service) {
			s.Name = multicluster.DerivedName(web)
			s.Labels = map[string]string{multicluster.LabelManagedBy: "multicluster", mcs.LabelServiceName: "web"}
		})
		r := newRig(t, namespace("default"), orphan)
		if r.derived() != nil {
			t.Error("the derived service stayed")
		}
	})
}

// TestTypeChanges: a Service cannot lose its virtual IP, so it is made anew.
func TestTypeChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, namespace("default"), export("west", 2))
		was := r.derived()
		if was == nil {
			t.Fatal("nothing is imported")
		}
		r.client.Seed(export("west", 2, func(e *mcs.ServiceExport) { e.Status.Available.Type = mcs.Headless }))
		r.settle()
		is := r.derived()
		if is == nil || is.UID == was.UID || is.Spec.ClusterIP != corev1.ClusterIPNone || r.imported().Spec.Type != mcs.Headless {
			t.Errorf("got %+v", is)
		}
	})
}

// TestNamespaceAppears: an import waits for its namespace, as sameness of namespaces is what
// the API is based on.
func TestNamespaceAppears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, export("west", 2))
		if r.imported() != nil {
			t.Fatal("imported without the namespace")
		}
		r.client.Seed(namespace("default"))
		r.settle()
		if r.imported() == nil {
			t.Error("not imported when the namespace was there")
		}
	})
}

// TestEndpointsOfOthers: slices of a Service without a selector serve its import, too.
func TestEndpointsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, namespace("default"), service(func(s *corev1.Service) { s.Spec.Selector = nil }), slice("10.0.0.1"), export("", 1))
		addresses := func() (out []string) {
			for _, s := range r.slices(multicluster.DerivedName(web)) {
				for _, e := range s.Endpoints {
					out = append(out, e.Addresses...)
				}
			}
			return out
		}
		if diff := cmp.Diff([]string{"10.0.0.1"}, addresses()); diff != "" {
			t.Error(diff)
		}
		changed := slice("10.0.0.1", "10.0.0.2")
		changed.Name = "web-10.0.0.1"
		r.client.Seed(changed)
		r.settle()
		if diff := cmp.Diff([]string{"10.0.0.1", "10.0.0.2"}, addresses()); diff != "" {
			t.Error(diff)
		}
	})
}

func (r *rig) slices(service string) (out []*discoveryv1.EndpointSlice) {
	r.t.Helper()
	all, _, err := r.client.List(r.t.Context(), kind.EndpointSlice, resource.ListOptions{Namespace: "shop"})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, object := range all {
		if s := object.(*discoveryv1.EndpointSlice); s.Labels[discoveryv1.LabelServiceName] == service {
			out = append(out, s)
		}
	}
	return out
}

// TestProxyIsNoticed: an export says so once the workload's proxy has come, with nothing else that
// changes.
func TestProxyIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		selecting := service()
		selecting.Spec.Selector = map[string]string{"app": "web"}
		d := &meshv1alpha1.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: web.Namespace, Name: "web-1", UID: "web-1", Labels: map[string]string{"app": "web"}},
			Spec:       meshv1alpha1.DataplaneSpec{Addresses: []string{"10.0.0.1"}, Ports: []meshv1alpha1.DataplanePort{{Port: 8080}}, ServiceAccount: "web"},
			Status:     meshv1alpha1.DataplaneStatus{Conditions: []metav1.Condition{{Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue}}},
		}
		r := newRig(t, namespace("default"), selecting, export("", 1), d)
		check := func(want bool) {
			t.Helper()
			if a := get[*mcs.ServiceExport](r, kind.ServiceExport, web).Status.Available; a == nil || a.Proxied != want || (len(a.ServiceAccounts) == 1) != want {
				t.Errorf("the export has %+v, want proxied %v", a, want)
			}
		}
		check(false)
		proxied := d.DeepCopy()
		proxied.Status.Conditions = append(proxied.Status.Conditions, metav1.Condition{Type: meshv1alpha1.DataplaneProxyConnected, Status: metav1.ConditionTrue})
		r.client.Seed(proxied)
		r.settle()
		check(true)
	})
}
