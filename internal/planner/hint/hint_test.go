package hint

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
)

func cases(short, soak int) int {
	if os.Getenv("PROXIMA_SOAK") == "1" {
		return soak
	}
	return short
}

func topology(t testing.TB, regions ...string) *planner.Topology {
	t.Helper()
	var zones []planner.Zone
	for i, r := range regions {
		zones = append(zones, planner.Zone{Name: locality.Zone(fmt.Sprintf("zone-%02d", i)), Region: locality.Region(r)})
	}
	top, err := planner.NewTopology(zones, planner.Costs{})
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// draw makes a request: demand like an exponential, endpoints anywhere.
func draw(r *rand.Rand, zones, endpoints int, mode Mode) *Request {
	q := &Request{Mode: mode}
	for range zones {
		d := r.ExpFloat64()
		if r.IntN(8) == 0 {
			d = 0
		}
		q.Demand = append(q.Demand, d)
	}
	q.Demand[0]++
	for range endpoints {
		q.Endpoints = append(q.Endpoints, r.IntN(zones))
	}
	return q
}

func drawRegions(r *rand.Rand, zones int) []string {
	var regions []string
	several := r.IntN(2) + 1
	for range zones {
		regions = append(regions, fmt.Sprint("region-", r.IntN(several)))
	}
	return regions
}

// exhaustive tries every hinting that differs, endpoints of a zone being alike.
func exhaustive(t *planner.Topology, r *Request) float64 {
	at := make([][]int, t.Len())
	for e, z := range r.Endpoints {
		at[z] = append(at[z], e)
	}
	s := &state{}
	s.init(t, r)
	best := math.Inf(1)
	var fill func(zone, left int, least Mask)
	fill = func(zone, left int, least Mask) {
		if left == 0 {
			zone++
			if zone == t.Len() {
				kept := append([]class(nil), s.classes...)
				s.settle()
				best = min(best, valueOf(s))
				s.classes = kept
				return
			}
			fill(zone, len(at[zone]), 1)
			return
		}
		for m := least; m < 1<<t.Len(); m++ {
			n := len(s.classes)
			s.classes = append(s.classes, class{zone: zone, mask: m, count: 1})
			fill(zone, left-1, m)
			s.classes = s.classes[:n]
		}
	}
	fill(0, len(at[0]), 1)
	return best
}

// valueOf is the mode's value of a settled state, computed from its classes.
func valueOf(s *state) float64 {
	worst := 0.0
	for _, c := range s.classes {
		worst = max(worst, c.load)
	}
	return s.mode.Value(planner.Metrics{Cost: s.spent, Worst: worst}, 1)
}

// TestAgainstExhaustiveSearch: up to 8 endpoints, at least 97 % within 2 points.
func TestAgainstExhaustiveSearch(t *testing.T) {
	for _, mode := range []Mode{Strict, Soft} {
		r := rand.New(rand.NewPCG(1, uint64(mode)))
		s := &Searcher{}
		total, near, worst := cases(60, 2000), 0, 0.0
		for range total {
			zones, most := 2+r.IntN(2), 8
			if r.IntN(4) == 0 {
				zones, most = 4, 4
			}
			top := topology(t, drawRegions(r, zones)...)
			q := draw(r, zones, 1+r.IntN(most), mode)
			got, err := s.Search(top, q)
			if err != nil {
				t.Fatal(err)
			}
			checkSound(t, top, q, got)
			want := exhaustive(top, q)
			gap := mode.Value(got.Metrics, top.MaxCost()) - want
			if gap < -1e-6 {
				t.Fatalf("%v is below the best, %v: %+v", gap, want, q)
			}
			if gap <= 0.02 {
				near++
			}
			worst = max(worst, gap)
		}
		t.Logf("mode %d: %d of %d within 2 points, worst %.1f", mode, near, total, 100*worst)
		if near < total*97/100 {
			t.Errorf("mode %d: %d of %d within 2 points", mode, near, total)
		}
	}
}

// checkSound: within the limit, every endpoint names something, not too much.
func checkSound(t *testing.T, top *planner.Topology, q *Request, got Result) {
	t.Helper()
	if got.Reason != Published {
		t.Fatalf("%v: %+v", got.Reason, q)
	}
	if got.Metrics.Worst > q.Mode.limit()+1e-6 {
		t.Fatalf("worst %v: %+v", got.Metrics.Worst, q)
	}
	if again := Score(top, q.Demand, q.Endpoints, got.Masks); again != got.Metrics {
		t.Fatalf("scored %+v, not %+v", again, got.Metrics)
	}
	for _, m := range got.Masks {
		if n := len(m.Zones()); n == 0 || n > MaxPerEndpoint || m>>top.Len() != 0 {
			t.Fatalf("mask %b", m)
		}
	}
}

// thorough is the best value found with many times the effort: descents from random
// hints, and twenty times the trials.
func thorough(r *rand.Rand, t *planner.Topology, q *Request) float64 {
	s := &Searcher{limit: 20 * maxTrials}
	got, err := s.Search(t, q)
	if err != nil {
		return math.Inf(1)
	}
	best := q.Mode.Value(got.Metrics, t.MaxCost())
	for range 8 {
		s.state.clear()
		for _, z := range q.Endpoints {
			s.state.add(z, limited(Mask(r.Uint64N(1<<t.Len())), z), 1)
		}
		s.state.settle()
		s.descend()
		best = min(best, valueOf(&s.state))
	}
	return best
}

// TestNearOptimum: up to 6 zones and 50 endpoints, within 2 points of what thorough
// search finds in at least 80 %.
func TestNearOptimum(t *testing.T) {
	for _, mode := range []Mode{Strict, Soft} {
		r := rand.New(rand.NewPCG(2, uint64(mode)))
		s := &Searcher{}
		total, near, worst := cases(15, 2000), 0, 0.0
		for range total {
			zones := 2 + r.IntN(5)
			top := topology(t, drawRegions(r, zones)...)
			q := draw(r, zones, 1+r.IntN(50), mode)
			got, err := s.Search(top, q)
			if err != nil {
				t.Fatal(err)
			}
			checkSound(t, top, q, got)
			gap := mode.Value(got.Metrics, top.MaxCost()) - thorough(r, top, q)
			worst = max(worst, gap)
			if gap <= 0.02 {
				near++
			}
		}
		t.Logf("mode %d: %d of %d within 2 points, worst %.1f", mode, near, total, 100*worst)
		if near < total*80/100 {
			t.Errorf("mode %d: %d of %d within 2 points", mode, near, total)
		}
	}
}

// TestNamed is the cliff of the strict mode, and situations in which there is little
// to choose.
func TestNamed(t *testing.T) {
	top := topology(t, "eu", "eu", "eu")
	for _, c := range []struct {
		name      string
		demand    []float64
		endpoints []int
		mode      Mode
		inZone    float64
		worst     float64
	}{
		{"4/4/3 soft: all home, 1.22", []float64{1, 1, 1}, []int{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2}, Soft, 1, 11. / 9},
		{"1/1/1", []float64{1, 1, 1}, []int{0, 1, 2}, Strict, 1, 1},
		{"9/0/0", []float64{1, 1, 1}, []int{0, 0, 0, 0, 0, 0, 0, 0, 0}, Strict, 1. / 3, 13. / 12},
		{"a single endpoint", []float64{0, 5, 1}, []int{2}, Soft, 1. / 6, 1},
		{"no demand", []float64{0, 0, 0}, []int{0, 0, 1}, Soft, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := new(Searcher).Search(top, &Request{Demand: c.demand, Endpoints: c.endpoints, Mode: c.mode})
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(got.Metrics.InZone-c.inZone) > 1e-9 || math.Abs(got.Metrics.Worst-c.worst) > 1e-9 || got.Reason != Published {
				t.Errorf("%+v", got)
			}
		})
	}
	strict, err := new(
		Searcher).Search(top, &Request{Demand: []float64{1, 1, 1}, Endpoints: []int{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2}, Mode: Strict})
	if err != nil || strict.Metrics.Worst > 1.2+tolerance || strict.Metrics.InZone > 0.95 {
		t.Errorf("4/4/3 strict: %+v, %v", strict, err)
	}
}

