package topology

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
	"github.com/proxima-mesh/proxima/internal/view"
)

// follower serves views from the store of a rig, as an instance that does not lead.
func (r *rig) follower() *rig {
	f := &rig{t: r.t, client: r.client, demand: &fakeDemand{}}
	world := catalog.New(catalog.Config{Client: r.client, Descriptors: resourcetest.Descriptors()})
	f.c = New(Config{Client: r.client, Catalog: world})
	plans := &trafficplan.Table{}
	f.builder = view.NewBuilder(view.BuilderConfig{Run: "follower", Weights: plans.Weights})
	sub := world.Subscribe(catalog.Services, catalog.Slices, catalog.Nodes, catalog.Plans)
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 2)
	go func() { done <- world.Run(ctx) }()
	go func() { defer sub.Close(); done <- view.Follow(ctx, sub, f.builder, plans) }()
	r.t.Cleanup(func() { cancel(); <-done; <-done })
	return f
}

func (r *rig) plan() *plannerv1alpha1.TrafficPlan {
	r.t.Helper()
	plans := list[*plannerv1alpha1.TrafficPlan](r, "TrafficPlan")
	if len(plans) != 1 {
		r.t.Fatalf("%d plans, want 1", len(plans))
	}
	return plans[0]
}

// TestPlansOfTheLeaderWeighEverywhere: agents of every instance follow the plan that the
// leader made, and go on when the leader has ended; the next leader keeps it.
func TestPlansOfTheLeaderWeighEverywhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		leader := newRig(t, nil, all(equalNodes("abc"), workloads("aaabbbccc"), one(adaptive()))...)
		follower := leader.follower()
		leader.report(map[string]float64{"a": 60, "b": 10, "c": 10})
		const planned = "a 52.0 b 24.0 c 24.0"
		for name, instance := range map[string]*rig{"leader": leader, "follower": follower} {
			instance.wantPercents(name, "a", planned)
			instance.wantPercents(name, "b", "b 100.0")
		}
		made := leader.plan()

		leader.stop()
		time.Sleep(time.Hour)
		synctest.Wait()
		follower.wantPercents("the leader has ended", "a", planned)
		report, ok := follower.c.Explain(webKey)
		if !ok || len(report.Plans) != 1 || report.Plans[0].Reason != "LargeGap" || !strings.Contains(report.Text("a"), "> a: 75.0 % of demand") {
			t.Errorf("the follower explains %+v", report)
		}
		// Endpoints come and go without a leader: each zone's share is divided among those
		// that there are.
		slice := list[*discoveryv1.EndpointSlice](leader, "EndpointSlice")[0]
		whole := slice.DeepCopy()
		for i := range slice.Endpoints {
			if *slice.Endpoints[i].Zone == "c" {
				slice.Endpoints[i].Conditions.Ready = new(false)
			}
		}
		follower.seed(slice)
		follower.wantPercents("a zone has no endpoint left", "a", "a 68.4 b 31.6")
		whole.ResourceVersion = ""
		follower.seed(whole)
		follower.wantPercents("they are back", "a", planned)
		if diff := cmp.Diff(made, leader.plan()); diff != "" {
			t.Errorf("the plan has changed: %s", diff)
		}

		leader.demand.set(map[string]float64{"a": 60, "b": 10, "c": 10})
		leader.start(nil)
		leader.wantPercents("the next leader", "a", planned)
		if diff := cmp.Diff(made, leader.plan()); diff != "" {
			t.Errorf("the next leader has changed the plan: %s", diff)
		}
	})
}

