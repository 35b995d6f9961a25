package account

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var web = proxy.PortName{ServiceName: proxy.ServiceName{Namespace: "ns", Name: "web"}, Port: "http"}

// placed puts every flow at one place.
type placed struct{ zone locality.Zone }

func (p placed) Find(conntrack.Frontend, netip.AddrPort, netip.AddrPort) (Place, bool) {
	return Place{Port: web, Zone: p.zone}, true
}

// world is a table of flows by number.
type world struct {
	*testing.T
	ledger *Ledger
	flows  map[uint32]*conntrack.Entry
	// connections is the exact counter.
	connections uint64
}

func newWorld(t *testing.T) *world {
	return &world{T: t, ledger: NewLedger([2]uint64{11, 13}, placed{"zone-b"}), flows: map[uint32]*conntrack.Entry{}}
}

func (w *world) open(id uint32) *conntrack.Entry {
	e := &conntrack.Entry{ID: id, Tuple: binary.BigEndian.AppendUint64(nil, uint64(id)), State: conntrack.Established, Counted: true}
	w.flows[id] = e
	w.connections++
	return e
}

func (w *world) dump() (x proxy.Exchange) {
	w.ledger.Begin(1)
	for _, e := range w.flows {
		w.ledger.Add(e, true)
	}
	w.ledger.End(true, maps.All(map[proxy.PortName]uint64{web: w.connections}))
	return w.now()
}

func (w *world) now() (x proxy.Exchange) {
	for _, row := range w.ledger.Exchanges(nil) {
		x = row.Exchange
	}
	return x
}

func (w *world) want(when string, got, want proxy.Exchange) {
	w.Helper()
	want.Zone = "zone-b"
	if got != want {
		w.Errorf("%s: %+v, want %+v", when, got, want)
	}
}

func TestLedger(t *testing.T) {
	w := newWorld(t)
	old := w.open(1)
	old.In, old.Out = 1e6, 1e6
	w.want("what was before the first dump does not count", w.dump(), proxy.Exchange{Open: 1})
	old.In += 10
	young := w.open(2)
	young.In, young.Out = 100, 1000
	w.want("a new flow counts as a whole", w.dump(), proxy.Exchange{BytesIn: 110, BytesOut: 1000, Opened: 1, Open: 2})
	young.State, young.Out = conntrack.Closed, 1500
	w.want("closed", w.dump(), proxy.Exchange{BytesIn: 110, BytesOut: 1500, Opened: 1, Closed: 1, Open: 1})
	w.want("closed, and still there", w.dump(), proxy.Exchange{BytesIn: 110, BytesOut: 1500, Opened: 1, Closed: 1, Open: 1})
	delete(w.flows, 2)
	w.dump()
	old.In, old.Out = 5, 7
	w.want("counters that another program has set to zero", w.dump(), proxy.Exchange{BytesIn: 115, BytesOut: 1507, Opened: 1, Closed: 1, Open: 1})
	// Missing from one dump, as the table was resized.
	delete(w.flows, 1)
	w.dump()
	w.flows[1] = old
	w.want("back", w.dump(), proxy.Exchange{BytesIn: 115, BytesOut: 1507, Opened: 1, Closed: 1, Open: 1})
	delete(w.flows, 1)
	w.dump()
	w.want("gone", w.dump(), proxy.Exchange{BytesIn: 115, BytesOut: 1507, Opened: 1, Closed: 2})
	if w.ledger.Len() != 0 {
		t.Errorf("%d flows are kept", w.ledger.Len())
	}
}

// TestUnseen: connections that began and ended between two dumps are added at the mean of
// others, and only those; the error is published.
func TestUnseen(t *testing.T) {
	w := newWorld(t)
	w.dump()
	for i := range uint32(10) {
		e := w.open(i)
		e.In, e.Out, e.State = 100, 900, conntrack.Closed
	}
	w.connections += 30 // these left no trace
	w.want("they may be in the part of the table that was read already", w.dump(),
		proxy.Exchange{BytesIn: 1000, BytesOut: 9000, Opened: 10, Closed: 10})
	w.want("they were not", w.dump(), proxy.Exchange{BytesIn: 4000, BytesOut: 36000, Estimated: 30000, Opened: 40, Closed: 40})
	if g := w.ledger.Guessed(); math.Abs(g-0.86) > 0.01 { // 30,000, and half of the 10,000 of the dump before
		t.Errorf("%.2f of the bytes are estimated, want 6 of 7", g)
	}
	w.want("once", w.dump(), proxy.Exchange{BytesIn: 4000, BytesOut: 36000, Estimated: 30000, Opened: 40, Closed: 40})
	// A flow that the dump passed by is seen by the next, and is not estimated.
	late := w.open(99)
	delete(w.flows, 99)
	w.dump()
	w.flows[99] = late
	late.In = 1
	w.want("late", w.dump(), proxy.Exchange{BytesIn: 4001, BytesOut: 36000, Estimated: 30000, Opened: 41, Closed: 40, Open: 1})
	// The mode's counters begin again.
	w.connections = 0
	w.dump()
	w.want("counters from zero", w.dump(), proxy.Exchange{BytesIn: 4001, BytesOut: 36000, Estimated: 30000, Opened: 41, Closed: 40, Open: 1})
}

