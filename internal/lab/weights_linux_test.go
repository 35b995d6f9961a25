package lab_test

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// TestWeights: from spec.weight of a Dataplane to the connections that its workload gets, in
// each mode, with and without a plan, and as it warms up. PROXIMA_SOAK=1 counts 20,000
// connections in place of 2,000, and warms up for 30 s in place of 10; PROXIMA_PLOT=FILE writes
// the ramp that was measured in the mode nftables.
func TestWeights(t *testing.T) {
	n, ramp := 2_000, 10*time.Second
	if os.Getenv("PROXIMA_SOAK") != "" {
		n, ramp = 20_000, 30*time.Second
	}
	for _, mode := range []string{"nftables", "iptables", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			m := openMarket(t, mode)
			m.weigh(t, n)
			m.weighPlanned(t, n)
			if mode == "nftables" {
				m.warmUp(t, ramp)
			}
			if len(m.failed) > 0 {
				t.Errorf("%d requests failed: %q", len(m.failed), m.failed[:min(5, len(m.failed))])
			}
		})
	}
}

// seller is an endpoint: its zone, and the last byte of its address.
type seller struct{ zone, at byte }

// counts of who answered, by the zone of the client.
type counts [3]map[seller]int

func (c counts) all() map[seller]int {
	sum := map[seller]int{}
	for _, from := range c {
		for who, n := range from {
			sum[who] += n
		}
	}
	return sum
}

// count who answers so many connections, made from the clients of all zones in turn.
func (s *stall) count(t *testing.T, n int) (got counts) {
	t.Helper()
	for zone := range got {
		got[zone] = map[seller]int{}
	}
	var mu sync.Mutex
	var next atomic.Int64
	var dialing sync.WaitGroup
	for range 16 {
		dialing.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				who, err := s.meet(t, i%len(got))
				if err != nil {
					s.fail(i%len(got), err)
					continue
				}
				mu.Lock()
				got[i%len(got)][who]++
				mu.Unlock()
			}
		})
	}
	dialing.Wait()
	return got
}

