package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// objects reads YAML documents, each with its kind.
func objects(t testing.TB, text string) []resource.Object {
	t.Helper()
	var out []resource.Object
	for i, doc := range strings.Split(text, "\n---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
			t.Fatal(err)
		}
		obj := map[string]resource.Object{
			"Service": &corev1.Service{}, "Namespace": &corev1.Namespace{}, "Dataplane": &mesh.Dataplane{}, "Mesh": &mesh.Mesh{},
			"BackendPolicy": &mesh.BackendPolicy{}, "WorkloadPolicy": &mesh.WorkloadPolicy{}, "TrafficPermission": &mesh.TrafficPermission{},
			"ProxyPatch": &mesh.ProxyPatch{}, "HTTPRoute": &gateway.HTTPRoute{}, "GRPCRoute": &gateway.GRPCRoute{}, "TCPRoute": &gateway.TCPRoute{},
			"ReferenceGrant": &gateway.ReferenceGrant{}, "ExternalService": &mesh.ExternalService{},
		}[meta.Kind]
		if obj == nil {
			t.Fatalf("document %d: kind %q", i, meta.Kind)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), obj); err != nil {
			t.Fatalf("document %d: %v", i, err)
		}
		out = append(out, obj)
	}
	return out
}

func index(t testing.TB, text string) *policy.Index {
	x := policy.NewIndex()
	for _, obj := range objects(t, text) {
		x.Set(obj)
	}
	return x
}

func service(name string) policy.Ref {
	return policy.Ref{Kind: "Service", Key: resource.Key{Namespace: "shop", Name: name}}
}

var http = policy.Port{Name: "http", Number: 80}

const shop = `
kind: Service
metadata: {name: pay, namespace: shop, labels: {tier: gold}}
spec: {ports: [{name: http, port: 80}, {name: admin, port: 81}]}
---
kind: Dataplane
metadata: {name: pay-1, namespace: shop, labels: {app: pay}}
spec: {addresses: [10.0.0.1], serviceAccount: pay, ports: [{name: http, port: 8080, tags: {version: v2}}, {name: admin, port: 8081}, {port: 53, protocol: UDP}]}
---
`

func TestDefaultsBreakNothing(t *testing.T) {
	b := policy.NewIndex().Backend("web", service("pay"), http)
	for name, got := range map[string]any{
		"connect 5s": *b.Timeout.Connect, "request 0s": *b.Timeout.Request, "idle 1h": *b.Timeout.Idle, "attempts 2": *b.Retry.Attempts,
		"conditions [connect-failure refused-stream]": b.Retry.Conditions, "requests 0": *b.Limits.Requests, "local 3": *b.Outlier.Local,
		"panic 1": *b.Outlier.Panic, "check Off": b.HealthCheck.Type, "mode Plan": b.Locality.Mode, "threshold 71": *b.Locality.Threshold,
		"budget 20": *b.Retry.Budget.Percent, "rate 10": *b.Retry.Budget.MinRetryRate.Count, "tcp 3": *b.Retry.TCPAttempts,
	} {
		_, want, _ := strings.Cut(name, " ")
		if fmt.Sprint(got) != want {
			t.Errorf("%s: got %v", name, got)
		}
	}
	if len(b.From) > 0 || b.UsesHTTP() {
		t.Errorf("a default has a policy that set it: %v", b.From)
	}
}

// connectOf is a policy that sets one field.
func connectOf(name, namespace, target, connect string, age int) string {
	created := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-time.Duration(age) * time.Hour).Format(time.RFC3339)
	return fmt.Sprintf("kind: BackendPolicy\nmetadata: {name: %s, namespace: %s, creationTimestamp: %q}\nspec: {%stimeout: {connect: %s}}\n---\n",
		name, namespace, created, target, connect)
}

