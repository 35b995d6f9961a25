package topology

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
	"github.com/proxima-mesh/proxima/internal/planner/explain"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// Change is a situation to ask about.
type Change struct {
	// FailZones lose their nodes and endpoints.
	FailZones []locality.Zone
	// Shifts take endpoints out; the clients there stay.
	Shifts    []Shift
	Endpoints []EndpointsChange
	Demand    []DemandChange
	// Top asks for so many Services that Adaptive would save most; 0: for none. Price to reckon
	// with; nil: that of ZoneCosts. Bytes per connection, where they are not measured.
	Top   int
	Price *meshv1alpha1.ZonePrice
	Bytes []BytesEntered
	// Summary asks for the sum of all Services in the place of each: the answer is as small for
	// 10,000 Services as for one.
	Summary bool
	// Within limits the answer to Services of namespaces for which it is true; nil: of all. A Service that a Change names and that is
	// not within does not exist for the answer.
	Within func(namespace string) bool
}

// Named are the Services that the situation names, which may not exist.
func (c *Change) Named() (keys []resource.Key) {
	for i := range c.Endpoints {
		keys = append(keys, c.Endpoints[i].Service)
	}
	for i := range c.Demand {
		keys = append(keys, c.Demand[i].Service)
	}
	for i := range c.Bytes {
		keys = append(keys, c.Bytes[i].Service)
	}
	return keys
}

func (c *Change) within(namespace string) bool { return c.Within == nil || c.Within(namespace) }

// Shift takes out the endpoints of a topology zone or, if Zone is empty, of a node.
type Shift struct {
	Zone locality.Zone
	Node string
}

func (s Shift) covers(e *discoveryv1.Endpoint) bool {
	if s.Zone == "" {
		return e.NodeName != nil && *e.NodeName == s.Node
	}
	return e.Zone != nil && locality.Zone(*e.Zone) == s.Zone
}

// EndpointsChange gives a Service's zone more endpoints, or fewer.
type EndpointsChange struct {
	Service resource.Key
	Zone    locality.Zone
	Add     int64
}

// DemandChange multiplies the demand for a Service that starts in a zone.
type DemandChange struct {
	Service resource.Key
	Zone    locality.Zone
	Factor  float64
}

func (c EndpointsChange) String() string { return fmt.Sprintf("%s:%s:%+d", c.Service, c.Zone, c.Add) }

func (c DemandChange) String() string { return fmt.Sprintf("%s:%s:x%g", c.Service, c.Zone, c.Factor) }

// maxAdd bounds what is laid out to answer.
const maxAdd = 100_000

// ParseEndpoints reads [NAMESPACE/]NAME:ZONE:+N, or -N.
func ParseEndpoints(text, namespace string) (c EndpointsChange, err error) {
	var n string
	if c.Service, c.Zone, n, err = parseThree(text, namespace); err == nil {
		c.Add, err = strconv.ParseInt(n, 10, 32)
	}
	if err != nil || n[0] != '+' && n[0] != '-' {
		return c, fmt.Errorf("%q: write it as NAMESPACE/SERVICE:ZONE:+N or :-N, such as shop/web:zone-b:+2", text)
	}
	return c, nil
}

// ParseDemand reads [NAMESPACE/]NAME:ZONE:×K; x and * stand for ×.
func ParseDemand(text, namespace string) (c DemandChange, err error) {
	var k string
	if c.Service, c.Zone, k, err = parseThree(text, namespace); err == nil {
		number := strings.TrimLeft(k, "×x*")
		if c.Factor, err = strconv.ParseFloat(number, 64); number == k || math.IsNaN(c.Factor) || math.IsInf(c.Factor, 0) {
			err = errors.New("no factor")
		}
	}
	if err != nil {
		return c, fmt.Errorf("%q: write it as NAMESPACE/SERVICE:ZONE:xK, such as shop/web:zone-a:x3", text)
	}
	return c, nil
}

