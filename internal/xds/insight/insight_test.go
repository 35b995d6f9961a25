package insight

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var web = Workload(resource.Key{Namespace: "shop", Name: "web-1"})

// rig is an API with one Dataplane, and recorders of instances.
type rig struct {
	t      *testing.T
	client *resourcetest.Client
	// writes of insights and of the Dataplane's status.
	insights, statuses atomic.Int64
	fail               atomic.Bool
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, client: resourcetest.New(kind.All()...)}
	r.client.Seed(&meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: web.Namespace, Name: web.Name, UID: "1"},
		Spec:       meshv1alpha1.DataplaneSpec{Addresses: []string{"10.0.0.1"}},
	})
	r.client.Intercept(func(c resourcetest.Call) error {
		switch {
		case c.Object == nil:
		case r.fail.Load():
			return apierrors.NewInternalError(errors.New("away"))
		case c.Kind == kind.DataplaneInsight.GVK:
			r.insights.Add(1)
		default:
			r.statuses.Add(1)
		}
		return nil
	})
	return r
}

// start a recorder for an instance; stop ends it.
func (r *rig) start(instance string) (recorder *Recorder, stop func()) {
	recorder = New(Config{Client: r.client, Instance: instance})
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- recorder.Run(ctx) }()
	return recorder, func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
}

func (r *rig) insight() *meshv1alpha1.DataplaneInsight {
	r.t.Helper()
	obj, err := r.client.Get(r.t.Context(), kind.DataplaneInsight, web.Key)
	if err != nil {
		r.t.Fatal(err)
	}
	return obj.(*meshv1alpha1.DataplaneInsight)
}

// conditions of the Dataplane, a line each.
func (r *rig) condition(typ string) string {
	obj, err := r.client.Get(r.t.Context(), kind.Dataplane, web.Key)
	if err != nil {
		r.t.Fatal(err)
	}
	c := meta.FindStatusCondition(obj.(*meshv1alpha1.Dataplane).Status.Conditions, typ)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
}

func (r *rig) wantCondition(typ, prefix string) {
	r.t.Helper()
	if got := r.condition(typ); !strings.HasPrefix(got, prefix) || prefix == "" && got != "" {
		r.t.Errorf("%s: %q, want %q", typ, got, prefix)
	}
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

var envoy = meshv1alpha1.ProxyVersions{Proxy: "envoy", Version: "1.40.0", Supervisor: "1.2.3"}

const clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

// accept what a proxy gets at first.
func accept(r *Recorder, id string) {
	for _, typ := range []string{clusterType, "type.googleapis.com/envoy.config.listener.v3.Listener"} {
		r.Sent(web, id, typ)
		r.Acked(web, id, typ, []string{"a"})
	}
}

// before has an object as it was at first.
type before struct {
	resource.Client
	object resource.Object
	reads  atomic.Int64
}

func (b *before) Get(context.Context, *resource.Descriptor, resource.Key) (resource.Object, error) {
	b.reads.Add(1)
	return b.object.DeepCopyObject().(resource.Object), nil
}

// TestCached: Dataplanes are read from memory, and once more where that is not what they are now.
func TestCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		old, err := g.client.Get(t.Context(), kind.Dataplane, web.Key)
		if err != nil {
			t.Fatal(err)
		}
		changed := old.DeepCopyObject().(*meshv1alpha1.Dataplane)
		changed.Spec.Addresses = []string{"10.0.0.2"}
		if _, err := g.client.Update(t.Context(), kind.Dataplane, changed); err != nil {
			t.Fatal(err)
		}
		cached := &before{object: old}
		recorder := New(Config{Client: g.client, Cached: cached, Instance: "cp-0"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- recorder.Run(ctx) }()
		defer func() { cancel(); <-done }()
		recorder.Connected(web, Connection{ID: "a", Versions: envoy})
		pass(time.Second)
		g.wantCondition(meshv1alpha1.DataplaneProxyConnected, "True Connected")
		if n := cached.reads.Load(); n != 1 {
			t.Errorf("%d reads from memory", n)
		}
	})
}

