package e2e

import (
	"encoding/json"
	"math"
	"os"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// stage of the long run: what changes, and then holds.
type stage struct {
	event  string
	rates  []float64 // connections a second by zone
	counts []int     // endpoints by zone
	during time.Duration
	// settled is the time within which it must be as good as the best plan, and stay so.
	settled time.Duration
}

// outcome of a stage.
type outcome struct {
	event string
	// settled is the time until it was as good as the best plan; negative: it never was.
	settled time.Duration
	// late is the mean of what came after, lowest and highest how far in-zone shares were
	// from the best plan's then.
	late            sample
	lowest, highest float64
}

// TestTopologySettles takes twenty minutes: demand and endpoints change under real
// traffic, with reports at their usual pace, and every time what is measured settles
// at the best plan and stays there. It ends with a line for every stage. PROXIMA_PLOT
// names a file for what was measured, which "go run ./bench/planner -plot" draws; without
// it nothing is written.
func TestTopologySettles(t *testing.T) {
	if soak(0, 1) == 0 {
		t.Skip("twenty minutes of traffic: set PROXIMA_SOAK=1")
	}
	tr := startTraffic(t)
	tr.createService()
	tr.place(4, 4, 3)
	var samples []sample
	var outcomes []outcome
	begin := time.Now()
	// planner.md requires a shift to settle within 300 s. The same stages simulated settle within
	// 50 s (go run ./bench/planner), and reports are up to 20 s on their way.
	const shift, limit = 340 * time.Second, 300 * time.Second
	for _, s := range []stage{
		{"4/4/3 endpoints, demand 80/10/10", []float64{96, 12, 12}, []int{4, 4, 3}, 120 * time.Second, 80 * time.Second},
		{"demand 10/80/10", []float64{12, 96, 12}, []int{4, 4, 3}, shift, limit},
		{"1/2/5 endpoints", []float64{12, 96, 12}, []int{1, 2, 5}, 30 * time.Second, 10 * time.Second},
		{"zone-b fails", []float64{60, 0, 60}, []int{1, 0, 5}, shift, limit},
		{"zone-b is back", []float64{12, 96, 12}, []int{1, 2, 5}, shift, limit},
	} {
		seen, o := tr.run(s, begin)
		samples, outcomes = append(samples, seen...), append(outcomes, o)
	}
	for _, o := range outcomes {
		t.Logf("%-34s settled after %3.0f s; then in zone %.3f (best %.3f), worst %.2f (best %.2f)",
			o.event, o.settled.Seconds(), o.late.InZone, o.late.Best, o.late.Worst, o.late.BestWorst)
	}
	tr.within(tr.observe(time.Second, 1, 2, 5), 1, 10) // failures alone
	if file := os.Getenv("PROXIMA_PLOT"); file != "" {
		data, err := json.Marshal(samples)
		if err == nil {
			err = os.WriteFile(file, data, 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// sampling is how long a sample of the long run is.
const sampling = 5 * time.Second

// run a stage under traffic.
func (tr *traffic) run(s stage, begin time.Time) (samples []sample, o outcome) {
	tr.t.Helper()
	stop := tr.drive(s.rates...)
	defer stop()
	tr.place(s.counts...)
	start := time.Now()
	tr.take(s.counts...)
	ticker := time.NewTicker(sampling)
	defer ticker.Stop()
	for now := start; now.Sub(start) < s.during; {
		now = <-ticker.C
		x := tr.take(s.counts...)
		x.Second = now.Sub(begin).Seconds()
		if samples == nil {
			x.Event = s.event
		}
		samples = append(samples, x)
		tr.t.Logf("%s after %2.0f s: in zone %.3f (best %.3f), worst %.2f (best %.2f), demand %.2f, failed %d",
			s.event, now.Sub(start).Seconds(), x.InZone, x.Best, x.Worst, x.BestWorst, x.Demand, x.Failed)
	}
	o = outcomeOf(s.event, samples)
	tr.judge(s, o)
	return samples, o
}

// windows that are looked at for the time of settling are so many samples: some 3,600
// connections, of which a share is known to about a point.
const window = 6

// swing is how far apart single samples may be once a stage is settled: of some 600
// connections, whose share has a standard deviation of 2 points.
const swing = 0.18

// outcomeOf a stage: it is settled from the first window on after which all are good,
// without samples at its beginning that still are on the way.
func outcomeOf(event string, samples []sample) outcome {
	o := outcome{event: event, settled: -1}
	n := min(window, max(1, len(samples)/2))
	first := len(samples)
	for k := len(samples) - n; k >= 0 && good(meanOf(samples[k:k+n])); k-- {
		first = k
	}
	if first == len(samples) {
		o.late = meanOf(samples[len(samples)-n:])
		return o
	}
	for first < len(samples)-1 && math.Abs(samples[first].InZone-samples[first].Best) > swing/2 {
		first++
	}
	o.settled = time.Duration(first) * sampling
	o.late, o.lowest, o.highest = meanOf(samples[first:]), 1, -1
	for _, x := range samples[first:] {
		o.lowest, o.highest = min(o.lowest, x.InZone-x.Best), max(o.highest, x.InZone-x.Best)
	}
	return o
}

func meanOf(samples []sample) (mean sample) {
	n := float64(len(samples))
	for _, x := range samples {
		mean.InZone += x.InZone / n
		mean.Best += x.Best / n
		mean.Worst += x.Worst / n
		mean.BestWorst += x.BestWorst / n
	}
	return mean
}

// good is near the best plan. The worst of three noisy loads is above the true worst one.
func good(x sample) bool {
	return math.Abs(x.InZone-x.Best) <= 0.04 && x.Worst <= max(1.25, x.BestWorst+0.15)
}

// judge an outcome: settled in time, and single samples do not swing around the best plan
// by more than their size explains.
func (tr *traffic) judge(s stage, o outcome) {
	tr.t.Helper()
	switch {
	case o.settled < 0:
		tr.t.Errorf("%s: in zone %.3f at the end, the best plan has %.3f; worst load %.2f, the best plan has %.2f", s.event,
			o.late.InZone, o.late.Best, o.late.Worst, o.late.BestWorst)
	case o.settled > s.settled:
		tr.t.Errorf("%s: settled after %v, the limit is %v", s.event, o.settled, s.settled)
	}
	if o.highest-o.lowest > swing {
		tr.t.Errorf("%s: in-zone share swings by %.3f", s.event, o.highest-o.lowest)
	}
	if plans := tr.explain().Topology.Plans; len(plans) != 1 || plans[0].GapPoints > 3 {
		tr.t.Errorf("%s: explained as %+v", s.event, plans)
	}
}

// TestOutcomeOf: a stage is settled where it stays good, whatever it was before.
func TestOutcomeOf(t *testing.T) {
	yes, no := sample{InZone: 0.6, Best: 0.61, Worst: 1.2, BestWorst: 1.17}, sample{InZone: 0.4, Best: 0.61, Worst: 2, BestWorst: 1.17}
	repeat := func(x sample, n int) (out []sample) {
		for range n {
			out = append(out, x)
		}
		return out
	}
	for name, c := range map[string]struct {
		samples []sample
		want    time.Duration
	}{
		"at once":         {repeat(yes, 20), 0},
		"after a while":   {append(repeat(no, 5), repeat(yes, 20)...), 25 * time.Second},
		"on the way":      {append([]sample{no, no, no, no, no, {InZone: 0.78, Best: 0.61, Worst: 1.2, BestWorst: 1.17}}, repeat(yes, 20)...), 30 * time.Second},
		"and lost":        {append(repeat(yes, 20), repeat(no, 6)...), -1},
		"lost and found":  {append(append(repeat(yes, 10), repeat(no, 10)...), repeat(yes, 10)...), 100 * time.Second},
		"never":           {repeat(no, 20), -1},
		"a short stage":   {repeat(yes, 4), 0},
		"a single sample": {repeat(yes, 1), 0},
	} {
		if o := outcomeOf(name, c.samples); o.settled != c.want {
			t.Errorf("%s: settled %v, want %v", name, o.settled, c.want)
		}
	}
}

// TestTopologyZoneFails: while a zone's endpoints go, and when they come back, no
// connection of the other zones fails.
func TestTopologyZoneFails(t *testing.T) {
	tr := startTraffic(t)
	tr.createService()
	tr.place(2, 2, 2)
	stop := tr.drive(40, 0, 40)
	defer stop()
	awaits := func(what string, counts []int, is func(x sample) bool) {
		t.Helper()
		tr.place(counts...)
		var x sample
		testkit.Eventually(t, what, func() bool {
			x = tr.observe(500*time.Millisecond, counts...)
			return x.Connections > 0 && is(x)
		})
	}
	used := func(x sample) bool { return x.Load[0] > 0.2 }
	awaits("its endpoints are used", []int{2, 2, 2}, used)
	awaits("a zone is gone", []int{0, 2, 2}, func(x sample) bool { return x.Load[0] == 0 && x.Load[1] > 0 })
	awaits("and back", []int{2, 2, 2}, used)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if len(tr.failed) > 0 {
		t.Errorf("%d connections failed: %q", len(tr.failed), tr.failed[:min(5, len(tr.failed))])
	}
}
