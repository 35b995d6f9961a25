package registered

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// endpoints of the slices of "orders", by address; other slices of the Service are left alone.
func (r *rig) endpoints() map[string]discoveryv1.Endpoint {
	r.t.Helper()
	list, _, err := r.client.List(r.t.Context(), kind.EndpointSlice, resource.ListOptions{Namespace: "shop"})
	if err != nil {
		r.t.Fatal(err)
	}
	out, others := map[string]discoveryv1.Endpoint{}, 0
	for _, o := range list {
		s := o.(*discoveryv1.EndpointSlice)
		if s.Labels[discoveryv1.LabelManagedBy] != registry.SlicesManagedBy {
			others++
			continue
		}
		for _, e := range s.Endpoints {
			out[e.Addresses[0]] = e
		}
	}
	if others != 1 {
		r.t.Errorf("%d slices of others", others)
	}
	return out
}

// Where another controller makes the slices of Pods, the Service has no selector, and its slices name the Pods of its
// namespace at the addresses of instances; they are ready as the instances are, and go with them.
func TestSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, client: resourcetest.New(kind.All()...)}
		r.client.Seed(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
		r.client.Seed(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "a"}}})
		r.client.Seed(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "by-hand", Labels: map[string]string{discoveryv1.LabelServiceName: "orders"}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.9.9"}}},
		})
		pod := func(namespace string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "orders-1", UID: "u"}, Spec: corev1.PodSpec{NodeName: "n1"}}
		}
		pods := map[string]*corev1.Pod{"10.1.0.7": pod("shop"), "10.1.0.8": pod("elsewhere")}
		tables := catalog.New(catalog.Config{Client: r.client, Descriptors: kind.All()})
		r.registrar = registry.NewRegistrar(registry.RegistrarConfig{Client: r.client, Catalog: tables, Owner: "cp"})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, run := range []func(context.Context) error{
			tables.Run, r.registrar.Run, New(Config{Client: r.client, Catalog: tables, Slices: true}).Run,
			NewSlices(SlicesConfig{Client: r.client, Catalog: tables, PodAt: func(a netip.Addr) *corev1.Pod { return pods[a.String()] }}).Run,
		} {
			go func() { _ = run(ctx) }()
		}
		r.wait(time.Second)
		put := func(address string, healthy bool) *registry.Instance {
			in := &registry.Instance{
				Service: registry.Service{Namespace: "shop", Name: "orders"}, Address: netip.MustParseAddr(address), Port: 8080, Weight: 100, Enabled: true,
				Healthy: healthy, Protocol: registry.Nacos,
			}
			if err := r.registrar.Put(t.Context(), in, registry.User{}); err != nil {
				t.Fatal(err)
			}
			return in
		}
		first := put("10.1.0.7", true)
		put("10.1.0.8", true)
		put("10.1.0.9", false)
		r.wait(5 * time.Second)
		if s := r.service("orders"); s == nil || len(s.Spec.Selector) != 0 {
			t.Fatalf("service %+v", s)
		}
		got := r.endpoints()
		e := got["10.1.0.7"]
		if len(got) != 3 || e.TargetRef == nil || e.TargetRef.Kind != "Pod" || e.TargetRef.Name != "orders-1" || e.NodeName == nil || *e.NodeName != "n1" || e.Zone == nil || *e.Zone != "a" {
			t.Errorf("endpoints %+v", got)
		}
		if e := got["10.1.0.8"]; e.TargetRef == nil || e.TargetRef.Kind != "Dataplane" || !*e.Conditions.Ready {
			t.Errorf("at the address of another namespace's Pod: %+v", e)
		}
		if e := got["10.1.0.9"]; e.Conditions.Ready == nil || *e.Conditions.Ready {
			t.Errorf("unhealthy: %+v", e)
		}
		r.remove(first)
		r.wait(5 * time.Second)
		if got := r.endpoints(); len(got) != 2 {
			t.Errorf("after one was removed: %+v", got)
		}
		cancel()
		synctest.Wait()
	})
}
