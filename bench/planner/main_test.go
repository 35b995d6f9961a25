package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestPolicies: the comparisons that the planner is built on hold, in a small mix.
func TestPolicies(t *testing.T) {
	var out bytes.Buffer
	rows := compare(&out, 1, 300)
	weights, optimum := rows["Adaptive weights"], rows["optimum, ε = 0.2 (min-cost flow)"]
	if d := weights.cost - optimum.cost; weights.none != 0 || d > 1e-6 || d < -1e-6 {
		t.Errorf("weights: %d without a plan, cost %v, optimum %v", weights.none, weights.cost, optimum.cost)
	}
	for _, name := range []string{"Adaptive weights", "Adaptive hints, strict", "waterfall, capacity 1.2"} {
		if rows[name].over > 0 {
			t.Errorf("%s: %d above the limit", name, rows[name].over)
		}
	}
	if soft := rows["Adaptive hints, soft"]; quantile(soft.worst, 1) > 1.5+1e-6 || soft.none != 0 {
		t.Errorf("soft hints: worst %v, %d without", quantile(soft.worst, 1), soft.none)
	}
	if auto := rows["Auto"]; auto.none < 60 || auto.over == 0 {
		t.Errorf("Auto: %d without a plan, %d overloaded", auto.none, auto.over)
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// TestDynamics: what planner.md promises for a step and for noise, with room for
// few runs.
func TestDynamics(t *testing.T) {
	var out bytes.Buffer
	all := dynamics(&out, 1, 20)
	for _, name := range []string{"step 80/10/10 to 10/80/10", "step 50/30/20 to 30/50/20"} {
		if s := all[name]; s.settledP50 > 200 || s.worstP99 > 1.35 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if s := all["steady"]; s.gapMean > 1.5 || s.above > 3 || s.churnPerMinute > 0.4 {
		t.Errorf("steady: %+v", s)
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// TestTimings runs every line; the figures are for people.
func TestTimings(t *testing.T) {
	var out bytes.Buffer
	timings(&out, 1, 1, 20)
	if n := strings.Count(out.String(), "\n"); n != 9 {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
}

// TestPlot draws every sample, as XML that can be read.
func TestPlot(t *testing.T) {
	var out bytes.Buffer
	samples := `[{"second":5,"inZone":0.5,"best":0.6,"worst":3,"bestWorst":1.17,"event":"a < b"},{"second":10,"inZone":0.6,"best":0.6,"worst":1.2,"bestWorst":1.17}]`
	if err := plot(&out, strings.NewReader(samples)); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "<polyline"); n != 4 || !strings.Contains(out.String(), "a &lt; b") {
		t.Errorf("%d lines:\n%s", n, &out)
	}
	for d := xml.NewDecoder(&out); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"", "[]", `[{"second":0}]`, "{"} {
		if err := plot(io.Discard, strings.NewReader(bad)); err == nil {
			t.Errorf("%q is drawn", bad)
		}
	}
}
