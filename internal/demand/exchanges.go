package demand

import (
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// exchanges is the part of a Meter that reports bytes and open connections by destination.
// They are read less often than new connections; what is open is reported as a whole with
// each reading, so that a receiver that is younger than the connections knows it.
type exchanges struct {
	started bool
	quality proxy.Quality
	reason  string
	// covered since counting began, as it was last read; waiting of it was not reported.
	covered, waiting time.Duration
	last             map[exchangeKey]proxy.Exchange
	pending          map[exchangeKey]proxy.Exchange
}

// exchangeKey is what an exchange is counted for.
type exchangeKey struct {
	counted
	zone locality.Zone
	kept bool
}

func newExchanges() exchanges {
	return exchanges{last: map[exchangeKey]proxy.Exchange{}, pending: map[exchangeKey]proxy.Exchange{}}
}

// ReadExchanges takes bytes and open connections as they are now. The first reading is what
// others are compared with. It is called after Read, which counts new connections.
func (m *Meter) ReadExchanges(a proxy.Accounting, rows iter.Seq2[proxy.PortName, proxy.Exchange]) {
	x := &m.exchanges
	x.quality, x.reason = a.Quality, a.Reason
	if a.Quality == proxy.Unavailable || x.started && a.Covered == x.covered {
		return // not read again
	}
	now := make(map[exchangeKey]proxy.Exchange, len(x.last))
	for name, row := range rows {
		now[exchangeKey{counted{name, row.Family}, row.Zone, row.Kept}] = row
	}
	for key, p := range x.pending {
		p.Open = 0
		x.pending[key] = p
	}
	for key, row := range now {
		x.add(exchangeKey{counted{m.source(key.port), key.family}, key.zone, key.kept}, row, x.last[key])
	}
	if x.started {
		x.waiting += a.Covered - min(x.covered, a.Covered)
	} else {
		x.waiting = a.Covered
	}
	x.last, x.started, x.covered = now, true, a.Covered
}

// add what is new since before.
func (x *exchanges) add(key exchangeKey, now, before proxy.Exchange) {
	d := proxy.Exchange{Zone: key.zone, Kept: key.kept, Open: now.Open}
	if x.started && now.BytesIn >= before.BytesIn && now.BytesOut >= before.BytesOut && now.Opened >= before.Opened {
		d.BytesIn, d.BytesOut = now.BytesIn-before.BytesIn, now.BytesOut-before.BytesOut
		d.Opened, d.Closed = now.Opened-before.Opened, now.Closed-min(before.Closed, now.Closed)
		d.Estimated = now.Estimated - min(before.Estimated, now.Estimated)
	}
	p, ok := x.pending[key]
	if !ok && (d == proxy.Exchange{Zone: d.Zone, Kept: d.Kept} || len(x.pending) >= maxPending) {
		return
	}
	addExchange(&p, d)
	p.Zone, p.Kept = d.Zone, d.Kept
	x.pending[key] = p
}

// addExchange adds counts, and what is open.
func addExchange(to *proxy.Exchange, d proxy.Exchange) {
	to.BytesIn += d.BytesIn
	to.BytesOut += d.BytesOut
	to.Estimated += d.Estimated
	to.Opened += d.Opened
	to.Closed += d.Closed
	to.Open += d.Open
}

// accounting for the next report.
func (x *exchanges) accounting() Accounting {
	return Accounting{Quality: x.quality, Reason: x.reason[:min(len(x.reason), maxReason)], Covered: min(x.waiting, MaxElapsed)}
}

// take what is pending into the traffic of a report, which is in order.
func (x *exchanges) take(traffic []Traffic) []Traffic {
	keys := make([]exchangeKey, 0, len(x.pending))
	for key := range x.pending {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b exchangeKey) int {
		if c := a.compare(b.counted); c != 0 {
			return c
		}
		if c := strings.Compare(string(a.zone), string(b.zone)); c != 0 {
			return c
		}
		if a.kept == b.kept {
			return 0
		}
		if a.kept {
			return 1
		}
		return -1
	})
	at, more := 0, 0 // in traffic; ports that it has not
	known := len(traffic)
	for _, key := range keys {
		for at < known && traffic[at].counted().compare(key.counted) < 0 {
			at++
		}
		var t *Traffic
		switch n := len(traffic); {
		case at < known && traffic[at].counted() == key.counted:
			t = &traffic[at]
		case n > known && traffic[n-1].counted() == key.counted:
			t = &traffic[n-1]
		case n < MaxPorts:
			traffic, more = append(traffic, Traffic{Port: key.port, Family: key.family}), more+1
			t = &traffic[n]
		default:
			continue
		}
		row := limited(x.pending[key])
		t.Exchanges = append(t.Exchanges, row)
		// Modes that know bytes by destination know them in no other way, or have the same sum.
	}
	if more > 0 {
		slices.SortFunc(traffic, func(a, b Traffic) int { return a.counted().compare(b.counted()) })
	}
	for i := range traffic {
		in, out := uint64(0), uint64(0)
		for _, row := range traffic[i].Exchanges {
			in, out = in+row.BytesIn, out+row.BytesOut
		}
		traffic[i].BytesIn, traffic[i].BytesOut = max(traffic[i].BytesIn, min(in, MaxCount)), max(traffic[i].BytesOut, min(out, MaxCount))
	}
	x.pending, x.waiting = make(map[exchangeKey]proxy.Exchange, len(keys)), 0
	return traffic
}

// limited to what a report may say; a count beyond it is a broken counter.
func limited(x proxy.Exchange) proxy.Exchange {
	for _, n := range []*uint64{&x.BytesIn, &x.BytesOut, &x.Estimated, &x.Opened, &x.Closed, &x.Open} {
		*n = min(*n, MaxCount)
	}
	return x
}
