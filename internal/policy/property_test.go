package policy_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

var namespaces = []string{"a", "b", "proxima-system"}

// answers to every question about a small world.
func answers(x *policy.Index) map[string]any {
	out := map[string]any{}
	for _, client := range namespaces {
		for _, ns := range namespaces {
			for _, name := range []string{"x", "y"} {
				ref := policy.Ref{Kind: "Service", Key: resource.Key{Namespace: ns, Name: name}}
				id := client + ">" + ns + "/" + name
				out["backend "+id] = x.Backend(client, ref, http)
				out["routes "+id] = x.Routes(client, ref, http)
				out["tcp "+id] = x.TCPBackends(client, ref, http)
			}
		}
	}
	for _, ns := range namespaces {
		for _, name := range []string{"x", "y"} {
			ref := policy.Ref{Kind: "Dataplane", Key: resource.Key{Namespace: ns, Name: name}}
			w, _ := x.Workload(ref)
			p, _ := x.Permission(ref, 80)
			out["workload "+ns+"/"+name] = []any{w, p, x.Patches(ref)}
		}
	}
	for _, k := range []string{"BackendPolicy", "WorkloadPolicy", "TrafficPermission", "ProxyPatch"} {
		for _, key := range x.Policies(k) {
			r, _ := x.Report(policy.Source{Kind: k, Key: key})
			out["report "+k+" "+key.String()] = r
		}
	}
	return out
}

func target(t *rapid.T, kinds ...string) mesh.PolicyTarget {
	var out mesh.PolicyTarget
	switch rapid.IntRange(0, 2).Draw(t, "target") {
	case 0:
		out.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "label")}}
	case 1:
		for range rapid.IntRange(1, 2).Draw(t, "targets") {
			r := mesh.PolicyTargetReference{Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), Name: rapid.SampledFrom([]string{"x", "y",
				"default"}).Draw(t, "name")}
			if r.Kind == "Service" {
				r.Namespace = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "namespace")
				r.SectionName = rapid.SampledFrom([]string{"", "http", "80"}).Draw(t, "section")
			}
			out.TargetRefs = append(out.TargetRefs, r)
		}
	}
	return out
}

func draw(t *rapid.T) resource.Object {
	meta := metav1.ObjectMeta{
		Name: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "name"), Namespace: rapid.SampledFrom(namespaces).Draw(t, "namespace"),
		Labels:            map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "app")},
		CreationTimestamp: metav1.NewTime(time.Unix(int64(rapid.IntRange(0, 2).Draw(t, "created")), 0)),
	}
	seconds := func() *mesh.Duration {
		return new(mesh.Duration(fmt.Sprintf("%ds", rapid.IntRange(1, 9).Draw(t, "seconds"))))
	}
	switch rapid.IntRange(0, 8).Draw(t, "what") {
	case 0:
		p := &mesh.BackendPolicy{ObjectMeta: meta, Spec: mesh.BackendPolicySpec{PolicyTarget: target(t, "Service", "Mesh", "HTTPRoute")}}
		if rapid.Bool().Draw(t, "timeout") {
			p.Spec.Timeout = &mesh.PolicyTimeout{Connect: seconds()}
		}
		if rapid.Bool().Draw(t, "retry") {
			p.Spec.Retry = &mesh.BackendRetry{Codes: []int32{int32(rapid.IntRange(500, 504).Draw(t, "code"))}}
		}
		return p
	case 1:
		p := &mesh.WorkloadPolicy{ObjectMeta: meta, Spec: mesh.WorkloadPolicySpec{PolicyTarget: target(t, "Dataplane", "Mesh")}}
		p.Spec.Timeout = &mesh.PolicyTimeout{Request: seconds()}
		if rapid.Bool().Draw(t, "ports") {
			p.Spec.Ports = []string{"http"}
		}
		return p
	case 2:
		p := &mesh.TrafficPermission{ObjectMeta: meta, Spec: mesh.TrafficPermissionSpec{PolicyTarget: target(t, "Dataplane", "Mesh")}}
		p.Spec.Allow = []mesh.PermissionRule{{From: []mesh.PolicySource{{Labels: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}}}}
		p.Spec.Shadow = rapid.Bool().Draw(t, "shadow")
		return p
	case 3:
		return &mesh.ProxyPatch{ObjectMeta: meta, Spec: mesh.ProxyPatchSpec{PolicyTarget: target(t, "Dataplane", "Mesh"),
			Patches: []mesh.ProxyPatchItem{{Op: "Remove"}}}}
	case 4:
		return &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	case 5:
		return &mesh.Dataplane{ObjectMeta: meta, Spec: mesh.DataplaneSpec{
			Addresses: []string{"10.0.0.1"}, ServiceAccount: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "account"),
			Ports: []mesh.DataplanePort{{Name: "http", Port: 80}},
		}}
	case 6:
		return &gateway.ReferenceGrant{ObjectMeta: meta, Spec: gateway.ReferenceGrantSpec{
			From: []gateway.ReferenceGrantFrom{{Group: gateway.GroupName, Kind: "HTTPRoute", Namespace: "a"}},
			To:   []gateway.ReferenceGrantTo{{Kind: "Service"}},
		}}
	}
	parent := gateway.ParentReference{Group: new(gateway.Group("")), Kind: new(gateway.Kind("Service")), Name: "x"}
	backend := gateway.BackendRef{BackendObjectReference: gateway.BackendObjectReference{Name: "y", Port: new(int32(80))}}
	if rapid.Bool().Draw(t, "elsewhere") {
		parent.Namespace, backend.Namespace = new(gateway.Namespace("b")), new(gateway.Namespace("b"))
	}
	if rapid.Bool().Draw(t, "tcp") {
		return &gateway.TCPRoute{ObjectMeta: meta, Spec: gateway.TCPRouteSpec{
			CommonRouteSpec: gateway.CommonRouteSpec{ParentRefs: []gateway.ParentReference{parent}},
			Rules:           []gateway.TCPRouteRule{{BackendRefs: []gateway.BackendRef{backend}}},
		}}
	}
	return &gateway.HTTPRoute{ObjectMeta: meta, Spec: gateway.HTTPRouteSpec{
		CommonRouteSpec: gateway.CommonRouteSpec{ParentRefs: []gateway.ParentReference{parent}},
		Rules:           []gateway.HTTPRouteRule{{BackendRefs: []gateway.HTTPBackendRef{{BackendRef: backend}}}},
	}}
}

