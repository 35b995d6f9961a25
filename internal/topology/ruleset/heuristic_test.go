package ruleset

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a cluster in a bubble, with all controllers between a rule and a hint. It has
// nodes in zones a, b (region east) and c (west), and a pod in a and two in b.
type rig struct {
	t      *testing.T
	client *resourcetest.Client
	demand *fakeDemand
	plans  *topology.Controller
	world  *catalog.Catalog
}

// fakeDemand by zone, of any port.
type fakeDemand struct {
	mu     sync.Mutex
	shares map[string]float64
}

func (f *fakeDemand) Shares(name proxy.PortName, family proxy.Family, zones []locality.Zone, prior []float64, noNodes []bool) demand.Estimate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shares == nil {
		return topology.Unmeasured{}.Shares(name, family, zones, prior, noNodes)
	}
	e := demand.Estimate{Rate: 10, Measured: true}
	for _, z := range zones {
		e.Shares = append(e.Shares, f.shares[string(z)])
	}
	return e
}

func newRig(t *testing.T, objects ...resource.Object) *rig {
	r := &rig{t: t, client: resourcetest.New(), demand: &fakeDemand{}}
	for _, zone := range []string{"a", "b", "c"} {
		region := map[string]string{"a": "east", "b": "east", "c": "west"}[zone]
		r.client.Seed(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:   "node-" + zone,
				Labels: map[string]string{corev1.LabelTopologyZone: zone, corev1.LabelTopologyRegion: region},
			},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("4")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	for i, zone := range []string{"a", "b", "b"} {
		ip := fmt.Sprintf("10.0.0.%d", i+1)
		r.client.Seed(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint(zone, i), Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: "node-" + zone},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
	}
	r.client.Seed(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u", Annotations: map[string]string{
			corev1.AnnotationTopologyMode: meshv1alpha1.TopologyHeuristicPrefix + "mine",
		}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP}},
		},
	})
	r.client.Seed(objects...)
	r.run()
	return r
}

func (r *rig) run() {
	world := catalog.New(catalog.Config{Client: r.client, Descriptors: resourcetest.Descriptors()})
	rules := New(Config{Catalog: world, Demand: r.demand})
	plans := topology.New(topology.Config{Client: r.client, Catalog: world, Demand: r.demand, Heuristics: rules})
	slicesController := endpointslice.New(endpointslice.Config{Client: r.client, Catalog: world, Slices: kind.EndpointSlice, Advisor: plans})
	r.plans, r.world = plans, world
	ctx, cancel := context.WithCancel(r.t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{world.Run, slicesController.Run, plans.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				r.t.Error(err)
			}
		})
	}
	r.t.Cleanup(func() { cancel(); running.Wait() })
	r.settle()
}

func (r *rig) settle() {
	for range 3 {
		time.Sleep(time.Second)
		synctest.Wait()
	}
}

func ruled(zones string) *meshv1alpha1.TopologyHeuristic {
	return &meshv1alpha1.TopologyHeuristic{
		ObjectMeta: metav1.ObjectMeta{Name: "mine", Generation: 1},
		Spec:       meshv1alpha1.TopologyHeuristicSpec{Zones: zones, Fallback: meshv1alpha1.HeuristicFallbackAll},
	}
}

// change the rule.
func (r *rig) change(zones string) {
	r.t.Helper()
	object, err := r.client.Get(r.t.Context(), kind.TopologyHeuristic, resource.Key{Name: "mine"})
	if err != nil {
		r.t.Fatal(err)
	}
	h := object.(*meshv1alpha1.TopologyHeuristic)
	h.Spec.Zones = zones
	h.Generation++
	if _, err := r.client.Update(r.t.Context(), kind.TopologyHeuristic, h); err != nil {
		r.t.Fatal(err)
	}
	r.settle()
}

