package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// descriptors of the test: a mesh and costs of global, Dataplanes of zones, and
// ConfigMaps as what goes from zone to zone.
type descriptors struct {
	mesh, costs, dataplane, ingress, namespace, config *resource.Descriptor
}

func newDescriptors() descriptors {
	ingress := *kind.Service
	ingress.Direction = resource.ZoneToZones
	ingress.Default, ingress.Prepare, ingress.Validate = nil, nil, nil
	return descriptors{
		mesh: kind.Mesh, costs: kind.ZoneCosts, dataplane: kind.Dataplane, ingress: &ingress,
		namespace: kind.Namespace, config: kind.ConfigMap,
	}
}

func (d descriptors) kinds(t testing.TB) []Kind {
	t.Helper()
	of := func(d *resource.Descriptor, change func(*Kind)) Kind {
		typ, ok := TypeOf(d)
		if !ok {
			t.Fatalf("%s does not travel", d.Resource)
		}
		k := Kind{Descriptor: d, Type: typ}
		change(&k)
		return k
	}
	return []Kind{
		of(d.mesh, func(k *Kind) {
			k.Type.KeepName = true
			k.Policy = true
			k.Untouched = func(o resource.Object) bool { return kind.UntouchedMesh(o.(*meshv1alpha1.Mesh)) }
		}),
		of(d.costs, func(*Kind) {}),
		of(d.ingress, func(k *Kind) { k.Type.Transient = true }),
		of(d.dataplane, func(k *Kind) {
			k.Type.Transient = true
			k.Mesh = func(o resource.Object) string { return o.(*meshv1alpha1.Dataplane).Spec.Mesh }
			k.Stamp = func(o resource.Object, zone string) {
				metav1.SetMetaDataLabel(&o.(*meshv1alpha1.Dataplane).ObjectMeta, corev1.LabelTopologyZone, zone)
			}
		}),
	}
}

// site is a control plane with a store in memory.
type site struct {
	t      testing.TB
	name   string
	side   federation.Side
	kinds  descriptors
	client *resourcetest.Client
	outlet *Outlet
}

func newSite(t testing.TB, ctx context.Context, name string, side federation.Side, running *sync.WaitGroup) *site {
	t.Helper()
	d := newDescriptors()
	s := &site{t: t, name: name, side: side, kinds: d}
	s.client = resourcetest.New(d.mesh, d.costs, d.dataplane, d.ingress, d.namespace, d.config)
	zone := name
	if side == federation.AtGlobal {
		zone = ""
	}
	var err error
	s.outlet, err = NewOutlet(OutletConfig{Client: s.client, Kinds: d.kinds(t), Side: side, Zone: zone, StoreEpoch: "epoch-" + name})
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() { _ = s.outlet.Run(ctx) })
	return s
}

