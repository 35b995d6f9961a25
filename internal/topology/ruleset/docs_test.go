package ruleset

import (
	"os"
	"regexp"
	"testing"

	"sigs.k8s.io/yaml"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/planner/rule"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestDocumentedRules are good ones, and leave no zone out where zones are many.
func TestDocumentedRules(t *testing.T) {
	text, err := os.ReadFile("../../../docs/concepts/heuristics.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1)
	if len(blocks) < 3 {
		t.Fatalf("%d examples found", len(blocks))
	}
	for _, block := range blocks {
		h := &meshv1alpha1.TopologyHeuristic{}
		if err := yaml.UnmarshalStrict(block[1], h); err != nil {
			t.Fatalf("%v\n%s", err, block[1])
		}
		kind.TopologyHeuristic.Default(h)
		p, err := rule.Compile(kind.HeuristicSpec(h))
		if err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
		in := rule.Input{
			Zones: []rule.Zone{{Name: "a", Region: "r", Demand: 0.6, Capacity: 0.5}, {Name: "b", Region: "r", Demand: 0.3, Capacity: 0.5},
				{Name: "c", Region: "s", Demand: 0.1}},
		}
		in.Endpoints = []rule.Endpoint{{Address: "1", Zone: "a", Region: "r", Ready: true}, {Address: "2", Zone: "b", Region: "r", Ready: true}}
		if r, err := p.Eval(t.Context(), in); err != nil || len(r.Zones[0]) == 0 {
			t.Errorf("%s: %+v, %v", h.Name, r, err)
		}
	}
}
