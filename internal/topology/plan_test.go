package topology

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestPlanReachesAgents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaaabbbbccc"), one(adaptive()))...)
		r.wantPercents("4/4/3", "a", "a 100.0")
		r.wantPercents("4/4/3", "c", "a 2.1 b 2.1 c 95.7")
		r.wantPercents("an unknown zone", "x", "a 36.4 b 36.4 c 27.3")
		r.wantCondition("4/4/3", ConditionPlan, "True Planned: http IPv4: 11 endpoints in 3 zones, demand guessed from the CPU of nodes; "+
			"98.6 % stays in its zone, cost 0.01, busiest endpoint 1.17× the mean (limit 1.17×); hints (soft): 100.0 % stays, cost 0.00, busiest 1.22×")
		r.wantHints("4/4/3", "a1:a a2:a a3:a a4:a b1:b b2:b b3:b b4:b c1:c c2:c c3:c")
		r.wantEvents("plans are no events")

		r.annotate(AnnotationHints, "none")
		r.wantHints("none wanted", "a1: a2: a3: a4: b1: b2: b3: b4: c1: c2: c3:")
		r.wantPercents("no hints but weights", "c", "a 2.1 b 2.1 c 95.7")
		r.annotate(mode, "")
		r.wantPercents("no mode", "c", "a 36.4 b 36.4 c 27.3")
		r.wantCondition("no mode", ConditionPlan, "")
	})
}

