package summary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a table on a catalog, in a bubble.
type rig struct {
	t      *testing.T
	client *resourcetest.Client
	world  *catalog.Catalog
	plans  *topology.Controller
	demand *rates
	table  *Table
}

// rates per zone of each service port.
type rates struct {
	mu sync.Mutex
	by map[string]map[locality.Zone]float64
}

func (r *rates) set(port string, by map[locality.Zone]float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.by[port] = by
}

func (r *rates) Shares(port proxy.PortName, _ proxy.Family, zones []locality.Zone, prior []float64, noNodes []bool) demand.Estimate {
	r.mu.Lock()
	of, sum := r.by[port.Port], 0.0
	r.mu.Unlock()
	for _, z := range zones {
		sum += of[z]
	}
	if sum == 0 {
		return topology.Unmeasured{}.Shares(port, proxy.AnyFamily, zones, prior, noNodes)
	}
	e := demand.Estimate{Measured: true, Rate: sum, Shares: make([]float64, len(zones))}
	for i, z := range zones {
		e.Shares[i] = of[z] / sum
	}
	return e
}

func newRig(t *testing.T, objects ...resource.Object) *rig {
	r := &rig{t: t, client: resourcetest.New(), demand: &rates{by: map[string]map[locality.Zone]float64{}}}
	r.client.Seed(objects...)
	r.world = catalog.New(catalog.Config{Client: r.client, Descriptors: resourcetest.Descriptors()})
	r.plans = topology.New(topology.Config{Client: r.client, Catalog: r.world, Demand: r.demand})
	r.table = New(Config{Catalog: r.world, Tallier: r.plans.Tallier()})
	r.run(r.world.Run, r.plans.Run, r.table.Run)
	r.settle()
	return r
}

func (r *rig) run(all ...func(context.Context) error) {
	for _, run := range all {
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { done <- run(ctx) }()
		r.t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				r.t.Error(err)
			}
		})
	}
}

// settle lets plans and conditions be written, too.
func (r *rig) settle() {
	time.Sleep(3 * time.Second)
	synctest.Wait()
}

func node(name, zone string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone, corev1.LabelTopologyRegion: "r"}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("4")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func service(namespace, name, mode string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
			Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}
	if mode != "" {
		s.Annotations[corev1.AnnotationTopologyMode] = mode
	}
	return s
}

// slice of endpoints, one for each letter, in the zone of that name.
func slice(namespace, name, zones string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-1", Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "test",
		}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(string), Port: new(int32(80))}},
	}
	for i, z := range zones {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)}, Zone: new(string(z)),
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	return s
}

func (r *rig) delete(kind, namespace, name string) {
	for _, d := range resourcetest.Descriptors() {
		if d.GVK.Kind != kind {
			continue
		}
		if err := r.client.Delete(r.t.Context(), d, resource.Key{Namespace: namespace, Name: name}, resource.Preconditions{}); err != nil {
			r.t.Fatal(err)
		}
	}
}

var everything = Scope{All: true}

// again sums everything up with a table of its own.
func (r *rig) again() *Table {
	t := New(Config{Catalog: r.world, Tallier: r.plans.Tallier()})
	r.run(t.Run)
	synctest.Wait()
	return t
}

func zonesOf(t *testing.T, table *Table, scope Scope) *Zones {
	t.Helper()
	z, err := table.Zones(scope)
	if err != nil {
		t.Fatal(err)
	}
	z.Position, z.Since = Position{}, time.Time{}
	return z
}