// TestLife of a proxy: it connects, acknowledges much, disconnects, and comes back to another
// instance.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		one, stop := g.start("cp-0")
		defer stop()
		one.Connected(web, Connection{ID: "a", Versions: envoy})
		pass(time.Second)
		if i := g.insight(); !i.Status.Online || i.OwnerReferences[0].UID != "1" {
			t.Errorf("connected: %+v", i)
		}
		g.wantCondition(meshv1alpha1.DataplaneProxyConnected, "True Connected connected to instance cp-0 since ")
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "True Accepted the proxy rejects nothing")
		g.wantCondition(meshv1alpha1.DataplaneProxyReady, "False NoConfig")
		g.wantCondition(meshv1alpha1.DataplaneCertificateValid, "")
		accept(one, "a")
		pass(window)
		g.wantCondition(meshv1alpha1.DataplaneProxyReady, "True Configured")

		// Never because of an acknowledgement.
		pass(time.Minute)
		g.insights.Store(0)
		g.statuses.Store(0)
		for range 1000 {
			one.Sent(web, "a", clusterType)
			one.Acked(web, "a", clusterType, []string{"b"})
			pass(100 * time.Millisecond)
		}
		if g.insights.Load()+g.statuses.Load() > 0 {
			t.Errorf("%d and %d writes because of acknowledgements", g.insights.Load(), g.statuses.Load())
		}
		if s, ok := one.Live(web); !ok || s.Resources[0] != (meshv1alpha1.ResourceSync{Type: "Cluster", Sent: 1001, Acknowledged: 1001}) {
			t.Errorf("live: %+v", s)
		}
		one.Disconnected(web, "a")
		pass(time.Second)
		i := g.insight().Status
		if i.Online || i.Subscriptions[0].DisconnectTime == nil || i.Subscriptions[0].Resources[0].Sent != 1001 {
			t.Errorf("disconnected: %+v", i)
		}
		g.wantCondition(meshv1alpha1.DataplaneProxyConnected, "False Disconnected disconnected from instance cp-0 at ")
		g.wantCondition(meshv1alpha1.DataplaneProxyReady, "True Configured")
		pass(window)
		if len(one.proxies) != 0 {
			t.Error("a proxy that has gone is kept in memory")
		}

		two, stopTwo := g.start("cp-1")
		defer stopTwo()
		two.Connected(web, Connection{ID: "b", Versions: envoy})
		pass(time.Second)
		two.Disconnected(web, "b")
		two.Connected(web, Connection{ID: "c", Versions: envoy})
		pass(window)
		i = g.insight().Status
		var got []string
		for _, s := range i.Subscriptions {
			got = append(got, fmt.Sprint(s.ID, " ", s.Instance, " ", s.Generation, " ", s.DisconnectTime == nil))
		}
		if diff := cmp.Diff([]string{"b cp-1 2 false", "c cp-1 3 true"}, got); diff != "" {
			t.Errorf("the newest 2 (-want +got):\n%s", diff)
		}
		// Late news of an earlier connection.
		one.Disconnected(web, "a")
		two.Disconnected(web, "b")
		pass(time.Minute)
		g.wantCondition(meshv1alpha1.DataplaneProxyConnected, "True Connected connected to instance cp-1")
		g.wantCondition(meshv1alpha1.DataplaneProxyReady, "True Configured")
	})
}

// TestRejected: a response that is rejected is sent in parts; only what is rejected in the end
// counts. The condition names the resource, the policy and the error, and goes when the resource
// is accepted.
func TestRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		r, stop := g.start("cp-0")
		defer stop()
		r.Connected(web, Connection{ID: "a", Versions: envoy})
		accept(r, "a")
		pass(time.Minute)
		bad := Rejection{Policy: "ProxyPatch shop/broken", Error: "Expected positive duration"}
		r.Nacked(web, "a", clusterType, []string{"x", "y"}, Rejection{Error: "Expected positive duration"})
		pass(5 * time.Millisecond)
		r.Acked(web, "a", clusterType, []string{"x"})
		r.Nacked(web, "a", clusterType, []string{"y"}, bad)
		pass(time.Second)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted,
			"False Rejected Cluster y, made from ProxyPatch shop/broken: Expected positive duration")
		if n := strings.Count(g.condition(meshv1alpha1.DataplaneConfigAccepted), "\n"); n != 0 {
			t.Errorf("%d further resources", n)
		}
		if s, _ := r.Live(web); s.Resources[0] != (meshv1alpha1.ResourceSync{Type: "Cluster", Sent: 1, Acknowledged: 2, Rejected: 2}) {
			t.Errorf("counts: %+v", s.Resources)
		}
		// The same again is no news.
		pass(time.Minute)
		g.insights.Store(0)
		r.Nacked(web, "a", clusterType, []string{"y"}, bad)
		pass(time.Minute)
		if g.insights.Load() != 0 {
			t.Error("the same rejection was written again")
		}

		// On another connection it is held, until that has had the time to say the same, or not.
		r.Disconnected(web, "a")
		pass(time.Minute)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "False Rejected Cluster y")
		r.Connected(web, Connection{ID: "b", Versions: envoy})
		pass(time.Second)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "False Rejected Cluster y")
		r.Nacked(web, "b", clusterType, []string{"y"}, bad)
		pass(time.Minute)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "False Rejected Cluster y")
		r.Acked(web, "b", clusterType, []string{"y"})
		pass(time.Second)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "True Accepted")

		r.Nacked(web, "b", clusterType, []string{"z"}, bad)
		pass(time.Minute)
		r.Connected(web, Connection{ID: "c", Versions: envoy})
		pass(time.Minute)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "True Accepted")
	})
}