// TestLimitations are those that Kubernetes' documentation of topology aware routing
// lists, and what its users meet: what is planned, and what the heuristic would give.
func TestLimitations(t *testing.T) {
	for _, c := range []struct {
		name      string
		nodes     []resource.Object
		endpoints string
		rates     map[string]float64
		annotate  []string
		from      map[string]string
		// kubernetes is what its heuristic would do in the same situation.
		kubernetes string
	}{
		{"traffic from one zone only", equalNodes("abc"), "aaabbbccc", map[string]float64{"a": 100}, nil,
			map[string]string{"a": "a 39.0 b 30.5 c 30.5", "b": "b 100.0"},
			"hints (in zone 100.0 %, cost 0.00, busiest endpoint 3.00× the mean)"},
		{"the same where endpoints are lightly used", equalNodes("abc"), "aaabbbccc", map[string]float64{"a": 100}, []string{AnnotationUtilisation, "0.2"},
			map[string]string{"a": "a 100.0"},
			"hints (in zone 100.0 %, cost 0.00, busiest endpoint 1.00× the mean)"},
		{"fewer than three endpoints per zone", equalNodes("abc"), "abb", nil, nil,
			map[string]string{"a": "a 100.0", "b": "b 100.0", "c": "a 11.3 b 88.7"},
			"hints (in zone 66.7 %, cost 0.33, busiest endpoint 1.00× the mean)"},
		{"one endpoint", equalNodes("abc"), "b", nil, nil,
			map[string]string{"a": "b 100.0", "b": "b 100.0", "c": "b 100.0"},
			"none: Insufficient number of endpoints (1 endpoints, 3 zones) (in zone 33.3 %, cost 0.67, busiest endpoint 1.00× the mean)"},
		{"an autoscaler has scaled up in one zone", equalNodes("abc"), "aaaaaabc", nil, nil,
			map[string]string{"a": "a 100.0", "b": "a 56.1 b 43.9", "c": "a 56.1 c 43.9"},
			"none: Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (8 endpoints, 3 zones) (in zone 33.3 %, cost 0.67, busiest endpoint 1.00× the mean)"},
		{"endpoints tolerate a subset of nodes", append(equalNodes("ab"), node("gpu", "a")), "aab", nil, nil,
			map[string]string{"a": "a 100.0", "b": "b 100.0"},
			"hints (in zone 100.0 %, cost 0.00, busiest endpoint 1.00× the mean)"},
		{"unready endpoints do not count", equalNodes("abc"), "aAbBcC", nil, nil,
			map[string]string{"a": "a 100.0", "c": "c 100.0"},
			"hints (in zone 100.0 %, cost 0.00, busiest endpoint 1.00× the mean)"},
		{"unready nodes make no traffic", all(equalNodes("ab"), one(node("node-c", "c", down))), "abc", map[string]float64{"a": 10, "b": 10, "c": 10}, nil,
			map[string]string{"a": "a 78.0 c 22.0", "b": "b 78.0 c 22.0"},
			"none: Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (3 endpoints, 2 zones) (in zone 33.3 %, cost 0.67, busiest endpoint 1.00× the mean)"},
		{"control plane nodes are in no ratio", all(equalNodes("ab"), one(node("node-c", "c", master))), "aabb", nil, nil,
			map[string]string{"a": "a 100.0", "c": "a 50.0 b 50.0"},
			"hints (in zone 100.0 %, cost 0.00, busiest endpoint 1.00× the mean)"},
		{"tainted nodes are emptied", all(equalNodes("ab"), one(node("node-c", "c", evicted))), "aabb", nil, nil,
			map[string]string{"a": "a 100.0", "c": "a 50.0 b 50.0"},
			"none: Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (4 endpoints, 3 zones) (in zone 50.0 %, cost 0.50, busiest endpoint 1.00× the mean)"},
		{"a zone has lost all endpoints", equalNodes("abc"), "aabb", nil, nil,
			map[string]string{"a": "a 100.0", "c": "a 50.0 b 50.0"},
			"none: Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (4 endpoints, 3 zones) (in zone 33.3 %, cost 0.67, busiest endpoint 1.00× the mean)"},
		{"a zone is new, and has no clients yet", equalNodes("abcd"), "aabbcc", map[string]float64{"a": 10, "b": 10, "c": 10}, nil,
			map[string]string{"a": "a 100.0", "d": "a 33.3 b 33.3 c 33.3"},
			"none: Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (6 endpoints, 4 zones) (in zone 25.0 %, cost 0.75, busiest endpoint 1.00× the mean)"},
		{"a zone is new, and traffic comes first", equalNodes("abcd"), "aabbcc", map[string]float64{"a": 10, "b": 10, "c": 10, "d": 6}, nil,
			map[string]string{"a": "a 100.0", "d": "a 33.3 b 33.3 c 33.3"},
			"none: Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (6 endpoints, 4 zones) (in zone 25.0 %, cost 0.75, busiest endpoint 1.00× the mean)"},
		{"a node without zone spoils nothing", all(equalNodes("abc"), one(node("odd", "", zoneless))), "abc", nil, nil,
			map[string]string{"a": "a 100.0", "c": "c 100.0"},
			"none: Insufficient Node information: allocatable CPU or zone not specified on one or more nodes (in zone 33.3 %, cost 0.67, busiest endpoint 1.00× the mean)"},
		{"one zone", equalNodes("a"), "aa", nil, nil, map[string]string{"a": "a 100.0"},
			"none: Insufficient Node information: allocatable CPU or zone not specified on one or more nodes (in zone 100.0 %, cost 0.00, busiest endpoint 1.00× the mean)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil, all(c.nodes, workloads(c.endpoints), one(adaptive(c.annotate...)))...)
				r.report(c.rates)
				for zone, want := range c.from {
					r.wantPercents(c.name, zone, want)
				}
				if !strings.HasPrefix(r.condition(ConditionPlan), "True Planned") {
					t.Error(r.condition(ConditionPlan))
				}
				r.wantComparison(c.name, c.kubernetes)
			})
		})
	}
}

// wantComparison with Kubernetes' heuristic, as explain makes it.
func (r *rig) wantComparison(what, want string) {
	r.t.Helper()
	report, ok := r.c.Explain(webKey)
	if !ok || len(report.Plans) != 1 {
		r.t.Fatalf("%s: explained as %+v", what, report)
	}
	_, got, _ := strings.Cut(report.Plans[0].Plan.String(), "Kubernetes' heuristic would give ")
	if got = strings.TrimSpace(got); got != want {
		r.t.Errorf("%s: Kubernetes' heuristic would give\n%s\nwant\n%s", what, got, want)
	}
}

// report has the demand measured and the next step taken.
func (r *rig) report(rates map[string]float64) {
	r.demand.set(rates)
	time.Sleep(11 * time.Second)
	r.settle()
}

