package zoneshift_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/endpoints"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/controller/zoneshift"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the controller at work beside those of endpoints, inside a bubble of fake time:
// nodes n1 and n2 in zones a and b, and Service ns/web.
type rig struct {
	t       *testing.T
	client  *resourcetest.Client
	catalog *catalog.Catalog
	stop    func()
}

func descriptors() []*resource.Descriptor {
	return append(resourcetest.Descriptors(), kind.ZoneShift)
}

func newRig(t *testing.T, objects ...resource.Object) *rig {
	r := &rig{t: t, client: resourcetest.New(descriptors()...)}
	r.client.Seed(node("n1", "a"), node("n2", "b"), service("web"))
	r.client.Seed(objects...)
	r.catalog = catalog.New(catalog.Config{Client: r.client, Descriptors: descriptors()})
	run(t,
		r.catalog.Run,
		endpointslice.New(endpointslice.Config{Client: r.client, Catalog: r.catalog, Slices: kind.EndpointSlice}).Run,
		endpoints.New(endpoints.Config{Client: r.client, Catalog: r.catalog, Endpoints: kind.Endpoints}).Run,
	)
	r.start()
	return r
}

// run until the test ends, or the result is called.
func run(t *testing.T, all ...func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, len(all))
	for _, f := range all {
		go func() { _ = f(ctx); done <- struct{}{} }()
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range all {
			<-done
		}
	}
	t.Cleanup(stop)
	return stop
}

// start a term of the controller.
func (r *rig) start() {
	r.stop = run(r.t, zoneshift.New(zoneshift.Config{Client: r.client, Catalog: r.catalog}).Run)
	r.pass(time.Second)
}

func (r *rig) pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func node(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
}

func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.9", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

// instance of a Service, on a node; without one, in zone a by its own label.
func instance(name, of, on, ip string) *mesh.Dataplane {
	d := &mesh.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": of}},
		Spec:       mesh.DataplaneSpec{NodeName: on, Addresses: []string{ip}, Ports: []mesh.DataplanePort{{Port: 8080}}},
		Status:     mesh.DataplaneStatus{Conditions: []metav1.Condition{{Type: mesh.DataplaneReady, Status: metav1.ConditionTrue}}},
	}
	if on == "" {
		d.Labels[corev1.LabelTopologyZone] = "a"
	}
	return d
}

// shift out for a time.
func (r *rig) shift(name string, spec mesh.ZoneShiftSpec, lasts time.Duration) {
	r.t.Helper()
	spec.Reason, spec.Until = "power work", metav1.NewTime(time.Now().Add(lasts))
	if _, err := r.client.Create(r.t.Context(), kind.ZoneShift, &mesh.ZoneShift{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}); err != nil {
		r.t.Fatal(err)
	}
	r.pass(time.Second)
}

// end of a shift by hand.
func (r *rig) end(name string) {
	r.t.Helper()
	if err := r.client.Delete(r.t.Context(), kind.ZoneShift, resource.Key{Name: name}, resource.Preconditions{}); err != nil {
		r.t.Fatal(err)
	}
	r.pass(time.Second)
}

