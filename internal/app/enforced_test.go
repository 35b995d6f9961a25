package app

import (
	"slices"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	trafficpolicy "github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// TestNotOnNodes: a policy names what clients without a proxy do not apply, and on which nodes.
func TestNotOnNodes(t *testing.T) {
	everywhere := map[string][]string{"nftables": {"n1"}, "iptables": {"n2", "n3"}, "userspace": {"n4"}}
	web := []trafficpolicy.Ref{{Kind: "Service", Key: resource.Key{Namespace: "shop", Name: "web"}}}
	seconds := new(meshv1alpha1.Duration("1s"))
	source := []meshv1alpha1.BalancerHash{{Type: meshv1alpha1.HashSourceIP}}
	policy := func(spec meshv1alpha1.BackendPolicySpec) *meshv1alpha1.BackendPolicy {
		return &meshv1alpha1.BackendPolicy{Spec: spec}
	}
	route := func(kind string) *gatewayv1.TCPRoute {
		r := &gatewayv1.TCPRoute{}
		r.Spec.Rules = []gatewayv1.TCPRouteRule{{BackendRefs: []gatewayv1.BackendRef{{BackendObjectReference: gatewayv1.BackendObjectReference{Kind: (*gatewayv1.Kind)(&kind), Name: "b"}}}}}
		return r
	}
	for name, tc := range map[string]struct {
		nodes     map[string][]string
		namespace string
		object    resource.Object
		want      []string
	}{
		"no node is known":   {nil, "shop", route("Service"), []string{"clients without a proxy do not apply it"}},
		"a route":            {everywhere, "shop", route("Service"), nil},
		"a route of clients": {everywhere, "other", route("Service"), []string{"clients without a proxy do not apply it to parents of other namespaces on nodes in mode iptables, nftables: n1, n2, n3, nor elsewhere if other namespaces share their address"}},
		"a route of clients in mode userspace": {map[string][]string{"userspace": {"n4"}}, "other", route("Service"), []string{
			"clients without a proxy do not apply it to parents of other namespaces if other namespaces share their address",
		}},
		"a route of clients in mode nftables": {map[string][]string{"nftables": {"n1"}}, "other", route("Service"), []string{"clients without a proxy do not apply it to parents of other namespaces"}},
		"a route that leaves the site": {everywhere, "shop", route("ServiceImport"), []string{
			"clients without a proxy do not apply it: ServiceImport b is reached by gateways, which takes a proxy",
		}},
		"a route of HTTP": {everywhere, "shop", &gatewayv1.HTTPRoute{}, []string{"clients without a proxy do not apply it"}},
		"locality":        {everywhere, "shop", policy(meshv1alpha1.BackendPolicySpec{Locality: &meshv1alpha1.BackendLocality{Mode: meshv1alpha1.LocalityStrict}}), nil},
		"locality of clients": {everywhere, "other", policy(meshv1alpha1.BackendPolicySpec{Locality: &meshv1alpha1.BackendLocality{Mode: meshv1alpha1.LocalityStrict}}), []string{
			"clients without a proxy do not apply it to backends of other namespaces on nodes in mode iptables, nftables: n1, n2, n3, nor elsewhere if other namespaces share their address",
		}},
		"of a Mesh": {everywhere, "proxima-system", policy(meshv1alpha1.BackendPolicySpec{
			PolicyTarget: meshv1alpha1.PolicyTarget{TargetRefs: []meshv1alpha1.PolicyTargetReference{{Kind: "Mesh", Name: "default"}}},
			Locality:     &meshv1alpha1.BackendLocality{Mode: meshv1alpha1.LocalityOff},
		}), nil},
		"a hash and more": {everywhere, "shop", policy(meshv1alpha1.BackendPolicySpec{
			Balancer: &meshv1alpha1.BackendBalancer{Hash: source}, Timeout: &meshv1alpha1.PolicyTimeout{Connect: seconds, Idle: seconds},
			Locality: &meshv1alpha1.BackendLocality{Threshold: new(int32(50))},
		}), []string{
			"clients without a proxy do not apply spec.locality.threshold, spec.timeout.idle",
			"clients without a proxy do not apply spec.balancer.hash on nodes in mode iptables: n2, n3",
			"clients without a proxy do not apply spec.timeout.connect on nodes in mode iptables, nftables: n1, n2, n3",
		}},
		"a hash on nftables alone": {map[string][]string{"nftables": {"n1"}}, "shop", policy(meshv1alpha1.BackendPolicySpec{Balancer: &meshv1alpha1.BackendBalancer{Type: meshv1alpha1.BalanceMaglev, Hash: source}}), nil},
		"a hash of a header": {everywhere, "shop", policy(meshv1alpha1.BackendPolicySpec{Balancer: &meshv1alpha1.BackendBalancer{Hash: []meshv1alpha1.BalancerHash{{Type: meshv1alpha1.HashHeader}}}}), []string{
			"clients without a proxy do not apply spec.balancer.hash",
		}},
		"a mode of another version": {map[string][]string{"wonderful": {"n1"}}, "shop", policy(meshv1alpha1.BackendPolicySpec{Retry: &meshv1alpha1.BackendRetry{TCPAttempts: new(int32(2))}}), []string{
			"clients without a proxy do not apply spec.retry.tcpAttempts",
		}},
	} {
		of := trafficpolicy.Source{Key: resource.Key{Namespace: tc.namespace, Name: "p"}}
		if got := notOnNodes(tc.nodes, tc.object, of, web); !slices.Equal(got, tc.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, tc.want)
		}
	}
}

// TestWorkloadsWithout: a permission by address is enforced by nodes in a kernel mode; what else it names is said.
func TestWorkloadsWithout(t *testing.T) {
	at := func(name string) trafficpolicy.Ref {
		return trafficpolicy.Ref{Kind: "Dataplane", Key: resource.Key{Namespace: "shop", Name: name}}
	}
	permission := func(s meshv1alpha1.PolicySource) *meshv1alpha1.TrafficPermission {
		return &meshv1alpha1.TrafficPermission{Spec: meshv1alpha1.TrafficPermissionSpec{Allow: []meshv1alpha1.PermissionRule{{From: []meshv1alpha1.PolicySource{s}}}}}
	}
	for name, tc := range map[string]struct {
		object  resource.Object
		without []trafficpolicy.Ref
		want    []string
	}{
		"all have proxies": {permission(meshv1alpha1.PolicySource{ServiceAccounts: []string{"shop/x"}}), nil, nil},
		"by account": {permission(meshv1alpha1.PolicySource{ServiceAccounts: []string{"shop/x"}}), []trafficpolicy.Ref{at("web")}, []string{
			"1 of 3 workloads have no proxy, and their nodes know clients by namespace, labels and addresses alone, not by spec.allow[0].from[0].serviceAccounts: shop/web",
		}},
		"by namespace, on a node that is not known": {permission(meshv1alpha1.PolicySource{Namespaces: []string{"front"}}), []trafficpolicy.Ref{at("web")}, []string{
			"1 of 3 workloads have no proxy, nor an agent in a kernel mode on their node: shop/web",
		}},
		"a WorkloadPolicy": {&meshv1alpha1.WorkloadPolicy{}, []trafficpolicy.Ref{at("web"), at("api")}, []string{
			"2 of 3 workloads have no proxy, and do not enforce it: shop/api, shop/web",
		}},
	} {
		if got := workloadsWithout(&catalog.Snapshot{}, tc.object, tc.without, 3); !slices.Equal(got, tc.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, tc.want)
		}
	}
}
