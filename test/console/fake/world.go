// Package fake is an API with data of any size for the pages of the console: what it answers has the types of the control plane's own
// answers. It decides nothing, and keeps what tests set.
package fake

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// World is what there is to see.
type World struct {
	Zones    summary.Zones
	Services []topology.Line
	Series   summary.Series
	Now      time.Time
}

// Size of a World.
type Size struct {
	Zones, Regions, Services int
	// Measured demand and bytes, and a price.
	Measured, Priced bool
	Now              time.Time
}

// New makes a world; equal sizes make equal ones.
func New(size Size) *World {
	r := rand.New(rand.NewPCG(1, uint64(size.Zones)))
	w := &World{Now: size.Now}
	var zones []locality.Zone
	for i := range size.Zones {
		region := fmt.Sprintf("region-%d", i*size.Regions/size.Zones+1)
		name := locality.Zone(fmt.Sprintf("zone-%c", 'a'+i))
		if size.Zones > 26 {
			name = locality.Zone(fmt.Sprintf("zone-%03d", i))
		}
		zones = append(zones, name)
		nodes := 3 + r.IntN(5)
		w.Zones.Zones = append(w.Zones.Zones, summary.Zone{Name: name, Region: locality.Region(region), Nodes: nodes, Ready: nodes - r.IntN(2)})
	}
	flows := map[[2]int]*topology.Flow{}
	codes, modes := map[string]*summary.CodeCount{}, map[string]int{}
	words := []string{"web", "cart", "search", "login", "mail", "stock", "price", "image", "order", "audit"}
	t := &w.Zones.Total
	home, worst, weight := [5]float64{}, [5]float64{}, 0.0
	for k := range size.Services {
		l := topology.Line{
			Namespace: []string{"shop", "data", "infra", "mail"}[k%4], Name: words[k%len(words)], Mode: "proxima.dev/Adaptive", Level: "default",
			Planned: true, Code: "Planned", Measured: size.Measured,
		}
		if k >= len(words) {
			l.Name = fmt.Sprintf("%s-%d", words[k%len(words)], k/len(words))
		}
		switch {
		case k%11 == 4:
			l.Planned, l.Refused, l.Code, l.Why = false, true, "FewEndpoints", "2 endpoints in 2 zones are too few to divide: each zone would have none to spare"
		case k%13 == 6:
			l.Mode, l.Level, l.Planned, l.Refused, l.Code, l.Why = "Auto", "service", false, true, "HintsRefused", "Kubernetes' heuristic gives no hints: a zone would be overloaded by 45 %, above 20 %"
		case k%7 == 5:
			l.Mode, l.Level, l.Planned, l.Code = "", "", false, "Even"
		}
		at := map[int]int64{}
		for range 2 + r.IntN(4) {
			at[r.IntN(size.Zones)] += int64(1 + r.IntN(5))
		}
		if k == 0 {
			for i := range min(3, size.Zones) {
				at[i] += 2
			}
		}
		total := int64(0)
		for i, n := range at {
			l.Endpoints += int(n)
			total += n
			w.Zones.Zones[i].Endpoints += n
		}
		l.Zones = len(at)
		demand := 2 + 400*r.Float64()*r.Float64()
		l.Demand = demand
		if !size.Measured {
			l.Demand = 0
		}
		stays := 0.0
		clients := 1 + r.IntN(min(size.Zones, 5))
		own := order(at)
		for range clients {
			from := own[r.IntN(len(own))]
			if r.IntN(4) == 0 {
				from = r.IntN(size.Zones)
			}
			share := demand / float64(clients)
			near := at[from] > 0
			for _, to := range order(at) {
				x := share * float64(at[to]) / float64(total)
				if l.Planned && near {
					if x = 0.12 * x; to == from {
						x = share * (0.88 + 0.12*float64(at[to])/float64(total))
					}
				}
				if to == from {
					stays += x
				}
				f := flows[[2]int{from, to}]
				if f == nil {
					f = &topology.Flow{From: zones[from], To: zones[to]}
					flows[[2]int{from, to}] = f
				}
				mine := topology.Flow{From: zones[from], To: zones[to]}
				if size.Measured {
					mine.Planned, mine.Measured = x, x*(0.8+0.15*r.Float64())
					mine.Bytes = mine.Measured * 40_000
				} else {
					mine.Guess = x / demand
				}
				if size.Priced && from != to {
					mine.Cost = mine.Bytes * 2.63e6 * 0.02 / 1e9
				}
				f.Planned, f.Measured, f.Bytes, f.Guess, f.Cost = f.Planned+mine.Planned, f.Measured+mine.Measured, f.Bytes+mine.Bytes, f.Guess+mine.Guess, f.Cost+mine.Cost
				l.Bytes += mine.Bytes
				l.Flows = append(l.Flows, mine)
				if size.Priced {
					if l.Cost == nil {
						l.Cost, l.Saving, l.Currency = new(float64), new(float64), "USD"
					}
					*l.Cost += mine.Cost
				}
			}
			w.Zones.Zones[from].Demand += l.Demand / float64(clients)
		}
		l.Routed = topology.Routed{InZone: stays / demand, Worst: 1 + 0.3*r.Float64()}
		l.Ways = topology.Alternatives{
			Best: topology.Routed{InZone: min(1, l.InZone+0.15*r.Float64()), Worst: 1.15}, Even: topology.Routed{InZone: 0.6 * l.InZone, Worst: 1},
			Auto: topology.Routed{InZone: 0.75 * l.InZone, Worst: 1.1 + 0.2*r.Float64()}, SameZone: topology.Routed{InZone: min(1, l.InZone+0.2), Worst: 1.4 + 2*r.Float64()},
		}
		if l.Saving != nil {
			*l.Saving = *l.Cost * (l.Ways.Best.InZone - l.InZone) / max(0.05, 1-l.InZone)
		}
		for _, i := range order(at) {
			l.ByZone = append(l.ByZone, topology.ZoneLoad{Zone: zones[i], Endpoints: at[i], Load: 0.8 + 0.4*r.Float64()})
		}
		for i, x := range []*topology.Routed{&l.Routed, &l.Ways.Best, &l.Ways.Even, &l.Ways.Auto, &l.Ways.SameZone} {
			home[i] += demand * x.InZone
			worst[i] += demand * x.Worst
		}
		weight += demand
		t.Demand += l.Demand
		if l.Planned {
			t.Planned++
		}
		if l.Measured {
			t.Measured++
		}
		if codes[l.Code] == nil {
			codes[l.Code] = &summary.CodeCount{Code: l.Code}
		}
		codes[l.Code].Services++
		if l.Refused {
			codes[l.Code].Refused++
		}
		modes[l.Mode]++
		if l.Cost != nil {
			if t.Cost == nil {
				t.Cost, t.Saving, t.Currency = new(float64), new(float64), l.Currency
			}
			*t.Cost, *t.Saving = *t.Cost+*l.Cost, *t.Saving+*l.Saving
		}
		w.Services = append(w.Services, l)
	}
	t.Services, t.Guessed = size.Services, !size.Measured && size.Services > 0
	for i, x := range []*topology.Routed{&t.Routed, &t.Ways.Best, &t.Ways.Even, &t.Ways.Auto, &t.Ways.SameZone} {
		if x.InZone = 1; weight > 0 {
			x.InZone, x.Worst = home[i]/weight, worst[i]/weight
		}
	}
	for key := range flows {
		w.Zones.Flows = append(w.Zones.Flows, *flows[key])
	}
	slices.SortFunc(w.Zones.Flows, func(a, b topology.Flow) int {
		return cmp.Or(strings.Compare(string(a.From), string(b.From)), strings.Compare(string(a.To), string(b.To)))
	})
	for _, c := range codes {
		t.Codes = append(t.Codes, *c)
	}
	slices.SortFunc(t.Codes, func(a, b summary.CodeCount) int { return strings.Compare(a.Code, b.Code) })
	for m, n := range modes {
		t.Modes = append(t.Modes, summary.ModeCount{Mode: m, Services: n})
	}
	w.sums(r)
	return w
}