// TestPlansFollowAtOnce: endpoints and nodes are followed with no time between.
func TestPlansFollowAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("abc"), one(adaptive()))...)
		step := func(what, zone, want string, change func()) {
			t.Helper()
			before := time.Now()
			change()
			if got := r.percentsNow(zone); got != want || time.Since(before) != 0 {
				t.Errorf("%s: from %s goes %s after %v, want %s", what, zone, got, time.Since(before), want)
			}
			r.settle()
		}
		step("an endpoint fails", "c", "a 50.0 b 50.0", func() { r.client.Seed(workloads("abC")...) })
		step("it is back", "c", "c 100.0", func() { r.client.Seed(workloads("abc")...) })
		step("a zone is new", "d", "a 33.3 b 33.3 c 33.3", func() { r.client.Seed(node("node-d", "d")) })
		step("and gets an endpoint", "d", "d 100.0", func() { r.client.Seed(workloads("abcd")...) })
		step("its node is gone", "a", "a 87.7 d 12.3", func() { r.client.Seed(node("node-d", "d", down)) })
		step("and back", "a", "a 100.0", func() { r.client.Seed(node("node-d", "d")) })
		step("a zone is given more CPU", "a", "a 73.1 b 9.0 c 9.0 d 9.0", func() { r.client.Seed(node("node-a", "a", cpu("8"))) })
		step("a taint empties it, and takes its workloads out of use", "b", "b 100.0", func() { r.client.Seed(node("node-a", "a", cpu("8"), evicted)) })
	})
}

// TestDemandIsRepublishedByTheRules: noise is not followed, a step is, and hints only
// where they gain more than they cost.
func TestDemandIsRepublishedByTheRules(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaabbbccc"), one(adaptive()))...)
		u := r.c.entries[resource.Key{Namespace: "shop", Name: "web"}].units[0]
		r.report(map[string]float64{"a": 10, "b": 10, "c": 10})
		if u.replans[planner.EndpointsChanged] == 0 || u.replans[planner.LargeGap]+u.replans[planner.LastingGap] != 0 {
			t.Errorf("as guessed: replans %v", u.replans)
		}
		r.report(map[string]float64{"a": 10.1, "b": 10, "c": 9.9})
		if u.replans[planner.LargeGap]+u.replans[planner.LastingGap] != 0 {
			t.Errorf("noise: replans %v", u.replans)
		}
		r.wantPercents("noise", "a", "a 100.0")
		hints := r.hints()
		r.report(map[string]float64{"a": 60, "b": 10, "c": 10})
		if u.replans[planner.LargeGap] != 1 {
			t.Errorf("a step: replans %v", u.replans)
		}
		r.wantPercents("a step", "a", "a 52.0 b 24.0 c 24.0")
		if r.hints() == hints {
			t.Errorf("a step: hints are still %s", hints)
		}
		if !strings.Contains(r.condition(ConditionPlan), "demand measured") {
			t.Error(r.condition(ConditionPlan))
		}
		// A little worse for long is as bad.
		r.report(map[string]float64{"a": 63, "b": 10, "c": 10})
		for range 120 {
			time.Sleep(10 * time.Second)
		}
		r.settle()
		if u.replans[planner.LastingGap]+u.replans[planner.LargeGap] < 2 {
			t.Errorf("a drift: replans %v, gap %v", u.replans, u.gap)
		}
	})
}

// TestDemandAloneReachesViews: no change of the catalog is needed to update agents, not even
// that of a condition.
func TestDemandAloneReachesViews(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaabbbccc"), one(adaptive(AnnotationHints, "none")))...)
		r.client.Intercept(func(call resourcetest.Call) error {
			if call.Verb == resourcetest.UpdateStatus {
				return errors.New("disk full")
			}
			return nil
		})
		r.wantPercents("before", "a", "a 100.0")
		r.report(map[string]float64{"a": 60, "b": 10, "c": 10})
		r.wantPercents("after", "a", "a 52.0 b 24.0 c 24.0")
	})
}