func (r *rig) want(what, hints, condition string) {
	r.t.Helper()
	objects, _, err := r.client.List(r.t.Context(), kind.EndpointSlice, resource.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		for _, e := range o.(*discoveryv1.EndpointSlice).Endpoints {
			line := e.TargetRef.Name + ":"
			if e.Hints != nil {
				for _, z := range e.Hints.ForZones {
					line += z.Name
				}
			}
			got = append(got, line)
		}
	}
	slices.Sort(got)
	if text := strings.Join(got, " "); text != hints {
		r.t.Errorf("%s: hints %s, want %s", what, text, hints)
	}
	object, err := r.client.Get(r.t.Context(), kind.Service, resource.Key{Namespace: "shop", Name: "web"})
	if err != nil {
		r.t.Fatal(err)
	}
	c := meta.FindStatusCondition(object.(*corev1.Service).Status.Conditions, topology.ConditionPlan)
	if c == nil || !strings.Contains(fmt.Sprintf("%s: %s", c.Status, c.Message), condition) {
		r.t.Errorf("%s: condition %+v, want %q", what, c, condition)
	}
}

// TestRulesBecomeHints, change with their object, and leave the last result where they fail or go.
func TestRulesBecomeHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ruled(`[endpoint.zone]`))
		r.want("at the start", "a0:ac b1:bc b2:bc", "True: hints are those of heuristic.proxima.dev/mine")
		r.change(`zones.filter(z, z.region == endpoint.region).map(z, z.name)`)
		r.want("changed", "a0:abc b1:abc b2:abc", "True")
		r.change(`endpoint.zone == "a" ? ["a"] : zones.filter(z, z.endpoints == 2 || z.capacity == 0.0).map(z, z.name)`)
		r.want("by capacity", "a0:a b1:bc b2:bc", "True")
		r.change(`[zones[9].name]`)
		r.want(
			"it fails: hints stay",
			"a0:a b1:bc b2:bc",
			"False: topology mode \"heuristic.proxima.dev/mine\" failed, hints are left as they are: topologyheuristic mine: zones of endpoint 10.0.0.1: index out of bounds: 9",
		)
		r.change(`[`)
		r.want(
			"one that an older version took",
			"a0:a b1:bc b2:bc",
			"failed, hints are left as they are: topologyheuristic mine: zones: line 1, column 2: Syntax error",
		)
		if err := r.client.Delete(t.Context(), kind.TopologyHeuristic, resource.Key{Name: "mine"}, resource.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		r.settle()
		r.want("gone: hints stay", "a0:a b1:bc b2:bc", "False: topology mode \"heuristic.proxima.dev/mine\" is not known here")
		r.client.Seed(ruled(`[endpoint.zone]`))
		r.settle()
		r.want("back", "a0:ac b1:bc b2:bc", "True")
	})
}

// weigh is a rule with weights.
func weigh(weight string) *meshv1alpha1.TopologyHeuristic {
	h := ruled("")
	h.Spec.Weight = weight
	return h
}

// reweigh changes the rule's weights.
func (r *rig) reweigh(weight string) {
	r.t.Helper()
	object, err := r.client.Get(r.t.Context(), kind.TopologyHeuristic, resource.Key{Name: "mine"})
	if err != nil {
		r.t.Fatal(err)
	}
	h := object.(*meshv1alpha1.TopologyHeuristic)
	h.Spec.Weight = weight
	h.Generation++
	if _, err := r.client.Update(r.t.Context(), kind.TopologyHeuristic, h); err != nil {
		r.t.Fatal(err)
	}
	r.settle()
}

