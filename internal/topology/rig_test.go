package topology

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
	"github.com/proxima-mesh/proxima/internal/view"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a cluster in a bubble: a catalog, the EndpointSlice controller that asks the
// controller under test, and the views of zones.
type rig struct {
	t       *testing.T
	client  *resourcetest.Client
	c       *Controller
	builder *view.Builder
	demand  *fakeDemand
	stop    func()
	// unadvised: the EndpointSlices are made without hints of the Controller, as by others.
	unadvised bool
}

// fakeDemand is what tests say it is: connections per second by zone, of any port.
type fakeDemand struct {
	mu     sync.Mutex
	rates  map[string]float64
	volume demand.Volume
	units  demand.Units
	used   float64
}

func (f *fakeDemand) Shares(_ proxy.PortName, _ proxy.Family, zones []locality.Zone, prior []float64, noNodes []bool) demand.Estimate {
	e := Unmeasured{}.Shares(proxy.PortName{}, proxy.AnyFamily, zones, prior, noNodes)
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := 0.0
	for i, z := range zones {
		if noNodes == nil || !noNodes[i] {
			sum += f.rates[string(z)]
		}
	}
	if sum == 0 {
		return e
	}
	e.Measured, e.Rate = true, sum
	for i, z := range zones {
		e.Shares[i] = 0
		if noNodes == nil || !noNodes[i] {
			e.Shares[i] = f.rates[string(z)] / sum
		}
	}
	return e
}

func newRig(t *testing.T, edit func(*Config), objects ...resource.Object) *rig {
	r := &rig{t: t, client: resourcetest.New(), demand: &fakeDemand{rates: map[string]float64{}}}
	r.client.Seed(objects...)
	r.start(edit)
	return r
}

// heuristicChanged is what a change of the object behind a heuristic does.
func (r *rig) heuristicChanged(name string) {
	r.c.heuristicChanged(r.c.config.Catalog.Snapshot(), name)
}

// start begins as a process does; what is known is what the API holds.
func (r *rig) start(edit func(*Config)) {
	world := catalog.New(catalog.Config{Client: r.client, Descriptors: resourcetest.Descriptors()})
	config := Config{Client: r.client, Catalog: world, Demand: r.demand}
	if edit != nil {
		edit(&config)
	}
	r.c = New(config)
	var advisor endpointslice.Advisor = r.c
	if r.unadvised {
		advisor = nil
	}
	slicesController := endpointslice.New(endpointslice.Config{Client: r.client, Catalog: world, Slices: kindOf("EndpointSlice"), Advisor: advisor})
	plans := &trafficplan.Table{}
	r.builder = view.NewBuilder(view.BuilderConfig{Run: "test", Weights: plans.Weights, Own: plans.Own, ReadySince: plans.ReadySince})
	sub := world.Subscribe(catalog.Services, catalog.Slices, catalog.Nodes, catalog.Plans, catalog.Dataplanes)

	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 4)
	for _, run := range []func(context.Context) error{
		world.Run, slicesController.Run, r.c.Run,
		func(ctx context.Context) error { defer sub.Close(); return view.Follow(ctx, sub, r.builder, plans) },
	} {
		go func() { done <- run(ctx) }()
	}
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range 4 {
			if err := <-done; err != nil {
				r.t.Error(err)
			}
		}
	}
	r.t.Cleanup(r.stop)
	r.settle()
}

// settle lets windows pass, but no report of demand.
func (r *rig) settle() {
	r.t.Helper()
	for range 3 {
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
	}
}

func kindOf(name string) *resource.Descriptor {
	for _, d := range resourcetest.Descriptors() {
		if d.GVK.Kind == name {
			return d
		}
	}
	panic(name)
}

func (r *rig) delete(kind, namespace, name string) {
	r.t.Helper()
	if err := r.client.Delete(r.t.Context(), kindOf(kind), resource.Key{Namespace: namespace, Name: name}, resource.Preconditions{}); err != nil {
		r.t.Fatal(err)
	}
	r.settle()
}

func (r *rig) seed(objects ...resource.Object) {
	r.client.Seed(objects...)
	r.settle()
}

