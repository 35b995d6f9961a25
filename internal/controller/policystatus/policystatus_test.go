package policystatus_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/policystatus"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the controller at work, inside a bubble of fake time.
type rig struct {
	t      *testing.T
	client *resourcetest.Client
}

func newRig(t *testing.T, proxies policystatus.Proxies, objects ...resource.Object) *rig {
	r := &rig{t: t, client: resourcetest.New(kind.All()...)}
	r.client.Seed(objects...)
	tables := catalog.New(catalog.Config{Client: r.client, Descriptors: kind.All()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	changes, _ := proxies.(policystatus.Changes)
	controller := policystatus.New(policystatus.Config{Client: r.client, Catalog: tables, Proxies: proxies, Changes: changes})
	for _, f := range []func(context.Context) error{tables.Run, controller.Run} {
		go func() { _ = f(ctx); done <- struct{}{} }()
	}
	t.Cleanup(func() {
		cancel()
		<-done
		<-done
	})
	r.settle()
	return r
}

// settle until nothing happens any more.
func (r *rig) settle() {
	time.Sleep(3 * time.Second) // of the bubble's clock
	synctest.Wait()
}

func (r *rig) conditions(d *resource.Descriptor, name string) map[string]string {
	r.t.Helper()
	obj, err := r.client.Get(r.t.Context(), d, resource.Key{Namespace: "shop", Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string]string{}
	if s := policystatus.StatusOf(obj); s != nil {
		for _, c := range s.Conditions {
			out[c.Type] = string(c.Status) + " " + c.Reason + " " + c.Message
		}
	}
	for _, p := range *policystatus.ParentsOf(obj) {
		for _, c := range p.Conditions {
			out[string(p.ControllerName)+"/"+string(p.ParentRef.Name)+"/"+c.Type] = string(c.Status) + " " + c.Reason + " " + c.Message
		}
	}
	return out
}

func (r *rig) want(d *resource.Descriptor, name, condition, want string) {
	r.t.Helper()
	if got := r.conditions(d, name)[condition]; !strings.HasPrefix(got, want) || want == "" && got != "" {
		r.t.Errorf("%s %s: %s is %q, want %q", d.GVK.Kind, name, condition, got, want)
	}
}

func at(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "shop", Name: name, Generation: 1, Labels: map[string]string{"app": name}}
}

func backend(name string, targets ...mesh.PolicyTargetReference) *mesh.BackendPolicy {
	return &mesh.BackendPolicy{ObjectMeta: at(name), Spec: mesh.BackendPolicySpec{
		PolicyTarget: mesh.PolicyTarget{TargetRefs: targets}, Timeout: &mesh.PolicyTimeout{Connect: new(mesh.Duration("1s"))},
	}}
}

func web() *corev1.Service {
	return &corev1.Service{ObjectMeta: at("web"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
}

func TestPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, web(), backend("all"), backend("web", mesh.PolicyTargetReference{Kind: "Service", Name: "web"}),
			backend("gone", mesh.PolicyTargetReference{Kind: "Service", Name: "later"}),
			&mesh.ProxyPatch{ObjectMeta: at("bad"), Spec: mesh.ProxyPatchSpec{Patches: []mesh.ProxyPatchItem{
				{Type: "Cluster", Op: "Merge", Value: "nonsense: 1"},
			}}})
		r.want(kind.BackendPolicy, "all", mesh.PolicyAccepted, "True Accepted")
		r.want(kind.BackendPolicy, "all", mesh.PolicyOverridden, "True Overridden spec.timeout.connect by BackendPolicy shop/web")
		r.want(kind.BackendPolicy, "all", mesh.PolicyPartiallyEnforced, "True NotEnforced proxies alone enforce it")
		r.want(kind.BackendPolicy, "web", mesh.PolicyOverridden, "")
		r.want(kind.BackendPolicy, "gone", mesh.PolicyAccepted, "False TargetNotFound spec.targetRefs[0]: there is no Service shop/later")
		r.want(kind.BackendPolicy, "gone", mesh.PolicyResolvedRefs, "False TargetNotFound")
		r.want(kind.ProxyPatch, "bad", mesh.PolicyAccepted, "False Invalid spec.patches[0]: value: ")

		later := web()
		later.Name = "later"
		if _, err := r.client.Create(t.Context(), kind.Service, later); err != nil {
			t.Fatal(err)
		}
		r.settle()
		r.want(kind.BackendPolicy, "gone", mesh.PolicyAccepted, "True Accepted")
		r.want(kind.BackendPolicy, "gone", mesh.PolicyResolvedRefs, "True ResolvedRefs")
		if err := r.client.Delete(t.Context(), kind.BackendPolicy, resource.Key{Namespace: "shop", Name: "web"},
			resource.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		r.settle()
		r.want(kind.BackendPolicy, "all", mesh.PolicyOverridden, "True Overridden spec.timeout.connect by BackendPolicy shop/gone")
	})
}

// acknowledged are proxies of which some have not answered.
type acknowledged struct {
	enforcement policystatus.Enforcement
	changed     chan struct{}
	of          []policy.Source
}

func (a *acknowledged) Enforced(policy.Source, []policy.Ref) policystatus.Enforcement {
	return a.enforcement
}

func (a *acknowledged) Changed() <-chan struct{} { return a.changed }

func (a *acknowledged) Take() []policy.Source { return a.of }

// TestProgrammed: what proxies say is written with the policy, and by itself at most once in 10 s.
func TestProgrammed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web2 := mesh.PolicyTargetReference{Kind: "Service", Name: "web"}
		a := &acknowledged{
			enforcement: policystatus.Enforcement{Selected: 3, Acknowledged: 2, Behind: []string{"shop/a: it refuses Cluster c: no"}},
			changed:     make(chan struct{}, 1), of: []policy.Source{{Kind: "BackendPolicy", Key: resource.Key{Namespace: "shop", Name: "web"}}},
		}
		r := newRig(t, a, web(), backend("web", web2))
		r.want(kind.BackendPolicy, "web", mesh.PolicyProgrammed,
			"False Pending acknowledged by 2 of 3 workloads; behind: shop/a: it refuses Cluster c: no")
		r.want(kind.BackendPolicy, "web", mesh.PolicyPartiallyEnforced, "")
		time.Sleep(10 * time.Second)

		say := func(acknowledged int) {
			synctest.Wait()
			a.enforcement.Acknowledged = acknowledged
			a.changed <- struct{}{}
			r.settle()
		}
		say(3)
		r.want(kind.BackendPolicy, "web", mesh.PolicyProgrammed, "True Programmed acknowledged by 3 of 3 workloads")
		say(1)
		r.want(kind.BackendPolicy, "web", mesh.PolicyProgrammed, "True Programmed acknowledged by 3 of 3 workloads")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		r.want(kind.BackendPolicy, "web", mesh.PolicyProgrammed, "False Pending acknowledged by 1 of 3 workloads")
	})
}

func TestRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := gateway.ParentReference{Group: new(gateway.Group("")), Kind: new(gateway.Kind("Service")), Name: "web"}
		gone := service
		gone.Name = "gone"
		port := gateway.BackendRef{BackendObjectReference: gateway.BackendObjectReference{Name: "web", Port: new(int32(80))}}
		missing := port
		missing.Name = "missing"
		route := func(name string, rule gateway.HTTPRouteRule) *gateway.HTTPRoute {
			return &gateway.HTTPRoute{ObjectMeta: at(name), Spec: gateway.HTTPRouteSpec{
				CommonRouteSpec: gateway.CommonRouteSpec{ParentRefs: []gateway.ParentReference{service, gone, {Name: "front"}}},
				Rules:           []gateway.HTTPRouteRule{rule},
			}}
		}
		good := route("good", gateway.HTTPRouteRule{BackendRefs: []gateway.HTTPBackendRef{{BackendRef: port}}})
		good.Status.Parents = []gateway.RouteParentStatus{{
			ParentRef: gateway.ParentReference{Name: "front"}, ControllerName: "example.com/gateway",
			Conditions: []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted", LastTransitionTime: metav1.Now()}},
		}}
		r := newRig(t, nil, web(), good,
			route("dangling", gateway.HTTPRouteRule{BackendRefs: []gateway.HTTPBackendRef{{BackendRef: missing}}}),
			route("sticky", gateway.HTTPRouteRule{SessionPersistence: &gateway.SessionPersistence{}}))
		const ours = "mesh.proxima.dev/controller/"
		r.want(kind.HTTPRoute, "good", ours+"web/Accepted", "True Accepted")
		r.want(kind.HTTPRoute, "good", ours+"web/ResolvedRefs", "True ResolvedRefs")
		r.want(kind.HTTPRoute, "good", ours+"web/PartiallyEnforced", "True NotEnforced")
		r.want(kind.HTTPRoute, "good", ours+"gone/Accepted", "False NoMatchingParent there is no Service shop/gone")
		r.want(kind.HTTPRoute, "good", "example.com/gateway/front/Accepted", "True Accepted")
		r.want(kind.HTTPRoute, "good", ours+"front/Accepted", "")
		r.want(kind.HTTPRoute, "dangling", ours+"web/ResolvedRefs", "False BackendNotFound there is no Service shop/missing")
		r.want(kind.HTTPRoute, "sticky", ours+"web/Accepted", "False UnsupportedValue spec.rules[0].sessionPersistence: ")
	})
}

// TestSteady: a status that is right is not written again.
func TestSteady(t *testing.T) {
	x := policy.NewIndex()
	p := backend("web", mesh.PolicyTargetReference{Kind: "Service", Name: "web"})
	x.Set(web())
	x.Set(p)
	source := policy.Source{Kind: "BackendPolicy", Key: resource.KeyOf(p)}
	status, changed := policystatus.Policy(x, source, p, policystatus.NoProxies{}, time.Unix(1, 0))
	if !changed || status.Targets != 1 || meta.FindStatusCondition(status.Conditions, mesh.PolicyAccepted) == nil {
		t.Fatalf("%v %+v", changed, status)
	}
	p.Status = status
	if again, changed := policystatus.Policy(x, source, p, policystatus.NoProxies{}, time.Unix(2, 0)); changed {
		t.Errorf("written again: %+v", again)
	}
}