func parseThree(text, namespace string) (service resource.Key, zone locality.Zone, last string, err error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 || slices.Contains(parts, "") {
		return service, "", "", errors.New("not three parts")
	}
	service = resource.Key{Namespace: namespace, Name: parts[0]}
	if ns, name, ok := strings.Cut(parts[0], "/"); ok {
		service = resource.Key{Namespace: ns, Name: name}
	}
	return service, locality.Zone(parts[1]), parts[2], nil
}

// Simulation is what would become of the Services that a Change concerns.
type Simulation struct {
	Services []Simulated `json:"services"`
	// Unaffected is how many planned Services would be as they are.
	Unaffected int `json:"unaffected"`
	// Top Services by what Adaptive would save.
	Top []Saved `json:"top,omitzero"`
	// Summary of the Services, which are left out then.
	Summary *Summary `json:"summary,omitempty"`
}

// Simulated is one Service's ports that are planned together.
type Simulated struct {
	Service string   `json:"service"`
	Ports   []string `json:"ports"`
	Family  string   `json:"family"`
	// Planned: the Service is. Else this is what Adaptive would do.
	Planned bool `json:"planned"`
	// Before is the best plan as it is, After that of the situation.
	Before planner.Metrics `json:"before"`
	After  planner.Metrics `json:"after"`
	// Unplanned is what would be if the plan of before stayed; nil where it could not, as
	// endpoints are others.
	Unplanned *planner.Metrics `json:"unplanned,omitempty"`
	// Plan explains that of the situation; nil where a summary is asked for.
	Plan *explain.Explanation `json:"plan"`
	// MoneyBefore and MoneyAfter are what the plans of before and after cost in a month; nil: no
	// price or no bytes are known.
	MoneyBefore *Money `json:"moneyBefore,omitempty"`
	MoneyAfter  *Money `json:"moneyAfter,omitempty"`

	// served: an endpoint is left, in this site or elsewhere.
	served bool
}

// UnknownError says what of a Change names nothing that there is.
type UnknownError struct {
	What, Name string
	// Known are the names that there are, of zones.
	Known []locality.Zone
}

func (e *UnknownError) Error() string {
	s := fmt.Sprintf("there is no %s %q", e.What, e.Name)
	if len(e.Known) > 0 {
		s += "; there are " + strings.Join(locality.Names(e.Known), ", ")
	}
	return s
}

// question is what a Change is asked about.
type question struct {
	snapshot *catalog.Snapshot
	model    *model
	modes    Modes
	change   Change
	groups   func(*corev1.Service) []*group
	// left are the ratios of the nodes that are left; nil: not worked out yet.
	left auto.Ratios
}

// Simulate plans a situation and applies nothing. Services are those that a Change
// names and, where a zone fails, all that are planned. Errors: an *UnknownError, or a
// *planner.FieldError.
func (c *Controller) Simulate(change Change) (*Simulation, error) {
	if !c.config.Catalog.Synced() {
		return nil, errors.New("the control plane is still reading its store")
	}
	q := &question{snapshot: c.config.Catalog.Snapshot(), change: change}
	q.model, q.modes = c.modelFor(q.snapshot), c.modes(q.snapshot)
	q.groups = func(service *corev1.Service) []*group { return c.groupsOf(q.snapshot, service) }
	services, err := q.services()
	if err != nil {
		return nil, err
	}
	out := &Simulation{Services: []Simulated{}}
	if change.Summary {
		out.Summary = &Summary{}
	}
	if change.Top > 0 {
		if out.Top, err = q.top(c); err != nil {
			return nil, err
		}
	}
	all, err := q.each(c, services)
	if err != nil {
		return nil, err
	}
	for _, simulated := range all {
		for i := range simulated {
			if out.add(simulated[i]); change.Summary {
				out.Services = out.Services[:0]
			}
		}
		if len(simulated) == 0 {
			out.Unaffected++
		}
	}
	out.Summary.finish()
	return out, nil
}

