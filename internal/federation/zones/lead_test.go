package zones

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/federation/stream"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// rig is the zones of one instance on a store in memory.
type rig struct {
	*testing.T
	client  *resourcetest.Client
	zones   *Zones
	revoked []string
	alive   map[string]bool
}

func newRig(t *testing.T) *rig {
	t.Helper()
	of := func(d *resource.Descriptor) local.Kind {
		k := local.Kind{Descriptor: d}
		k.Type, _ = local.TypeOf(d)
		return k
	}
	r := &rig{T: t, alive: map[string]bool{}, client: resourcetest.New(
		kind.Zone, kind.ZoneInsight, kind.ConfigMap, kind.Namespace, kind.Mesh, kind.ServiceExport, kind.Dataplane)}
	var err error
	r.zones, err = New(Config{
		Client: r.client, Namespace: "system", StoreEpoch: "e", Instance: "here", Timeout: 15 * time.Second,
		Kinds:  []local.Kind{of(kind.Mesh), of(kind.ServiceExport), of(kind.Dataplane)},
		Caller: func(context.Context) (string, error) { return "a", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) lead() *lead {
	return &lead{zones: r.zones, log: r.zones.log, config: LeaderConfig{
		Client: r.client, Alive: func(instance string) bool { return r.alive[instance] },
		RevokeTokens: func(_ context.Context, zone string) error { r.revoked = append(r.revoked, zone); return nil },
		Forget:       func(context.Context, string) error { return nil },
	}}
}

// settle reconciles until nothing is left to do.
func (r *rig) settle(l *lead) {
	r.Helper()
	for range 10 {
		unfinished, err := l.reconcile(r.Context())
		if err != nil {
			r.Fatal(err)
		}
		if !unfinished {
			return
		}
	}
	r.Fatal("it does not come to an end")
}

func (r *rig) zone(name string, change func(*meshv1alpha1.Zone)) {
	r.Helper()
	obj, err := r.client.Get(r.Context(), kind.Zone, resource.Key{Name: name})
	if apierrors.IsNotFound(err) {
		zone := &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: name}}
		change(zone)
		r.client.Seed(zone)
		return
	}
	if err != nil {
		r.Fatal(err)
	}
	change(obj.(*meshv1alpha1.Zone))
	r.client.Seed(obj)
}

// copies of objects of zones, at global.
func (r *rig) copies(zones ...string) {
	for _, zone := range zones {
		meta := metav1.ObjectMeta{Namespace: "system", Name: "copy-of-" + zone, Labels: map[string]string{
			federation.LabelOrigin: federation.OriginZone, federation.LabelZone: zone,
		}}
		r.client.Seed(&mcs.ServiceExport{ObjectMeta: *meta.DeepCopy()})
		r.client.Seed(&meshv1alpha1.Dataplane{ObjectMeta: meta, Spec: meshv1alpha1.DataplaneSpec{Addresses: []string{"10.0.0.1"}}})
	}
}

// names of the objects of a kind, those that are withheld with a star.
func (r *rig) names(d *resource.Descriptor) (out []string) {
	r.Helper()
	objects, _, err := r.client.List(r.Context(), d, resource.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	for _, obj := range objects {
		star := ""
		if obj.GetLabels()[local.LabelWithheld] != "" {
			star = "*"
		}
		out = append(out, obj.GetName()+star)
	}
	slices.Sort(out)
	return out
}

func (r *rig) want(d *resource.Descriptor, names ...string) {
	r.Helper()
	if got := r.names(d); !slices.Equal(got, names) {
		r.Errorf("%s: %v, want %v", d.Resource, got, names)
	}
}

// TestDisabled: what a disabled zone offers is withheld from the others, its inventory is
// not, and it comes back.
func TestDisabled(t *testing.T) {
	r := newRig(t)
	l := r.lead()
	r.copies("a", "b")
	enabled := func(is bool) func(*meshv1alpha1.Zone) {
		return func(z *meshv1alpha1.Zone) { z.Spec.Enabled = &is }
	}
	r.zone("a", enabled(false))
	r.zone("b", enabled(true))
	r.settle(l) // the finalizers, whose events have it reconcile again
	r.settle(l)
	r.want(kind.ServiceExport, "copy-of-a*", "copy-of-b")
	r.want(kind.Dataplane, "copy-of-a", "copy-of-b")
	r.zone("a", enabled(true))
	r.settle(l)
	r.want(kind.ServiceExport, "copy-of-a", "copy-of-b")
}

// TestDeleted: with a Zone go its tokens, then the copies of its objects, its checkpoints and
// its insight, and nothing of others. The Zone itself waits for them.
func TestDeleted(t *testing.T) {
	r := newRig(t)
	l := r.lead()
	r.copies("a", "b")
	for _, name := range []string{"a", "b"} {
		r.zone(name, func(*meshv1alpha1.Zone) {})
		r.client.Seed(&meshv1alpha1.ZoneInsight{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	r.settle(l)
	obj, err := r.client.Get(t.Context(), kind.Zone, resource.Key{Name: "a"})
	if err != nil || !slices.Contains(obj.GetFinalizers(), Finalizer) {
		t.Fatalf("finalizers %v, %v", obj.GetFinalizers(), err)
	}
	r.zone("a", func(z *meshv1alpha1.Zone) { now := metav1.Now(); z.DeletionTimestamp = &now })

	// A store that fails in between is no reason to let the Zone go.
	broken := errors.New("the disk is full")
	r.client.Intercept(func(c resourcetest.Call) error {
		if c.Verb == resourcetest.Delete && c.Kind.Kind == "Dataplane" {
			return broken
		}
		return nil
	})
	if _, err := l.reconcile(t.Context()); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	r.want(kind.Dataplane, "copy-of-a", "copy-of-b")
	r.client.Intercept(nil)
	r.settle(l)
	r.want(kind.ServiceExport, "copy-of-b")
	r.want(kind.Dataplane, "copy-of-b")
	r.want(kind.ZoneInsight, "b")
	if len(r.revoked) == 0 || slices.Contains(r.revoked, "b") {
		t.Errorf("tokens revoked: %v", r.revoked)
	}
	if obj, err = r.client.Get(t.Context(), kind.Zone, resource.Key{Name: "a"}); err != nil || len(obj.GetFinalizers()) > 0 {
		t.Errorf("the finalizer stays: %v, %v", obj, err)
	}
}

// TestMarkOffline: the leader ends connections to instances that have gone, and a zone is
// offline when it has not come back for the timeout. What another instance holds is its own.
func TestMarkOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		l := r.lead()
		r.alive["there"] = true
		for zone, instance := range map[string]string{"held": "there", "left": "gone", "restarted": "here"} {
			r.client.Seed(&meshv1alpha1.ZoneInsight{
				ObjectMeta: metav1.ObjectMeta{Name: zone},
				Status: meshv1alpha1.ZoneInsightStatus{Online: true, Subscriptions: []meshv1alpha1.Subscription{
					{ID: zone, Instance: instance, ConnectTime: metav1.NowMicro()},
				}},
			})
		}
		state := func() string {
			out := ""
			for _, name := range r.names(kind.ZoneInsight) {
				obj, err := r.client.Get(t.Context(), kind.ZoneInsight, resource.Key{Name: name})
				if err != nil {
					t.Fatal(err)
				}
				s := obj.(*meshv1alpha1.ZoneInsight).Status
				out += fmt.Sprintf("%s: online %t, open %t; ", name, s.Online, open(s.Subscriptions) != nil)
			}
			return out
		}
		for _, step := range []struct {
			after time.Duration
			want  string
		}{
			{0, "held: online true, open true; left: online true, open false; restarted: online true, open false; "},
			{14 * time.Second, "held: online true, open true; left: online true, open false; restarted: online true, open false; "},
			{2 * time.Second, "held: online true, open true; left: online false, open false; restarted: online false, open false; "},
		} {
			time.Sleep(step.after)
			l.markOffline(t.Context())
			if got := state(); got != step.want {
				t.Errorf("after %s more:\n%s, want\n%s", step.after, got, step.want)
			}
		}
	})
}

// TestSubscriptions: one connection at a time is open, and the newest ten are kept.
func TestSubscriptions(t *testing.T) {
	var i meshv1alpha1.ZoneInsightStatus
	began := metav1.NowMicro()
	for n := range 12 {
		subscribe(&i, meshv1alpha1.Subscription{ID: fmt.Sprint(n), ConnectTime: metav1.NewMicroTime(began.Add(time.Duration(n) * time.Second))})
		subscribe(&i, meshv1alpha1.Subscription{
			ID: fmt.Sprint(n), Client: "c", ConnectTime: metav1.NewMicroTime(began.Add(time.Duration(n) * time.Second)),
		})
	}
	if len(i.Subscriptions) != maxSubscriptions || i.Subscriptions[0].ID != "2" {
		t.Fatalf("%d, the first is %s", len(i.Subscriptions), i.Subscriptions[0].ID)
	}
	for n, s := range i.Subscriptions {
		last := n == len(i.Subscriptions)-1
		if s.Client != "c" || (s.DisconnectTime == nil) != last || !last && !s.DisconnectTime.Equal(&i.Subscriptions[n+1].ConnectTime) {
			t.Errorf("%+v", s)
		}
	}
}

// TestLifeOfAConnection: streams that are open together are one connection, whose begin and
// end are in the insight; what is held is confirmed only where the streams are.
func TestLifeOfAConnection(t *testing.T) {
	r := newRig(t)
	r.zone("a", func(*meshv1alpha1.Zone) {})
	ctx, cancel := context.WithCancel(t.Context())
	r.zones.ctx = ctx // as Run does
	defer func() { cancel(); r.zones.running.Wait() }()
	var elsewhere *NotHereError
	confirm := func() error {
		_, err := r.zones.Confirm(ctx, "a", "Dataplane", "")
		return err
	}
	if err := confirm(); !errors.As(err, &elsewhere) || elsewhere.Zone != "a" || elsewhere.Instance != "here" {
		t.Errorf("before the zone has connected: %v", err)
	}
	a, err := r.zones.admit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	first, second := a.Opened(), a.Opened()
	record := func() meshv1alpha1.ZoneInsightStatus {
		r.zones.recordZone(ctx, stream.PeerStatus{Zone: "a", Online: true, Instance: "a-1"})
		obj, err := r.client.Get(ctx, kind.ZoneInsight, resource.Key{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		return obj.(*meshv1alpha1.ZoneInsight).Status
	}
	s := record()
	if len(s.Subscriptions) != 1 || !s.Online || s.Subscriptions[0].Client != "a-1" || s.Subscriptions[0].Instance != "here" {
		t.Errorf("connected: %+v", s)
	}
	if err := confirm(); err == nil || errors.As(err, &elsewhere) {
		t.Errorf("while nothing is held: %v", err)
	}
	first()
	if s = record(); open(s.Subscriptions) == nil {
		t.Errorf("one of two streams has ended: %+v", s)
	}
	second()
	waitFor(t, func() bool { s = record(); return open(s.Subscriptions) == nil })
	if !s.Online {
		t.Error("offline at once, though it may be back in a moment")
	}
	if err := confirm(); !errors.As(err, &elsewhere) {
		t.Errorf("after the streams have ended: %v", err)
	}
}

// waitFor waits for a condition that goroutines of the product bring about.
func waitFor(t *testing.T, there func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !there(); {
		if time.Now().After(deadline) {
			t.Fatal("it does not happen")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestReceived: what an insight says of a type.
func TestReceived(t *testing.T) {
	many := make([]federation.Refusal, maxRefused+5)
	got := Received(meshv1alpha1.SyncToGlobal, []federation.ReceivedType{{
		Type: "x/Y", Copies: 3, Refused: many,
		Held: []federation.Held{
			{Count: 12, Names: []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}, Token: "t"},
			{Count: 1, Names: []string{"11"}, Token: "u"},
		},
	}})
	if len(got) != 1 || got[0].Held != 13 || len(got[0].HeldNames) != 10 || got[0].HeldToken != "" {
		t.Fatalf("held: %+v", got)
	}
	if len(got[0].Refused) != maxRefused || got[0].Objects != 3 {
		t.Errorf("%d refused, %d objects", len(got[0].Refused), got[0].Objects)
	}
}
