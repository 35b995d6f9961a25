package rule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestWeights(t *testing.T) {
	const nearer = `zone.name == endpoint.zone ? 8.0 : zone.region == endpoint.region ? 2.0 : 0.0`
	unready := input()
	unready.Endpoints[2].Ready = false
	stray := input()
	stray.Endpoints = append(stray.Endpoints, Endpoint{Address: "9", Zone: "gone", Ready: true})
	many := Input{Endpoints: []Endpoint{{Address: "1", Zone: "z00", Ready: true}}}
	for i := range 12 {
		many.Zones = append(many.Zones, Zone{Name: fmt.Sprintf("z%02d", i), CPU: float64(i)})
	}
	for name, tc := range map[string]struct {
		spec   Spec
		in     Input
		want   [][]float64
		zones  string // of each endpoint, letters, apart by spaces
		filled []string
		fail   string
	}{
		"nearer is more, the rest filled": {spec: Spec{Weight: nearer}, want: [][]float64{{8, 2, 1}, {8, 2, 1}, {2, 8, 1}}, zones: "abc abc abc", filled: []string{"c"}},
		"the rest stays":                  {spec: Spec{Weight: nearer, Fallback: None}, want: [][]float64{{8, 2, 0}, {8, 2, 0}, {2, 8, 0}}, zones: "ab ab ab"},
		"the rest fails":                  {spec: Spec{Weight: nearer, Fallback: Fail}, fail: "zone c may use no endpoint"},
		"0 takes a zone away": {spec: Spec{Weight: `zone.name == "c" || zone.name == endpoint.zone ? 1 : 0`},
			want: [][]float64{{1, 0, 1}, {1, 0, 1}, {0, 1, 1}}, zones: "ac ac bc"},
		"of allowed zones only": {spec: Spec{Zones: `[endpoint.zone, "c"]`, Weight: `zone.name == "c" ? 3 : 1`},
			want: [][]float64{{1, 0, 3}, {1, 0, 3}, {0, 1, 3}}, zones: "ac ac bc"},
		"only ready ones": {spec: Spec{Weight: `2u`}, in: unready, want: [][]float64{{2, 2, 2}, {2, 2, 2}, {0, 0, 0}}, zones: "abc abc "},
		"variables and demand": {spec: Spec{Variables: []Variable{{"top", `zones.map(z, z.demand).filter(d, d > 0.5)[0]`}}, Weight: `zone.demand == top ? top * 10.0 : 1.0`},
			want: [][]float64{{1, 7, 1}, {1, 7, 1}, {1, 7, 1}}, zones: "abc abc abc"},
		"an endpoint whose zone is gone": {spec: Spec{Zones: `[endpoint.zone]`, Weight: `1`, Fallback: None}, in: stray,
			want: [][]float64{{1, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 0}}, zones: "a a b gone"},
		"no ready endpoint": {spec: Spec{Weight: `1`, Fallback: Fail}, in: Input{Zones: input().Zones, Endpoints: []Endpoint{{Zone: "a"}}}, want: [][]float64{{0, 0, 0}}},
		"negative":          {spec: Spec{Weight: `zone.demand - 0.5`}, fail: "weight of endpoint 10.0.0.1 for zone a: -0.3, not a number from 0 to 1000000"},
		"no number":         {spec: Spec{Weight: `(zone.demand - zone.demand) / 0.0`}, fail: "for zone a: NaN, not a number"},
		"infinite":          {spec: Spec{Weight: `1.0 / zone.capacity`}, fail: "for zone c: +Inf, not a number"},
		"too much":          {spec: Spec{Weight: `1000001`}, fail: "1.000001e+06, not a number from 0 to 1000000"},
		"overflow":          {spec: Spec{Weight: `9223372036854775807 + zone.endpoints`}, fail: "weight of endpoint 10.0.0.1 for zone a: integer overflow"},
		"no zone":           {spec: Spec{Weight: `endpoint.zone == "b" ? 0 : 1`}, fail: "weight of endpoint 10.0.0.3: 0 for every zone"},
		"failing":           {spec: Spec{Weight: `zones[7].cpu`}, fail: "weight of endpoint 10.0.0.1 for zone a: index out of bounds: 7"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.in.Zones == nil {
				tc.in = input()
			}
			r, err := compiled(t, tc.spec).Eval(t.Context(), tc.in)
			if tc.fail != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fail) || r != nil {
					t.Fatalf("%v, want an error with %q", err, tc.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, r.Weights); diff != "" {
				t.Errorf("weights (-want +got):\n%s", diff)
			}
			var zones []string
			for _, list := range r.Zones {
				zones = append(zones, strings.Join(list, ""))
			}
			if got := strings.Join(zones, " "); got != tc.zones {
				t.Errorf("zones %q, want %q", got, tc.zones)
			}
			if diff := cmp.Diff(tc.filled, r.Filled); diff != "" {
				t.Errorf("filled (-want +got):\n%s", diff)
			}
		})
	}
	r, err := compiled(t, Spec{Weight: `1.0 + zone.cpu`}).Eval(t.Context(), many)
	if err != nil || strings.Join(r.Zones[0], " ") != "z04 z05 z06 z07 z08 z09 z10 z11" || r.Weights[0][0] != 1 {
		t.Errorf("of many zones hints name the heaviest: %+v, %v", r, err)
	}
}

