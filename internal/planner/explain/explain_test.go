package explain

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
)

// situation is read as: demand and endpoints of zones a, b, c in one region and d in
// another.
type situation struct {
	name    string
	demand  []float64
	weight  []int64
	noNodes []bool
	params  planner.Params
}

func situations() []situation {
	given, estimated := planner.DefaultParams(false), planner.DefaultParams(true)
	busy, idle := given, given
	busy.Utilisation, idle.Utilisation = 0.9, 0.1
	return []situation{
		{"balanced", []float64{1, 1, 1, 1}, []int64{3, 3, 3, 3}, nil, given},
		{"443", []float64{1, 1, 1, 0}, []int64{4, 4, 3, 0}, nil, given},
		{"443-estimated", []float64{1, 1, 1, 0}, []int64{4, 4, 3, 0}, nil, estimated},
		{"900", []float64{1, 1, 1, 0}, []int64{9, 0, 0, 0}, nil, given},
		{"one-zone-traffic", []float64{1, 0, 0, 0}, []int64{3, 3, 3, 0}, nil, given},
		{"two-endpoints", []float64{1, 1, 1, 1}, []int64{1, 1, 0, 0}, nil, given},
		{"region-full", []float64{5, 3, 3, 1}, []int64{2, 2, 2, 6}, nil, given},
		{"no-endpoints", []float64{1, 1, 1, 1}, []int64{0, 0, 0, 0}, nil, given},
		{"no-demand", []float64{0, 0, 0, 0}, []int64{2, 0, 1, 0}, nil, given},
		{"dead-zone", []float64{4, 1, 1, 0}, []int64{2, 2, 2, 0}, []bool{true, false, false, false}, given},
		{"busy", []float64{2, 1, 1, 0}, []int64{2, 2, 2, 0}, nil, busy},
		{"idle", []float64{8, 1, 1, 0}, []int64{2, 2, 2, 0}, nil, idle},
	}
}

func explainOne(t *testing.T, s situation) *Explanation {
	t.Helper()
	top, err := planner.NewTopology(
		[]planner.Zone{{Name: "a", Region: "eu"}, {Name: "b", Region: "eu"}, {Name: "c", Region: "eu"}, {Name: "d", Region: "us"}},
		planner.Costs{})
	if err != nil {
		t.Fatal(err)
	}
	p := &planner.Problem{Demand: s.demand, Weight: s.weight, NoNodes: s.noNodes, Params: s.params}
	plan, err := planner.Solve(top, p)
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{Ratios: auto.RatiosOf([]auto.Node{
		{Zone: "a", Ready: true, NanoCPU: 4e9}, {Zone: "b", Ready: true, NanoCPU: 4e9}, {Zone: "c", Ready: true, NanoCPU: 4e9},
	})}
	for z, n := range s.weight {
		for range n {
			c.Endpoints = append(c.Endpoints, z)
		}
	}
	return Of(plan, p, c)
}

// TestText compares every situation with testdata/explain.txt; set PROXIMA_GOLDEN=1 to
// write it again.
func TestText(t *testing.T) {
	var b strings.Builder
	for _, s := range situations() {
		b.WriteString("-- " + s.name + " --\n" + explainOne(t, s).String() + "\n")
	}
	file := filepath.Join("testdata", "explain.txt")
	if os.Getenv("PROXIMA_GOLDEN") == "1" {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Error(diff)
	}
}

// TestMissingEndpointsSuffice: what the explanation says would help does, and one
// less does not.
func TestMissingEndpointsSuffice(t *testing.T) {
	for _, s := range situations() {
		e := explainOne(t, s)
		for i, z := range e.Zones {
			if z.EndpointsMissing == 0 {
				continue
			}
			p := &planner.Problem{Demand: s.demand, Weight: s.weight, NoNodes: s.noNodes, Params: s.params}
			for _, off := range []int64{-1, 0} {
				more, err := AddEndpoints(p, i, z.EndpointsMissing+off)
				if err != nil {
					t.Fatal(err)
				}
				s.weight = more.Weight
				if home := explainOne(t, s).Zones[i].Rule == "Home"; home != (off == 0) {
					t.Errorf("%s, zone %s with %+d: home is %v", s.name, z.Name, z.EndpointsMissing+off, home)
				}
				s.weight = p.Weight
			}
		}
	}
}

func TestWhatIf(t *testing.T) {
	s := situations()[0]
	p := &planner.Problem{Demand: s.demand, Weight: s.weight, Params: s.params}
	failed := FailZone(p, 0)
	s.demand, s.weight, s.noNodes = failed.Demand, failed.Weight, failed.NoNodes
	e := explainOne(t, s)
	if e.Zones[0].Demand != 0 || e.Metrics.InZone != 1 {
		t.Errorf("a failed: %+v", e)
	}
	if diff := cmp.Diff(situations()[0].weight, p.Weight); diff != "" || p.NoNodes != nil {
		t.Errorf("the real problem changed: %s", diff)
	}
	for _, bad := range []float64{math.NaN(), -1, math.Inf(1)} {
		if _, err := ScaleDemand(p, 0, bad); err == nil {
			t.Errorf("demand ×%v was accepted", bad)
		}
	}
	if _, err := AddEndpoints(p, 0, -4); err == nil {
		t.Error("fewer than no endpoints were accepted")
	}
	scaled, err := ScaleDemand(p, 1, 3)
	if err != nil || scaled.Demand[1] != 3 || p.Demand[1] != 1 {
		t.Errorf("%+v, %v", scaled, err)
	}
}

func TestJSON(t *testing.T) {
	for _, s := range situations() {
		if _, err := json.Marshal(explainOne(t, s)); err != nil {
			t.Errorf("%s: %v", s.name, err) // such as a NaN
		}
	}
}