// each of some Services in the situation, on all processors: those that it changes.
func (q *question) each(c *Controller, services []resource.Key) ([][]Simulated, error) {
	if !q.change.Summary {
		q.ratios() // they are the same for all
	}
	out, errs := make([][]Simulated, len(services)), make([]error, len(services))
	var next atomic.Int64
	var failed atomic.Bool
	var working sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(services)) {
		working.Go(func() {
			memory := &plans{}
			for !failed.Load() {
				i := int(next.Add(1)) - 1
				if i >= len(services) {
					return
				}
				memory.again()
				if out[i], errs[i] = q.simulate(c, services[i], memory); errs[i] != nil {
					failed.Store(true)
				}
			}
		})
	}
	working.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("service %s: %w", services[i], err)
		}
	}
	return out, nil
}

// simulate a Service: its groups that the situation changes.
func (q *question) simulate(c *Controller, key resource.Key, memory *plans) (out []Simulated, err error) {
	service, _ := q.snapshot.Services.Get(key)
	mode := q.modes.Of(service)
	for _, u := range c.candidatesIn(q.snapshot, q.model, mode, service, partsOf(q.snapshot, key), memory) {
		s, plan, err := q.situation(u, key, memory)
		if err != nil {
			return nil, err
		}
		if plan != nil {
			q.money(c, &s, u, key, service, plan)
			s.Planned = mode.Kind == Planned
			out = append(out, s)
		}
	}
	return out, nil
}

