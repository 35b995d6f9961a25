package registry_test

import (
	"net/netip"
	"slices"
	"testing"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
)

// A client deletes what no instance needs; metadata and mappings of one that is there stay.
func TestWithdraw(t *testing.T) {
	p := registrytest.New(t)
	user := registry.User{}
	put := func(group, dataID, content string) registry.ConfigKey {
		t.Helper()
		key := registry.ConfigKey{Namespace: "shop", Group: group, DataID: dataID}
		if err := p.Configs.Put(t.Context(), user, key, func(spec *meshv1alpha1.RegistryConfigSpec, _ bool) error {
			spec.Content = content
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return key
	}
	named, old := put("r2", "orders", "{}"), put("r1", "orders", "{}")
	mapped, free := put("mapping", "shop.Orders", "pay,orders"), put("mapping", "shop.Pay", "pay")
	in := &registry.Instance{
		Service: registry.Service{Namespace: "shop", Name: "orders"}, Address: netip.MustParseAddr("10.1.0.7"), Port: 20001, Weight: 100, Enabled: true,
		Healthy: true, Protocol: registry.Nacos, Metadata: map[string]string{registry.KeyRevision: "r2", registry.KeyStorage: registry.StorageRemote},
	}
	if err := p.Registrar.Put(t.Context(), in, registry.User{Admin: true}); err != nil {
		t.Fatal(err)
	}
	p.Eventually("the instance is there", func() bool { return len(p.Index.Registered(in.Service)) == 1 })
	for _, key := range []registry.ConfigKey{old, free} {
		if kept, err := p.Withdraw(t.Context(), user, key); kept || err != nil || p.Configs.Get(key) != nil {
			t.Errorf("%s, which nothing needs: kept %t, %v", key, kept, err)
		}
	}
	for _, key := range []registry.ConfigKey{named, mapped} {
		if kept, err := p.Withdraw(t.Context(), user, key); !kept || err != nil || p.Configs.Get(key) == nil {
			t.Errorf("%s, which an instance needs: kept %t, %v", key, kept, err)
		}
	}
	if tags := p.Configs.Get(named).Spec.Tags; !slices.Contains(tags, registry.TagMetadata) {
		t.Errorf("the metadata have tags %v: they are never deleted", tags)
	}
	if _, err := p.Withdraw(t.Context(), registry.User{ReadOnly: true}, named); err == nil {
		t.Error("a user who may write nothing deletes an entry")
	}
}
