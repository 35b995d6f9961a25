package health

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// TestZoneLosesPower: three zones of two nodes, with a workload on each. A zone falls
// silent: its machines are suspect within 4 s, and marked within their leases and 3 s;
// the only endpoint of a Service stays. It comes back, and all is as before.
func TestZoneLosesPower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := resourcetest.New(kind.Node, kind.Lease, kind.Dataplane)
		machines := []string{"a-1", "a-2", "b-1", "b-2", "c-1", "c-2"}
		var mu sync.Mutex
		dead := map[string]bool{}
		var published []string
		var monitor *Monitor
		var probing sync.WaitGroup
		monitor = NewMonitor(MonitorConfig{
			Send: func(p Probe) bool {
				mu.Lock()
				o, took := Answered, time.Millisecond
				if dead[p.Node] {
					o, took = Silent, ProbeTimeout
				}
				mu.Unlock()
				probing.Go(func() {
					time.Sleep(took)
					monitor.Result(p.Witness, p.ID, o)
				})
				return true
			},
			Publish: func(names []string) {
				mu.Lock()
				defer mu.Unlock()
				published = names
			},
		})
		for i, name := range machines {
			node := newNode(name)
			node.Labels = map[string]string{corev1.LabelTopologyZone: "zone-" + name[:1]}
			client.Seed(node, newLease(name, time.Now()), newDataplane("web-"+name, name, time.Now()))
			monitor.Attend(name, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 10256))
		}
		h := New(Config{
			Client: client, Nodes: kind.Node, Leases: kind.Lease, Dataplanes: kind.Dataplane, Monitor: monitor,
			Keep: func(keys []resource.Key) map[resource.Key]string {
				out := map[resource.Key]string{}
				if key := (resource.Key{Namespace: "shop", Name: "web-b-2"}); slices.Contains(keys, key) {
					out[key] = "shop/only"
				}
				return out
			},
		})
		done := make(chan error, 2)
		go func() { done <- h.Run(ctx) }()
		go func() { done <- monitor.Run(ctx) }()

		alive := func(name string) bool {
			mu.Lock()
			defer mu.Unlock()
			return !dead[name]
		}
		renew := func(name string) {
			now := time.Now()
			for _, o := range []struct {
				d   *resource.Descriptor
				key resource.Key
			}{{kind.Lease, resource.Key{Namespace: LeaseNamespace, Name: name}}, {kind.Dataplane, resource.Key{Namespace: "shop", Name: "web-" + name}}} {
				obj, err := client.Get(ctx, o.d, o.key)
				if err != nil {
					t.Fatal(err)
				}
				if dp, ok := obj.(*meshv1alpha1.Dataplane); ok {
					dp.Status.Lease.RenewTime = metav1.NewMicroTime(now)
					c := &dp.Status.Conditions[0]
					c.Status, c.Reason, c.LastTransitionTime = metav1.ConditionTrue, "Probed", metav1.NewTime(now)
					_, err = client.UpdateStatus(ctx, kind.Dataplane, dp)
				} else {
					_, err = client.Update(ctx, kind.Lease, newLeaseOf(obj, now))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		elapsed := 0
		beat := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
				for _, name := range machines {
					if !alive(name) {
						continue
					}
					monitor.Heard(name)
					if elapsed%10 == 0 {
						renew(name)
					}
				}
				elapsed++
			}
			synctest.Wait()
		}
		down := func() string {
			var out []string
			for _, name := range machines {
				obj, err := client.Get(ctx, kind.Node, resource.Key{Name: name})
				if err != nil {
					t.Fatal(err)
				}
				if nodeIsMarked(obj.(*corev1.Node)) {
					out = append(out, name)
				}
				if obj, err = client.Get(ctx, kind.Dataplane, resource.Key{Namespace: "shop", Name: "web-" + name}); err != nil {
					t.Fatal(err)
				}
				if !meta.IsStatusConditionTrue(obj.(*meshv1alpha1.Dataplane).Status.Conditions, meshv1alpha1.DataplaneReady) {
					out = append(out, "web-"+name)
				}
			}
			return strings.Join(out, " ")
		}
		suspects := func() string {
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(published, " ")
		}
		kill := func(names ...string) {
			mu.Lock()
			defer mu.Unlock()
			for _, name := range names {
				dead[name] = true
			}
		}

		beat(61 * time.Second)
		kill("b-1", "b-2")
		beat(4 * time.Second)
		if got := suspects(); got != "b-1 b-2" {
			t.Errorf("suspects after 4 s: %q", got)
		}
		beat(34 * time.Second)
		if got := down(); got != "" {
			t.Errorf("marked before their leases ran out: %s", got)
		}
		beat(5 * time.Second)
		if got := down(); got != "b-1 web-b-1 b-2" {
			t.Errorf("marked: %q", got)
		}
		state := h.State()
		if len(state.Held) != 1 || state.Held[0].Name != "web-b-2" || state.Held[0].Zone != "zone-b" ||
			!strings.Contains(state.Reason, "service shop/only has no other endpoint") {
			t.Errorf("state %+v", state)
		}
		if got := testutil.CollectAndCount(h) + testutil.CollectAndCount(monitor); got != 12 {
			t.Errorf("%d metrics", got)
		}
		beat(10 * time.Minute) // for ever
		if got := down(); got != "b-1 web-b-1 b-2" {
			t.Errorf("marked later: %q", got)
		}

		clear(dead)
		beat(1500 * time.Millisecond)
		if got := suspects(); got != "" {
			t.Errorf("suspects after the return: %q", got)
		}
		beat(10 * time.Second)
		if state := h.State(); len(state.Held) > 0 || state.Reason != "" {
			t.Errorf("state after the return %+v", state)
		}
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		probing.Wait()
	})
}
