package estimate

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
)

var names = locality.Zones("a", "b", "c")

func observe(t testing.TB, e *Estimator, counts ...float64) bool {
	t.Helper()
	changed, err := e.Observe(Report{Elapsed: 10 * time.Second, Counts: counts})
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func near(t *testing.T, what string, got, want []float64, within float64) {
	t.Helper()
	for i := range want {
		if math.Abs(got[i]-want[i]) > within {
			t.Errorf("%s: %.4f, want %.4f within %g", what, got, want, within)
			return
		}
	}
}

func TestPrior(t *testing.T) {
	e := New(names)
	near(t, "nothing known", e.Shares([]float64{2, 1, 1}, nil), []float64{0.5, 0.25, 0.25}, 1e-12)
	near(t, "no prior", e.Shares(nil, nil), []float64{1. / 3, 1. / 3, 1. / 3}, 1e-12)
	near(t, "senseless prior", e.Shares([]float64{math.NaN(), -1, math.Inf(1)}, nil), []float64{1. / 3, 1. / 3, 1. / 3}, 1e-12)
	near(t, "no nodes in a", e.Shares([]float64{2, 1, 1}, []bool{true, false, false}), []float64{0, 0.5, 0.5}, 1e-12)
	near(t, "no nodes", e.Shares(nil, []bool{true, true, true}), []float64{0, 0, 0}, 0)
	observe(t, e, 3, 0, 0)
	near(t, "three connections weigh as the prior", e.Shares([]float64{2, 1, 1}, nil), []float64{0.75, 0.125, 0.125}, 1e-12)
}

// TestCumulativeMean: in the beginning each report counts the same.
func TestCumulativeMean(t *testing.T) {
	e := New(names)
	observe(t, e, 3e6, 0, 0)
	observe(t, e, 0, 3e6, 0)
	near(t, "two reports", e.Shares(nil, nil), []float64{0.481, 0.519, 0}, 0.01)
}

// TestMissingHolds: a zone that does not report keeps its demand.
func TestMissingHolds(t *testing.T) {
	e := New(names)
	for range 20 {
		observe(t, e, 800, 100, 100)
	}
	for range 50 {
		if _, err := e.Observe(Report{Elapsed: 10 * time.Second, Counts: []float64{math.NaN(), 100, 100}, Missing: []bool{true, false, false}}); err != nil {
			t.Fatal(err)
		}
	}
	near(t, "a is silent", e.Shares(nil, nil), []float64{0.8, 0.1, 0.1}, 0.001)
	for range 50 {
		observe(t, e, 0, 100, 100)
	}
	near(t, "a reports nothing", e.Shares(nil, nil), []float64{0, 0.5, 0.5}, 0.02)
}

// TestNeverReported: the prior stands for a zone until it reports.
func TestNeverReported(t *testing.T) {
	e := New(names)
	for range 20 {
		if _, err := e.Observe(Report{Elapsed: 10 * time.Second, Counts: []float64{300, 100, 0}, Missing: []bool{false, false, true}}); err != nil {
			t.Fatal(err)
		}
	}
	near(t, "c is unknown", e.Shares([]float64{1, 1, 2}, nil), []float64{0.375, 0.125, 0.5}, 0.01)
}

func TestRezoneKeeps(t *testing.T) {
	e := New(names)
	for range 20 {
		observe(t, e, 600, 300, 100)
	}
	e.Rezone(locality.Zones("b", "c", "d"))
	near(t, "d is new", e.Shares([]float64{1, 1, 2}, nil), []float64{0.375, 0.125, 0.5}, 0.01)
}

// poisson draws a count of independent arrivals.
func poisson(r *rand.Rand, mean float64) float64 {
	n := 0.0
	for t := r.ExpFloat64(); t < mean; t += r.ExpFloat64() {
		n++
	}
	return n
}

// TestStep: 30 connections a second move from one zone to another. The estimate
// follows within a minute, and hardly ever starts over because of noise.
func TestStep(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	slow, resets := 0, 0
	const runs = 200
	for range runs {
		e := New(names)
		feed := func(a, b, c float64) bool { return observe(t, e, poisson(r, a), poisson(r, b), poisson(r, c)) }
		for k := range 60 {
			if feed(240, 30, 30) && k > 20 {
				resets++
			}
		}
		settled := -1
		for k := range 30 {
			feed(30, 240, 30)
			if settled < 0 && math.Abs(e.Shares(nil, nil)[1]-0.8) < 0.04 {
				settled = k + 1
			}
		}
		if settled < 0 || settled > 6 {
			slow++
		}
	}
	if slow > runs/50 {
		t.Errorf("%d of %d steps took more than a minute", slow, runs)
	}
	if perHour := float64(resets) / runs / (40. / 360); perHour > 0.5 {
		t.Errorf("%.1f false changes an hour", perHour)
	}
}

// TestSmallStep: after the second report of a step of 20 points the estimate is the mean of
// both, and nothing of the former demand is left.
func TestSmallStep(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	const runs = 1000
	behind := 0
	for range runs {
		e := New(names)
		var b, all float64
		feed := func(mean ...float64) {
			counts := []float64{poisson(r, mean[0]), poisson(r, mean[1]), poisson(r, mean[2])}
			observe(t, e, counts...)
			b, all = b+counts[1], all+counts[0]+counts[1]+counts[2]
		}
		for range 40 {
			feed(150, 90, 60)
		}
		b, all = 0, 0
		for range 2 {
			feed(90, 150, 60)
		}
		if math.Abs(e.Shares(nil, nil)[1]-b/all) > 0.02 {
			behind++
		}
	}
	if behind > runs/10 {
		t.Errorf("%d of %d runs have something of the former demand left after two reports", behind, runs)
	}
}

// TestStepsInARow: each is followed as quickly as the first, as what showed a change does
// not count as noise afterwards.
func TestStepsInARow(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	const runs, steps = 50, 6
	slow := [steps]int{}
	for range runs {
		e := New(names)
		for k := range steps {
			a, b := 240., 30.
			if k%2 == 1 {
				a, b = b, a
			}
			for n := range 30 {
				observe(t, e, poisson(r, a), poisson(r, b), poisson(r, 30))
				if n == 3 && math.Abs(e.Shares(nil, nil)[0]-a/300) > 0.06 {
					slow[k]++
				}
			}
		}
	}
	for k, n := range slow {
		if n > runs/25 {
			t.Errorf("step %d: %d of %d runs are not there after four reports", k, n, runs)
		}
	}
}

// TestOneOddReport is believed in part only, and soon forgotten.
func TestOneOddReport(t *testing.T) {
	e := New(names)
	for range 30 {
		observe(t, e, 150, 90, 60)
	}
	observe(t, e, 0, 0, 300)
	if c := e.Shares(nil, nil)[2]; c > 0.6 {
		t.Errorf("one odd report makes the share %.2f", c)
	}
	for range 3 {
		observe(t, e, 150, 90, 60)
	}
	near(t, "three reports later", e.Shares(nil, nil), []float64{0.5, 0.3, 0.2}, 0.02)
}

// TestFewConnections: where reports are of a few connections, noise does not pass for
// changes.
func TestFewConnections(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	changes, far := 0, 0
	const runs, reports = 50, 180
	for range runs {
		e := New(names)
		for k := range reports {
			if observe(t, e, poisson(r, 5), poisson(r, 3), poisson(r, 2)) {
				changes++
			}
			if k > 30 && math.Abs(e.Shares(nil, nil)[0]-0.5) > 0.15 {
				far++
			}
		}
	}
	if perHour := float64(changes) / runs / (reports / 360.); perHour > 2 {
		t.Errorf("%.1f false changes an hour", perHour)
	}
	if far*100 > 3*runs*reports {
		t.Errorf("far off in %.1f %% of the time", 100*float64(far)/(runs*reports))
	}
}

// TestSharesAlwaysSane for any reports.
func TestSharesAlwaysSane(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := New(names)
		count := rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, 10), rapid.Float64Range(0, maxCount))
		flag := rapid.SliceOfN(rapid.Bool(), 3, 3)
		for range rapid.IntRange(0, 30).Draw(t, "reports") {
			_, err := e.Observe(Report{
				Elapsed: time.Duration(rapid.Int64Range(1, int64(maxElapsed)).Draw(t, "elapsed")),
				Counts:  []float64{count.Draw(t, "a"), count.Draw(t, "b"), count.Draw(t, "c")},
				Missing: flag.Draw(t, "missing"),
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		noNodes := flag.Draw(t, "noNodes")
		sum, alive := 0.0, false
		for i, s := range e.Shares(nil, noNodes) {
			if !(s >= 0 && s <= 1+1e-9) || noNodes[i] && s != 0 {
				t.Fatalf("share %v of zone %d, no nodes %v", s, i, noNodes)
			}
			sum += s
			alive = alive || !noNodes[i]
		}
		if alive && math.Abs(sum-1) > 1e-9 {
			t.Fatalf("shares sum to %v", sum)
		}
	})
}

// FuzzObserve: senseless reports are refused, with the field, and change nothing.
func FuzzObserve(f *testing.F) {
	f.Add(int64(10*time.Second), 1.0, math.NaN(), 3.0)
	f.Add(int64(-1), 1.0, 2.0, 3.0)
	f.Add(int64(1), math.Inf(1), -0.5, 1e300)
	f.Fuzz(func(t *testing.T, elapsed int64, a, b, c float64) {
		e := New(names)
		observe(t, e, 10, 20, 30)
		before := e.Shares(nil, nil)
		_, err := e.Observe(Report{Elapsed: time.Duration(elapsed), Counts: []float64{a, b, c}})
		sane := elapsed > 0 && time.Duration(elapsed) <= maxElapsed
		for _, v := range []float64{a, b, c} {
			sane = sane && v >= 0 && v <= maxCount
		}
		if sane != (err == nil) {
			t.Fatalf("error %v", err)
		}
		if field := (*planner.FieldError)(nil); err != nil && (!errors.As(err, &field) || field.Field == "") {
			t.Fatalf("error %v names no field", err)
		}
		if after := e.Shares(nil, nil); err != nil {
			near(t, "after an error", after, before, 0)
		}
	})
}
