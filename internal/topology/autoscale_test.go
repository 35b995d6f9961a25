package topology

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
)

// utilisation is what the metric for autoscalers says; ok is false if there is no series.
func (r *rig) utilisation() (value float64, ok bool) {
	r.t.Helper()
	const name = "proxima_topology_utilisation_ratio"
	text, err := testutil.CollectAndFormat(r.c, expfmt.TypeTextPlain, name)
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.HasPrefix(line, name) {
			if value, err = strconv.ParseFloat(fields[1], 64); err != nil {
				r.t.Fatal(err)
			}
			ok = true
		}
	}
	return value, ok
}

// TestUtilisation: what is measured, per endpoint of the busiest zone, by the capacity that
// the Service states.
func TestUtilisation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aabbcc"), one(adaptive(AnnotationCapacity, "10")))...)
		want := func(what string, value float64) {
			t.Helper()
			if got, ok := r.utilisation(); ok != (value > 0) || math.Abs(got-value) > 1e-9 {
				t.Errorf("%s: %v, %t; want %v", what, got, ok, value)
			}
		}
		want("nothing is measured", 0)
		r.report(map[string]float64{"a": 10, "b": 10, "c": 10})
		want("half used", 0.5)
		report, _ := r.c.Explain(webKey)
		if text := report.Text(""); !strings.Contains(text, "utilisation of the busiest zone: 50 %, of 10 connections/s that an endpoint takes") {
			t.Error(text)
		}
		// The limit of 1.17 times the mean sends the rest away.
		r.report(map[string]float64{"a": 40, "b": 10, "c": 10})
		want("one zone is full", 1.17)
		r.seed(workload("a3", "a", 50, true), workload("b3", "b", 51, true), workload("c3", "c", 52, true))
		want("three more endpoints", 1.17*6/9)
		r.reweigh("a1", weight(50))
		r.reweigh("a2", weight(50))
		r.reweigh("a3", weight(50))
		want("endpoints of half the weight take half", 60./75*1.17)
		r.annotate(AnnotationOverload, "much")
		want("other annotations cannot be used", 60./75*1.17)
		r.annotate(AnnotationOverload, "", AnnotationCapacity, "20")
		want("another capacity", 60./150*1.17)
		r.annotate(AnnotationCapacity, "", AnnotationUtilisation, "0.7")
		want("stated of all", 0.7*1.17)
	})
}

// TestAutoscalerConverges: Kubernetes' rule on the metric, for steps of the demand of a zone up
// and down, with endpoints that are added to and removed from the zones in turn, ends where
// it changes nothing, and the busiest zone is below the target and its tolerance.
func TestAutoscalerConverges(t *testing.T) {
	for _, tc := range []struct {
		name  string
		steps []map[string]float64
	}{
		{"a zone grows", []map[string]float64{{"a": 20, "b": 20, "c": 20}, {"a": 120, "b": 20, "c": 20}}},
		{"and shrinks", []map[string]float64{{"a": 150, "b": 10, "c": 10}, {"a": 10, "b": 10, "c": 10}}},
		{"one zone alone", []map[string]float64{{"c": 37}, {"c": 95}, {"c": 12}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const capacity, target = 10, 0.7
				r := newRig(t, nil, all(equalNodes("abc"), workloads("abc"), one(adaptive(AnnotationCapacity, fmt.Sprint(capacity))))...)
				s := &scaler{rig: r, target: target, names: []string{"a1", "b1", "c1"}}
				for _, rates := range tc.steps {
					s.decisions = nil
					for range 10 {
						r.report(rates)
						s.decide()
					}
					t.Logf("%v: %v", rates, s.decisions)
					last := s.decisions[len(s.decisions)-5:]
					if slices.Min(last) != slices.Max(last) {
						t.Errorf("it does not settle: %v", s.decisions)
					}
					use, _ := r.utilisation()
					if use > target*(1+tolerance) || len(s.names) > 1 && use < target*(1-tolerance)*float64(len(s.names)-1)/float64(len(s.names)+1) {
						t.Errorf("with %d endpoints the busiest zone is used %.2f, want about %.2f", len(s.names), use, target)
					}
				}
			})
		})
	}
}

// tolerance of Kubernetes' rule (--horizontal-pod-autoscaler-tolerance).
const tolerance = 0.1

// scaler is Kubernetes' rule (HorizontalPodAutoscaler, "Algorithm details").
type scaler struct {
	*rig
	target    float64
	names     []string
	made      int
	decisions []int
}

func (s *scaler) decide() {
	s.t.Helper()
	use, ok := s.utilisation()
	if !ok {
		return
	}
	if ratio := use / s.target; math.Abs(ratio-1) > tolerance {
		s.scale(max(1, int(math.Ceil(float64(len(s.names))*ratio))))
	}
	s.decisions = append(s.decisions, len(s.names))
}

func (s *scaler) scale(to int) {
	s.t.Helper()
	for len(s.names) < to {
		zone := string("abc"[len(s.names)%3])
		s.made++
		name := fmt.Sprintf("%s-more-%d", zone, s.made)
		s.client.Seed(workload(name, zone, 100+s.made, true))
		s.names = append(s.names, name)
	}
	for len(s.names) > to {
		last := len(s.names) - 1
		s.rig.delete("Dataplane", "shop", s.names[last])
		s.names = s.names[:last]
	}
	s.settle()
}