// TestManyZones: more zones than an endpoint may name.
func TestManyZones(t *testing.T) {
	for _, mode := range []Mode{Strict, Soft} {
		r, s := rand.New(rand.NewPCG(4, uint64(mode))), &Searcher{}
		for range cases(20, 500) {
			zones := 9 + r.IntN(42)
			top := topology(t, drawRegions(r, zones)...)
			q := draw(r, zones, 1+r.IntN(6*zones), mode)
			got, err := s.Search(top, q)
			if err != nil {
				t.Fatal(err)
			}
			checkSound(t, top, q, got)
		}
	}
}

func TestReasons(t *testing.T) {
	var regions []string
	for range MaxZones + 1 {
		regions = append(regions, "")
	}
	large := topology(t, regions...)
	got, err := new(Searcher).Search(large, &Request{Demand: make([]float64, MaxZones+1), Endpoints: []int{1}})
	if err != nil || got.Reason != TooManyZones || got.Masks != nil {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = new(Searcher).Search(topology(t, ""), &Request{Demand: []float64{1}})
	if err != nil || got.Reason != NoEndpoints || got.Masks != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestEndpointsKeepTheirHints: what is as good as it was stays as it was, for every
// order of the endpoints; and a little more demand moves few.
func TestEndpointsKeepTheirHints(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		zones := rapid.IntRange(2, 5).Draw(rt, "zones")
		top := topology(t, make([]string, zones)...)
		q := &Request{
			Demand:    rapid.SliceOfN(rapid.Float64Range(0, 10), zones, zones).Draw(rt, "demand"),
			Endpoints: rapid.SliceOfN(rapid.IntRange(0, zones-1), 1, 20).Draw(rt, "endpoints"),
			Mode:      Mode(rapid.IntRange(0, 1).Draw(rt, "mode")),
		}
		s := &Searcher{}
		first, err := s.Search(top, q)
		if err != nil {
			rt.Fatal(err)
		}
		q.Previous = first.Masks
		again, err := s.Search(top, q)
		if err != nil {
			rt.Fatal(err)
		}
		if q.Mode.Value(again.Metrics, top.MaxCost()) > q.Mode.Value(first.Metrics, top.MaxCost())-1e-6 {
			if diff := cmp.Diff(first.Masks, again.Masks); diff != "" {
				rt.Fatal(diff)
			}
		}
	})
}

