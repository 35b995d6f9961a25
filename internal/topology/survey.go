package topology

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/topology/traffic"
)

// SurveyQuestion is a question about all Services.
type SurveyQuestion struct {
	// Top Services of the answer; 0: all.
	Top int
	// Price to reckon with; nil: that of ZoneCosts.
	Price *meshv1alpha1.ZonePrice
	// Bytes per connection of Services of which connections alone are known.
	Bytes []BytesEntered
	// Traffic of Services in a month, which must pass traffic.Check. For Services that it does
	// not name, what agents measure counts, if there are any.
	Traffic []traffic.Entry
	// Within limits the question to Services of namespaces for which it is true; nil: of all. The other Services are not counted
	// anywhere in the answer.
	Within func(namespace string) bool
}

// Survey compares, for every Service, what kube-proxy does with what a plan would do.
type Survey struct {
	// Services in the order of what a plan saves: money, else GB, else connections, and where no
	// volume is known the share of traffic that stays in its zone beyond what kube-proxy keeps.
	Services []Surveyed `json:"services"`
	// Total of all that were compared, also of those that Top left out.
	Total SurveyTotal `json:"total"`
	// NotCompared counts Services for which there is nothing to plan.
	NotCompared []NotCompared `json:"notCompared,omitempty"`
	Warnings    []string      `json:"warnings,omitempty"`
}

// Surveyed is those ports of a Service that are planned together; for most Services all.
type Surveyed struct {
	Service string   `json:"service"`
	Ports   []string `json:"ports"`
	Family  string   `json:"family"`
	// Mode of the Service, and whether it is planned now.
	Mode    string `json:"mode,omitempty"`
	Planned bool   `json:"planned"`
	// Endpoints that are ready, and in how many zones.
	Endpoints int `json:"endpoints"`
	Zones     int `json:"zones"`
	// Measured demand; else it is estimated from the allocatable CPU of nodes.
	Measured bool `json:"measured"`
	// Hints: kube-proxy follows those of the EndpointSlices, for which the Service asks.
	Hints bool `json:"hints"`
	// KubeProxy is what kube-proxy makes of the demand, Plan what the best plan does.
	KubeProxy planner.Metrics `json:"kubeProxy"`
	Plan      planner.Metrics `json:"plan"`
	// Gain is the share of traffic that the plan keeps in its zone beyond what kube-proxy does.
	Gain float64 `json:"gain"`
	// GB (10⁹ bytes) and Connections in a month; nil: not known.
	GB          *Crossing `json:"gbPerMonth,omitempty"`
	Connections *Crossing `json:"connectionsPerMonth,omitempty"`
	// Volume says how they are known: Entered, or as Saved.Bytes does; empty: they are not.
	Volume string `json:"volume,omitempty"`
	// Money a month, and what a plan saves; nil: no price or no bytes are known.
	Money  *Money   `json:"money,omitempty"`
	Saving *float64 `json:"saving,omitempty"`
}

// Crossing is an amount, and how much of it leaves its zone.
type Crossing struct {
	Amount float64 `json:"amount"`
	// Now is what leaves its zone now, as far as is known by kube-proxy's rules; Planned is what
	// would leave it by the plan.
	Now     float64 `json:"crossingNow"`
	Planned float64 `json:"crossingPlanned"`
}

// saved by the plan; nothing, if nothing is known.
func (c *Crossing) saved() float64 {
	if c == nil {
		return 0
	}
	return c.Now - c.Planned
}

// SurveyTotal sums up what was compared.
type SurveyTotal struct {
	Services int `json:"services"`
	// WithVolume are those of which GB or connections are known, WithMoney those with a price, too.
	WithVolume int `json:"withVolume"`
	WithMoney  int `json:"withMoney"`
	// Currency of the sums; empty: no money is known, or it is in several currencies.
	Currency string  `json:"currency,omitempty"`
	Now      float64 `json:"now"`
	Planned  float64 `json:"planned"`
	Saving   float64 `json:"saving"`
}

// NotCompared is how many Services there is nothing to plan for, and why.
type NotCompared struct {
	Reason   string `json:"reason"`
	Services int    `json:"services"`
}