// TestSample: a part of the flows stands for all.
func TestSample(t *testing.T) {
	w := newWorld(t)
	all := make([]*conntrack.Entry, 1000)
	for i := range all {
		all[i] = w.open(uint32(i))
	}
	read := func() proxy.Exchange {
		w.ledger.Begin(4)
		for i, e := range all[:312] {
			w.ledger.Add(e, i < 250)
		}
		w.ledger.End(true, nil)
		return w.now()
	}
	read()
	for _, e := range all {
		e.In += 100
	}
	w.want("a quarter is read", read(), proxy.Exchange{BytesIn: 100_000, Open: 1000})
	all = all[10:] // ten of the slack come in
	for _, e := range all {
		e.In += 100
	}
	if x := read(); x.BytesIn != 100_000+240*400 {
		t.Errorf("with ten flows that were outside: %+v", x)
	}
}

// TestSavedFlows: a file is taken back whole, in the same life of the table, or not at all.
func TestSavedFlows(t *testing.T) {
	w := newWorld(t)
	e := w.open(1)
	e.In, e.Out = 500, 500
	w.dump()
	dir := t.TempDir()
	file := filepath.Join(dir, "flows")
	if err := os.WriteFile(file+".tmp", bytes.Repeat([]byte("x"), 1000), 0o600); err != nil { // a crash left it
		t.Fatal(err)
	}
	if err := w.ledger.Save(file, 42); err != nil {
		t.Fatal(err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("files %v, %v", all, err)
	}
	next := newWorld(t)
	next.flows, next.connections = w.flows, 1e6 // counted by the process before
	if ok, err := next.ledger.Restore(file, 43); ok || err != nil {
		t.Errorf("of another life: %v, %v", ok, err)
	}
	if ok, err := next.ledger.Restore(file, 42); !ok || err != nil {
		t.Fatalf("%v, %v", ok, err)
	}
	e.In += 70
	next.want("goes on", next.dump(), proxy.Exchange{BytesIn: 70, Open: 1})
	next.want("counters of before are no connections that were not seen", next.dump(), proxy.Exchange{BytesIn: 70, Open: 1})
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range whole {
		l := NewLedger([2]uint64{1, 3}, placed{})
		if ok, err := l.restore(bytes.NewReader(whole[:cut]), 42); ok || err == nil || l.Len() != 0 {
			t.Fatalf("%d bytes of %d were taken: %v, %v", cut, len(whole), ok, err)
		}
	}
}

func FuzzRestore(f *testing.F) {
	w := NewLedger([2]uint64{1, 3}, placed{})
	w.flows[7] = flow{in: 1, out: 2}
	file := filepath.Join(f.TempDir(), "flows")
	if err := w.Save(file, 42); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		l := NewLedger([2]uint64{1, 3}, placed{})
		if ok, err := l.restore(bytes.NewReader(b), 42); ok == (err != nil) && ok {
			t.Errorf("taken with %v", err)
		}
	})
}

// TestCompact: a Service port that is gone is forgotten once its flows are.
func TestCompact(t *testing.T) {
	w := newWorld(t)
	w.open(1)
	w.dump()
	dead := func(proxy.PortName) bool { return false }
	w.ledger.Compact(dead)
	if x := w.now(); x.Open != 1 {
		t.Errorf("with a flow: %+v", x)
	}
	w.flows[1].In = 50
	if x := w.dump(); x.BytesIn != 50 {
		t.Errorf("counted on: %+v", x)
	}
	delete(w.flows, 1)
	w.dump()
	w.dump()
	w.ledger.Compact(dead)
	if rows := w.ledger.Exchanges(nil); len(rows) != 0 {
		t.Errorf("without: %+v", rows)
	}
}

// TestSteadyStateAllocatesNothing with all flows known.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	w := newWorld(t)
	for i := range uint32(1000) {
		w.open(i)
	}
	w.dump()
	entries := make([]*conntrack.Entry, 0, len(w.flows))
	for _, e := range w.flows {
		entries = append(entries, e)
	}
	n := testing.AllocsPerRun(20, func() {
		w.ledger.Begin(1)
		for _, e := range entries {
			e.In++
			w.ledger.Add(e, true)
		}
		w.ledger.End(true, nil)
	})
	if n != 0 {
		t.Errorf("%v allocations for a dump", n)
	}
}
