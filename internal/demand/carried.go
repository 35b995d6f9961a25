package demand

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner/estimate"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// carriedHalfLife of the rates of bytes: kernels are read once a minute, so this is five
// readings.
const carriedHalfLife = 5 * time.Minute

// ShortLived connections end between two readings, most of them unseen: the number of those that
// a reading happens to see, times their turnover, is the rate of new ones on average, but of
// a few samples it is nothing like it. New connections count them all. Kernels are read once a
// minute.
const ShortLived = time.Minute

// openFaded: lost agents whose share has faded below it have no open connections.
const openFaded = 0.5

// openUnread is how long connections count as open that their agent does not read any more,
// as it was started again without accounting. It is three times the longest time between two
// readings.
const openUnread = 5 * time.Minute

// fading is a sum whose parts lose half their weight in a half-life.
type fading struct {
	sum float64
	at  time.Time
}

// now is the sum as of a time.
func (f *fading) now(t time.Time) float64 {
	if f.at.IsZero() || f.sum == 0 {
		return 0
	}
	return f.sum * math.Exp2(-t.Sub(f.at).Seconds()/carriedHalfLife.Seconds())
}

func (f *fading) add(t time.Time, x float64) { f.sum, f.at = f.now(t)+x, t }

// way is from the zone of clients to that of endpoints.
type way struct {
	from, to locality.Zone
	kept     bool
}

// carried is what is known of the exchanges of a family of a service port on one way.
type carried struct {
	in, out, estimated, opened, closed fading
	// openFor is the time that connections were open, in connection seconds.
	openFor fading
	// open connections now, of agents that said so.
	open float64
	// before is the time that agents of the zone had counted when this began.
	before fading
}

// counting is how long agents of a zone have counted bytes, all together.
type counting struct{ seconds fading }

// portAgents are the connections of a service port through agents that count bytes, and
// through all.
type portAgents struct {
	counting, all fading
	// quality is the worst of agents that count, and reason that of one that does not measure.
	reason string
}

// openRow is what one agent has open.
type openRow struct {
	of *carried
	n  float64
}

// noteExchanges takes what a report says of bytes and open connections. zone is the agent's.
func (a *Aggregator) noteExchanges(now time.Time, from *agent, zone locality.Zone, r *Report) {
	from.accounting = r.Accounting
	read := r.Accounting.Covered > 0
	if from.unread += r.Elapsed; read || from.unread > openUnread {
		from.dropOpen()
	}
	if read {
		from.unread = 0
		a.countingOf(zone).seconds.add(now, r.Accounting.Covered.Seconds())
	}
	for i := range r.Traffic {
		t := &r.Traffic[i]
		p := a.ports[t.Port]
		if p == nil {
			continue
		}
		p.agents.note(now, r, float64(t.Connections))
		for l, part := range a.lanesOf(now, p, t.Family, r.Proxy != "") {
			for k := range t.Exchanges {
				x := &t.Exchanges[k]
				c := l.carriedOn(now, way{zone, x.Zone, x.Kept}, a.countingOf(zone), r.Accounting.Covered)
				c.in.add(now, part*float64(x.BytesIn))
				c.out.add(now, part*float64(x.BytesOut))
				c.estimated.add(now, part*float64(x.Estimated))
				c.opened.add(now, part*float64(x.Opened))
				c.closed.add(now, part*float64(x.Closed))
				if read && x.Open > 0 {
					open := part * float64(x.Open)
					c.open += open
					c.openFor.add(now, open*r.Accounting.Covered.Seconds())
					from.open = append(from.open, openRow{c, open})
				}
			}
		}
	}
}

func (p *portAgents) note(now time.Time, r *Report, connections float64) {
	a := r.Accounting
	p.all.add(now, connections)
	if a.Quality != proxy.Unavailable {
		p.counting.add(now, connections)
	}
	if a.Quality != proxy.Measured && connections > 0 {
		p.reason = a.Reason
		if p.reason == "" && a.Quality == proxy.Unavailable {
			p.reason = "agents of an earlier version do not count bytes by destination"
			if r.Proxy != "" {
				p.reason = "load reports of proxies contain no bytes"
			}
		}
	}
}

func (g *agent) dropOpen() {
	for _, row := range g.open {
		row.of.open = max(0, row.of.open-row.n)
	}
	clear(g.open)
	g.open = g.open[:0]
}

func (a *Aggregator) countingOf(zone locality.Zone) *counting {
	c := a.counting[zone]
	if c == nil {
		c = &counting{}
		a.counting[zone] = c
	}
	return c
}