func TestBadParametersKeepTheOldPlan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaaabbbbccc"), one(adaptive(AnnotationOverload, "0", AnnotationMargin, "0")))...)
		const tight = "a 9.1 b 9.1 c 81.8"
		r.wantPercents("no overload", "c", tight)
		for _, c := range []struct{ key, value, problem string }{
			{AnnotationOverload, "-0.1", "must be a number from 0 to 10"},
			{AnnotationOverload, "NaN", "must be a number from 0 to 10"},
			{AnnotationOverload, "11", "must be a number from 0 to 10"},
			{AnnotationOverload, "+Inf", "must be a number from 0 to 10"},
			{AnnotationOverload, "much", "must be a number from 0 to 10"},
			{AnnotationMargin, "2", "must be a number from 0 to 1"},
			{AnnotationUtilisation, "0", "must be a number from 0.01 to 10"},
			{AnnotationHints, "hard", "must be one of [soft strict none]"},
			{AnnotationFallback, "everything", "must be one of [none zone]"},
			{AnnotationCosts, "", ""},
			{prefix + "overlord", "1", "is no parameter of topology routing"},
		} {
			if c.value == "" {
				continue
			}
			old := r.service().Annotations[c.key]
			r.annotate(c.key, c.value)
			r.wantPercents(c.key+"="+c.value, "c", tight)
			r.wantCondition(c.key, ConditionParameters,
				fmt.Sprintf("False Invalid: %s=%q: %s; the last good parameters stay in effect", c.key, c.value, c.problem))
			r.annotate(c.key, old)
			r.wantCondition(c.key, ConditionParameters, "True Valid: all are in effect")
		}
		r.annotate(AnnotationOverload, "0.5")
		r.wantPercents("more overload", "c", "c 100.0")
	})
}

func costs(name string, edit func(*meshv1alpha1.ZoneCostsSpec)) *meshv1alpha1.ZoneCosts {
	c := &meshv1alpha1.ZoneCosts{ObjectMeta: metav1.ObjectMeta{Name: name}}
	kind.ZoneCosts.Default(c)
	edit(&c.Spec)
	return c
}

func pair(from, to string, cost float64) func(*meshv1alpha1.ZoneCostsSpec) {
	return func(s *meshv1alpha1.ZoneCostsSpec) {
		s.Pairs = append(s.Pairs, meshv1alpha1.ZoneCostsPair{From: from, To: to, Cost: cost})
	}
}

func TestCosts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// b is in the region, d is not.
		far := node("node-d", "d")
		far.Labels[corev1.LabelTopologyRegion] = "us"
		r := newRig(t, nil, all(equalNodes("ab"), one(far), workloads("bbddd"), one(adaptive()))...)
		r.wantPercents("the region first, as far as it goes", "a", "b 40.4 d 59.6")
		r.seed(costs(DefaultCosts, pair("a", "d", 0.1)))
		r.wantPercents("a cheap line to d", "a", "d 100.0")
		r.seed(costs("ours", pair("a", "b", 0.01)))
		r.annotate(AnnotationCosts, "ours")
		r.wantPercents("costs of its own", "a", "b 40.4 d 59.6")
		r.annotate(AnnotationCosts, "theirs")
		r.wantPercents("costs that are not there", "a", "d 100.0")
		r.wantCondition("costs that are not there", ConditionParameters,
			`False Unresolved: topology.proxima.dev/costs="theirs": there is no ZoneCosts of that name, the default ones hold`)
		r.seed(costs("theirs", pair("a", "moon", 1)))
		r.wantCondition("costs of a zone that is not there", ConditionParameters,
			`False Unresolved: ZoneCosts "theirs" names zones that there are not: moon`)
		r.delete("ZoneCosts", "", "theirs")
		r.delete("ZoneCosts", "", DefaultCosts)
		r.annotate(AnnotationCosts, "")
		r.wantPercents("no costs", "a", "b 40.4 d 59.6")
	})
}

