package account

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Flags of a flow.
const (
	// outside of the sample: its bytes are not counted.
	outside uint8 = 1 << iota
	// closed: it was counted as closed.
	closed
	// partly seen: what it carried before it was first seen is not known, so it does not
	// count for the mean of closed flows.
	partly
)

const (
	// forgetAfter so many dumps without it, a flow is gone: one that is missing from a
	// single dump, as the kernel's table was resized meanwhile, may come back.
	forgetAfter = 2
	// noCell of a flow: it is not for a service port.
	noCell = -1
	// unplaced flow: it was restored and is to be looked up.
	unplaced = -2
)

// flow is what is kept of a flow: 24 bytes, and 8 for its key.
type flow struct {
	in, out uint64
	cell    int32
	seen    uint16 // number of the dump
	flags   uint8
}

// cellKey names what exchanges are counted for.
type cellKey struct {
	port   int32 // index of the port
	family proxy.Family
	zone   locality.Zone
	kept   bool
}

// cell counts for a service port, the family of its address and a zone of endpoints. Counts are of all flows, also
// where only a sample is read.
type cell struct {
	key                   cellKey
	in, out, estimated    float64
	opened, closed, open  float64
	opening               float64 // open, of the dump under way
	uncounted, uncounting float64 // open flows whose bytes the kernel does not count
}

// port is a service port with flows.
type port struct {
	name proxy.PortName
	// connections is the exact counter at the last dump, and seen the flows since.
	connections uint64
	known       bool
	seen        float64
	// waiting connections were counted and not seen as flows yet.
	waiting float64
	// meanIn and meanOut are of ended flows, of which there were samples.
	meanIn, meanOut, samples float64
	cells                    []int32
}

// Ledger adds up what dumps of the connection tracking table say. It is pure: who dumps, and
// when, is its user's business. Not safe for concurrent use.
type Ledger struct {
	hash   [2]uint64
	find   Finder
	flows  map[uint64]flow
	ports  []port
	portAt map[proxy.PortName]int32
	cells  []cell
	cellAt map[cellKey]int32
	// started: flows that are not known are new. ended: a dump of this process was ended.
	started, ended bool
	number         uint16
	scale          float64

	// total and estimated bytes of the last dumps, each of which halves what was before.
	recent, guessed float64
}

// Finder says whose a flow is. ok is false for one that is not for a service port.
type Finder interface {
	Find(to conntrack.Frontend, endpoint, client netip.AddrPort) (at Place, ok bool)
}

// Place is what a flow counts for.
type Place struct {
	Port   proxy.PortName
	Family proxy.Family
	Zone   locality.Zone
	Kept   bool
}

// NewLedger makes an empty ledger. hash is a random key, by which flows are told apart.
func NewLedger(hash [2]uint64, find Finder) *Ledger {
	return &Ledger{
		hash: hash, find: find, flows: map[uint64]flow{}, portAt: map[proxy.PortName]int32{}, cellAt: map[cellKey]int32{}, scale: 1,
	}
}

// Begin a dump. scale is by how much what is inside the sample stands for all; 1: all is
// read.
func (l *Ledger) Begin(scale float64) {
	l.number++
	l.scale = max(scale, 1)
	for i := range l.cells {
		l.cells[i].opening, l.cells[i].uncounting = 0, 0
	}
}

// Add a flow of the dump. inside: it belongs to the sample.
func (l *Ledger) Add(e *conntrack.Entry, inside bool) {
	key := l.keyOf(e)
	f, known := l.flows[key]
	if !known || f.cell == unplaced {
		f.cell = l.place(e)
	}
	if f.cell == noCell {
		l.flows[key] = flow{cell: noCell, seen: l.number}
		return
	}
	in, out := e.In-min(f.in, e.In), e.Out-min(f.out, e.Out)
	if e.In < f.in || e.Out < f.out { // another program has set the counters to zero
		in, out = e.In, e.Out
	}
	c := &l.cells[f.cell]
	switch {
	case !inside:
		f.flags |= outside | partly
	case f.flags&outside != 0:
		f.flags &^= outside // what it carried before is not of the sample
	case !known && !l.started:
		f.flags |= partly
	default:
		c.in, c.out = c.in+float64(in)*l.scale, c.out+float64(out)*l.scale
		l.recent += float64(in + out)
		if !known {
			c.opened += l.scale
			l.ports[c.key.port].seen += l.scale
		}
	}
	moved := e.In != f.in || e.Out != f.out
	f.in, f.out, f.seen = e.In, e.Out, l.number
	if f.flags&outside == 0 {
		l.state(e, &f, c, moved)
	}
	l.flows[key] = f
}

