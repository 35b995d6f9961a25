package topology

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

func (f *fakeDemand) Volume(proxy.PortName, proxy.Family) demand.Volume {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.volume
}

// evenly carried: each zone's clients exchange this with every zone alike.
func evenly(zones string, bytes, open, lasts float64) demand.Volume {
	v := demand.Volume{Bytes: "Measured"}
	n := float64(len(zones))
	for _, from := range zones {
		for _, to := range zones {
			v.Ways = append(v.Ways, demand.Carried{
				From: locality.Zone(from), To: locality.Zone(to), BytesIn: bytes / n / 4, BytesOut: bytes / n * 3 / 4, Open: open / n, Opened: 100 / n,
			})
		}
		v.Open += open
	}
	if lasts > 0 {
		v.Turnover = 1 / lasts
	}
	return v
}

// home is where a plan wants it: all at home.
func home(zones string, bytes, open, lasts float64) demand.Volume {
	v := evenly(zones, bytes, open, lasts)
	n := float64(len(zones))
	for i := range v.Ways {
		w := &v.Ways[i]
		by := 0.0
		if w.From == w.To {
			by = n
		}
		w.BytesIn, w.BytesOut, w.Open, w.Opened = w.BytesIn*by, w.BytesOut*by, w.Open*by, w.Opened*by
	}
	return v
}

func (r *rig) carry(v demand.Volume) {
	r.demand.mu.Lock()
	r.demand.volume = v
	r.demand.mu.Unlock()
	r.report(map[string]float64{"a": 1, "b": 1, "c": 1})
}

func conditionOf(r *rig, typ string) string {
	c := meta.FindStatusCondition(r.service().Status.Conditions, typ)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason + " " + c.Message
}

// TestLongConnections: the condition is there before they move, names what would move them,
// and goes once they were made anew.
func TestLongConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaabbbccc"), one(adaptive()))...)
		r.carry(evenly("abc", 1000, 4, 10))
		if c := conditionOf(r, ConditionLong); c != "" {
			t.Errorf("connections of 10 s: %s", c)
		}
		r.carry(evenly("abc", 1000, 4, 7200)) // 12 of two hours
		c := conditionOf(r, ConditionLong)
		for _, want := range []string{"True LongConnections", "12 connections are open", "2 h", "33 % of them stay", "100 % would", "MAX_CONNECTION_AGE", "sidecar"} {
			if !strings.Contains(c, want) {
				t.Errorf("the condition does not say %q: %s", want, c)
			}
		}
		report, _ := r.c.Explain(webKey)
		if p := report.Plans[0]; p.Long == nil || math.Abs(p.Long.Misplaced-2./3) > 1e-9 || !strings.Contains(report.Text(""), "long connections: 12") {
			t.Errorf("explained as %+v\n%s", p.Long, report.Text(""))
		}
		v := r.service().ResourceVersion
		r.carry(evenly("abc", 1000, 4, 7300))
		if now := r.service().ResourceVersion; now != v {
			t.Error("the condition was written again, though nothing changed")
		}
		r.carry(home("abc", 1000, 4, 7300)) // they were made anew
		if c := conditionOf(r, ConditionLong); c != "" {
			t.Errorf("where the plan has them: %s", c)
		}
	})
}

// TestPolicyLocal: what stays on its node is not planned, and that is said.
func TestPolicyLocal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		local := adaptive()
		policy := corev1.ServiceInternalTrafficPolicyLocal
		local.Spec.InternalTrafficPolicy = &policy
		r := newRig(t, nil, all(equalNodes("ab"), workloads("ab"), one(local))...)
		r.carry(demand.Volume{})
		if c := conditionOf(r, ConditionPlan); !strings.HasPrefix(c, "False PolicyLocal no plan: internalTrafficPolicy is Local") {
			t.Errorf("condition %q", c)
		}
		if plans := list[resource.Object](r, "TrafficPlan"); len(plans) != 0 {
			t.Errorf("%d plans", len(plans))
		}
		report, _ := r.c.Explain(webKey)
		if !strings.Contains(report.Text(""), "internalTrafficPolicy is Local") || len(report.Plans) != 0 {
			t.Error(report.Text(""))
		}
		outside := local.DeepCopy()
		outside.Spec.Type = corev1.ServiceTypeNodePort
		if policyLocal(outside) || !policyLocal(local) || policyLocal(adaptive()) {
			t.Error("a Service with an address from outside has something to plan, others have not")
		}
	})
}

