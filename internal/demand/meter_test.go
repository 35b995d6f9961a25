package demand

import (
	"iter"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

func portNamed(name string) proxy.PortName {
	return proxy.PortName{ServiceName: proxy.ServiceName{Namespace: "ns", Name: name}, Port: "http"}
}

// counters stand in for a mode's.
type counters map[proxy.PortName]proxy.Counts

func (c counters) all() iter.Seq2[proxy.PortName, proxy.Counts] { return maps.All(c) }

func connections(n uint64) proxy.Counts {
	return proxy.Counts{Connections: n, BytesIn: 10 * n, BytesOut: 100 * n}
}

func traffic(name string, n uint64) Traffic {
	return Traffic{Port: portNamed(name), Connections: n, BytesIn: 10 * n, BytesOut: 100 * n}
}

// meterTest reads and reports on a clock of its own.
type meterTest struct {
	t     *testing.T
	meter *Meter
	now   time.Time
}

func newMeterTest(t *testing.T) *meterTest {
	return &meterTest{t, NewMeter("n1", "run", nil), time.Now()}
}

func (m *meterTest) read(c counters) {
	m.meter.Read(m.now, c.all())
	m.now = m.now.Add(Interval)
}

func (m *meterTest) want(sequence uint64, elapsed time.Duration, traffic ...Traffic) {
	m.t.Helper()
	want := &Report{Node: "n1", Zone: "a", Run: "run", Sequence: sequence, Elapsed: elapsed, Traffic: traffic}
	if want.Traffic == nil {
		want.Traffic = []Traffic{}
	}
	if diff := cmp.Diff(want, m.meter.Next("a")); diff != "" {
		m.t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestMeterReportsWhatIsNew(t *testing.T) {
	m := newMeterTest(t)
	if m.meter.Next("a") != nil {
		t.Error("a report before anything was read")
	}
	m.read(counters{portNamed("old"): connections(1000)})
	if m.meter.Next("a") != nil {
		t.Error("a report after the first read")
	}
	m.read(counters{portNamed("old"): connections(1005), portNamed("new"): connections(3), portNamed("silent"): {}})
	m.want(1, Interval, traffic("new", 3), traffic("old", 5))
	m.meter.Acknowledge(1)
	m.read(counters{portNamed("old"): connections(1005), portNamed("new"): connections(4)})
	m.want(2, Interval, traffic("new", 1))
	m.meter.Acknowledge(2)
	m.read(counters{portNamed("old"): connections(1005), portNamed("new"): connections(4)})
	m.want(3, Interval) // nothing, and it says so
}

func TestMeterKeepsWhatWasNotAcknowledged(t *testing.T) {
	m := newMeterTest(t)
	m.read(counters{})
	m.read(counters{portNamed("x"): connections(1)})
	m.want(1, Interval, traffic("x", 1))
	m.read(counters{portNamed("x"): connections(10)})
	m.read(counters{portNamed("x"): connections(100)})
	m.want(1, Interval, traffic("x", 1)) // as it was: the receiver may have it
	if m.meter.Acknowledge(7) {
		t.Error("a report that was never sent counts as acknowledged")
	}
	if !m.meter.Acknowledge(1) || m.meter.Acknowledge(1) {
		t.Error("the report in hand is acknowledged once")
	}
	m.want(2, 2*Interval, traffic("x", 99))
}

func TestMeterCountersThatGoBack(t *testing.T) {
	m := newMeterTest(t)
	m.read(counters{})
	m.read(counters{portNamed("x"): connections(50)})
	m.meter.Next("a")
	m.meter.Acknowledge(1)
	// Made again: what it has counted by now is given up, the rest counts.
	m.read(counters{portNamed("x"): connections(20)})
	m.want(2, Interval)
	m.meter.Acknowledge(2)
	m.read(counters{portNamed("x"): connections(25)})
	m.want(3, Interval, traffic("x", 5))
	m.meter.Acknowledge(3)
	// One count went back, others did not: nothing of it can be trusted.
	m.read(counters{portNamed("x"): {Connections: 24, BytesIn: 1 << 40, BytesOut: 1 << 40}})
	m.want(4, Interval)
	if s := m.meter.Stats(); s.Restarts != 2 {
		t.Errorf("%d restarts noticed, want 2", s.Restarts)
	}
}

func TestMeterPortThatIsAwayForAWhile(t *testing.T) {
	m := newMeterTest(t)
	m.read(counters{})
	m.read(counters{portNamed("x"): connections(1000), portNamed("y"): connections(1)})
	m.meter.Next("a")
	m.meter.Acknowledge(1)
	for range 1000 {
		m.read(counters{}) // the kernel could not be read for hours
	}
	m.read(counters{portNamed("x"): connections(1001), portNamed("y"): connections(1)})
	m.want(2, 1001*Interval, traffic("x", 1))
	m.meter.Acknowledge(2)
	for range 3 * forgetReads {
		m.read(counters{portNamed("y"): connections(1)}) // x alone is gone, for good
	}
	if n := len(m.meter.last); n != 1 {
		t.Errorf("%d ports are remembered, want 1", n)
	}
}

func TestMeterDrop(t *testing.T) {
	m := newMeterTest(t)
	m.read(counters{})
	m.read(counters{portNamed("x"): connections(3), portNamed("y"): connections(4)})
	m.meter.Next("a")
	if lost := m.meter.Drop(); lost != 7 || m.meter.Drop() != 0 {
		t.Errorf("%d connections dropped, want 7, once", lost)
	}
	m.read(counters{portNamed("x"): connections(4), portNamed("y"): connections(4)})
	m.want(2, Interval, traffic("x", 1))
}

func TestMeterBounds(t *testing.T) {
	m := newMeterTest(t)
	m.read(counters{})
	many := counters{}
	for i := range maxPending + 10 {
		many[proxy.PortName{ServiceName: proxy.ServiceName{Namespace: "ns", Name: string(rune('a'+i%26)) + time.Duration(i).String()}}] = connections(
			1,
		)
	}
	m.read(many)
	sum := uint64(0)
	for range 2 {
		r := m.meter.Next("a")
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		if len(r.Traffic) != MaxPorts {
			t.Errorf("%d ports in a report, want %d", len(r.Traffic), MaxPorts)
		}
		sum += uint64(len(r.Traffic))
		m.meter.Acknowledge(r.Sequence)
		m.read(many)
	}
	if s := m.meter.Stats(); s.Dropped != 10 || s.Pending != 0 || sum != maxPending {
		t.Errorf("%d reported, %+v; want 10 dropped", sum, s)
	}
}
