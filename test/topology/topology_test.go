package topology

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/endpointslice/topologycache"
	"k8s.io/endpointslice/trafficdist"
	"k8s.io/klog/v2"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
)

// service is the key under which the library remembers. Services are reconciled
// for one address type at a time, but share one memory of being hinted.
const service = "default/web"

func cases() int {
	if os.Getenv("PROXIMA_SOAK") == "1" {
		return 100_000
	}
	return 5_000
}

func sameHints(a, b *auto.Hints) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.Equal(a.ForZones, b.ForZones) && slices.Equal(a.ForNodes, b.ForNodes)
}

// cacheOf is a cache of the library in a state, rebuilt as runs change it.
func cacheOf(nodes []*corev1.Node, hinted bool, allocated map[locality.Zone]int) *topologycache.TopologyCache {
	cache := topologycache.NewTopologyCache()
	cache.SetNodes(klog.Logger{}, nodes)
	if hinted {
		theirs := topologycache.EndpointZoneInfo{}
		for zone, n := range allocated {
			theirs[string(zone)] = n
		}
		cache.SetHints(service, discovery.AddressTypeIPv6, theirs)
	}
	return cache
}

// run is what the library does in a situation.
func run(s situation, nodes []*corev1.Node, hinted bool) (outcome, []*topologycache.EventBuilder, bool) {
	cache := cacheOf(nodes, hinted, nil)
	created, updated, events := cache.AddHints(klog.Logger{}, s.info(service, discovery.AddressTypeIPv4))
	return s.collect(created, updated), events, cache.HasPopulatedHints(service)
}

// choices is what the library leaves to the order of a map: of the endpoints that are
// moved away, which goes to which receiving zone. Any is possible as long as no zone
// gets more than it should, which is the most it was seen to get. (If endpoints of
// unchanged slices are missing to give, zones get less, and it is random which.)
type choices struct{ most map[locality.Zone]int }

// allow says whether our outcome is another choice of the same: everything else is
// equal, and so is the set of endpoints moved. want is what the library did this time.
func (c *choices) allow(s situation, ours, want outcome) bool {
	if c.most == nil {
		c.most = map[locality.Zone]int{}
	}
	same := slices.Equal(ours.write, want.write)
	got, theirs := map[locality.Zone]int{}, map[locality.Zone]int{}
	for i, slice := range s.slices {
		for k, e := range slice.Endpoints {
			x, y := ours.hints[i][k], want.hints[i][k]
			if s.states[i] == auto.Unchanged && !want.write[i] {
				same = same && sameHints(x, y)
				continue
			}
			if moved(e, x) && moved(e, y) {
				got[x.ForZones[0]]++
				theirs[y.ForZones[0]]++
			} else {
				same = same && sameHints(x, y)
			}
		}
	}
	if !same {
		return false
	}
	for zone, n := range theirs {
		c.most[zone] = max(c.most[zone], n)
	}
	for zone, n := range got {
		if n > c.most[zone] {
			return false
		}
	}
	return true
}

func moved(e discovery.Endpoint, h *auto.Hints) bool {
	return h != nil && len(h.ForZones) == 1 && len(h.ForNodes) == 0 && e.Zone != nil && h.ForZones[0] != locality.Zone(*e.Zone)
}

// TestAuto: same hints, same refusals, same events, over services that change
// step by step. The library's choices between equal zones are random, so it may take
// more than one run until it makes ours.
func TestAuto(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	messages := map[string]int{}
	retried := 0
	for done := 0; done < cases(); {
		zones := 1 + r.IntN(5)
		nodes, s, hinted := randomNodes(r, zones), randomSlices(r, zones), false
		for range 5 {
			ratios := auto.RatiosOf(nodesOf(nodes))
			got := auto.Decide(ratios, auto.Request{Slices: s.request(), AddressType: "IPv4", Hinted: hinted})
			const tries = 100_000 // rare choices: a dozen coins that all fall the same way
			var others choices
			for try := 0; ; try++ {
				want, events, wantHinted := run(s, nodes, hinted)
				checkEvents(t, got.Event, events)
				if wantHinted != got.Hinted {
					t.Fatalf("hinted %v, not %v", got.Hinted, wantHinted)
				}
				if others.allow(s, s.ours(got), want) {
					break
				}
				if try == 0 {
					retried++
				}
				if try == tries || !got.Hinted {
					t.Fatalf("case %d: no outcome of the library is ours\nratios %v\n%s", done, ratios, cmp.Diff(want.hints, got.Hints))
				}
			}
			if got.Event != nil {
				messages[got.Event.Message[:20]]++
			} else {
				messages["(none)"]++
			}
			checkOverloaded(t, r, got.Allocated, zones)
			s.apply(outcome{hints: got.Hints})
			hinted = got.Hinted
			done++
			s = s.evolve(r, zones)
			if r.IntN(3) == 0 {
				nodes = randomNodes(r, zones)
			}
		}
	}
	t.Logf("%d cases, %d with choices made again; events %v", cases(), retried, messages)
	if len(messages) < 6 {
		t.Errorf("not every kind of outcome was met: %v", messages)
	}
}

func checkEvents(t *testing.T, got *auto.Event, want []*topologycache.EventBuilder) {
	t.Helper()
	var ours []*topologycache.EventBuilder
	if got != nil {
		kind := corev1.EventTypeNormal
		if got.Warning {
			kind = corev1.EventTypeWarning
		}
		ours = append(ours, &topologycache.EventBuilder{EventType: kind, Reason: got.Reason, Message: got.Message})
	}
	if diff := cmp.Diff(want, ours); diff != "" && len(want)+len(ours) > 0 {
		t.Fatal(diff)
	}
}

// checkOverloaded: a change of nodes requires another evaluation of the same services.
func checkOverloaded(t *testing.T, r *rand.Rand, allocated map[locality.Zone]int, zones int) {
	t.Helper()
	nodes := randomNodes(r, zones)
	cache := cacheOf(nodes, len(allocated) > 0, allocated)
	want := slices.Contains(cache.GetOverloadedServices(), service)
	if got := auto.Overloaded(allocated, auto.RatiosOf(nodesOf(nodes)), 0); got != want {
		t.Fatalf("overloaded %v, not %v: %v", got, want, allocated)
	}
}

// TestTrafficDistribution: the same hints and writes, always.
func TestTrafficDistribution(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for range cases() {
		zones := 1 + r.IntN(5)
		s := randomSlices(r, zones)
		value := []string{"", "PreferClose", "PreferSameZone", "PreferSameNode", "PreferElse"}[r.IntN(5)]
		var distribution *string
		if value != "" {
			distribution = &value
		}
		si := s.info(service, discovery.AddressTypeIPv4)
		created, updated, _ := trafficdist.ReconcileHints(distribution, si.ToCreate, si.ToUpdate, si.Unchanged)
		want, got := s.collect(created, updated), s.ours(auto.Distribute(auto.Distribution(value), s.request()))
		if diff := cmp.Diff(want.hints, got.hints, cmpopts.EquateEmpty()); diff != "" || !slices.Equal(want.write, got.write) {
			t.Fatalf("%q: written %v, not %v\n%s", value, got.write, want.write, diff)
		}
	}
}