// TestOrder: each policy of the list wins over all those before it.
func TestOrder(t *testing.T) {
	const object = "targetRefs: [{kind: Service, name: pay, namespace: shop}], "
	const port = "targetRefs: [{kind: Service, name: pay, namespace: shop, sectionName: http}], "
	ladder := []string{
		connectOf("mesh", "proxima-system", "targetRefs: [{group: mesh.proxima.dev, kind: Mesh, name: default}], ", "1s", 0),
		connectOf("namespace", "shop", "", "2s", 0),
		connectOf("selector", "shop", "selector: {matchLabels: {tier: gold}}, ", "3s", 0),
		connectOf("b", "shop", object, "4s", 0),
		connectOf("a", "shop", object, "5s", 0),
		connectOf("older", "shop", object, "6s", 1),
		connectOf("consumer", "web", object, "7s", 0),
		connectOf("port", "shop", port, "8s", 0),
		connectOf("consumer-port", "web", port, "9s", 0),
	}
	for n := range len(ladder) + 1 {
		x := index(t, shop+strings.Join(ladder[:n], ""))
		want := "5s"
		if n > 0 {
			want = fmt.Sprint(n) + "s"
		}
		if got := x.Backend("web", service("pay"), http); string(*got.Timeout.Connect) != want {
			t.Errorf("with %d policies: %s, want %s (set by %v)", n, *got.Timeout.Connect, want, got.From["timeout.connect"])
		}
	}
	x := index(t, shop+strings.Join(ladder, ""))
	if got := *x.Backend("other", service("pay"), http).Timeout.Connect; got != "8s" {
		t.Errorf("clients of another namespace get %s: a consumer's policy is for its own", got)
	}
	if got := *x.Backend("other", service("pay"), policy.Port{Name: "admin", Number: 81}).Timeout.Connect; got != "6s" {
		t.Errorf("the other port gets %s", got)
	}
}

// TestOrderOfCopies: global's policies win over a zone's own, and those among each other by the age of
// their originals, whenever the copies were made.
func TestOrderOfCopies(t *testing.T) {
	const object = "targetRefs: [{kind: Service, name: pay, namespace: shop}], "
	copyOf := func(text, original string) string {
		return strings.Replace(text, "metadata: {", "metadata: {labels: {mesh.proxima.dev/origin: global}, annotations: {mesh.proxima.dev/created: \""+original+"\"}, ", 1)
	}
	own := connectOf("own", "shop", object, "1s", 100)
	younger := copyOf(connectOf("a-younger", "shop", object, "2s", 9), "2025-12-02T00:00:00Z")
	older := copyOf(connectOf("b-older", "shop", object, "3s", 0), "2025-12-01T00:00:00Z")
	for all, want := range map[string]string{own: "1s", own + younger: "2s", older + own + younger: "3s"} {
		if got := *index(t, shop+all).Backend("web", service("pay"), http).Timeout.Connect; string(got) != want {
			t.Errorf("%s, want %s of:\n%s", got, want, all)
		}
	}
}

// TestMerge is per field; lists are replaced, and who lost is known.
func TestMerge(t *testing.T) {
	x := index(t, shop+`
kind: BackendPolicy
metadata: {name: all, namespace: shop}
spec: {timeout: {connect: 1s, request: 9s}, retry: {codes: [500, 503], attempts: 5}, outlier: {failurePercent: {threshold: 10}}}
---
kind: BackendPolicy
metadata: {name: pay, namespace: shop}
spec: {targetRefs: [{kind: Service, name: pay}, {kind: Service, name: gone}], timeout: {request: 0s}, retry: {codes: [502]}}
`)
	b := x.Backend("web", service("pay"), http)
	if *b.Timeout.Connect != "1s" || *b.Timeout.Request != "0s" || *b.Retry.Attempts != 5 || len(b.Retry.Codes) != 1 || b.Retry.Codes[0] != 502 {
		t.Errorf("merged: %+v %+v", b.Timeout, b.Retry)
	}
	if f := b.Outlier.FailurePercent; *f.Threshold != 10 || *f.MinHosts != 5 || *f.MinRequests != 50 {
		t.Errorf("defaults of a detector that is on: %+v", f)
	}
	if !b.UsesHTTP() {
		t.Error("a timeout of requests needs HTTP")
	}
	all := policy.Source{Kind: "BackendPolicy", Key: resource.Key{Namespace: "shop", Name: "all"}}
	pay := policy.Source{Kind: "BackendPolicy", Key: resource.Key{Namespace: "shop", Name: "pay"}}
	report, _ := x.Report(all)
	if diff := cmp.Diff([]policy.Override{{all, "retry.codes", pay}, {all, "timeout.request", pay}}, report.Overridden); diff != "" {
		t.Errorf("overridden (-want +got):\n%s", diff)
	}
	report, _ = x.Report(pay)
	if diff := cmp.Diff([]string{"spec.targetRefs[1]: there is no Service shop/gone"}, report.Missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]policy.Ref{service("pay")}, report.Targets); diff != "" || len(report.Overridden) > 0 {
		t.Errorf("targets (-want +got):\n%s; overridden %v", diff, report.Overridden)
	}
}

