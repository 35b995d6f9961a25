package policy_test

import (
	"testing"

	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// TestPatchesStayInTheirNamespace: a ProxyPatch, and any other policy of workloads, is for workloads
// of its own namespace, however it selects; one of proxima-system is for those of a Mesh.
func TestPatchesStayInTheirNamespace(t *testing.T) {
	const both = shop + `
kind: Dataplane
metadata: {name: victim, namespace: other, labels: {app: pay}}
spec: {addresses: [10.0.0.2], serviceAccount: pay, ports: [{name: http, port: 8080}]}
---
`
	const patch = "patches: [{type: Listener, op: Remove}]}\n"
	for name, c := range map[string]struct {
		policy     string
		own, other int
	}{
		"the namespace":   {"kind: ProxyPatch\nmetadata: {name: p, namespace: shop}\nspec: {" + patch, 1, 0},
		"a selector":      {"kind: ProxyPatch\nmetadata: {name: p, namespace: shop}\nspec: {selector: {matchLabels: {app: pay}}, " + patch, 1, 0},
		"all by labels":   {"kind: ProxyPatch\nmetadata: {name: p, namespace: shop}\nspec: {selector: {}, " + patch, 1, 0},
		"another's by it": {"kind: ProxyPatch\nmetadata: {name: p, namespace: attacker}\nspec: {selector: {matchLabels: {app: pay}}, " + patch, 0, 0},
		"a mesh": {
			"kind: ProxyPatch\nmetadata: {name: p, namespace: proxima-system}\nspec: {targetRefs: [{group: mesh.proxima.dev, kind: Mesh, name: default}], " + patch, 1, 1,
		},
		"a mesh, from elsewhere": {
			"kind: ProxyPatch\nmetadata: {name: p, namespace: shop}\nspec: {targetRefs: [{group: mesh.proxima.dev, kind: Mesh, name: default}], " + patch, 0, 0,
		},
	} {
		x := index(t, both+c.policy)
		of := func(namespace, name string) int {
			return len(x.Patches(policy.Ref{Kind: "Dataplane", Key: resource.Key{Namespace: namespace, Name: name}}))
		}
		if own, other := of("shop", "pay-1"), of("other", "victim"); own != c.own || other != c.other {
			t.Errorf("%s: %d patches of the own workload and %d of another namespace's, want %d and %d", name, own, other, c.own, c.other)
		}
	}
}

// TestConsumerPolicyIsForItsOwnClients: a policy for the Service of another namespace changes what
// clients of its own namespace do, and nothing of others', the owner's among them, nor of the servers.
func TestConsumerPolicyIsForItsOwnClients(t *testing.T) {
	x := index(t, shop+`
kind: BackendPolicy
metadata: {name: mine, namespace: web}
spec:
  targetRefs: [{kind: Service, name: pay, namespace: shop}]
  timeout: {request: 1s}
  faults: [{percent: 100, abort: {httpStatus: 503}}]
  limits: {connections: 1}
`)
	if got := x.Backend("web", service("pay"), http); *got.Timeout.Request != "1s" || len(got.Faults) != 1 || *got.Limits.Connections != 1 {
		t.Errorf("clients of its own namespace: %+v", got)
	}
	for _, namespace := range []string{"shop", "other", "proxima-system"} {
		if got := x.Backend(namespace, service("pay"), http); *got.Timeout.Request != "0s" || len(got.Faults) != 0 || *got.Limits.Connections != 0 {
			t.Errorf("clients of namespace %s: %+v", namespace, got)
		}
	}
	w, _ := x.Workload(policy.Ref{Kind: "Dataplane", Key: resource.Key{Namespace: "shop", Name: "pay-1"}})
	if len(w.From)+len(w.Ports[8080].From) > 0 {
		t.Errorf("the server's own: %+v", w)
	}
}