func TestCompileRefusesWeights(t *testing.T) {
	for name, tc := range map[string]struct {
		spec Spec
		want []string
	}{
		"type":          {Spec{Weight: `endpoint.zone`}, []string{"weight: is of type string, not double or int or uint"}},
		"truth":         {Spec{Weight: `endpoint.zone == zone.name`}, []string{"weight: is of type bool, not double or int or uint"}},
		"anything":      {Spec{Weight: `dyn(1)`}, []string{"weight: is of type dyn, not"}},
		"mixed":         {Spec{Weight: `zone.live ? 1 : 0.5`}, []string{"weight: line 1, column 11: found no matching overload for '_?_:_'"}},
		"unknown field": {Spec{Weight: `zone.load`}, []string{"weight: line 1, column 5: undefined field 'load'"}},
		"blank":         {Spec{Weight: ` `}, []string{"weight: is needed"}},
		"both":          {Spec{Zones: `1`, Weight: `"1"`}, []string{"zones: is of type int, not list(string)", "weight: is of type string"}},
		"zone is taken": {Spec{Variables: []Variable{{"zone", "1"}}, Weight: `zone`}, []string{`variables[0].name: "zone" has a meaning`}},
		"zone in zones": {Spec{Zones: `[zone.name]`}, []string{"zones: line 1, column 2: undeclared reference to 'zone'"}},
		"dear":          {Spec{Weight: `endpoints.exists(e, endpoints.exists(f, f.node == e.node)) ? 1 : 2`}, []string{"weight: could cost "}},
		"long":          {Spec{Weight: `1` + strings.Repeat(" ", MaxExpression)}, []string{"weight: 4097 bytes"}},
	} {
		_, err := Compile(tc.spec)
		var errs Errors
		_ = errors.As(err, &errs) // none is as wrong as others
		if len(errs) != len(tc.want) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i, want := range tc.want {
			if got := errs[i].Error(); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
	}
	// What was a good rule before there were weights is one.
	if _, err := Compile(Spec{Variables: []Variable{{"zone", `"a"`}}, Zones: `[zone]`}); err != nil {
		t.Error(err)
	}
}

// TestWeightsRunAway: what all of them cost is limited, as there are many.
func TestWeightsRunAway(t *testing.T) {
	in := Input{}
	for i := range 64 {
		in.Zones = append(in.Zones, Zone{Name: fmt.Sprint("z", i)})
	}
	for i := range 1000 {
		in.Endpoints = append(in.Endpoints, Endpoint{Address: fmt.Sprint(i), Zone: "z1", Ready: true})
	}
	p := compiled(t, Spec{Weight: `zones.exists(z, z.name == "none") ? 1 : 2`})
	p.timeout = time.Hour
	p.total /= 10
	if r, err := p.Eval(t.Context(), in); err == nil || !strings.Contains(err.Error(), "all expressions together cost more than 200000") ||
		r != nil {
		t.Errorf("%v", err)
	}
}

// TestWeightsAreSane, whatever the rule and the input: what hints name weighs something,
// and no zone is left without unless the fallback is None.
func TestWeightsAreSane(t *testing.T) {
	var programs []*Program
	for _, weight := range []string{`1`, `zone.demand * 10.0`, `zone.name == endpoint.zone ? 5 : 1`, `zone.live && endpoint.region == zone.region ? 1.0 : 0.0`, `zone.demand - 0.1`} {
		for _, zones := range []string{"", ownZone, everywhere} {
			for _, f := range []Fallback{All, Fail, None} {
				programs = append(programs, compiled(t, Spec{Zones: zones, Weight: weight, Fallback: f}))
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		in, ready := drawInput(t)
		p := rapid.SampledFrom(programs).Draw(t, "rule")
		r, err := p.Eval(context.Background(), in)
		if err != nil {
			if r != nil || !ready {
				t.Fatalf("%+v, %v", r, err)
			}
			return
		}
		used := make([]bool, len(in.Zones))
		for i, weights := range r.Weights {
			for z, w := range weights {
				if !(w >= 0 && w <= MaxWeight) || w > 0 && !in.Endpoints[i].Ready {
					t.Fatalf("endpoint %+v: weights %v", in.Endpoints[i], weights)
				}
				used[z] = used[z] || w > 0
				if slices.Contains(r.Zones[i], in.Zones[z].Name) && w == 0 ||
					w > 0 && len(r.Zones[i]) < MaxZonesPerEndpoint && !slices.Contains(r.Zones[i], in.Zones[z].Name) {
					t.Fatalf("endpoint %+v weighs %v, its hints are %q", in.Endpoints[i], weights, r.Zones[i])
				}
			}
			if in.Endpoints[i].Ready != (len(r.Zones[i]) > 0) {
				t.Fatalf("endpoint %+v: hints %q", in.Endpoints[i], r.Zones[i])
			}
		}
		if ready && p.fallback != None && slices.Contains(used, false) {
			t.Fatalf("a zone has no endpoint: %v", r.Weights)
		}
	})
}

func BenchmarkWeights(b *testing.B) {
	in := input()
	for i := range 97 {
		in.Endpoints = append(in.Endpoints, Endpoint{Address: fmt.Sprint(i), Zone: "b", Region: "east", Ready: true})
	}
	p := compiled(b, Spec{Weight: `zone.name == endpoint.zone ? 8.0 : zone.region == endpoint.region ? 2.0 : 1.0`})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Eval(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}
