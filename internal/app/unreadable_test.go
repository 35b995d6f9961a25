package app

import (
	"path"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// makeUnreadable makes objects of a store unreadable.
func makeUnreadable(t *testing.T, s store.Store, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if _, err := s.Commit(t.Context(), store.Txn{Ops: []store.Op{{Kind: store.Put, Key: key, Value: []byte("not an object")}}}); err != nil {
			t.Fatal(err)
		}
	}
}

func readableService(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

func readableWorkload(name, address string) *meshv1alpha1.Dataplane {
	return &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-1", Labels: map[string]string{"app": name}},
		Spec:       meshv1alpha1.DataplaneSpec{Addresses: []string{address}},
	}
}

// endpoints of a Service, as its slices say.
func (p *plane) endpoints(service string) (out []string) {
	p.t.Helper()
	all, _, err := p.client.List(p.t.Context(), kind.EndpointSlice, resource.ListOptions{Namespace: "default"})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, obj := range all {
		if obj.GetLabels()[discoveryv1.LabelServiceName] != service {
			continue
		}
		for _, e := range obj.(*discoveryv1.EndpointSlice).Endpoints {
			out = append(out, e.Addresses...)
		}
	}
	return out
}

// TestUnreadable: objects that cannot be read stop those that use their kind, who take nothing for
// deleted, and nobody else.
func TestUnreadable(t *testing.T) {
	s := memory.New(memory.Options{})
	defer s.Close()
	cfg := planeConfig(t, RoleStandalone)
	kinds := []*resource.Descriptor{
		kind.ZoneCosts, kind.TopologyHeuristic, kind.IPAddressPool, kind.RegistryConfig, kind.HTTPRoute, kind.Endpoints, kind.TrafficPlan,
	}
	for _, k := range kinds {
		object := "x"
		if k.Namespaced {
			object = "default/x"
		}
		makeUnreadable(t, s, path.Join("/registry", k.GVK.Group, k.Resource, object))
	}
	p := startPlane(t, cfg, s)
	if bad := p.cp.api.server.Unreadable(); len(bad) != len(kinds) {
		t.Fatalf("unreadable are %v", bad)
	}
	web := p.create(kind.Service, readableService("web")).(*corev1.Service)
	p.create(kind.Dataplane, readableWorkload("web", "10.1.0.1"))
	eventually(t, "the endpoints of a new Service", func() bool { return len(p.endpoints("web")) == 1 })
	p.stop()

	// Now the Service itself.
	makeUnreadable(t, s, "/registry/services/default/web")
	p = startPlane(t, cfg, s)
	if bad := p.cp.api.server.Unreadable(); len(bad) != len(kinds)+1 || !strings.Contains(bad["services"].Error(), "/registry/services/default/web") {
		t.Errorf("unreadable are %v", bad)
	}
	other := readableService("other")
	other.Spec.ClusterIP = web.Spec.ClusterIP
	if _, err := p.client.Create(t.Context(), kind.Service, other); !apierrors.IsInvalid(err) {
		t.Errorf("the address of the Service that cannot be read: %v", err)
	}
	if _, err := p.client.Get(t.Context(), kind.IPAddress, resource.Key{Name: web.Spec.ClusterIP}); err != nil {
		t.Error(err)
	}
	if got := p.endpoints("web"); len(got) != 1 {
		t.Errorf("its endpoints are %v", got)
	}
	if i := p.cp.instance; i.catalog.Listed() {
		t.Error("controllers run without all Services")
	}
}
