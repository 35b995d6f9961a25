package drain_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/drain"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the controller at work beside that of EndpointSlices, inside a bubble of fake time.
type rig struct {
	t      *testing.T
	client *resourcetest.Client
	op     *drain.Operator
	// mu guards what agents answer: the open connections, and why they do not count them; how
	// long that takes, and how often they were asked.
	mu      sync.Mutex
	open    map[netip.AddrPort]int
	silence error
	takes   time.Duration
	asked   int
	clock   steppedClock // of the controller
}

// steppedClock is a calendar's clock that is set ahead at some time, beside a monotonic one
// that goes on.
type steppedClock struct{ ahead *atomic.Int64 }

func (c steppedClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c steppedClock) Since(t time.Time) time.Duration {
	if d := c.Now().Sub(t); d.Abs() < 30*time.Minute {
		return d // no step was between
	}
	return time.Since(t)
}

func newRig(t *testing.T, objects ...resource.Object) *rig {
	r := &rig{t: t, client: resourcetest.New(append(resourcetest.Descriptors(), kind.Event)...), open: map[netip.AddrPort]int{}, clock: steppedClock{new(atomic.Int64)}}
	r.client.Seed(node("n1"), node("n2"), service("web"))
	r.client.Seed(objects...)
	cat := catalog.New(catalog.Config{Client: r.client, Descriptors: resourcetest.Descriptors()})
	count := func(context.Context, string) (map[netip.AddrPort]int, error) {
		r.mu.Lock()
		r.asked++
		takes := r.takes
		r.mu.Unlock()
		time.Sleep(takes)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.silence != nil {
			return nil, r.silence
		}
		return maps.Clone(r.open), nil
	}
	r.op = &drain.Operator{Client: r.client, Catalog: cat, Count: count}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 3)
	for _, run := range []func(context.Context) error{
		cat.Run,
		endpointslice.New(endpointslice.Config{Client: r.client, Catalog: cat, Slices: kind.EndpointSlice}).Run,
		drain.New(drain.Config{Client: r.client, Catalog: cat, Count: count, Clock: r.clock}).Run,
	} {
		go func() { _ = run(ctx); done <- struct{}{} }()
	}
	t.Cleanup(func() {
		cancel()
		for range 3 {
			<-done
		}
	})
	r.pass(time.Second)
	return r
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
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

// instance of Service web, on a node, whose connections have 10 s to end.
func instance(name, on, ip string) *mesh.Dataplane {
	return &mesh.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}},
		Spec: mesh.DataplaneSpec{
			NodeName: on, Addresses: []string{ip}, Ports: []mesh.DataplanePort{{Port: 8080}}, DrainSeconds: new(int32(10)),
		},
		Status: mesh.DataplaneStatus{Conditions: []metav1.Condition{{Type: mesh.DataplaneReady, Status: metav1.ConditionTrue}}},
	}
}

// counted sets the open connections at an endpoint.
func (r *rig) counted(at netip.AddrPort, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[at] = n
}

// silent sets why agents count no connections; nil: they do.
func (r *rig) silent(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silence = why
}