// TestWithheld: what is not sent as others rejected it counts as rejected, and not as a response.
func TestWithheld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		r, stop := g.start("cp-0")
		defer stop()
		r.Connected(web, Connection{ID: "a", Versions: envoy})
		accept(r, "a")
		r.Withheld(web, "a", clusterType, "y", Rejection{Error: "no"})
		pass(time.Minute)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "False Rejected Cluster y: no")
		r.Released(web, "a", clusterType, "y")
		pass(time.Minute)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "True Accepted")
		if s, _ := r.Live(web); s.Resources[0] != (meshv1alpha1.ResourceSync{Type: "Cluster", Sent: 1, Acknowledged: 1}) {
			t.Errorf("counts: %+v", s.Resources)
		}
	})
}

// TestReleasedAtTheEnd: what a connection rejected and then accepted is not rejected when it ends.
func TestReleasedAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		r, stop := g.start("cp-0")
		defer stop()
		r.Connected(web, Connection{ID: "a", Versions: envoy})
		r.Nacked(web, "a", clusterType, []string{"y"}, Rejection{Error: "no"})
		pass(time.Second)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "False Rejected Cluster y: no")
		r.Acked(web, "a", clusterType, []string{"y"})
		r.Disconnected(web, "a")
		pass(time.Minute)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "True Accepted")
	})
}

// TestWindow: whatever happens, a proxy is written at most once in 10 s, and the last state in
// the end.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		r, stop := g.start("cp-0")
		defer stop()
		for i := range 600 {
			id := fmt.Sprint(i)
			r.Connected(web, Connection{ID: id, Versions: envoy})
			r.Nacked(web, id, clusterType, []string{id}, Rejection{Error: "no"})
			pass(100 * time.Millisecond)
			r.Disconnected(web, id)
		}
		if g.insights.Load() > 7 || g.statuses.Load() > 7 {
			t.Errorf("%d and %d writes in a minute", g.insights.Load(), g.statuses.Load())
		}
		pass(time.Minute)
		i := g.insight().Status
		if i.Online || i.Subscriptions[len(i.Subscriptions)-1].ID != "599" {
			t.Errorf("in the end: %+v", i.Subscriptions)
		}
	})
}

// TestBounds: what a proxy, or a server, makes up does not grow.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		r, stop := g.start("cp-0")
		defer stop()
		long := strings.Repeat("ä", 5000)
		r.Connected(web, Connection{ID: "a", Versions: meshv1alpha1.ProxyVersions{Proxy: long, Version: long}})
		var ports []string
		for i := range 1000 {
			r.Sent(web, "a", fmt.Sprint("type/", i))
			r.Nacked(web, "a", clusterType, []string{fmt.Sprint(i, long)}, Rejection{Error: long, Policy: long})
			ports = append(ports, fmt.Sprintf("shop/s%d:80", i))
		}
		r.Learned(web, ports)
		pass(time.Minute)
		i := g.insight().Status
		if len(i.Subscriptions[0].Resources) != maxTypes || len(i.Rejected) != maxRejected || len(i.Learned) != maxLearned || len(i.Versions.Proxy) > maxText {
			t.Errorf("%d types, %d rejected, %d learned", len(i.Subscriptions[0].Resources), len(i.Rejected), len(i.Learned))
		}
		r.Sent(web, "unknown", clusterType)
		r.Disconnected(Workload(resource.Key{Namespace: "shop", Name: "unknown"}), "a")
		if len(r.proxies) != 1 {
			t.Errorf("%d proxies", len(r.proxies))
		}
	})
}