func TestWorkload(t *testing.T) {
	x := index(t, shop+`
kind: WorkloadPolicy
metadata: {name: all, namespace: shop}
spec: {tls: {mode: Strict}, limits: {connections: 5}, metrics: {port: 9000, path: /m}, backends: [{name: db}, {kind: ExternalService, namespace: other, name: bank}]}
---
kind: WorkloadPolicy
metadata: {name: tagged, namespace: shop}
spec: {selector: {matchLabels: {version: v2}}, limits: {connections: 7}}
---
kind: WorkloadPolicy
metadata: {name: admin, namespace: shop}
spec: {selector: {matchLabels: {app: pay}}, ports: ["8081"], tls: {mode: Permissive}}
`)
	ref := policy.Ref{Kind: "Dataplane", Key: resource.Key{Namespace: "shop", Name: "pay-1"}}
	w, ok := x.Workload(ref)
	if !ok || len(w.Ports) != 2 {
		t.Fatalf("found %v, ports %v: UDP never enters a proxy", ok, w.Ports)
	}
	if h, a := w.Ports[8080],
		w.Ports[8081]; *h.Limits.Connections != 7 || *a.Limits.Connections != 5 || h.TLS.Mode != "Strict" || a.TLS.Mode != "Permissive" {
		t.Errorf("port 8080 %+v, port 8081 %+v", h, a)
	}
	want := []policy.Ref{{Kind: "Service", Key: resource.Key{Namespace: "shop", Name: "db"}}, {Kind: "ExternalService",
		Key: resource.Key{Namespace: "other", Name: "bank"}}}
	if diff := cmp.Diff(want, w.Backends); diff != "" {
		t.Errorf("backends (-want +got):\n%s", diff)
	}
	if *w.Metrics.Port != 9000 || w.Metrics.Path != "/m" {
		t.Errorf("metrics %+v", w.Metrics)
	}
	own := objects(t, strings.Split(shop, "\n---\n")[1])[0].(*mesh.Dataplane)
	own.Spec.Proxy = &mesh.DataplaneProxy{Metrics: &mesh.WorkloadMetrics{Path: "/own"}}
	x.Set(own)
	if w, _ = x.Workload(ref); *w.Metrics.Port != 9000 || w.Metrics.Path != "/own" {
		t.Errorf("a Dataplane's own metrics win: %+v", w.Metrics)
	}
	if len(w.Overrides) != 1 || w.Overrides[0].Field != "metrics.path" {
		t.Errorf("overrides %v", w.Overrides)
	}
}

// TestForeignTargets: a policy that validation would have refused, as it is not for what it names,
// changes nothing, and its report says so.
func TestForeignTargets(t *testing.T) {
	const foreign = `
kind: %s
metadata: {name: foreign, namespace: attacker}
spec: {targetRefs: [%s]%s}
`
	for _, target := range []string{
		"{group: mesh.proxima.dev, kind: Dataplane, namespace: shop, name: pay-1}", "{group: mesh.proxima.dev, kind: Mesh, name: default}",
	} {
		for kind, rest := range map[string]string{
			"TrafficPermission": ", allow: [{}]", "ProxyPatch": ", patches: [{type: Listener, op: Remove}]", "WorkloadPolicy": ", tls: {mode: Strict}",
		} {
			x := index(t, shop+fmt.Sprintf(foreign, kind, target, rest))
			ref := policy.Ref{Kind: "Dataplane", Key: resource.Key{Namespace: "shop", Name: "pay-1"}}
			if p, _ := x.Permission(ref, 8080); !p.Empty() || p.Refuse {
				t.Errorf("%s for %s: permission %+v", kind, target, p)
			}
			w, _ := x.Workload(ref)
			if len(x.Patches(ref)) > 0 || len(w.From) > 0 || len(w.Ports[8080].From) > 0 {
				t.Errorf("%s for %s: patches %v, workload %+v", kind, target, x.Patches(ref), w)
			}
			r, _ := x.Report(policy.Source{Kind: kind, Key: resource.Key{Namespace: "attacker", Name: "foreign"}})
			if len(r.Targets) > 0 || len(r.Missing) != 1 || !strings.Contains(r.Missing[0], "a policy of namespace attacker is not for ") {
				t.Errorf("%s for %s: report %+v", kind, target, r)
			}
		}
		x := index(t, shop+fmt.Sprintf(foreign, "BackendPolicy", target, ", timeout: {request: 1s}"))
		if b := x.Backend("web", service("pay"), http); *b.Timeout.Request != "0s" {
			t.Errorf("BackendPolicy for %s: %+v", target, b.Timeout)
		}
	}
}