// TestBadCostsKeepTheOldPlan: costs that the API would have refused, as another store or
// version may hold them.
func TestBadCostsKeepTheOldPlan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		far := node("node-d", "d")
		far.Labels[corev1.LabelTopologyRegion] = "us"
		r := newRig(t, nil, all(equalNodes("ab"), one(far), workloads("bbddd"), one(adaptive(AnnotationCosts, "ours")),
			one(costs("ours", pair("a", "d", 0.1))))...)
		const good = "d 100.0"
		r.wantPercents("good costs", "a", good)
		for _, c := range []struct {
			cost float64
			said string
		}{{-1, "-1"}, {math.NaN(), "NaN"}, {math.Inf(1), "+Inf"}, {1e12, "1e+12"}} {
			r.seed(costs("ours", pair("a", "d", c.cost)))
			r.wantPercents(c.said, "a", good)
			r.wantCondition(c.said, ConditionParameters,
				`False Unresolved: ZoneCosts "ours" cannot be used: the cost from a to d is `+c.said+`; its last good costs hold`)
			if !strings.HasPrefix(r.condition(ConditionPlan), "True Planned") {
				t.Errorf("%s: %s", c.said, r.condition(ConditionPlan))
			}
		}
		r.seed(costs("ours", pair("a", "d", 0.2)))
		r.wantCondition("good again", ConditionParameters, "True Valid: all are in effect")
		r.delete("ZoneCosts", "", "ours")
		r.seed(costs("ours", pair("a", "d", -1)))
		r.wantPercents("never good", "a", "b 40.4 d 59.6")
		r.wantCondition("never good", ConditionParameters,
			`False Unresolved: ZoneCosts "ours" cannot be used: the cost from a to d is -1; the default ones hold`)
	})
}

// TestDefaultCostsAreThePlanners: what the API fills in is what holds without it.
func TestDefaultCostsAreThePlanners(t *testing.T) {
	c := costs("x", func(*meshv1alpha1.ZoneCostsSpec) {})
	if *c.Spec.Region != planner.DefaultRegionCost || *c.Spec.World != planner.DefaultWorldCost || *c.Spec.Site != planner.DefaultSiteCost {
		t.Errorf("%+v", c.Spec)
	}
	free := costs("x", func(s *meshv1alpha1.ZoneCostsSpec) { s.Region, s.World = ptr.To(0.), ptr.To(0.) })
	top, err := planner.NewTopology([]planner.Zone{{Name: "a"}, {Name: "b"}},
		costTable{&free.Spec}.costs([]planner.Zone{{Name: "a"}, {Name: "b"}}))
	if err != nil || top.MaxCost() != 0 {
		t.Errorf("costs of 0 are %v, %v", top.MaxCost(), err)
	}
}

func TestHintsWhereNoneCanBePlanned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lost := workload("lost", "a", 9, true)
		lost.Spec.NodeName = ""
		r := newRig(t, nil, all(equalNodes("ab"), workloads("ab"), one(lost, adaptive()))...)
		r.wantHints("an endpoint without zone", "a1: b1: lost:")
		r.wantPercents("an endpoint without zone is far", "a", " 22.0 a 78.0")
		if c := r.condition(ConditionPlan); !strings.Contains(c, "no hints: an endpoint has no zone") {
			t.Error(c)
		}
		r.delete("Dataplane", "shop", "lost")
		r.wantHints("it is gone", "a1:a b1:b")
	})
	bubble(t, func(t *testing.T) {
		var nodes []resource.Object
		for i := range 65 {
			nodes = append(nodes, node(fmt.Sprintf("n%02d", i), fmt.Sprintf("z%02d", i)))
		}
		r := newRig(t, nil, all(nodes, equalNodes("ab"), workloads("ab"), one(adaptive()))...)
		r.wantHints("too many zones", "a1: b1:")
		r.annotate(AnnotationFallback, "zone")
		r.wantHints("too many zones, with a fallback", "a1:a b1:b")
		r.wantPercents("too many zones", "a", "a 100.0")
	})
}

// TestForeignEditsAreRepaired where hints are ours.
func TestForeignEditsAreRepaired(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("ab"), workloads("ab"), one(adaptive()))...)
		s := list[*discoveryv1.EndpointSlice](r, "EndpointSlice")[0]
		s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "b"}}}
		r.seed(s)
		r.wantHints("repaired", "a1:a b1:b")
	})
}