func priced(region, world float64) *meshv1alpha1.ZoneCosts {
	return costs(DefaultCosts, func(s *meshv1alpha1.ZoneCostsSpec) {
		s.Price = &meshv1alpha1.ZonePrice{Currency: "EUR", Region: region, World: world}
	})
}

// TestMoney: the formula, with numbers that a reader can check: bytes/s × 2.63e6 s × price/1e9.
func TestMoney(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaabbbccc"), one(adaptive(), priced(0.02, 0.04)))...)
		r.carry(evenly("abc", 1e6, 4, 10))
		report, _ := r.c.Explain(webKey)
		m := report.Plans[0].Money
		// 3 MB/s, two thirds of which cross.
		if want := 2e6 * 2.63e6 * 0.02 / 1e9; m == nil || math.Abs(m.Now-want) > 1e-6 || m.Planned != 0 || math.Abs(m.Spread-want) > 1e-6 || m.Currency != "EUR" {
			t.Fatalf("%+v, want %.2f now", m, want)
		}
		if text := report.Text(""); !strings.Contains(text, "money: 105.20 EUR a month now, 0.00 EUR by the plan") || !strings.Contains(text, "Measured") {
			t.Error(text)
		}
		top, err := r.c.Simulate(Change{Top: 5})
		if err != nil || len(top.Top) != 1 || math.Abs(top.Top[0].Saving-105.2) > 0.01 || !top.Top[0].Planned || top.Top[0].Low >= 105.2 {
			t.Fatalf("%+v, %v", top, err)
		}
		if !strings.Contains(top.Text(), "105.20 EUR") {
			t.Error(top.Text())
		}
		asked, err := r.c.Simulate(Change{Top: 5, Price: &meshv1alpha1.ZonePrice{Currency: "USD", Region: 0.04}})
		if err != nil || math.Abs(asked.Top[0].Saving-210.4) > 0.01 || asked.Top[0].Money.Currency != "USD" {
			t.Errorf("at another price %+v, %v", asked, err)
		}
		// Demand and its bytes three times as much from a: more leaves it.
		more, err := r.c.Simulate(Change{Demand: []DemandChange{{webKey, "a", 3}}})
		if err != nil || more.Services[0].MoneyAfter == nil || !(more.Services[0].MoneyAfter.Planned > more.Services[0].MoneyBefore.Planned) {
			t.Errorf("%+v, %v", more, err)
		}
		// Bytes that nobody measured are not guessed.
		r.carry(demand.Volume{Bytes: "Unavailable", Reason: "--accounting=off"})
		none, err := r.c.Simulate(Change{Top: 5})
		if err != nil || len(none.Top) != 0 || !strings.Contains(none.Text(), "nothing is known of the bytes") {
			t.Errorf("%+v, %v", none, err)
		}
		entered, err := r.c.Simulate(Change{Top: 5, Bytes: []BytesEntered{{webKey, 1e6}}})
		if err != nil || len(entered.Top) != 1 || math.Abs(entered.Top[0].Money.Spread-105.2) > 0.01 || entered.Top[0].Bytes != "Entered" {
			t.Errorf("entered: %+v, %v", entered, err)
		}
	})
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("ab"), workloads("ab"), one(adaptive()))...)
		if _, err := r.c.Simulate(Change{Top: 5}); !IsNoPrice(err) {
			t.Errorf("without a price: %v", err)
		}
	})
}

