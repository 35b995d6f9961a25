package policy_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/memory"
)

const taggedPod = `
metadata: {name: web-1, namespace: shop, labels: {app: web, k8s.kuma.io/service-account: root}}
spec: {serviceAccountName: seller, containers: [{name: main, ports: [{name: http, containerPort: 8080}, {containerPort: 9090}]}]}
status: {podIPs: [{ip: 10.0.0.7}]}
`

const taggedService = `
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http, appProtocol: http}]}
`

func parsed[T any](t *testing.T, text string) *T {
	t.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatal(err)
	}
	return out
}

// tagRig is an index that follows a catalog.
type tagRig struct {
	*testing.T
	client *memory.Client
	sub    *catalog.Subscription
	index  *policy.Index
}

func newTagRig(t *testing.T) *tagRig {
	t.Helper()
	r := &tagRig{T: t, client: memory.New(kind.Pod, kind.Service, kind.Namespace, kind.WorkloadPolicy), index: policy.NewIndex()}
	r.index.Zone = "east"
	tables := catalog.New(catalog.Config{Client: r.client, Descriptors: []*resource.Descriptor{kind.Pod, kind.Service, kind.Namespace, kind.WorkloadPolicy}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tables.Run(ctx)
	}()
	r.sub = tables.Subscribe(policy.Tables()...)
	t.Cleanup(func() {
		r.sub.Close()
		cancel()
		<-done
	})
	return r
}

// timeout of requests to a port of the Pod, once what was put is known.
func (r *tagRig) timeout(port int32, put ...resource.Object) string {
	r.Helper()
	if err := r.client.Put(put...); err != nil {
		r.Fatal(err)
	}
	for got := 0; got < len(put); {
		d, err := r.sub.Next(r.Context())
		if err != nil {
			r.Fatal(err)
		}
		r.index.Apply(&d)
		got += len(d.Pods) + len(d.Services) + len(d.Namespaces) + len(d.WorkloadPolicies)
	}
	w, ok := r.index.Workload(policy.Ref{Kind: "Pod", Key: resource.Key{Namespace: "shop", Name: "web-1"}})
	if !ok {
		r.Fatal("the Pod is no workload")
	}
	return string(*w.Ports[port].Timeout.Request)
}

func timeoutFor(t *testing.T, labels string) *mesh.WorkloadPolicy {
	t.Helper()
	return parsed[mesh.WorkloadPolicy](t, `{metadata: {name: p, namespace: shop}, spec: {selector: {matchLabels: {`+labels+`}}, timeout: {request: 7s}}}`)
}

// TestSelectorsOfPods: policies select Pods by the tags of Kuma's Dataplanes of Pods, also after their Service has changed.
func TestSelectorsOfPods(t *testing.T) {
	for _, c := range []struct {
		name, labels string
		http, other  string // timeouts of port 8080, which the Service has, and of 9090
	}{
		{"a label of the Pod", "app: web", "7s", "7s"},
		{"the namespace", "k8s.kuma.io/namespace: shop", "7s", "7s"},
		{"the service account, not what a label says", "k8s.kuma.io/service-account: seller", "7s", "7s"},
		{"a service account that only a label says", "k8s.kuma.io/service-account: root", "0s", "0s"},
		{"the zone", "kuma.io/zone: east", "7s", "7s"},
		{"another zone", "kuma.io/zone: west", "0s", "0s"},
		{"a service tag", "kuma.io/service: web_shop_svc_80", "7s", "0s"},
		{"our own name of it", "mesh.proxima.dev/service: web_shop_svc_80", "7s", "0s"},
		{"a tag with a label", "app: web, k8s.kuma.io/service-name: web, k8s.kuma.io/service-port: '80', kuma.io/protocol: http", "7s", "0s"},
		{"the tag of another port", "kuma.io/service: web_shop_svc_81", "0s", "0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newTagRig(t)
			got := r.timeout(8080, parsed[corev1.Pod](t, taggedPod), parsed[corev1.Service](t, taggedService), timeoutFor(t, c.labels))
			if other := r.timeout(9090); got != c.http || other != c.other {
				t.Errorf("timeouts %s and %s, want %s and %s", got, other, c.http, c.other)
			}
		})
	}
	r := newTagRig(t)
	service := parsed[corev1.Service](t, taggedService)
	if got := r.timeout(9090, parsed[corev1.Pod](t, taggedPod), timeoutFor(t, "kuma.io/service: web-1_shop_svc")); got != "7s" {
		t.Errorf("a Pod without a Service: %s", got)
	}
	if got := r.timeout(8080, service); got != "0s" {
		t.Errorf("a Service selects it now: %s", got)
	}
	if got := r.timeout(8080, timeoutFor(t, "kuma.io/service: web_shop_svc_81")); got != "0s" {
		t.Errorf("the Service has another port: %s", got)
	}
	service = service.DeepCopy()
	service.Spec.Ports[0].Port = 81
	if got := r.timeout(8080, service); got != "7s" {
		t.Errorf("the Service has the port now: %s", got)
	}
}

// TestCallersByTags: callers are described by the tags of their ports, too.
func TestCallersByTags(t *testing.T) {
	x := index(t, shop+"kind: TrafficPermission\nmetadata: {name: p, namespace: shop}\nspec: {selector: {}, allow: [{}]}")
	from := []mesh.PolicySource{{Labels: parsed[mesh.PolicySource](t, `{labels: {matchLabels: {version: v2}}}`).Labels}}
	source := policy.Source{Kind: "TrafficPermission", Key: resource.Key{Namespace: "shop", Name: "p"}}
	ref := policy.Ref{Kind: "Dataplane", Key: resource.Key{Namespace: "shop", Name: "pay-1"}}
	if got := x.Callers(ref, source, from); len(got) != 1 {
		t.Errorf("callers %+v", got)
	}
	from[0].Labels.MatchLabels["version"] = "v3"
	if got := x.Callers(ref, source, from); len(got) != 0 {
		t.Errorf("callers of another tag: %+v", got)
	}
}