func TestPermission(t *testing.T) {
	ref := policy.Ref{Kind: "Dataplane", Key: resource.Key{Namespace: "shop", Name: "pay-1"}}
	base := shop + `
kind: Dataplane
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {addresses: [10.0.0.2], serviceAccount: web}
---
kind: Dataplane
metadata: {name: cron-1, namespace: shop, labels: {app: cron}}
spec: {addresses: [10.0.0.3], serviceAccount: shared}
---
kind: Dataplane
metadata: {name: other-1, namespace: shop, labels: {app: other}}
spec: {addresses: [10.0.0.4], serviceAccount: shared}
---
`
	x := index(t, base)
	if p, ok := x.Permission(ref, 8080); !ok || !p.Empty() {
		t.Errorf("without a permission: %v %+v", ok, p)
	}
	if _, ok := x.Permission(ref, 9); ok {
		t.Error("a permission of a port that is not there")
	}
	x.Set(objects(t, `
kind: Mesh
metadata: {name: default}
spec: {defaultAccess: Deny, mtls: {trustDomain: corp.example}}
`)[0])
	if p, _ := x.Permission(ref, 8080); !p.Refuse {
		t.Error("the mesh denies by default")
	}
	for _, obj := range objects(t, `
kind: TrafficPermission
metadata: {name: web, namespace: shop}
spec:
  ports: [http]
  allow: [{from: [{labels: {matchLabels: {app: web}}}, {labels: {matchLabels: {app: cron}}, addresses: [10.0.0.0/8]}, {serviceAccounts: [ops/admin], namespaces: [ops]}]}]
---
kind: TrafficPermission
metadata: {name: try, namespace: shop}
spec: {shadow: true, deny: [{from: [{labels: {matchLabels: {app: nobody}}}]}]}
`) {
		x.Set(obj)
	}
	p, _ := x.Permission(ref, 8080)
	exact := func(names ...string) []mesh.ValueMatch {
		var out []mesh.ValueMatch
		for _, n := range names {
			out = append(out, mesh.ValueMatch{Type: "Exact", Value: "spiffe://corp.example/ns/" + n})
		}
		return out
	}
	want := []policy.Caller{
		{Names: [][]mesh.ValueMatch{exact("shop/sa/web")}},
		{Names: [][]mesh.ValueMatch{exact("shop/sa/shared")}, Addresses: [][]string{{"10.0.0.0/8"}, {"10.0.0.3"}}},
		{Names: [][]mesh.ValueMatch{{{Type: "Prefix", Value: "spiffe://corp.example/ns/ops/"}}, exact("ops/sa/admin")}},
	}
	if len(p.Allow) != 1 {
		t.Fatalf("%+v", p)
	}
	if diff := cmp.Diff(want, p.Allow[0].Callers); diff != "" {
		t.Errorf("callers (-want +got):\n%s", diff)
	}
	if len(p.ShadowDeny) != 1 || !p.ShadowDeny[0].Nobody || len(p.Deny) != 0 {
		t.Errorf("a shadow is kept apart, and labels that nobody has describe nobody: %+v", p)
	}
	if p, _ := x.Permission(ref, 8081); len(p.Allow) != 0 || !p.Refuse {
		t.Errorf("the other port: %+v", p)
	}
}

const routes = `
kind: HTTPRoute
metadata: {name: canary, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: pay, port: 80}]
  rules:
  - {backendRefs: [{name: pay, port: 80, weight: 90}, {name: v2, namespace: other, port: 80, weight: 10}]}
  - matches: [{path: {type: PathPrefix, value: /api}}, {path: {type: Exact, value: /api}}, {path: {value: /api}, method: GET}]
    backendRefs: [{name: gone, port: 80}, {name: pay, port: 99}]
---
kind: BackendPolicy
metadata: {name: canary, namespace: shop}
spec: {targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: canary}], timeout: {request: 3s}}
---
kind: Service
metadata: {name: v2, namespace: other}
spec: {ports: [{port: 80}]}
---
`