// TestSavingBeforeDemandIsKnown: bytes are known a step earlier than demand. What is predicted
// follows from the connections that carried them, not from a guess by CPU, and the bounds have
// both.
func TestSavingBeforeDemandIsKnown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("abc"), one(web(), priced(0.02, 0.04)))...)
		v := evenly("abc", 1e6, 0, 0)
		for i := range v.Ways {
			if w := &v.Ways[i]; w.From == "a" { // twice as much
				w.BytesIn, w.BytesOut, w.Opened = 2*w.BytesIn, 2*w.BytesOut, 2*w.Opened
			}
		}
		r.carry(v)
		for _, what := range []string{"demand is guessed", "demand is measured"} {
			top, err := r.c.Simulate(Change{Top: 1})
			if err != nil || len(top.Top) != 1 {
				t.Fatalf("%+v, %v", top, err)
			}
			// Of a half of all, a's endpoint takes 39 %; two thirds of all cross now.
			s, month := top.Top[0], 4e6*2.63e6*0.02/1e9
			if want := month * (2./3 - .11); math.Abs(s.Saving-want) > 0.01 || s.Low > want || s.High < want {
				t.Errorf("%s: a saving of %.2f (%.2f to %.2f), want %.2f", what, s.Saving, s.Low, s.High, want)
			}
			if what == "demand is guessed" && s.High < month*2/3 {
				t.Errorf("%s: at most %.2f, want what the guess saves, %.2f", what, s.High, month*2/3)
			}
			r.report(map[string]float64{"a": 20, "b": 10, "c": 10})
		}
	})
}

// TestSavingOfAPlanInEffect: the list and "explain" say the same of a Service that is planned,
// also while connections were counted unevenly, as they are in the first minutes.
func TestSavingOfAPlanInEffect(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("abc"), one(adaptive(), priced(0.02, 0.04)))...)
		r.report(map[string]float64{"a": 10, "b": 10, "c": 10})
		v := evenly("abc", 1e6, 0, 0)
		for i := range v.Ways {
			if w := &v.Ways[i]; w.From == "a" {
				w.BytesIn, w.BytesOut, w.Opened = 5*w.BytesIn, 5*w.BytesOut, 5*w.Opened
			}
		}
		r.carry(v)
		top, err := r.c.Simulate(Change{Top: 1})
		if err != nil || len(top.Top) != 1 || !top.Top[0].Planned {
			t.Fatalf("%+v, %v", top, err)
		}
		report, _ := r.c.Explain(resource.Key{Namespace: "shop", Name: "web"})
		said, listed := report.Plans[0].Money, top.Top[0].Money
		if said == nil || said.Planned != listed.Planned || said.Now != listed.Now || said.Planned > said.Now/100 {
			t.Errorf("explain says %+v, the list %+v; all stays in its zone", said, listed)
		}
	})
}

// TestPricePairs: a pair's own price goes before that of its level, both ways or one.
func TestPricePairs(t *testing.T) {
	c := priced(0.02, 0.04)
	own := 0.5
	c.Spec.Pairs = []meshv1alpha1.ZoneCostsPair{{From: "a", To: "b", Cost: 1, Price: &own, OneWay: true}, {From: "b", To: "c", Cost: 1}}
	m := newModel("")
	m.atlas.costs[DefaultCosts] = c
	top, err := planner.NewTopology([]planner.Zone{{Name: "a", Region: "eu"}, {Name: "b", Region: "eu"}, {Name: "c", Region: "us"}}, planner.Costs{})
	if err != nil {
		t.Fatal(err)
	}
	p := m.priced("", &input{frame: &frame{topology: top}}, nil)
	for _, tc := range []struct {
		from, to int
		want     float64
	}{{0, 1, 0.5}, {1, 0, 0.02}, {1, 2, 0.04}, {0, 0, 0}, {0, 3, 0.04}} {
		if got := p.month(tc.from, tc.to, bytesPerGB/secondsPerMonth); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("a GB from %d to %d is %g, want %g", tc.from, tc.to, got, tc.want)
		}
	}
}

// TestParseMoney of flags.
func TestParseMoney(t *testing.T) {
	for text, ok := range map[string]bool{
		"USD:0.02:0.04": true, "EUR:0:0": true, "usd:1:1": false, "USD:1": false, "USD:x:1": false, "USD:-1:1": false, "USD:NaN:1": false, "": false,
	} {
		if _, err := ParsePrice(text); (err == nil) != ok {
			t.Errorf("price %q: %v", text, err)
		}
	}
	for text, want := range map[string]string{"shop/web:2000": "shop/web:2000", "web:1e3": "ns/web:1000", "web": "", "web:0": "", "web:x": "", ":1": "", "web:NaN": ""} {
		b, err := ParseBytes(text, "ns")
		if (err == nil) != (want != "") || err == nil && b.String() != want {
			t.Errorf("bytes %q: %v, %v", text, b, err)
		}
	}
}