// TestSumsStayTrue: after any changes the sums are those of a table that begins then, for each scope; and who follows by
// deltas has the same.
func TestSumsStayTrue(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			r := newRig(t, node("n-a", "a"), node("n-b", "b"), node("n-c", "c"))
			names, modes := []string{"one", "two", "three"}, []string{"", "Auto", topology.Adaptive}
			follower, have := map[string]json.RawMessage{}, Position{}
			for range 60 {
				namespace, name := names[random.IntN(3)], fmt.Sprintf("s%d", random.IntN(6))
				_, there := r.world.Snapshot().Services.Get(resource.Key{Namespace: namespace, Name: name})
				switch n := random.IntN(10); {
				case n == 0 && there:
					r.delete("Service", namespace, name)
				case n == 1:
					r.client.Seed(node("n-d", []string{"a", "b", "d"}[random.IntN(3)]))
				case n == 2:
					r.demand.set("", map[locality.Zone]float64{"a": random.Float64() * 100, "b": 10})
					time.Sleep(Step)
				case n < 6:
					r.client.Seed(service(namespace, name, modes[random.IntN(3)]))
				default:
					r.client.Seed(slice(namespace, name, []string{"", "a", "abc", "aab", "ccccb", "d"}[random.IntN(6)]))
				}
				synctest.Wait()
				have = r.follow(everything, follower, have)
			}
			time.Sleep(2 * Step) // the demand of all lines is of the same step
			r.settle()
			have = r.follow(everything, follower, have)
			again := r.again()
			for _, scope := range []Scope{everything, {Namespaces: []string{"one"}}, {Namespaces: []string{"one", "two"}}, {}} {
				if got, want := zonesOf(t, r.table, scope), zonesOf(t, again, scope); !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d, scope %+v:\n%+v\nwant\n%+v", seed, scope, got, want)
				}
			}
			want := map[string]json.RawMessage{}
			r.follow(everything, want, Position{})
			if !reflect.DeepEqual(follower, want) {
				t.Errorf("seed %d: who follows has %d rows, of %d; at %+v", seed, len(follower), len(want), have)
			}
		})
	}
}

// follow applies the next delta.
func (r *rig) follow(scope Scope, rows map[string]json.RawMessage, have Position) Position {
	time.Sleep(Frame)
	data, now, _, err := r.table.Delta(scope, have)
	if err != nil {
		r.t.Fatal(err)
	}
	if data == nil {
		return now
	}
	var d Delta
	if err := json.Unmarshal(data, &d); err != nil {
		r.t.Fatal(err)
	}
	if d.Snapshot {
		clear(rows)
	}
	for name, row := range d.Rows {
		rows[name] = row
	}
	for _, name := range d.Gone {
		if _, ok := rows[name]; !ok {
			r.t.Errorf("%s is gone, and was not there", name)
		}
		delete(rows, name)
	}
	return now
}

// TestCadence: after a large change all viewers wait as long as it takes at Rate, whenever they ask, and get the same state.
func TestCadence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const zones = "abcdefghijklmnopqrstuvwxyz"
		objects := []resource.Object{service("shop", "web", ""), slice("shop", "web", zones)}
		for _, z := range zones {
			objects = append(objects, node("n-"+string(z), string(z)))
		}
		r := newRig(t, objects...)
		ask := func(have Position) (data json.RawMessage, now Position, again time.Duration) {
			t.Helper()
			data, now, again, err := r.table.Delta(everything, have)
			if err != nil {
				t.Fatal(err)
			}
			return data, now, again
		}
		_, have, _ := ask(Position{})
		r.client.Seed(slice("shop", "web", zones+zones[:13]))
		time.Sleep(MostGap)
		synctest.Wait()
		data, have, _ := ask(have)
		gap := Gap(len(data))
		if gap < 2*Frame {
			t.Fatalf("a change of %d bytes is too small for this test", len(data))
		}
		r.client.Seed(slice("shop", "web", zones))
		time.Sleep(gap - Frame/2)
		synctest.Wait()
		if data, now, again := ask(have); data != nil || now != have || again <= 0 || again > Frame {
			t.Errorf("before the time: %d bytes, position %v after %v, again in %v", len(data), now, have, again)
		}
		if data, now, _ := ask(Position{}); data == nil || now != have {
			t.Errorf("another viewer has %d bytes, position %v, want that of the first, %v", len(data), now, have)
		}
		time.Sleep(Frame)
		if data, now, _ := ask(have); data == nil || now == have {
			t.Errorf("after the time: %d bytes, position %v", len(data), now)
		}
	})
}