// TestCertificate: issues are counted, whoever writes them, and the condition says when it has
// expired, also of a proxy that is gone.
func TestCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		r, stop := g.start("cp-0")
		defer stop()
		certificate := func() Certificate {
			return Certificate{Identity: "spiffe://default.mesh/ns/shop/sa/web", Backend: "own", Issued: time.Now(), Expiry: time.Now().Add(24 * time.Hour)}
		}
		r.Connected(web, Connection{ID: "a", Versions: envoy})
		r.Certified(web, certificate())
		r.Certified(web, certificate())
		pass(time.Second)
		if c := g.insight().Status.Certificate; c == nil || c.Generations != 2 || c.Backend != "own" {
			t.Errorf("certificate %+v", c)
		}
		g.wantCondition(meshv1alpha1.DataplaneCertificateValid, "True Valid the certificate of spiffe://default.mesh/ns/shop/sa/web is valid until ")
		pass(16 * time.Hour)
		g.fail.Store(true)
		r.Certified(web, certificate())
		pass(time.Minute)
		g.fail.Store(false)
		pass(time.Minute)
		if c := g.insight().Status.Certificate; c.Generations != 3 {
			t.Errorf("%d issues after the API was away, want 3", c.Generations)
		}
		pass(25 * time.Hour)
		g.wantCondition(meshv1alpha1.DataplaneCertificateValid, "False Expired")
	})
}

// TestLearned: ports that were used in 24 h, whoever saw it.
func TestLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		r, stop := g.start("cp-0")
		defer stop()
		ports := func() (out []string) {
			for _, l := range g.insight().Status.Learned {
				out = append(out, l.Port)
			}
			return out
		}
		r.Connected(web, Connection{ID: "a", Versions: envoy})
		r.Learned(web, []string{"shop/db:5432", "shop/api:80"})
		pass(time.Second)
		if diff := cmp.Diff([]string{"shop/api:80", "shop/db:5432"}, ports()); diff != "" {
			t.Errorf("learned (-want +got):\n%s", diff)
		}
		pass(time.Minute)
		g.insights.Store(0)
		for range 100 {
			r.Learned(web, []string{"shop/db:5432"})
			pass(time.Second)
		}
		if g.insights.Load() != 0 {
			t.Errorf("%d writes because of a port that is known", g.insights.Load())
		}
		pass(20 * time.Hour)
		r.Learned(web, []string{"shop/db:5432"})
		pass(5 * time.Hour)
		r.Learned(web, []string{"shop/mail:25"})
		pass(time.Minute)
		if diff := cmp.Diff([]string{"shop/db:5432", "shop/mail:25"}, ports()); diff != "" {
			t.Errorf("a day later (-want +got):\n%s", diff)
		}
	})
}

// TestWithoutDataplane: of a pod there is an insight, and no condition.
func TestWithoutDataplane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		r, stop := g.start("cp-0")
		defer stop()
		pod := Workload(resource.Key{Namespace: "shop", Name: "pod-1"})
		r.Connected(pod, Connection{ID: "a", Versions: envoy})
		pass(time.Second)
		obj, err := g.client.Get(t.Context(), kind.DataplaneInsight, pod.Key)
		if err != nil || !obj.(*meshv1alpha1.DataplaneInsight).Status.Online {
			t.Errorf("insight of a pod: %v, %v", obj, err)
		}
	})
}

