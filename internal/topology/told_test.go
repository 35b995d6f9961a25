package topology

import (
	"errors"
	"strings"
	"testing"
)

// TestRefusalsAreEvents: a parameter that cannot be used is an Event, once; so is the end of it.
// Another process does not write them again.
func TestRefusalsAreEvents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aabbcc"), one(adaptive()))...)
		r.wantEvents("a plan is no event")

		r.annotate(AnnotationOverload, "wide")
		r.settle()
		invalid := "Warning TopologyParametersInvalid: " + strings.TrimPrefix(r.condition(ConditionParameters), "False Invalid: ")
		if !strings.Contains(invalid, "overload") {
			t.Fatalf("the condition is %q", r.condition(ConditionParameters))
		}
		r.wantEvents("a wrong parameter", invalid)

		r.stop()
		r.start(nil)
		r.wantEvents("another process", invalid)

		r.annotate(AnnotationOverload, "0.3")
		r.settle()
		r.wantEvents("a right one", invalid, "Normal TopologyParametersValid: all are in effect")
	})
}

// TestForeignSlices: where another controller has the EndpointSlices, nobody asks for hints, and
// conditions and Events are there all the same.
func TestForeignSlices(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &weigher{home: 3, away: 1}
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aabc"), one(web()))...)
		r.stop()
		foreign := func(c *Config) { c.ForeignSlices, c.Heuristics = true, Registry{weighing: h} }
		r.unadvised = true
		r.start(foreign)

		r.annotate(mode, weighing)
		r.settle()
		r.wantCondition("weights", ConditionPlan, "True Heuristic: weights are those of example.com/Weigher; "+
			"another controller manages its EndpointSlices, and decides about hints")
		r.wantEvents("weights")

		h.set(func() { h.err = errors.New("no answer today") })
		r.heuristicChanged(weighing)
		r.settle()
		failed := `topology mode "example.com/Weigher" failed, hints are left as they are: no answer today, addressType: IPv4`
		r.wantCondition("a rule that fails", ConditionPlan, "False Heuristic: "+failed+"; the last good weights stay in effect")
		r.wantEvents("a rule that fails", "Warning TopologyHeuristicFailed: "+failed+"; the last good weights stay in effect")

		r.annotate(mode, Adaptive)
		r.settle()
		if got := r.condition(ConditionPlan); !strings.HasPrefix(got, "True Planned: ") || strings.Contains(got, "hints") {
			t.Errorf("planned: condition %s", got)
		}

		r.annotate(mode, "Auto", AnnotationOverload, "wide")
		r.settle()
		r.wantCondition("Kubernetes' heuristic", ConditionPlan, "")
		if got := r.condition(ConditionParameters); !strings.HasPrefix(got, "False Invalid: ") {
			t.Errorf("Kubernetes' heuristic: parameters %q", got)
		}
	})
}
