package trafficplan

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/sites"
)

var webKey = resource.Key{Namespace: "shop", Name: "web"}

// slice of the Service web with an endpoint for each letter, in the zone of that name;
// "-" has none, and a capital one is not ready.
func slice(name, port, zones string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To(port)}},
	}
	for i, z := range zones {
		e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprint(name, i)}}
		if z != '-' {
			e.Zone = ptr.To(strings.ToLower(string(z)))
			e.Conditions.Ready = ptr.To(strings.ToLower(string(z)) == string(z))
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// zone with shares, such as "a .5 b .5".
func zone(name, shares string) plannerv1alpha1.SourceZone {
	z := plannerv1alpha1.SourceZone{Name: name, Reason: plannerv1alpha1.ZoneRegion}
	words := strings.Fields(shares)
	for i := 0; i < len(words); i += 2 {
		var share float64
		fmt.Sscan(words[i+1], &share)
		z.To = append(z.To, plannerv1alpha1.ZoneShare{Zone: words[i], Share: share})
	}
	return z
}

func plan(groups ...plannerv1alpha1.PortGroup) *plannerv1alpha1.TrafficPlan {
	return &plannerv1alpha1.TrafficPlan{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec:       plannerv1alpha1.TrafficPlanSpec{Service: "web", Version: 1, Groups: groups},
	}
}

func shares(zones ...plannerv1alpha1.SourceZone) plannerv1alpha1.PortGroup {
	return plannerv1alpha1.PortGroup{AddressType: "IPv4", Ports: []string{"http"}, Outcome: plannerv1alpha1.OutcomePlanned, Zones: zones}
}

func snapshot(t interface{ Fatal(...any) }, objects ...resource.Object) *catalog.Snapshot {
	client := resourcetest.New()
	client.Seed(objects...)
	world := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = world.Run(ctx) }()
	defer func() { cancel(); <-done }()
	if err := world.WaitSynced(ctx); err != nil {
		t.Fatal(err)
	}
	return world.Snapshot()
}

// TestSharesAreDividedAmongTheEndpointsOfNow, whatever the plan was made for.
func TestSharesAreDividedAmongTheEndpointsOfNow(t *testing.T) {
	half := shares(zone("a", "a .5 b .5"), zone("b", "b 1"), zone("c", "a 1"))
	ruled := plannerv1alpha1.PortGroup{
		AddressType: "IPv4", Ports: []string{"http"}, Outcome: plannerv1alpha1.OutcomeWeighted,
		Zones: []plannerv1alpha1.SourceZone{
			{Name: "a", Reason: plannerv1alpha1.ZoneRule}, {Name: "b", Reason: plannerv1alpha1.ZoneNoWeights},
		},
		Endpoints: []plannerv1alpha1.WeightedEndpoint{{Address: "x0", Weights: []uint32{3, 0}}, {Address: "x1", Weights: []uint32{1, 0}}},
	}
	nowhere := shares(zone("(no zone)", ""), zone("a", ""))
	nowhere.Zones[1].To = []plannerv1alpha1.ZoneShare{{Zone: "(no zone)", Share: 1}}
	tooLarge := half
	tooLarge.Outcome = plannerv1alpha1.OutcomeTooLarge
	for _, c := range []struct {
		what      string
		group     plannerv1alpha1.PortGroup
		from      string
		endpoints string
		want      []uint32
	}{
		{"as planned", half, "a", "ab", []uint32{1, 1}},
		{"one more", half, "a", "abb", []uint32{2, 1, 1}},
		{"one that is not ready", half, "a", "abB", []uint32{1, 1, 0}},
		{"a zone without endpoints", half, "a", "aa", []uint32{1, 1}},
		{"no endpoint where the shares are", half, "b", "aa", nil},
		{"a zone without a share", half, "a", "abc", []uint32{1, 1, 0}},
		{"a zone that the plan does not know", half, "a", "abd", []uint32{1, 1, 0}},
		{"from a zone that the plan does not know", half, "d", "ab", nil},
		{"no zone", nowhere, "a", "-a", []uint32{1, 0}},
		{"no plan", tooLarge, "a", "ab", nil},
		{"weights by address", ruled, "a", "ab", []uint32{3, 1}},
		{"one that has none yet", ruled, "a", "abc", []uint32{3, 1, 0}},
		{"not given for the zone", ruled, "b", "ab", nil},
		{"all that have weights are gone", ruled, "a", "AB", nil},
	} {
		s := slice("x", "http", c.endpoints)
		of := Of(snapshot(t, plan(c.group), s), webKey)
		if got := of.Weights(locality.Zone(c.from), s); !slices.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
		other := slice("y", "other", c.endpoints)
		if got := of.Weights(locality.Zone(c.from), other); got != nil {
			t.Errorf("%s: a port that the plan does not have: %v", c.what, got)
		}
	}
}