// TestLead: the leader ends the connections of instances that have gone, and those of an earlier
// process of its own.
func TestLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		one, stopOne := g.start("cp-0")
		one.Connected(web, Connection{ID: "a", Versions: envoy})
		pass(time.Second)
		stopOne()
		var gone atomic.Bool
		two, stopTwo := g.start("cp-1")
		defer stopTwo()
		ctx, cancel := context.WithCancel(t.Context())
		led := make(chan error, 1)
		go func() {
			led <- two.Lead(ctx, g.client, func(instance string) bool { return instance != "cp-0" || !gone.Load() })
		}()
		pass(time.Minute)
		if !g.insight().Status.Online {
			t.Error("the connection of an instance that runs was ended")
		}
		gone.Store(true)
		pass(time.Minute)
		if g.insight().Status.Online {
			t.Error("the connection of an instance that is gone is open")
		}
		g.wantCondition(meshv1alpha1.DataplaneProxyConnected, "False Disconnected")
		two.Connected(web, Connection{ID: "b", Versions: envoy})
		pass(time.Minute)
		if !g.insight().Status.Online {
			t.Error("the leader's own connection was ended")
		}
		cancel()
		if err := <-led; err != nil {
			t.Error(err)
		}
		// The same instance, started again.
		three, stopThree := g.start("cp-1")
		defer stopThree()
		if err := three.sweep(t.Context(), g.client, func(string) bool { return true }); err != nil {
			t.Error(err)
		}
		if g.insight().Status.Online {
			t.Error("the connection of an earlier process is open")
		}
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		registry := prometheus.NewPedanticRegistry()
		r := New(Config{Client: g.client, Instance: "cp-0", Registerer: registry})
		defer r.queue.ShutDown()
		r.Connected(web, Connection{ID: "a", Versions: envoy})
		r.Nacked(web, "a", clusterType, []string{"x"}, Rejection{Error: "no"})
		err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP proxima_xds_insight_connected_proxies Proxies that are connected to this instance.