func refOf(obj resource.Object) policy.Ref {
	kind := fmt.Sprintf("%T", obj)
	for i := len(kind) - 1; i >= 0; i-- {
		if kind[i] == '.' {
			kind = kind[i+1:]
			break
		}
	}
	return policy.Ref{Kind: kind, Key: resource.KeyOf(obj)}
}

// TestIncremental: after any sequence of changes the index answers as one that was told of what is
// left, in another order; and a change affects those whose answers it changes.
func TestIncremental(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, left := policy.NewIndex(), map[policy.Ref]resource.Object{}
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			before := answers(x)
			obj := draw(t)
			ref := refOf(obj)
			var hit policy.Affected
			if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
				delete(left, ref)
				hit = x.Delete(ref)
			} else {
				left[ref] = obj
				hit = x.Set(obj)
			}
			checkAffected(t, before, answers(x), hit)
		}
		fresh := policy.NewIndex()
		refs := slices.SortedFunc(maps.Keys(left), func(a, b policy.Ref) int {
			return -cmpText(a.Kind+a.Key.String(), b.Kind+b.Key.String())
		})
		for _, ref := range refs {
			fresh.Set(left[ref])
		}
		if diff := cmp.Diff(answers(fresh), answers(x), cmp.AllowUnexported(policy.Route{})); diff != "" {
			t.Fatalf("(-from nothing +incremental):\n%s", diff)
		}
	})
}

func cmpText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// checkAffected: an answer about a backend or workload that changed is announced.
func checkAffected(t *rapid.T, before, after map[string]any, hit policy.Affected) {
	if hit.All {
		return
	}
	for id, was := range before {
		var what, object string
		if _, err := fmt.Sscanf(id, "%s %s", &what, &object); err != nil || what == "report" {
			continue
		}
		if i := slices.Index([]byte(object), '>'); i >= 0 {
			object = object[i+1:]
		}
		if cmp.Equal(was, after[id], cmp.AllowUnexported(policy.Route{})) {
			continue
		}
		told := slices.ContainsFunc(hit.Objects, func(r policy.Ref) bool { return r.Key.String() == object }) ||
			slices.ContainsFunc(hit.Namespaces, func(n string) bool { return len(object) > len(n) && object[:len(n)+1] == n+"/" })
		if !told {
			t.Fatalf("%s changed, and only %+v is said to be affected", id, hit)
		}
	}
}
