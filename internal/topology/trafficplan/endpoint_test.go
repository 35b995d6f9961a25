package trafficplan

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// weighted is a slice whose endpoints are Dataplanes, and these. A negative weight names none.
func weighted(zones string, weights ...int32) (*discoveryv1.EndpointSlice, []*meshv1alpha1.Dataplane) {
	s := slice("s", "http", zones)
	var out []*meshv1alpha1.Dataplane
	for i, w := range weights {
		d := &meshv1alpha1.Dataplane{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: s.Endpoints[i].Addresses[0], Labels: map[string]string{"app": "web"},
		}}
		if w >= 0 {
			d.Spec.Weight = ptr.To(w)
		}
		s.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Dataplane", Namespace: "shop", Name: d.Name}
		out = append(out, d)
	}
	return s, out
}

func objects(dataplanes []*meshv1alpha1.Dataplane, others ...resource.Object) []resource.Object {
	for _, d := range dataplanes {
		others = append(others, d)
	}
	return others
}

// TestOwnWeights: without a plan endpoints have the weights of their Dataplanes; with one
// the share of each zone is divided by them.
func TestOwnWeights(t *testing.T) {
	half := plan(shares(zone("a", "a .75 b .25"), zone("b", "b 1")))
	for name, tc := range map[string]struct {
		zones   string
		weights []int32
		own     []uint32
		// fromA are the parts of the connections from zone a, with the plan, in thousandths.
		fromA []int
	}{
		"all alike":           {zones: "aab", weights: []int32{-1, 100, -1}, fromA: []int{375, 375, 250}},
		"one is tried":        {zones: "aab", weights: []int32{5, 95, -1}, own: []uint32{5, 95, 100}, fromA: []int{38, 712, 250}},
		"in another zone":     {zones: "abb", weights: []int32{-1, 5, 95}, own: []uint32{100, 5, 95}, fromA: []int{750, 12, 238}},
		"1 beside 1000":       {zones: "ab", weights: []int32{1, 1000}, own: []uint32{1, 1000}, fromA: []int{750, 250}},
		"one is not ready":    {zones: "aAb", weights: []int32{100, 5, 100}, fromA: []int{750, 0, 250}},
		"weights of a zone":   {zones: "aab", weights: []int32{10, 30, 7}, own: []uint32{10, 30, 7}, fromA: []int{188, 562, 250}},
		"0 is published as 1": {zones: "ab", weights: []int32{0, -1}, own: []uint32{1, 100}, fromA: []int{750, 250}},
	} {
		s, dataplanes := weighted(tc.zones, tc.weights...)
		p := Of(snapshot(t, objects(dataplanes, s)...), webKey)
		if got := p.Own(s); !slices.Equal(got, tc.own) {
			t.Errorf("%s: own weights %v, want %v", name, got, tc.own)
		}
		if p.Weights("a", s) != nil {
			t.Errorf("%s: a plan without one", name)
		}
		got := Of(snapshot(t, objects(dataplanes, s, half)...), webKey).Weights("a", s)
		sum := uint32(0)
		for _, w := range got {
			sum += w
		}
		for i, w := range got {
			if part := float64(w) / float64(sum) * 1000; part < float64(tc.fromA[i])-1 || part > float64(tc.fromA[i])+1 {
				t.Errorf("%s: endpoint %d gets %.1f of 1000 connections from zone a, want %d (weights %v)", name, i, part, tc.fromA[i], got)
			}
		}
	}
}

// TestWorkloadsOfOneAddress: workloads of one machine differ by their ports alone, and are in
// slices of their own.
func TestWorkloadsOfOneAddress(t *testing.T) {
	s, dataplanes := weighted("a", 95)
	other, more := weighted("a", 5)
	other.Name, more[0].Name, other.Endpoints[0].TargetRef.Name = "other", "other", "other"
	world := snapshot(t, objects(append(dataplanes, more...), s, other)...)
	p := Of(world, webKey)
	if a, b := p.Own(s), p.Own(other); !slices.Equal(a, []uint32{95}) || !slices.Equal(b, []uint32{5}) {
		t.Errorf("weights %v and %v, want 95 and 5", a, b)
	}
	if g := Groups([]Part{PartOf(world, s), PartOf(world, other)})[0]; g.Endpoints["a"] != 2 || g.Weights["a"] != 100 {
		t.Errorf("%d endpoints of weight %d, want 2 of 100", g.Endpoints["a"], g.Weights["a"])
	}
}

// TestGroupsWeigh: the planner gets sums of weights, and only where weights differ from the
// default.
func TestGroupsWeigh(t *testing.T) {
	for want, weights := range map[string][]int32{"": {-1, 100, -1}, "a 105 b 95": {5, 100, 95}} {
		s, dataplanes := weighted("aab", weights...)
		g := Groups([]Part{PartOf(snapshot(t, objects(dataplanes, s)...), s)})[0]
		if want == "" && g.Weights != nil || want != "" && (g.Weights["a"] != 105 || g.Weights["b"] != 95) {
			t.Errorf("weights %v: %v, want %q", weights, g.Weights, want)
		}
		if g.Endpoints["a"] != 2 || g.Endpoints["b"] != 1 {
			t.Errorf("endpoints %v", g.Endpoints)
		}
	}
}

// TestTableFollowsWeights: a new weight changes the Services that select the Dataplane, and
// no others; the default costs nothing.
func TestTableFollowsWeights(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	service.Spec.Selector = map[string]string{"app": "web"}
	other := service.DeepCopy()
	other.Name, other.Spec.Selector = "other", map[string]string{"app": "other"}
	s, dataplanes := weighted("aa", -1, -1)
	before := snapshot(t, objects(dataplanes, s, service, other)...)
	var table Table
	first := &catalog.Delta{After: before}
	for key, d := range before.Dataplanes.All() {
		first.Dataplanes = append(first.Dataplanes, catalog.Change[*meshv1alpha1.Dataplane]{Key: key, New: d})
	}
	first.Slices = []catalog.Change[*discoveryv1.EndpointSlice]{{Key: catalog.Key{Namespace: "shop", Name: "s"}, New: s}}
	if changed := table.Apply(first); len(changed) != 0 || len(table.plans) != 0 {
		t.Errorf("default weights are changes of %v", changed)
	}
	step := func(weight int32, want ...resource.Key) {
		t.Helper()
		was := dataplanes[0]
		is := was.DeepCopy()
		is.Spec.Weight = ptr.To(weight)
		dataplanes[0] = is
		after := snapshot(t, objects(dataplanes, s, service, other)...)
		changed := table.Apply(&catalog.Delta{Before: before, After: after, Dataplanes: []catalog.Change[*meshv1alpha1.Dataplane]{
			{Key: resource.KeyOf(is), Old: was, New: is},
		}})
		before = after
		if got := slices.Collect(maps.Keys(changed)); !slices.Equal(got, want) {
			t.Errorf("weight %d changes %v, want %v", weight, got, want)
		}
	}
	step(5, webKey)
	if own := table.Own(s); !slices.Equal(own, []uint32{5, 100}) {
		t.Errorf("weights %v", own)
	}
	step(5)
	step(100, webKey)
	if own := table.Own(s); own != nil || len(table.plans) != 0 {
		t.Errorf("weights %v, where all are alike", own)
	}
}