func TestRoutes(t *testing.T) {
	x := index(t, shop+routes)
	got := x.Routes("web", service("pay"), http)
	var order []string
	for _, r := range got {
		order = append(order, fmt.Sprintf("%d.%d", r.Rule, r.Match))
	}
	if diff := cmp.Diff([]string{"1.1", "1.2", "1.0", "0.0"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if *got[0].Policy.Timeout.Request != "3s" || *x.Backend("web", service("pay"), http).Timeout.Request != "0s" {
		t.Error("a policy of a route is for the route alone")
	}
	why := func(bs []policy.RouteBackend) (out []string) {
		for _, b := range bs {
			reason, _, _ := strings.Cut(b.Invalid, ":")
			out = append(out, reason)
		}
		return out
	}
	if diff := cmp.Diff([]string{"BackendNotFound", "BackendNotFound"}, why(got[0].Backends)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"", "RefNotPermitted"}, why(got[3].Backends)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	x.Set(objects(t, `
kind: ReferenceGrant
metadata: {name: shop, namespace: other}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}], to: [{group: "", kind: Service, name: v2}]}
`)[0])
	if diff := cmp.Diff([]string{"", ""}, why(x.Routes("web", service("pay"), http)[3].Backends)); diff != "" {
		t.Errorf("with a grant (-want +got):\n%s", diff)
	}
	if len(x.Routes("web", service("pay"), policy.Port{Name: "admin", Number: 81})) > 0 {
		t.Error("the route is for port 80 alone")
	}

	// The routes of a client's namespace take the place of those of the Service's.
	x.Set(objects(t, `
kind: HTTPRoute
metadata: {name: mine, namespace: web}
spec: {parentRefs: [{group: "", kind: Service, name: pay, namespace: shop}], rules: [{backendRefs: [{name: pay, namespace: shop, port: 80}]}]}
`)[0])
	if got := x.Routes("web", service("pay"), http); len(got) != 1 || got[0].Source.Key.Name != "mine" {
		t.Errorf("clients of web: %+v", got)
	}
	if got := x.Routes("shop", service("pay"), http); len(got) != 4 {
		t.Errorf("clients of shop have %d routes", len(got))
	}
}

func TestUnsupported(t *testing.T) {
	refused := objects(t, `
kind: HTTPRoute
metadata: {name: a, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: pay}]
  rules:
  - sessionPersistence: {sessionName: a}
    filters: [{type: ExtensionRef, extensionRef: {group: a, kind: B, name: c}}]
    backendRefs: [{name: a, port: 1, filters: [{type: URLRewrite, urlRewrite: {hostname: a.example}}]}]
`)[0]
	x := index(t, shop)
	x.Set(refused)
	if x.HasRoutes("shop", service("pay"), http) {
		t.Error("a route with fields that are not supported has an effect")
	}
	got := policy.Unsupported(refused)
	for i, want := range []string{"spec.rules[0].sessionPersistence: ", "spec.rules[0].filters[0].extensionRef: ",
		"spec.rules[0].backendRefs[0].filters: "} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) {
			t.Errorf("%d: got %v, want %s", i, got, want)
		}
	}
}

// TestConsumerRoute: a route of a client's namespace leads back to the Service that it is attached to without a
// ReferenceGrant, and to no other one of that namespace.
func TestConsumerRoute(t *testing.T) {
	x := index(t, shop+`
kind: Service
metadata: {name: other, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
---
kind: HTTPRoute
metadata: {name: mine, namespace: web}
spec:
  parentRefs: [{group: "", kind: Service, name: pay, namespace: shop}]
  rules: [{backendRefs: [{name: pay, namespace: shop, port: 81}, {name: other, namespace: shop, port: 80}]}]
`)
	got := x.Routes("web", service("pay"), http)
	if len(got) != 1 || len(got[0].Backends) != 2 {
		t.Fatalf("%+v", got)
	}
	if why := got[0].Backends[0].Invalid; why != "" {
		t.Errorf("the parent: %s", why)
	}
	if why := got[0].Backends[1].Invalid; !strings.HasPrefix(why, "RefNotPermitted") {
		t.Errorf("another Service: %q", why)
	}
}

// TestRouted: backends of routes of HTTP and gRPC are known as such, and are affected by their routes.
func TestRouted(t *testing.T) {
	x := index(t, shop)
	for _, kind := range []string{"HTTPRoute", "GRPCRoute", "TCPRoute"} {
		route := objects(t, "kind: "+kind+"\nmetadata: {name: r, namespace: shop}\nspec:\n"+
			"  parentRefs: [{group: \"\", kind: Service, name: front}]\n  rules: [{backendRefs: [{name: pay, port: 80}]}]\n")[0]
		if a := x.Set(route); !slices.Contains(a.Objects, service("pay")) {
			t.Errorf("%s: set affects %v", kind, a.Objects)
		}
		if got := x.Routed(service("pay")); got != (kind != "TCPRoute") {
			t.Errorf("%s: routed %v", kind, got)
		}
		if a := x.Delete(policy.Ref{Kind: kind, Key: resource.KeyOf(route)}); !slices.Contains(a.Objects, service("pay")) {
			t.Errorf("%s: its end affects %v", kind, a.Objects)
		}
		if x.Routed(service("pay")) {
			t.Errorf("%s: routed after its end", kind)
		}
	}
}
