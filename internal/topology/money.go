package topology

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/topology/traffic"
)

const (
	secondsPerMonth = traffic.SecondsPerMonth
	bytesPerGB      = 1e9
	maxPrice        = 1e6
)

// prices of a GB between the zones of a topology.
type prices struct {
	currency string
	perGB    [][]float64
	// elsewhere is the price to other sites and to zones that are not known.
	elsewhere float64
}

// priced says what the ZoneCosts of a name states, or the price that is asked about; nil: no
// price is known.
func (m *model) priced(costs string, in *input, asked *meshv1alpha1.ZonePrice) *prices {
	m.mu.Lock()
	object := m.atlas.costs[cmp.Or(costs, DefaultCosts)]
	m.mu.Unlock()
	var pairs []meshv1alpha1.ZoneCostsPair
	price := asked
	if object != nil {
		if price == nil {
			price = object.Spec.Price
		}
		pairs = object.Spec.Pairs
	}
	if price == nil {
		return nil
	}
	n := in.topology.Len()
	p := &prices{currency: price.Currency, elsewhere: sitePrice(price)}
	for i := range n {
		p.perGB = append(p.perGB, make([]float64, n))
		for j := range n {
			from, to := in.topology.Zone(i), in.topology.Zone(j)
			switch {
			case i == j:
			case from.Site != to.Site:
				p.perGB[i][j] = p.elsewhere
			case from.Region == to.Region:
				p.perGB[i][j] = price.Region
			default:
				p.perGB[i][j] = price.World
			}
		}
	}
	if asked != nil {
		return p
	}
	for _, pair := range pairs {
		i, ok := in.zoneOrSite(pair.From)
		j, ok2 := in.zoneOrSite(pair.To)
		if !ok || !ok2 || pair.Price == nil {
			continue
		}
		p.perGB[i][j] = *pair.Price
		if !pair.OneWay {
			p.perGB[j][i] = *pair.Price
		}
	}
	return p
}

func sitePrice(p *meshv1alpha1.ZonePrice) float64 {
	if p.Site != nil {
		return *p.Site
	}
	return p.World
}

// at a month's price of bytes per second.
func (p *prices) month(from, to int, bytes float64) float64 {
	price := p.elsewhere
	if to < len(p.perGB) {
		price = p.perGB[from][to]
	}
	return bytes * secondsPerMonth * price / bytesPerGB
}

// Money is what the traffic of a Service between zones costs in a month of 2.63e6 s.
type Money struct {
	Currency string `json:"currency"`
	// Now is what is being spent, Planned what would be by the plan once all connections are
	// new, and Spread what would be if connections went to all endpoints alike.
	Now     float64 `json:"now"`
	Planned float64 `json:"planned"`
	Spread  float64 `json:"spread"`
	// Error of each, as a part of it: of the measuring, and of the number of connections.
	Error float64 `json:"error"`
	// Entered: bytes per connection were entered, not measured. Now is not known then.
	Entered bool `json:"entered,omitempty"`
}

// Saving by the plan, of what is spent now.
func (m *Money) Saving() float64 { return m.Now - m.Planned }

// SavingBetween are the bounds of the saving.
func (m *Money) SavingBetween() (low, high float64) {
	by := m.Error * (math.Abs(m.Now) + math.Abs(m.Planned)) / 2
	return m.Saving() - by, m.Saving() + by
}

// moneyOf flows under the shares of a plan.
func moneyOf(p *prices, f *flows, v *demand.Volume, in *input, share func(from, to int) float64) *Money {
	m := &Money{Currency: p.currency, Error: errorOf(v, f)}
	weights := int64(0)
	for _, w := range in.weight {
		weights += w
	}
	for _, w := range f.ways {
		m.Now += p.month(w.from, w.to, w.bytes)
	}
	for i, bytes := range f.sources {
		if bytes == 0 {
			continue
		}
		for j := range f.sources {
			m.Planned += p.month(i, j, bytes*share(i, j))
			if weights > 0 {
				m.Spread += p.month(i, j, bytes*float64(in.weight[j])/float64(weights))
			}
		}
	}
	return m
}

// variation of the bytes of connections, squared, that errors assume: sizes of flows on the
// internet have a deviation of about three times their mean.
const variation = 10

// errorOf what a volume costs: twice the deviation of a mean over as many connections as were
// seen, and what was not measured.
func errorOf(v *demand.Volume, f *flows) float64 {
	seen := f.opened*demandWindow + f.totalOpen
	if seen <= 0 {
		return 1
	}
	return min(1, v.Error+2*math.Sqrt(variation/seen))
}

// demandWindow is how many seconds of connections rates of bytes remember: the half-life of 5
// minutes divided by ln 2.
const demandWindow = 433