func (r *rig) get(name string) *mesh.ZoneShift {
	r.t.Helper()
	obj, err := r.client.Get(r.t.Context(), kind.ZoneShift, resource.Key{Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	return obj.(*mesh.ZoneShift)
}

func (r *rig) wantState(name, want string) {
	r.t.Helper()
	z := r.get(name)
	if got := kind.ShiftState(z); got != want {
		r.t.Fatalf("shift %s is %s, want %s: %+v", name, got, want, z.Status)
	}
	if active := want == mesh.ZoneShiftInEffect; kind.ShiftInEffect(z) != active {
		r.t.Errorf("shift %s, %s, is in effect: %t", name, want, !active)
	}
}

// wantReady compares the endpoints of web that get new connections. The others serve those
// that they have.
func (r *rig) wantReady(want ...string) {
	r.t.Helper()
	var got []string
	s := r.catalog.Snapshot()
	for _, slice := range s.SlicesOf(resource.Key{Namespace: "ns", Name: "web"}) {
		for _, e := range slice.Endpoints {
			if *e.Conditions.Ready {
				got = append(got, e.Addresses[0])
			} else if !*e.Conditions.Serving || !*e.Conditions.Terminating {
				r.t.Errorf("endpoint %s is not ready, and serving %t, terminating %t", e.Addresses[0], *e.Conditions.Serving, *e.Conditions.Terminating)
			}
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		r.t.Fatalf("ready are %v, want %v", got, want)
	}
	var older []string
	if obj, ok := s.Endpoints.Get(resource.Key{Namespace: "ns", Name: "web"}); ok {
		for _, subset := range obj.Subsets {
			for _, a := range subset.Addresses {
				older = append(older, a.IP)
			}
		}
	}
	if !slices.Equal(older, want) {
		r.t.Errorf("the Endpoints have %v, want %v", older, want)
	}
}

// wantEvents compares the reasons of the events about a shift, in order.
func (r *rig) wantEvents(name string, want ...string) {
	r.t.Helper()
	objects, _, err := r.client.List(r.t.Context(), kind.Event, resource.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	slices.SortStableFunc(objects, func(a, b resource.Object) int {
		return a.(*corev1.Event).FirstTimestamp.Compare(b.(*corev1.Event).FirstTimestamp.Time)
	})
	var got []string
	for _, obj := range objects {
		if e := obj.(*corev1.Event); e.InvolvedObject.Kind == "ZoneShift" && e.InvolvedObject.Name == name {
			got = append(got, e.Reason)
		}
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("events %v, want %v", got, want)
	}
}

// TestShift is the whole way: a zone is out, its time ends, and the record of it goes later.
func TestShift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "web", "n1", "10.0.0.1"), instance("b", "web", "n2", "10.0.0.2"), instance("c", "web", "", "10.0.0.3"))
		r.wantReady("10.0.0.1", "10.0.0.2", "10.0.0.3")
		r.shift("zone-a", mesh.ZoneShiftSpec{Zone: "a"}, time.Hour)
		r.wantState("zone-a", mesh.ZoneShiftInEffect)
		r.wantReady("10.0.0.2")
		if s := r.get("zone-a").Status; s.Services != 1 || s.Endpoints != 2 {
			t.Errorf("%d Services, %d endpoints; want 1, 2", s.Services, s.Endpoints)
		}

		r.pass(59*time.Minute + 57*time.Second)
		r.wantReady("10.0.0.2")
		r.pass(3 * time.Second)
		r.wantState("zone-a", mesh.ZoneShiftExpired)
		r.wantReady("10.0.0.1", "10.0.0.2", "10.0.0.3")
		r.pass(zoneshift.Keep)
		if _, err := r.client.Get(t.Context(), kind.ZoneShift, resource.Key{Name: "zone-a"}); !apierrors.IsNotFound(err) {
			t.Errorf("a day after its end the shift is still there: %v", err)
		}
		r.wantEvents("zone-a", mesh.ZoneShiftInEffect, mesh.ZoneShiftExpired)
	})
}

// TestNewWorkload: what starts in a zone that is out does not get connections either.
func TestNewWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "web", "n1", "10.0.0.1"), instance("b", "web", "n2", "10.0.0.2"))
		r.shift("zone-a", mesh.ZoneShiftSpec{Zone: "a"}, time.Hour)
		r.client.Seed(instance("d", "web", "n1", "10.0.0.4"))
		r.pass(time.Second)
		r.wantReady("10.0.0.2")
		r.end("zone-a")
		r.wantReady("10.0.0.1", "10.0.0.2", "10.0.0.4")
		r.wantEvents("zone-a", mesh.ZoneShiftInEffect, "Ended")
	})
}

func TestNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "web", "n1", "10.0.0.1"), instance("b", "web", "n2", "10.0.0.2"))
		r.shift("node-n2", mesh.ZoneShiftSpec{Node: "n2"}, time.Hour)
		r.wantReady("10.0.0.1")
	})
}

// TestLastEndpoints: the last endpoints of a Service stay, unless that is forced, and a shift
// that was refused does not come into effect by itself.
func TestLastEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "web", "n1", "10.0.0.1"), instance("b", "web", "n2", "10.0.0.2"))
		r.client.Seed(service("db"), instance("db-a", "db", "n1", "10.0.0.5"))
		r.pass(time.Second)
		r.shift("zone-a", mesh.ZoneShiftSpec{Zone: "a"}, time.Hour)
		r.wantState("zone-a", mesh.ZoneShiftLastEndpoints)
		c := meta.FindStatusCondition(r.get("zone-a").Status.Conditions, mesh.ZoneShiftActive)
		if !strings.Contains(c.Message, "ns/db") || strings.Contains(c.Message, "ns/web") || !strings.Contains(c.Message, "spec.force") {
			t.Errorf("the refusal is: %s", c.Message)
		}
		r.client.Seed(instance("db-b", "db", "n2", "10.0.0.6"))
		r.pass(10 * time.Minute)
		r.wantState("zone-a", mesh.ZoneShiftLastEndpoints)
		r.wantReady("10.0.0.1", "10.0.0.2")

		next := r.get("zone-a")
		next.Spec.Force, next.Generation = true, next.Generation+1
		if _, err := r.client.Update(t.Context(), kind.ZoneShift, next); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		r.wantState("zone-a", mesh.ZoneShiftInEffect)
		r.wantReady("10.0.0.2")
		r.wantEvents("zone-a", mesh.ZoneShiftLastEndpoints, mesh.ZoneShiftInEffect)
	})
}

