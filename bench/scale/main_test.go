package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestSmoke measures both with a few agents and Dataplanes, and writes a page.
func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "img"), 0o755); err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(dir, "scale.md")
	if err := os.WriteFile(page, []byte("before\n"+tableBegin+"old\n"+tableEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), testkit.Binary(t), smoke, "", dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before\n", "\n| 4 | ", "\n| 40 | ", "memory per agent", "after\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "old") {
		t.Error("the page still has the old table")
	}
	if picture, err := os.ReadFile(filepath.Join(dir, "img", "scale.svg")); err != nil || strings.Count(string(picture), "<circle") != 5 {
		t.Errorf("the plot: %v\n%s", err, picture)
	}
}

// TestCluster measures a small cluster: what is planned, and what is asked for.
func TestCluster(t *testing.T) {
	f, err := measureCluster(t.Context(), testkit.Binary(t), smoke)
	if err != nil {
		t.Fatal(err)
	}
	if n := smoke.cluster.services + 1; f.StartRequests["post trafficplans"] != n || f.StartRequests["put services/status"] != n {
		t.Errorf("requests at the start: %v", f.StartRequests)
	}
	// One change of three takes an endpoint away: a plan and a condition. Pods are not asked for.
	if f.ChangeRequests["put trafficplans"] > 1 || f.ChangeRequests["put services/status"] > 1 || f.StartRequests["watch pods"] != 0 {
		t.Errorf("requests of %d changes: %v; at the start: %v", f.Changes, f.ChangeRequests, f.StartRequests)
	}
	if table := f.table(); !strings.Contains(table, "6 nodes in 3 zones, 11 Services with 280 endpoints") {
		t.Error(table)
	}
}

func TestFit(t *testing.T) {
	l := fit([]int{10, 20, 30}, []float64{105, 205, 305})
	if math.Abs(l.base-5) > 1e-9 || math.Abs(l.slope-10) > 1e-9 || math.Abs(l.at(100)-1005) > 1e-9 {
		t.Errorf("line %+v", l)
	}
	if l := fit([]int{7}, []float64{3}); l.at(100) != 3 {
		t.Errorf("of one point: %+v", l)
	}
}

// TestBounds: a table says which bounds were met.
func TestBounds(t *testing.T) {
	f := figures{
		Fleets: []fleetFigures{{Agents: 500, Memory: 1e8}, {Agents: modelAgents, Memory: 2e8, Back: 31 * time.Second}},
		Global: []globalFigures{{Memory: 1e8}, {Endpoints: modelEndpoints, Memory: 5e9}},
	}
	table := f.table()
	for _, want := range []string{"memory per agent | 200 kB", "control planes of all zones | 20.0 GB", "≤ 30 s: missed", "≤ 6 GB: met"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q:\n%s", want, table)
		}
	}
}

func TestNumbers(t *testing.T) {
	var got []int
	if err := numbers("1,20", &got); err != nil || len(got) != 2 || got[1] != 20 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"x", "0", "2,1"} {
		if numbers(bad, &got) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