func (r *rig) pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func (r *rig) progress(name string) drain.Progress {
	r.t.Helper()
	p, err := r.op.Progress(r.t.Context(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func (r *rig) want(state drain.State, waiting ...string) {
	r.t.Helper()
	p := r.progress("n1")
	if p.State != state || len(p.Waiting) != len(waiting) {
		r.t.Fatalf("%s, waiting for %q; want %s, %q", p.State, p.Waiting, state, waiting)
	}
	for i, text := range waiting {
		if !strings.Contains(p.Waiting[i], text) {
			r.t.Errorf("waiting for %q, want %q", p.Waiting[i], text)
		}
	}
}

// ready are the addresses of endpoints that get new connections.
func (r *rig) ready() (out []string) {
	r.t.Helper()
	for _, slice := range r.op.Catalog.Snapshot().SlicesOf(resource.Key{Namespace: "ns", Name: "web"}) {
		for _, e := range slice.Endpoints {
			if *e.Conditions.Ready {
				out = append(out, e.Addresses[0])
			} else if !*e.Conditions.Serving || !*e.Conditions.Terminating {
				r.t.Errorf("endpoint %s is not ready, and serving %t, terminating %t", e.Addresses[0], *e.Conditions.Serving, *e.Conditions.Terminating)
			}
		}
	}
	slices.Sort(out)
	return out
}

func (r *rig) wantReady(want ...string) {
	r.t.Helper()
	if got := r.ready(); !slices.Equal(got, want) {
		r.t.Fatalf("ready are %v, want %v", got, want)
	}
}

// events about n1, in order.
func (r *rig) wantEvents(want ...string) {
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
		e := obj.(*corev1.Event)
		if e.InvolvedObject.Kind != "Node" || e.InvolvedObject.Name != "n1" {
			r.t.Errorf("an event about %v", e.InvolvedObject)
		}
		got = append(got, e.Reason)
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("events %v, want %v", got, want)
	}
}

func (r *rig) node(name string) *corev1.Node {
	r.t.Helper()
	obj, err := r.client.Get(r.t.Context(), kind.Node, resource.Key{Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	return obj.(*corev1.Node)
}

var atA = netip.MustParseAddrPort("10.0.0.1:8080")

// TestDrain is the whole way: connections end, the node is drained, stays so, and comes back.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "n1", "10.0.0.1"), instance("b", "n2", "10.0.0.2"))
		r.wantReady("10.0.0.1", "10.0.0.2")
		r.want(drain.InUse)
		r.counted(atA, 2)

		p, err := r.op.Start(t.Context(), "n1", "admin", false, false)
		if err != nil || p.State != drain.Draining {
			t.Fatalf("%+v, %v", p, err)
		}
		r.pass(2500 * time.Millisecond)
		r.wantReady("10.0.0.2")
		r.want(drain.Draining, "Dataplane ns/a has 2 open connections, and 8 s for them to end")
		r.counted(atA, 0)
		r.want(drain.Draining, "has not noted")
		r.pass(time.Second)
		r.want(drain.Drained)
		r.wantEvents("Draining", "Drained")
		if d := kind.DrainOf(r.node("n1")); d.State() != "Drained" || d.By != "admin" {
			t.Errorf("the Node says %+v", d)
		}

		again, err := r.op.Start(t.Context(), "n1", "other", false, false)
		if err != nil || again.State != drain.Drained || again.By != "admin" {
			t.Errorf("a second drain: %+v, %v", again, err)
		}
		r.silent(errors.New("the machine is being rebooted"))
		r.pass(time.Minute)
		r.want(drain.Drained)
		r.silent(nil)

		if _, changed, err := r.op.End(t.Context(), "n1"); err != nil || !changed {
			t.Fatal(changed, err)
		}
		r.pass(time.Second)
		r.wantReady("10.0.0.1", "10.0.0.2")
		r.want(drain.InUse)
		r.wantEvents("Draining", "Drained", "Undrained")
		if n := r.node("n1"); n.Spec.Unschedulable || len(n.Spec.Taints)+len(n.Annotations) > 0 {
			t.Errorf("not restored: %+v %v", n.Spec, n.Annotations)
		}
	})
}

// TestNotTooEarly: no connection is no proof until other machines know of the drain.
func TestNotTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "n1", "10.0.0.1"), instance("b", "n2", "10.0.0.2"))
		if _, err := r.op.Start(t.Context(), "n1", "admin", false, false); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		r.want(drain.Draining, "agents of other machines may not know of it yet")
		r.pass(drain.Settle + time.Second)
		r.want(drain.Drained)
	})
}

// TestTimeIsOver: connections that outlast the time of their workload do not hold up a
// drain, and connections that nobody can count hold it up until then.
func TestTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "n1", "10.0.0.1"), instance("b", "n2", "10.0.0.2"))
		r.counted(atA, 3)
		if _, err := r.op.Start(t.Context(), "n1", "admin", false, false); err != nil {
			t.Fatal(err)
		}
		r.pass(9 * time.Second)
		r.want(drain.Draining, "3 open connections")
		r.silent(errors.New("no agent"))
		r.want(drain.Draining, "open connections that cannot be counted")
		r.silent(nil)
		r.pass(2 * time.Second)
		r.want(drain.Drained)
		p := r.progress("n1")
		if text := p.Summary(); p.Cut != 3 || !strings.Contains(text, "the time of 3 open connections is over, a reboot breaks them: ns/a (3)") {
			t.Errorf("%d: %s", p.Cut, text)
		}
	})
}

