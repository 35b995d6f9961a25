package lab_test

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// demandMoves: the load reports of sidecars move the plan of price, and their traffic follows it. All
// of its demand comes from one zone, then from another: that zone can keep what its one endpoint of
// three may take, and the other zones take the rest. A report comes every 10 s, and a plan may be left
// as it is for a minute.
func (s *shop) demandMoves() {
	s.t.Helper()
	price := &shopServices[5]
	for _, zone := range []string{"a", "c"} {
		front := s.file("front-" + zone + "-1.sock")
		stop := s.drive(front, price)
		s.t.Cleanup(stop)
		begin := time.Now()
		var home float64
		waitUntil(s.t, 4*time.Minute, "a plan for the demand of zone-"+zone, func() bool {
			var demand float64
			demand, home = s.planned(price.name, "zone-"+zone)
			return demand > .8 && home < .7
		})
		moved := time.Since(begin)
		var got float64
		waitUntil(s.t, time.Minute, fmt.Sprintf("front-%s sends %.2f of its requests to its own zone", zone, home), func() bool {
			_, home = s.planned(price.name, "zone-"+zone)
			got = s.share(front, price, zone+"-2", 200)
			return math.Abs(got-home) < within(home, 200)
		})
		stop()
		s.t.Logf("demand of zone-%s: after %s the plan keeps %.3f in the zone, and the sidecar %.3f", zone, moved.Round(time.Second), home, got)
	}
}

// planned for a zone: its share of the demand, and what of it stays in the zone.
func (s *shop) planned(service, zone string) (demand, home float64) {
	object, err := s.api.Get(s.t.Context(), kind.TrafficPlan, resource.Key{Namespace: "default", Name: service})
	if err != nil {
		return 0, 1
	}
	for _, g := range object.(*plannerv1alpha1.TrafficPlan).Spec.Groups {
		for _, z := range g.Zones {
			if z.Name != zone {
				continue
			}
			for _, to := range z.To {
				if to.Zone == zone {
					home = to.Share
				}
			}
			return z.Demand, home
		}
	}
	return 0, 1
}

// drive requests to a Service, 25 in a second, until stop is called; none may fail.
func (s *shop) drive(front string, of *shopService) (stop func()) {
	done := make(chan struct{})
	var asking sync.WaitGroup
	var failed atomic.Int64
	asking.Go(func() {
		tick := time.NewTicker(40 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			asking.Go(func() {
				if _, err := s.ask(front, of); err != nil {
					failed.Add(1)
				}
			})
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		asking.Wait()
		if n := failed.Load(); n > 0 {
			s.t.Errorf("%d requests to %s failed while demand moved its plan", n, of.name)
		}
	})
}

// share of n requests that a node answers.
func (s *shop) share(front string, of *shopService, node string, n int) float64 {
	here := 0
	for range n {
		if by, err := s.ask(front, of); err != nil {
			s.t.Errorf("%s: %v", of.name, err)
		} else if by == node {
			here++
		}
	}
	return float64(here) / float64(n)
}