// Reasons of NotCompared.
const (
	reasonExternal    = "of type ExternalName"
	reasonHeadless    = "headless: clients choose an endpoint themselves"
	reasonAPI         = "of the Kubernetes API itself"
	reasonPolicyLocal = "with internalTrafficPolicy Local: traffic stays on its node"
	reasonNoEndpoints = "without a ready endpoint"
)

// survey is the work on a SurveyQuestion.
type survey struct {
	question
	c       *Controller
	traffic map[resource.Key][]traffic.Entry
	out     *Survey
	without map[string]int // Services that are not compared, by reason
}

// Survey compares all Services, and changes nothing. An error says that the catalog is not
// filled yet.
func (c *Controller) Survey(asked SurveyQuestion) (*Survey, error) {
	if !c.config.Catalog.Synced() {
		return nil, errors.New("the control plane is still reading its store")
	}
	s := &survey{
		question: question{snapshot: c.config.Catalog.Snapshot(), change: Change{Price: asked.Price, Bytes: asked.Bytes, Within: asked.Within}},
		c:        c, traffic: map[resource.Key][]traffic.Entry{}, out: &Survey{Services: []Surveyed{}}, without: map[string]int{},
	}
	s.model, s.modes = c.modelFor(s.snapshot), c.modes(s.snapshot)
	for _, e := range asked.Traffic {
		key := resource.Key{Namespace: e.Namespace, Name: e.Service}
		s.traffic[key] = append(s.traffic[key], e)
	}
	for key, service := range s.snapshot.Services.All() {
		if !s.change.within(key.Namespace) {
			continue
		}
		if reason := s.compare(key, service); reason != "" {
			s.without[reason]++
			if s.traffic[key] != nil {
				s.warn("traffic of %s is not counted: the Service is %s", key, reason)
			}
		}
	}
	s.finish(asked.Top)
	return s.out, nil
}

func (s *survey) warn(format string, args ...any) {
	s.out.Warnings = append(s.out.Warnings, fmt.Sprintf(format, args...))
}

// notCompared is why there is nothing to plan for a Service; empty: there may be.
func notCompared(key resource.Key, service *corev1.Service) string {
	switch {
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		return reasonExternal
	case service.Spec.ClusterIP == corev1.ClusterIPNone:
		return reasonHeadless
	case kind.IsAPI(key):
		return reasonAPI
	case policyLocal(service):
		return reasonPolicyLocal
	}
	return ""
}

// compare a Service; the reason is why it cannot be.
func (s *survey) compare(key resource.Key, service *corev1.Service) (reason string) {
	if reason := notCompared(key, service); reason != "" {
		return reason
	}
	parts := partsOf(s.snapshot, key)
	// Volumes are of both families together: the first one is listed.
	var listed []*candidate
	seen := map[string]bool{}
	for _, u := range s.c.candidates(s.snapshot, s.model, service, parts) {
		if ports := strings.Join(u.group.Ports, ","); u.group.Len() > 0 && !seen[ports] {
			seen[ports] = true
			listed = append(listed, u)
		}
	}
	if len(listed) == 0 {
		return reasonNoEndpoints
	}
	mode := s.modes.Of(service)
	price := func(u *candidate) *prices {
		return s.model.priced(paramsFor(service, parts).Costs, &u.in, s.change.Price)
	}
	for _, u := range listed {
		base := kubeProxyOf(s.snapshot, key, u, mode)
		line := Surveyed{
			Service: key.String(), Ports: u.group.Ports, Family: string(u.group.Name.Family), Mode: mode.Name, Planned: mode.Kind == Planned,
			Endpoints: u.group.Len(), Zones: len(u.group.Group.Endpoints), Measured: u.best.demand.measured, Hints: base.masks != nil,
		}
		if entries := s.traffic[key]; entries != nil {
			s.entered(&line, u, base, entries, len(listed), price(u))
		} else {
			line.KubeProxy, line.Plan = base.metrics(u.best), u.best.plan.Metrics()
			if p := price(u); p != nil {
				s.measured(&line, u, key, p)
			}
		}
		line.Gain = line.Plan.InZone - line.KubeProxy.InZone
		s.out.Services = append(s.out.Services, line)
	}
	return ""
}

