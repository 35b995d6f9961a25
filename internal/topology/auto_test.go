package topology

import (
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
)

const (
	enabled  = "Normal TopologyAwareHintsEnabled: Topology Aware Hints has been enabled, addressType: IPv4"
	disabled = "Warning TopologyAwareHintsDisabled: "
	noNodes  = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4"
	mode     = corev1.AnnotationTopologyMode
	older    = corev1.DeprecatedAnnotationTopologyAwareHints
)

// bubble runs a test in fake time.
func bubble(t *testing.T, f func(t *testing.T)) { t.Helper(); synctest.Test(t, f) }

func distribution(s *corev1.Service, value string) *corev1.Service {
	s.Spec.TrafficDistribution = ptr.To(value)
	return s
}

// TestPrecedence: what of a Service decides over its hints.
func TestPrecedence(t *testing.T) {
	const byZone, byNode, none = "a1:a b1:b c1:c", "a1:a@node-a b1:b@node-b c1:c@node-c", "a1: b1: c1:"
	for _, c := range []struct {
		name    string
		service *corev1.Service
		hints   string
	}{
		{"nothing", web(), none},
		{"Auto", web(mode, "Auto"), byZone},
		{"auto", web(mode, "auto"), byZone},
		{"AUTO is not Auto", web(mode, "AUTO"), none},
		{"the older annotation", web(older, "Auto"), byZone},
		{"the older one wins, also to switch off", web(older, "disabled", mode, "Auto"), none},
		{"the older one wins, also empty", web(older, "", mode, "Auto"), none},
		{"the older one wins over Adaptive", web(older, "Auto", mode, Adaptive), byZone},
		{"PreferClose", distribution(web(), "PreferClose"), byZone},
		{"PreferSameZone", distribution(web(), "PreferSameZone"), byZone},
		{"PreferSameNode", distribution(web(), "PreferSameNode"), byNode},
		{"unknown distribution", distribution(web(), "PreferFar"), none},
		{"Auto wins over a distribution", distribution(web(mode, "Auto"), "PreferSameNode"), byZone},
		{"a value without meaning leaves the distribution", distribution(web(mode, "Disabled"), "PreferSameNode"), byNode},
		{"Adaptive wins over a distribution", distribution(adaptive(), "PreferSameNode"), byZone},
		{"an unknown heuristic leaves the distribution", distribution(web(mode, "example.com/Mine"), "PreferSameNode"), byNode},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil, all(equalNodes("abc"), workloads("abc"), one(c.service))...)
				r.wantHints("", c.hints)
			})
		})
	}
}

// TestAutoWinsThoughItYieldsNothing, so a distribution does not step in.
func TestAutoWinsThoughItYieldsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("ab"), one(distribution(web(mode, "Auto"), "PreferSameZone")))...)
		const message = "Insufficient number of endpoints (2 endpoints, 3 zones), addressType: IPv4"
		r.wantHints("too few", "a1: b1:")
		r.wantEvents("too few", disabled+message)
		r.wantCondition("too few", ConditionPlan, "False HintsDisabled: "+message)
		r.annotate(mode, "")
		r.wantHints("without the annotation", "a1:a b1:b")
		r.wantCondition("without the annotation", ConditionPlan, "")
	})
}

// TestAutoSaysOnce: an event for every change of mind, and none for syncs, restarts or
// reasons that are said already.
func TestAutoSaysOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("abc"), one(web(mode, "Auto")))...)
		r.wantEvents("enabled", enabled)
		r.wantCondition("enabled", ConditionPlan, "True HintsEnabled: Topology Aware Hints has been enabled, addressType: IPv4")
		r.seed(workloads("abcABC")...) // ready ones would be seen one by one
		r.stop()
		r.start(nil)
		r.wantEvents("more endpoints, and a restart", enabled)

		r.seed(node("new", "", zoneless))
		want := []string{enabled, disabled + noNodes}
		r.wantHints("a node without zone", "a1: a2: b1: b2: c1: c2:")
		r.wantEvents("a node without zone", want...)
		r.seed(workloads("abcAB")...)
		r.stop()
		r.start(nil)
		r.wantEvents("another sync, and a restart", want...)
		r.wantCondition("a node without zone", ConditionPlan, "False HintsDisabled: "+noNodes)

		r.delete("Node", "", "new")
		want = append(want, enabled)
		r.wantHints("the node is gone", "a1:a a2: b1:b b2: c1:c c2:")
		r.wantEvents("the node is gone", want...)

		r.annotate(mode, "")
		want = append(want, disabled+"Topology Aware Hints has been disabled, addressType: IPv4")
		r.wantHints("switched off", "a1: a2: b1: b2: c1: c2:")
		r.wantEvents("switched off", want...)
		r.wantCondition("switched off", ConditionPlan, "")
	})
}