// carriedOn a way. covered is the time of the report that is being taken, in which the
// connections of a new way were counted already.
func (l *lane) carriedOn(now time.Time, w way, c *counting, covered time.Duration) *carried {
	x := l.carried[w]
	if x == nil {
		if l.carried == nil {
			l.carried = make(map[way]*carried, 1)
		}
		x = &carried{}
		x.before.add(now, max(0, c.seconds.now(now)-covered.Seconds()))
		l.carried[w] = x
	}
	return x
}

// seconds that agents of the way's zone have counted since it began, per agent.
func (a *Aggregator) secondsOf(now time.Time, w way, c *carried) float64 {
	counted := a.countingOf(w.from).seconds.now(now) - c.before.now(now)
	return counted / float64(max(1, a.counters[w.from]))
}

// Carried is what a service port carries from the clients of one zone to the endpoints of
// another.
type Carried struct {
	From locality.Zone `json:"from"`
	// To is empty for endpoints whose zone is not known, and "site:*" for other sites.
	To locality.Zone `json:"to"`
	// Kept on the node by a traffic policy Local: a plan does not move it.
	Kept bool `json:"kept,omitempty"`
	// Rates per second: bytes from clients and to them, connections that open and close.
	BytesIn  float64 `json:"bytesInPerSecond"`
	BytesOut float64 `json:"bytesOutPerSecond"`
	Opened   float64 `json:"openedPerSecond"`
	Closed   float64 `json:"closedPerSecond"`
	// Open connections now.
	Open float64 `json:"open"`
}

// Volume is what is known of the bytes and open connections of a service port.
type Volume struct {
	// Bytes is Measured, Estimated or Unavailable, and Reason why they are not measured.
	Bytes  string `json:"bytes"`
	Reason string `json:"reason,omitempty"`
	// Error is the part of the bytes that is not measured, from 0 to 1.
	Error float64 `json:"error"`
	// Open connections, and their turnover: how many of them close per second, each. 0: nothing
	// is open. If none closed, it is what one would make.
	Open     float64   `json:"openConnections"`
	Turnover float64   `json:"turnoverPerSecond"`
	Ways     []Carried `json:"ways,omitempty"`
}

// Total rate of bytes both ways, per second, as far as it is counted.
func (v *Volume) Total() float64 {
	sum := 0.0
	for i := range v.Ways {
		sum += v.Ways[i].BytesIn + v.Ways[i].BytesOut
	}
	return sum
}

// Volume of a family of a service port now; AnyFamily: of both.
func (a *Aggregator) Volume(name proxy.PortName, family proxy.Family) Volume {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.ports[name]
	if p == nil || family != proxy.AnyFamily && p.lane(family) == nil {
		return Volume{Bytes: proxy.Unavailable.String(), Reason: "there was no traffic lately"}
	}
	return a.volume(time.Now(), p, family)
}

func (a *Aggregator) volume(now time.Time, p *port, family proxy.Family) Volume {
	v := Volume{Ways: []Carried{}}
	estimated, total := 0.0, 0.0
	for l := range p.all() {
		if family != proxy.AnyFamily && l.family != family {
			continue
		}
		for w, c := range l.carried {
			seconds := a.secondsOf(now, w, c)
			if seconds <= 0 {
				continue
			}
			v.add(Carried{
				From: w.from, To: w.to, Kept: w.kept, Open: c.open,
				BytesIn: c.in.now(now) / seconds, BytesOut: c.out.now(now) / seconds,
				Opened: c.opened.now(now) / seconds, Closed: c.closed.now(now) / seconds,
			})
			estimated += c.estimated.now(now)
			total += c.in.now(now) + c.out.now(now)
		}
	}
	slices.SortFunc(v.Ways, func(x, y Carried) int {
		if c := strings.Compare(string(x.From), string(y.From)); c != 0 {
			return c
		}
		if c := strings.Compare(string(x.To), string(y.To)); c != 0 {
			return c
		}
		return boolOrder(x.Kept, y.Kept)
	})
	v.Open, v.Turnover = p.turnover(now, family)
	v.judge(p, now, estimated, total)
	return v
}