// TestPredictedSaving: in simulated mixes the saving that was predicted is within 20 % of the
// one that is measured once all connections follow the plan, or a range was given that holds
// it; in 95 % of the cases and more.
func TestPredictedSaving(t *testing.T) {
	zones := []planner.Zone{{Name: "a", Region: "eu"}, {Name: "b", Region: "eu"}, {Name: "c", Region: "eu"}}
	top, err := planner.NewTopology(zones, planner.Costs{})
	if err != nil {
		t.Fatal(err)
	}
	price := &prices{currency: "EUR", perGB: [][]float64{{0, 1, 1}, {1, 0, 1}, {1, 1, 0}}, elsewhere: 1}
	good, total := 0, 0
	for _, mix := range []struct {
		name string
		// tail of the bytes of a connection (Pareto); 0: all alike. open connections that last;
		// skew of the zones' demand, as of CPU that says nothing of it.
		tail float64
		open int
		skew float64
	}{{"alike", 0, 0, 1}, {"skewed bytes", 2.2, 0, 1}, {"skewed demand", 2.2, 0, 4}, {"long connections", 2.2, 12, 2}} {
		for seed := range uint64(30) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			in := &input{frame: &frame{topology: top}, weight: []int64{3, 3, 3}, params: planner.DefaultParams(true)}
			rates := []float64{10 * mix.skew, 10, 10}
			plan, err := planner.Solve(top, &planner.Problem{Demand: rates, Weight: in.weight, Params: in.params})
			if err != nil {
				t.Fatal(err)
			}
			before := carried(rnd, rates, mix.tail, mix.open, func(_, _ int) float64 { return 1. / 3 })
			after := carried(rnd, rates, mix.tail, mix.open, plan.Share)
			predicted := moneyOf(price, flowsOf(&before, in), &before, in, plan.Share)
			measured := moneyOf(price, flowsOf(&before, in), &before, in, plan.Share).Now -
				moneyOf(price, flowsOf(&after, in), &after, in, plan.Share).Now
			low, high := predicted.SavingBetween()
			total++
			if math.Abs(predicted.Saving()-measured) <= 0.2*measured || low <= measured && measured <= high {
				good++
			} else {
				t.Logf("%s, seed %d: predicted %.2f (%.2f to %.2f), measured %.2f", mix.name, seed, predicted.Saving(), low, high, measured)
			}
		}
	}
	if t.Logf("%d of %d", good, total); float64(good) < 0.95*float64(total) {
		t.Errorf("%d of %d predictions held, want 95 %%", good, total)
	}
}

// carried in the window that rates remember, each connection by chance.
func carried(rnd *rand.Rand, rates []float64, tail float64, open int, share func(from, to int) float64) demand.Volume {
	names := []locality.Zone{"a", "b", "c"}
	v := demand.Volume{Bytes: "Measured", Open: float64(3 * open)}
	if open > 0 {
		v.Turnover = 1. / 3600
	}
	pick := func(from int) int {
		x := rnd.Float64()
		for to := range names {
			if x -= share(from, to); x < 0 {
				return to
			}
		}
		return from
	}
	size := func() float64 {
		if tail == 0 {
			return 20_000
		}
		return 20_000 * (tail - 1) / tail * math.Pow(1-rnd.Float64(), -1/tail)
	}
	for from, rate := range rates {
		var bytes, opened, held [3]float64
		for range int(rate * demandWindow / 10) { // a tenth, to be quick
			to := pick(from)
			bytes[to] += 10 * size()
			opened[to] += 10
		}
		for range open { // each carries as much as a hundred others
			to := pick(from)
			bytes[to] += 100 * size()
			held[to]++
		}
		for to := range names {
			v.Ways = append(v.Ways, demand.Carried{
				From: names[from], To: names[to], BytesIn: bytes[to] / demandWindow, Opened: opened[to] / demandWindow / 10, Open: held[to],
			})
		}
	}
	return v
}