// meet the endpoint that a new connection goes to.
func (s *stall) meet(t *testing.T, from int) (who seller, err error) {
	c, err := s.dial(t.Context(), from)
	if err != nil {
		return who, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if err := binary.Write(c, binary.BigEndian, uint32(2)); err != nil {
		return who, err
	}
	var body [2]byte
	_, err = io.ReadFull(c, body[:])
	return seller{body[0], body[1]}, err
}

// within is how far a share of n connections may be from what it is to be: a point, and three
// standard errors of random picks.
func within(share float64, n int) float64 { return .01 + 3*math.Sqrt(share*(1-share)/float64(n)) }

// checkShares of those who answered.
func checkShares(t *testing.T, what string, got map[seller]int, want map[seller]float64) {
	t.Helper()
	n := 0
	for who, k := range got {
		if n += k; want[who] == 0 {
			t.Errorf("%s: %v got %d connections, want none", what, who, k)
		}
	}
	for who, share := range want {
		is := float64(got[who]) / float64(n)
		if n == 0 || math.Abs(is-share) > within(share, n) {
			t.Errorf("%s: %v got %.4f of %d connections, want %.4f ± %.4f", what, who, is, n, share, within(share, n))
		} else {
			t.Logf("%s: %v got %.4f of %d connections, want %.4f", what, who, is, n, share)
		}
	}
}

// served by those that the client of each zone is to see, and by all of them.
func (s *stall) servedBy(t *testing.T, want func(zone int) []seller) {
	t.Helper()
	testkit.Eventually(t, s.name+" is served by whom it should be", func() bool {
		for zone := range s.places {
			got, all := map[seller]bool{}, want(zone)
			for range 100 {
				who, err := s.meet(t, zone)
				if err != nil || !slices.Contains(all, who) {
					return false
				}
				if got[who] = true; len(got) == len(all) && len(all) > 1 {
					break
				}
			}
			if len(got) != len(all) {
				return false
			}
		}
		return true
	})
}

// setWeight of a Dataplane.
func (m *market) setWeight(t *testing.T, name string, weight int32) {
	t.Helper()
	object, err := m.api.Get(t.Context(), kind.Dataplane, resource.Key{Namespace: "default", Name: name})
	if err == nil {
		object.(*meshv1alpha1.Dataplane).Spec.Weight = &weight
		_, err = m.api.Update(t.Context(), kind.Dataplane, object)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// join a Service with an endpoint of a weight.
func (s *stall) join(t *testing.T, zone int, weight int32) (dataplane string, who seller) {
	t.Helper()
	dataplane = s.add(t, zone, weight, 0)
	return dataplane, seller{byte(zone), s.places[zone].last.As4()[3]}
}

// weigh: 5 beside 95, and after a change 95 beside 5, seen by clients of all zones.
func (m *market) weigh(t *testing.T, n int) {
	t.Helper()
	s := m.open("canary", map[string]string{corev1.AnnotationTopologyMode: "Disabled"})
	fresh, a := s.join(t, 0, 5)
	old, b := s.join(t, 1, 95)
	s.served(t, 2, true)
	checkShares(t, "5/95", s.count(t, n).all(), map[seller]float64{a: .05, b: .95})

	// Weight 0 gets nothing, which shows that a change is at every agent.
	m.setWeight(t, old, 0)
	s.servedBy(t, func(int) []seller { return []seller{a} })
	m.setWeight(t, old, 5)
	s.servedBy(t, func(int) []seller { return []seller{a, b} })
	m.setWeight(t, fresh, 0)
	s.servedBy(t, func(int) []seller { return []seller{b} })
	m.setWeight(t, fresh, 95)
	s.servedBy(t, func(int) []seller { return []seller{a, b} })
	checkShares(t, "95/5", s.count(t, n).all(), map[seller]float64{a: .95, b: .05})
}

// weighPlanned: a plan's share for a zone is divided by the weights of the endpoints there. So
// lightly used endpoints keep the traffic of their zone, wherever demand is.
func (m *market) weighPlanned(t *testing.T, n int) {
	t.Helper()
	s := m.open("planned", map[string]string{corev1.AnnotationTopologyMode: topology.Adaptive, topology.AnnotationUtilisation: "0.2"})
	var few, most [3]seller
	for zone := range m.places {
		_, few[zone] = s.join(t, zone, 5)
		_, most[zone] = s.join(t, zone, 95)
	}
	s.served(t, 2*len(m.places), true)
	s.servedBy(t, func(zone int) []seller { return []seller{few[zone], most[zone]} })
	for zone, got := range s.count(t, n) {
		checkShares(t, "planned, "+m.places[zone].zone, got, map[seller]float64{few[zone]: .05, most[zone]: .95})
	}
}

// warming is a sample of the ramp: what an endpoint got of so many connections, that many
// seconds after it became ready.
type warming struct {
	Second float64 `json:"second"`
	Share  float64 `json:"share"`
	Of     int     `json:"of"`
}

// warmUp: a third endpoint gets a tenth of its weight first, and another one in each tenth of
// the ramp.
func (m *market) warmUp(t *testing.T, ramp time.Duration) {
	t.Helper()
	const steps, batch = 10, 150
	s := m.open("warm", map[string]string{corev1.AnnotationTopologyMode: "Disabled", kind.AnnotationWarmUp: ramp.String()})
	s.age = time.Hour
	s.join(t, 0, 100)
	s.join(t, 1, 100)
	s.served(t, 2, true)
	s.age = 0
	_, third := s.join(t, 2, 100)
	began := s.ready
	var samples []warming
	var of, to [steps + 1]int
	for tick := time.NewTicker(300 * time.Millisecond); time.Since(began) < ramp*11/steps; <-tick.C {
		at := time.Since(began)
		n := s.count(t, batch).all()[third]
		samples = append(samples, warming{Second: math.Round(100*at.Seconds()) / 100, Share: math.Round(1e4*float64(n)/batch) / 1e4, Of: batch})
		// Of one step of the ramp; in the first, it takes a moment until agents know the endpoint.
		if step := int(at * steps / ramp); step == int(time.Since(began)*steps/ramp) {
			of[min(step, steps)] += batch
			to[min(step, steps)] += n
		}
	}
	judged := 0
	for step := range of {
		if of[step] == 0 {
			continue // a busy machine made no sample within it
		}
		judged++
		weight := float64(min(step+1, steps)) * 100 / steps
		want := weight / (200 + weight)
		if is := float64(to[step]) / float64(of[step]); math.Abs(is-want) > within(want, of[step])+.01 {
			t.Errorf("warm-up, step %d: %.4f of %d connections, want %.4f", step, is, of[step], want)
		}
	}
	if judged < steps/2 {
		t.Errorf("warm-up: %d steps have samples, want at least %d", judged, steps/2)
	}
	if file := os.Getenv("PROXIMA_PLOT"); file != "" {
		data, err := json.MarshalIndent(samples, "", " ")
		if err == nil {
			err = os.WriteFile(file, data, 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
}
