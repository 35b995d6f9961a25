package summary

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// micro is the unit of rates and of money in sums, millionths, and centi that of bytes a second, which are many more.
const micro, centi = 1e6, 1e2

// whole number of millionths. Rates are bounded, so that sums of 100,000 Services cannot overflow.
func whole(x float64) int64 {
	if !(x > 0) {
		return 0
	}
	return int64(math.Round(min(x, 1e7) * micro))
}

func part(n int64) float64 { return float64(n) / micro }

// way from a zone to another, by their numbers.
type way struct{ from, to uint16 }

// numbers of zones. They are never taken back, as names of zones are few.
type numbers struct {
	of    map[locality.Zone]uint16
	names []locality.Zone
}

// number of a zone; the last one is of all that are too many.
func (n *numbers) number(zone locality.Zone) uint16 {
	if at, ok := n.of[zone]; ok {
		return at
	}
	at := uint16(min(len(n.names), math.MaxUint16))
	if len(n.names) <= math.MaxUint16 {
		n.of[zone] = at
		n.names = append(n.names, zone)
	}
	return at
}

// packed flows of a Service. Where there are many zones there are hundreds of each of thousands of Services.
type packed struct {
	routed  []routedFlow
	counted []countedFlow
}

// routedFlow is what Flow.Planned says, or, if it is negative, Flow.Guess.
type routedFlow struct {
	way
	x float32
}

// countedFlow is the rest of a Flow.
type countedFlow struct {
	way
	measured, bytes, cost float32
}

func (n *numbers) pack(flows []topology.Flow) (p packed) {
	for i := range flows {
		f := &flows[i]
		w := way{n.number(f.From), n.number(f.To)}
		if f.Planned > 0 {
			p.routed = append(p.routed, routedFlow{w, float32(f.Planned)})
		}
		if f.Guess > 0 {
			p.routed = append(p.routed, routedFlow{w, -float32(f.Guess)})
		}
		if f.Measured > 0 || f.Bytes > 0 || f.Cost > 0 {
			p.counted = append(p.counted, countedFlow{w, float32(f.Measured), float32(f.Bytes), float32(f.Cost)})
		}
	}
	p.routed, p.counted = slices.Clip(p.routed), slices.Clip(p.counted)
	return p
}

func (p *packed) same(q *packed) bool {
	return slices.Equal(p.routed, q.routed) && slices.Equal(p.counted, q.counted)
}

// add to sums of flows, or with sign -1 take off.
func (p *packed) add(to map[way]*flowSums, sign int64) {
	add := func(w way, f flowSums) {
		sum := to[w]
		if sum == nil {
			sum = &flowSums{}
			to[w] = sum
		}
		f.entries = 1
		if sum.add(&f, sign); sum.entries == 0 {
			delete(to, w)
		}
	}
	for _, f := range p.routed {
		if f.x < 0 {
			add(f.way, flowSums{guess: whole(-float64(f.x))})
		} else {
			add(f.way, flowSums{planned: whole(float64(f.x))})
		}
	}
	for _, f := range p.counted {
		add(f.way, flowSums{measured: whole(float64(f.measured)), cost: whole(float64(f.cost)), bytes: int64(math.Round(min(float64(f.bytes), 1e11) * centi))})
	}
}

// flowSums of a way, in millionths; bytes in hundredths.
type flowSums struct {
	planned, guess, measured, cost int64
	bytes                          int64
	entries                        int64
}

func (f *flowSums) add(g *flowSums, sign int64) {
	f.planned += sign * g.planned
	f.guess += sign * g.guess
	f.measured += sign * g.measured
	f.cost += sign * g.cost
	f.bytes += sign * g.bytes
	f.entries += sign * g.entries
}