// TestSplit: what a plan gives other sites, beside what zones with endpoints keep.
func TestSplit(t *testing.T) {
	away := shares(zone("a", "a .5 b .25 site:east .25"), zone("b", "b 1"), zone("c", "site:east .5 site:north .5"), zone("site:east", "site:east 1"))
	for _, c := range []struct {
		what, from, port, endpoints string
		want                        *sites.Split
	}{
		{"as planned", "a", "http", "ab", &sites.Split{Here: 3 << 14, Sites: map[string]uint32{"east": 1 << 14}}},
		{"a zone without endpoints", "a", "http", "b", &sites.Split{Here: 1 << 14, Sites: map[string]uint32{"east": 1 << 14}}},
		{"none here", "c", "http", "ab", &sites.Split{Sites: map[string]uint32{"east": 1 << 15, "north": 1 << 15}}},
		{"all stay", "b", "http", "ab", nil},
		{"a zone that the plan does not know", "d", "http", "ab", nil},
		{"another port", "a", "admin", "ab", nil},
	} {
		of := Of(snapshot(t, plan(away), slice("x", "http", c.endpoints)), webKey)
		if diff := cmp.Diff(c.want, of.Split(locality.Zone(c.from), c.port)); diff != "" {
			t.Errorf("%s: %s", c.what, diff)
		}
	}
	if got := (*Plan)(nil).Split("a", "http"); got != nil {
		t.Errorf("no plan: %v", got)
	}
}

// TestSharesHold over all slices of a Service: what a zone's endpoints get together is
// the share of the zone.
func TestSharesHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var objects []resource.Object
		counts := map[string]int{}
		for i := range rapid.IntRange(1, 4).Draw(t, "slices") {
			zones := rapid.StringOfN(rapid.RuneFrom([]rune("abcABC")), 0, 8, -1).Draw(t, "zones")
			objects = append(objects, slice(fmt.Sprint("x", i), "http", zones))
			for _, z := range zones {
				if strings.ContainsRune("abc", z) {
					counts[string(z)]++
				}
			}
		}
		want := map[string]float64{"a": rapid.Float64Range(0, 1).Draw(t, "a"), "b": rapid.Float64Range(0, 1).Draw(t, "b")}
		from := plannerv1alpha1.SourceZone{Name: "a"}
		total := 0.0
		for _, z := range slices.Sorted(maps.Keys(want)) {
			if want[z] > 0.001 {
				from.To = append(from.To, plannerv1alpha1.ZoneShare{Zone: z, Share: want[z]})
			}
			if counts[z] > 0 && want[z] > 0.001 {
				total += want[z]
			}
		}
		s := snapshot(t, append(objects, plan(shares(from, zone("b", "b 1"), zone("c", "c 1"))))...)
		of := Of(s, webKey)
		got, sum := map[string]float64{}, 0.0
		for _, object := range s.SlicesOf(webKey) {
			weights := of.Weights("a", object)
			if (weights == nil) != (total == 0) {
				t.Fatalf("weights %v where %v of the shares have endpoints", weights, total)
			}
			for i, w := range weights {
				got[*object.Endpoints[i].Zone] += float64(w)
				sum += float64(w)
			}
		}
		for z, share := range want {
			if counts[z] == 0 || total == 0 || share <= 0.001 {
				continue
			}
			if diff := got[z]/sum - share/total; diff > 0.003 || diff < -0.003 {
				t.Fatalf("zone %s gets %.4f, want %.4f", z, got[z]/sum, share/total)
			}
		}
	})
}

