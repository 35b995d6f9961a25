package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

// TestPolicies: the comparisons that the planner is built on hold, in a small mix.
func TestPolicies(t *testing.T) {
	var out bytes.Buffer
	c := compare(&out, 1, 300)
	rows := c.rows
	for _, v := range append(judgePolicies(c), judgeHints(1, 20)...) {
		if !v.pass() {
			t.Errorf("missed: %+v", v)
		}
	}
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

// TestDynamics: what planner.md promises for a step and for noise, with a margin for
// few runs.
func TestDynamics(t *testing.T) {
	var out bytes.Buffer
	all := dynamics(&out, 1, 20)
	for _, v := range append(judgeDynamics(all), judgeNear(all)...) {
		if !v.pass() {
			t.Errorf("missed: %+v", v)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// TestLab: every stage of the lab's long test settles well within its limit, which is
// 300 s, however many came before it.
func TestLab(t *testing.T) {
	var out bytes.Buffer
	for k, s := range lab(&out, 1, 20) {
		if s.settledMax > 100 || s.inZone > 1 || s.worstP99 > 1.35 {
			t.Errorf("%s: %+v", labStages[k].name, s)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// TestAutoscaler: one that looks at the mean leaves endpoints overloaded where traffic
// stays home, and does not where it is planned.
func TestAutoscaler(t *testing.T) {
	var out bytes.Buffer
	all := autoscalers(&out)
	if s := all["PreferSameZone"]; s.busiest < 1.5 {
		t.Errorf("at home: %+v", s)
	}
	if s := all["Adaptive weights"]; s.busiest > 1.2*scaleTarget*(1+scaleTolerance) || s.replicas != all["all endpoints alike"].replicas {
		t.Errorf("planned: %+v", s)
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// TestChoose: all parts, or those that are named; a name that is none is refused.
func TestChoose(t *testing.T) {
	for list, want := range map[string]string{"": strings.Join(partNames(), ","), "lab,dynamics": "dynamics,lab"} {
		chosen, err := choose(list)
		var got []string
		for _, p := range chosen {
			got = append(got, p.name)
		}
		if err != nil || strings.Join(got, ",") != want {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
	if _, err := choose("dynamics,dynamic"); err == nil || !strings.Contains(err.Error(), `"dynamic"`) {
		t.Errorf("an unknown part: %v", err)
	}
}

// TestJudge: a miss is a miss, in either direction, and so is what is no number.
func TestJudge(t *testing.T) {
	var out bytes.Buffer
	all := []verdict{
		{"a", 1, 2, "s", false}, {"b", 3, 2, "s", false}, {"c", 3, 2, "%", true}, {"d", 1, 2, "%", true}, {"e", math.NaN(), 2, "", false}, {"f", math.NaN(), 2, "", true},
	}
	if n := judge(&out, all); n != 4 || strings.Count(out.String(), "miss") != 4 || !strings.Contains(out.String(), "2 of 6 pass") {
		t.Errorf("%d misses:\n%s", n, &out)
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
