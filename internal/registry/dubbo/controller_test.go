package dubbo_test

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/dubbo"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func service(annotations map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", Annotations: annotations},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

// The entries of a Service are written, and again when one of them is deleted; mappings of others stay.
func TestService(t *testing.T) {
	p := registrytest.New(t)
	if _, err := p.Client.Create(t.Context(), kind.Service, service(map[string]string{registry.AnnotationInterface: "shop.Orders"})); err != nil {
		t.Fatal(err)
	}
	mapping := registry.ConfigKey{Namespace: "shop", Group: "mapping", DataID: "shop.Orders"}
	p.Eventually("the interface is mapped", func() bool {
		o := p.Configs.Get(mapping)
		return o != nil && o.Spec.Content == "orders"
	})
	revisions := p.Configs.List("shop", func(k registry.ConfigKey) bool { return k.DataID == "orders" })
	if len(revisions) != 1 {
		t.Fatalf("entries of the application: %v", revisions)
	}
	before := p.Configs.Get(revisions[0])
	if err := p.Configs.Delete(t.Context(), registry.User{Admin: true}, revisions[0]); err != nil {
		t.Fatal(err)
	}
	p.Eventually("the metadata are written again", func() bool {
		o := p.Configs.Get(revisions[0])
		return o != nil && o.UID != before.UID && o.Spec.Content == before.Spec.Content
	})
}

// Metadata that nothing names are deleted after an hour; those that an instance names never.
func TestGarbage(t *testing.T) {
	p := registrytest.New(t)
	tables := catalog.New(catalog.Config{Client: p.Client, Descriptors: kind.All()})
	clock := testingclock.NewFakeClock(time.Now())
	run := dubbo.New(dubbo.Config{Client: p.Client, Catalog: tables, Clock: clock})
	done := make(chan struct{}, 2)
	for _, f := range []func() error{func() error { return tables.Run(t.Context()) }, func() error { return run.Run(t.Context()) }} {
		go func() {
			if err := f(); err != nil {
				t.Error(err)
			}
			done <- struct{}{}
		}()
	}
	t.Cleanup(func() { <-done; <-done })
	first := service(map[string]string{registry.AnnotationInterface: "shop.Orders"})
	m, err := registry.MetadataOf(first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Client.Create(t.Context(), kind.Service, first); err != nil {
		t.Fatal(err)
	}
	entry := registry.ConfigKey{Namespace: "shop", Group: m.Revision, DataID: "orders"}
	p.Eventually("there are metadata", func() bool { return p.Configs.Get(entry) != nil })
	in := &registry.Instance{
		Service: registry.Service{Namespace: "shop", Name: "orders"}, Address: netip.MustParseAddr("10.1.0.7"), Port: 20001, Weight: 100, Enabled: true,
		Healthy: true, Protocol: registry.Nacos, Metadata: map[string]string{registry.KeyRevision: m.Revision, registry.KeyStorage: registry.StorageLocal},
	}
	if err := p.Registrar.Put(t.Context(), in, registry.User{Admin: true}); err != nil {
		t.Fatal(err)
	}
	p.Eventually("the instance says that its metadata are stored", func() bool {
		l := p.Index.Listing(in.Service, "")
		return len(l.Instances) == 1 && l.Instances[0].Metadata[registry.KeyStorage] == registry.StorageRemote
	})
	if err := p.Client.Delete(t.Context(), kind.Service, resource.KeyOf(first), resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	p.Eventually("the service is gone", func() bool {
		_, there := tables.Snapshot().Services.Get(resource.KeyOf(first))
		return !there
	})
	for range 12 {
		clock.Step(10 * time.Minute)
	}
	if p.Configs.Get(entry) == nil {
		t.Fatal("metadata were deleted that an instance names")
	}
	if err := p.Registrar.Remove(t.Context(), in.Key(), registry.User{Admin: true}); err != nil {
		t.Fatal(err)
	}
	p.Eventually("metadata that nothing names are deleted", func() bool {
		clock.Step(10 * time.Minute)
		return p.Configs.Get(entry) == nil
	})
}