// TestLastEndpoint: the last endpoint of a Service is not taken out unless that is forced,
// and then the drain does not hide it.
func TestLastEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "n1", "10.0.0.1"))
		dry, err := r.op.Start(t.Context(), "n1", "admin", false, true)
		if err != nil || !slices.Equal(dry.LastEndpoints, []string{"ns/web"}) {
			t.Errorf("dry run: %v, %v", dry.LastEndpoints, err)
		}
		_, err = r.op.Start(t.Context(), "n1", "admin", false, false)
		if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "no endpoint for Service ns/web") {
			t.Fatalf("the error is %v", err)
		}
		if len(r.node("n1").Spec.Taints) > 0 {
			t.Fatal("the node was tainted all the same")
		}
		if _, err := r.op.Start(t.Context(), "n1", "admin", true, false); err != nil {
			t.Fatal(err)
		}
		r.pass(3 * time.Second)
		r.wantReady()
		r.want(drain.Drained)
		if p := r.progress("n1"); !strings.Contains(p.Summary(), "no other node has an endpoint of Service ns/web") {
			t.Error(p.Summary())
		}
	})
}

// TestLastEndpointMeanwhile: the other endpoint goes while the node is draining, as when two
// nodes are drained at the same time.
func TestLastEndpointMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "n1", "10.0.0.1"), instance("b", "n2", "10.0.0.2"))
		if _, err := r.op.Start(t.Context(), "n1", "admin", false, false); err != nil {
			t.Fatal(err)
		}
		if err := r.client.Delete(t.Context(), kind.Dataplane, resource.Key{Namespace: "ns", Name: "b"}, resource.Preconditions{Now: true}); err != nil {
			t.Fatal(err)
		}
		r.pass(3 * time.Second)
		r.want(drain.Draining, "no other node has an endpoint of Service ns/web")
	})
}

// TestTwoDrains: a node is not drained while the only other endpoints are on a node that is
// being drained, whether their slices say so yet or not.
func TestTwoDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "n1", "10.0.0.1"), instance("b", "n2", "10.0.0.2"))
		r.client.Intercept(func(call resourcetest.Call) error {
			if call.Kind.Kind == "EndpointSlice" && call.Object != nil {
				return errors.New("the slices stay as they are")
			}
			return nil
		})
		if _, err := r.op.Start(t.Context(), "n1", "admin", false, false); err != nil {
			t.Fatal(err)
		}
		if _, err := r.op.Start(t.Context(), "n2", "admin", false, false); !apierrors.IsConflict(err) {
			t.Errorf("at once: %v", err)
		}
		r.pass(time.Second)
		r.wantReady("10.0.0.1", "10.0.0.2")
		if _, err := r.op.Start(t.Context(), "n2", "admin", false, false); !apierrors.IsConflict(err) {
			t.Errorf("later: %v", err)
		}
		if _, err := r.op.Start(t.Context(), "n2", "admin", true, false); err != nil {
			t.Errorf("forced: %v", err)
		}
	})
}

// TestTwoDrainsAtOnce: of two drains that begin at the same moment, by two instances of the
// control plane, one is taken back.
func TestTwoDrainsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "n1", "10.0.0.1"), instance("b", "n2", "10.0.0.2"))
		var between sync.Once
		var other error
		r.client.Intercept(func(call resourcetest.Call) error {
			if call.Verb == resourcetest.Update && call.Key.Name == "n1" { // it was checked, and is not written
				between.Do(func() { _, other = r.op.Start(t.Context(), "n2", "other", false, false) })
			}
			return nil
		})
		_, err := r.op.Start(t.Context(), "n1", "admin", false, false)
		if other != nil || !apierrors.IsConflict(err) {
			t.Errorf("the first to write: %v, the second: %v; want a conflict of that", other, err)
		}
		r.pass(time.Second)
		r.wantReady("10.0.0.1")
		if n := r.node("n1"); n.Spec.Unschedulable || len(n.Spec.Taints)+len(n.Annotations) > 0 {
			t.Errorf("not restored: %+v %v", n.Spec, n.Annotations)
		}
		r.pass(3 * time.Second)
		if p := r.progress("n2"); p.State != drain.Drained {
			t.Errorf("n2: %+v", p)
		}
	})
}

