package topology

import (
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/proxima-mesh/proxima/internal/planner/auto"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// weigher gives endpoints a weight in their own zone, and another elsewhere; hints say the
// same. Zones in without get none.
type weigher struct {
	mu         sync.Mutex
	home, away float64
	without    string
	err        error
	hintsAlone bool
	asked      int
}

func (f *weigher) set(edit func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit()
}

func (f *weigher) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

func (f *weigher) Decide(q Question) (Decision, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	d := Decision{}
	for _, e := range q.Endpoints {
		weights, hints := make([]float64, len(q.Zones)), &auto.Hints{}
		for z, zone := range q.Zones {
			switch {
			case f.without != "" && strings.Contains(f.without, string(zone.Name)):
			case zone.Name == e.Zone:
				weights[z] = f.home
			default:
				weights[z] = f.away
			}
			if weights[z] > 0 {
				hints.ForZones = append(hints.ForZones, zone.Name)
			}
		}
		d.Hints, d.Weights = append(d.Hints, hints), append(d.Weights, weights)
	}
	if f.hintsAlone {
		d.Weights = nil
	}
	return d, f.err
}

const weighing = "example.com/Weigher"

func weighed(h *weigher) func(*Config) {
	return func(c *Config) { c.Heuristics = Registry{weighing: h} }
}

// TestWeightsOfHeuristics reach agents, at once with the endpoints that they are for; a
// weight of 0 is none of the zone's connections.
func TestWeightsOfHeuristics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &weigher{home: 3, away: 1}
		r := newRig(t, weighed(h), all(equalNodes("abc"), workloads("aabc"), one(web(mode, weighing)))...)
		r.wantHints("asked", "a1:abc a2:abc b1:abc c1:abc")
		r.wantPercents("asked", "a", "a 75.0 b 12.5 c 12.5")
		r.wantPercents("asked", "b", "a 33.3 b 50.0 c 16.7")
		r.wantCondition("asked", ConditionPlan, "True Heuristic: hints and weights are those of example.com/Weigher")

		before := time.Now()
		asked := h.count()
		r.client.Seed(workload("b2", "b", 9, true))
		if got := r.percentsNow("b"); got != "a 22.2 b 66.7 c 11.1" || time.Since(before) != 0 {
			t.Errorf("one more: from b goes %s after %v", got, time.Since(before))
		}
		if h.count() == asked {
			t.Error("the heuristic was not asked about the new endpoint")
		}
		r.settle()

		h.set(func() { h.away = 0 })
		r.heuristicChanged(weighing)
		r.settle()
		r.wantPercents("0 is none", "b", "b 100.0")
		r.wantHints("0 is no hint", "a1:a a2:a b1:b b2:b c1:c")

		h.set(func() { h.home, h.away, h.without = 1, 2, "c" })
		r.heuristicChanged(weighing)
		r.settle()
		r.wantPercents("a zone without weights goes by hints, which are for others", "c", "a 40.0 b 40.0 c 20.0")
		r.wantPercents("others are not concerned", "a", "a 25.0 b 50.0 c 25.0")

		r.annotate(mode, "")
		r.wantPercents("no mode, no weights", "a", "a 40.0 b 40.0 c 20.0")
	})
}