// Saved is a Service with what a plan would save, for a list of those that would most.
type Saved struct {
	Service string   `json:"service"`
	Ports   []string `json:"ports"`
	Family  string   `json:"family"`
	// Planned: the Service is.
	Planned bool  `json:"planned"`
	Money   Money `json:"money"`
	// Saving a month, and its bounds.
	Saving float64 `json:"saving"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	// BytesPerSecond both ways, how they are known, and why they are not measured.
	BytesPerSecond float64 `json:"bytesPerSecond"`
	Bytes          string  `json:"bytes"`
	Reason         string  `json:"reason,omitempty"`
	// Long connections delay the saving; nil: there are none.
	Long *Long `json:"long,omitempty"`
}

// BytesEntered says how many bytes a connection of a Service carries, both ways.
type BytesEntered struct {
	Service resource.Key
	Bytes   float64
}

func (b BytesEntered) String() string { return fmt.Sprintf("%s:%g", b.Service, b.Bytes) }

var currencyCode = regexp.MustCompile(`^[A-Z]{3}$`) // ISO 4217

// ParsePrice reads CURRENCY:REGION:WORLD, such as USD:0.02:0.04: the price of 10⁹ bytes
// between zones of a region, and between regions.
func ParsePrice(text string) (*meshv1alpha1.ZonePrice, error) {
	parts := strings.Split(text, ":")
	if len(parts) == 3 && currencyCode.MatchString(parts[0]) {
		region, err1 := strconv.ParseFloat(parts[1], 64)
		world, err2 := strconv.ParseFloat(parts[2], 64)
		if err1 == nil && err2 == nil && region >= 0 && region <= maxPrice && world >= 0 && world <= maxPrice {
			return &meshv1alpha1.ZonePrice{Currency: parts[0], Region: region, World: world}, nil
		}
	}
	return nil, fmt.Errorf("%q: write it as CURRENCY:REGION:WORLD, prices of a GB, such as USD:0.02:0.04", text)
}

// ParseBytes reads [NAMESPACE/]NAME:N, bytes per connection.
func ParseBytes(text, namespace string) (b BytesEntered, err error) {
	service, number, ok := strings.Cut(text, ":")
	if ok {
		b.Service = resource.Key{Namespace: namespace, Name: service}
		if ns, name, ok := strings.Cut(service, "/"); ok {
			b.Service = resource.Key{Namespace: ns, Name: name}
		}
		b.Bytes, err = strconv.ParseFloat(number, 64)
	}
	if !ok || err != nil || service == "" || !(b.Bytes > 0 && b.Bytes <= 1e15) {
		return b, fmt.Errorf("%q: write it as NAMESPACE/SERVICE:BYTES, such as shop/web:20000", text)
	}
	return b, nil
}

// errNoPrice refuses a list by money where there is no price.
var errNoPrice = errors.New("no price is known: state one in a ZoneCosts (spec.price), or with --price CURRENCY:REGION:WORLD")

// IsNoPrice reports whether an error of Simulate is for want of a price.
func IsNoPrice(err error) bool { return errors.Is(err, errNoPrice) }

// top Services by saving.
func (q *question) top(c *Controller) ([]Saved, error) {
	all := []Saved{}
	known := q.change.Price != nil
	for key, service := range q.snapshot.Services.All() {
		if policyLocal(service) || !q.change.within(key.Namespace) {
			continue
		}
		listed := map[string]bool{}
		for _, u := range c.candidates(q.snapshot, q.model, service, partsOf(q.snapshot, key)) {
			// Bytes are counted for both families together: they are listed with the first.
			ports := strings.Join(u.group.Ports, ",")
			if listed[ports] {
				continue
			}
			listed[ports] = true
			params := paramsFor(service, partsOf(q.snapshot, key))
			price := q.model.priced(params.Costs, &u.in, q.change.Price)
			if price == nil {
				continue
			}
			known = true
			if s, ok := q.saved(c, u, key, price); ok {
				q.recount(c, u, key, price, &s)
				s.Planned = q.modes.Of(service).Kind == Planned
				all = append(all, s)
			}
		}
	}
	if !known {
		return nil, errNoPrice
	}
	slices.SortFunc(all, func(a, b Saved) int {
		return cmp.Or(cmp.Compare(b.Saving, a.Saving), strings.Compare(a.Service, b.Service), strings.Compare(a.Family, b.Family))
	})
	return all[:min(len(all), q.change.Top)], nil
}

// saved by a plan for a candidate; ok is false if nothing is known of its bytes.
func (q *question) saved(c *Controller, u *candidate, key resource.Key, price *prices) (s Saved, ok bool) {
	name := proxy.ServiceName(key)
	v, ok := c.volumeOf(name, familyOf(u.group.Name.Family), u.group.Ports)
	entered := slices.IndexFunc(q.change.Bytes, func(b BytesEntered) bool { return b.Service == key })
	if !ok && entered < 0 {
		return s, false
	}
	f := flowsOf(&v, &u.in)
	s = Saved{
		Service: key.String(), Ports: u.group.Ports, Family: string(u.group.Name.Family),
		BytesPerSecond: f.total, Bytes: v.Bytes, Reason: v.Reason, Long: f.long(&v, u.share(), false),
	}
	if f.total == 0 || entered >= 0 {
		if entered < 0 || u.best.demand.rate <= 0 {
			return s, false
		}
		f = enteredFlows(u, q.change.Bytes[entered].Bytes)
		s.BytesPerSecond, s.Bytes, s.Reason = f.total, "Entered", ""
	}
	s.Money = *moneyOf(price, f, &v, &u.in, u.share())
	if s.Bytes == "Entered" {
		// Where connections go now was not measured: as far as is known, everywhere alike.
		s.Money.Entered, s.Money.Now, s.Money.Error = true, s.Money.Spread, 0
		if u.plan != nil {
			s.Money.Now = s.Money.Planned
		}
	}
	s.Saving = s.Money.Saving()
	s.Low, s.High = s.Money.SavingBetween()
	return s, true
}

// recount what is saved by the demand of the connections whose bytes were counted. The estimate
// of demand is of another time, or it is guessed from CPU still, as bytes are known a step
// earlier; the bounds hold for both. A plan that is in effect is what it is.
func (q *question) recount(c *Controller, u *candidate, key resource.Key, price *prices, s *Saved) {
	v, ok := c.volumeOf(proxy.ServiceName(key), familyOf(u.group.Name.Family), u.group.Ports)
	if !ok || s.Money.Entered || u.inEffect() {
		return
	}
	f := flowsOf(&v, &u.in)
	counted := u.asCounted(f, &v)
	if counted == nil {
		return
	}
	s.Money = *moneyOf(price, f, &v, &u.in, counted.plan.Share)
	s.Long = f.long(&v, counted.plan.Share, false)
	low, high := s.Money.SavingBetween()
	s.Saving, s.Low, s.High = s.Money.Saving(), min(s.Low, low), max(s.High, high)
}

// asCounted is the best plan for the demand of the connections whose bytes were counted. Nil:
// not all of them were, or other sites have a part in the plan.
func (u *candidate) asCounted(f *flows, v *demand.Volume) *solution {
	if v.Bytes != proxy.Measured.String() {
		return nil
	}
	e := estimated{shares: make([]float64, len(f.sources)), fixed: u.best.demand.fixed, measured: true}
	for i, opened := range f.sourcesOpened {
		if isSite(u.in.topology.Zone(i).Name) && u.best.demand.shares[i] > 0 {
			return nil
		}
		if e.shares[i] = opened; v.Turnover*demand.ShortLived.Seconds() <= 1 {
			e.shares[i] = max(opened, f.sourcesOpen[i]*v.Turnover)
		}
		e.rate += e.shares[i]
	}
	if e.rate == 0 {
		return nil
	}
	for i := range e.shares {
		e.shares[i] /= e.rate
	}
	s, err := solveFor(&u.in, e)
	if err != nil {
		return nil
	}
	return s
}

// enteredFlows are of new connections with so many bytes each.
func enteredFlows(u *candidate, bytes float64) *flows {
	f := flowsOf(&demand.Volume{}, &u.in)
	for i, share := range u.best.demand.shares {
		f.sources[i] = share * u.best.demand.rate * bytes
		f.total += f.sources[i]
	}
	f.opened = u.best.demand.rate
	return f
}

// topText lists Services by saving.
func topText(b *strings.Builder, all []Saved) {
	if len(all) == 0 {
		b.WriteString("nothing is known of the bytes of any Service\n")
		return
	}
	fmt.Fprintf(b, "%-40s %10s %12s %12s %12s  %-23s %s\n", "SERVICE", "MB/S", "NOW/MONTH", "PLANNED", "SAVING", "BETWEEN", "BYTES")
	for i := range all {
		s := &all[i]
		note := s.Bytes
		if s.Planned {
			note += ", planned"
		}
		if s.Long != nil {
			note += fmt.Sprintf(", %.0f long connections: saved once they are made anew", s.Long.Open)
		}
		if s.Reason != "" {
			note += " (" + s.Reason + ")"
		}
		fmt.Fprintf(b, "%-40s %10.3f %12s %12s %12s  %-23s %s\n", s.Service+" "+titleOf(s.Ports, s.Family), s.BytesPerSecond/1e6,
			amount(s.Money.Now, s.Money.Currency), amount(s.Money.Planned, s.Money.Currency), amount(s.Saving, s.Money.Currency),
			fmt.Sprintf("%.2f to %.2f", s.Low, s.High), note)
	}
}

func amount(x float64, currency string) string { return fmt.Sprintf("%.2f %s", x, currency) }