// TestPlanIsWrittenWhenItIsPublished, and not because demand moves. It belongs to its
// Service, and goes when the Service is not planned any more.
func TestPlanIsWrittenWhenItIsPublished(t *testing.T) {
	bubble(t, func(t *testing.T) {
		service := adaptive(AnnotationOverload, "0.3")
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaabbbccc"), one(service))...)
		p := r.plan()
		if p.Name != "web" || p.Spec.Service != "web" || p.Spec.Mode != Adaptive || p.Spec.Parameters.Overload != 0.3 {
			t.Errorf("%+v", p)
		}
		if owner := metav1.GetControllerOf(p); owner == nil || owner.Kind != "Service" || owner.Name != "web" || owner.UID != service.UID {
			t.Errorf("owned by %+v", owner)
		}
		g := p.Spec.Groups[0]
		if g.Outcome != plannerv1alpha1.OutcomePlanned || g.Reason != plannerv1alpha1.PublishEndpointsChanged ||
			g.DemandSource != plannerv1alpha1.DemandGuessed {
			t.Errorf("%+v", g)
		}
		writes := 0
		r.client.Intercept(func(call resourcetest.Call) error {
			if call.Kind.Kind == "TrafficPlan" && call.Verb != resourcetest.List && call.Verb != resourcetest.Watch {
				writes++
			}
			return nil
		})
		for i := range 30 {
			r.report(map[string]float64{"a": 10 + 0.01*float64(i%7), "b": 10, "c": 10})
		}
		if writes != 0 {
			t.Errorf("%d writes as demand moved", writes)
		}
		r.report(map[string]float64{"a": 60, "b": 10, "c": 10})
		next := r.plan().Spec
		if g := next.Groups[0]; writes != 1 || next.Version != p.Spec.Version+1 || g.Reason != plannerv1alpha1.PublishLargeGap ||
			g.DemandSource != plannerv1alpha1.DemandMeasured || g.Zones[0].Demand != 0.75 || g.Zones[0].Reason != plannerv1alpha1.ZoneRegion {
			t.Errorf("%d writes: %+v", writes, next)
		}
		r.annotate(mode, "")
		if plans := list[*plannerv1alpha1.TrafficPlan](r, "TrafficPlan"); len(plans) != 0 {
			t.Errorf("not planned any more: %+v", plans)
		}
		r.annotate(mode, Adaptive)
		r.plan()
		r.delete("Service", "shop", "web")
		if plans := list[*plannerv1alpha1.TrafficPlan](r, "TrafficPlan"); len(plans) != 0 {
			t.Errorf("the Service is gone: %+v", plans)
		}
	})
}

// TestPlanOfAnotherServiceOfThatName is not taken for one's own, or it would be collected
// with that Service.
func TestPlanOfAnotherServiceOfThatName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("abc"), one(adaptive()))...)
		r.stop()
		r.delete("Service", "shop", "web")
		again := adaptive()
		again.UID = "svc-9"
		r.client.Seed(again)
		r.start(nil)
		if owner := metav1.GetControllerOf(r.plan()); owner.UID != "svc-9" {
			t.Errorf("owned by %+v", owner)
		}
	})
}

// TestFailedWritesAreTriedAgain, and agents follow the plan that there is meanwhile.
func TestFailedWritesAreTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &weigher{home: 3, away: 1}
		for _, service := range []*corev1.Service{adaptive(), web(mode, weighing)} {
			r := newRig(t, weighed(h), all(equalNodes("ab"), workloads("ab"), one(service))...)
			var failing atomic.Bool
			failing.Store(true)
			r.client.Intercept(func(call resourcetest.Call) error {
				if failing.Load() && call.Kind.Kind == "TrafficPlan" && call.Verb == resourcetest.Update {
					return fmt.Errorf("disk full")
				}
				return nil
			})
			before := r.plan()
			r.client.Seed(workload("b2", "b", 9, true))
			synctest.Wait()
			if diff := cmp.Diff(before, r.plan()); diff != "" {
				t.Error(diff)
			}
			failing.Store(false)
			time.Sleep(3 * time.Second)
			r.settle()
			if p := r.plan(); p.Spec.Version != before.Spec.Version+1 {
				t.Errorf("version %d after %d", p.Spec.Version, before.Spec.Version)
			}
			r.stop()
		}
	})
}

