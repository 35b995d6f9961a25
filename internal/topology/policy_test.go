package topology

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// policyText is a status as "N users; TYPE status reason: message; …".
func policyText(s meshv1alpha1.PolicyStatus) string {
	out := []string{fmt.Sprintf("%d users", s.Services)}
	for _, c := range s.Conditions {
		out = append(out, fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(out, "; ")
}

func (r *rig) wantCosts(what, name, want string) {
	r.t.Helper()
	for _, c := range list[*meshv1alpha1.ZoneCosts](r, "ZoneCosts") {
		if got := policyText(c.Status); c.Name == name && got != want {
			r.t.Errorf("%s: status of ZoneCosts %s\n%s, want\n%s", what, name, got, want)
		}
	}
}

// TestCostsStatus: a ZoneCosts tells how many Services are planned with it, and what of it
// does not hold; writing that plans nothing anew.
func TestCostsStatus(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("ab"), workloads("bb"), one(adaptive(AnnotationCosts, "ours")))...)
		r.seed(costs("ours", pair("a", "b", 2)), costs("idle", pair("a", "b", 3)))
		const good = "Accepted True Accepted: the planner uses these costs; "
		r.wantCosts("in use", "ours", "1 users; "+good+"Resolved True Resolved: Services that are planned with it: 1")
		r.wantCosts("not in use", "idle", "0 users; "+good+"Resolved True NotUsed: no Service of this zone is planned with it")
		version := r.plan().Spec.Version
		r.settle()
		if got := r.plan().Spec.Version; got != version {
			t.Errorf("plan %d, before %d: a status published another plan", got, version)
		}
		r.seed(costs("idle", pair("a", "moon", 3)))
		r.wantCosts("a zone that is not there", "idle",
			"0 users; "+good+`Resolved False UnknownZones: ZoneCosts "idle" names zones that there are not: moon`)
		r.seed(node("node-moon", "moon"))
		r.wantCosts("the zone is there", "idle", "0 users; "+good+"Resolved True NotUsed: no Service of this zone is planned with it")
		r.seed(costs("ours", pair("a", "b", -1)))
		r.wantCosts("costs that cannot be used", "ours", `1 users; Accepted False Invalid: ZoneCosts "ours" cannot be used: `+
			"the cost from a to b is -1; its last good costs hold; Resolved True Resolved: Services that are planned with it: 1")
		r.annotate(AnnotationCosts, "idle")
		r.wantCosts("chosen", "idle", "1 users; "+good+"Resolved True Resolved: Services that are planned with it: 1")
	})
}

// TestPoliciesConcerned: a change of a Service concerns policies where it uses others than
// before, or where what it uses fails: its status changes often.
func TestPoliciesConcerned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const rule = meshv1alpha1.TopologyHeuristicPrefix + "mine"
		client, service := resourcetest.New(), adaptive(AnnotationCosts, "ours")
		client.Seed(service)
		tables := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = tables.Run(ctx) }()
		defer func() { cancel(); <-done }()
		sub := tables.Subscribe(catalog.Services)
		defer sub.Close()
		c := New(Config{Client: client, Catalog: tables}) // which does not run
		check := func(what, want string, change func(*corev1.Service)) {
			t.Helper()
			if change != nil {
				change(service)
				client.Seed(service)
			}
			d, err := sub.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			set := map[string]bool{}
			c.concernedPolicies(&d, func(key resource.Key) { set[key.Name] = true })
			if got := strings.Join(slices.Sorted(maps.Keys(set)), " "); got != want {
				t.Errorf("%s: %q are concerned, want %q", what, got, want)
			}
		}
		condition := func(status metav1.ConditionStatus, message string) func(*corev1.Service) {
			return func(s *corev1.Service) {
				s.Status.Conditions = []metav1.Condition{{Type: ConditionPlan, Status: status, Reason: ReasonHeuristic, Message: message}}
			}
		}
		annotation := func(key, value string) func(*corev1.Service) {
			return func(s *corev1.Service) { s.Annotations[key] = value }
		}
		check("the first delta", "ours", nil)
		check("its status", "", func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		})
		check("other costs", "ours theirs", annotation(AnnotationCosts, "theirs"))
		check("a heuristic", "mine theirs", annotation(corev1.AnnotationTopologyMode, rule))
		check("it works", "", condition(metav1.ConditionTrue, "fine"))
		check("it fails", "mine", condition(metav1.ConditionFalse, "no such zone"))
	})
}

// brokenRule is a heuristic that is known to fail.
type brokenRule struct{ *weigher }

func (brokenRule) Problem() error { return errors.New("it does not compile") }

// TestHeuristicStatus: a TopologyHeuristic tells whether it compiles, which Services have
// chosen it, and where it fails.
func TestHeuristicStatus(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const name = meshv1alpha1.TopologyHeuristicPrefix + "mine"
		mine := &weigher{home: 8, away: 1}
		r := newRig(t, func(c *Config) {
			c.Heuristics = Registry{name: mine, meshv1alpha1.TopologyHeuristicPrefix + "broken": brokenRule{mine}}
		}, all(equalNodes("ab"), workloads("ab"), one(adaptive(corev1.AnnotationTopologyMode, name)))...)
		for _, h := range []string{"mine", "broken"} {
			r.seed(&meshv1alpha1.TopologyHeuristic{ObjectMeta: metav1.ObjectMeta{Name: h}})
		}
		want := func(what, name, want string) {
			t.Helper()
			for _, h := range list[*meshv1alpha1.TopologyHeuristic](r, "TopologyHeuristic") {
				if got := policyText(h.Status); h.Name == name && got != want {
					t.Errorf("%s: status of %s\n%s, want\n%s", what, name, got, want)
				}
			}
		}
		want("in use", "mine", "1 users; Accepted True Accepted: the rule compiles; Resolved True Resolved: Services that have chosen it: 1")
		want("broken", "broken", "0 users; Accepted False Invalid: it does not compile; Resolved True NotUsed: no Service of this zone has chosen it")
		mine.set(func() { mine.err = errors.New("no such zone") })
		r.heuristicChanged(name)
		r.settle()
		r.settle()
		for _, h := range list[*meshv1alpha1.TopologyHeuristic](r, "TopologyHeuristic") {
			if got := policyText(h.Status); h.Name == "mine" && (!strings.Contains(got, "Resolved False RuleFailed: "+r.service().Namespace+"/") ||
				!strings.Contains(got, "no such zone")) {
				t.Errorf("it fails: %s", got)
			}
		}
	})
}