// sums of Services. The zero value is none.
type sums struct {
	flows     map[way]*flowSums
	endpoints map[locality.Zone]int64
	// loads of the endpoints of zones, in hundredths of the mean of their Service, counted by Services.
	loads map[locality.Zone]map[int64]int64
	// codes counts Services by Line.Code, refused those among them whose mode is not in effect.
	codes, refused map[string]int64
	modes          map[string]int64
	currencies     map[string]int64

	services, planned, measured int64
	demand, cost, saving        int64
	// routed are demand × share that stays in its zone, and demand × load of the most loaded endpoint, of what is in effect and of
	// the alternatives; guessed is the same where demand is not measured, by Services.
	routed, guessed [5]routedSums
	weighed         int64 // Services with endpoints and without measured demand
}

type routedSums struct{ inZone, worst int64 }

func newSums() *sums {
	return &sums{
		flows: map[way]*flowSums{}, endpoints: map[locality.Zone]int64{}, loads: map[locality.Zone]map[int64]int64{}, codes: map[string]int64{}, refused: map[string]int64{},
		modes: map[string]int64{}, currencies: map[string]int64{},
	}
}

// count a key; what is 0 is forgotten.
func count[K comparable](m map[K]int64, key K, n int64) {
	if m[key] += n; m[key] == 0 {
		delete(m, key)
	}
}

// add a Service, or with sign -1 take it off. It must have been added as it is.
func (s *sums) add(l *topology.Line, flows *packed, sign int64) {
	flows.add(s.flows, sign)
	s.services += sign
	count(s.codes, l.Code, sign)
	if l.Refused {
		count(s.refused, l.Code, sign)
	}
	count(s.modes, l.Mode, sign)
	if l.Planned {
		s.planned += sign
	}
	for i := range l.ByZone {
		z := &l.ByZone[i]
		count(s.endpoints, z.Zone, sign*z.Endpoints)
		s.addLoad(z.Zone, int64(math.Round(min(z.Load, 1e6)*100)), sign)
	}
	if l.Endpoints > 0 {
		s.addRouted(l, sign)
	}
	if l.Currency != "" {
		count(s.currencies, l.Currency, sign)
		s.cost += sign * whole(*l.Cost)
		s.saving += sign * signed(*l.Saving)
	}
}

func (s *sums) addLoad(zone locality.Zone, load, n int64) {
	of := s.loads[zone]
	if of == nil {
		of = map[int64]int64{}
		s.loads[zone] = of
	}
	if count(of, load, n); len(of) == 0 {
		delete(s.loads, zone)
	}
}

// worst load of an endpoint in a zone; 0: there is none.
func (s *sums) worst(zone locality.Zone) float64 {
	most := int64(0)
	for load := range s.loads[zone] {
		most = max(most, load)
	}
	return float64(most) / 100
}

func signed(x float64) int64 {
	if x < 0 {
		return -whole(-x)
	}
	return whole(x)
}

func (s *sums) addRouted(l *topology.Line, sign int64) {
	ways := [5]topology.Routed{l.Routed, l.Ways.Best, l.Ways.Even, l.Ways.Auto, l.Ways.SameZone}
	weight, into := l.Demand, &s.routed
	if l.Measured {
		s.measured += sign
		s.demand += sign * whole(l.Demand)
	} else {
		weight, into = 1, &s.guessed
		s.weighed += sign
	}
	for i, r := range ways {
		into[i].inZone += sign * whole(weight*r.InZone)
		into[i].worst += sign * whole(weight*r.Worst)
	}
}

// merge other sums.
func (s *sums) merge(o *sums) {
	for w, f := range o.flows {
		if s.flows[w] == nil {
			s.flows[w] = &flowSums{}
		}
		s.flows[w].add(f, 1)
	}
	for zone, n := range o.endpoints {
		s.endpoints[zone] += n
	}
	for zone, of := range o.loads {
		for load, n := range of {
			s.addLoad(zone, load, n)
		}
	}
	for _, m := range []struct{ to, from map[string]int64 }{
		{s.codes, o.codes}, {s.refused, o.refused}, {s.modes, o.modes}, {s.currencies, o.currencies},
	} {
		for k, n := range m.from {
			m.to[k] += n
		}
	}
	s.services, s.planned, s.measured, s.weighed = s.services+o.services, s.planned+o.planned, s.measured+o.measured, s.weighed+o.weighed
	s.demand, s.cost, s.saving = s.demand+o.demand, s.cost+o.cost, s.saving+o.saving
	for i := range s.routed {
		s.routed[i].inZone, s.routed[i].worst = s.routed[i].inZone+o.routed[i].inZone, s.routed[i].worst+o.routed[i].worst
		s.guessed[i].inZone, s.guessed[i].worst = s.guessed[i].inZone+o.guessed[i].inZone, s.guessed[i].worst+o.guessed[i].worst
	}
}

