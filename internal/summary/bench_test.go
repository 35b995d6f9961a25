package summary

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// filled is a table of 10,000 Services with three endpoints each, among so many zones, and what it holds. Half of the Services
// have demand.
func filled(b *testing.B, zones int) (*Table, float64) {
	client := resourcetest.New()
	var names []rune
	for i := range zones {
		zone := rune('a' + i)
		names = append(names, zone)
		client.Seed(node("n-"+string(zone), string(zone)))
	}
	const services = 10_000
	for i := range services {
		name := fmt.Sprintf("s%d", i)
		s := slice("shop", name, "")
		for k := range 3 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", k+1)}, Zone: new(string(names[(i+k)%zones]))})
		}
		s.Ports[0].Name = new([]string{"idle", "used"}[i%2])
		client.Seed(service("shop", name, []string{"", "Auto", topology.Adaptive}[i%3]), s)
	}
	demand := &rates{by: map[string]map[locality.Zone]float64{"used": {"a": 3, "b": 2, "c": 1}}}
	world := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
	plans := topology.New(topology.Config{Client: client, Catalog: world, Demand: demand})
	ctx, cancel := context.WithCancel(b.Context())
	b.Cleanup(cancel)
	go func() { _ = world.Run(ctx) }()
	if err := world.WaitSynced(ctx); err != nil {
		b.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	t := New(Config{Catalog: world, Tallier: plans.Tallier()})
	sub := world.Subscribe(kinds...)
	defer sub.Close()
	d, err := sub.Next(ctx)
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	t.mark(&d)
	t.work(ctx, d.After)
	b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-to-fill")
	runtime.GC()
	runtime.ReadMemStats(&after)
	if len(t.rows) != services {
		b.Fatalf("%d rows", len(t.rows))
	}
	return t, float64(after.HeapAlloc-before.HeapAlloc) / services
}

// each number of zones.
func each(b *testing.B, run func(b *testing.B, zones int)) {
	for _, zones := range []int{3, 100} {
		b.Run(fmt.Sprintf("%d zones", zones), func(b *testing.B) { run(b, zones) })
	}
}

// BenchmarkStep is what 10,000 Services cost every 10 s.
func BenchmarkStep(b *testing.B) {
	each(b, func(b *testing.B, zones int) {
		t, bytes := filled(b, zones)
		b.ResetTimer()
		for b.Loop() {
			for t.begin(); len(t.stepping) > 0; {
				t.step()
			}
		}
		b.ReportMetric(bytes, "B/Service")
	})
}

// BenchmarkChange is what a change of one of 10,000 Services costs.
func BenchmarkChange(b *testing.B) {
	each(b, func(b *testing.B, zones int) {
		t, _ := filled(b, zones)
		s := t.config.Catalog.Snapshot()
		b.ResetTimer()
		for b.Loop() {
			t.dirty[resource.Key{Namespace: "shop", Name: "s7"}] = struct{}{}
			t.work(b.Context(), s)
		}
	})
}

// BenchmarkFrame is what a change costs that a viewer sees.
func BenchmarkFrame(b *testing.B) {
	each(b, func(b *testing.B, zones int) {
		t, _ := filled(b, zones)
		s := t.config.Catalog.Snapshot()
		fake := clocktesting.NewFakeClock(time.Now())
		t.clock = fake
		var have Position
		b.ResetTimer()
		for b.Loop() {
			t.dirty[resource.Key{Namespace: "shop", Name: "s7"}] = struct{}{}
			t.work(b.Context(), s)
			t.mu.Lock()
			t.advance() // as if it were another one
			t.mu.Unlock()
			fake.Step(MostGap)
			var err error
			if _, have, _, err = t.Delta(everything, have); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkServices is a page of 10,000 Services, ordered.
func BenchmarkServices(b *testing.B) {
	each(b, func(b *testing.B, zones int) {
		t, _ := filled(b, zones)
		b.ResetTimer()
		for b.Loop() {
			if _, err := t.Services(everything, Query{Sort: "saving", Text: "s1"}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
