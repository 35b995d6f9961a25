package topology

import (
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/heuristic"
)

// TestOwnHeuristic: a program's own heuristic decides hints and weights by its name; what it
// does wrong is said, and changes nothing.
func TestOwnHeuristic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fail := ""
		set := heuristic.Set{"example.com/FirstZone": heuristic.Func(func(q heuristic.Question) (heuristic.Answer, error) {
			if fail == "panic" {
				panic("of the heuristic")
			}
			q.Annotations["example.com/seen"] = "yes" // the question is its own
			a := heuristic.Answer{Zones: make([][]string, len(q.Endpoints)), Weights: make([][]float64, len(q.Endpoints))}
			for i, e := range q.Endpoints {
				a.Zones[i] = []string{q.Zones[0].Name}
				a.Weights[i] = make([]float64, len(q.Zones))
				for k := range q.Zones {
					if e.Zone == "a" {
						a.Weights[i][k] = 1
					}
				}
			}
			if q.Namespace != "shop" || q.Service != "web" || q.IPv6 {
				t.Errorf("asked about %+v", q)
			}
			return a, nil
		})}
		if err := set.Check(); err != nil {
			t.Fatal(err)
		}
		r := newRig(t, func(c *Config) { c.Heuristics = Own{Set: set, Other: Registry{}} },
			all(equalNodes("ab"), workloads("ab"), one(web(mode, "example.com/FirstZone")))...)
		if c := conditionOf(r, ConditionPlan); !strings.HasPrefix(c, "True Heuristic hints and weights are those of example.com/FirstZone") {
			t.Errorf("condition %q", c)
		}
		for _, s := range r.c.config.Catalog.Snapshot().Services.All() {
			if s.Annotations["example.com/seen"] != "" {
				t.Error("the heuristic has changed the tables")
			}
		}
		fail = "panic"
		r.seed(workload("more", "b", 7, true))
		if c := conditionOf(r, ConditionPlan); !strings.HasPrefix(c, "False") || !strings.Contains(c, "it panicked: of the heuristic") {
			t.Errorf("condition %q", c)
		}
	})
	for name, ok := range map[string]bool{
		"example.com/X": true, "mykubernetes.io/X": true, "x": false, "example/X": false, "proxima.dev/X": false, "heuristic.proxima.dev/X": false,
		"service.kubernetes.io/X": false, "gateway.networking.k8s.io/X": false,
	} {
		h := heuristic.Func(func(heuristic.Question) (a heuristic.Answer, err error) { return a, nil })
		if err := (heuristic.Set{name: h}).Check(); (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, missing := range []heuristic.Heuristic{nil, heuristic.Func(nil)} {
		if err := (heuristic.Set{"example.com/X": missing}).Check(); err == nil {
			t.Errorf("a missing heuristic (%T) was taken", missing)
		}
	}
}

// TestOwnHeuristicWithoutHints: an empty list is no hint, as none is.
func TestOwnHeuristicWithoutHints(t *testing.T) {
	h := own{heuristic.Func(func(q heuristic.Question) (heuristic.Answer, error) {
		return heuristic.Answer{Zones: [][]string{{}, nil, {"a"}}}, nil
	})}
	d, err := h.Decide(Question{Service: web(), Endpoints: make([]EndpointFacts, 3)})
	if err != nil || d.Hints[0] != nil || d.Hints[1] != nil || d.Hints[2] == nil {
		t.Errorf("%+v, %v", d, err)
	}
}
