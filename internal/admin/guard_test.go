package admin

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// TestExplainGuards: of endpoints without a sidecar it is said which permissions decide at their nodes, and
// which have no effect there; those with a sidecar are left out.
func TestExplainGuards(t *testing.T) {
	dataplane := func(name, node, address string, proxied bool) *meshv1alpha1.Dataplane {
		d := &meshv1alpha1.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec:       meshv1alpha1.DataplaneSpec{NodeName: node, Addresses: []string{address}, Ports: []meshv1alpha1.DataplanePort{{Port: 80}}},
		}
		if proxied {
			d.Status.Conditions = []metav1.Condition{{Type: meshv1alpha1.DataplaneProxyConnected, Status: metav1.ConditionTrue, Reason: "Connected"}}
		}
		return d
	}
	endpoint := func(name, node, address string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node, TargetRef: &corev1.ObjectReference{Kind: "Dataplane", Namespace: "shop", Name: name}}
	}
	node := func(name, mode string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{meshv1alpha1.LabelProxyMode: mode}}}
	}
	permission := func(name string, from meshv1alpha1.PolicySource) *meshv1alpha1.TrafficPermission {
		return &meshv1alpha1.TrafficPermission{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec:       meshv1alpha1.TrafficPermissionSpec{Deny: []meshv1alpha1.PermissionRule{{From: []meshv1alpha1.PolicySource{from}}}},
		}
	}
	client := resourcetest.New(kind.All()...)
	client.Seed(
		node("n1", "nftables"), node("n2", "userspace"),
		dataplane("a", "n1", "10.0.0.1", false), dataplane("b", "n2", "10.0.0.2", false), dataplane("c", "n1", "10.0.0.3", true),
		permission("front", meshv1alpha1.PolicySource{Namespaces: []string{"front"}}), permission("web", meshv1alpha1.PolicySource{ServiceAccounts: []string{"front/web"}}),
		&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "api-1", Labels: map[string]string{discoveryv1.LabelServiceName: "api"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(80))}},
			Endpoints: []discoveryv1.Endpoint{endpoint("c", "n1", "10.0.0.3"), endpoint("b", "n2", "10.0.0.2"), endpoint("a", "n1", "10.0.0.1"), {Addresses: []string{"10.0.0.4"}}},
		},
	)
	c := catalog.New(catalog.Config{Client: client, Descriptors: kind.All()})
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(t.Context()) }()
	t.Cleanup(func() { <-done })
	sub := c.Subscribe() // the explanation uses many kinds
	t.Cleanup(sub.Close)
	d, err := sub.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var e diag.Service
	explainGuards(&e, d.After, resource.Key{Namespace: "shop", Name: "api"}, func(mode string) bool { return slices.Contains([]string{"nftables", "iptables"}, mode) })
	account := "TrafficPermission shop/web: nodes do not know spec.deny[0].from[0].serviceAccounts of a client"
	want := []diag.Guard{
		{Endpoint: "10.0.0.1:80", Workload: "shop/a", Node: "n1", Policies: []string{"TrafficPermission shop/front"}, Ignored: []string{account}},
		{Endpoint: "10.0.0.2:80", Workload: "shop/b", Node: "n2", Ignored: []string{
			"TrafficPermission shop/front: its node n2 (mode userspace) does not enforce permissions by address", account,
		}},
	}
	if diff := cmp.Diff(want, e.Guards); diff != "" {
		t.Error(diff)
	}
}