// TestServices: what queries find, in which order, a page at a time, and what a scope hides.
func TestServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := service("ops", "log", "Auto")
		log.Status.Conditions = []metav1.Condition{{Type: topology.ConditionPlan, Status: metav1.ConditionFalse, Reason: topology.ReasonHintsDisabled}}
		r := newRig(t, node("n-a", "a"), node("n-b", "b"),
			service("shop", "web", ""), slice("shop", "web", "ab"), service("shop", "cart", topology.Adaptive), slice("shop", "cart", "ab"),
			log, slice("ops", "log", "a"), service("ops", "empty", ""))
		names := func(scope Scope, q Query) (out []string) {
			t.Helper()
			got, err := r.table.Services(scope, q)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range got.Services {
				out = append(out, l.Name)
			}
			return out
		}
		for _, c := range []struct {
			q     Query
			scope Scope
			want  []string
		}{
			{Query{Sort: "name"}, everything, []string{"empty", "log", "cart", "web"}},
			{Query{Sort: "name", Reverse: true}, everything, []string{"web", "cart", "log", "empty"}},
			{Query{Sort: "saving", Limit: 1}, everything, []string{"web"}},
			{Query{Sort: "name", Limit: 2, Offset: 1}, everything, []string{"log", "cart"}},
			{Query{Sort: "name"}, Scope{Namespaces: []string{"shop"}}, []string{"cart", "web"}},
			{Query{Sort: "name"}, Scope{}, nil},
			{Query{Text: "SHOP/c"}, everything, []string{"cart"}},
			{Query{Namespace: "ops", Zone: "a"}, everything, []string{"log"}},
			{Query{Mode: "none", Sort: "name"}, everything, []string{"empty", "web"}},
			{Query{Mode: topology.Adaptive}, everything, []string{"cart"}},
			{Query{Refused: true}, everything, []string{"log"}},
			{Query{Code: topology.ReasonNoEndpoints}, everything, []string{"empty"}},
		} {
			if got := names(c.scope, c.q); !slices.Equal(got, c.want) {
				t.Errorf("%+v within %+v: %v, want %v", c.q, c.scope, got, c.want)
			}
		}
		first, _ := r.table.Services(everything, Query{Limit: 3})
		if first.Next != 3 || first.Total != 4 || first.All != 4 {
			t.Errorf("the first page says next %d, total %d of %d", first.Next, first.Total, first.All)
		}
		if part, _ := r.table.Services(Scope{Namespaces: []string{"shop"}}, Query{Namespace: "ops"}); part.Total != 0 || part.All != 2 || part.Partial == "" {
			t.Errorf("of another namespace: %+v", part)
		}
		for _, q := range []Query{{Sort: "size"}, {Limit: MaxLimit + 1}, {Offset: -1}} {
			var bad *QueryError
			if _, err := r.table.Services(everything, q); !errors.As(err, &bad) {
				t.Errorf("%+v: %v", q, err)
			}
		}
		if _, ok := r.table.Detail(Scope{Namespaces: []string{"ops"}}, resource.Key{Namespace: "shop", Name: "web"}); ok {
			t.Error("a Service of another namespace is shown")
		}
		if d, ok := r.table.Detail(everything, resource.Key{Namespace: "shop", Name: "web"}); !ok || len(d.Flows) != 4 || len(d.ByZone) != 2 {
			t.Errorf("%+v", d)
		}
	})
}

// TestSeries: a value a step, for as long as is kept, the newest last; zones that go are forgotten, and new ones begin.
func TestSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, node("n-a", "a"), node("n-b", "b"), service("shop", "web", ""), slice("shop", "web", "ab"))
		began := time.Now()
		r.demand.set("", map[locality.Zone]float64{"a": 30, "b": 10})
		time.Sleep(10*Step - time.Since(began)%Step)
		synctest.Wait()
		s := r.table.Series(Kept)
		if len(s.Zones) != 2 || s.Zones[0].Zone != "a" {
			t.Fatalf("%+v", s)
		}
		a := s.Zones[0]
		if n := len(a.Demand); n < 9 || a.Demand[n-1] != 30 || a.InZone[n-1] != 0.5 {
			t.Errorf("%d values, the last %v, %v", n, a.Demand, a.InZone)
		}
		if got := r.table.Series(3 * Step); len(got.Zones[0].Demand) != 3 {
			t.Errorf("three steps have %d values", len(got.Zones[0].Demand))
		}
		r.delete("Node", "", "n-b")
		r.client.Seed(slice("shop", "web", "a"), node("n-c", "c"))
		time.Sleep(Kept + 2*Step)
		synctest.Wait()
		s = r.table.Series(2 * Kept)
		if len(s.Zones) != 2 || s.Zones[1].Zone != "c" || len(s.Zones[0].Demand) != points {
			t.Errorf("%d zones, %d values", len(s.Zones), len(s.Zones[0].Demand))
		}
		of := r.table.ServiceSeries(resource.Key{Namespace: "shop", Name: "web"})
		if len(of.Zones) != 1 || len(of.Zones[0].Demand) != servicePoints || of.Zones[0].Demand[0] != 30 {
			t.Errorf("of the Service: %+v", of)
		}
	})
}