# TYPE proxima_xds_insight_connected_proxies gauge
proxima_xds_insight_connected_proxies 1
# HELP proxima_xds_insight_rejecting_proxies Those of them that reject a resource.
# TYPE proxima_xds_insight_rejecting_proxies gauge
proxima_xds_insight_rejecting_proxies 1
`), "proxima_xds_insight_connected_proxies", "proxima_xds_insight_rejecting_proxies")
		if err != nil {
			t.Error(err)
		}
	})
}

// TestBehind: the insight tells of a proxy that does not answer for a window, and of its answer. What
// is answered sooner is no news.
func TestBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		recorder, stop := r.start("cp-1")
		defer stop()
		sync := func() meshv1alpha1.ResourceSync {
			synctest.Wait()
			s := r.insight().Status.Subscriptions
			return s[len(s)-1].Resources[0]
		}
		recorder.Connected(web, Connection{ID: "1"})
		recorder.Sent(web, "1", "Cluster")
		time.Sleep(time.Second)
		if got := sync(); got.Sent != 0 {
			t.Errorf("what has been sent just now counts: %+v", got)
		}
		time.Sleep(2*window + time.Second)
		if got := sync(); got.Sent != 1 || got.Acknowledged != 0 {
			t.Errorf("it does not answer: %+v", got)
		}
		before := r.insights.Load()
		time.Sleep(10 * window)
		synctest.Wait()
		if n := r.insights.Load() - before; n > 0 {
			t.Errorf("%d writes while nothing changes", n)
		}
		recorder.Acked(web, "1", "Cluster", nil)
		time.Sleep(2*window + time.Second)
		if got := sync(); got.Sent != 1 || got.Acknowledged != 1 {
			t.Errorf("it has answered: %+v", got)
		}
	})
}

// TestProgram: a gRPC program is no proxy of the workload's ports, and the condition says so.
func TestProgram(t *testing.T) {
	for agent, want := range map[string][2]string{
		"envoy": {ReasonConnected, ReasonDisconnected}, "gRPC Go": {meshv1alpha1.ReasonProgram, meshv1alpha1.ReasonProgram},
		"gRPC C-core": {meshv1alpha1.ReasonProgram, meshv1alpha1.ReasonProgram},
	} {
		for i, online := range []bool{true, false} {
			all := Conditions(&meshv1alpha1.ClientInsightStatus{
				Online: online, Versions: &meshv1alpha1.ProxyVersions{Proxy: agent}, Subscriptions: []meshv1alpha1.Subscription{{}},
			}, time.Now())
			if c := all[0]; c.Type != meshv1alpha1.DataplaneProxyConnected || c.Reason != want[i] || (c.Status == metav1.ConditionTrue) != online {
				t.Errorf("%s, online %v: %+v", agent, online, c)
			}
		}
	}
}

// TestStreamsOfProgram: a gRPC program has a stream for each of its targets. What any of them rejects counts
// for as long as that stream is open, and the program is connected while one is.
func TestStreamsOfProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		r, stop := g.start("cp-0")
		defer stop()
		grpc := meshv1alpha1.ProxyVersions{Proxy: "gRPC Go", Version: "1.85.0"}
		for _, id := range []string{"a", "b", "c"} {
			r.Connected(web, Connection{ID: id, Versions: grpc})
			accept(r, id)
		}
		pass(time.Minute)
		r.Nacked(web, "a", clusterType, []string{"x"}, Rejection{Error: "bad"})
		r.Nacked(web, "b", clusterType, []string{"y"}, Rejection{Error: "bad"})
		pass(time.Minute)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "False Rejected Cluster x: bad\nCluster y: bad")
		r.Acked(web, "b", clusterType, []string{"x"}) // it says nothing of what "a" does
		pass(time.Minute)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "False Rejected Cluster x: bad\nCluster y: bad")
		r.Disconnected(web, "a")
		pass(time.Minute)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "False Rejected Cluster y: bad")
		r.Acked(web, "b", clusterType, []string{"y"})
		r.Sent(web, "c", clusterType) // it ends before it answers
		r.Disconnected(web, "c")
		pass(time.Minute)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "True Accepted")
		if i := g.insight(); !i.Status.Online || len(i.Status.Subscriptions) != 1 || i.Status.Subscriptions[0].Resources[0].Sent != i.Status.Subscriptions[0].Resources[0].Acknowledged+2 {
			t.Errorf("one stream is open: %+v", i.Status)
		}
		r.Disconnected(web, "b")
		pass(time.Minute)
		if i := g.insight(); i.Status.Online {
			t.Errorf("no stream is open: %+v", i.Status)
		}
	})
}

// TestRejectedWithoutNames: a response that names no resource, as one of removals alone, is rejected as a whole
// until one of that type is accepted.
func TestRejectedWithoutNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		r, stop := g.start("cp-0")
		defer stop()
		r.Connected(web, Connection{ID: "a", Versions: envoy})
		accept(r, "a")
		pass(time.Minute)
		r.Nacked(web, "a", clusterType, nil, Rejection{Error: "no cluster may be removed"})
		pass(time.Minute)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "False Rejected Cluster *: no cluster may be removed")
		r.Acked(web, "a", clusterType, nil)
		pass(time.Minute)
		g.wantCondition(meshv1alpha1.DataplaneConfigAccepted, "True Accepted")
	})
}

// gateways in a client, of which there is an insight once they have an object.
func gatewayRig(t *testing.T) (*rig, *Recorder, func()) {
	g := newRig(t)
	g.client.Seed(
		&meshv1alpha1.ZoneIngress{ObjectMeta: metav1.ObjectMeta{Name: "in-1", UID: "2"}},
		&meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "pay"}},
	)
	r := New(Config{Client: g.client, Instance: "cp-0", Gateways: true})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return g, r, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func (r *rig) statusOf(of Subject) *meshv1alpha1.ClientInsightStatus {
	r.t.Helper()
	obj, err := r.client.Get(r.t.Context(), roles[of.Role].insight, of.Key)
	if err != nil {
		r.t.Fatal(err)
	}
	return statusOf(obj)
}

// TestGateway: the insight of an ingress is as that of a workload's proxy, with ten connections and its
// conditions, goes with its object, and has the certificates of all meshes that there are.
func TestGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r, stop := gatewayRig(t)
		defer stop()
		in := Gateway(OfIngress, "in-1")
		now := time.Now()
		r.Certified(in, Certificate{Mesh: "default", Identity: "spiffe://default.mesh/zone/a/ingress", Issued: now, Expiry: now.Add(24 * time.Hour)})
		r.Certified(in, Certificate{Mesh: "pay", Identity: "spiffe://pay.mesh/zone/a/ingress", Issued: now, Expiry: now.Add(time.Hour)})
		r.Certified(in, Certificate{Mesh: "gone", Identity: "spiffe://gone.mesh/zone/a/ingress", Issued: now, Expiry: now.Add(time.Minute)})
		for i := range 12 {
			id := fmt.Sprint(i)
			r.Connected(in, Connection{ID: id, Versions: meshv1alpha1.ProxyVersions{Proxy: ownProgram, Version: "1.2.3"}})
			for _, typ := range []string{"type.googleapis.com/proxima.node.v1.Service", "type.googleapis.com/proxima.node.v1.EndpointSlice"} {
				r.Sent(in, id, typ)
				r.Acked(in, id, typ, []string{"*"})
			}
			pass(2 * window)
		}
		r.Sent(in, "11", "type.googleapis.com/proxima.node.v1.Offer")
		r.Nacked(in, "11", "type.googleapis.com/proxima.node.v1.Offer", []string{"*"}, Rejection{Error: "no"})
		pass(2 * window)
		s := g.statusOf(in)
		if n := len(s.Subscriptions); n != 10 || s.Subscriptions[9].Generation != 12 || !s.Online || s.Versions.Version != "1.2.3" {
			t.Errorf("%d connections, %+v", n, s)
		}
		if got := s.Subscriptions[9].Resources; len(got) != 3 || got[1].Type != "Offer" || got[1].Rejected != 1 {
			t.Errorf("resources %+v", got)
		}
		if len(s.Certificates) != 2 || s.Certificates[1].Mesh != "pay" || s.Certificate.Identity != "spiffe://pay.mesh/zone/a/ingress" || s.Certificate.Generations != 1 {
			t.Errorf("certificates %+v, first to end %+v", s.Certificates, s.Certificate)
		}
		want := map[string]metav1.ConditionStatus{
			meshv1alpha1.DataplaneProxyConnected: metav1.ConditionTrue, meshv1alpha1.DataplaneConfigAccepted: metav1.ConditionFalse,
			meshv1alpha1.DataplaneProxyReady: metav1.ConditionTrue, meshv1alpha1.DataplaneCertificateValid: metav1.ConditionTrue,
		}
		got := map[string]metav1.ConditionStatus{}
		for _, c := range s.Conditions {
			got[c.Type] = c.Status
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("conditions (-want +got):\n%s", diff)
		}
		obj, err := g.client.Get(t.Context(), kind.ZoneIngressInsight, in.Key)
		if err != nil || obj.GetOwnerReferences()[0].UID != "2" || obj.GetOwnerReferences()[0].Kind != "ZoneIngress" {
			t.Errorf("owner %+v, %v", obj, err)
		}
		pass(2 * time.Hour) // the certificate of mesh pay ends
		r.Disconnected(in, "11")
		pass(2 * window)
		s = g.statusOf(in)
		for typ, status := range map[string]metav1.ConditionStatus{
			meshv1alpha1.DataplaneProxyConnected: metav1.ConditionFalse, meshv1alpha1.DataplaneProxyReady: metav1.ConditionTrue,
			meshv1alpha1.DataplaneCertificateValid: metav1.ConditionFalse,
		} {
			if c := meta.FindStatusCondition(s.Conditions, typ); c == nil || c.Status != status {
				t.Errorf("after its end: %+v, want %s", c, status)
			}
		}
	})
}

// TestGatewayWithoutObject: there is no insight of a gateway that has no object, until it has. One of an
// instance that has gone is ended by the leader.
func TestGatewayWithoutObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r, stop := gatewayRig(t)
		defer stop()
		out := Gateway(OfEgress, "out-1")
		r.Connected(out, Connection{ID: "a", Versions: envoy})
		pass(2 * window)
		if _, err := g.client.Get(t.Context(), kind.ZoneEgressInsight, out.Key); !apierrors.IsNotFound(err) {
			t.Errorf("an insight of a gateway that is not there: %v", err)
		}
		g.client.Seed(&meshv1alpha1.ZoneEgress{ObjectMeta: metav1.ObjectMeta{Name: "out-1", UID: "3"}})
		pass(2 * window)
		if s := g.statusOf(out); !s.Online {
			t.Errorf("%+v", s)
		}
		other := New(Config{Client: g.client, Instance: "cp-1", Gateways: true})
		if err := other.sweep(t.Context(), g.client, func(string) bool { return false }); err != nil {
			t.Fatal(err)
		}
		s := g.statusOf(out)
		if c := meta.FindStatusCondition(s.Conditions, meshv1alpha1.DataplaneProxyConnected); s.Online || c == nil || c.Status != metav1.ConditionFalse {
			t.Errorf("its instance has gone: %+v", s)
		}
		// Inside a cluster gateways have no insights.
		none := New(Config{Client: g.client, Instance: "cp-1"})
		none.Connected(out, Connection{ID: "b"})
		if _, ok := none.Live(out); ok {
			t.Error("a gateway is observed where there are no insights of them")
		}
		other.queue.ShutDown()
		none.queue.ShutDown()
	})
}
