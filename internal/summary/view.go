package summary

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/topology"
)

func newEpoch() string { return rand.Text()[:8] }

// Scope is what a viewer may read: the Services of all namespaces, or of some.
type Scope struct {
	All        bool
	Namespaces []string // ascending
}

// Allows a namespace.
func (s *Scope) Allows(namespace string) bool {
	if s.All {
		return true
	}
	_, ok := slices.BinarySearch(s.Namespaces, namespace)
	return ok
}

// Name by which viewers of equal rights are found.
func (s *Scope) Name() string {
	if s.All {
		return "*"
	}
	return strings.Join(s.Namespaces, ",")
}

// partial says what a viewer does not see; empty: nothing.
func (s *Scope) partial() string {
	switch {
	case s.All:
		return ""
	case len(s.Namespaces) == 0:
		return "you may not list the Services of any namespace"
	}
	return fmt.Sprintf("you may list the Services of %d namespaces alone: %s", len(s.Namespaces), shortList(s.Namespaces))
}

func shortList(all []string) string {
	const most = 5
	text := strings.Join(all[:min(most, len(all))], ", ")
	if len(all) > most {
		text += ", …"
	}
	return text
}

// Position of the sums: it grows with each change within an epoch, which ends with the process or its leadership.
type Position struct {
	Epoch    string `json:"epoch"`
	Sequence uint64 `json:"position"`
}

// Zones are the sums of all Services of a Scope, by zone.
type Zones struct {
	Position
	// Since is when this control plane began to measure.
	Since time.Time       `json:"since"`
	Zones []Zone          `json:"zones"`
	Flows []topology.Flow `json:"flows"`
	Total Totals          `json:"total"`
	// Partial says what the viewer may not see; empty: nothing.
	Partial string `json:"partial,omitempty"`
}

// Zone of clients and endpoints.
type Zone struct {
	Name   locality.Zone   `json:"name"`
	Region locality.Region `json:"region,omitempty"`
	// Nodes there are, and those that are ready.
	Nodes int `json:"nodes"`
	Ready int `json:"ready"`
	// Endpoints of all Services together.
	Endpoints int64 `json:"endpoints"`
	// Demand of its clients in connections per second; Guess where it is not measured, in Services.
	Demand float64 `json:"demand"`
	Guess  float64 `json:"guess,omitempty"`
	// InZone is the share of its demand that stays; Worst the load of its most loaded endpoint, as a multiple of the
	// mean of the endpoint's Service.
	InZone float64 `json:"inZone"`
	Worst  float64 `json:"worst"`
	// Cost in a month of what its clients send to other zones and get from them.
	Cost float64 `json:"cost,omitempty"`
}

// ErrFilling: the sums are not complete yet.
var ErrFilling = errors.New("the control plane is still adding up its Services; try again in a moment")

// sumsOf a scope. The lock is held.
func (t *Table) sumsOf(scope *Scope) *sums {
	if scope.All {
		return t.total
	}
	s := newSums()
	for _, namespace := range scope.Namespaces {
		if of := t.namespaces[namespace]; of != nil {
			s.merge(of)
		}
	}
	return s
}

// Zones sums up what a scope may see.
func (t *Table) Zones(scope Scope) (*Zones, error) { return t.zonesOf(scope, true) }

// zonesOf a scope, with flows in order or not.
func (t *Table) zonesOf(scope Scope, ordered bool) (*Zones, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.filled {
		return nil, ErrFilling
	}
	s := t.sumsOf(&scope)
	out := &Zones{Position: Position{t.epoch, t.position}, Since: t.began, Zones: []Zone{}, Flows: s.list(t.zones.names, ordered), Total: s.totals(), Partial: scope.partial()}
	all := t.zoneSums(s)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		sum := all[name]
		z := Zone{
			Name: name, Endpoints: s.endpoints[name], Demand: part(sum.demand), Guess: part(sum.guess), InZone: sum.inZone(),
			Worst: s.worst(name), Cost: part(sum.cost),
		}
		if n := t.nodes[name]; n != nil {
			z.Region, z.Nodes, z.Ready = n.region, n.nodes, n.ready
		}
		out.Zones = append(out.Zones, z)
	}
	return out, nil
}

