package topology

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// line of the Service web, as the catalog is now.
func (r *rig) line() (*Tally, Line) {
	r.t.Helper()
	t := r.tally(webKey)
	return t, t.Sum()
}

func (r *rig) lineOf(key resource.Key) Line {
	r.t.Helper()
	return r.tally(key).Sum()
}

func (r *rig) tally(key resource.Key) *Tally {
	r.t.Helper()
	synctest.Wait()
	snapshot := r.c.config.Catalog.Snapshot()
	tallier := r.c.Tallier()
	d := catalog.Delta{After: snapshot}
	for key, n := range snapshot.Nodes.All() {
		d.Nodes = append(d.Nodes, catalog.Change[*corev1.Node]{Key: key, New: n})
	}
	for key, costs := range snapshot.ZoneCosts.All() {
		d.ZoneCosts = append(d.ZoneCosts, catalog.Change[*meshv1alpha1.ZoneCosts]{Key: key, New: costs})
	}
	if !tallier.Apply(&d) {
		r.t.Error("the first delta prepares nothing")
	}
	t, ok := tallier.Tally(snapshot, key)
	if !ok {
		r.t.Fatal("there is no Service")
	}
	return t
}

// TestTally: a line says what explain and the survey say, and its flows are its demand.
func TestTally(t *testing.T) {
	for _, mode := range []string{"", "Auto", Adaptive} {
		bubble(t, func(t *testing.T) {
			service := web()
			if mode != "" {
				service = web(corev1.AnnotationTopologyMode, mode)
			}
			r := newRig(t, nil, all(equalNodes("abc"), workloads("aaaabbc"), one(service))...)
			r.demand.set(map[string]float64{"a": 10, "b": 30, "c": 60})
			r.settle()
			tally, l := r.line()
			report, _ := r.c.Explain(webKey)
			_, surveyed := r.survey(SurveyQuestion{})
			want := surveyed.KubeProxy
			if mode == Adaptive {
				want = report.Plans[0].Now
			}
			if !near(l.InZone, want.InZone) || !near(l.Worst, want.Worst) || !near(l.Ways.Best.InZone, surveyed.Plan.InZone) {
				t.Errorf("%q: %+v, want %+v, best %+v", mode, l.Routed, want, surveyed.Plan)
			}
			if l.Endpoints != 7 || l.Zones != 3 || !near(l.Demand, 100) || !l.Measured || l.Planned != (mode == Adaptive) {
				t.Errorf("%q: %+v", mode, l)
			}
			sum, home := 0.0, 0.0
			for _, f := range l.Flows {
				sum += f.Planned
				if f.From == f.To {
					home += f.Planned
				}
			}
			if !near(sum, 100) || !near(home, 100*want.InZone) {
				t.Errorf("%q: flows of %g, %g stay: %+v", mode, sum, home, l.Flows)
			}
			worst, endpoints := 0.0, int64(0)
			for _, z := range l.ByZone {
				worst, endpoints = max(worst, z.Load), endpoints+z.Endpoints
			}
			if endpoints != 7 || mode != "Auto" && math.Abs(worst-l.Worst) > 1e-6 {
				t.Errorf("%q: loads %+v, worst %g", mode, l.ByZone, l.Worst)
			}
			// Demand that moves is in the next sum, without another look at the Service.
			r.demand.set(map[string]float64{"a": 100})
			if l = tally.Sum(); !near(l.Demand, 100) || len(l.Flows) == 0 || l.Flows[len(l.Flows)-1].From != "a" {
				t.Errorf("%q: after the demand moved: %+v", mode, l)
			}
		})
	}
}

// TestTallyReasons: each Service says why it is routed as it is.
func TestTallyReasons(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads(""), one(web()))...)
		r.settle()
		if _, l := r.line(); l.Code != ReasonNoEndpoints || l.Refused {
			t.Errorf("without endpoints: %+v", l)
		}
	})
	bubble(t, func(t *testing.T) {
		service := web(corev1.AnnotationTopologyMode, "Auto")
		r := newRig(t, nil, all(equalNodes("abc"), workloads("a"), one(service))...)
		r.settle()
		if _, l := r.line(); l.Code != ReasonHintsDisabled || !l.Refused || l.Why == "" {
			t.Errorf("Auto with one endpoint: %+v", l)
		}
	})
}

// TestTallyVolume: what agents have counted, and what it costs.
func TestTallyVolume(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("abc"), one(web(), priced(0.02, 0.04)))...)
		r.demand.set(map[string]float64{"a": 1, "b": 1, "c": 1})
		r.demand.volume = demand.Volume{Bytes: "Measured", Ways: []demand.Carried{
			{From: "a", To: "a", BytesIn: 1e6, Opened: 5}, {From: "a", To: "b", BytesIn: 1e6, BytesOut: 1e6, Opened: 5},
		}}
		r.settle()
		_, l := r.line()
		if l.Cost == nil || l.Currency != "EUR" || !near(l.Bytes, 3e6) || l.Volume != "Measured" {
			t.Fatalf("%+v", l)
		}
		measured, cost := 0.0, 0.0
		for _, f := range l.Flows {
			measured, cost = measured+f.Measured, cost+f.Cost
		}
		if !near(measured, 10) || !near(cost, *l.Cost) || !near(*l.Cost, 2e6*secondsPerMonth*0.02/bytesPerGB) {
			t.Errorf("measured %g, cost %g of %g", measured, cost, *l.Cost)
		}
		report, _ := r.c.Explain(webKey)
		if m := report.Plans[0].Money; m == nil || !near(m.Now, *l.Cost) || !near(m.Saving(), *l.Saving) {
			t.Errorf("explain says %+v, the line %g and %g", m, *l.Cost, *l.Saving)
		}
	})
}