func list[T resource.Object](r *rig, kind string) []T {
	r.t.Helper()
	objects, _, err := r.client.List(r.t.Context(), kindOf(kind), resource.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	var out []T
	for _, o := range objects {
		out = append(out, o.(T))
	}
	slices.SortFunc(out, func(a, b T) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

func (r *rig) service() *corev1.Service { return list[*corev1.Service](r, "Service")[0] }

// annotate changes annotations of the Service; an empty value takes one away.
func (r *rig) annotate(pairs ...string) {
	r.t.Helper()
	r.annotateNamed(r.service().Name, pairs...)
}

func (r *rig) annotateNamed(name string, pairs ...string) {
	r.t.Helper()
	all := list[*corev1.Service](r, "Service")
	s := all[slices.IndexFunc(all, func(s *corev1.Service) bool { return s.Name == name })]
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			delete(s.Annotations, pairs[i])
		} else {
			s.Annotations[pairs[i]] = pairs[i+1]
		}
	}
	if _, err := r.client.Update(r.t.Context(), kind.Service, s); err != nil {
		r.t.Fatal(err)
	}
	r.settle()
}

// hints by endpoint name: the zones and nodes that it names.
func (r *rig) hints() string {
	var out []string
	for _, s := range list[*discoveryv1.EndpointSlice](r, "EndpointSlice") {
		for _, e := range s.Endpoints {
			line := e.TargetRef.Name + ":"
			if e.Hints != nil {
				for _, z := range e.Hints.ForZones {
					line += z.Name
				}
				for _, n := range e.Hints.ForNodes {
					line += "@" + n.Name
				}
			}
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (r *rig) wantHints(what, want string) {
	r.t.Helper()
	if got := r.hints(); got != want {
		r.t.Errorf("%s: hints\n%s, want\n%s", what, got, want)
	}
}

// events so far, in order: reason and message.
func (r *rig) events() []string {
	var out []string
	for _, e := range list[*corev1.Event](r, "Event") {
		out = append(out, fmt.Sprintf("%s %s: %s", e.Type, e.Reason, e.Message))
	}
	return out
}

func (r *rig) wantEvents(what string, want ...string) {
	r.t.Helper()
	if diff := cmp.Diff(want, r.events()); diff != "" {
		r.t.Errorf("%s: events %s", what, diff)
	}
}

// condition as "status reason: message"; empty: there is none.
func (r *rig) condition(typ string) string {
	c := meta.FindStatusCondition(r.service().Status.Conditions, typ)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

func (r *rig) wantCondition(what, typ, want string) {
	r.t.Helper()
	if got := r.condition(typ); got != want {
		r.t.Errorf("%s: condition %s\n%s, want\n%s", what, typ, got, want)
	}
}

// fataler is a test of either kind.
type fataler interface {
	Helper()
	Fatal(args ...any)
}

// view is what an agent of a zone gets.
func (r *rig) view(zone string) []*proxy.Slice {
	r.t.Helper()
	return read(r.t, r.builder, zone)
}

// read the slices of a zone's view as an agent does, without what else travels.
func read(t fataler, b *view.Builder, zone string) []*proxy.Slice {
	t.Helper()
	scope, err := b.Scope(locality.Zone(zone))
	if err != nil {
		t.Fatal(err)
	}
	session := delta.NewSession(scope)
	if err := session.Step(delta.Request{Type: wire.SliceType}); err != nil {
		t.Fatal(err)
	}
	var out []*proxy.Slice
	for {
		frame, err := session.Next()
		if err != nil {
			t.Fatal(err)
		}
		if frame == nil {
			return out
		}
		var response discovery.DeltaDiscoveryResponse
		if err := proto.Unmarshal(frame.Data, &response); err != nil {
			t.Fatal(err)
		}
		for _, res := range response.Resources {
			out = append(out, decode(t, res.Resource.Value))
		}
	}
}

func decode(t fataler, body []byte) *proxy.Slice {
	var m nodev1.EndpointSlice
	if err := proto.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	s := &proxy.Slice{Name: proxy.SliceName{Namespace: m.Namespace, Name: m.Name}}
	for _, p := range m.Ports {
		s.Ports = append(s.Ports, proxy.SlicePort{Name: p.Name, Port: uint16(p.Port), Protocol: proxy.TCP})
	}
	name := func(i uint32) string {
		if i == 0 {
			return ""
		}
		return m.Names[i-1]
	}
	for _, e := range m.Endpoints {
		addr, _ := netip.AddrFromSlice(e.Address)
		out := proxy.SliceEndpoint{
			Addr: addr, Node: name(e.Node), Zone: locality.Zone(name(e.Zone)), Weight: e.Weight,
			Ready: !e.NotReady, Serving: !e.NotServing, Terminating: e.Terminating,
		}
		var zones, nodes []string
		for _, z := range e.HintZones {
			zones = append(zones, name(z))
		}
		for _, n := range e.HintNodes {
			nodes = append(nodes, name(n))
		}
		out.Hints = proxy.HintsOf(locality.Zones(zones...), nodes)
		s.Endpoints = append(s.Endpoints, out)
	}
	for i, e := range m.Endpoints {
		if e.ReadyUnixSeconds > 0 {
			s.SetReadySince(i, int64(e.ReadyUnixSeconds), len(m.Endpoints))
		}
	}
	return s
}

// shares of new connections from a node of a zone, by the zone of the endpoint, as the
// agent there chooses from its view.
func (r *rig) shares(zone string) map[string]float64 {
	return sharesOf(r.view(zone), proxy.Port{Name: "http", Protocol: proxy.TCP, Port: 80}, zone)
}

func sharesOf(from []*proxy.Slice, port proxy.Port, zone string) map[string]float64 {
	zoneOf := map[netip.Addr]string{}
	for _, s := range from {
		for _, e := range s.Endpoints {
			zoneOf[e.Addr] = string(e.Zone)
		}
	}
	state := choose.Slices(&proxy.Service{}, port, from, choose.Node{Name: "node-" + zone, Zone: locality.Zone(zone)})
	total, out := 0.0, map[string]float64{}
	for _, t := range state.IPv4.Cluster {
		total += float64(t.Weight)
		out[zoneOf[t.Addr.Addr()]] += float64(t.Weight)
	}
	for z := range out {
		out[z] /= total
	}
	return out
}

// percents prints shares of a source zone: "a 40 b 60".
func (r *rig) percents(zone string) string {
	s := r.shares(zone)
	var out []string
	for _, z := range sortedKeys(s) {
		out = append(out, fmt.Sprintf("%s %.1f", z, 100*s[z]))
	}
	return strings.Join(out, " ")
}

func (r *rig) wantPercents(what, zone, want string) {
	r.t.Helper()
	if got := r.percents(zone); got != want {
		r.t.Errorf("%s: from %s goes %s, want %s", what, zone, got, want)
	}
}

// node in a zone of region eu, ready, with 4 CPUs; edits change it.
func node(name, zone string, edits ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone, corev1.LabelTopologyRegion: "eu"}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("4")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, edit := range edits {
		edit(n)
	}
	return n
}

func cpu(s string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse(s)}
	}
}
func down(n *corev1.Node)     { n.Status.Conditions[0].Status = corev1.ConditionFalse }
func zoneless(n *corev1.Node) { n.Labels = nil }
func master(n *corev1.Node)   { n.Labels["node-role.kubernetes.io/control-plane"] = "" }
func evicted(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoExecute}}
}

