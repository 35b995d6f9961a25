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
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// input has three zones, of which a and b are one region, and two endpoints in a, one in b.
func input() Input {
	return Input{
		Service: Service{Namespace: "shop", Name: "cart", Measured: true, Rate: 30},
		Zones: []Zone{
			{Name: "a", Region: "east", Live: true, CPU: 0.5, Demand: 0.2, Capacity: 0.67, Endpoints: 2},
			{Name: "b", Region: "east", Live: true, CPU: 0.25, Demand: 0.7, Capacity: 0.33, Endpoints: 1},
			{Name: "c", Region: "west", Live: true, CPU: 0.25, Demand: 0.1},
		},
		Endpoints: []Endpoint{
			{Address: "10.0.0.1", Zone: "a", Region: "east", Node: "n1", Ready: true},
			{Address: "10.0.0.2", Zone: "a", Region: "east", Node: "n2", Ready: true},
			{Address: "10.0.0.3", Zone: "b", Region: "east", Node: "n3", Ready: true},
		},
	}
}

func compiled(t testing.TB, spec Spec) *Program {
	t.Helper()
	p, err := Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const (
	ownZone    = `[endpoint.zone]`
	sameRegion = `zones.filter(z, z.region == endpoint.region).map(z, z.name)`
	everywhere = `zones.map(z, z.name)`
)

func TestEval(t *testing.T) {
	unready := input()
	unready.Endpoints[2].Ready = false
	many := input()
	many.Zones = nil
	for i := range 12 {
		many.Zones = append(many.Zones, Zone{Name: fmt.Sprintf("z%02d", i)})
	}
	many.Endpoints = []Endpoint{{Address: "1", Zone: "z00", Ready: true}, {Address: "2", Zone: "z01", Ready: true}}
	for name, tc := range map[string]struct {
		spec   Spec
		in     Input
		want   [][]string
		filled []string
		fail   string
	}{
		"own zone, the rest filled": {spec: Spec{Zones: ownZone}, want: [][]string{{"a", "c"}, {"a", "c"}, {"b", "c"}}, filled: []string{"c"}},
		"own zone, the rest stays":  {spec: Spec{Zones: ownZone, Fallback: None}, want: [][]string{{"a"}, {"a"}, {"b"}}},
		"own zone, the rest fails":  {spec: Spec{Zones: ownZone, Fallback: Fail}, fail: "zone c may use no endpoint"},
		"region":                    {spec: Spec{Zones: sameRegion, Fallback: None}, want: [][]string{{"a", "b"}, {"a", "b"}, {"a", "b"}}},
		"everywhere":                {spec: Spec{Zones: everywhere}, want: [][]string{{"a", "b", "c"}, {"a", "b", "c"}, {"a", "b", "c"}}},
		"only ready ones":           {spec: Spec{Zones: ownZone}, in: unready, want: [][]string{{"a", "b", "c"}, {"a", "b", "c"}, nil}, filled: []string{"b", "c"}},
		"variables": {spec: Spec{
			Variables: []Variable{{"needy", `zones.filter(z, z.demand > z.capacity * 1.2).map(z, z.name)`}, {"all", `needy + ["c"]`}},
			Zones:     `[endpoint.zone] + all`,
		}, want: [][]string{{"a", "b", "c"}, {"a", "b", "c"}, {"b", "c"}}},
		"by demand": {spec: Spec{Zones: `service.measured && service.rate > 10.0 ? [endpoint.zone, "c"] : zones.map(z, z.name)`},
			want: [][]string{{"a", "c"}, {"a", "c"}, {"b", "c"}}},
		"other endpoints": {spec: Spec{Zones: `endpoints.exists(e, e.ready && e.zone == endpoint.zone && e.node != endpoint.node) ? [endpoint.zone] : zones.map(z, z.name)`},
			want: [][]string{{"a"}, {"a"}, {"a", "b", "c"}}},
		"numbers of both kinds":    {spec: Spec{Zones: `zones.filter(z, z.demand * 3.0 >= z.endpoints).map(z, z.name)`}, want: [][]string{{"a", "b", "c"}, {"a", "b", "c"}, {"a", "b", "c"}}, filled: []string{"a"}},
		"zones that there are not": {spec: Spec{Zones: `["a", "gone", "a", endpoint.zone]`, Fallback: None}, want: [][]string{{"a"}, {"a"}, {"a", "b"}}},
		"nowhere":                  {spec: Spec{Zones: `zones.filter(z, z.name == "x").map(z, z.name)`}, fail: "zones of endpoint 10.0.0.1: none"},
		"failing":                  {spec: Spec{Zones: `[zones[7].name]`}, fail: "index out of bounds: 7"},
		"too many":                 {spec: Spec{Zones: everywhere}, in: many, fail: "12, and hints name 8 at most"},
		"hints are full":           {spec: Spec{Zones: `zones.filter(z, z.name < "z08").map(z, z.name)`}, in: many, fail: "zone z08 may use no endpoint"},
		"hints of some are full": {spec: Spec{Zones: `endpoint.address == "1" ? zones.filter(z, z.name < "z08").map(z, z.name) : zones.filter(z, z.name > "z08").map(z, z.name)`}, in: many,
			want:   [][]string{{"z00", "z01", "z02", "z03", "z04", "z05", "z06", "z07"}, {"z08", "z09", "z10", "z11"}},
			filled: []string{"z08"}},
		"no ready endpoint": {spec: Spec{Zones: ownZone, Fallback: Fail}, in: Input{Zones: input().Zones, Endpoints: []Endpoint{{Zone: "a"}}}, want: [][]string{nil}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.in.Zones == nil {
				tc.in = input()
			}
			p, err := Compile(tc.spec)
			if err != nil {
				if tc.fail == "" || !strings.Contains(err.Error(), tc.fail) {
					t.Fatal(err)
				}
				return
			}
			r, err := p.Eval(t.Context(), tc.in)
			if tc.fail != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fail) || r != nil {
					t.Fatalf("%v, want an error with %q", err, tc.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, r.Zones); diff != "" {
				t.Errorf("zones (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.filled, r.Filled); diff != "" {
				t.Errorf("filled (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCompileRefuses(t *testing.T) {
	var many []Variable
	for i := range MaxVariables + 1 {
		many = append(many, Variable{fmt.Sprint("v", i), "1"})
	}
	for name, tc := range map[string]struct {
		spec Spec
		want []string // field and the start of the reason
	}{
		"nothing":           {Spec{}, []string{"zones: is needed"}},
		"syntax":            {Spec{Zones: "[endpoint.zone"}, []string{"zones: line 1, column 15: Syntax error"}},
		"unknown name":      {Spec{Zones: "[\n node.zone]"}, []string{"zones: line 2, column 2: undeclared reference to 'node'"}},
		"unknown field":     {Spec{Zones: "[endpoint.zoen]"}, []string{"zones: line 1, column 10: undefined field 'zoen'"}},
		"type":              {Spec{Zones: "endpoint.zone"}, []string{"zones: is of type string, not list(string)"}},
		"element type":      {Spec{Zones: "zones"}, []string{"zones: is of type list(rule.Zone), not list(string)"}},
		"comparison":        {Spec{Zones: "[endpoint.zone == 1 ? 'a' : 'b']"}, []string{"zones: line 1, column 16: found no matching overload for '_==_'"}},
		"endpoint too soon": {Spec{Variables: []Variable{{"v", "endpoint.zone"}}, Zones: ownZone}, []string{"variables[0].expression: line 1, column 1: undeclared reference to 'endpoint'"}},
		"several": {Spec{Variables: []Variable{{"1", "1"}, {"zones", "1"}, {"in", "1"}, {"a", "1"}, {"a", "1"}, {"b", ""}, {"c", "d"}}, Fallback: "Some"}, []string{
			`fallback: "Some"`, "variables[0].name:", `variables[1].name: "zones" has a meaning`, `variables[2].name: "in" has`, `variables[4].name: "a" is there twice`,
			"variables[5].expression: is needed", "variables[6].expression: line 1, column 1: undeclared reference to 'd'"}},
		"many variables": {Spec{Variables: many, Zones: ownZone}, []string{"variables: 17, more than 16"}},
		"long":           {Spec{Zones: `["` + strings.Repeat("x", MaxExpression) + `"]`}, []string{"zones: 4100 bytes, more than 4096"}},
		"deep":           {Spec{Zones: strings.Repeat("[", 60) + strings.Repeat("]", 60)}, []string{"zones: "}},
		"dear":           {Spec{Zones: `endpoints.map(e, endpoints.map(f, endpoints.exists(g, g.zone == e.zone)))[0][0] ? ["a"] : ["b"]`}, []string{"zones: could cost "}},
		"dear regexp":    {Spec{Zones: `endpoints.filter(e, endpoints.exists(f, f.node.matches("a.*" + e.node))).map(e, e.zone)`}, []string{"zones: could cost "}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Compile(tc.spec)
			var errs Errors
			if !errors.As(err, &errs) || p != nil {
				t.Fatalf("%v, want Errors", err)
			}
			if len(errs) != len(tc.want) {
				t.Fatalf("%d problems, want %d: %v", len(errs), len(tc.want), err)
			}
			for i, want := range tc.want {
				if got := errs[i].Error(); !strings.HasPrefix(got, want) || strings.Contains(got, "\n") || len(got) > 400 {
					t.Errorf("problem %d: %s\nwant %s", i, got, want)
				}
			}
		})
	}
}

// dear rules pass at admission, as their cost cannot be estimated, and are stopped.
func TestRunaways(t *testing.T) {
	big := input()
	for i := range 20_000 {
		big.Endpoints = append(big.Endpoints, Endpoint{Address: fmt.Sprint(i), Zone: "a", Node: fmt.Sprint("n", i), Ready: i < 5000})
	}
	thousand := big
	thousand.Endpoints = big.Endpoints[:1000]
	for name, tc := range map[string]struct {
		zones, want string
		in          Input
	}{
		"one evaluation": {`endpoints.filter(e, e.ready && e.node != endpoint.node && e.zone == endpoint.zone && e.node.startsWith("n")).map(e, e.zone)`, "actual cost limit exceeded", big},
		"all together":   {`endpoints.exists(e, e.zone == "x") ? ["a"] : ["b"]`, "all expressions together cost more than 200000", thousand},
	} {
		p := compiled(t, Spec{Zones: tc.zones})
		p.timeout = time.Hour // the costs alone stop it, however slow this machine is
		if p.total != maxTotal {
			t.Errorf("all together may cost %d", p.total)
		}
		p.total /= 10
		r, err := p.Eval(t.Context(), tc.in)
		if err == nil || !strings.Contains(err.Error(), tc.want) || r != nil {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := compiled(t, Spec{Zones: sameRegion}).Eval(ctx, big); !errors.Is(err, context.Canceled) {
		t.Errorf("ctx ended: %v", err)
	}
	late := compiled(t, Spec{Zones: sameRegion})
	late.timeout = time.Nanosecond
	if _, err := late.Eval(t.Context(), big); err == nil || !strings.Contains(err.Error(), "took longer than") {
		t.Errorf("out of time: %v", err)
	}
}

// rules of every shape, for properties.
var rules = []string{
	ownZone, sameRegion, everywhere,
	`zones.filter(z, z.demand > 0.3).map(z, z.name)`,
	`zones.filter(z, z.live && z.endpoints > 0).map(z, z.name) + [endpoint.zone]`,
	`endpoint.node < "n5" ? [endpoint.zone] : zones.map(z, z.name)`,
	`endpoints.filter(e, e.region == endpoint.region).map(e, e.zone)`,
}

// drawInput of up to 12 zones and 10 endpoints, some in no zone or one that is gone.
func drawInput(t *rapid.T) (in Input, ready bool) {
	for i := range rapid.IntRange(1, 12).Draw(t, "zones") {
		in.Zones = append(in.Zones, Zone{
			Name: fmt.Sprintf("z%02d", i), Region: rapid.SampledFrom([]string{"", "e", "w"}).Draw(t, "region"),
			Demand: rapid.Float64Range(0, 1).Draw(t, "demand"), Live: rapid.Bool().Draw(t, "live"),
		})
	}
	for i := range rapid.IntRange(0, 10).Draw(t, "endpoints") {
		z := rapid.SampledFrom(append([]Zone{{}, {Name: "lost"}}, in.Zones...)).Draw(t, "zone")
		e := Endpoint{Address: fmt.Sprint(i), Zone: z.Name, Region: z.Region, Node: fmt.Sprint("n", i), Ready: rapid.Bool().Draw(t, "ready")}
		in.Endpoints = append(in.Endpoints, e)
		ready = ready || e.Ready
	}
	return in, ready
}

// TestNoZoneIsLeftOut, whatever the rule and the input, unless the fallback is None; and
// results are what hints can say.
func TestNoZoneIsLeftOut(t *testing.T) {
	programs := map[string]*Program{}
	for _, rule := range rules {
		for _, f := range []Fallback{All, Fail, None} {
			programs[rule+string(f)] = compiled(t, Spec{Zones: rule, Fallback: f})
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		in, ready := drawInput(t)
		f := rapid.SampledFrom([]Fallback{All, Fail, None}).Draw(t, "fallback")
		p := programs[rapid.SampledFrom(rules).Draw(t, "rule")+string(f)]
		r, err := p.Eval(context.Background(), in)
		if err != nil {
			if r != nil || !ready {
				t.Fatalf("%+v, %v", r, err)
			}
			return
		}
		covered := map[string]bool{}
		for i, zones := range r.Zones {
			if in.Endpoints[i].Ready != (len(zones) > 0) || len(zones) > MaxZonesPerEndpoint || !slices.IsSorted(zones) ||
				len(slices.Compact(slices.Clone(zones))) != len(zones) {
				t.Fatalf("endpoint %+v: zones %q", in.Endpoints[i], zones)
			}
			for _, z := range zones {
				covered[z] = true
			}
		}
		for _, z := range in.Zones {
			if ready && f != None && !covered[z.Name] {
				t.Fatalf("zone %s has no endpoint: %q", z.Name, r.Zones)
			}
		}
		again, err := p.Eval(context.Background(), in)
		if diff := cmp.Diff(r, again); diff != "" || err != nil {
			t.Fatalf("equal inputs, other results: %v\n%s", err, diff)
		}
	})
}

// FuzzCompile: whatever a user writes is refused or runs within its limits, and keeps the promise.
func FuzzCompile(f *testing.F) {
	for _, rule := range rules {
		f.Add(rule, "1")
	}
	f.Add(`[v]`, `"a"`)
	f.Add(`v.map(z, z.name)`, `zones.filter(z, z.live)`)
	f.Add(`[endpoint.zone.matches("(a*)*b") ? "a" : "b"]`, `[1, 2, 3].map(x, x * 2)`)
	f.Add(`sets.contains(["a"], [endpoint.zone]) ? ["a"] : ["b"]`, `rule.Zone{name: "x"}`)
	f.Add(`zone.demand * 2.0`, `1 / 0`)
	f.Fuzz(func(t *testing.T, zones, variable string) {
		if p, err := Compile(Spec{Variables: []Variable{{"v", variable}}, Weight: zones}); err == nil {
			if r, err := p.Eval(t.Context(), input()); err == nil && (len(r.Weights) != 3 || len(r.Weights[0]) != 3) {
				t.Fatalf("weights %v", r.Weights)
			}
		}
		p, err := Compile(Spec{Variables: []Variable{{"v", variable}}, Zones: zones})
		if err != nil {
			var errs Errors
			if !errors.As(err, &errs) || len(errs) == 0 || p != nil {
				t.Fatalf("%v", err)
			}
			return
		}
		in := input()
		r, err := p.Eval(t.Context(), in)
		if err != nil {
			return
		}
		for _, z := range in.Zones {
			if !slices.ContainsFunc(r.Zones, func(of []string) bool { return slices.Contains(of, z.Name) }) {
				t.Fatalf("zone %s has no endpoint: %q", z.Name, r.Zones)
			}
		}
	})
}

func BenchmarkEval(b *testing.B) {
	in := input()
	for i := range 97 {
		in.Endpoints = append(in.Endpoints, Endpoint{Address: fmt.Sprint(i), Zone: "b", Region: "east", Ready: true})
	}
	p := compiled(b, Spec{Zones: sameRegion})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Eval(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		if _, err := Compile(Spec{Variables: []Variable{{"v", everywhere}}, Zones: sameRegion}); err != nil {
			b.Fatal(err)
		}
	}
}
