package app

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/controller/multicluster"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestServicesAreExportedAndImported: along the real write path, an import has the virtual IP
// of its derived Service, which selects the workloads of the local one.
func TestServicesAreExportedAndImported(t *testing.T) {
	p := startMeshPlane(t)
	web := resource.Key{Namespace: "default", Name: "web"}
	create := func(d *resource.Descriptor, object resource.Object) resource.Object {
		t.Helper()
		made, err := p.client.Create(t.Context(), d, object)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	create(kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	})
	workload := create(kind.Dataplane, &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{"app": "web"}},
		Spec:       meshv1alpha1.DataplaneSpec{Addresses: []string{"192.0.2.7"}, Ports: []meshv1alpha1.DataplanePort{{Port: 80}}},
	}).(*meshv1alpha1.Dataplane)
	workload.Status.Conditions = []metav1.Condition{{
		Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now(),
	}}
	if _, err := p.client.UpdateStatus(t.Context(), kind.Dataplane, workload); err != nil {
		t.Fatal(err)
	}
	create(kind.ServiceExport, &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}})

	var imported *mcs.ServiceImport
	eventually(t, "an import", func() bool {
		imported = getOrNil[*mcs.ServiceImport](p, kind.ServiceImport, web)
		return imported != nil && len(imported.Spec.IPs) == 1 && len(imported.Status.Clusters) == 1
	})
	derived := getOrNil[*corev1.Service](p, kind.Service, resource.Key{Namespace: "default", Name: multicluster.DerivedName(web)})
	if derived == nil || derived.Spec.ClusterIP != imported.Spec.IPs[0] {
		t.Fatalf("derived service %+v of import %+v", derived, imported)
	}
	eventually(t, "endpoints of the derived service", func() bool {
		all, _, err := p.client.List(t.Context(), kind.EndpointSlice, resource.ListOptions{Namespace: "default"})
		return err == nil && slices.ContainsFunc(all, func(o resource.Object) bool {
			s := o.(*discoveryv1.EndpointSlice)
			return s.Labels[discoveryv1.LabelServiceName] == derived.Name && len(s.Endpoints) == 1 && s.Endpoints[0].Addresses[0] == "192.0.2.7"
		})
	})
	eventually(t, "the number of instances", func() bool {
		e := getOrNil[*mcs.ServiceExport](p, kind.ServiceExport, web)
		return e != nil && e.Status.Available != nil && e.Status.Available.Instances == 1
	})

	// An import is the control plane's own.
	imported.Spec.IPs = nil
	if _, err := p.client.Update(t.Context(), kind.ServiceImport, imported); !apierrors.IsForbidden(err) {
		t.Errorf("update of an import: %v", err)
	}
	if err := p.client.Delete(t.Context(), kind.ServiceExport, web, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the import", func() bool {
		return getOrNil[*mcs.ServiceImport](p, kind.ServiceImport, web) == nil &&
			getOrNil[*corev1.Service](p, kind.Service, resource.KeyOf(derived)) == nil
	})
}

// TestMeshExportsAll: a mesh with export All exports every Service but those of the control
// plane.
func TestMeshExportsAll(t *testing.T) {
	p := startMeshPlane(t)
	if _, err := p.client.Create(t.Context(), kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}); err != nil {
		t.Fatal(err)
	}
	setExport := func(export string) {
		t.Helper()
		mesh := getOrNil[*meshv1alpha1.Mesh](p, kind.Mesh, resource.Key{Name: meshv1alpha1.DefaultMesh})
		if mesh == nil {
			t.Fatal("there is no default mesh")
		}
		mesh.Spec.Routing = &meshv1alpha1.MeshRouting{Export: export}
		if _, err := p.client.Update(t.Context(), kind.Mesh, mesh); err != nil {
			t.Fatal(err)
		}
	}
	exports := func() (names []string) {
		all, _, err := p.client.List(t.Context(), kind.ServiceExport, resource.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			names = append(names, o.GetName())
		}
		return names
	}
	setExport(meshv1alpha1.ExportAll)
	eventually(t, "the export", func() bool { return slices.Equal(exports(), []string{"web"}) })
	setExport(meshv1alpha1.ExportExported)
	eventually(t, "the end of the export", func() bool { return len(exports()) == 0 })
}

func getOrNil[T resource.Object](p *meshPlane, d *resource.Descriptor, key resource.Key) (out T) {
	p.t.Helper()
	object, err := p.client.Get(p.t.Context(), d, key)
	if apierrors.IsNotFound(err) {
		return out
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return object.(T)
}

// eventually waits for a state that others bring about.
func eventually(t *testing.T, what string, there func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testkit.Timeout); !there(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not appear", what)
		}
	}
}