// TestNodesRequeueAuto: whatever changes the ratios is followed at once, and so is the
// way back. There are too few endpoints for three zones, and enough for two.
func TestNodesRequeueAuto(t *testing.T) {
	for _, c := range []struct {
		name             string
		endpoints, hints string
		node             *corev1.Node
		want             string
	}{
		{"label gone", "abc", "a1:a b1:b c1:c", node("node-c", "c", zoneless), "a1: b1: c1:"},
		{"CPU gone", "abc", "a1:a b1:b c1:c", node("node-c", "c", cpu("0")), "a1: b1: c1:"},
		{"CPU grown", "aaabbbccc", "a1:a a2:a a3:a b1:b b2:b b3:b c1:c c2:c c3:c", node("node-c", "c", cpu("16")), "a1:c a2:a a3:a b1:c b2:b b3:b c1:c c2:c c3:c"},
		{"not ready", "ab", "a1: b1:", node("node-c", "c", down), "a1:a b1:b"},
		{"control plane", "ab", "a1: b1:", node("node-c", "c", master), "a1:a b1:b"},
		{"taints are nothing to Kubernetes' heuristic", "ab", "a1: b1:", node("node-c", "c", evicted), "a1: b1:"},
		{"a heartbeat", "abc", "a1:a b1:b c1:c", node("node-c", "c", func(n *corev1.Node) { n.Status.Conditions[0].Message = "fine" }), "a1:a b1:b c1:c"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil, all(equalNodes("abc"), workloads(c.endpoints), one(web(mode, "Auto")))...)
				r.wantHints("before", c.hints)
				r.client.Seed(c.node)
				synctest.Wait()
				r.wantHints("at once", c.want)
				r.settle()
				r.seed(node("node-c", "c"))
				r.wantHints("recovered", c.hints)
			})
		})
	}
}

// TestAutoWaitsForNodes: a control plane that begins does not take hints away for not
// knowing the nodes yet.
func TestAutoWaitsForNodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("abc"), one(web(mode, "Auto")))...)
		writes := 0
		r.client.Intercept(countSliceWrites(&writes))
		for range 3 {
			r.stop()
			r.start(nil)
		}
		if writes != 0 {
			t.Errorf("%d writes of slices by restarts", writes)
		}
	})
}

// TestThresholdOfService: 4/4/3 in equal zones is what Kubernetes gives up.
func TestThresholdOfService(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaaabbbbccc"), one(web(mode, "Auto")))...)
		r.wantHints("0.2", "a1: a2: a3: a4: b1: b2: b3: b4: c1: c2: c3:")
		r.annotate(AnnotationOverload, "0.25")
		const hinted = "a1:a a2:a a3:a a4:a b1:b b2:b b3:b b4:b c1:c c2:c c3:c"
		r.wantHints("0.25", hinted)
		r.wantCondition("0.25", ConditionParameters, "True Valid: all are in effect")
		r.annotate(AnnotationOverload, "a lot")
		r.wantHints("what cannot be read changes nothing", hinted)
		r.wantCondition("bad", ConditionParameters,
			`False Invalid: topology.proxima.dev/overload="a lot": must be a number from 0 to 10; the last good parameters stay in effect`)
		r.annotate(AnnotationOverload, "")
		r.wantHints("back", "a1: a2: a3: a4: b1: b2: b3: b4: c1: c2: c3:")
		r.wantCondition("back", ConditionParameters, "")
	})
}

// first hints everything to the first zone of the cluster, or fails.
type first struct{ err error }

func (f *first) Decide(q Question) (Decision, error) {
	out := make([]*auto.Hints, len(q.Endpoints))
	for i := range out {
		out[i] = &auto.Hints{ForZones: []locality.Zone{q.Zones[0].Name}}
	}
	return Decision{Hints: out}, f.err
}

