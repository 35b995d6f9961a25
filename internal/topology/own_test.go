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
		fail = "panic"
		r.seed(workload("more", "b", 7, true))
		if c := conditionOf(r, ConditionPlan); !strings.HasPrefix(c, "False") || !strings.Contains(c, "it panicked: of the heuristic") {
			t.Errorf("condition %q", c)
		}
	})
	for name, ok := range map[string]bool{
		"example.com/X": true, "x": false, "example/X": false, "proxima.dev/X": false, "heuristic.proxima.dev/X": false, "service.kubernetes.io/X": false,
	} {
		if err := (heuristic.Set{name: heuristic.Func(nil)}).Check(); (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (heuristic.Set{"example.com/X": nil}).Check(); err == nil {
		t.Error("a missing heuristic was taken")
	}
}