// TestTwoAtOnce: of two shifts that together would take out all endpoints, one is refused,
// however close they come.
func TestTwoAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "web", "n1", "10.0.0.1"), instance("b", "web", "n2", "10.0.0.2"))
		spec := func(zone string) mesh.ZoneShiftSpec {
			return mesh.ZoneShiftSpec{Zone: zone, Reason: "x", Until: metav1.NewTime(time.Now().Add(time.Hour))}
		}
		r.client.Seed(&mesh.ZoneShift{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: spec("a")},
			&mesh.ZoneShift{ObjectMeta: metav1.ObjectMeta{Name: "two"}, Spec: spec("b")})
		r.pass(time.Second)
		r.wantState("one", mesh.ZoneShiftInEffect)
		r.wantState("two", mesh.ZoneShiftLastEndpoints)
		r.wantReady("10.0.0.2")
	})
}

// TestDrained: endpoints of a node whose drain has begun do not count, though their slices do
// not have the change yet.
func TestDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "web", "n1", "10.0.0.1"), instance("b", "web", "n2", "10.0.0.2"))
		drained := node("n2", "b")
		drained.Spec.Taints = []corev1.Taint{{Key: mesh.TaintDrain, Effect: corev1.TaintEffectNoExecute}}
		r.client.Seed(drained)
		synctest.Wait() // the kinds have watches of their own: the drain is known before the shift
		r.shift("zone-a", mesh.ZoneShiftSpec{Zone: "a"}, time.Hour)
		r.wantState("zone-a", mesh.ZoneShiftLastEndpoints)
	})
}

// TestTerms: a shift is in effect without a leader, and ends with the next one if its time
// came in between; one that is extended after its end comes into effect again.
func TestTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "web", "n1", "10.0.0.1"), instance("b", "web", "n2", "10.0.0.2"))
		r.shift("zone-a", mesh.ZoneShiftSpec{Zone: "a"}, time.Hour)
		other := r.get("zone-a")
		other.Spec.Reason, other.Generation = "longer than they said", other.Generation+1
		if _, err := r.client.Update(t.Context(), kind.ZoneShift, other); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		if z := r.get("zone-a"); z.Status.Conditions[0].ObservedGeneration != z.Generation || z.Status.Endpoints != 1 {
			t.Errorf("the state of generation %d is %+v", z.Generation, z.Status)
		}
		r.stop()
		r.pass(30 * time.Minute)
		r.start()
		r.wantReady("10.0.0.2")
		r.stop()
		r.pass(time.Hour)
		r.wantReady("10.0.0.2")
		r.start()
		r.wantState("zone-a", mesh.ZoneShiftExpired)
		r.wantReady("10.0.0.1", "10.0.0.2")

		next := r.get("zone-a")
		next.Spec.Until, next.Generation = metav1.NewTime(time.Now().Add(time.Hour)), next.Generation+1
		if _, err := r.client.Update(t.Context(), kind.ZoneShift, next); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		r.wantState("zone-a", mesh.ZoneShiftInEffect)
		r.wantReady("10.0.0.2")
		r.wantEvents("zone-a", mesh.ZoneShiftInEffect, mesh.ZoneShiftExpired, mesh.ZoneShiftInEffect)
	})
}

// TestForeignSlices: endpoints that a user wrote stay, and so a Service has them left.
func TestForeignSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := service("own")
		own.Spec.Selector = nil
		r := newRig(t, instance("a", "web", "n1", "10.0.0.1"), instance("b", "web", "n2", "10.0.0.2"), own, userSlice())
		r.shift("zone-a", mesh.ZoneShiftSpec{Zone: "a"}, time.Hour)
		r.wantState("zone-a", mesh.ZoneShiftInEffect)
		e := zoneshift.Evaluate(r.catalog.Snapshot(), &mesh.ZoneShiftSpec{Zone: "b"}, nil, nil)
		if got := e.LastEndpoints(); !slices.Equal(got, []string{"ns/web"}) {
			t.Errorf("with zone a out, zone b has the last endpoints of %v, want those of ns/web", got)
		}
		if e.Endpoints != 1 || len(e.Services) != 1 || e.Services[0] != (zoneshift.Service{Name: "ns/web", Out: 1, Last: true}) {
			t.Errorf("effect %+v", e)
		}
	})
}

// userSlice is an EndpointSlice of Service own that a user wrote, with an endpoint in zone a.
func userSlice() *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "own-1", UID: "own-1", Labels: map[string]string{discoveryv1.LabelServiceName: "own"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.9"}, Zone: new("a")}},
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
	}
}

// TestDocumentedObject: the object of docs/how-to/zone-shift.md is accepted, once its end is
// in the future.
func TestDocumentedObject(t *testing.T) {
	page, err := os.ReadFile("../../../docs/how-to/zone-shift.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	text, _, ok := strings.Cut(rest, "```")
	z := &mesh.ZoneShift{}
	if err := yaml.UnmarshalStrict([]byte(text), z); err != nil || !ok {
		t.Fatalf("%v in:\n%s", err, text)
	}
	z.Spec.Until = metav1.NewTime(time.Now().Add(time.Hour))
	if errs := kind.ZoneShift.Validate(z, nil); len(errs) > 0 {
		t.Error(errs)
	}
}