// equalNodes are one in each zone, named by letters.
func equalNodes(zones string) []resource.Object {
	var out []resource.Object
	for _, z := range zones {
		out = append(out, node("node-"+string(z), string(z)))
	}
	return out
}

// web is the Service; pairs are its annotations.
func web(pairs ...string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "svc-1", Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for i := 0; i < len(pairs); i += 2 {
		s.Annotations[pairs[i]] = pairs[i+1]
	}
	return s
}

func adaptive(pairs ...string) *corev1.Service {
	return web(append([]string{corev1.AnnotationTopologyMode, Adaptive}, pairs...)...)
}

// workloads are one for each letter, in the zone of that name: "a1", "a2", "b1". A
// capital one is not ready.
func workloads(zones string) []resource.Object {
	var out []resource.Object
	counts := map[rune]int{}
	for i, z := range zones {
		zone := strings.ToLower(string(z))
		counts[rune(zone[0])]++
		out = append(out, workload(fmt.Sprintf("%s%d", zone, counts[rune(zone[0])]), zone, i+1, zone == string(z)))
	}
	return out
}

func workload(name, zone string, ip int, ready bool) *meshv1alpha1.Dataplane {
	status := metav1.ConditionTrue
	if !ready {
		status = metav1.ConditionFalse
	}
	return &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("dp-" + name), Labels: map[string]string{"app": "web"}},
		Spec: meshv1alpha1.DataplaneSpec{
			Addresses: []string{fmt.Sprintf("10.0.%d.%d", ip/250, ip%250+1)}, NodeName: "node-" + zone,
			Ports: []meshv1alpha1.DataplanePort{{Name: "http", Port: 8080}},
		},
		Status: meshv1alpha1.DataplaneStatus{Conditions: []metav1.Condition{{Type: meshv1alpha1.DataplaneReady, Status: status}}},
	}
}