// TestCustomHeuristics are asked by name; without one, or after an error, hints stay
// as they are and an event says so, once.
func TestCustomHeuristics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		mine := &first{}
		known := Registry{"example.com/First": mine}
		r := newRig(t, func(c *Config) { c.Heuristics = known },
			all(equalNodes("abc"), workloads("abc"), one(web(mode, "example.com/First")))...)
		r.wantHints("asked", "a1:a b1:a c1:a")
		r.wantCondition("asked", ConditionPlan, "True Heuristic: hints are those of example.com/First")
		r.wantEvents("asked")

		mine.err = errors.New("out of ideas")
		r.heuristicChanged("example.com/First")
		r.seed(workloads("abca")...)
		r.wantHints("failed: those there are stay", "a1:a a2: b1:a c1:a")
		want := []string{
			`Warning TopologyHeuristicFailed: topology mode "example.com/First" failed, hints are left as they are: out of ideas, addressType: IPv4`}
		r.wantEvents("failed", want...)

		r.annotate(mode, "example.com/Second")
		r.wantHints("unknown: as if it were not there", "a1: a2: b1: c1:")
		r.seed(workloads("abca")...)
		const unknown = `topology mode "example.com/Second" is not known here: hints are those of spec.trafficDistribution, addressType: IPv4`
		want = append(want, "Warning TopologyHeuristicUnknown: "+unknown)
		r.wantEvents("unknown", want...)
		r.wantCondition("unknown", ConditionPlan, "False Heuristic: "+unknown)
		r.seed(distribution(web(mode, "example.com/Second"), corev1.ServiceTrafficDistributionPreferSameZone))
		r.wantHints("unknown: spec.trafficDistribution is obeyed", "a1:a a2:a b1:b c1:c")

		known["example.com/Second"] = &first{}
		r.heuristicChanged("example.com/Second")
		r.settle()
		r.wantHints("now it is known", "a1:a a2:a b1:a c1:a")
	})
}

func TestAnswersOfHeuristicsAreChecked(t *testing.T) {
	q := Question{Zones: []ZoneFacts{{Name: "a"}, {Name: "b"}}, Endpoints: make([]EndpointFacts, 2)}
	none := []*auto.Hints{nil, nil}
	for name, c := range map[string]struct {
		answer Decision
		want   string
	}{
		"none":               {Decision{Hints: none}, ""},
		"too few":            {Decision{Hints: none[:1]}, "1 hints for 2 endpoints"},
		"too many":           {Decision{Hints: []*auto.Hints{{ForZones: locality.Zones(strings.Split("abcdefghi", "")...)}, nil}}, "endpoint 0: 9 hints"},
		"doubled":            {Decision{Hints: []*auto.Hints{{ForZones: locality.Zones("a", "a")}, nil}}, "endpoint 0: hints [a a]"},
		"empty":              {Decision{Hints: []*auto.Hints{{ForNodes: []string{""}}, nil}}, "endpoint 0: hints []"},
		"weights":            {Decision{Hints: none, Weights: [][]float64{{0, 1}, {2.5, 1e9}}}, ""},
		"weights of too few": {Decision{Hints: none, Weights: [][]float64{{0, 1}}}, "weights of 1 endpoints for 2"},
		"too few weights":    {Decision{Hints: none, Weights: [][]float64{{0, 1}, {1}}}, "endpoint 1: 1 weights for 2 zones"},
		"negative":           {Decision{Hints: none, Weights: [][]float64{{0, -1}, {1, 1}}}, "endpoint 0: weight -1 for zone b"},
		"no number":          {Decision{Hints: none, Weights: [][]float64{{0, 1}, {math.NaN(), 1}}}, "endpoint 1: weight NaN for zone a"},
		"infinite":           {Decision{Hints: none, Weights: [][]float64{{math.Inf(1), 1}, {1, 1}}}, "endpoint 0: weight +Inf for zone a"},
		"above":              {Decision{Hints: none, Weights: [][]float64{{1, 1.1e9}, {1, 1}}}, "endpoint 0: weight 1.1e+09 for zone b"},
	} {
		if err := c.answer.check(q); (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