// TestAgentsAreAskedOncePerSecond, whatever happens to other nodes.
func TestAgentsAreAskedOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "n1", "10.0.0.1"), instance("b", "n2", "10.0.0.2"))
		r.counted(atA, 1)
		if _, err := r.op.Start(t.Context(), "n1", "admin", false, false); err != nil {
			t.Fatal(err)
		}
		r.pass(1500 * time.Millisecond)
		before := r.asked
		for i := range 20 {
			n := node("n2")
			n.Labels = map[string]string{"at": strconv.Itoa(i)}
			r.client.Seed(n)
			synctest.Wait()
		}
		if n := r.asked - before; n > 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

// TestSilentAgents: agents that do not answer take their time all at once.
func TestSilentAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := []resource.Object{instance("b", "n2", "10.0.0.2")}
		for i := range 10 {
			name := "m" + strconv.Itoa(i)
			n := node(name)
			n.Spec.Taints = []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoExecute}}
			objects = append(objects, n, instance(name, name, "10.0.1."+strconv.Itoa(i)))
		}
		r := newRig(t, objects...)
		r.silent(errors.New("no answer"))
		r.mu.Lock()
		r.takes = 2 * time.Second
		r.mu.Unlock()
		r.pass(16 * time.Second) // the 10 s of the workloads, and twice the time of an answer
		for i := range 10 {
			if n := r.node("m" + strconv.Itoa(i)); kind.DrainOf(n).State() != "Drained" {
				t.Errorf("node %s is %s", n.Name, kind.DrainOf(n).State())
			}
		}
	})
}

// TestClockIsSet: a step of the calendar's clock gives connections no less time, and a drain
// that begins in what is the future of the leader's clock ends all the same.
func TestClockIsSet(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, instance("a", "n1", "10.0.0.1"), instance("b", "n2", "10.0.0.2"))
			r.counted(atA, 1)
			if step < 0 {
				r.clock.ahead.Store(int64(step))
			}
			if _, err := r.op.Start(t.Context(), "n1", "admin", false, false); err != nil {
				t.Fatal(err)
			}
			r.pass(3 * time.Second)
			r.clock.ahead.Store(int64(step))
			r.pass(4 * time.Second)
			if d := kind.DrainOf(r.node("n1")); d.State() != "Draining" {
				t.Errorf("a step of %v: %s after 7 s, of 10", step, d.State())
			}
			r.pass(5 * time.Second)
			if d := kind.DrainOf(r.node("n1")); d.State() != "Drained" {
				t.Errorf("a step of %v: %s after 12 s, of 10", step, d.State())
			}
		})
	}
}

// TestRecordThatCannotBeRead: a drain with a record that is no record, and a taint that does not
// say since when, begins when it is seen, and ends.
func TestRecordThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := node("n1")
		n.Annotations = map[string]string{mesh.AnnotationDrain: "x"}
		n.Spec.Taints = []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoExecute}}
		r := newRig(t, n, instance("a", "n1", "10.0.0.1"), instance("b", "n2", "10.0.0.2"))
		r.pass(5 * time.Second)
		r.want(drain.Drained)
	})
}

// TestTaintOfOthers: a taint that kubectl sets drains the node, and is the one to remove.
func TestTaintOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, instance("a", "n1", "10.0.0.1"), instance("b", "n2", "10.0.0.2"))
		n := r.node("n1").DeepCopy()
		n.Spec.Taints = []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoExecute}}
		if _, err := r.client.Update(t.Context(), kind.Node, n); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		r.wantReady("10.0.0.2")
		if d := kind.DrainOf(r.node("n1")); d.Since.IsZero() || d.By != "" || d.Cordoned {
			t.Errorf("the record is %+v", d)
		}
		r.pass(3 * time.Second)
		r.want(drain.Drained)
		p, changed, err := r.op.End(t.Context(), "n1")
		if err != nil || changed || p.State != drain.Drained || p.Taint != "maintenance:NoExecute" {
			t.Errorf("%+v, %t, %v", p, changed, err)
		}
		n = r.node("n1").DeepCopy()
		n.Spec.Taints = nil
		if _, err := r.client.Update(t.Context(), kind.Node, n); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		r.wantReady("10.0.0.1", "10.0.0.2")
		r.wantEvents("Draining", "Drained", "Undrained")
		if n := r.node("n1"); len(n.Annotations) > 0 {
			t.Errorf("the record stays: %v", n.Annotations)
		}
	})
}