// inlet for what comes over the link of a zone.
func (s *site) inlet(zone string) *Inlet {
	s.t.Helper()
	i, err := NewInlet(InletConfig{
		Client: s.client, Kinds: s.kinds.kinds(s.t), Side: s.side, Zone: zone, Namespace: "system",
		Checkpoints: &ConfigMapCheckpoints{
			Client: s.client, Kind: s.kinds.config, Key: resource.Key{Namespace: "system", Name: "federation-" + zone},
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return i
}

// link joins an outlet and an inlet until ctx ends. Streams that fail begin again.
func link(ctx context.Context, t testing.TB, o *Outlet, zone string, i *Inlet, protocol int) {
	versions := false
	for ctx.Err() == nil {
		err := stream(ctx, o, zone, i, federation.StreamOptions{Protocol: protocol, Versions: versions})
		if ctx.Err() != nil {
			return
		}
		versions = strings.Contains(err.Error(), "versions of your resources")
		t.Logf("stream of %s ended: %v", zone, err)
		time.Sleep(100 * time.Millisecond) // of the bubble's clock
	}
}

// stream is one stream, without a network.
func stream(ctx context.Context, o *Outlet, zone string, i *Inlet, options federation.StreamOptions) error {
	requests := make(chan proto.Message, 100)
	flow, err := i.Open(ctx, options, func(m proto.Message) error { requests <- m; return nil })
	if err != nil {
		return err
	}
	defer flow.Close()
	step, next := deltaStream(o.Sender(zone))
	if options.Protocol == 1 {
		step, next = projectedStream(o.Sender(zone))
	}
	for {
		changed := o.Changed()
		m, err := next()
		if err != nil {
			return err
		}
		if m != nil {
			if err := flow.Receive(ctx, m); err != nil {
				return err
			}
			continue
		}
		select {
		case r := <-requests:
			if err := step(r); err != nil {
				return err
			}
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func deltaStream(c federation.SenderConfig) (step func(proto.Message) error, next func() (proto.Message, error)) {
	s := federation.NewSender(c)
	return func(m proto.Message) error { return s.Step(m.(*discovery.DeltaDiscoveryRequest)) }, func() (proto.Message, error) {
		m, err := s.Next()
		if m == nil {
			return nil, err
		}
		var d discovery.DeltaDiscoveryResponse
		return &d, proto.Unmarshal(slices.Concat(m.Parts()...), &d)
	}
}

func projectedStream(c federation.SenderConfig) (step func(proto.Message) error, next func() (proto.Message, error)) {
	s := federation.NewProjectedSender(c)
	return func(m proto.Message) error { return s.Step(m.(*discovery.DiscoveryRequest)) }, func() (proto.Message, error) {
		m, err := s.Next()
		if m == nil {
			return nil, err
		}
		return m, nil
	}
}

// names of the objects of a kind, sorted, each with the label that names its owner.
func (s *site) names(d *resource.Descriptor) []string {
	s.t.Helper()
	objects, _, err := s.client.List(context.Background(), d, resource.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	var out []string
	for _, o := range objects {
		name := o.GetName()
		if owner, ok := federation.OwnerOf(o.GetLabels()); ok {
			name = fmt.Sprintf("%s of %s", o.GetLabels()[federation.LabelDisplayName], owner)
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func (s *site) want(d *resource.Descriptor, names ...string) {
	s.t.Helper()
	synctest.Wait()
	slices.Sort(names)
	if diff := cmp.Diff(names, s.names(d)); diff != "" {
		s.t.Errorf("%s at %s: -want +got\n%s", d.Resource, s.name, diff)
	}
}

func (s *site) create(d *resource.Descriptor, o resource.Object) resource.Object {
	s.t.Helper()
	out, err := s.client.Create(context.Background(), d, o)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *site) delete(d *resource.Descriptor, namespace, name string) {
	s.t.Helper()
	if err := s.client.Delete(context.Background(), d, resource.Key{Namespace: namespace, Name: name}, resource.Preconditions{}); err != nil {
		s.t.Fatal(err)
	}
}

func newMesh(name string) *meshv1alpha1.Mesh {
	return &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func newDataplane(name string) *meshv1alpha1.Dataplane {
	return &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Labels: map[string]string{corev1.LabelTopologyZone: "forged"}},
		Spec:       meshv1alpha1.DataplaneSpec{Addresses: []string{"10.0.0.1"}, Ports: []meshv1alpha1.DataplanePort{{Port: 80}}},
	}
}

// world is global and two zones, joined.
type world struct {
	global, east, west *site
	inlets             map[string]*Inlet // by "receiver zone"
}

// newWorld joins sites until the test ends. cut ends it earlier.
func newWorld(t *testing.T, protocol int) (w *world, cut func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	cut = func() { cancel(); running.Wait() }
	t.Cleanup(cut)
	w = &world{
		global: newSite(t, ctx, "global", federation.AtGlobal, &running), east: newSite(t, ctx, "east", federation.AtZone, &running),
		west: newSite(t, ctx, "west", federation.AtZone, &running), inlets: map[string]*Inlet{},
	}
	for _, z := range []*site{w.east, w.west} {
		down, up := z.inlet(z.name), w.global.inlet(z.name)
		w.inlets[z.name+" "+z.name], w.inlets["global "+z.name] = down, up
		running.Go(func() { link(ctx, t, w.global.outlet, z.name, down, protocol) })
		running.Go(func() { link(ctx, t, z.outlet, "", up, protocol) })
		running.Go(func() { _ = down.Run(ctx, z.kinds.namespace) })
	}
	return w, cut
}

func TestConvergence(t *testing.T) {
	for protocol := 1; protocol <= 2; protocol++ {
		t.Run(fmt.Sprintf("protocol %d", protocol), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testConvergence(t, protocol) })
		})
	}
}

func testConvergence(t *testing.T, protocol int) {
	w, _ := newWorld(t, protocol)
	g, e := w.global, w.east
	g.create(g.kinds.mesh, newMesh("default"))
	dp := e.create(e.kinds.dataplane, newDataplane("web")).(*meshv1alpha1.Dataplane)
	w.west.create(w.west.kinds.dataplane, newDataplane("web"))
	e.create(e.kinds.ingress, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "in"}})
	time.Sleep(time.Second)
	e.want(e.kinds.mesh, "default of global")
	w.west.want(w.west.kinds.mesh, "default of global")
	g.want(g.kinds.dataplane, "web of zone east", "web of zone west")
	w.west.want(w.west.kinds.ingress, "in of zone east")
	e.want(e.kinds.ingress, "in")
	e.want(e.kinds.dataplane, "web")

	// A status follows its object, and global sets the zone.
	dp.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Test", LastTransitionTime: metav1.Now()}}
	if _, err := e.client.UpdateStatus(context.Background(), e.kinds.dataplane, dp); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	copies, _, err := g.client.List(context.Background(), g.kinds.dataplane, resource.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range copies {
		d := o.(*meshv1alpha1.Dataplane)
		zone := d.Labels[federation.LabelZone]
		if d.Labels[corev1.LabelTopologyZone] != zone || d.Namespace != "system" || (zone == "east") != (len(d.Status.Conditions) == 1) {
			t.Errorf("copy of %s: %+v %+v", zone, d.ObjectMeta, d.Status)
		}
	}

	// Live changes at all sites at once.
	var writers sync.WaitGroup
	for _, s := range []*site{w.east, w.west} {
		writers.Go(func() {
			for n := range 50 {
				s.create(s.kinds.dataplane, newDataplane(fmt.Sprintf("n%d", n)))
				if n%2 == 0 {
					s.delete(s.kinds.dataplane, "a", fmt.Sprintf("n%d", n))
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	for n := range 9 {
		g.create(g.kinds.mesh, newMesh(fmt.Sprintf("m%d", n)))
		if n%3 == 0 {
			g.delete(g.kinds.mesh, "", fmt.Sprintf("m%d", n))
		}
	}
	writers.Wait()
	time.Sleep(time.Second)
	wantMeshes, wantDataplanes := []string{"default of global"}, []string{"web of zone east", "web of zone west"}
	for n := range 9 {
		if n%3 != 0 {
			wantMeshes = append(wantMeshes, fmt.Sprintf("m%d of global", n))
		}
	}
	for n := 1; n < 50; n += 2 {
		wantDataplanes = append(wantDataplanes, fmt.Sprintf("n%d of zone east", n), fmt.Sprintf("n%d of zone west", n))
	}
	e.want(e.kinds.mesh, wantMeshes...)
	w.west.want(w.west.kinds.mesh, wantMeshes...)
	g.want(g.kinds.dataplane, wantDataplanes...)

	// The inventory at global is not the zone's.
	for _, o := range copies {
		g.delete(g.kinds.dataplane, "system", o.GetName())
	}
	time.Sleep(time.Second)
	if got := e.names(e.kinds.dataplane); len(got) != 26 {
		t.Errorf("%d Dataplanes in the zone", len(got))
	}
}

// TestOneWrite: a copy that carries a status is written once for each change, not status
// and object apart, and a checkpoint is no part of the way of a change.
func TestOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, cut := newWorld(t, 2)
		time.Sleep(2 * time.Second)
		var mu sync.Mutex
		var calls []string
		w.global.client.Intercept(func(c resourcetest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			switch c.Verb {
			case resourcetest.Create, resourcetest.Update, resourcetest.UpdateStatus, resourcetest.Delete:
				calls = append(calls, fmt.Sprintf("%s %s", c.Verb, c.Kind.Kind))
			default:
			}
			return nil
		})
		want := func(after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(want, calls); diff != "" {
				t.Errorf("writes at global:\n%s", diff)
			}
			calls = nil
		}
		made := w.east.create(w.east.kinds.dataplane, newDataplane("a")).(*meshv1alpha1.Dataplane)
		want(100*time.Millisecond, "create Dataplane")
		made.Status.Conditions = []metav1.Condition{{Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Probe", LastTransitionTime: metav1.Now()}}
		if _, err := w.east.client.UpdateStatus(t.Context(), w.east.kinds.dataplane, made); err != nil {
			t.Fatal(err)
		}
		want(100*time.Millisecond, "update Dataplane")
		copies, _, err := w.global.client.List(t.Context(), w.global.kinds.dataplane, resource.ListOptions{})
		if err != nil || len(copies) != 1 || len(copies[0].(*meshv1alpha1.Dataplane).Status.Conditions) != 1 {
			t.Errorf("at global: %v, %v", copies, err)
		}
		want(checkpointInterval, "update ConfigMap")
		// The checkpoint of a stream that ends is stored then.
		w.east.delete(w.east.kinds.dataplane, "a", "a")
		want(100*time.Millisecond, "delete Dataplane")
		cut()
		want(0, "update ConfigMap")
	})
}

// TestConfirm: an operator releases what the guard holds, also after a restart.
func TestConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, cut := newWorld(t, 2)
		for n := range 20 {
			w.global.create(w.global.kinds.mesh, newMesh(fmt.Sprintf("m%02d", n)))
		}
		time.Sleep(time.Second)
		for n := range 20 {
			w.global.delete(w.global.kinds.mesh, "", fmt.Sprintf("m%02d", n))
		}
		time.Sleep(time.Second)
		in := w.inlets["east east"]
		status := in.Status()[0]
		if len(status.Held) != 1 || len(status.Held[0].Names) != 10 {
			t.Fatalf("%+v", status)
		}
		held := status.Held[0]
		if err := in.Confirm(context.Background(), status.Type, held.Owner, "another"); !errors.Is(err, federation.ErrChanged) {
			t.Error(err)
		}
		// A crash now must not forget it.
		stored, err := in.config.Checkpoints.Load(context.Background())
		if err != nil || len(stored[status.Type].Holding) != 1 {
			t.Errorf("%+v, %v", stored, err)
		}
		before := len(w.east.names(w.east.kinds.mesh))
		cut() // all of it restarts, but for the stores
		if err := in.Confirm(context.Background(), status.Type, held.Owner, held.Token); !errors.Is(err, federation.ErrChanged) {
			t.Errorf("confirmed without a connection: %v", err)
		}
		again := w.east.inlet("east")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var running sync.WaitGroup
		g := &site{t: t, name: "global", side: federation.AtGlobal, kinds: w.global.kinds, client: w.global.client}
		g.outlet, err = NewOutlet(OutletConfig{Client: g.client, Kinds: g.kinds.kinds(t), Side: g.side, StoreEpoch: "epoch-global"})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = g.outlet.Run(ctx) })
		running.Go(func() { link(ctx, t, g.outlet, "east", again, 2) })
		time.Sleep(2 * time.Minute)
		status = again.Status()[0]
		if len(status.Held) != 1 || len(w.east.names(w.east.kinds.mesh)) != before {
			t.Fatalf("after a restart: %+v", status)
		}
		if err := again.Confirm(context.Background(), status.Type, status.Held[0].Owner, status.Held[0].Token); err != nil {
			t.Error(err)
		}
		w.east.want(w.east.kinds.mesh)
		cancel()
		running.Wait()
	})
}

// TestStaleWriter: what another instance has written since is not written over, and the
// objects of the zone never.
func TestStaleWriter(t *testing.T) {
	s := &site{t: t, name: "east", side: federation.AtZone, kinds: newDescriptors()}
	s.client = resourcetest.New(s.kinds.mesh, s.kinds.config)
	in := s.inlet("east")
	put := func(version, before string) error {
		return in.put(context.Background(), in.kinds["mesh.proxima.dev/Mesh"], federation.Put{
			Copy: federation.Copy{Resource: "/m", Version: version, Key: federation.Key{Name: "m"}}, Before: before,
			Object: &federation.Object{
				Labels:      map[string]string{federation.LabelOrigin: federation.OriginGlobal},
				Annotations: map[string]string{federation.AnnotationSyncName: "/m", federation.AnnotationSyncVersion: version},
			},
		})
	}
	for _, step := range []struct {
		version, before string
		want            error
	}{{"v1", "", nil}, {"v1", "", nil}, {"v2", "v1", nil}, {"v3", "v1", errStale}, {"v3", "", errStale}, {"v3", "v2", nil}} {
		if err := put(step.version, step.before); !errors.Is(err, step.want) {
			t.Errorf("%s after %q: %v, want %v", step.version, step.before, err, step.want)
		}
	}
	s.delete(s.kinds.mesh, "", "m")
	s.create(s.kinds.mesh, newMesh("m"))
	if err := put("v4", "v3"); !errors.Is(err, errTaken) {
		t.Error(err)
	}
	own := federation.Copy{Resource: "/m", Key: federation.Key{Name: "m"}}
	if err := in.delete(context.Background(), in.kinds["mesh.proxima.dev/Mesh"], own); err != nil {
		t.Error(err)
	}
	if got := s.names(s.kinds.mesh); len(got) != 1 || got[0] != "m" {
		t.Error(got)
	}
}

// TestDefaultMesh: the default mesh that a control plane made while it stood alone gives way
// to that of global, and so does one that is labelled as the zone's own; one that was changed
// stays, until it is deleted.
func TestDefaultMesh(t *testing.T) {
	through := false
	changed := newMesh("default")
	changed.Spec.Networking = &meshv1alpha1.MeshNetworking{Outbound: &meshv1alpha1.MeshOutbound{Passthrough: &through}}
	labelled := newMesh("default")
	labelled.Labels = map[string]string{federation.LabelOrigin: federation.OriginZone}
	for name, test := range map[string]struct {
		own   *meshv1alpha1.Mesh
		stays bool
	}{"untouched": {newMesh("default"), false}, "changed": {changed, true}, "of the zone alone": {labelled, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, _ := newWorld(t, 2)
				own := w.east.create(w.east.kinds.mesh, test.own)
				w.global.create(w.global.kinds.mesh, newMesh("default"))
				w.global.create(w.global.kinds.mesh, newMesh("shop"))
				time.Sleep(time.Second)
				if test.stays {
					w.east.want(w.east.kinds.mesh, "default", "shop of global")
					waiting := w.inlets["east east"].Status()[0].Waiting
					if len(waiting) != 1 || !strings.Contains(waiting[0].Reason, `zone east has a mesh default of its own`) ||
						!strings.Contains(waiting[0].Reason, `"proxima delete mesh default" in the zone`) {
						t.Errorf("status: %+v", waiting)
					}
					w.east.delete(w.east.kinds.mesh, "", "default")
					time.Sleep(time.Second)
				}
				w.east.want(w.east.kinds.mesh, "default of global", "shop of global")
				now, err := w.east.client.Get(context.Background(), w.east.kinds.mesh, resource.Key{Name: "default"})
				if err != nil || (now.GetUID() == own.GetUID()) == test.stays {
					t.Errorf("%+v, %v: an untouched one is written over, not deleted", now, err)
				}
			})
		})
	}
}

// TestOlderInstance: a peer that comes from an instance which began later has seen a higher
// revision of a type that does not change. The older one catches up, and goes on.
func TestOlderInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		g := newSite(t, ctx, "global", federation.AtGlobal, &running)
		synctest.Wait()
		for i := range 3 {
			g.create(g.kinds.namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}})
		}
		younger, err := NewOutlet(g.outlet.config)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = younger.Run(ctx) })
		synctest.Wait()
		typ := g.kinds.kinds(t)[0].Type.Name
		seen, filled := younger.Sender("east").Scope(typ).Position()
		if at, _ := g.outlet.Sender("east").Scope(typ).Position(); !filled || at.Sequence >= seen.Sequence {
			t.Fatalf("the older one is at %s, the younger at %s", at, seen)
		}
		subscribe := func() error {
			return federation.NewSender(g.outlet.Sender("east")).Step(&discovery.DeltaDiscoveryRequest{
				TypeUrl: typ, InitialResourceVersions: map[string]string{"seen": seen.String()},
			})
		}
		if err := subscribe(); !errors.Is(err, federation.ErrBehind) {
			t.Fatalf("at first: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
		if err := subscribe(); err != nil {
			t.Errorf("after it has caught up: %v", err)
		}
	})
}