// measured adds what agents have counted, or what follows from bytes per connection.
func (s *survey) measured(line *Surveyed, u *candidate, key resource.Key, price *prices) {
	saved, ok := s.saved(s.c, u, key, price)
	if !ok {
		return
	}
	s.recount(s.c, u, key, price, &saved)
	gb := saved.BytesPerSecond * traffic.SecondsPerMonth / bytesPerGB
	line.Volume, line.Money, line.Saving = saved.Bytes, &saved.Money, &saved.Saving
	line.GB = &Crossing{Amount: gb, Now: gb * (1 - line.KubeProxy.InZone), Planned: gb * (1 - line.Plan.InZone)}
	v, ok := s.c.volumeOf(proxy.ServiceName(key), familyOf(u.group.Name.Family), u.group.Ports)
	if f := flowsOf(&v, &u.in); ok && f.total > 0 {
		home := 0.0
		for _, w := range f.ways {
			if w.from == w.to {
				home += w.bytes
			}
		}
		line.GB.Now = gb * (1 - home/f.total)
	}
}

// entered adds what was asked about; among so many groups of ports the traffic of the Service
// is divided evenly. Where it says where traffic starts, that is the demand to plan for.
func (s *survey) entered(line *Surveyed, u *candidate, base *kubeProxy, entries []traffic.Entry, among int, price *prices) {
	line.Volume = "Entered"
	gb, connections := traffic.Sum(entries)
	if gb == nil && connections != nil {
		of := slices.IndexFunc(s.change.Bytes, func(b BytesEntered) bool { return b.Service.String() == line.Service })
		if of >= 0 {
			gb = new(*connections * s.change.Bytes[of].Bytes / bytesPerGB)
		}
	}
	best, ways := u.best, waysOf(entries, u, gb != nil && entries[0].GB != nil)
	if ways != nil {
		if placed := ways.solve(u); placed != nil {
			best, line.Measured = placed, true
		}
		if ways.lost > 0 {
			s.warn("%.0f %% of the traffic of %s is from or to zones that no node is in: it is not counted", 100*ways.lost, line.Service)
		}
	}
	line.KubeProxy, line.Plan = base.metrics(best), best.plan.Metrics()
	// now is where the traffic goes: as entered, else as kube-proxy divides it.
	now := func(from, to int) float64 { return best.problem.Demand[from] * base.share(from, to) }
	if ways != nil {
		now = func(from, to int) float64 { return ways.shares[from][to] }
		home := 0.0
		for i := range ways.shares {
			home += ways.shares[i][i]
		}
		line.KubeProxy.InZone = home
	}
	cross := func(total *float64) *Crossing {
		if total == nil {
			return nil
		}
		amount := *total / float64(among)
		if ways != nil {
			amount *= 1 - ways.lost
		}
		return &Crossing{Amount: amount, Now: amount * (1 - line.KubeProxy.InZone), Planned: amount * (1 - line.Plan.InZone)}
	}
	line.GB, line.Connections = cross(gb), cross(connections)
	if price == nil || line.GB == nil {
		return
	}
	f := flowsOf(&demand.Volume{}, &u.in)
	f.total = line.GB.Amount * bytesPerGB / traffic.SecondsPerMonth
	for i := range f.sources {
		for j := range f.sources {
			w := flow{from: i, to: j, bytes: f.total * now(i, j)}
			if w.bytes > 0 {
				f.ways = append(f.ways, w)
				f.sources[i] += w.bytes
			}
		}
	}
	line.Money = moneyOf(price, f, &demand.Volume{}, &u.in, best.plan.Share)
	line.Money.Entered, line.Money.Error = true, 0
	line.Saving = new(line.Money.Saving())
}

// ways are the shares of traffic between zones of a topology. lost is the part of it that is
// from or to others.
type ways struct {
	shares [][]float64
	lost   float64
}