// FuzzSearch: any input gives hints within the limit, or an error that names a field.
func FuzzSearch(f *testing.F) {
	f.Add(1.0, 2.0, 3.0, []byte{0, 1, 2, 2}, false)
	f.Add(math.NaN(), -1.0, math.Inf(1), []byte{9}, true)
	f.Add(5e-324, 1e15, 0.0, []byte{0, 0, 0}, true)
	f.Fuzz(func(t *testing.T, a, b, c float64, at []byte, strict bool) {
		q := &Request{Demand: []float64{a, b, c}}
		if strict {
			q.Mode = Strict
		}
		for _, z := range at[:min(len(at), 30)] {
			q.Endpoints = append(q.Endpoints, int(z)%4)
		}
		got, err := new(Searcher).Search(topology(t, "eu", "eu", "us"), q)
		if err != nil {
			var refused *planner.FieldError
			if !errors.As(err, &refused) || refused.Field == "" {
				t.Fatalf("error %v names no field", err)
			}
			return
		}
		if got.Reason == Published && !(got.Metrics.Worst <= q.Mode.limit()+1e-6) {
			t.Fatalf("%+v", got)
		}
	})
}

// BenchmarkSearch: 3 zones × 10 endpoints within 100 µs, 50 zones within 5 ms.
func BenchmarkSearch(b *testing.B) {
	for _, c := range []struct{ zones, endpoints int }{{3, 10}, {6, 30}, {50, 200}} {
		for _, mode := range []Mode{Soft, Strict} {
			b.Run(fmt.Sprintf("zones=%d/endpoints=%d/mode=%d", c.zones, c.endpoints, mode), func(b *testing.B) {
				r := rand.New(rand.NewPCG(3, 3))
				var regions []string
				for i := range c.zones {
					regions = append(regions, fmt.Sprint("region-", i%(1+c.zones/8)))
				}
				top := topology(b, regions...)
				var requests []*Request
				for range 64 {
					requests = append(requests, draw(r, c.zones, c.endpoints, mode))
				}
				s := &Searcher{}
				for i := 0; b.Loop(); i++ {
					if _, err := s.Search(top, requests[i%64]); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