// services that the question is about, by name.
func (q *question) services() ([]resource.Key, error) {
	var keys []resource.Key
	name := func(key resource.Key) error {
		if _, ok := q.snapshot.Services.Get(key); !ok || !q.change.within(key.Namespace) {
			return &UnknownError{What: "service", Name: key.String()}
		}
		keys = append(keys, key)
		return nil
	}
	for _, e := range q.change.Endpoints {
		if err := name(e.Service); err != nil {
			return nil, err
		}
	}
	for _, d := range q.change.Demand {
		if err := name(d.Service); err != nil {
			return nil, err
		}
	}
	if len(q.change.FailZones)+len(q.change.Shifts) > 0 {
		if err := q.known(); err != nil {
			return nil, err
		}
		keys = append(keys, q.planned()...)
	}
	slices.SortFunc(keys, func(a, b resource.Key) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(keys), nil
}

// known checks that the zones and nodes that are taken out exist.
func (q *question) known() error {
	named := slices.Clone(q.change.FailZones)
	for _, s := range q.change.Shifts {
		if s.Zone != "" {
			named = append(named, s.Zone)
		} else if _, ok := q.snapshot.Nodes.Get(resource.Key{Name: s.Node}); !ok {
			return &UnknownError{What: "node", Name: s.Node}
		}
	}
	for _, zone := range named {
		if !slices.Contains(q.zones(), zone) && !q.serves(zone) {
			return &UnknownError{What: "zone", Name: string(zone), Known: q.zones()}
		}
	}
	return nil
}

// zones of nodes.
func (q *question) zones() []locality.Zone {
	cluster, _ := q.model.current()
	return cluster.names
}

// serves reports whether a planned Service has an endpoint in a zone.
func (q *question) serves(zone locality.Zone) bool {
	for _, service := range q.snapshot.Services.All() {
		if q.modes.Of(service).Kind != Planned {
			continue
		}
		for _, g := range q.groups(service) {
			if _, ok := g.Endpoints[zone]; ok {
				return true
			}
		}
	}
	return false
}

// planned are the Services that are.
func (q *question) planned() (keys []resource.Key) {
	for key, service := range q.snapshot.Services.All() {
		if q.modes.Of(service).Kind == Planned && q.change.within(key.Namespace) {
			keys = append(keys, key)
		}
	}
	return keys
}

// situation of a group of ports, and the solution for it, in the memory that is given; nil: it is as it was.
func (q *question) situation(u *candidate, key resource.Key, memory *plans) (s Simulated, after *solution, err error) {
	before, t := u.best.plan, u.in.topology
	p, stays, changed := &u.best.problem, true, false
	zone := func(name locality.Zone) (int, error) {
		if at, ok := t.Index(name); ok {
			return at, nil
		}
		return 0, &UnknownError{What: "zone", Name: string(name), Known: q.zones()}
	}
	for _, name := range q.change.FailZones {
		if at, ok := t.Index(name); ok {
			changed = changed || p.Weight[at] > 0 || p.Demand[at] > 0
			stays = false
			p = explain.FailZone(p, at)
		}
	}
	if out := q.shifted(u, key); len(out) > 0 {
		changed, stays = true, false
		for name, weight := range out {
			at, err := zone(name)
			if err != nil {
				return s, nil, err
			}
			if p, err = explain.AddEndpoints(p, at, -weight); err != nil {
				return s, nil, err
			}
		}
	}
	for _, e := range q.change.Endpoints {
		if e.Service != key {
			continue
		}
		at, err := zone(e.Zone)
		if err != nil {
			return s, nil, err
		}
		if e.Add > maxAdd {
			return s, nil, &planner.FieldError{Field: "endpoints", Reason: fmt.Sprintf("%+d, at most +%d", e.Add, maxAdd)}
		}
		add := e.Add
		if u.in.weighted() {
			add *= int64(trafficplan.DefaultWeight)
		}
		if p, err = explain.AddEndpoints(p, at, add); err != nil {
			return s, nil, err
		}
		changed, stays = true, false
	}
	for _, d := range q.change.Demand {
		if d.Service != key {
			continue
		}
		at, err := zone(d.Zone)
		if err != nil {
			return s, nil, err
		}
		if p, err = explain.ScaleDemand(p, at, d.Factor); err != nil {
			return s, nil, err
		}
		changed = true
	}
	if !changed {
		return s, nil, nil
	}
	if after, err = memory.solveProblem(t, p); err != nil {
		return s, nil, err
	}
	s = Simulated{
		Service: key.String(), Ports: u.group.Ports, Family: string(u.group.Name.Family),
		Before: before.Metrics(), After: after.plan.Metrics(), served: after.plan.HasEndpoints(),
	}
	if !q.change.Summary {
		s.Plan = explain.Of(after.plan, p, compared(q.ratios(), t, p.Weight))
	}
	if stays {
		m := before.Under(p.Demand)
		s.Unplanned = &m
	}
	return s, after, nil
}

// shifted is the weight that the shifts take out of a group, by zone. Where they take out
// all of it nothing is: the endpoints go on serving, as no other one is ready.
func (q *question) shifted(u *candidate, key resource.Key) map[locality.Zone]int64 {
	if len(q.change.Shifts) == 0 {
		return nil
	}
	var parts, left []trafficplan.Part
	for _, slice := range q.snapshot.SlicesOf(key) {
		part := trafficplan.PartOf(q.snapshot, slice)
		parts = append(parts, part)
		ours := slice.Labels[discoveryv1.LabelManagedBy] == endpointslice.ManagedBy // no shift changes the others
		stay := trafficplan.Part{Family: part.Family, Ports: part.Ports}
		for i := range part.Endpoints {
			if ours && slices.ContainsFunc(q.change.Shifts, func(s Shift) bool { return s.covers(&part.Endpoints[i]) }) {
				continue
			}
			stay.Endpoints = append(stay.Endpoints, part.Endpoints[i])
			if part.Weights != nil {
				stay.Weights = append(stay.Weights, part.Weights[i])
			}
		}
		left = append(left, stay)
	}
	was, is := weightsOf(trafficplan.Groups(parts), u), weightsOf(trafficplan.Groups(left), u)
	out := map[locality.Zone]int64{}
	remain := len(u.group.elsewhere.sites) > 0
	for zone, weight := range was {
		if is[zone] != weight {
			out[zone] = weight - is[zone]
		}
		remain = remain || is[zone] > 0
	}
	if !remain {
		return nil
	}
	return out
}

// weightsOf a candidate's group, by zone, in the units of its problem.
func weightsOf(groups []*trafficplan.Group, u *candidate) map[locality.Zone]int64 {
	for _, g := range groups {
		if g.Name != u.group.Name {
			continue
		}
		switch {
		case !u.in.weighted():
			return g.Endpoints
		case g.Weights != nil:
			return g.Weights
		}
		out := map[locality.Zone]int64{}
		for zone, n := range g.Endpoints {
			out[zone] = n * int64(trafficplan.DefaultWeight)
		}
		return out
	}
	return nil
}

// money of the plan of a situation and of the one before, where it is known.
func (q *question) money(c *Controller, s *Simulated, u *candidate, key resource.Key, service *corev1.Service, made *solution) {
	price := q.model.priced(paramsFor(service, partsOf(q.snapshot, key)).Costs, &u.in, q.change.Price)
	if price == nil {
		return
	}
	before, ok := q.saved(c, u, key, price)
	if !ok {
		return
	}
	s.MoneyBefore = &before.Money
	after := before.Money
	after.Planned = 0
	v, _ := c.volumeOf(serviceName(service), familyOf(u.group.Name.Family), u.group.Ports)
	f := flowsOf(&v, &u.in)
	if before.Money.Entered {
		i := slices.IndexFunc(q.change.Bytes, func(b BytesEntered) bool { return b.Service == key })
		f = enteredFlows(u, q.change.Bytes[i].Bytes)
	}
	// Bytes of a zone follow its demand.
	for from, bytes := range f.sources {
		noNodes := made.problem.NoNodes != nil && made.problem.NoNodes[from]
		if bytes == 0 || noNodes || u.best.demand.shares[from] == 0 {
			continue
		}
		scale := q.scaled(key, u.in.topology.Zone(from).Name)
		for to := range f.sources {
			after.Planned += price.month(from, to, bytes*scale*made.plan.Share(from, to))
		}
	}
	s.MoneyAfter = &after
}

// scaled is by how much the demand of a zone is multiplied.
func (q *question) scaled(key resource.Key, zone locality.Zone) float64 {
	scale := 1.0
	for _, d := range q.change.Demand {
		if d.Service == key && d.Zone == zone {
			scale *= d.Factor
		}
	}
	return scale
}

// ratios of the zones that do not fail.
func (q *question) ratios() auto.Ratios {
	if len(q.change.FailZones) == 0 {
		cluster, _ := q.model.current()
		return cluster.ratios
	}
	if q.left != nil {
		return q.left
	}
	left := map[string]facts{}
	for key, node := range q.snapshot.Nodes.All() {
		if f := factsOf(node); !slices.Contains(q.change.FailZones, f.zone) {
			left[key.Name] = f
		}
	}
	q.left = clusterOf(left).ratios
	return q.left
}

// Text describes it in words.
func (s *Simulation) Text() string {
	var b strings.Builder
	for i := range s.Services {
		v := &s.Services[i]
		fmt.Fprintf(&b, "%s %s", v.Service, titleOf(v.Ports, v.Family))
		if !v.Planned {
			fmt.Fprintf(&b, " (not planned: this is what %s would do)", Adaptive)
		}
		fmt.Fprintf(&b, "\n  now:  %s\n", measures(v.Before))
		if v.Unplanned != nil {
			fmt.Fprintf(&b, "  then, with the plan as it is: %s\n", measures(*v.Unplanned))
		}
		fmt.Fprintf(&b, "  then: %s\n", measures(v.After))
		if v.MoneyBefore != nil && v.MoneyAfter != nil {
			fmt.Fprintf(&b, "  money: %s a month by the plan of now, %s then; ± %.0f %%\n", amount(v.MoneyBefore.Planned, v.MoneyBefore.Currency),
				amount(v.MoneyAfter.Planned, v.MoneyAfter.Currency), 100*v.MoneyBefore.Error)
		}
		for _, line := range strings.Split(strings.TrimSuffix(v.Plan.String(), "\n"), "\n") {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	if s.Summary != nil {
		s.Summary.text(&b)
	}
	if s.Top != nil {
		topText(&b, s.Top)
	}
	if len(s.Services) == 0 && s.Top != nil {
		b.WriteString("nothing was applied\n")
		return b.String()
	}
	fmt.Fprintf(&b, "%s as before; nothing was applied\n", count(int64(s.Unaffected), "planned service"))
	return b.String()
}

func measures(m planner.Metrics) string {
	return fmt.Sprintf("in zone %.1f %%, cost %.2f, busiest endpoint %.2f× the mean", 100*m.InZone, m.Cost, m.Worst)
}