// TestGoodWeightsStay where the heuristic fails, as long as they know every endpoint.
func TestGoodWeightsStay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &weigher{home: 3, away: 1}
		r := newRig(t, weighed(h), all(equalNodes("ab"), workloads("ab"), one(web(mode, weighing)))...)
		r.wantPercents("good", "a", "a 75.0 b 25.0")
		h.set(func() { h.home = math.NaN() })
		r.heuristicChanged(weighing)
		r.settle()
		r.wantPercents("no number", "a", "a 75.0 b 25.0")
		const failed = "False Heuristic: topology mode \"example.com/Weigher\" failed, hints are left as they are: "
		r.wantCondition("no number", ConditionPlan,
			failed+"endpoint 0: weight NaN for zone a, not a number from 0 to 1e+09, addressType: IPv4; the last good weights stay in effect")
		h.set(func() { h.err = errors.New("out of ideas") })
		r.seed(node("node-c", "c"))
		r.wantPercents("an error, and a new zone", "a", "a 75.0 b 25.0")
		r.wantPercents("an error: a new zone goes by hints", "c", "a 50.0 b 50.0")

		r.seed(workload("b2", "b", 9, true))
		r.wantPercents("an endpoint that they do not know", "a", "a 33.3 b 66.7")
		r.wantCondition("and says so", ConditionPlan, failed+"out of ideas, addressType: IPv4")
		h.set(func() { h.err, h.home = nil, 3 })
		r.heuristicChanged(weighing)
		r.settle()
		r.wantPercents("it works again", "a", "a 60.0 b 40.0")
		h.set(func() { h.hintsAlone = true })
		r.heuristicChanged(weighing)
		r.settle()
		r.wantPercents("it gives no weights any more", "a", "a 33.3 b 66.7")
		r.wantCondition("it gives none", ConditionPlan, "True Heuristic: hints are those of example.com/Weigher")
	})
}

// TestWeightsOfOthersSlices: a Service without a selector, whose slices a user wrote.
func TestWeightsOfOthersSlices(t *testing.T) {
	bubble(t, func(t *testing.T) {
		service := web(mode, weighing)
		service.Spec.Selector = nil
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "mine", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, Zone: ptr.To("a")},
				{Addresses: []string{"10.0.0.2"}, Zone: ptr.To("b")}},
		}
		h := &weigher{home: 4, away: 1}
		r := newRig(t, weighed(h), all(equalNodes("ab"), []resource.Object{service, slice})...)
		r.wantPercents("weights", "a", "a 80.0 b 20.0")
		r.wantCondition("weights", ConditionPlan,
			"True Heuristic: weights are those of example.com/Weigher; another controller manages its EndpointSlices, and decides about hints")
		h.set(func() { h.hintsAlone = true })
		r.heuristicChanged(weighing)
		r.settle()
		r.wantCondition("no weights", ConditionPlan,
			"False Heuristic: example.com/Weigher gives no weights, and another controller manages its EndpointSlices, and decides about hints")
		r.wantPercents("no weights", "a", "a 50.0 b 50.0")
	})
}

// TestHeuristicsAreEvaluatedOnce for each change of their input.
func TestHeuristicsAreEvaluatedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &weigher{home: 3, away: 1}
		r := newRig(t, weighed(h), all(equalNodes("ab"), workloads("ab"), one(web(mode, weighing)))...)
		r.seed(workload("b2", "b", 9, true))
		r.wantPercents("it follows", "a", "a 60.0 b 40.0")
		asked := h.count()
		time.Sleep(time.Minute)
		if n := h.count() - asked; n != 0 {
			t.Errorf("asked %d times though nothing changed", n)
		}
	})
}

// TestRestartKeepsWeights: the first view of a new process has them.
func TestRestartKeepsWeights(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &weigher{home: 3, away: 1}
		r := newRig(t, weighed(h), all(equalNodes("ab"), workloads("ab"), one(web(mode, weighing)))...)
		r.stop()
		slice := list[*discoveryv1.EndpointSlice](r, "EndpointSlice")[0]
		snapshot := snapshotOfClient(t, r.client)
		if weights := trafficplan.Of(snapshot, webKey).Weights("a", slice); !slices.Equal(weights, []uint32{3, 1}) {
			t.Errorf("weights %v", weights)
		}
		writes := 0
		r.client.Intercept(func(call resourcetest.Call) error {
			if call.Kind.Kind == "TrafficPlan" && call.Verb != resourcetest.List && call.Verb != resourcetest.Watch {
				writes++
			}
			return nil
		})
		r.start(weighed(h))
		if writes != 0 {
			t.Errorf("%d writes of plans by a restart", writes)
		}
	})
}
