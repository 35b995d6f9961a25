package registered

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the controller at work, with a registrar, in a bubble of fake time.
type rig struct {
	t         *testing.T
	client    *resourcetest.Client
	registrar *registry.Registrar
	stop      func()
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, client: resourcetest.New(kind.All()...)}
	r.client.Seed(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	r.start()
	return r
}

func (r *rig) start() {
	tables := catalog.New(catalog.Config{Client: r.client, Descriptors: kind.All()})
	r.registrar = registry.NewRegistrar(registry.RegistrarConfig{Client: r.client, Catalog: tables, Owner: "cp"})
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{}, 3)
	for _, run := range []func(context.Context) error{tables.Run, r.registrar.Run, New(Config{Client: r.client, Catalog: tables}).Run} {
		go func() { _ = run(ctx); done <- struct{}{} }()
	}
	r.stop = func() { cancel(); <-done; <-done; <-done }
	r.wait(time.Second)
}

func (r *rig) wait(d time.Duration) { time.Sleep(d); synctest.Wait() }

func (r *rig) put(s registry.Service, port uint16) *registry.Instance {
	r.t.Helper()
	in := &registry.Instance{
		Service: s, Address: netip.MustParseAddr("10.1.0.7"), Port: port, Weight: 100, Enabled: true, Healthy: true, Protocol: registry.Nacos,
	}
	if err := r.registrar.Put(r.t.Context(), in, registry.User{}); err != nil {
		r.t.Fatal(err)
	}
	r.wait(time.Second)
	return in
}

func (r *rig) remove(in *registry.Instance) {
	r.t.Helper()
	if err := r.registrar.Remove(r.t.Context(), in.Key(), registry.User{}); err != nil {
		r.t.Fatal(err)
	}
	r.wait(time.Second)
}

// service of a name; nil: there is none.
func (r *rig) service(name string) *corev1.Service {
	r.t.Helper()
	got, err := r.client.Get(r.t.Context(), kind.Service, resource.Key{Namespace: "shop", Name: name})
	if err != nil {
		return nil
	}
	return got.(*corev1.Service)
}

// The Service of a name has the port of its first instance, selects all, and outlives them for a while,
// also where another instance of the control plane leads by then.
func TestService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer func() { r.stop() }()
		orders := registry.Service{Namespace: "shop", Name: "orders"}
		first := r.put(orders, 8080)
		second := r.put(orders, 8081)
		s := r.service("orders")
		if s == nil || s.Spec.Ports[0].Port != 8080 || s.Spec.Ports[0].TargetPort.StrVal != registry.PortName ||
			s.Spec.Selector[registry.LabelService] != "orders" || len(s.Annotations) != 0 {
			t.Fatalf("service %+v", s)
		}
		r.remove(first)
		if s := r.service("orders"); s == nil || s.Spec.Ports[0].Port != 8080 {
			t.Errorf("after the first instance went: %+v", s)
		}
		r.remove(second)
		r.wait(30 * time.Minute)
		r.stop()
		r.start()
		r.wait(25 * time.Minute)
		if r.service("orders") == nil {
			t.Fatal("it is deleted too early")
		}
		third := r.put(orders, 9090)
		r.wait(2 * time.Hour)
		if s := r.service("orders"); s == nil || s.Spec.Ports[0].Port != 8080 || s.Annotations[annotationUnusedSince] != "" {
			t.Errorf("with an instance again: %+v", s)
		}
		r.remove(third)
		r.wait(Keep + time.Minute)
		if s := r.service("orders"); s != nil {
			t.Errorf("an hour without instances: %+v", s)
		}
	})
}

func TestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		other := registry.Service{Namespace: "shop", Group: "blue", Name: "Orders"}
		r.put(other, 8080)
		if s := r.service(other.ServiceName()); s == nil || s.Annotations[registry.AnnotationService] != "blue@@Orders" {
			t.Errorf("service of another group: %+v", s)
		}
		rpc := registry.Service{Namespace: "shop", Name: "providers:com.example.Pay:1.0:"}
		r.put(rpc, 8080)
		if s := r.service(rpc.ServiceName()); s != nil {
			t.Errorf("an RPC service has a Service: %+v", s)
		}
		// One that somebody made is left alone.
		mine := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pay"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}, Selector: map[string]string{"a": "b"}},
		}
		r.client.Seed(mine)
		in := r.put(registry.Service{Namespace: "shop", Name: "pay"}, 8080)
		r.remove(in)
		r.wait(2 * Keep)
		if s := r.service("pay"); s == nil || s.Spec.Selector["a"] != "b" || len(s.Annotations) != 0 {
			t.Errorf("somebody's own Service: %+v", s)
		}
	})
}
