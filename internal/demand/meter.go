package demand

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

const (
	// forgetReads after which a port that the mode no longer counts is forgotten:
	// about an hour. Until then its counters may come back as they were, as they do
	// when a kernel could not be read for a while.
	forgetReads = 360
	// maxPending ports wait for a control plane that does not answer.
	maxPending = 2 * MaxPorts
)

// Meter turns a mode's counters into reports. It is pure: who reads, when, and how
// reports travel is the caller's. Not for concurrent use.
//
// A report is fixed when it is first handed out, and handed out again, the same,
// until it is acknowledged; what is counted meanwhile goes into the one after. So a
// receiver that knows the last sequence of a run counts everything once.
type Meter struct {
	node, run string
	source    func(proxy.PortName) proxy.PortName

	started bool
	reads   uint64
	last    map[counted]reading

	// pending is counted since the report in hand, over the time from since to until.
	pending      map[counted]Total
	since, until time.Time
	hand         *Report
	sequence     uint64
	stats        MeterStats

	exchanges exchanges
}

// counted is what is counted apart: a service port and the family of its addresses.
type counted struct {
	port   proxy.PortName
	family proxy.Family
}

func (c counted) compare(d counted) int {
	return cmp.Or(comparePorts(c.port, d.port), cmp.Compare(c.family, d.family))
}

type reading struct {
	total Total
	// read is the number of the read that saw it last.
	read uint64
}

// MeterStats describes a Meter.
type MeterStats struct {
	// Restarts counts ports whose counters started over. What they had counted by the
	// next read is not reported.
	Restarts uint64
	// Dropped counts connections that were given up: too many ports were waiting, or
	// a report was refused.
	Dropped uint64
	// Pending is the number of ports that wait for a report.
	Pending int
	// Unacknowledged: a report is out.
	Unacknowledged bool
}

// NewMeter makes the meter of a node. run must be unique: a meter that is made again
// starts at sequence 1.
//
// source is the service port that the traffic of a counted port is reported for: several may
// share one. Nil: each its own.
func NewMeter(node, run string, source func(proxy.PortName) proxy.PortName) *Meter {
	if source == nil {
		source = func(name proxy.PortName) proxy.PortName { return name }
	}
	return &Meter{node: node, run: run, source: source, last: map[counted]reading{}, pending: map[counted]Total{}, exchanges: newExchanges()}
}

// Read takes the counters as they are now. The first read is what others are
// compared with and reports nothing. now must carry a monotonic clock.
//
// A port that is seen for the first time later has counted since it was made. One
// whose counters went back is compared with what they are now: that loses what they
// counted since, at most one interval, where anything else could count twice.
func (m *Meter) Read(now time.Time, counts iter.Seq2[proxy.PortName, proxy.Counts]) {
	m.reads++
	seen := 0
	for name, c := range counts {
		all := Total{Connections: c.Connections, BytesIn: c.BytesIn, BytesOut: c.BytesOut}
		if v6 := Total(c.IPv6); c.ByFamily {
			m.readPort(counted{name, proxy.IPv6}, v6)
			m.readPort(counted{name, proxy.IPv4}, all.since(v6))
		} else {
			m.readPort(counted{name, proxy.AnyFamily}, all)
		}
		seen++
	}
	switch {
	case !m.started:
		m.started, m.since = true, now
	case seen == 0:
		m.reads-- // nothing could be read, so no port ages
	case m.reads%forgetReads == 0:
		maps.DeleteFunc(m.last, func(_ counted, r reading) bool { return m.reads-r.read >= forgetReads })
	}
	m.until = now
}

func (m *Meter) readPort(key counted, now Total) {
	before, known := m.last[key]
	if now == before.total {
		if known {
			m.last[key] = reading{now, m.reads}
		}
		return // ports that never had traffic are not kept
	}
	m.last[key] = reading{now, m.reads}
	if !m.started {
		return
	}
	if now.below(before.total) {
		m.stats.Restarts++
		return
	}
	key.port = m.source(key.port)
	p, waiting := m.pending[key]
	d := now.since(before.total)
	if !waiting && len(m.pending) >= maxPending {
		m.stats.Dropped += d.Connections
		return
	}
	p.add(d)
	m.pending[key] = p
}

// Next returns the report to send: the one that was not acknowledged, else what was
// counted since, which may be nothing. It returns nil as long as there was no time to
// count in. The report is the meter's until it is acknowledged; it never changes.
func (m *Meter) Next(zone locality.Zone) *Report {
	if m.hand != nil {
		return m.hand
	}
	if !m.until.After(m.since) {
		return nil
	}
	m.sequence++
	m.hand = &Report{
		Node: m.node, Zone: zone, Run: m.run, Sequence: m.sequence,
		Elapsed: min(m.until.Sub(m.since), MaxElapsed), Traffic: m.take(), Accounting: m.exchanges.accounting(),
	}
	m.hand.Traffic = m.exchanges.take(m.hand.Traffic)
	m.since = m.until
	return m.hand
}

// take empties pending into a list, in order, as far as it fits into a report.
func (m *Meter) take() []Traffic {
	out := make([]Traffic, 0, min(len(m.pending), MaxPorts))
	for key, t := range m.pending {
		if len(out) == MaxPorts {
			break
		}
		// A count beyond the limit is a broken counter; the limit is far from any real one.
		out = append(out,
			Traffic{Port: key.port, Family: key.family, Connections: min(t.Connections, MaxCount), BytesIn: min(t.BytesIn, MaxCount), BytesOut: min(t.BytesOut, MaxCount)})
	}
	if len(out) == len(m.pending) {
		// A new map, as the time to clear one grows with the most it ever held.
		m.pending = make(map[counted]Total, len(out))
	} else {
		for _, t := range out {
			delete(m.pending, t.counted())
		}
	}
	slices.SortFunc(out, func(a, b Traffic) int { return a.counted().compare(b.counted()) })
	return out
}

func comparePorts(a, b proxy.PortName) int {
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	return strings.Compare(a.Port, b.Port)
}

// Acknowledge notes that a report was taken. It returns whether it was the one in
// hand; others are acknowledged already.
func (m *Meter) Acknowledge(sequence uint64) bool {
	if m.hand == nil || m.hand.Sequence != sequence {
		return false
	}
	m.hand = nil
	return true
}

// Drop gives the report in hand up, as it was refused for good, and returns how many
// connections are lost by that.
func (m *Meter) Drop() (connections uint64) {
	if m.hand == nil {
		return 0
	}
	for _, t := range m.hand.Traffic {
		connections += t.Connections
	}
	m.hand = nil
	m.stats.Dropped += connections
	return connections
}

// Stats returns the counts so far.
func (m *Meter) Stats() MeterStats {
	s := m.stats
	s.Pending, s.Unacknowledged = len(m.pending), m.hand != nil
	return s
}