// wantWeights of a0, b1 and b2 in the view of a zone.
func (r *rig) wantWeights(what, zone, want string) {
	r.t.Helper()
	objects, _, err := r.client.List(r.t.Context(), kind.EndpointSlice, resource.ListOptions{})
	if err != nil || len(objects) != 1 {
		r.t.Fatal(len(objects), err)
	}
	slice := objects[0].(*discoveryv1.EndpointSlice)
	byName := map[string]uint32{}
	for i, w := range trafficplan.Of(r.world.Snapshot(), trafficplan.ServiceOf(slice)).Weights(locality.Zone(zone), slice) {
		byName[slice.Endpoints[i].TargetRef.Name] = w
	}
	if got := fmt.Sprint(byName["a0"], byName["b1"], byName["b2"]); got != want {
		r.t.Errorf("%s: weights for zone %s are %s, want %s", what, zone, got, want)
	}
}

// TestRulesBecomeWeights, of which those that are no good are refused with the reason, and
// the ones before stay.
func TestRulesBecomeWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, weigh(`zone.name == endpoint.zone ? 6 : zone.region == endpoint.region ? 2 : 1`))
		r.want("by distance", "a0:abc b1:abc b2:abc", "True: hints and weights are those of heuristic.proxima.dev/mine")
		r.wantWeights("by distance", "a", "3 1 1")
		r.wantWeights("by distance", "b", "1 3 3")
		r.wantWeights("by distance", "c", "1 1 1")
		for weight, reason := range map[string]string{
			`zone.demand - 1.0`:                      "weight of endpoint 10.0.0.1 for zone a: -0.66",
			`zone.capacity / zone.capacity`:          "weight of endpoint 10.0.0.1 for zone c: NaN, not a number from 0 to 1000000",
			`1.0 / zone.capacity`:                    "weight of endpoint 10.0.0.1 for zone c: +Inf",
			`zone.endpoints - 9223372036854775807*2`: "integer overflow",
			`2000000`:                                "2e+06, not a number from 0 to 1000000",
			`zone.name == "a" ? "1" : "2"`:           "weight: is of type string",
		} {
			r.reweigh(weight)
			r.want(
				weight,
				"a0:abc b1:abc b2:abc",
				"False: topology mode \"heuristic.proxima.dev/mine\" failed, hints are left as they are: topologyheuristic mine: ",
			)
			r.want(weight, "a0:abc b1:abc b2:abc", reason)
			r.want(weight, "a0:abc b1:abc b2:abc", "; the last good weights stay in effect")
			r.wantWeights(weight, "a", "3 1 1")
		}
		r.reweigh(`endpoint.node == "node-b" && zone.name == "a" ? 0 : 5`)
		r.want("0 is no hint", "a0:abc b1:bc b2:bc", "True")
		r.wantWeights("0 is nothing", "a", "1 0 0")
		r.change(`[endpoint.zone]`)
		r.want("both", "a0:ac b1:bc b2:bc", "True")
		r.wantWeights("both, filled", "c", "1 1 1")
	})
}

// TestDemandIsSeen by expressions.
func TestDemandIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.demand.mu.Lock()
		r.demand.shares = map[string]float64{"a": 0.1, "b": 0.2, "c": 0.7}
		r.demand.mu.Unlock()
		r.client.Seed(
			ruled(
				`service.measured && service.rate == 10.0 && service.name == "web" ? zones.filter(z, z.demand > 0.15 && z.live).map(z, z.name) : ["a"]`,
			),
		)
		r.settle()
		r.want("demand", "a0:abc b1:abc b2:abc", "True") // a is filled
		r.change(`zones.filter(z, z.demand < 0.15).map(z, z.name) + (endpoint.node == "node-b" ? ["b", "c"] : [])`)
		r.want("less demand", "a0:a b1:abc b2:abc", "True")
	})
}

func TestFind(t *testing.T) {
	c := New(Config{Catalog: catalog.New(catalog.Config{Client: resourcetest.New()})})
	for _, mode := range []string{"example.com/mine", "heuristic.proxima.dev/mine", "heuristic.proxima.dev/"} {
		if h, ok := c.Find(mode); ok || h != nil {
			t.Errorf("%s was found", mode)
		}
	}
}