// TestTable names the Services whose weights differ, and no others.
func TestTable(t *testing.T) {
	p := plan(shares(zone("a", "a .5 b .5"), zone("b", "b 1")))
	before := snapshot(t, p, slice("x", "http", "ab"))
	var table Table
	apply := func(d catalog.Delta) string {
		changed := table.Apply(&d)
		return fmt.Sprint(slices.SortedFunc(maps.Keys(changed), func(a, b resource.Key) int { return strings.Compare(a.String(), b.String()) }))
	}
	planOf := func(s *catalog.Snapshot) *plannerv1alpha1.TrafficPlan { p, _ := s.Plans.Get(webKey); return p }
	sliceOf := func(s *catalog.Snapshot) *discoveryv1.EndpointSlice {
		x, _ := s.Slices.Get(resource.Key{Namespace: "shop", Name: "x"})
		return x
	}
	plans := func(from, to *plannerv1alpha1.TrafficPlan) []catalog.Change[*plannerv1alpha1.TrafficPlan] {
		return []catalog.Change[*plannerv1alpha1.TrafficPlan]{{Key: webKey, Old: from, New: to}}
	}
	changedSlice := func(from, to *discoveryv1.EndpointSlice) []catalog.Change[*discoveryv1.EndpointSlice] {
		return []catalog.Change[*discoveryv1.EndpointSlice]{{Key: resource.Key{Namespace: "shop", Name: "x"}, Old: from, New: to}}
	}
	type step struct{ What, Got, Want string }
	var steps []step
	note := func(what, got, want string) { steps = append(steps, step{what, got, want}) }
	note("a slice without a plan",
		apply(catalog.Delta{After: snapshot(t, slice("x", "http", "ab")), Slices: changedSlice(nil, sliceOf(before))}), "[]")
	note("a plan", apply(catalog.Delta{After: before, Plans: plans(nil, planOf(before))}), "[shop/web]")
	note("the same slice", apply(catalog.Delta{After: before, Slices: changedSlice(sliceOf(before), sliceOf(before))}), "[]")
	note("weights", fmt.Sprint(table.Weights("a", sliceOf(before))), "[1 1]")
	more := snapshot(t, slice("x", "http", "aab"))
	after := *before
	after.Slices = more.Slices
	note("one more endpoint", apply(catalog.Delta{After: &after, Slices: changedSlice(sliceOf(before), sliceOf(&after))}), "[shop/web]")
	note("weights of it", fmt.Sprint(table.Weights("a", sliceOf(&after))), "[1 1 2]")
	gone := snapshot(t, slice("x", "http", "aab"))
	note("the plan is gone", apply(catalog.Delta{After: gone, Plans: plans(planOf(before), nil)}), "[shop/web]")
	note("no weights", fmt.Sprint(table.Weights("a", sliceOf(gone))), "[]")
	for _, s := range steps {
		if diff := cmp.Diff(s.Want, s.Got); diff != "" {
			t.Errorf("%s: %s", s.What, diff)
		}
	}
}

// TestProportions are in proportion, small, and 0 only where there was 0.
func TestProportions(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want []uint32
	}{
		{[]float64{0, 0}, nil}, {nil, nil},
		{[]float64{5, 0, 2.5}, []uint32{2, 0, 1}},
		{[]float64{1e9, 1e-300}, []uint32{4096, 1}},
		{[]float64{5e-324, 5e-324}, []uint32{1, 1}},
	} {
		got := Proportions(c.in)
		if len(got) != len(c.want) {
			t.Errorf("%v: %v", c.in, got)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%v: %v", c.in, got)
			}
		}
	}
}
