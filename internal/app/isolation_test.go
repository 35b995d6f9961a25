package app

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/gateway/outbound"
	"github.com/proxima-mesh/proxima/internal/identity/workload"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func workloadOf(name, meshName, address string) *meshv1alpha1.Dataplane {
	return &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "web"}},
		Spec: meshv1alpha1.DataplaneSpec{
			Mesh: meshName, NodeName: "n1", Addresses: []string{address}, Ports: []meshv1alpha1.DataplanePort{{Port: 80}},
		},
	}
}

// TestMeshesOnOneNode: a Service selects workloads of its own mesh, and follows its
// namespace into another; a second mesh at the address of a workload is refused, and known
// if it is there from before.
func TestMeshesOnOneNode(t *testing.T) {
	p := startMeshPlane(t)
	if err := p.mesh(builtin("ca-1", "ca-1")); err != nil {
		t.Fatal(err)
	}
	create := func(d *resource.Descriptor, object resource.Object) {
		t.Helper()
		made, err := p.client.Create(t.Context(), d, object)
		if err != nil {
			t.Fatal(err)
		}
		if dp, ok := made.(*meshv1alpha1.Dataplane); ok {
			dp.Status.Conditions = []metav1.Condition{{
				Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now(),
			}}
			if _, err := p.client.UpdateStatus(t.Context(), d, dp); err != nil {
				t.Fatal(err)
			}
		}
	}
	create(kind.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	create(kind.Mesh, &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	create(kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	})
	create(kind.Dataplane, workloadOf("one", "", "192.0.2.1"))
	create(kind.Dataplane, workloadOf("two", "other", "192.0.2.2"))
	endpoints := func() string {
		all, _, err := p.client.List(t.Context(), kind.EndpointSlice, resource.ListOptions{Namespace: "default"})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, o := range all {
			if s := o.(*discoveryv1.EndpointSlice); s.Labels[discoveryv1.LabelServiceName] == "web" {
				for _, e := range s.Endpoints {
					out = append(out, e.Addresses...)
				}
			}
		}
		return strings.Join(out, " ")
	}
	eventually(t, "the workload of the mesh, alone", func() bool { return endpoints() == "192.0.2.1" })

	refused := func(dp *meshv1alpha1.Dataplane) error {
		_, err := p.client.Create(t.Context(), kind.Dataplane, dp)
		return err
	}
	eventually(t, "the refusal of a second mesh at the address", func() bool {
		err := refused(workloadOf("three", "other", "192.0.2.1"))
		if err == nil {
			_ = p.client.Delete(t.Context(), kind.Dataplane, resource.Key{Namespace: "default", Name: "three"}, resource.Preconditions{Now: true})
		}
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "default/one of mesh default") && strings.Contains(err.Error(), "--address")
	})
	if err := refused(workloadOf("four", "", "192.0.2.1")); err != nil {
		t.Errorf("another workload of the mesh: %v", err)
	}
	create(kind.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", Labels: map[string]string{meshv1alpha1.LabelProxyMode: "nftables"}}})
	inCgroup := func(name, mesh string) *meshv1alpha1.Dataplane {
		dp := workloadOf(name, mesh, "192.0.2.8")
		dp.Spec.NodeName, dp.Annotations = "n2", map[string]string{meshv1alpha1.AnnotationCgroup: "/proxima-default." + name + "-1"}
		return dp
	}
	create(kind.Dataplane, inCgroup("five", "")) // told apart by their cgroups
	create(kind.Dataplane, inCgroup("six", "other"))
	eventually(t, "the refusal of one without a cgroup", func() bool {
		dp := inCgroup("seven", "other")
		dp.Annotations = nil
		return apierrors.IsForbidden(refused(dp))
	})
	if _, err := p.cp.api.client.Create(t.Context(), kind.Dataplane, workloadOf("before", "other", "192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "who shares an address with another mesh", func() bool {
		m := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: meshv1alpha1.DefaultMesh}}
		un := unenforced(p.cp.instance.catalog.Snapshot(), m)
		return un.Apart && len(un.Isolation) == 3 && strings.HasPrefix(un.Isolation[0], "default/four: its connections cannot be told from those of default/before of mesh other") &&
			strings.HasPrefix(un.Isolation[1], "default/one: ") && strings.HasPrefix(un.Isolation[2], "node n1: its agent does not say its mode")
	})

	ns := getOrNil[*corev1.Namespace](p, kind.Namespace, resource.Key{Name: "default"})
	ns.Labels = map[string]string{meshv1alpha1.LabelMesh: "other"}
	if _, err := p.client.Update(t.Context(), kind.Namespace, ns); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the workloads of the namespace's new mesh", func() bool { return strings.Contains(endpoints(), "192.0.2.2") })
}

// TestClientsOfOtherMeshes: on a node with workloads of two meshes, each has the identity
// of its own mesh alone, and not that of the node in the other.
func TestClientsOfOtherMeshes(t *testing.T) {
	n := &nodeIdentity{
		manager: workload.New(workload.Config{Dir: t.TempDir(), Node: "n1"}),
		dataplanes: map[resource.Key]*meshv1alpha1.Dataplane{
			{Namespace: "default", Name: "one"}:  workloadOf("one", "", "192.0.2.1"),
			{Namespace: "default", Name: "two"}:  workloadOf("two", "other", "192.0.2.2"),
			{Namespace: "default", Name: "both"}: workloadOf("both", "other", "192.0.2.3"),
			{Namespace: "default", Name: "and"}:  workloadOf("and", "", "192.0.2.3"),
		},
	}
	for _, tc := range []struct {
		address, mesh string
		refused       bool
	}{
		{"192.0.2.1", "default", false}, {"192.0.2.1", "other", true},
		{"192.0.2.2", "other", false}, {"192.0.2.2", "default", true},
		{"192.0.2.3", "default", true}, {"192.0.2.3", "other", true}, // nobody can tell
		{"192.0.2.4", "default", false}, // the node itself
	} {
		client := outbound.Connection{Client: netip.AddrPortFrom(netip.MustParseAddr(tc.address), 40000)}
		if err := n.Admits(client, tc.mesh); (err != nil) != tc.refused {
			t.Errorf("%s to mesh %s: %v", tc.address, tc.mesh, err)
		}
		_, err := n.Of(client, tc.mesh)
		if err == nil || strings.Contains(err.Error(), "are not for it") != tc.refused {
			t.Errorf("identity of %s for mesh %s: %v", tc.address, tc.mesh, err)
		}
	}
}