// state counts open and closed connections.
func (l *Ledger) state(e *conntrack.Entry, f *flow, c *cell, moved bool) {
	switch e.State {
	case conntrack.Established:
		if e.Connectionless() && !moved {
			return
		}
		c.opening += l.scale
		if !e.Counted {
			c.uncounting += l.scale
		}
	case conntrack.Closed:
		l.close(f, c)
	}
}

// close counts a flow as closed, once.
func (l *Ledger) close(f *flow, c *cell) {
	if f.flags&closed != 0 {
		return
	}
	f.flags |= closed
	c.closed += l.scale
	if f.flags&partly == 0 {
		l.ports[c.key.port].sample(float64(f.in), float64(f.out))
	}
}

// sample takes an ended flow into the mean, which follows the newest ones.
func (p *port) sample(in, out float64) {
	const memory = 1000
	p.samples = min(p.samples+1, memory)
	p.meanIn += (in - p.meanIn) / p.samples
	p.meanOut += (out - p.meanOut) / p.samples
}

// End the dump. whole: everything inside the sample was read; connections are the exact
// counters of new connections, of service ports that have endpoints; nil: there are none.
func (l *Ledger) End(whole bool, connections iter.Seq2[proxy.PortName, uint64]) {
	if !whole {
		return // cut short: open connections stay what they were
	}
	for i := range l.cells {
		c := &l.cells[i]
		c.open, c.uncounted = c.opening, c.uncounting
	}
	l.sweep()
	if connections != nil {
		for name, n := range connections {
			l.unseen(name, n)
		}
	}
	l.started, l.ended = true, true
	l.recent, l.guessed = l.recent/2, l.guessed/2
}

// sweep forgets flows that are gone. In a sample they may only be out of sight, so they are
// not counted as closed there.
func (l *Ledger) sweep() {
	for key, f := range l.flows {
		if l.number-f.seen < forgetAfter {
			continue
		}
		if f.cell >= 0 && f.flags&outside == 0 && l.scale == 1 {
			l.close(&f, &l.cells[f.cell])
		}
		delete(l.flows, key)
	}
}

// unseen adds connections that began and ended between two dumps without a trace: those
// that were counted, and not seen as flows by the dump after.
func (l *Ledger) unseen(name proxy.PortName, n uint64) {
	at, ok := l.portAt[name]
	if !ok {
		if n == 0 {
			return
		}
		at = l.portIndex(name)
	}
	p := &l.ports[at]
	opened := float64(n - min(p.connections, n))
	seen := p.seen
	first := !p.known && !l.ended
	p.connections, p.known, p.seen = n, true, 0
	if first {
		return
	}
	now := max(p.waiting+opened-seen, 0)
	lost := min(p.waiting, now)
	p.waiting = now - lost
	if lost == 0 || len(p.cells) == 0 {
		return // or nothing is known of its flows
	}
	total := 0.0
	for _, i := range p.cells {
		total += l.cells[i].opened
	}
	in, out := lost*p.meanIn, lost*p.meanOut
	for _, i := range p.cells {
		c := &l.cells[i]
		share := c.opened / total
		if total == 0 {
			share = 1 / float64(len(p.cells))
		}
		c.in, c.out, c.estimated = c.in+in*share, c.out+out*share, c.estimated+(in+out)*share
		c.opened, c.closed = c.opened+lost*share, c.closed+lost*share
	}
	l.recent, l.guessed = l.recent+(in+out)/l.scale, l.guessed+(in+out)/l.scale
}

