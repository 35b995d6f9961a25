package demand

import (
	"fmt"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// What 10,000 services cost: each benchmark is what has to be done every 10 s, so
// 1 % of a core is 100 ms.

func manyCounters(n int) counters {
	c := counters{}
	for i := range n {
		c[portNamed(fmt.Sprint("service-", i))] = connections(uint64(i))
	}
	return c
}

// BenchmarkMeter reads 10,000 service ports of which every one has new traffic, and
// makes a report.
func BenchmarkMeter(b *testing.B) {
	c := manyCounters(10_000)
	m, now := NewMeter("n", "r", nil), time.Now()
	m.Read(now, c.all())
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		for name, n := range c {
			n.Connections++
			c[name] = n
		}
		b.StartTimer()
		now = now.Add(Interval)
		m.Read(now, c.all())
		if r := m.Next("a"); len(r.Traffic) != len(c) {
			b.Fatal(len(r.Traffic))
		}
		m.Acknowledge(m.sequence)
	}
}

// BenchmarkAggregator takes one interval's reports of some agents and steps.
func BenchmarkAggregator(b *testing.B) {
	for _, size := range []struct{ agents, perAgent, zones int }{{3, 10_000, 3}, {100, 1_000, 3}, {1_000, 50, 3}, {100, 1_000, 50}} {
		b.Run(fmt.Sprintf("agents=%d/each=%d/zones=%d", size.agents, size.perAgent, size.zones), func(b *testing.B) {
			w := &fakeWorld{nodes: map[string]locality.Zone{}}
			a, now := NewAggregator(Config{World: w}), time.Now()
			a.step(now)
			reports := make([]*Report, size.agents)
			for i := range reports {
				r := &Report{Node: fmt.Sprint("n", i), Zone: locality.Zone(fmt.Sprint("z", i%size.zones)), Run: "r", Elapsed: Interval}
				w.nodes[r.Node] = r.Zone
				for k := range size.perAgent {
					r.Traffic = append(r.Traffic, traffic(fmt.Sprint("service-", (i*size.perAgent+k)%10_000), uint64(100+k%7)))
				}
				reports[i] = r
			}
			b.ReportAllocs()
			for b.Loop() {
				for _, r := range reports {
					r.Sequence++
					if _, err := a.receive(now, r); err != nil {
						b.Fatal(err)
					}
				}
				now = now.Add(Interval)
				a.step(now)
			}
			if len(a.ports) != 10_000 {
				b.Fatalf("%d ports", len(a.ports))
			}
		})
	}
}
