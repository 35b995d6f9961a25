package topology

import (
	"context"
	"strings"
	"testing"
	"time"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// TestTwelveLongConnections: a Service has nothing but 12 connections that stay open. The plan
// is made for them, and says that they have to be made anew; once they are, they are where the
// plan has them, and nothing is said any more.
func TestTwelveLongConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var agents *demand.Aggregator
		r := newRig(t, func(c *Config) {
			agents = demand.NewAggregator(demand.Config{World: demand.FromCatalog(c.Catalog)})
			c.Demand, c.Warm = agents, agents.Warm
		}, all(equalNodes("abc"), workloads("aabbcc"), one(adaptive()))...)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- agents.Run(ctx) }()
		defer func() { cancel(); <-done }()

		port := proxy.PortName{ServiceName: proxy.ServiceName{Namespace: "shop", Name: "web"}, Port: "http"}
		sequence := uint64(0)
		// minutes in which the clients of zone a have 6 connections, and those of b and c 3 each,
		// in zones that where says, by zone of clients.
		minutes := func(n int, where map[string]map[string]uint64) {
			t.Helper()
			for range n {
				time.Sleep(time.Minute)
				sequence++
				for from, to := range where {
					var x []proxy.Exchange
					for zone, open := range to {
						x = append(x, proxy.Exchange{Zone: locality.Zone(zone), Open: open, BytesIn: 1000 * open, BytesOut: 9000 * open})
					}
					if _, err := agents.Receive(&demand.Report{
						Node: "node-" + from, Zone: locality.Zone(from), Run: "r", Sequence: sequence, Elapsed: time.Minute,
						Traffic:    []demand.Traffic{{Port: port, Exchanges: x}},
						Accounting: demand.Accounting{Quality: proxy.Measured, Covered: time.Minute},
					}); err != nil {
						t.Fatal(err)
					}
				}
				r.settle()
			}
		}
		minutes(40, map[string]map[string]uint64{
			"a": {"a": 2, "b": 2, "c": 2}, "b": {"a": 1, "b": 1, "c": 1}, "c": {"a": 1, "b": 1, "c": 1},
		})
		said := conditionOf(r, ConditionLong)
		if !strings.Contains(said, "12 connections are open") || !strings.Contains(said, "33 % of them stay in their zone") {
			t.Errorf("before they reconnect: %q", said)
		}
		group := list[*plannerv1alpha1.TrafficPlan](r, "TrafficPlan")[0].Spec.Groups[0]
		demands, shares := map[string]float64{}, map[string]float64{}
		for _, z := range group.Zones {
			demands[z.Name] = z.Demand
			for _, to := range z.To {
				if to.Zone == z.Name {
					shares[z.Name] = to.Share
				}
			}
		}
		// (6 + 1) / 15 with the prior of a third of 3 connections.
		if group.DemandSource != plannerv1alpha1.DemandMeasured || demands["a"] < 0.44 || demands["a"] > 0.49 {
			t.Errorf("planned for %v, %s", demands, group.DemandSource)
		}
		if shares["a"] < 0.75 || shares["b"] < 0.99 || shares["c"] < 0.99 {
			t.Errorf("shares that stay in their zone: %v", shares)
		}
		// They are made anew, and follow the plan: 6 of a are 4 or 5 at home.
		minutes(3, map[string]map[string]uint64{"a": {"a": 5, "b": 1}, "b": {"b": 3}, "c": {"c": 3}})
		if said := conditionOf(r, ConditionLong); said != "" {
			t.Errorf("after they reconnected: %q", said)
		}
		report, _ := r.c.Explain(resource.Key{Namespace: "shop", Name: "web"})
		if p := report.Plans[0]; p.Volume == nil || p.Volume.Open != 12 || p.Long != nil {
			t.Errorf("explained as %+v, %+v", p.Volume, p.Long)
		}
	})
}