// sums of zones, and how they were.
func (w *World) sums(r *rand.Rand) {
	w.Zones.Position = summary.Position{Epoch: "fake", Sequence: 1}
	w.Zones.Since = w.Now.Add(-3 * time.Hour)
	w.Series = summary.Series{Since: w.Zones.Since, Last: w.Now, Step: summary.Step.Seconds()}
	for i := range w.Zones.Zones {
		z := &w.Zones.Zones[i]
		all, home := 0.0, 0.0
		for _, f := range w.Zones.Flows {
			if f.From != z.Name {
				continue
			}
			x := cmp.Or(f.Planned, f.Guess)
			all, z.Guess, z.Cost = all+x, z.Guess+f.Guess, z.Cost+f.Cost
			if f.To == z.Name {
				home += x
			}
		}
		if z.InZone, z.Worst = 1, 1+0.5*r.Float64(); all > 0 {
			z.InZone = home / all
		}
		s := summary.ZoneSeries{Zone: z.Name}
		for k := range 360 {
			wave := 0.06 * math.Sin(float64(k)/40+float64(i))
			s.InZone = append(s.InZone, float32(max(0, min(1, z.InZone+wave))))
			s.Demand = append(s.Demand, float32(z.Demand*(1+wave)))
		}
		w.Series.Zones = append(w.Series.Zones, s)
	}
}

func order(at map[int]int64) []int {
	var out []int
	for i := range at {
		out = append(out, i)
	}
	slices.Sort(out)
	return out
}
