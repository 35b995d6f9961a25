package demand

import (
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Stats count what an Aggregator has seen.
type Stats struct {
	// Reports: taken, taken before, senseless, and too early to be taken.
	Accepted, Duplicate, Refused, Early uint64
	// Missed reports are gaps in the sequence of a run: another control plane has them, or
	// the agent gave them up.
	Missed uint64
	// UnknownPort counts connections of service ports that are not in the catalog.
	UnknownPort uint64
	// Unusable counts steps of single ports with more traffic than can be.
	Unusable uint64
	// Total of all reports that were taken, and Requests of its connections.
	Total    Total
	Requests uint64
	// Steps of the estimate, and the time that they took.
	Steps    uint64
	StepTime time.Duration
}

// Coverage says how many nodes report.
type Coverage struct {
	// Nodes there are; Reporting of them; Silent ones have reported, but not for 40 s.
	Nodes     int `json:"nodes"`
	Reporting int `json:"reporting"`
	Silent    int `json:"silent"`
	// Oldest is the time since the report of the agent that is silent the longest.
	Oldest time.Duration `json:"oldestNanoseconds"`
	// SilentNodes are up to 20 of those that are silent the longest, longest first.
	SilentNodes []AgentDemand `json:"silentNodes,omitempty"`
	// Proxies report, or are SilentProxies, which have reported, but not for 40 s.
	Proxies       int `json:"proxies,omitempty"`
	SilentProxies int `json:"silentProxies,omitempty"`
	// Warm: all nodes have reported, or had the time to. Before, estimates of a control
	// plane that was restarted differ from what it knew for want of data only.
	Warm bool `json:"warm"`
	// Ports with demand.
	Ports int `json:"servicePorts"`
}

// AgentDemand is one reporter.
type AgentDemand struct {
	Node string        `json:"node"`
	Zone locality.Zone `json:"zone,omitempty"`
	// Age of the newest report.
	Age time.Duration `json:"ageNanoseconds"`
	// Kept is what its share has faded to; 1: nothing.
	Kept float64 `json:"kept"`
}

// maxSilent agents are named, so that a zone that is cut off does not flood anybody.
const maxSilent = 20

// Coverage returns which nodes report, as of now.
func (a *Aggregator) Coverage() Coverage {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cover(time.Now())
}

// Warm: see Coverage.
func (a *Aggregator) Warm() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.coverage.Warm
}

func (a *Aggregator) cover(now time.Time) Coverage {
	c := Coverage{Ports: len(a.ports), Warm: a.coverage.Warm}
	for range a.world.Nodes() {
		c.Nodes++
	}
	var silent []AgentDemand
	for _, g := range a.agents {
		if _, ok := a.place(g); !ok {
			continue // removed, or not there yet
		}
		age := now.Sub(g.reported)
		switch {
		case g.proxy == "":
		case age <= grace:
			c.Proxies++
			continue
		default:
			c.SilentProxies++
			continue
		}
		c.Oldest = max(c.Oldest, age)
		if age <= grace {
			c.Reporting++
			continue
		}
		c.Silent++
		silent = append(silent, AgentDemand{Node: g.node, Zone: g.zone, Age: age, Kept: g.kept})
	}
	slices.SortFunc(silent, func(x, y AgentDemand) int {
		if x.Age != y.Age {
			return int(y.Age - x.Age)
		}
		return strings.Compare(x.Node, y.Node)
	})
	c.SilentNodes = slices.Clip(silent[:min(len(silent), maxSilent)])
	if !a.began.IsZero() && a.stepped.After(a.began) {
		c.Warm = c.Warm || c.Reporting >= c.Nodes || now.Sub(a.began) >= warmUp
	}
	a.coverage = c
	return c
}

// PortDemand is what is known of a service port.
type PortDemand struct {
	Port proxy.PortName `json:"-"`
	Name string         `json:"port"`
	// Total since this control plane began to measure it.
	Total Total `json:"total"`
	// Rates per second.
	Connections float64 `json:"connectionsPerSecond"`
	BytesIn     float64 `json:"bytesInPerSecond"`
	BytesOut    float64 `json:"bytesOutPerSecond"`
	// Zones with their shares, as measured, with an even prior.
	Zones []ZoneShare `json:"zones"`
	// Families with traffic, if there are two; the rest is of both together.
	Families []FamilyDemand `json:"families,omitempty"`
	// Units that the demand was counted in, by whom.
	Units Units `json:"units"`
	// Utilisation of its endpoints, as they state it; 0: they do not.
	Utilisation float64 `json:"utilisation,omitempty"`
	// Volume is what is known of bytes and open connections.
	Volume Volume `json:"volume"`
}

// FamilyDemand is the demand of one address family of a service port, which is planned by it
// alone.
type FamilyDemand struct {
	// Family is IPv4 or IPv6.
	Family      string      `json:"family"`
	Connections float64     `json:"connectionsPerSecond"`
	Zones       []ZoneShare `json:"zones"`
}

// ZoneShare is the share of a service port's demand that starts in a zone.
type ZoneShare struct {
	Zone  locality.Zone `json:"zone"`
	Share float64       `json:"share"`
}

// Snapshot returns what is known of the service ports of one Service, or of all (nil),
// in order. Its cost is that of all service ports with traffic.
func (a *Aggregator) Snapshot(of *proxy.ServiceName) []PortDemand {
	a.mu.Lock()
	defer a.mu.Unlock()
	out, now := []PortDemand{}, time.Now()
	for name, p := range a.ports {
		if of == nil || name.ServiceName == *of {
			out = append(out, a.describe(now, p))
		}
	}
	slices.SortFunc(out, func(x, y PortDemand) int { return comparePorts(x.Port, y.Port) })
	return out
}

func (a *Aggregator) describe(now time.Time, p *port) PortDemand {
	d := PortDemand{
		Port:        p.name,
		Name:        p.name.String(),
		Total:       p.total,
		BytesIn:     p.inRate,
		BytesOut:    p.outRate,
		Units:       p.units.now(now),
		Utilisation: p.units.utilisation(now),
		Volume:      a.volume(now, p, proxy.AnyFamily),
		Zones:       a.zoneShares(a.loadOfBoth(now, p, nil, nil).Shares),
	}
	if len(d.Volume.Ways) > 0 {
		d.BytesIn, d.BytesOut = 0, 0
		for _, w := range d.Volume.Ways {
			d.BytesIn, d.BytesOut = d.BytesIn+w.BytesIn, d.BytesOut+w.BytesOut
		}
	}
	for l := range p.all() {
		rate := l.estimator.Rate()
		d.Connections += rate
		d.Families = append(d.Families, FamilyDemand{l.family.String(), rate, a.zoneShares(a.loadOf(now, l, nil, nil).Shares)})
	}
	if len(d.Families) < 2 {
		d.Families = nil
	}
	return d
}

func (a *Aggregator) zoneShares(shares []float64) (out []ZoneShare) {
	for i, share := range shares {
		out = append(out, ZoneShare{a.zones[i], share})
	}
	return out
}

// Stats returns what was seen so far.
func (a *Aggregator) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}