// TestDebounce: the first four changes leave at once, those that follow in steps of 20 ms. Between
// them, revisions without a change count for nothing.
func TestDebounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer func() { cancel(); running.Wait() }()
		s := newSite(t, ctx, "global", federation.AtGlobal, &running)
		time.Sleep(time.Second)
		const ms = time.Millisecond
		var flushes []time.Duration
		began := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for len(flushes) < 6 {
				<-s.outlet.Changed()
				flushes = append(flushes, time.Since(began))
			}
		}()
		synctest.Wait()
		for n := range 25 {
			s.create(s.kinds.mesh, newMesh(fmt.Sprintf("m%d", n)))
			time.Sleep(time.Millisecond)
		}
		<-done
		if want := []time.Duration{0, ms, 2 * ms, 3 * ms, 20 * ms, 40 * ms}; !slices.Equal(flushes, want) {
			t.Errorf("flushed after %v, want %v", flushes, want)
		}
	})
}

// TestPayload: metadata in a payload, or one that explodes, does no harm.
func TestPayload(t *testing.T) {
	d := newDescriptors()
	k := d.kinds(t)[0]
	put := federation.Put{
		Copy: federation.Copy{Key: federation.Key{Name: "m"}},
		Object: &federation.Object{
			Labels: map[string]string{"a": "b"}, Payload: []byte(`{"metadata":{"name":"x","ownerReferences":[{"name":"o"}],"finalizers":["f"]}}`),
		},
	}
	obj, err := k.decode(put)
	if err != nil || obj.GetName() != "m" || len(obj.GetOwnerReferences())+len(obj.GetFinalizers()) > 0 ||
		!maps.Equal(obj.GetLabels(), put.Object.Labels) {
		t.Errorf("%+v, %v", obj, err)
	}
	for _, bad := range []string{`{"spec":`, `[]`, `{"spec":[]}`, strings.Repeat("[", 100_000)} {
		put.Object.Payload = []byte(bad)
		if _, err := k.decode(put); err == nil {
			t.Errorf("%.20s was decoded", bad)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"spec":{"networking":{}}}`))
	k := newDescriptors().kinds(f)[3]
	f.Fuzz(func(t *testing.T, b []byte) {
		obj, err := k.decode(federation.Put{
			Copy:   federation.Copy{Key: federation.Key{Namespace: "system", Name: "x"}, Owner: federation.Owner{Zone: "east"}},
			Object: &federation.Object{Payload: b},
		})
		if err == nil && (obj.GetName() != "x" || obj.GetNamespace() != "system" || obj.GetLabels()[corev1.LabelTopologyZone] != "east") {
			t.Errorf("%+v", obj)
		}
	})
}

func FuzzParseCheckpoint(f *testing.F) {
	f.Add(`{"StoreEpoch":"e","Position":"1:2","Seen":"1:2","Holding":[{"Zone":"east"}]}`)
	f.Fuzz(func(t *testing.T, s string) {
		c, err := parseCheckpoint(s)
		if err == nil && c.Check() != nil {
			t.Error(c)
		}
	})
}

// TestWithheld: what is withheld leaves the other zones and comes back, as often as that
// happens.
func TestWithheld(t *testing.T) {
	for protocol := 1; protocol <= 2; protocol++ {
		t.Run(fmt.Sprintf("protocol %d", protocol), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, _ := newWorld(t, protocol)
				g := w.global
				w.east.create(w.east.kinds.ingress, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "in"}})
				time.Sleep(time.Second)
				for range 4 {
					w.west.want(w.west.kinds.ingress, "in of zone east")
					setWithheld(t, g, true)
					time.Sleep(time.Second)
					w.west.want(w.west.kinds.ingress)
					setWithheld(t, g, false)
					time.Sleep(time.Second)
				}
			})
		})
	}
}

func setWithheld(t *testing.T, g *site, withheld bool) {
	t.Helper()
	copies, _, err := g.client.List(context.Background(), g.kinds.ingress, resource.ListOptions{})
	if err != nil || len(copies) != 1 {
		t.Fatalf("%d copies at global: %v", len(copies), err)
	}
	labels := copies[0].GetLabels()
	delete(labels, LabelWithheld)
	if withheld {
		labels[LabelWithheld] = "true"
	}
	copies[0].SetLabels(labels)
	if _, err := g.client.Update(context.Background(), g.kinds.ingress, copies[0]); err != nil {
		t.Fatal(err)
	}
}