// add a way, to the same one of the other family if that is there.
func (v *Volume) add(c Carried) {
	for i := range v.Ways {
		if w := &v.Ways[i]; w.From == c.From && w.To == c.To && w.Kept == c.Kept {
			w.BytesIn, w.BytesOut, w.Open = w.BytesIn+c.BytesIn, w.BytesOut+c.BytesOut, w.Open+c.Open
			w.Opened, w.Closed = w.Opened+c.Opened, w.Closed+c.Closed
			return
		}
	}
	v.Ways = append(v.Ways, c)
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// judge how far the bytes are measured.
func (v *Volume) judge(p *port, now time.Time, estimated, total float64) {
	missing := 0.0
	if all := p.agents.all.now(now); all > 0 {
		missing = max(0, 1-p.agents.counting.now(now)/all)
	}
	if total > 0 {
		v.Error = estimated / total
	}
	v.Error = 1 - (1-v.Error)*(1-missing)
	switch {
	case len(v.Ways) == 0:
		v.Bytes, v.Reason = proxy.Unavailable.String(), p.agents.reason
		if v.Reason == "" {
			v.Reason = "they were not read yet"
		}
	case missing > notableError:
		v.Bytes = proxy.Estimated.String()
		v.Reason = fmt.Sprintf("%.0f %% of the connections are of agents that count no bytes: %s", 100*missing, p.agents.reason)
	case v.Error > notableError:
		v.Bytes = proxy.Estimated.String()
		v.Reason = p.agents.reason
		if v.Reason == "" {
			v.Reason = fmt.Sprintf("%.1f %% of the bytes are those of connections that ended unseen, at the mean of others", 100*v.Error)
		}
	default:
		v.Bytes = proxy.Measured.String()
	}
}

// notableError of bytes; below it they are measured.
const notableError = 0.01

// turnover of the open connections of a port that a plan could move: the part of them that
// closes per second. One more than was seen counts as closed, so that connections that
// never close turn over slower the longer they are watched, and not never.
func (p *port) turnover(now time.Time, family proxy.Family) (open, perSecond float64) {
	closed, watched := 1.0, 0.0
	for l := range p.all() {
		if family != proxy.AnyFamily && l.family != family {
			continue
		}
		for w, c := range l.carried {
			if w.kept {
				continue
			}
			open += c.open
			closed += c.closed.now(now)
			watched += c.openFor.now(now)
		}
	}
	if open == 0 || watched == 0 {
		return open, 0
	}
	return open, closed / watched
}

// held is what the shares of demand depend on besides new connections, by zone of clients.
type held struct {
	// open connections by zone, and their turnover.
	open     []float64
	turnover float64
	// kept part of a zone's new connections, which a policy Local keeps on their nodes.
	kept []float64
}

// estimate is the question to the estimator.
func (h held) estimate(prior []float64, noNodes []bool) estimate.Question {
	return estimate.Question{Prior: prior, NoNodes: noNodes, Open: h.open, Turnover: h.turnover, Kept: h.kept}
}

// heldBy a lane; the slices are nil if nothing is held.
func (a *Aggregator) heldBy(now time.Time, l *lane) (h held) {
	if len(l.carried) == 0 {
		return h
	}
	h.open, h.kept = make([]float64, len(a.zones)), make([]float64, len(a.zones))
	opened := make([]float64, len(a.zones))
	_, h.turnover = l.port.turnover(now, l.family)
	short := h.turnover*ShortLived.Seconds() > 1
	for w, c := range l.carried {
		i, ok := slices.BinarySearch(a.zones, w.from)
		if !ok {
			continue
		}
		n := c.opened.now(now)
		opened[i] += n
		if w.kept {
			h.kept[i] += n
		} else if !short {
			h.open[i] += c.open
		}
	}
	if short {
		h.turnover = 0
	}
	for i := range h.kept {
		if opened[i] > 0 {
			h.kept[i] /= opened[i]
		}
	}
	return h
}

// forgetCarried drops ways that nothing goes any more, and their zones.
func (l *lane) forgetCarried(now time.Time) {
	for w, c := range l.carried {
		if c.open == 0 && c.in.now(now)+c.out.now(now) < 1 && c.opened.now(now) < leastConnections {
			delete(l.carried, w)
		}
	}
}

// countCounters counts the agents of each zone that count bytes.
func (a *Aggregator) countCounters() {
	clear(a.counters)
	for _, g := range a.agents {
		if g.accounting.Quality == proxy.Unavailable || g.kept < openFaded {
			continue
		}
		zone, _ := a.place(g)
		a.counters[zone]++
	}
}

// place of a reporter: its zone, and whether its node or workload is there. The label of its
// Node counts, else what it reported.
func (a *Aggregator) place(g *agent) (zone locality.Zone, ok bool) {
	if g.proxy != "" {
		zone, ok = a.world.Proxy(g.proxy)
	} else {
		zone, ok = a.world.Zone(g.node)
	}
	if zone == "" {
		zone = g.zone
	}
	return zone, ok
}