// Totals of all Services of a Scope.
type Totals struct {
	Services int `json:"services"`
	// Planned Services follow a TrafficPlan; Measured are those whose demand agents count.
	Planned  int `json:"planned"`
	Measured int `json:"measured"`
	// Demand in connections per second, as far as it is measured.
	Demand float64 `json:"demand"`
	// Guessed: no demand is measured, so that all shares are of Services alike, with the demand that the CPU of nodes suggests.
	Guessed bool `json:"guessed,omitempty"`
	// Routed is what is in effect, Ways what else could be: shares of the demand, and the mean over it of each Service's most
	// loaded endpoint.
	topology.Routed
	Ways topology.Alternatives `json:"ways"`
	// Cost in a month of what leaves its zone, and what best plans would save of it; nil: no price or no bytes are known, or there
	// are several currencies.
	Cost     *float64 `json:"cost,omitempty"`
	Saving   *float64 `json:"saving,omitempty"`
	Currency string   `json:"currency,omitempty"`
	// Codes counts Services by the reason of their routing, Modes by their mode.
	Codes []CodeCount `json:"codes"`
	Modes []ModeCount `json:"modes"`
}

// CodeCount is how many Services have a Line.Code.
type CodeCount struct {
	Code     string `json:"code"`
	Services int    `json:"services"`
	// Refused of them: the mode that they ask for is not in effect.
	Refused int `json:"refused,omitempty"`
}

// ModeCount is how many Services have a mode; an empty one is none.
type ModeCount struct {
	Mode     string `json:"mode"`
	Services int    `json:"services"`
}

func (s *sums) totals() Totals {
	t := Totals{
		Services: int(s.services), Planned: int(s.planned), Measured: int(s.measured), Demand: part(s.demand),
		Codes: []CodeCount{}, Modes: []ModeCount{},
	}
	of, total := &s.routed, s.demand
	if total == 0 {
		of, total, t.Guessed = &s.guessed, s.weighed*micro, s.weighed > 0
	}
	for i, r := range []*topology.Routed{&t.Routed, &t.Ways.Best, &t.Ways.Even, &t.Ways.Auto, &t.Ways.SameZone} {
		if r.InZone = 1; total > 0 {
			r.InZone, r.Worst = float64(of[i].inZone)/float64(total), float64(of[i].worst)/float64(total)
		}
	}
	if len(s.currencies) == 1 {
		for currency := range s.currencies {
			cost, saving := part(s.cost), part(s.saving)
			t.Currency, t.Cost, t.Saving = currency, &cost, &saving
		}
	}
	for _, code := range slices.Sorted(maps.Keys(s.codes)) {
		t.Codes = append(t.Codes, CodeCount{code, int(s.codes[code]), int(s.refused[code])})
	}
	for _, mode := range slices.Sorted(maps.Keys(s.modes)) {
		t.Modes = append(t.Modes, ModeCount{mode, int(s.modes[mode])})
	}
	return t
}

// list of the flows, ordered by the names of zones or not.
func (s *sums) list(names []locality.Zone, ordered bool) []topology.Flow {
	out := make([]topology.Flow, 0, len(s.flows))
	for w, f := range s.flows {
		out = append(out, topology.Flow{
			From: names[w.from], To: names[w.to], Planned: part(f.planned), Guess: part(f.guess), Measured: part(f.measured), Cost: part(f.cost), Bytes: float64(f.bytes) / centi,
		})
	}
	if ordered {
		slices.SortFunc(out, func(a, b topology.Flow) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	}
	return out
}