// place a flow: the index of its cell.
func (l *Ledger) place(e *conntrack.Entry) int32 {
	client, to, endpoint := e.Ends()
	place, ok := l.find.Find(to, endpoint, client)
	if !ok {
		return noCell
	}
	key := cellKey{l.portIndex(place.Port), place.Family, place.Zone, place.Kept}
	at, ok := l.cellAt[key]
	if !ok {
		at = int32(len(l.cells))
		l.cells = append(l.cells, cell{key: key})
		l.cellAt[key] = at
		l.ports[key.port].cells = append(l.ports[key.port].cells, at)
	}
	return at
}

func (l *Ledger) portIndex(name proxy.PortName) int32 {
	at, ok := l.portAt[name]
	if !ok {
		at = int32(len(l.ports))
		l.ports = append(l.ports, port{name: name})
		l.portAt[name] = at
	}
	return at
}

// Compact forgets service ports that are not alive and have no flows.
func (l *Ledger) Compact(alive func(proxy.PortName) bool) {
	used := make([]bool, len(l.ports))
	for i := range l.ports {
		used[i] = alive(l.ports[i].name)
	}
	for _, f := range l.flows {
		if f.cell >= 0 {
			used[l.cells[f.cell].key.port] = true
		}
	}
	was, wasCells := l.ports, l.cells
	l.ports, l.cells = nil, nil
	l.portAt, l.cellAt = map[proxy.PortName]int32{}, map[cellKey]int32{}
	moved := make([]int32, len(wasCells))
	for i, p := range was {
		if !used[i] {
			continue
		}
		at := int32(len(l.ports))
		l.portAt[p.name] = at
		cells := p.cells
		p.cells = nil
		for _, c := range cells {
			one := wasCells[c]
			one.key.port = at
			moved[c] = int32(len(l.cells))
			p.cells = append(p.cells, moved[c])
			l.cellAt[one.key] = moved[c]
			l.cells = append(l.cells, one)
		}
		l.ports = append(l.ports, p)
	}
	for key, f := range l.flows {
		if f.cell >= 0 {
			f.cell = moved[f.cell]
			l.flows[key] = f
		}
	}
}

// Guessed is the part of the bytes of the last dumps that was estimated.
func (l *Ledger) Guessed() float64 {
	if l.recent == 0 {
		return 0
	}
	return l.guessed / l.recent
}

// Uncounted is the number of open connections whose bytes the kernel does not count.
func (l *Ledger) Uncounted() int {
	n := 0.0
	for i := range l.cells {
		n += l.cells[i].uncounted
	}
	return int(n)
}

// Len is the number of flows that are kept.
func (l *Ledger) Len() int { return len(l.flows) }

// Exchanges appends what was counted.
func (l *Ledger) Exchanges(to []Row) []Row {
	for i := range l.cells {
		c := &l.cells[i]
		to = append(to, Row{l.ports[c.key.port].name, proxy.Exchange{
			Family: c.key.family, Zone: c.key.zone, Kept: c.key.kept,
			BytesIn: uint64(c.in), BytesOut: uint64(c.out), Estimated: uint64(c.estimated),
			Opened: uint64(c.opened), Closed: uint64(c.closed), Open: uint64(c.open + 0.5),
		}})
	}
	return to
}

// Row is an exchange of a port.
type Row struct {
	Port proxy.PortName
	proxy.Exchange
}

// keyOf a flow: a keyed hash of its original tuple and ID. Among 100,000 flows two have the
// same with a probability of 3e-10.
func (l *Ledger) keyOf(e *conntrack.Entry) uint64 {
	h := l.hash[0] ^ uint64(e.ID)
	b := e.Tuple
	for len(b) >= 8 {
		h = mix(h^binary.LittleEndian.Uint64(b), l.hash[1])
		b = b[8:]
	}
	tail := uint64(len(e.Tuple)) << 56
	for i, x := range b {
		tail |= uint64(x) << (8 * i)
	}
	return mix(mix(h^tail, l.hash[1]), l.hash[0]|1)
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