// TestRestartMovesNothing: what was published is published again.
func TestRestartMovesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaaabbc"), one(adaptive()))...)
		r.report(map[string]float64{"a": 10, "b": 11, "c": 9})
		before := r.hints() + r.condition(ConditionPlan)
		writes := 0
		r.client.Intercept(countSliceWrites(&writes))
		r.stop()
		r.start(nil)
		if after := r.hints() + r.condition(ConditionPlan); writes != 0 || strings.Split(after, "True")[0] != strings.Split(before, "True")[0] {
			t.Errorf("%d writes: %s, before %s", writes, after, before)
		}
	})
}

// TestPlanIsHonoured: from every zone, the choice that an agent makes from its view
// gives the shares of the plan, whatever the slices look like.
func TestPlanIsHonoured(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zones := rapid.SliceOfNDistinct(rapid.SampledFrom(strings.Split("abcdefgh", "")), 1, 8, rapid.ID[string]).Draw(t, "zones")
		f := &fakeDemand{rates: map[string]float64{}}
		var objects []resource.Object
		for _, z := range zones {
			n := node("node-"+z, z)
			n.Labels[corev1.LabelTopologyRegion] = rapid.SampledFrom([]string{"eu", "us"}).Draw(t, "region")
			if rapid.IntRange(0, 9).Draw(t, "down") == 0 {
				down(n)
			}
			objects = append(objects, n)
			f.rates[z] = rapid.Float64Range(0, 100).Draw(t, "rate")
		}
		service := adaptive(AnnotationOverload, rapid.SampledFrom([]string{"0", "0.2", "1"}).Draw(t, "overload"))
		objects = append(objects, service)
		for _, slice := range drawSlices(t, zones) {
			objects = append(objects, slice)
		}
		plan := planOf(t, New(Config{Demand: f}), snapshotOf(t, objects...), webKey)
		snapshot := snapshotOf(t, append(objects, plan[0])...)
		i := slices.IndexFunc(plan[0].Spec.Groups, func(g plannerv1alpha1.PortGroup) bool { return slices.Contains(g.Ports, "http") })
		if i < 0 || plan[0].Spec.Groups[i].Outcome != plannerv1alpha1.OutcomePlanned {
			return
		}
		for _, from := range plan[0].Spec.Groups[i].Zones {
			zone := from.Name
			if zone == noZone {
				continue
			}
			got := sharesOf(delivered(t, zone, snapshot), proxy.Port{Name: "http", Protocol: proxy.TCP}, zone)
			planned := map[string]float64{}
			for _, to := range from.To {
				planned[strings.TrimSuffix(to.Zone, noZone)] = to.Share
			}
			for _, to := range plan[0].Spec.Groups[i].Zones {
				name := strings.TrimSuffix(to.Name, noZone)
				if want := planned[name]; math.Abs(got[name]-want) > 0.002 {
					t.Fatalf("from %s to %q: %.4f of connections, %.4f is planned\n%v", zone, name, got[name], want, got)
				}
			}
		}
	})
}

// drawSlices draws endpoints with hints of anybody, packed anyhow. All have the port
// http, some one more.
func drawSlices(t *rapid.T, zones []string) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	ip := 0
	for i := range rapid.IntRange(1, 4).Draw(t, "slices") {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop",
				Name:      fmt.Sprintf("web-%d", i),
				Labels:    map[string]string{discoveryv1.LabelServiceName: "web"},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
		}
		if i == 0 {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: ptr.To("admin"), Port: ptr.To[int32](9), Protocol: ptr.To(corev1.ProtocolTCP)})
		}
		for range rapid.IntRange(0, 6).Draw(t, "endpoints") {
			ip++
			e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", ip)}}
			if z := rapid.SampledFrom(append(zones, "", "x")).Draw(t, "zone"); z != "" {
				e.Zone = &z
			}
			e.Conditions.Ready = rapid.SampledFrom([]*bool{nil, ptr.To(true), ptr.To(true), ptr.To(false)}).Draw(t, "ready")
			if z := rapid.SampledFrom(append(zones, "")).Draw(t, "hint"); z != "" {
				e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: z}}, ForNodes: []discoveryv1.ForNode{{Name: "node-" + z}}}
			}
			s.Endpoints = append(s.Endpoints, e)
		}
		out = append(out, s)
	}
	return out
}