func all(lists ...[]resource.Object) []resource.Object { return slices.Concat(lists...) }

func one(o ...resource.Object) []resource.Object { return o }

func countSliceWrites(n *int) func(resourcetest.Call) error {
	return func(call resourcetest.Call) error {
		if call.Kind.Kind == "EndpointSlice" && call.Verb != resourcetest.List && call.Verb != resourcetest.Watch {
			*n++
		}
		return nil
	}
}

// set what is measured; nil: nothing.
func (f *fakeDemand) set(rates map[string]float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rates = rates
}

// percentsNow lets what is under way end, but no time pass.
func (r *rig) percentsNow(zone string) string {
	synctest.Wait()
	return r.percents(zone)
}

// runCatalog fills a catalog; stop ends what keeps it up to date.
func runCatalog(t fataler, world *catalog.Catalog) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = world.Run(ctx) }()
	if err := world.WaitSynced(ctx); err != nil {
		t.Fatal(err)
	}
	return func() { cancel(); <-done }
}

// snapshotOf is a catalog that holds some objects.
func snapshotOf(t fataler, objects ...resource.Object) *catalog.Snapshot {
	client := resourcetest.New()
	client.Seed(objects...)
	return snapshotOfClient(t, client)
}

func snapshotOfClient(t fataler, client resource.Client) *catalog.Snapshot {
	world := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
	defer runCatalog(t, world)()
	return world.Snapshot()
}

// planOf is the plan that a Service would have, from a snapshot that holds it.
func planOf(t fataler, c *Controller, snapshot *catalog.Snapshot, key resource.Key) []*plannerv1alpha1.TrafficPlan {
	if _, ready := c.model.current(); !ready {
		c.model = modelOf(snapshot, c.config.Site)
	}
	service, ok := snapshot.Services.Get(key)
	if !ok {
		t.Fatal("no service ", key)
	}
	spec, publish := c.evaluate(snapshot, service, partsOf(snapshot, key))
	publish()
	if spec == nil {
		return nil
	}
	return partsFor(service, spec)
}

// delivered is the view of a zone of a snapshot.
func delivered(t *rapid.T, zone string, snapshot *catalog.Snapshot) []*proxy.Slice {
	b := view.NewBuilder(view.BuilderConfig{Run: "test", Weights: func(zone locality.Zone, slice *discoveryv1.EndpointSlice) []uint32 {
		return trafficplan.Of(snapshot, trafficplan.ServiceOf(slice)).Weights(zone, slice)
	}})
	var all []catalog.Change[*discoveryv1.EndpointSlice]
	for key, slice := range snapshot.Slices.All() {
		all = append(all, catalog.Change[*discoveryv1.EndpointSlice]{Key: key, New: slice})
	}
	if err := b.Replace(&catalog.Delta{After: snapshot, Slices: all}); err != nil {
		t.Fatal(err)
	}
	return read(t, b, zone)
}