// Orders of Services, by Query.Sort.
var orders = map[string]func(a, b *topology.Line) int{
	"name":      func(a, b *topology.Line) int { return 0 },
	"demand":    func(a, b *topology.Line) int { return cmp.Compare(b.Demand, a.Demand) },
	"inZone":    func(a, b *topology.Line) int { return cmp.Compare(a.InZone, b.InZone) },
	"worst":     func(a, b *topology.Line) int { return cmp.Compare(b.Worst, a.Worst) },
	"endpoints": func(a, b *topology.Line) int { return cmp.Compare(b.Endpoints, a.Endpoints) },
	"bytes":     func(a, b *topology.Line) int { return cmp.Compare(b.Bytes, a.Bytes) },
	"cost":      func(a, b *topology.Line) int { return cmp.Compare(valueOf(b.Cost), valueOf(a.Cost)) },
	// What a plan would keep in its zone comes where no money is known.
	"saving": func(a, b *topology.Line) int {
		return cmp.Or(cmp.Compare(valueOf(b.Saving), valueOf(a.Saving)), cmp.Compare(gain(b), gain(a)))
	},
}

func valueOf(x *float64) float64 {
	if x == nil {
		return 0
	}
	return *x
}

// gain is the demand that the best plan would keep in its zone beyond what stays now.
func gain(l *topology.Line) float64 {
	return (l.Ways.Best.InZone - l.InZone) * max(l.Demand, 1e-6)
}

// Sorts lists what Query.Sort may be.
func Sorts() []string { return slices.Sorted(maps.Keys(orders)) }

// MaxLimit of Services in an answer.
const MaxLimit = 1000

// Query for Services.
type Query struct {
	// Text that the name or namespace contains, whatever its case.
	Text string
	// Namespace, Zone (with endpoints or clients there), Mode ("none" is none) and Code to limit the answer to; empty: all.
	Namespace, Zone, Mode, Code string
	// Refused alone: the mode that they ask for is not in effect.
	Refused bool
	// Sort is one of Sorts; empty: saving. Reverse turns the order around.
	Sort    string
	Reverse bool
	// Limit of lines, at most MaxLimit; 0: 100. Offset leaves the first out.
	Limit, Offset int
}

// QueryError is a Query that cannot be answered.
type QueryError struct{ Field, Problem string }

func (e *QueryError) Error() string { return e.Field + ": " + e.Problem }

// Services are lines that answer a Query.
type Services struct {
	Position
	Since    time.Time       `json:"since"`
	Services []topology.Line `json:"services"`
	// Total of Services that the query matches, and All that the viewer may see.
	Total int `json:"total"`
	All   int `json:"all"`
	// Next is the offset of the next page; 0: there is none.
	Next    int    `json:"next,omitempty"`
	Partial string `json:"partial,omitempty"`
}

