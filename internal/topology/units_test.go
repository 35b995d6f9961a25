package topology

import (
	"strings"
	"sync/atomic"
	"testing"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func (f *fakeDemand) Units(proxy.PortName) demand.Units {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.units
}

func (f *fakeDemand) Utilisation(proxy.PortName) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.used
}

func (f *fakeDemand) Rate(proxy.PortName) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := 0.0
	for _, r := range f.rates {
		sum += r
	}
	return sum
}

// state what endpoints say, or how demand is counted, and let it take effect.
func (r *rig) state(units demand.Units, used float64) {
	r.demand.mu.Lock()
	r.demand.units, r.demand.used = units, used
	r.demand.mu.Unlock()
	r.report(map[string]float64{"a": 8, "b": 1, "c": 1})
}

func (r *rig) plannedUtilisation() float64 {
	return list[*plannerv1alpha1.TrafficPlan](r, "TrafficPlan")[0].Spec.Parameters.Utilisation
}

// TestStatedUtilisation: what endpoints state is planned with, unless the Service sets it; it
// changes a plan when it changes by more than its noise, and is held over a restart.
func TestStatedUtilisation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaabbbccc"), one(adaptive()))...)
		r.state(demand.Units{}, 0)
		if u := r.plannedUtilisation(); u != 0 {
			t.Errorf("nothing is stated, planned with %g", u)
		}
		before := r.percents("a")
		r.state(demand.Units{}, 0.203)
		if u := r.plannedUtilisation(); u != 0.2 {
			t.Errorf("0.203 is stated, planned with %g", u)
		}
		if after := r.percents("a"); after == before || !strings.HasPrefix(after, "a 100") {
			t.Errorf("zone a, with lightly used endpoints, sends %s; before %s", after, before)
		}
		report, _ := r.c.Explain(webKey)
		if text := report.Text(""); !strings.Contains(text, "endpoints state in their responses (ORCA) that they are 20 % used") ||
			!strings.Contains(text, "as endpoints are only 20 % used") {
			t.Errorf("explained as\n%s", text)
		}
		r.state(demand.Units{}, 0.215)
		if u := r.plannedUtilisation(); u != 0.2 {
			t.Errorf("within the noise it became %g", u)
		}
		r.state(demand.Units{}, 0.5)
		if u := r.plannedUtilisation(); u != 0.5 {
			t.Errorf("0.5 is stated, planned with %g", u)
		}
		r.state(demand.Units{}, 0)
		if u := r.plannedUtilisation(); u != 0 {
			t.Errorf("nothing is stated any more, planned with %g", u)
		}
	})
}

// TestUtilisationOfAnnotation: what the Service says holds.
func TestUtilisationOfAnnotation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		service := adaptive()
		service.Annotations[AnnotationUtilisation] = "0.9"
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaabbbccc"), one(service))...)
		r.state(demand.Units{}, 0.2)
		if u := r.plannedUtilisation(); u != 0.9 {
			t.Errorf("planned with %g", u)
		}
		report, _ := r.c.Explain(webKey)
		if report.Params.Stated {
			t.Error("explained as stated by endpoints")
		}
	})
}

// TestUtilisationIsHeld: as long as too few have reported after a restart, a plan keeps what it
// was made with.
func TestUtilisationIsHeld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var cold atomic.Bool
		r := newRig(t, func(c *Config) { c.Warm = func() bool { return !cold.Load() } }, all(equalNodes("abc"), workloads("aaabbbccc"), one(adaptive()))...)
		r.state(demand.Units{}, 0.2)
		cold.Store(true)
		r.state(demand.Units{}, 0)
		if u := r.plannedUtilisation(); u != 0.2 {
			t.Errorf("while it is cold, planned with %g", u)
		}
	})
}

// TestMixedUnits: the condition is there while a port's demand is counted in both, and explain
// says who counted it.
func TestMixedUnits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaabbbccc"), one(adaptive()))...)
		r.state(demand.Units{Nodes: 1}, 0)
		report, _ := r.c.Explain(webKey)
		if c := conditionOf(r, ConditionUnits); c != "" || report.Plans[0].Units != nil || !strings.Contains(report.Text(""), "10 connections/s") {
			t.Errorf("nodes alone: condition %q\n%s", c, report.Text(""))
		}
		r.state(demand.Units{Requests: 1}, 0)
		report, _ = r.c.Explain(webKey)
		if c := conditionOf(r, ConditionUnits); c != "" || !strings.Contains(report.Text(""), "10 requests/s") {
			t.Errorf("HTTP proxies alone: condition %q\n%s", c, report.Text(""))
		}
		r.state(demand.Units{Nodes: 0.004, ProxyConnections: 0.096, Requests: 0.9, Mixed: true}, 0)
		c := conditionOf(r, ConditionUnits)
		sources := "< 1 % connections that nodes count, 10 % connections that proxies report, 90 % HTTP requests that proxies report"
		for _, want := range []string{"True DemandUnitsMixed http: ", sources, "a sidecar, or none"} {
			if !strings.Contains(c, want) {
				t.Errorf("the condition does not say %q: %s", want, c)
			}
		}
		report, _ = r.c.Explain(webKey)
		if text := report.Text(""); !strings.Contains(text, "demand: "+sources) || !strings.Contains(text, "10 connections and requests/s") {
			t.Errorf("explained as\n%s", text)
		}
		version := r.service().ResourceVersion
		r.state(demand.Units{Nodes: 0.5, Requests: 0.5, Mixed: true}, 0)
		if r.service().ResourceVersion != version {
			t.Error("the condition was written again, though it still holds")
		}
		r.state(demand.Units{Requests: 1}, 0)
		if c := conditionOf(r, ConditionUnits); c != "" {
			t.Errorf("once all clients have proxies: %s", c)
		}
	})
}