// waysOf entries with zones; nil: they have none, or there is no traffic.
func waysOf(entries []traffic.Entry, u *candidate, gb bool) *ways {
	if entries[0].From == "" {
		return nil
	}
	n := u.in.topology.Len()
	w := &ways{}
	for range n {
		w.shares = append(w.shares, make([]float64, n))
	}
	total, placed := 0.0, 0.0
	for i := range entries {
		e := &entries[i]
		amount := e.Connections
		if gb {
			amount = e.GB
		}
		if amount == nil {
			continue
		}
		total += *amount
		from, ok := u.in.topology.Index(e.From)
		to, ok2 := u.in.topology.Index(e.To)
		if ok && ok2 && !u.in.noNodes[from] {
			w.shares[from][to] += *amount
			placed += *amount
		}
	}
	if placed == 0 {
		return nil
	}
	for i := range w.shares {
		for j := range w.shares[i] {
			w.shares[i][j] /= placed
		}
	}
	w.lost = 1 - placed/total
	return w
}

// solve for the zones in which traffic starts; nil: the solver refuses.
func (w *ways) solve(u *candidate) *solution {
	e := estimated{shares: make([]float64, len(w.shares)), fixed: u.best.demand.fixed, measured: true, rate: u.best.demand.rate}
	for i, row := range w.shares {
		for _, x := range row {
			e.shares[i] += x
		}
	}
	s, err := solveFor(&u.in, e)
	if err != nil {
		return nil
	}
	return s
}

// finish orders the Services, sums up and cuts.
func (s *survey) finish(top int) {
	out := s.out
	slices.SortFunc(out.Services, func(a, b Surveyed) int {
		return cmp.Or(cmp.Compare(savingOf(&b), savingOf(&a)), cmp.Compare(b.GB.saved(), a.GB.saved()),
			cmp.Compare(b.Connections.saved(), a.Connections.saved()), cmp.Compare(b.Gain, a.Gain),
			strings.Compare(a.Service, b.Service), slices.Compare(a.Ports, b.Ports))
	})
	currencies := map[string]bool{}
	services := map[string]bool{}
	for i := range out.Services {
		line := &out.Services[i]
		services[line.Service] = true
		if line.Volume != "" {
			out.Total.WithVolume++
		}
		if m := line.Money; m != nil {
			currencies[m.Currency] = true
			out.Total.WithMoney++
			out.Total.Now, out.Total.Planned, out.Total.Saving = out.Total.Now+m.Now, out.Total.Planned+m.Planned, out.Total.Saving+*line.Saving
		}
	}
	out.Total.Services = len(services)
	switch len(currencies) {
	case 0:
	case 1:
		out.Total.Currency = slices.Collect(maps.Keys(currencies))[0]
	default:
		out.Total.Now, out.Total.Planned, out.Total.Saving = 0, 0, 0
		s.warn("prices are in several currencies: there is no total")
	}
	for _, reason := range slices.Sorted(maps.Keys(s.without)) {
		out.NotCompared = append(out.NotCompared, NotCompared{Reason: reason, Services: s.without[reason]})
	}
	s.warnUnknown()
	slices.Sort(out.Warnings)
	if top > 0 {
		out.Services = out.Services[:min(top, len(out.Services))]
	}
}

// savingOf a Service, for the order: money that is not known is neither saved nor lost.
func savingOf(line *Surveyed) float64 {
	if line.Saving == nil {
		return 0
	}
	return *line.Saving
}

// warnUnknown names traffic of Services that do not exist, the first of them.
func (s *survey) warnUnknown() {
	const most = 5
	var unknown []string
	for key := range s.traffic {
		if _, ok := s.snapshot.Services.Get(key); !ok || !s.change.within(key.Namespace) {
			unknown = append(unknown, key.String())
		}
	}
	if len(unknown) == 0 {
		return
	}
	slices.Sort(unknown)
	text := strings.Join(unknown[:min(most, len(unknown))], ", ")
	if len(unknown) > most {
		text += fmt.Sprintf(" and %d more", len(unknown)-most)
	}
	s.warn("the traffic names Services that do not exist: %s", text)
}