// alike: but for the rounding of shares in a plan.
func alike(a, b float64) bool { return math.Abs(a-b) <= 1e-5*max(1, math.Abs(b)) }

// TestNumbersAgree: for random clusters a line has the numbers that explain and the survey have, and flows add up to them.
func TestNumbersAgree(t *testing.T) {
	clusters := 20
	if os.Getenv("PROXIMA_SOAK") != "" {
		clusters = 200
	}
	for seed := range uint64(clusters) {
		bubble(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 22))
			zones := "abcdef"[:2+random.IntN(5)]
			endpoints, demand := "", map[string]float64{}
			for range 1 + random.IntN(12) {
				endpoints += string(zones[random.IntN(len(zones))])
			}
			for _, z := range zones {
				if random.IntN(3) > 0 {
					demand[string(z)] = 100 * random.Float64()
				}
			}
			mode := []string{"Disabled", "Auto", Adaptive}[random.IntN(3)]
			r := newRig(t, nil, all(equalNodes(zones), workloads(endpoints), one(web(corev1.AnnotationTopologyMode, mode)))...)
			r.demand.set(demand)
			r.settle()
			_, l := r.line()
			report, _ := r.c.Explain(webKey)
			_, surveyed := r.survey(SurveyQuestion{})
			want, best := surveyed.KubeProxy, surveyed.Plan
			if mode == Adaptive {
				want = report.Plans[0].Now
			}
			total, home, guessed := 0.0, 0.0, 0.0
			for _, f := range l.Flows {
				total, guessed = total+f.Planned, guessed+f.Guess
				if f.From == f.To {
					home += f.Planned + f.Guess
				}
			}
			if !near(l.InZone, want.InZone) || !near(l.Worst, want.Worst) || !near(l.Ways.Best.InZone, best.InZone) || !near(l.Ways.Best.Worst, best.Worst) ||
				!alike(total, l.Demand) || l.Measured == (guessed > 0) || !alike(home, want.InZone*(total+guessed)) {
				t.Errorf("seed %d, %s, zones %s, endpoints %s, demand %v:\n%+v\nwant %+v, best %+v; flows of %g, %g guessed, %g stay", seed, mode, zones, endpoints, demand, l, want, best, total, guessed, home)
			}
		})
	}
}

// TestTallyOfSites: connections to other sites are flows, and so is what is not kept here.
func TestTallyOfSites(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, ofSite, all(equalNodes("ab"), workloads("aabb"), one(imported(), offer("east", 4, 20), ingress("east")))...)
		r.report(map[string]float64{"a": 30, "b": 10})
		l := r.lineOf(resource.KeyOf(imported()))
		total, elsewhere, home := 0.0, 0.0, 0.0
		for _, f := range l.Flows {
			total += f.Planned
			switch {
			case f.To == "site:east":
				elsewhere += f.Planned
			case f.From == f.To:
				home += f.Planned
			}
		}
		// InZone counts the demand of the other site too, which is half of that here and stays there.
		if !alike(total, 40) || math.Abs(elsewhere-30*0.163) > 0.1 || !alike((home+20)/60, l.InZone) {
			t.Errorf("%g connections, %g to the other site, %g stay (%g): %+v", total, elsewhere, home, l.InZone, l)
		}
	})
}

// reporting is a Demand that says whether anything is known, and counts questions.
type reporting struct {
	fakeDemand
	known bool
	asked int
}

func (r *reporting) Reported(proxy.PortName) bool { return r.known }

func (r *reporting) Shares(port proxy.PortName, family proxy.Family, zones []locality.Zone, prior []float64, noNodes []bool) demand.Estimate {
	r.asked++
	if !r.known {
		return Unmeasured{}.Shares(port, family, zones, prior, noNodes)
	}
	return r.fakeDemand.Shares(port, family, zones, prior, noNodes)
}

// TestSilence: of a Service of whose demand nothing is known nobody asks again, until something is; then its plan is looked at.
func TestSilence(t *testing.T) {
	client := resourcetest.New()
	client.Seed(equalNodes("abc")...)
	client.Seed(adaptive(), sliceOf("web", "aaabbbccc"))
	without := snapshotOfClient(t, client)
	r := &reporting{fakeDemand: fakeDemand{rates: map[string]float64{"a": 10, "b": 10, "c": 10}}}
	c := New(Config{Demand: r})
	key := resource.Key{Namespace: "shop", Name: "web"}
	client.Seed(planOf(t, c, without, key)[0])
	s := snapshotOfClient(t, client)
	planOf(t, c, s, key)
	service, _ := s.Services.Get(key)
	stands := func(want bool, asks int) {
		t.Helper()
		before := r.asked
		if is := c.stands(key, service); is != want || r.asked-before != asks {
			t.Errorf("stands %v after %d questions, want %v after %d", is, r.asked-before, want, asks)
		}
	}
	stands(true, 1)
	stands(true, 0)
	stands(true, 0)
	r.known = true
	before := c.entries[key].units[0].rate
	stands(true, 1)
	if now := c.entries[key].units[0].rate; now != 30 || before != 0 {
		t.Errorf("demand of %v, then %v, want 0 and 30", before, now)
	}
	r.known = false
	stands(true, 1)
	stands(true, 0)
}