// TestLargePlansAreSplit by port, and a group that is too large alone is not planned.
func TestLargePlansAreSplit(t *testing.T) {
	service := adaptive()
	spec := &plannerv1alpha1.TrafficPlanSpec{Service: "web", Version: 7, Mode: Adaptive}
	group := func(port string, zones int) plannerv1alpha1.PortGroup {
		g := plannerv1alpha1.PortGroup{AddressType: "IPv4", Ports: []string{port}, Outcome: plannerv1alpha1.OutcomePlanned}
		for i := range zones {
			z := plannerv1alpha1.SourceZone{Name: fmt.Sprintf("zone-%04d", i), Reason: plannerv1alpha1.ZoneNoDemandAll}
			for k := range zones {
				z.To = append(z.To, plannerv1alpha1.ZoneShare{Zone: fmt.Sprintf("zone-%04d", k), Share: 0.123456})
			}
			g.Zones = append(g.Zones, z)
		}
		return g
	}
	for i := range 5 {
		spec.Groups = append(spec.Groups, group(fmt.Sprintf("port-%d", i), 70))
	}
	spec.Groups = append(spec.Groups, group("too-large", 200), group("small", 2))
	parts := partsFor(service, spec)
	var names, ports []string
	for _, part := range parts {
		body, err := json.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		if len(body) > plannerv1alpha1.MaxPlanBytes {
			t.Errorf("%s has %d bytes", part.Name, len(body))
		}
		if part.Spec.Service != "web" || part.Spec.Version != 7 || metav1.GetControllerOf(part) == nil {
			t.Errorf("%s: %+v", part.Name, part.ObjectMeta)
		}
		names = append(names, part.Name+part.Labels[plannerv1alpha1.LabelPart])
		for _, g := range part.Spec.Groups {
			ports = append(ports, g.Ports[0]+" "+string(g.Outcome))
		}
	}
	if want := []string{"web", "web.22", "web.33"}; !slices.Equal(names, want) {
		t.Errorf("parts %v, want %v", names, want)
	}
	want := []string{"port-0 Planned", "port-1 Planned", "port-2 Planned", "port-3 Planned", "port-4 Planned", "too-large TooLarge",
		"small Planned"}
	if diff := cmp.Diff(want, ports); diff != "" {
		t.Error(diff)
	}
	if !samePlan(parts, partsFor(service, spec)) || samePlan(parts, parts[:1]) {
		t.Error("a plan is the same as itself alone")
	}
}

// TestSplitPlansAreRead as one.
func TestSplitPlansAreRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("ab"), workloads("ab"), one(adaptive()))...)
		r.stop()
		whole := r.plan()
		second := whole.DeepCopy()
		second.Name, second.UID, second.ResourceVersion = "web.2", "", ""
		whole.Spec.Groups = nil
		r.client.Seed(whole, second)
		snapshot := snapshotOfClient(t, r.client)
		slice := list[*discoveryv1.EndpointSlice](r, "EndpointSlice")[0]
		if weights := trafficplan.Of(snapshot, webKey).Weights("a", slice); !slices.Equal(weights, []uint32{1, 0}) {
			t.Errorf("weights %v", weights)
		}
		r.start(nil) // it fits into one object
		if p := r.plan(); len(p.Spec.Groups) != 1 {
			t.Errorf("%+v", p)
		}
	})
}

// maxPlanMemory is what a planned Service in three zones may need more than one that is
// not planned, in bytes: its plan, what the planner remembers of it, and what views do.
const maxPlanMemory = 3 << 10

// TestMemoryOfPlans measures it.
func TestMemoryOfPlans(t *testing.T) {
	const n = 2000
	c, s, _ := crowd(t, n)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	plans := make([]*plannerv1alpha1.TrafficPlan, 0, n)
	for key := range s.Services.All() {
		body, err := json.Marshal(partsOf(s, key)[0])
		if err != nil {
			t.Fatal(err)
		}
		p := &plannerv1alpha1.TrafficPlan{}
		if err := json.Unmarshal(body, p); err != nil {
			t.Fatal(err)
		}
		plans = append(plans, p)
	}
	object := (heap() - before) / n
	before = heap()
	var table trafficplan.Table
	d := catalog.Delta{After: s}
	for key, p := range s.Plans.All() {
		d.Plans = append(d.Plans, catalog.Change[*plannerv1alpha1.TrafficPlan]{Key: key, New: p})
	}
	table.Apply(&d)
	d = catalog.Delta{}
	read := (heap() - before) / n
	before = heap()
	c.entries = map[resource.Key]*entry{}
	planner := (before - heap()) / n
	t.Logf("bytes for each planned Service: plan %d, views %d, planner %d", object, read, planner)
	if sum := object + read + planner; sum > maxPlanMemory {
		t.Errorf("%d bytes, at most %d", sum, maxPlanMemory)
	}
	runtime.KeepAlive(plans)
	runtime.KeepAlive(&table)
	runtime.KeepAlive(s)
}