// Services that a query matches, of those that a scope may see. Errors: a *QueryError, ErrFilling.
func (t *Table) Services(scope Scope, q Query) (*Services, error) {
	order := orders[cmp.Or(q.Sort, "saving")]
	switch {
	case order == nil:
		return nil, &QueryError{"sort", fmt.Sprintf("%q: use one of %s", q.Sort, strings.Join(Sorts(), ", "))}
	case q.Limit < 0 || q.Limit > MaxLimit:
		return nil, &QueryError{"limit", fmt.Sprintf("%d: use 1 to %d", q.Limit, MaxLimit)}
	case q.Offset < 0:
		return nil, &QueryError{"continue", "use the value of next"}
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.filled {
		return nil, ErrFilling
	}
	out := &Services{Position: Position{t.epoch, t.position}, Since: t.began, Services: []topology.Line{}, Partial: scope.partial()}
	var found []*topology.Line
	for key, r := range t.rows {
		if !scope.Allows(key.Namespace) {
			continue
		}
		out.All++
		if t.matches(&q, r) {
			found = append(found, &r.line)
		}
	}
	slices.SortFunc(found, func(a, b *topology.Line) int {
		n := cmp.Or(order(a, b), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
		if q.Reverse {
			return -n
		}
		return n
	})
	out.Total = len(found)
	found = found[min(q.Offset, len(found)):]
	limit := cmp.Or(q.Limit, 100)
	if len(found) > limit {
		out.Next, found = q.Offset+limit, found[:limit]
	}
	for _, l := range found {
		out.Services = append(out.Services, *l)
	}
	return out, nil
}

func (t *Table) matches(q *Query, r *row) bool {
	l := &r.line
	switch {
	case q.Namespace != "" && l.Namespace != q.Namespace,
		q.Mode == "none" && l.Mode != "",
		q.Mode != "" && q.Mode != "none" && l.Mode != q.Mode,
		q.Code != "" && l.Code != q.Code,
		q.Refused && !l.Refused:
		return false
	}
	if text := strings.ToLower(q.Text); text != "" && !strings.Contains(l.Namespace+"/"+l.Name, text) {
		return false
	}
	zone := locality.Zone(q.Zone)
	if zone == "" || slices.ContainsFunc(l.ByZone, func(z topology.ZoneLoad) bool { return z.Zone == zone }) {
		return true
	}
	number, ok := t.zones.of[zone]
	return ok && slices.ContainsFunc(r.flows.routed, func(f routedFlow) bool { return f.from == number })
}

// Detail is a Service with its flows.
type Detail struct {
	Position
	topology.Line
	ByZone []topology.ZoneLoad `json:"byZone"`
	Flows  []topology.Flow     `json:"flows"`
}

// Detail of a Service; ok is false if there is none of that name in the scope.
func (t *Table) Detail(scope Scope, key resource.Key) (d *Detail, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.rows[key]
	if r == nil || !scope.Allows(key.Namespace) {
		return nil, false
	}
	of := map[way]*flowSums{}
	r.flows.add(of, 1)
	return &Detail{
		Position: Position{t.epoch, t.position}, Line: r.line, ByZone: append([]topology.ZoneLoad{}, r.line.ByZone...),
		Flows: (&sums{flows: of}).list(t.zones.names, true),
	}, true
}

// scopeView is what was made for viewers of a scope.
type scopeView struct {
	states []*State // the newest last
	deltas map[[2]uint64]json.RawMessage
	// gap until there is another state: as long as the last change takes at Rate.
	gap time.Duration
}

// maxScopes that are remembered, and maxStates of each: viewers that come back within so many frames get what has changed alone.
const maxScopes, maxStates = 32, 32

// State is the rows of a stream at a position. Nobody changes it.
type State struct {
	Position
	made time.Time
	rows map[string]json.RawMessage
}

// Frame is the least time between two states of a stream, MostGap the longest, where much changes: a viewer is sent Rate bytes a second
// in the mean. All viewers of equal scopes are sent the same states, so that each is made and encoded once.
const (
	Frame   = 100 * time.Millisecond
	MostGap = 2 * time.Second
	Rate    = 20_000
)

// Gap after so many bytes were sent.
func Gap(bytes int) time.Duration {
	return min(max(Frame, time.Duration(bytes)*time.Second/Rate), MostGap)
}

// Delta is what a stream sends: the rows that are new or different, and the names of those that are gone.
type Delta struct {
	Position
	// Snapshot: Rows are all that there are.
	Snapshot bool                       `json:"snapshot,omitempty"`
	Rows     map[string]json.RawMessage `json:"rows,omitempty"`
	Gone     []string                   `json:"gone,omitempty"`
}

// Changed returns a channel that is closed with the next change.
func (t *Table) Changed() <-chan struct{} {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.changed
}

// Now is the position of the sums.
func (t *Table) Now() Position {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return Position{t.epoch, t.position}
}

// Delta from what a viewer has to what there is, encoded, and the position of that. It is made once for all viewers of equal
// scopes that are at the same position. A position that is not known any more gets a snapshot. again is how long to wait until there
// is more than that; 0: until the next change.
func (t *Table) Delta(scope Scope, have Position) (data json.RawMessage, now Position, again time.Duration, err error) {
	t.viewing.Lock()
	defer t.viewing.Unlock()
	is := t.Now()
	if is == have {
		return nil, have, 0, nil
	}
	name := scope.Name()
	v := t.views[name]
	if v == nil {
		if len(t.views) >= maxScopes {
			clear(t.views)
		}
		v = &scopeView{deltas: map[[2]uint64]json.RawMessage{}, gap: Frame}
		t.views[name] = v
	}
	var latest *State
	if n := len(v.states); n > 0 {
		latest = v.states[n-1]
	}
	age := v.gap
	if latest != nil {
		age = t.clock.Since(latest.made)
	}
	switch {
	case latest != nil && latest.Position == is:
	case age < v.gap:
		again = v.gap - age
	default:
		zones, err := t.zonesOf(scope, false)
		if err != nil {
			return nil, have, 0, err
		}
		latest = &State{Position: zones.Position, made: t.clock.Now(), rows: Rows(zones)}
		v.states = append(v.states, latest)
		v.gap = Frame
		clear(v.deltas)
		if len(v.states) > maxStates {
			v.states = slices.Delete(v.states, 0, len(v.states)-maxStates)
		}
	}
	if latest.Position == have {
		return nil, have, again, nil
	}
	at := uint64(0)
	var from *State
	if have.Epoch == t.epoch {
		if k := slices.IndexFunc(v.states, func(s *State) bool { return s.Sequence == have.Sequence }); k >= 0 {
			from, at = v.states[k], have.Sequence
		}
	}
	id := [2]uint64{at, latest.Sequence}
	if data = v.deltas[id]; data == nil {
		if data, err = json.Marshal(between(from, latest)); err != nil {
			return nil, have, 0, fmt.Errorf("encode the sums: %w", err)
		}
		v.deltas[id] = data
		if from != nil && len(v.states) > 1 && from == v.states[len(v.states)-2] {
			v.gap = Gap(len(data))
		}
	}
	return data, latest.Position, again, nil
}

const (
	// allFlows is up to how many zones a stream has each flow; beyond, the MostFlows largest that leave their zone.
	allFlows = 12
	// MostFlows of a stream where there are many zones.
	MostFlows = 40
)

// Rest sums up the flows that a stream leaves out, which SummaryZones has.
type Rest struct {
	Flows int `json:"flows"`
	topology.Flow
}

// largest flows that leave their zone, and the sum of the others; all of them where there are few zones.
func largest(all []topology.Flow) (flows []topology.Flow, rest Rest) {
	if len(all) <= allFlows*allFlows {
		return all, rest
	}
	size := func(f *topology.Flow) float64 { return max(f.Planned, f.Measured) }
	order := func(a, b topology.Flow) int {
		return cmp.Or(cmp.Compare(size(&b), size(&a)), cmp.Compare(b.Guess, a.Guess), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	}
	var others flowSums // whole numbers: their sum is the same in any order
	back := func(x, unit float64) int64 { return int64(math.Round(x * unit)) }
	leave := func(f *topology.Flow) {
		others.add(&flowSums{planned: back(f.Planned, micro), guess: back(f.Guess, micro), measured: back(f.Measured, micro), cost: back(f.Cost, micro), bytes: back(f.Bytes, centi), entries: 1}, 1)
	}
	flows = make([]topology.Flow, 0, MostFlows+1)
	for i := range all {
		f := &all[i]
		if f.From == f.To {
			continue
		}
		if len(flows) == MostFlows && order(*f, flows[MostFlows-1]) > 0 {
			leave(f)
			continue
		}
		at, _ := slices.BinarySearchFunc(flows, *f, order)
		if flows = slices.Insert(flows, at, *f); len(flows) > MostFlows {
			leave(&flows[MostFlows])
			flows = flows[:MostFlows]
		}
	}
	rest.Flows = int(others.entries)
	rest.Planned, rest.Guess, rest.Measured, rest.Cost = part(others.planned), part(others.guess), part(others.measured), part(others.cost)
	rest.Bytes = float64(others.bytes) / centi
	return flows, rest
}

// roundAll to three digits: what a picture shows, so that a stream is silent about less.
func roundAll(all ...*float64) {
	for _, x := range all {
		if *x == 0 || math.IsInf(*x, 0) || math.IsNaN(*x) {
			continue
		}
		scale := math.Pow(10, 2-math.Floor(math.Log10(math.Abs(*x))))
		*x = math.Round(*x*scale) / scale
	}
}

func roundFlow(f *topology.Flow) { roundAll(&f.Planned, &f.Guess, &f.Measured, &f.Bytes, &f.Cost) }

// Rows of a stream: one each for zones, the largest flows and totals, in three digits. The order of z's flows does not matter.
func Rows(z *Zones) map[string]json.RawMessage {
	rows := make(map[string]json.RawMessage, len(z.Zones)+MostFlows+3)
	put := func(name string, value any) {
		data, err := json.Marshal(value)
		if err == nil { // floats are finite
			rows[name] = data
		}
	}
	for _, zone := range z.Zones {
		roundAll(&zone.Demand, &zone.Guess, &zone.InZone, &zone.Worst, &zone.Cost)
		put("zone/"+string(zone.Name), &zone)
	}
	flows, rest := largest(z.Flows)
	for _, f := range flows {
		roundFlow(&f)
		put("flow/"+string(f.From)+"/"+string(f.To), &f)
	}
	if rest.Flows > 0 {
		roundFlow(&rest.Flow)
		put("rest", &rest)
	}
	total := z.Total
	roundAll(&total.Demand, &total.InZone, &total.Worst)
	for _, r := range []*topology.Routed{&total.Ways.Best, &total.Ways.Even, &total.Ways.Auto, &total.Ways.SameZone} {
		roundAll(&r.InZone, &r.Worst)
	}
	if total.Cost != nil {
		cost, saving := *total.Cost, *total.Saving
		roundAll(&cost, &saving)
		total.Cost, total.Saving = &cost, &saving
	}
	put("total", &total)
	put("scope", map[string]any{"since": z.Since, "partial": z.Partial})
	return rows
}

// between two states; from nil: everything.
func between(from, to *State) Delta {
	d := Delta{Position: to.Position, Snapshot: from == nil, Rows: map[string]json.RawMessage{}}
	if from == nil {
		d.Rows = to.rows
		return d
	}
	for name, data := range to.rows {
		if string(from.rows[name]) != string(data) {
			d.Rows[name] = data
		}
	}
	for name := range from.rows {
		if _, ok := to.rows[name]; !ok {
			d.Gone = append(d.Gone, name)
		}
	}
	slices.Sort(d.Gone)
	return d
}
